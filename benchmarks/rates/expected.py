"""Predictions and targets, next to the measured rates."""

from __future__ import annotations

from typing import Any

LIMIT = "pinned limit"
MET, FALLS_SHORT, NOT_MEASURED, NOT_JUDGED = "met", "falls short", "not measured", "not judged"
PEERS = "peers.md"
#: (case, library) -> (from, to, where the numbers come from), in the unit of the case, for a PCIe Gen5 x16 machine (H100, H200).
#: There are no predictions for other vendors' machines.
PREDICTED_FOR = "cuda"
PREDICTED: dict[tuple[str, str], tuple[float, float, str]] = {
    ("h2d-into-pinned", LIMIT): (50, 57, f"{PEERS} 4.2: 55.6 in NVIDIA's nvbandwidth, 63 on the wire"),
    ("d2h-into-pinned", LIMIT): (50, 57, f"{PEERS} 4.2: 56 inside a JAX trace (xla#12452)"),
    ("h2d-into-pinned", "devmem"): (48, 57, "one cuMemcpyHtoD from pinned memory: the limit, less a few us"),
    ("d2h-into-pinned", "devmem"): (48, 57, "one cuMemcpyDtoH into pinned memory: the limit, less a few us"),
    ("h2d-new", "devmem"): (40, 57, "staging: four threads copy at 40 or more while the copy engine reads the slots"),
    ("h2d-into", "devmem"): (40, 57, "staging, as into a new array"),
    ("h2d-new", "bare bindings"): (8, 9, f"{PEERS} 4.2: pageable by the driver, kvikio#456 and #629"),
    ("h2d-into", "bare bindings"): (8, 9, f"{PEERS} 4.2: pageable by the driver, kvikio#456 and #629"),
    ("h2d-new", "numba-cuda"): (4.8, 9, f"{PEERS} 4.2: numba#4336 on a V100; the driver's 8-9 on newer machines"),
    ("d2h-into", "devmem"): (40, 57, "staging, in the other direction"),
    ("d2h-into", "bare bindings"): (8, 12, "the driver's own staging, as for uploads; no published number"),
    ("d2h-new", "numba-cuda"): (1.7, 2.7, f"{PEERS} 4.2: numba#4336, jax#21438: pages touched for the first time"),
    ("d2h-new", "devmem"): (10, 40, "estimate: four threads touch the pages, huge pages where granted"),
    ("d2h-new", "bare bindings"): (
        1.7,
        6.8,
        f"{PEERS} 4.2: 1.7-2.7 on 4 KiB pages; up to 6.8 where NumPy's huge pages are granted",
    ),
    ("spill-swap", "devmem"): (
        44,
        57,
        "two copies of pinned memory, one after the other: the limit, less the store's 0.1 ms",
    ),
    ("d2d", "devmem"): (
        1400,
        2300,
        "datasheets: 3.35 (H100), 4.8 (H200) TB/s, of which a copy takes half, at about 90 %",
    ),
    ("h2d-transposed", "devmem"): (
        1,
        4,
        f"{PEERS} 4.2: NumPy packs a transpose at 0.41-0.47 GB/s on a small machine; four threads",
    ),
    ("d2h-transposed", "devmem"): (1, 4, f"{PEERS} 4.2: as above, downloading"),
    ("h2d-every-second", "devmem"): (
        8,
        30,
        f"{PEERS} 4.2: packing at 8.4 with one thread; four, overlapped with the bus",
    ),
    ("h2d-many", "devmem"): (0.7, 3, "estimate: 1 us in Python per array, and one copy for all"),
    ("d2h-many", "devmem"): (0.7, 3, "estimate: the same for downloads"),
    ("h2d-new-4KiB", "devmem"): (5, 14, "estimate: one small pageable copy, and the wait for it"),
    ("call-create", "devmem"): (1, 3, f"{PEERS} 4.1: a hit in a pool, at most 2 us"),
    ("call-create", "CuPy"): (1, 2, f"{PEERS} 4.1: cp.empty(10) 1.48 us (cuda-python#756)"),
    ("call-create", "bare bindings"): (0.7, 2, f"{PEERS} 4.1: malloc and free, asynchronous, 1.94 us with the wait"),
    ("call-upload", "devmem"): (3, 10, f"{PEERS} 4.1: at most 1.5 times the bare calls"),
}
#: Targets for copies: (case, compared with, at least this many times as fast). Only the largest of several sizes.
ASKED = [
    *[(case, LIMIT, 0.80) for case in ("h2d-new", "h2d-into", "d2h-into")],
    *[(case, peer, 2.0) for case in ("h2d-new", "h2d-into", "d2h-into") for peer in ("CuPy", "PyTorch", "numba-cuda")],
    ("spill-swap", LIMIT, 0.80),
    ("d2h-new", "numba-cuda", 5.0),
    *[(case, peer, 5.0) for case in ("h2d-many", "d2h-many") for peer in ("CuPy", "PyTorch")],
    *[(f"{case}-4KiB", "CuPy", 1.0) for case in ("h2d-new", "h2d-into", "d2h-new", "d2h-into")],
]


def speed(row: dict[str, Any], name: str) -> float | None:
    """Uses per second, median."""
    seconds = row["cells"].get(name, {}).get("median_s")
    return None if not seconds else 1 / seconds


def judged(rows: list[dict[str, Any]], quick: bool) -> list[dict[str, Any]]:
    """Each target with its verdict; a quick run only shows the numbers.

    Targets that could not be compared are included, with the reason.
    """
    by_id = {row["id"]: row for row in rows}
    found = []
    for case, against, at_least in ASKED:
        row = by_id.get(case, {"title": case, "cells": {}})
        ours, theirs = speed(row, "devmem"), speed(row, against)
        ratio = ours / theirs if ours and theirs else None
        verdict = MET if ratio is not None and ratio >= at_least else FALLS_SHORT
        verdict = NOT_MEASURED if ratio is None else NOT_JUDGED if quick else verdict
        found.append({"case": case, "title": row["title"], "against": against, "asked": at_least, "ratio": ratio})
        found[-1] |= {"verdict": verdict, "path": row["cells"].get("devmem", {}).get("path", "")}
        if ratio is None:
            found[-1]["why"] = lacking(row, "devmem" if not ours else against)
    return found


def lacking(row: dict[str, Any], name: str) -> str:
    """The reason why a library has no number in a row."""
    if not row["cells"]:
        return "the time was up"
    cell = row["cells"].get(name)
    if cell is None:
        return f"{name} was not used"
    return f"{name}: {cell.get('error') or cell.get('absent') or 'no repetition ended in time'}"


def predicted(rows: list[dict[str, Any]], quick: bool, backend: str) -> list[dict[str, Any]]:
    """The predictions, next to the measured rates; a quick run only shows them."""
    by_id = {row["id"]: row for row in rows} if backend == PREDICTED_FOR else {}
    found = []
    for (case, library), (low, high, source) in PREDICTED.items():
        cell = by_id.get(case, {}).get("cells", {}).get(library, {})
        if "median" in cell:
            row = by_id[case]
            verdict = "as predicted" if low <= cell["median"] <= high else "lower" if cell["median"] < low else "higher"
            verdict = "not judged" if quick else verdict
            found.append({"title": row["title"], "library": library, "low": low, "high": high, "unit": row["unit"]})
            found[-1] |= {"measured": cell["median"], "verdict": verdict, "source": source}
    return found
