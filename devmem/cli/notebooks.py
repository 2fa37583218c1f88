"""Rewrite the imports in the code cells of a notebook; outputs, other cells and the file's form are kept.

All code cells together are one module, as names that one cell imports are used in others. Lines that are IPython's and not
Python's (``%magic``, ``!command``, ``help?``) are hidden behind statements that do nothing, and put back.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from .import_rewriter import Rewritten, Unparsable, lines, mentions_numba, rewrite
from .migration_rules import Finding
from .name_resolution import ForeignNames

_CELL = "pass  # devmem migrate: cell {}\n"
_HIDDEN = "pass  # devmem migrate: hidden "
_MARK = re.compile(r"pass  # devmem migrate: cell (\d+)\n")
_MAGIC = re.compile(r"\s*([%!?]|\S+.*\?\s*$|\w+\s*=\s*[%!])")
#: Magics of a whole cell below which is Python.
_PYTHON_BELOW = ("%%time", "%%timeit", "%%capture", "%%prun")


@dataclass(frozen=True)
class CellFinding(Finding):
    """A finding in a cell; the line counts from the cell's first."""

    cell: int = 0


def rewrite_notebook(source: bytes) -> Rewritten:
    """Rewrite the code cells of a notebook.

    Raises
    ------
    Unparsable
        It is no notebook, or a cell is not Python.
    """
    try:
        notebook = json.loads(source)
        cells = [cell for cell in notebook["cells"] if cell["cell_type"] == "code"]
        texts = ["".join(cell["source"]) for cell in cells]
    except (ValueError, KeyError, TypeError) as error:
        raise Unparsable(f"it is no notebook of format 4: {type(error).__name__}: {error}") from error
    hidden: list[str] = []
    module = "".join(_CELL.format(at) + "".join(_python(text, hidden)) for at, text in enumerate(texts))
    if not mentions_numba(module.encode()):
        return Rewritten(source, source)
    made = rewrite(module.encode(), ForeignNames())
    after = _cells(made.after.decode())
    for at, (cell, text) in enumerate(zip(cells, texts, strict=True)):
        new = "".join(_shown(after[at], hidden)).removesuffix("\n" * (not text.endswith("\n")))
        if new != text:
            cell["source"] = lines(new) if isinstance(cell["source"], list) else new
    findings = [_in_cell(each, module) for each in made.findings]
    changed = made.after != made.before
    return Rewritten(source, _dumped(notebook, source) if changed else source, list(findings))


def _python(text: str, hidden: list[str]) -> Iterator[str]:
    """The lines of a cell with IPython's hidden, and with a newline at the end."""
    given = lines(text)
    first = next((line for line in given if line.strip()), "")
    whole = first.startswith("%%") and not first.startswith(_PYTHON_BELOW)
    for line in given:
        if whole or _MAGIC.match(line):
            indent = line[: len(line) - len(line.lstrip())]
            yield f"{'' if whole else indent}{_HIDDEN}{len(hidden)}\n"
            hidden.append(line)
        else:
            yield line if line.endswith("\n") else f"{line}\n"


def _shown(text: str, hidden: list[str]) -> Iterator[str]:
    """The lines of a cell with those of IPython's put back."""
    for line in lines(text):
        found = line.strip().removeprefix(_HIDDEN)
        back = hidden[int(found)] if found.isdecimal() and _HIDDEN in line else line
        yield back if back.endswith("\n") else f"{back}\n"


def _cells(module: str) -> list[str]:
    """The texts behind the marks."""
    return _MARK.split(module)[2::2]


def _in_cell(finding: Finding, module: str) -> CellFinding:
    """The finding with its cell, and its line there."""
    marks = [at for at, line in enumerate(lines(module), 1) if _MARK.fullmatch(line)]
    cell = max(at for at, line in enumerate(marks) if line <= finding.line)
    return CellFinding(**{**vars(finding), "line": finding.line - marks[cell]}, cell=cell + 1)


def _dumped(notebook: Any, source: bytes) -> bytes:
    """The notebook as text, with the indentation, the escapes and the end of the file that it was read from."""
    text = source.decode()
    indent = re.search(r"\n([ \t]+)\"", text)
    made = json.dumps(
        notebook, indent=indent[1] if indent else None, ensure_ascii=text.isascii(), separators=_separators(text)
    )
    return f"{made}{text[len(text.rstrip()) :]}".encode()


def _separators(text: str) -> tuple[str, str] | None:
    return None if '": ' in text else (",", ":")
