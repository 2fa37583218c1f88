"""Every cell of docs/reference/real-libraries.md: what other libraries do over the emulated drivers, a verb at a time.

``nox -s judges`` and ``nox -s allocators`` install the libraries. EXCHANGE_MATRIX=write makes the page anew; with
EXCHANGE_MATRIX=check another version than the page's is an error.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from waits import patience

from .conftest import MODE

HERE = Path(__file__).parent
PAGE = HERE.parents[1] / "docs" / "reference" / "real-libraries.md"
LIBRARIES = ("torch", "cupy", "kvikio", "ucxx", "numba_cuda", "cuda_core")
#: The rows of the page's matrix, and which verbs of a library belong to each.
ROWS = {
    "allocate, copy from and to the host": "allocate|copy from and to the host",
    "page-locked memory, asynchronous copies": "page-locked memory",
    "streams and events": "streams and events",
    "memory is kept, or freed later": "caching allocator|frees wait",
    "memory in stream order": "stream-ordered|memory of a stream",
    "filling with bytes": "filling",
    "running out of memory": "running out of memory",
    "takes devmem's arrays without a copy": "exchange by|device memory by|to a file|into device memory",
    "in the order of a held stream": "exchange with a stream|in the order of a stream",
    "devmem's arrays in its memory": "devmem's arrays in",
    "its memory from devmem's stack": "from devmem's stack",
    "copies between devices": "copies between devices",
    "memory to or from another process": "memory (and events )?of another process|device memory by",
    "a kernel": "a kernel$",
}
MATRIX = "<!-- matrix: begin -->\n", "<!-- matrix: end -->\n"


@pytest.mark.timeout(300)
@pytest.mark.parametrize("library", LIBRARIES)
def test_a_library_does_what_the_page_says(library):
    if library not in os.environ.get("JUDGES", ""):
        pytest.skip(f"{library} runs over an emulated runtime: nox -s judges, or allocators")
    command = [sys.executable, str(HERE / f"verbs_{library}.py")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=patience(280), check=False)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout.splitlines()[-1])
    failed = {verb: result for verb, result in found["verbs"].items() if result.startswith("fails")}
    assert not failed, failed
    begin, end = marks(library)
    if MODE == "write":
        replace(begin, table(found), end)
        replace(MATRIX[0], matrix(), MATRIX[1])
    named, rows = read(library)
    if named == found["library"]:
        assert rows == found["verbs"]
    else:
        assert MODE != "check", f"the page tells of {named}, not {found['library']}"


@pytest.mark.parametrize("library", LIBRARIES)
def test_the_page_has_the_verbs_of_the_script(library):
    """Without the library."""
    script = (HERE / f"verbs_{library}.py").read_text(encoding="utf-8")
    assert list(read(library)[1]) == re.findall(r'^@verb\("(.+)"\)$', script, re.MULTILINE)


def test_the_matrix_is_made_of_the_tables():
    made = matrix()
    assert between(*MATRIX) == made
    for row in made.splitlines()[2:]:
        assert row.count("runs") + row.count("refused") >= 2, f"not common: {row}"


def marks(library: str) -> tuple[str, str]:
    """What stands before and behind a library's table."""
    return f"<!-- verbs of {library}: begin -->\n", f"<!-- verbs of {library}: end -->\n"


def table(found: dict) -> str:
    """The part of the page that is made."""
    rows = [f"| {verb} | {result} |\n" for verb, result in found["verbs"].items()]
    return "".join([f"| verb | {found['library']} |\n", "| --- | --- |\n", *rows])


def matrix() -> str:
    """The part of the page that shows the verbs which libraries have in common, made of their tables."""
    pages = [read(library) for library in LIBRARIES]
    lines = [["common to several", *(named for named, _ in pages)], ["---"] * (len(pages) + 1)]
    for title, pattern in ROWS.items():
        lines.append([title])
        for _, verbs in pages:
            found = {re.match(r"\w+", result)[0] for verb, result in verbs.items() if re.search(pattern, verb)}
            lines[-1].append(" and ".join(sorted(found)))
    return "".join(f"| {' | '.join(cells)} |\n" for cells in lines)


def read(library: str) -> tuple[str, dict[str, str]]:
    """What the page says of a library."""
    lines = between(*marks(library)).splitlines()
    cells = [[part.strip() for part in line.strip("|").split("|")] for line in lines]
    return cells[0][1], dict(cells[2:])


def between(begin: str, end: str) -> str:
    """A part of the page."""
    return PAGE.read_text(encoding="utf-8").partition(begin)[2].partition(end)[0]


def replace(begin: str, part: str, end: str) -> None:
    """Write a part of the page anew."""
    before, after = PAGE.read_text(encoding="utf-8").partition(begin)[::2]
    PAGE.write_text(before + begin + part + end + after.partition(end)[2], encoding="utf-8")
