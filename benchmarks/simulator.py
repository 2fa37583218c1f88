"""The time of simulated kernels over 65,536 work-items, without and with checks, and of an empty launch.

    python benchmarks/simulator.py                      measure, show, judge (exit status 1 if a target is missed)
    python benchmarks/simulator.py --quick              fewer rounds
    python benchmarks/simulator.py --json FILE --markdown FILE

Everything runs on the strict host backend with existing arrays; a launch is timed until its results are complete. The kernels
take turns in every round. The targets apply to the minimum times on two cores.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import sys
from collections.abc import Callable
from pathlib import Path
from time import perf_counter
from typing import Any

os.environ.setdefault("DEVMEM_BACKEND", "host")
os.environ.setdefault("DEVMEM_HOST_STRICT", "1")

import numpy as np
from table import Row, line, markdown
from timing import spread

import devmem as dm

#: Seconds that the tiled transpose may take.
SECONDS = 2.0
SIDE, TILE, BLOCK = 256, 16, 256
PADDED = TILE + 1


@dm.kernel
def transpose(src: Any, dst: Any) -> None:
    """Tiles in shared memory: one barrier."""
    tile = dm.shared.array((TILE, PADDED), np.float32)
    x = dm.blockIdx.x * TILE + dm.threadIdx.x
    y = dm.blockIdx.y * TILE + dm.threadIdx.y
    if y < src.shape[0] and x < src.shape[1]:
        tile[dm.threadIdx.y, dm.threadIdx.x] = src[y, x]
    dm.barrier()
    x = dm.blockIdx.y * TILE + dm.threadIdx.x
    y = dm.blockIdx.x * TILE + dm.threadIdx.y
    if y < dst.shape[0] and x < dst.shape[1]:
        dst[y, x] = tile[dm.threadIdx.x, dm.threadIdx.y]


@dm.kernel
def add(a: Any, b: Any, out: Any) -> None:
    """No shared memory, no barrier."""
    i = dm.grid(1)
    if i < out.size:
        out[i] = a[i] + b[i]


@dm.kernel
def total(a: Any, sums: Any) -> None:
    """A tree for each block: nine barriers."""
    part = dm.shared.array(BLOCK, np.float32)
    t = dm.threadIdx.x
    part[t] = a[dm.grid(1)]
    dm.barrier()
    step = BLOCK // 2
    while step > 0:
        if t < step:
            part[t] += part[t + step]
        dm.barrier()
        step //= 2
    if t == 0:
        sums[dm.blockIdx.x] = part[0]


@dm.kernel
def count(a: Any, bins: Any) -> None:
    """An atomic operation for each work-item."""
    i = dm.grid(1)
    dm.atomic.add(bins, int(a[i] * bins.size), 1)


@dm.kernel
def nothing() -> None:
    """Return."""


def launches() -> dict[str, Callable[[], None]]:
    """The kernels by name; the result of each is checked once."""
    h = np.random.default_rng(1).random((SIDE, SIDE), np.float32)
    a, out = dm.to_device(h), dm.device_array((SIDE, SIDE), np.float32)
    flat, sums, bins = dm.to_device(h.ravel()), dm.device_array(SIDE, np.float32), dm.to_device(np.zeros(32, np.int32))
    tiles, blocks = (SIDE // TILE, SIDE // TILE), SIDE * SIDE // BLOCK
    found: dict[str, Callable[[], None]] = {
        "tiled transpose": lambda: transpose[tiles, (TILE, TILE)](a, out),
        "vector add": lambda: add[blocks, BLOCK](flat, flat, out.reshape(-1)),
        "sums of blocks": lambda: total[blocks, BLOCK](flat, sums),
        "histogram": lambda: count[blocks, BLOCK](flat, bins),
    }
    found["tiled transpose"]()
    assert (out.copy_to_host() == h.T).all()
    found["vector add"]()
    assert (out.copy_to_host() == h + h).all()
    found["sums of blocks"]()
    assert np.allclose(sums.copy_to_host(), h.sum(axis=1))
    found["histogram"]()
    assert (bins.copy_to_host() == np.histogram(h, 32, (0, 1))[0]).all()
    return found


def items(rounds: int) -> list[Row]:
    """Seconds for 65,536 work-items of each kernel: plain, with the race check, shuffled."""
    found = launches()
    ways: dict[str, dict[str, Any]] = {"": {}, ", race check": {"race_check": True}, ", shuffled": {"shuffle": 1}}
    times: dict[str, list[float]] = {}
    for _ in range(rounds):
        for way, options in ways.items():
            for name, launch in found.items():
                with dm.simulator(**options):
                    start = perf_counter()
                    launch()
                    times.setdefault(name + way, []).append(perf_counter() - start)
    rows = []
    for name, taken in times.items():
        least, median = spread(taken)
        row = Row(name, "host", least, "s", f"median {median:.3g} s, {1e6 * least / SIDE**2:.1f} us per work-item")
        rows.append(row.judged(SECONDS, f"{SECONDS:g} s") if name == "tiled transpose" else row)
    return rows


def empty(rounds: int) -> list[Row]:
    """Microseconds of empty launches."""
    rows = []
    for what, blocks, threads in (("one work-item", 1, 1), ("a block of 1,024", 1, 1024), ("64 blocks of one", 64, 1)):
        launch = nothing[blocks, threads]
        launch()
        taken = []
        for _ in range(rounds * 20):
            start = perf_counter()
            launch()
            taken.append(1e6 * (perf_counter() - start))
        least, median = spread(taken)
        rows.append(Row(f"an empty launch of {what}", "host", least, "us", f"median {median:.0f} us"))
    return rows


def main() -> int:
    """Measure, show, write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--markdown", type=Path)
    options = parser.parse_args()
    rounds = 2 if options.quick else 7
    sections = {"65,536 work-items": items(rounds), "Launching": empty(rounds)}
    for rows in sections.values():
        for row in rows:
            print(line(row))
    about: dict[str, object] = {
        "python": platform.python_version(),
        "numpy": np.__version__,
        "machine": platform.machine(),
        "cores": os.cpu_count(),
        "devmem": dm.__version__,
    }
    if options.json:
        found = {"about": about, "rows": [vars(row) for rows in sections.values() for row in rows]}
        options.json.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    if options.markdown:
        notes = [
            "Written by `python benchmarks/simulator.py --json FILE --markdown FILE`.",
            "",
            "Kernels run by the simulator on the strict host backend; a launch on the default stream is timed until its results "
            "are complete. Minimum of the rounds.",
        ]
        options.markdown.write_text(markdown("The simulator of kernels", about, notes, sections), encoding="utf-8")
    return int(any(row.verdict == "FALLS SHORT" for rows in sections.values() for row in rows))


if __name__ == "__main__":
    sys.exit(main())
