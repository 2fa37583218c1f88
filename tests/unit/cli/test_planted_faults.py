"""``devmem simulate --race-check`` finds each planted fault, with block, thread and line, and nothing in kernels without one."""

from __future__ import annotations

import ast
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("greenlet")
ROOT, PROGRAM = Path(__file__).parents[3], Path(__file__).with_name("planted_faults.py")
LINES = PROGRAM.read_text(encoding="utf-8").splitlines()
FAULT = re.compile(r"# (race|unwritten|divergence|out of bounds), (\d+), (\d+)$")
FUNCTIONS = {
    each.name: each for each in ast.parse(PROGRAM.read_text(encoding="utf-8")).body if isinstance(each, ast.FunctionDef)
}
PLANTED = [name for name in FUNCTIONS if name + "_fixed" in FUNCTIONS]


def fault_of(name: str) -> tuple[str, int, int, int]:
    """(kind, block, thread, line) of a kernel's fault, which may be in a function that it calls."""
    called = {each.id for each in ast.walk(FUNCTIONS[name]) if isinstance(each, ast.Name)} & FUNCTIONS.keys()
    [found] = [
        (fault[1], int(fault[2]), int(fault[3]), line)
        for each in (name, *called)
        for line in range(FUNCTIONS[each].lineno, FUNCTIONS[each].end_lineno + 1)
        if (fault := FAULT.search(LINES[line - 1]))
    ]
    return found


@pytest.fixture(scope="module")
def report(tmp_path_factory) -> dict:
    """The report of the program."""
    told = tmp_path_factory.mktemp("report") / "report.json"
    command = [sys.executable, "-m", "devmem.simulate", "--race-check", "-o", str(told), str(PROGRAM)]
    done = subprocess.run(
        command,
        env={**os.environ, "PYTHONPATH": str(ROOT), "DEVMEM_SIM_NEGATIVE": "report"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(told.read_text(encoding="utf-8"))


def test_there_are_thirty_faults_of_all_kinds():
    kinds = [fault_of(name)[0].replace("unwritten", "race") for name in PLANTED]
    assert len(kinds) >= 30
    assert all(kinds.count(kind) >= 7 for kind in ("race", "divergence", "out of bounds"))


@pytest.mark.parametrize("name", PLANTED)
def test_a_planted_fault_is_found_and_its_remedy_is_not_reported(report, name):
    launched = {each["kernel"]: each["launches"] for each in report["kernels"]}
    assert launched[name] == launched[name + "_fixed"] == 1
    found = [
        (each["kind"], each["block"][0], each["thread"], each["line"])
        for each in report["findings"]
        if each["kernel"] == name
    ]
    kind, block, thread, line = fault_of(name)
    assert [(*each[:2], each[3]) for each in found] == [(kind, block, line)]
    assert found[0][2][0] == thread
    assert [each for each in report["findings"] if each["kernel"] == name + "_fixed"] == []
