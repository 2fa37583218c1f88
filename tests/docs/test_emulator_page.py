"""The page on the emulated drivers is made from the tables that are held against the C sources."""

from __future__ import annotations

from pathlib import Path

import pytest

from devmem.testing.emulator import functions

PAGE = Path(__file__).parents[2] / "docs" / "reference" / "emulator.md"
HEADINGS = {
    "cuda": "## The emulated CUDA driver\n",
    "cuda runtime": "## The emulated CUDA runtime\n",
    "roc": "## The emulated HIP runtime\n",
}


@pytest.mark.parametrize("backend", functions.TABLES)
def test_the_page_is_the_table(backend):
    text = PAGE.read_text(encoding="utf-8")
    assert text.startswith("# The emulated drivers\n")
    part = text.partition(HEADINGS[backend])[2].partition("\n## ")[0]
    _, rule, table = part.partition("Every call is counted")
    assert (rule + table).rstrip() == functions.as_markdown(backend).rstrip()
