"""Public programs for numba.cuda: migrated, run on the host backend, and compared with themselves; ``nox -s programs``.

Each wheel of ``programs.toml`` is fetched and unpacked twice. One copy is left as it is and runs in numba's own simulator; the
other goes through ``devmem migrate --write``. ``drivers.py`` calls both. The page docs/reference/real-programs.md is made of
what is found: ``PROGRAMS=write`` writes it, ``PROGRAMS=check`` compares all of it but the times.
"""

from __future__ import annotations

import ast
import importlib
import inspect
import json
import os
import re
import subprocess
import sys
import tomllib
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from waits import patience

MODE = os.environ.get("PROGRAMS", "")
if not MODE:
    pytest.skip("fetches public programs from the package index: nox -s programs", allow_module_level=True)

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
PAGE = ROOT / "docs" / "reference" / "real-programs.md"
TUTORIAL = ROOT / "docs" / "tutorial" / "from-numba-cuda.md"
PROGRAMS: dict[str, Any] = tomllib.loads((HERE / "programs.toml").read_text())
#: Float32 sums in another order; integers and copies come out equal anyway.
TOLERANCE = {"rtol": 1e-4, "atol": 1e-5}
TIME = re.compile(r"\d+\.\d s")
ROWS: dict[str, str] = {}

pytestmark = [pytest.mark.timeout(1800)]


def fetch(name: str, folder: Path) -> Path:
    """The wheel of a program; pip compares its hash."""
    wanted = folder / "requirements.txt"
    wanted.write_text(f"{PROGRAMS[name]['wheel']} --hash=sha256:{PROGRAMS[name]['sha256']}\n")
    pip = [sys.executable, "-m", "pip", "download", "-q", "--no-deps", "--require-hashes", "--only-binary", ":all:"]
    subprocess.run([*pip, "-r", str(wanted), "-d", str(folder)], check=True, capture_output=True, text=True)
    [wheel] = folder.glob("*.whl")
    return wheel


