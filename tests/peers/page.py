"""The page of the matrix: read, and written."""

from __future__ import annotations

import re
from pathlib import Path
from typing import NamedTuple

PAGE = Path(__file__).parents[2] / "docs" / "reference" / "exchange-matrix.md"


class Cell(NamedTuple):
    """Where in the page: the part, ``layouts`` or ``types``, the library, ``takes`` or ``gives``, and the case."""

    place: str
    kind: str
    library: str
    way: str
    case: str


class Reason(NamedTuple):
    """A refusal that is known: how the page calls it, what the error says, and why it is so."""

    key: str
    pattern: str
    meaning: str


REASONS = [
    Reason(
        "no type",
        r"DLPack has no type for|DLPack only supports|for DLPack export|Unsupported floating dtype",
        'DLPack has no such type: no records, dates, text, long doubles, foreign byte order. `array.view("u1")` goes, and a copy '
        "through the host.",
    ),
    Reason(
        "not there",
        r"Unsupported dtype in DLTensor|does not support the dtype|Unsupported dtype\. dtype code",
        "The library has no such type.",
    ),
    Reason(
        "gaps",
        r"Only DLPack tensors with trivial|is not contiguous|is not C-contiguous",
        "The library takes arrays without gaps only: give it `array.copy()`.",
    ),
    Reason("backwards", r"strides item is negative", "The library does not step backwards: give it `array.copy()`."),
    Reason(
        "unversioned",
        r"needs a versioned DLPack capsule",
        "The library asks for an unversioned capsule, which cannot say that an array is read-only: give it `array.copy()`.",
    ),
    Reason("read-only", r"buffer is not writable", "Nothing is received into memory that may not be written."),
    Reason(
        "no CUDA",
        r"Torch not compiled with CUDA|Unknown backend cuda|Unsupported device in DLTensor",
        "This build of the library is for the CPU, and it does not ask for a copy there: give it `array.copy_to_host()`.",
    ),
]

PLACE_TITLES = {"host": "Host memory", "cuda": "CUDA devices"}
KIND_TITLES = {"layouts": "Layouts", "types": "Types"}
WAYS = ("takes", "gives")
INTRODUCTIONS = {
    "host": """\
The host backend with open memory (`DEVMEM_HOST_STRICT=0`), which it shares with libraries on the CPU. mpi4py *takes* what is
sent, and *gives* what is received: into the array itself, where it says shared. JAX shares memory at multiples of 64
bytes, and copies other memory.""",
    "cuda": """\
The CUDA backend, here over the emulated driver: libraries that ask the driver only, and libraries on the CPU, between which and a
device there are copies. mpi4py is shown the memory; whether its MPI can use it is that one's affair. CuPy needs a GPU for more
than this: its pointers, with an address of ours put in by hand. What a GPU is needed for, `scripts/gpu-check` runs.""",
}
TEMPLATE = """\
# What other libraries take and give

Which arrays go to another library and come from it, found by running each: the tests in `tests/peers` compare the bytes of every
cell, and fail where this page says anything else than what they find. How to hand over and take:
[](../how-to/exchange-arrays.md).

*Takes* is the library's own `from_dlpack` of a device array, or what it has instead; *gives* is `devmem.from_dlpack` or
`devmem.as_device_array` of its own.

| cell | meaning |
| --- | --- |
| shared | the same memory: what one writes, the other sees; read-only memory stays read-only |
| shared, writable | the same memory, but the taker is not told, or does not mind, that it is read-only |
| copied | the same elements elsewhere |
| nothing in it | an empty array arrives as one |
| refused: ... | an exception that says so; the reasons are [below](#why-something-is-refused) |
| ends the process | the library does, by a C++ exception that it does not catch; it does so with a NumPy array too |
| – | the library has no such arrays |

Of the libraries these versions were run:

| library | version |
| --- | --- |
{libraries}

{parts}

## Why something is refused

| | |
| --- | --- |
{reasons}
"""

#: Libraries and cases in the order in which they stand; filled from where they are defined.
ORDER: dict[str, list[str]] = {}


def read(text: str) -> tuple[dict[Cell, str], dict[str, str]]:
    """The cells of a page, and the versions of the libraries."""
    cells: dict[Cell, str] = {}
    versions: dict[str, str] = {}
    place = kind = ""
    columns: list[str] = []
    for line in text.splitlines():
        if line.startswith("#"):
            title = line.lstrip("# ")
            place = next((key for key, value in PLACE_TITLES.items() if value == title), place)
            kind = next((key for key, value in KIND_TITLES.items() if value == title), "")
            columns = []
        elif line.startswith("|") and not line.startswith("| ---"):
            first, *rest = (part.strip() for part in line.strip("|").split("|"))
            if not kind:
                if re.fullmatch(r"[\d.]+\S*", rest[0]):
                    versions[first] = rest[0]
            elif not columns:
                columns = rest
            elif kind == "layouts":
                library, _, way = first.rpartition(" ")
                cells |= {
                    Cell(place, kind, library, way, column): found for column, found in zip(columns, rest, strict=True)
                }
            else:
                for column, found in zip(columns, rest, strict=True):
                    library, _, way = column.rpartition(" ")
                    cells[Cell(place, kind, library, way, first.strip("`"))] = found
    return cells, versions


def render(cells: dict[Cell, str], versions: dict[str, str]) -> str:
    """The page."""
    used = {found.removeprefix("refused: ") for found in cells.values() if found.startswith("refused: ")}
    reasons = "\n".join(f"| {each.key} | {each.meaning} |" for each in REASONS if each.key in used)
    libraries = "\n".join(f"| {name} | {versions[name]} |" for name in ORDER["libraries"] if name in versions)
    parts = "\n\n".join(_part(place, cells) for place in PLACE_TITLES if any(cell.place == place for cell in cells))
    return TEMPLATE.format(libraries=libraries, parts=parts, reasons=reasons)


def _part(place: str, cells: dict[Cell, str]) -> str:
    found = {cell: text for cell, text in cells.items() if cell.place == place}
    there = {(cell.library, cell.way) for cell in found}
    rows = [(name, way) for name in ORDER["libraries"] for way in WAYS if (name, way) in there]
    layouts, types = ORDER["layouts"], ORDER["types"]
    by_layout = [
        [f"{name} {way}", *(found[Cell(place, "layouts", name, way, case)] for case in layouts)] for name, way in rows
    ]
    by_type = [[f"`{case}`", *(found[Cell(place, "types", name, way, case)] for name, way in rows)] for case in types]
    return "\n\n".join(
        [
            f"## {PLACE_TITLES[place]}",
            INTRODUCTIONS[place],
            f"### {KIND_TITLES['layouts']}",
            _table(["", *layouts], by_layout),
            f"### {KIND_TITLES['types']}",
            _table(["", *(f"{name} {way}" for name, way in rows)], by_type),
        ]
    )


def _table(head: list[str], rows: list[list[str]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)
