"""The page of faults has a row for each, and every test that it names is there."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
TEXT = (ROOT / "docs" / "explanation" / "faults-and-their-tests.md").read_text(encoding="utf-8")
ROWS = [line for line in TEXT.splitlines() if line.startswith("| ") and not line.startswith(("| |", "| gap"))]
NAMED = sorted(set(re.findall(r"`(tests/[\w/.]+)::(\w+)`", TEXT)))


def test_each_fault_has_a_row():
    assert {int(number) for number in re.findall(r"^\| (\d+) \|", TEXT, flags=re.MULTILINE)} == set(range(1, 29))


@pytest.mark.parametrize("row", ROWS)
def test_each_row_names_a_test(row):
    assert re.search(r"`tests/[\w/.]+::\w+`", row)


@pytest.mark.parametrize(("file", "name"), NAMED, ids=[f"{Path(file).stem}::{name}" for file, name in NAMED])
def test_each_test_that_is_named_exists(file, name):
    assert re.search(rf"^ *def {name}\(", (ROOT / file).read_text(encoding="utf-8"), flags=re.MULTILINE), file
