"""Every row that docs/reference/assumptions.md names is a test, and every test of assumptions is a row."""

from __future__ import annotations

import ast
import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs/reference/assumptions.md").read_text(encoding="utf-8")
#: Where the tests of a row are, by what stands before its name.
PLACES = {
    "": ["tests/contract/assumptions/test_assumptions.py"],
    "suite": sorted(str(path.relative_to(ROOT)) for path in (ROOT / "devmem/testing").glob("driver_*.py")),
    "truth": ["tests/helpers/truth.py", *(f"tests/contract/emulator/test_truth_{name}.py" for name in ("cuda", "roc"))],
}


def names_in(files):
    """The names of the tests in some files, without ``test_``."""
    nodes = [node for file in files for node in ast.walk(ast.parse((ROOT / file).read_text(encoding="utf-8")))]
    names = [node.name for node in nodes if isinstance(node, ast.FunctionDef)]
    return {name.removeprefix("test_") for name in names if name.startswith("test_")}


def rows():
    """(place, name) of each test that the page names."""
    answers = [line.split("|")[2] for line in PAGE.splitlines() if line.startswith("|")]
    cells = [cell for answer in answers for cell in re.findall(r"`((?:suite: |truth: )?[a-z0-9_]{12,})`", answer)]
    return [tuple(cell.rpartition(": ")[::2]) for cell in cells]


def test_every_row_is_a_test():
    assert len(rows()) >= 19
    missing = [row for row in rows() if row[1] not in names_in(PLACES[row[0]])]
    assert not missing, missing


def test_every_test_of_assumptions_is_a_row():
    named = {name for place, name in rows() if not place}
    assert names_in(PLACES[""]) == named
