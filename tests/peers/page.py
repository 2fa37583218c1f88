"""The page of the matrix: read, and written."""

from __future__ import annotations

import re
from pathlib import Path
from typing import NamedTuple

PAGE = Path(__file__).parents[2] / "docs" / "reference" / "exchange-matrix.md"


class Cell(NamedTuple):
    """Where in the page: the part, ``layouts``, ``types`` or ``streams``, the library, ``takes`` or ``gives``, and the case."""

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
        'DLPack has no type for records, dates, text, long doubles and foreign byte order. Pass `array.view("u1")`, or a '
        "copy on the host.",
    ),
    Reason(
        "no such dtype",
        r"Unsupported dtype in DLTensor|does not support the dtype|Unsupported dtype\. dtype code",
        "The library does not have this dtype.",
    ),
    Reason(
        "not contiguous",
        r"Only DLPack tensors with trivial|is not contiguous|is not C-contiguous",
        "The library requires contiguous arrays: pass `array.copy()`.",
    ),
    Reason(
        "negative strides",
        r"strides item is negative|Storage size calculation overflowed|describes an array beyond all addresses",
        "The library does not support negative strides, or describes them wrongly (CuPy): pass `array.copy()`.",
    ),
    Reason(
        "unversioned",
        r"needs a versioned DLPack capsule",
        "The library requests an unversioned capsule, which cannot mark an array as read-only: pass `array.copy()`.",
    ),
    Reason("read-only", r"buffer is not writable", "A read-only array cannot receive data."),
    Reason(
        "no CUDA",
        r"Torch not compiled with CUDA|Unknown backend cuda|Unsupported device in DLTensor",
        "This build of the library is for the CPU, and does not request a copy there: pass `array.copy_to_host()`.",
    ),
]

PLACE_TITLES = {"host": "Host memory", "cuda": "CUDA devices", "rocm": "ROCm devices"}
KIND_TITLES = {"streams": "Streams", "layouts": "Layouts", "types": "Types"}
WAYS = ("takes", "gives")
INTRODUCTIONS = {
    "host": """\
The host backend with `DEVMEM_HOST_STRICT=0`, whose memory libraries on the CPU can use. mpi4py *takes* an array to send, and
*gives* one by receiving into it; *shared* means that it receives into the array itself. JAX shares memory that is aligned to
64 bytes, and copies other memory.""",
    "cuda": """\
The CUDA backend over the emulated driver, with libraries that use only the driver, with PyTorch over the emulated CUDA runtime,
and with libraries on the CPU, to and from which arrays are copied. mpi4py gets the memory; whether its MPI can use it depends on
the MPI. For CuPy only the pointer object is tested, with an address of devmem's; everything else in CuPy needs a GPU.
`scripts/gpu-check` runs the tests that need a GPU.""",
    "rocm": """\
The ROCm backend over the emulated HIP runtime, with CuPy's build for ROCm, and with NumPy, to and from which arrays are
copied.""",
}
TEMPLATE = """\
# Exchange matrix

Which arrays other libraries import from devmem, and devmem from them. The tests in `tests/peers` run every cell, compare the
bytes, and fail if the result differs from this page. [](../how-to/exchange-arrays.md) shows the calls.

*Takes*: the library's `from_dlpack`, or its equivalent, imports a device array. *Gives*: `devmem.from_dlpack` or
`devmem.as_device_array` imports an array of the library.

| cell | meaning |
| --- | --- |
| shared | both sides use the same memory; read-only memory stays read-only |
| shared, writable | both sides use the same memory, and the importing side can write memory that is read-only |
| copied | the elements are copied |
| empty | an empty array is imported as an empty array |
| refused: ... | the import raises an exception; the reasons are [below](#reasons-for-refusals) |
| terminates the process | the library does not catch its own C++ exception; it does the same with a NumPy array |
| ordered | the import returns while a stream still writes the memory, and what the importing side does next waits for it |
| waits | the import waits for the stream that still writes the memory |
| not ordered | the import does not wait, and neither does what comes next: synchronize before |
| – | the library cannot create such arrays, or has none that are still being written |

Tested versions:

| library | version |
| --- | --- |
{libraries}

{parts}

## Reasons for refusals

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
            elif kind != "types":
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
    parts = [f"## {PLACE_TITLES[place]}", INTRODUCTIONS[place]]
    for kind, title in KIND_TITLES.items():
        cases = ORDER[kind]
        if kind == "types":
            head = ["", *(f"{name} {way}" for name, way in rows)]
            lines = [
                [f"`{case}`", *(found.get(Cell(place, kind, name, way, case), "?") for name, way in rows)]
                for case in cases
            ]
        else:
            head = ["", *cases]
            lines = [
                [f"{name} {way}", *(found.get(Cell(place, kind, name, way, case), "?") for case in cases)]
                for name, way in rows
            ]
        parts += [f"### {title}", _table(head, lines)]
    return "\n\n".join(parts)


def _table(head: list[str], rows: list[list[str]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)
