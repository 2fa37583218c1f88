"""The page of features has the rows of its table, and each names a test that exists."""

from __future__ import annotations

import subprocess
import sys
from importlib.machinery import SourceFileLoader
from importlib.util import module_from_spec, spec_from_loader
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[2] / "scripts" / "features"


@pytest.fixture(scope="module")
def features():
    if not SCRIPT.is_file():
        pytest.skip("these are not the sources: there is no scripts/features")
    loader = SourceFileLoader("features_script", str(SCRIPT))
    spec = spec_from_loader(loader.name, loader)
    assert spec is not None
    module = module_from_spec(spec)
    loader.exec_module(module)
    return module


def test_the_page_is_that_of_its_rows():
    done = subprocess.run([sys.executable, str(SCRIPT)], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, ""), "scripts/features --run writes it anew"


@pytest.mark.parametrize(
    ("row", "says"),
    [
        ({"test": "unit/none.py::test_a"}, "there is no file"),
        ({"test": "docs/test_features.py::test_none"}, "has no test_none"),
        ({}, "has a test, or says why"),
        ({"test": "docs/test_features.py", "missing": "too"}, "has a test, or says why"),
    ],
)
def test_a_row_without_a_test_that_exists_is_a_fault(features, row, says):
    [fault] = features.missing_tests([{"rows": [{"feature": "f", "verb": "v", **row}]}])
    assert says in fault


def test_a_row_whose_test_failed_or_ran_nowhere_is_a_fault(features):
    groups = [{"rows": [{"feature": "f", "verb": "v", "test": "t"}]}]

    def told(**outcomes):
        return [*features.unproven(groups, {name: {"t": features.state(found)} for name, found in outcomes.items()})]

    assert told(host=["yes"], cuda=["skipped: lacks it"]) == []
    assert told(host=["skipped: lacks it"], roc=["yes, with `ASKED=1`"]) == []
    assert "passed nowhere" in told(host=["skipped: lacks it"], cuda=[])[0]
    assert "cuda: failure: 1 != 2" in told(host=["yes"], cuda=["yes", "failure: 1 != 2"])[0]


def test_what_has_to_be_asked_for_runs_once_more_with_the_setting(features, monkeypatch):
    outcomes = {
        "": {"plain": "yes", "asked": "lacks it", "never": "lacks that", "breaks": "lacks it"},
        "ASKED=1": {"asked": "yes", "never": "lacks that", "breaks": "failure: 1 != 2"},
    }

    def run(python, backend, tests, setting=""):
        return {test: outcomes[setting][test] for test in tests}

    monkeypatch.setattr(features, "run", run)
    monkeypatch.setattr(features, "ASKED", {"roc": ("ASKED=1",)})
    rows = [{"test": test} for test in outcomes[""]]
    assert features.states_on("host", rows) == outcomes[""]
    asked = features.states_on("roc", rows)
    assert asked == {"plain": "yes", "asked": "yes, with `ASKED=1`", "never": "lacks that", "breaks": "failure: 1 != 2"}
    assert features.cell(asked["asked"]) == "yes, with `ASKED=1`"
    assert features.cell(asked["never"]) == "no: lacks that"
