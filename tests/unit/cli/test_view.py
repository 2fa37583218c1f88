"""`devmem view`: what the page is given of logs, snapshots and traces, and what is refused."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner, Result
from waits import patience

import devmem as dm
from devmem.cli import view
from devmem.cli.commands import commands

PROGRAM = """
import numpy as np, devmem as dm
def make(n):
    return dm.to_device(np.zeros(n, np.uint8))
kept = make(5000)
for _ in range(3):
    make(100).free()
kept.copy_to_host()
dm.memory_snapshot().save("snapshot.json")
kept.free()
"""


def run(*arguments: object) -> Result:
    return CliRunner().invoke(commands, ["view", *map(str, arguments)])


def data(page: str) -> list[dict[str, Any]]:
    """What a page holds."""
    found = re.search(r'<script type="application/json" id="data">(.*?)</script>', page, re.DOTALL)
    assert found is not None
    return json.loads(found[1])  # type: ignore[no-any-return]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A program's log, trace and snapshot."""
    path = tmp_path_factory.mktemp("view")
    (path / "program.py").write_text(PROGRAM)
    settings = {
        "DEVMEM_BACKEND": "host",
        "DEVMEM_TRACE": "trace.json",
        "DEVMEM_MEMORY_MANAGER": "log:run.log;frames=2,statistics:owners",
        "PYTHONPATH": str(Path(dm.__file__).parents[1]),
    }
    subprocess.run([sys.executable, "program.py"], cwd=path, env=settings, check=True, timeout=patience(140))
    return path


def test_a_log_becomes_blocks_with_their_lines_and_times(folder: Path, tmp_path: Path) -> None:
    result = run(folder / "run.log", "-o", tmp_path / "page.html")
    assert result.exit_code == 0, result.output
    [part] = data((tmp_path / "page.html").read_text())
    assert (part["kind"], part["left_out"]) == ("log", 0)
    assert [block[2] for block in part["blocks"]] == [5000, 100, 100, 100]
    kept, *short = part["blocks"]
    assert all(kept[0] < each[0] < each[1] < kept[1] <= part["ended"] for each in short)
    lines = [Path(each).name for each in part["frames"][kept[3]]]
    assert lines == ["program.py:4 (make)", "program.py:5 (<module>)"]
    assert {each[3] for each in short} == {1}


def test_a_snapshot_becomes_its_blocks(folder: Path) -> None:
    part = view.document(folder / "snapshot.json")
    [[address, nbytes, line, memory]] = part["blocks"]
    assert (nbytes, memory) == (5000, "host:0 device")
    assert line.endswith("program.py:4 (make)")
    assert address
    assert part["devices"][0]["live_bytes"] == 5000


def test_a_trace_becomes_its_copies(folder: Path) -> None:
    part = view.document(folder / "trace.json")
    copies = [(nbytes, part["paths"][path]) for _, _, nbytes, path, _ in part["copies"]]
    assert copies == [(5000, "h2d direct"), *[(100, "h2d direct")] * 3, (5000, "d2h direct")]
    assert part["threads"] == ["MainThread"]
    assert all(0 <= began <= ended for began, ended, *_ in part["copies"])


def test_names_in_the_data_end_no_element_of_the_page() -> None:
    page = view.page([{"kind": "log", "file": "</script><b>", "blocks": [], "frames": [], "ended": 1, "left_out": 0}])
    assert "</script><b>" not in page
    assert data(page)[0]["file"] == "</script><b>"


def test_the_smallest_are_left_out_of_a_page_that_would_be_too_large(
    monkeypatch: pytest.MonkeyPatch, folder: Path
) -> None:
    monkeypatch.setattr(view, "MOST", 2)
    part = view.document(folder / "run.log")
    assert [block[2] for block in part["blocks"]] == [5000, 100]
    assert part["left_out"] == 2


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("hello\n", r"line 1: not a record .*DEVMEM_TRACE"),
        ("", "no allocation in it"),
        ("[\n]", "no copy in it"),
        ("[ nonsense", "is not JSON"),
        ('{"format": "devmem memory snapshot"}', "cannot be read"),
        ('{"format": "devmem memory snapshot", "devices": [], "blocks": [3]}', "cannot be read"),
        ('{"op": "allocate", "address": 1, "nbytes": 2, "stream": 1, "t": 0, "frames": 3}\n', "not a record"),
        ('[{"ph": "X", "ts": "x"}]', "cannot be read"),
    ],
)
def test_what_is_none_of_them_is_refused(text: str, says: str, tmp_path: Path) -> None:
    (tmp_path / "given").write_text(text)
    result = run(tmp_path / "given", "-o", tmp_path / "page.html")
    assert result.exit_code == 2
    assert re.search(says, " ".join(result.output.split())), result.output
    assert not (tmp_path / "page.html").exists()


def test_a_missing_file_is_told(tmp_path: Path) -> None:
    result = run(tmp_path / "missing", "-o", tmp_path / "page.html")
    assert result.exit_code == 2
    assert "missing" in result.output


def test_frames_are_written_where_they_are_asked_for(tmp_path: Path) -> None:
    with dm.use_memory(dm.memory.Log(path=tmp_path / "log", frames=3)):
        dm.to_device(np.zeros(3)).free()
    first, second = (tmp_path / "log").read_text().splitlines()
    frames = json.loads(first)["frames"]
    assert frames[0][0] == __file__
    assert 1 <= len(frames) <= 3
    assert "frames" not in json.loads(second)
    with pytest.raises(dm.errors.ConfigError, match="frames=-1"):
        dm.memory.Log(frames=-1)
