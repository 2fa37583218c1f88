"""The table of stages that .ci/run prints, and the lines on the machine that it prints where it took too long."""

import json
import re
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]


def test_every_stage_and_session_has_its_minutes(tmp_path):
    (tmp_path / "stages").write_text(f"{time.time() - 600:.0f} began\n90 check: types\n240 main\n")
    report = {"sessions": [{"name": "judges", "duration": 93.4}, {"name": "browser", "duration": 6}]}
    (tmp_path / "report.json").write_text(json.dumps(report))
    command = [sys.executable, str(ROOT / "scripts" / "stages"), str(tmp_path / "stages")]
    told = subprocess.check_output([*command, str(tmp_path / "report.json")], text=True)
    rows = ["| check: types | 1.5 |", "| main | 4.0 |", "| nox: judges | 1.6 |", "| nox: browser | 0.1 |"]
    assert told.splitlines()[2:] == [*rows, "| all of it, by the clock | 10.0 |"]
    told = subprocess.check_output([*command, str(tmp_path / "absent")], text=True)
    assert "nox" not in told


@pytest.mark.skipif(not (Path("/proc").exists() and shutil.which("ps")), reason="needs Linux's /proc, and ps")
def test_the_machine_is_told_in_a_line():
    with subprocess.Popen([str(ROOT / "scripts" / "load"), "0.1"], stdout=subprocess.PIPE, text=True) as process:
        first, second = (process.stdout.readline() for _ in range(2))
        process.terminate()
    for line in (first, second):
        assert re.fullmatch(r"[\d:]+ load [\d.]+, \d+ MiB free, \d+ MiB of disk;( ?;?\d+ s .*)+\n", line), line
