"""ARCHITECTURE.md says where things are: each file that it names exists."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
TEXT = (ROOT / "ARCHITECTURE.md").read_text(encoding="utf-8")
#: Where a path may begin: most are relative to the package; those of a room's paragraph to the room.
PLACES = [ROOT, ROOT / "devmem", *(path for path in sorted((ROOT / "devmem" / "_core").rglob("*")) if path.is_dir())]


@pytest.mark.parametrize("path", sorted(set(re.findall(r"`([\w./-]+(?:\.py|\.c|\.md|/))`", TEXT))))
def test_a_named_file_exists(path):
    assert [place for place in PLACES if (place / path).exists()] != []


@pytest.mark.parametrize("path", sorted(set(re.findall(r"^ *([\w/]+\.py) ", TEXT, flags=re.MULTILINE))))
def test_a_file_of_the_journey_exists(path):
    assert any((place / path).exists() for place in (ROOT / "devmem", ROOT / "devmem" / "_core"))
