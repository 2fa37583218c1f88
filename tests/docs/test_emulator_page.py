"""The page on the emulated driver is made from the table that is held against the C sources."""

from __future__ import annotations

from pathlib import Path

from devmem.testing.emulator import functions

PAGE = Path(__file__).parents[2] / "docs" / "reference" / "emulator.md"


def test_the_page_is_the_table():
    head, rule, table = PAGE.read_text(encoding="utf-8").partition("Of every call:")
    assert head.startswith("# The emulated CUDA driver\n")
    assert (rule + table).rstrip() == functions.as_markdown().rstrip()
