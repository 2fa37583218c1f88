"""Run the Python blocks of one page of documentation, in order and in one namespace: ``python run_page.py PAGE [REASON]``.

A block that is not run says why, in a comment on the line before it: ``<!-- not run: needs a GPU -->``; blocks with the REASON
are run all the same. Blocks of other languages are text.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

LANGUAGES = {"python", "python3", "py", "pycon", "ipython"}
FENCE = re.compile(r"^(?P<indent>\s*)(?P<marks>`{3,}|~{3,}|:{3,})\s*(?P<info>.*?)\s*$")
DIRECTIVE = re.compile(r"^\{(code|code-block|sourcecode|code-cell|doctest|testcode)\}\s*(?P<language>\S*)")
NOT_RUN = re.compile(r"^\s*<!--\s*not run:\s*(?P<reason>.*?)\s*-->\s*$")


@dataclass(frozen=True)
class Block:
    """One block of Python: the line of its first statement, its text, and why it is not run, if it is not."""

    line: int
    text: str
    reason: str | None


def blocks(page: str) -> Iterator[Block]:
    """The Python blocks of a page."""
    lines = page.splitlines()
    row = 0
    while row < len(lines):
        opening = FENCE.match(lines[row])
        row += 1
        if not opening:
            continue
        first = row
        while row < len(lines) and not closes(opening, lines[row]):
            row += 1
        if is_python(opening["info"]):
            indent = len(opening["indent"])
            text = "\n".join(line[indent:] if line[:indent].isspace() else line for line in lines[first:row])
            yield Block(first + 1, text, reason_above(lines, first - 1))
        elif opening["info"].startswith("{") and not opening["info"].startswith("{eval-rst}"):
            # An admonition or a tab: its content is a page of its own.
            for block in blocks("\n".join(lines[first:row])):
                yield Block(block.line + first, block.text, block.reason)
        row += 1


def closes(opening: re.Match[str], line: str) -> bool:
    found = line.strip()
    return len(found) >= len(opening["marks"]) and set(found) == {opening["marks"][0]}


def is_python(info: str) -> bool:
    directive = DIRECTIVE.match(info)
    language = directive["language"] if directive else info.split(" ")[0].split("{")[0]
    return language.lower() in LANGUAGES


def reason_above(lines: list[str], fence: int) -> str | None:
    above = fence - 1
    while above >= 0 and not lines[above].strip():
        above -= 1
    marker = NOT_RUN.match(lines[above]) if above >= 0 else None
    return marker["reason"] if marker else None


def run(path: Path, met: str | None = None) -> int:
    """Run a page and return how many blocks ran; whatever a block raises is shown at its line of the page."""
    namespace: dict[str, object] = {"__name__": "__main__"}
    ran = 0
    for block in blocks(path.read_text(encoding="utf-8")):
        if block.reason is not None and block.reason != met:
            if not block.reason:
                raise SyntaxError(f"{path}:{block.line}: a block is not run, and does not say why")
            continue
        exec(compile("\n" * (block.line - 1) + block.text, str(path), "exec"), namespace)
        ran += 1
    return ran


if __name__ == "__main__":
    print(run(Path(sys.argv[1]), *sys.argv[2:]))
