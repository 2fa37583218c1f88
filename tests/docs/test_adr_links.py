"""Decisions and the code that they rule refer to each other.

Each page in ``docs/adr`` names the modules that it rules, and at least one of these modules names the page, in a comment such as
``# Decision: docs/adr/0001-dropped-memory-waits-in-one-queue.md``. Every name leads to a file.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
DECISIONS = sorted((ROOT / "docs" / "adr").glob("*.md"))
SOURCES = [
    path
    for folder in ("devmem", "tests/unit/house")
    for pattern in ("*.py", "*.c", "*.h")
    for path in sorted((ROOT / folder).rglob(pattern))
]
CITED = {
    source: names
    for source in SOURCES
    if (names := set(re.findall(r"docs/adr/([\w.-]*\w)", source.read_text(encoding="utf-8"))))
}
#: Longer than this, a decision is a description: that belongs on a page of its own, or beside the code.
MOST_WORDS = 500


def name(path):
    return str(path.relative_to(ROOT))


def ruled(decision):
    """The files and folders that a decision rules."""
    rules = decision.read_text(encoding="utf-8").partition("\nRules: ")[2]
    return [ROOT / path for path in re.findall(r"`((?:devmem|tests|scripts)/[^`]+)`", rules)]


@pytest.mark.parametrize("decision", DECISIONS, ids=lambda decision: decision.name)
def test_a_decision_is_cited_from_code_that_it_rules(decision):
    cited = [source for source, names in CITED.items() if decision.name in names]
    assert [source for source in cited for path in ruled(decision) if path in (source, *source.parents)] != []


@pytest.mark.parametrize("source", CITED, ids=name)
def test_a_cited_decision_exists(source):
    assert CITED[source] <= {decision.name for decision in DECISIONS}


@pytest.mark.parametrize("decision", DECISIONS, ids=lambda decision: decision.name)
def test_a_decision_names_modules_that_exist(decision):
    assert ruled(decision) != []
    assert [name(path) for path in ruled(decision) if not path.exists()] == []


@pytest.mark.parametrize("decision", DECISIONS, ids=lambda decision: decision.name)
def test_a_decision_fits_on_one_page(decision):
    text = decision.read_text(encoding="utf-8")
    assert [part for part in ("## Context", "## Decision", "## Consequences") if part not in text] == []
    assert len(text.split()) <= MOST_WORDS


def test_decisions_are_numbered_without_gaps():
    assert [int(decision.name[:4]) for decision in DECISIONS] == list(range(1, len(DECISIONS) + 1))
