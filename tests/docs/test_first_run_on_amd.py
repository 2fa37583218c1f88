"""What the page for the first AMD GPU tells people to run is there: each choice of tests chooses some."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "how-to" / "first-run-on-amd.md"
FILES = {
    "truth": ["tests/contract/emulator/test_truth_roc.py", "tests/helpers/truth.py"],
    "suite": ["tests/contract/drivers/test_roc.py", "devmem/testing/driver_*.py"],
    "api": ["tests/integration/every_backend/**/test_*.py"],
}
CHOICES = sorted(set(re.findall(r"`(truth|suite|api) -k (\w+)`", PAGE.read_text(encoding="utf-8"))))


def test_every_assumption_is_settled_by_something() -> None:
    rows = [line for line in PAGE.read_text(encoding="utf-8").splitlines() if line.startswith("| ")][1:]
    assert len(rows) >= 11
    assert [row for row in rows if " -k " not in row] == []


@pytest.mark.parametrize("kind", FILES)
def test_the_tests_that_are_named_exist(kind: str) -> None:
    """Each word is in the name of a test, of its class or its file, as ``-k`` looks for it."""
    files = [path for pattern in FILES[kind] for path in ROOT.glob(pattern)]
    names = [str(path.relative_to(ROOT)) for path in files]
    for path in files:
        names += re.findall(
            r"^ *(?:def|class) (test\w+)", path.read_text(encoding="utf-8"), re.MULTILINE | re.IGNORECASE
        )
    words = [word for found, word in CHOICES if found == kind]
    assert words
    assert [word for word in words if not any(word.lower() in name.lower() for name in names)] == []
