"""The table of stages that .ci/run prints, and the rows that scripts/repeat-ci makes of it."""

import importlib.machinery
import importlib.util
import json
import re
import subprocess
import sys
import time
from pathlib import Path

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


def test_a_row_of_the_gate_tells_commit_minutes_and_what_failed():
    loader = importlib.machinery.SourceFileLoader("repeat_ci", str(ROOT / "scripts" / "repeat-ci"))
    repeat_ci = importlib.util.module_from_spec(importlib.util.spec_from_loader("repeat_ci", loader))
    loader.exec_module(repeat_ci)
    log = "| stage | minutes |\n| --- | ---: |\n| main | 4.5 |\n| cuda-driver | 0.2 |\n| all of it, by the clock | 9.0 |\n"
    row = repeat_ci.described("abc1234", True, time.time() - 540, 0, log)
    assert re.fullmatch(
        r"\| abc1234 \| [\d-]+ [\d:]+ \| two busy loops \| 9\.0 \| passed \| main 4\.5, cuda-driver 0\.2 \|\n", row
    )
    row = repeat_ci.described("abc1234", False, time.time(), 1, log + "== failed: main (exit code 1). To repeat it:\n")
    assert "| none | 0.0 | failed: main |" in row