def kernels_in(folder: Path) -> Iterator[tuple[str, str]]:
    """The file and name of each function under a folder that ``cuda.jit`` makes a kernel."""
    for path in sorted(folder.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            for decorator in getattr(node, "decorator_list", ()):
                text = ast.unparse(decorator)
                if re.match(r"(\w+\.)*cuda\.jit\b", text) and "device=True" not in text:
                    yield str(path.relative_to(folder)), node.name


def drive(name: str, folder: Path, out: Path, **variables: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(HERE / "drivers.py"), name, str(folder), str(out)]
    return subprocess.run(command, capture_output=True, text=True, env=os.environ | variables, timeout=patience(840))


@pytest.mark.parametrize("name", PROGRAMS)
def test_a_program_computes_the_same(name, tmp_path):
    program = PROGRAMS[name]
    wheel = fetch(name, tmp_path)
    plain, changed = tmp_path / "plain", tmp_path / "changed"
    for folder in (plain, changed):
        zipfile.ZipFile(wheel).extractall(folder)
    command = [sys.executable, "-m", "devmem.cli", "migrate", "--write", "--json", str(changed / program["folder"])]
    migrated = subprocess.run(command, capture_output=True, text=True)
    assert migrated.returncode in (0, 1), migrated.stderr
    files = [each for each in json.loads(migrated.stdout)["files"] if each["changed"]]
    assert files

    theirs = drive(name, plain, tmp_path / "plain.npz", NUMBA_ENABLE_CUDASIM="1")
    ours = drive(name, changed, tmp_path / "changed.npz", DEVMEM_BACKEND="host")
    assert ours.returncode == 0, ours.stderr
    mine = np.load(tmp_path / "changed.npz")
    facts = json.loads((tmp_path / "changed.json").read_text())
    results = [each.removeprefix("result/") for each in mine.files if each.startswith("result/")]
    references = [each for each in results if f"reference/{each}" in mine.files]
    assert references
    for each in references:
        np.testing.assert_allclose(mine[f"result/{each}"], mine[f"reference/{each}"], err_msg=each, **TOLERANCE)
    if refusal := program.get("numba_refuses"):
        assert theirs.returncode != 0
        assert refusal in theirs.stderr
        numba = f"refuses: `{refusal}`"
    else:
        assert theirs.returncode == 0, theirs.stderr
        other = np.load(tmp_path / "plain.npz")
        assert set(other.files) == set(mine.files)
        for each in results:
            np.testing.assert_allclose(mine[f"result/{each}"], other[f"result/{each}"], err_msg=each, **TOLERANCE)
        numba = f"equal, {json.loads((tmp_path / 'plain.json').read_text())['seconds']:.1f} s"

    left = set(program.get("left", ()))
    kernels = set(kernels_in(plain / program["folder"]))
    launched = set(facts["launched"])
    assert {kernel for _, kernel in kernels} <= launched | left
    assert not launched & left - {"_matvec_rmatvec"}
    counted = sum(kernel in launched for _, kernel in kernels)
    lines = sum(text.startswith("+") and not text.startswith("+++") for each in files for text in diff(each))
    ROWS[name] = (
        f"| {name} | `{program['wheel']}` | {len(files)}, {lines} | {counted} of {len(kernels)} "
        f"| {len(results)} | {numba} | {len(references)} equal | {facts['seconds']:.1f} s |"
    )


def diff(file: dict[str, Any]) -> list[str]:
    return str(file["diff"]).splitlines()


def page() -> str:
    """The page, with what this run found."""
    sys.path.insert(0, str(HERE))
    drivers = importlib.import_module("drivers")
    out = [
        "# Real programs",
        "",
        "Public programs written for numba.cuda, as wheels from the package index at pinned versions and hashes. "
        "`devmem migrate --write`",
        "changes their imports, and nothing else is changed. Each driver in `tests/programs/drivers.py` then calls their",
        "kernels on the host backend, with no GPU, and those of the unchanged program in numba's own simulator.",
        "`nox -s programs -- write` makes this page; `nox -s programs` fails where it differs in anything but the times.",
        "",
        f"Results are equal within a relative {TOLERANCE['rtol']:g} and an absolute {TOLERANCE['atol']:g}. "
        "A reference is NumPy,",
        "SciPy, or what the program has for the CPU, compiled by `numba.njit`. Times are the processor's, of all calls of a "
        "driver in one process,",
        "with the compilation of references, on a shared machine: they tell orders of magnitude. CuPy's arrays are NumPy's here,",
        "and PyTorch's names stand-ins.",
        "",
        "| driver | wheel | files, lines changed | kernels launched | results | numba's simulator | references | devmem |",
        "|---|---|---|---|---|---|---|---|",
        *(ROWS[name] for name in PROGRAMS),
        "",
        "## What each driver does",
        "",
        *(f"- **{name}**: {inspect.getdoc(getattr(drivers, name))}" for name in PROGRAMS),
        "",
        "## Kernels that no driver launches",
        "",
        *(
            f"- {name}, `{kernel}`: {reason}"
            for name, program in PROGRAMS.items()
            for kernel, reason in program.get("left", {}).items()
        ),
        "",
    ]
    return "\n".join(out)


@pytest.fixture(scope="session", autouse=True)
def written() -> Iterator[None]:
    """After the last program the page is written or compared; a run of some of the programs leaves it."""
    yield
    if len(ROWS) < len(PROGRAMS):
        return
    found = page()
    if MODE == "write":
        PAGE.write_text(found, encoding="utf-8")
    assert TIME.sub("", PAGE.read_text(encoding="utf-8")) == TIME.sub("", found), "stale: nox -s programs -- write"


def test_the_tutorial_runs(tmp_path):
    """Its blocks of shell, in order, with the index's wheel."""
    blocks = re.findall(r"```bash\n(.*?)```", TUTORIAL.read_text(encoding="utf-8"), flags=re.DOTALL)
    script = "set -e\n" + "\n".join(blocks)
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    ran = subprocess.run(
        ["bash", "-c", script], cwd=tmp_path, capture_output=True, text=True, env=os.environ | {"PATH": path}
    )
    assert ran.returncode == 0, ran.stderr
    assert ran.stdout.count("nearest neighbour of 0: 40") == 2, ran.stdout
