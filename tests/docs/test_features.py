"""The page of features has the rows of its table, and each names a test that exists."""

from __future__ import annotations

import subprocess
import sys
import textwrap
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


@pytest.fixture
def outcome(features, monkeypatch, tmp_path, capsys):
    """Runs the script over one row, of a tree with one file of tests; gives its exit code, errors, and the page."""
    tests = """
        import pytest
        def test_passes(): pass
        def test_fails(): assert 0
        @pytest.mark.skipif(True, reason="lacks it")
        def test_skipped(): pass
        class Helper:
            def test_not_collected(self): pass
    """
    rows, page = tmp_path / "rows.toml", tmp_path / "page.md"
    (tmp_path / "tests").mkdir()
    (tmp_path / "tests" / "test_some.py").write_text(textwrap.dedent(tests))
    for name, value in {"PEERS": set(), "ROOT": tmp_path, "ROWS": rows, "PAGE": page, "BACKENDS": ("host",)}.items():
        monkeypatch.setattr(features, name, value)

    def run(name, argument="--run"):
        monkeypatch.setattr(sys, "argv", ["features", argument])
        row = f'{{ feature = "f", verb = "v", test = "test_some.py::{name}" }}'
        rows.write_text(f'[[group]]\ntitle = "t"\nrows = [{row}]\n')
        return features.main(), capsys.readouterr().err, page.read_text() if page.exists() else ""

    return run


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("test_none", "has no test_none"),
        ("test_skipped", "passed nowhere"),
        ("Helper::test_not_collected", "passed nowhere"),
        ("test_fails", "host: failure: "),
    ],
)
def test_a_run_fails_where_a_row_is_not_proved(outcome, name, says):
    code, told, page = outcome(name)
    assert code == 1 and says in told and not page


def test_a_run_writes_the_page_and_a_check_compares_it(outcome, features):
    code, told, page = outcome("test_passes")
    assert (code, told) == (0, "") and "|  | f | v | yes |" in page
    assert outcome("test_passes", "--check")[:2] == (0, "")
    features.PAGE.write_text(page.replace("| yes |", "| no: lacks it |"))
    code, told, _ = outcome("test_passes", "--check")
    assert code == 1 and "now: |  | f | v | yes |" in told


def test_a_row_whose_test_failed_or_ran_nowhere_is_a_fault(features):
    groups = [{"rows": [{"feature": "f", "verb": "v", "test": "t"}]}]

    def told(**outcomes):
        return [*features.unproven(groups, {name: {"t": features.state(found)} for name, found in outcomes.items()})]

    assert told(host=["yes"], cuda=["skipped: lacks it"]) == []
    assert told(host=["skipped: lacks it"], roc=["yes, with `ASKED=1`"]) == []
    assert "passed nowhere" in told(host=["skipped: lacks it"], cuda=[])[0]
    assert "cuda: failure: 1 != 2" in told(host=["yes"], cuda=["yes", "failure: 1 != 2"])[0]


def test_a_feature_of_others_that_no_row_is_of_is_a_fault(features):
    numbers = features.PEERS - {7} | {57}
    told = [*features.missing_numbers([{"rows": [{"feature": "f", "peer": number} for number in numbers]}])]
    assert told == ["features.toml: 7: no row has this number", "features.toml: 57: there is no such feature"]


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
