"""Engines that move arrays between processes, over each backend; and docs/reference/engines.md, which is made of it.

``ENGINES=check`` holds what is found against the page, ``ENGINES=write`` writes it there; without it nothing is run: the engines
need an environment of their own (``nox -s engines``).
"""

from __future__ import annotations

import importlib.metadata
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from waits import patience

from .conftest import load

MODE = os.environ.get("ENGINES", "")
PAGE = Path(__file__).parents[2] / "docs" / "reference" / "engines.md"
BACKENDS = ("host", "cuda", "roc")
engines = load("engines")

pytestmark = pytest.mark.skipif(not MODE, reason="run by nox -s engines")


def table(text):
    """The rows of the page, and where they begin and end."""
    begin, end = (text.index(f"<!-- engines: {word} -->") for word in ("begin", "end"))
    rows = re.findall(r"^\| ([^|]+) \| ([^|]+) \|(.*)\|$", text[begin:end], flags=re.MULTILINE)[1:]
    return {name.strip(): [cell.strip() for cell in cells.split("|")] for name, _, cells in rows}, begin, end


def write(name, backend, outcome, versions):
    text = PAGE.read_text(encoding="utf-8")
    _, begin, end = table(text)
    lines = text[begin:end].splitlines()
    [at] = [at for at, line in enumerate(lines) if line.startswith(f"| {name} |")]
    cells = lines[at].strip("|").split("|")
    cells[1], cells[2 + BACKENDS.index(backend)] = f" {versions} ", f" {outcome} "
    lines[at] = f"|{'|'.join(cells)}|"
    PAGE.write_text(text[:begin] + "\n".join(lines) + "\n" + text[end:], encoding="utf-8")


@pytest.mark.timeout(300)
@pytest.mark.parametrize("name", engines.ENGINES)
def test_an_engine_is_exact_or_says_why_not(name, devmem_backend, tmp_path):
    engine = engines.ENGINES[name]
    script = tmp_path / "program.py"
    script.write_text(engine.program)
    command = [sys.executable, str(script), "ucxx" if "UCXX" in name else "tcp"]
    if engine.ranks:
        beside = str(Path(sys.executable).parent)
        launcher = shutil.which("mpiexec", path=os.pathsep.join([beside, os.environ.get("PATH", "")]))
        assert launcher, "mpiexec is not installed"
        command = [launcher, "-n", str(engine.ranks), *command]
    settings = {"DEVMEM_BACKEND": devmem_backend, "DEVMEM_HOST_STRICT": "1", **dict(engine.settings)}
    quiet = {
        "DASK_DISTRIBUTED__WORKER__DAEMON": "True",
        "RAY_DISABLE_IMPORT_WARNING": "1",
        "RAY_USAGE_STATS_ENABLED": "0",
    }
    done = subprocess.run(
        command, env=os.environ | settings | quiet, capture_output=True, text=True, timeout=patience(130), check=False
    )
    assert done.returncode == 0, done.stderr[-3000:]
    outcome = done.stdout.strip().splitlines()[-1]
    assert outcome.startswith(("exact", "refused: ")), done.stdout + done.stderr[-3000:]
    versions = ", ".join(f"{each} {importlib.metadata.version(each)}" for each in engine.versions)
    if MODE == "write":
        write(name, devmem_backend, outcome, versions)
    else:
        rows, _, _ = table(PAGE.read_text(encoding="utf-8"))
        assert rows[name][BACKENDS.index(devmem_backend)] == outcome
