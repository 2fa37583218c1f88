#!/usr/bin/env python3
"""What replaying a recorded plan costs beside issuing its copies, and what a batch costs beside the driver's own call for it.

    devmem emulate cuda -- python benchmarks/plans.py              measure, show, judge (exit status 1: falls short)
    devmem emulate roc -- python benchmarks/plans.py --backend roc
    ... --json FILE --markdown FILE

Run it twice. With ``DEVMEM_EMULATOR_MODE=null``, where every call answers at once and does nothing, the plans are measured.
Without it, where the emulated driver moves the bytes, the batches are: their double has to take the time of copies for a rate to
mean something. Both sides take turns in every round; the value is the least of the rounds, as other load only adds.
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

from table import Row, line, markdown

import devmem as dm
from devmem.spi.types import CopyKind

COPIES, ROUNDS = 100, 200
BLOCKS, BLOCK_BYTES, BATCH_ROUNDS = 10_000, 32 << 10, 9
REPLAY, RATE = 0.2, 0.95


def least(rounds: int, *calls: Callable[[], object]) -> list[float]:
    """The least seconds of each call, which take turns."""
    found = [float("inf")] * len(calls)
    for _ in range(rounds):
        for at, call in enumerate(calls):
            began = perf_counter()
            call()
            found[at] = min(found[at], perf_counter() - began)
    return found


def plans(where: str) -> list[Row]:
    """Copies to the device, issued and replayed."""
    stream, rows = dm.stream(non_blocking=True), []
    for nbytes in (64, 4096, 1 << 20):
        source = dm.pinned_array((COPIES, nbytes), "u1")
        arrays = [dm.device_array(nbytes, "u1", stream=stream) for _ in range(COPIES)]
        parts = list(source)

        def issue(arrays: Any = arrays, parts: Any = parts) -> None:
            for array, part in zip(arrays, parts, strict=True):
                array.copy_to_device(part, stream=stream)

        with dm.capture(stream) as plan:
            issue()
        stream.synchronize()
        issued, replayed = least(ROUNDS, issue, plan.replay)
        detail = f"issued {issued * 1e6:.1f} us, replayed {replayed * 1e6:.1f} us"
        row = Row(
            f"replay of {COPIES} copies of {nbytes:,} bytes / issuing them", where, replayed / issued, "times", detail
        )
        rows.append(row.judged(REPLAY, f"{REPLAY:g}"))
        began = perf_counter()
        plan.update()
        rows.append(Row(f"update of that plan, {nbytes:,} bytes", where, (perf_counter() - began) * 1e6, "us"))
        plan.close()
    return rows


def batches(where: str) -> list[Row]:
    """Page-locked blocks to the device by one call: devmem's and the driver's."""
    device, stream = dm.current_device(), dm.stream(non_blocking=True)
    source = dm.pinned_array((BLOCKS, BLOCK_BYTES), "u1")
    source[...] = 1
    blocks = list(source)
    block = dm.device_array(BLOCKS * BLOCK_BYTES, "u1", stream=stream)
    ends = [at * BLOCK_BYTES for at in range(BLOCKS)]
    sizes, low = [BLOCK_BYTES] * BLOCKS, source.__array_interface__["data"][0]

    def bare() -> None:
        with device.entered() as driver:
            dsts, srcs = [block.ptr + at for at in ends], [low + at for at in ends]
            driver.copy_batch(dsts, srcs, sizes, CopyKind.H2D, stream.handle)
            driver.stream_synchronize(stream.handle)

    def ours() -> None:
        kept = dm.to_device_many(blocks, stream=stream)
        stream.synchronize()
        del kept

    ours()
    called, taken = least(BATCH_ROUNDS, bare, ours)
    gb = BLOCKS * BLOCK_BYTES / 1e9
    detail = f"bare {gb / called:.2f} GB/s, devmem {gb / taken:.2f} GB/s"
    row = Row(
        f"to_device_many of {BLOCKS:,} x {BLOCK_BYTES >> 10} KiB / the bare call",
        where,
        called / taken,
        "times",
        detail,
    )
    return [row.judged_at_least(RATE, f"{RATE:g}")]


def main() -> int:
    """Measure, show and judge."""
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--backend", default="cuda")
    options.add_argument("--json", type=Path)
    options.add_argument("--markdown", type=Path)
    given = options.parse_args()
    dm.use_backend(given.backend)
    null = os.environ.get("DEVMEM_EMULATOR_MODE") == "null"
    where = f"{given.backend}, {'null mode' if null else 'emulated'}"
    rows = plans(where) if null else batches(where)
    for row in rows:
        print(line(row))
    if given.json:
        given.json.write_text(json.dumps([vars(row) for row in rows], indent=1) + "\n", encoding="utf-8")
    if given.markdown:
        about = {"machine": f"{platform.machine()}, {os.cpu_count()} cores", "Python": platform.python_version()}
        notes = [
            "Made by `benchmarks/plans.py`. Costs on the host over a driver without a device: nothing here was run on hardware."
        ]
        title = f"Recorded plans over the {where}" if null else f"A batch over the {where} driver"
        given.markdown.write_text(markdown(title, about, notes, {"Results": rows}), encoding="utf-8")
    return int(any(row.verdict == "FALLS SHORT" for row in rows))


if __name__ == "__main__":
    sys.exit(main())
