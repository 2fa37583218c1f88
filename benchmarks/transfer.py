"""The host's cost of copies: staging, strided and small copies over a driver whose copies cost nothing; batches.

    python benchmarks/transfer.py                      measure, show, judge (exit status 1 if a target is missed)
    python benchmarks/transfer.py --quick              fewer rounds
    python benchmarks/transfer.py --json FILE --markdown FILE
    python benchmarks/transfer.py --backend NAME       1 GiB up and down over a real runtime instead, against one thread's memcpy

memcpy is NumPy's copy with as many threads, in parts of equal size, into pages that are as fresh as those of the compared copy.
Packing is NumPy's copy with one thread between existing arrays. Batches are compared on the host backend with loops of the
verb for one array; freeing the results, which takes longer for the loop, is not counted. Both sides take turns in every round,
and ratios are the median of the rounds, so that other load affects both sides alike.
"""

from __future__ import annotations

import argparse
import ctypes
import gc
import json
import os
import platform
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from itertools import pairwise
from pathlib import Path
from time import perf_counter

import numpy as np
import numpy.typing as npt
from table import Row, line, markdown
from timing import interleaved, ratio, spread

import devmem as dm
from devmem.spi.types import AllocFlags, MemoryKind
from devmem.testing import NullBackend, NullDriver

MIB = 1 << 20
#: Bytes of the copy over a real runtime, of the large and of the small copies; the smallest staged copy in this benchmark.
WHOLE, LARGE, SMALL, THRESHOLD = 1024 * MIB, 256 * MIB, [8, 64, 512, 4096, 16384, 65536], 1 * MIB
#: Bytes of a slot: the default.
SLOT = 16 * MIB
#: Arrays of a batch, and bytes of each; rows and columns of a strided copy.
MANY, EACH, SIDE = 1000, 4096, 4096
#: Repetitions of a batch, or a loop, in one turn.
REPEATED = 8
#: Targets: rate over memcpy's rate; time over that of the same call with a pinned source; time over that of NumPy's packing;
#: how many times as fast a batch is as a loop.
RATE, PLAIN, PACKING, BATCH = 0.85, 1.15, 1.2, 8.0
THREADS = min(4, os.cpu_count() or 1)

Bytes = npt.NDArray[np.uint8]
Call = Callable[[], object]


class Double(NullDriver):
    """Does nothing, except that page-locked memory is real: the host writes to it."""

    def __init__(self, name: str, ordinal: int) -> None:
        super().__init__(name, ordinal)
        kinds = frozenset({MemoryKind.DEVICE, MemoryKind.PINNED})
        self.info = replace(self.info, memory_kinds=kinds, staging_threshold=THRESHOLD)
        self._pinned: dict[int, Bytes] = {}

    def alloc(
        self, nbytes: int, stream: int, kind: MemoryKind = MemoryKind.DEVICE, flags: AllocFlags = AllocFlags.NONE
    ) -> int:
        """Real memory for page-locked blocks, which the host accesses."""
        if kind is MemoryKind.DEVICE:
            return super().alloc(nbytes, stream, kind, flags)
        made = np.zeros(nbytes, np.uint8)
        made[:: os.sysconf("SC_PAGESIZE")] = 1  # page-locked memory has all its pages from the beginning
        self._pinned[made.ctypes.data] = made
        return int(made.ctypes.data)

    def free(self, ptr: int, nbytes: int, stream: int, kind: MemoryKind = MemoryKind.DEVICE) -> None:
        """Let go of it."""
        self._pinned.pop(ptr, None)


class Memcpy:
    """NumPy's copy with several threads."""

    def __init__(self, threads: int) -> None:
        self._pool = ThreadPoolExecutor(max(1, threads - 1))
        self._threads = threads

    def __call__(self, dst: Bytes, src: Bytes) -> None:
        """Copy; the calling thread does the first part."""
        ends = [dst.size * at // self._threads for at in range(self._threads + 1)]
        others = [self._pool.submit(np.copyto, dst[low:high], src[low:high]) for low, high in pairwise(ends[1:])]
        np.copyto(dst[: ends[1]], src[: ends[1]])
        for each in others:
            each.result()

    def close(self) -> None:
        """End the threads."""
        self._pool.shutdown()


def fresh(nbytes: int) -> Bytes:
    """Memory whose pages have not been touched."""
    return np.empty(nbytes, np.uint8)


def large(rounds: int, nbytes: int) -> list[Row]:
    """The host's part of staging against memcpy."""
    # As large as a slot: over this driver a slot is idle at once, so one slot is enough.
    source, pinned = np.ones(nbytes, np.uint8), np.ones(SLOT, np.uint8)
    array = dm.to_device(source)
    back = np.ones(nbytes, np.uint8)
    copy = Memcpy(THREADS)

    def into_slots() -> None:
        # The unavoidable part of an upload.
        for start in range(0, nbytes, pinned.size):
            part = source[start : start + pinned.size]
            copy(pinned[: part.size], part)

    def out_of_slots(there: Bytes) -> None:
        for start in range(0, nbytes, pinned.size):
            part = there[start : start + pinned.size]
            copy(part, pinned[: part.size])

    calls: dict[str, Call] = {
        "up": lambda: array.copy_to_device(source),
        "up memcpy": into_slots,
        "down": lambda: array.copy_to_host(back),
        "down memcpy": lambda: out_of_slots(back),
        "fresh": array.copy_to_host,
        "fresh memcpy": lambda: out_of_slots(fresh(nbytes)),
        "one thread": lambda: ctypes.memmove(back.ctypes.data, source.ctypes.data, nbytes),
        "one numpy": lambda: np.copyto(back, source),
    }
    times = timed_once(calls, rounds)
    copy.close()

    def row(what: str, name: str, memcpy: str) -> Row:
        best, other = spread(times[name]).least, spread(times[memcpy]).least
        rate = ratio(times[memcpy], times[name])
        detail = f"{nbytes / best / 1e9:.2f} GB/s, memcpy {nbytes / other / 1e9:.2f}"
        return Row(what, "host", rate, "x", detail, numbers={"seconds": best, "memcpy seconds": other})

    size = f"{nbytes // MIB} MiB"
    return [
        row(f"H2D {size}, pageable", "up", "up memcpy").judged_at_least(RATE, f"{RATE} of memcpy's rate"),
        row(f"D2H {size} into a fresh array", "fresh", "fresh memcpy").judged_at_least(
            RATE, f"{RATE} of memcpy's rate"
        ),
        row(f"D2H {size} into an existing array", "down", "down memcpy"),
        row(f"NumPy's copy by one thread, against the C library's, {size}", "one numpy", "one thread"),
    ]


def whole(rounds: int, nbytes: int) -> list[Row]:
    """One large array up to the device of a real runtime, and down, against the C library's copy between the host's arrays."""
    opened = dm.current_device()
    source, back = np.ones(nbytes, np.uint8), np.ones(nbytes, np.uint8)
    array = dm.to_device(source)
    calls: dict[str, Call] = {
        "memcpy": lambda: ctypes.memmove(back.ctypes.data, source.ctypes.data, nbytes),
        "H2D {}, pageable": lambda: array.copy_to_device(source),
        "D2H {} into an existing array": lambda: array.copy_to_host(back),
    }
    if MemoryKind.PINNED in opened.info.memory_kinds:
        pinned = dm.pinned_array(nbytes, np.uint8)
        pinned[...] = 1
        calls["H2D {}, page-locked"] = lambda: array.copy_to_device(pinned)
        calls["D2H {}, page-locked"] = lambda: array.copy_to_host(pinned)
    times = timed_once(calls, rounds)
    rows, least = [], spread(times["memcpy"]).least
    for what in list(calls)[1:]:
        best, rate = spread(times[what]).least, ratio(times["memcpy"], times[what])
        detail = f"{nbytes / best / 1e9:.2f} GB/s, memcpy {nbytes / least / 1e9:.2f}"
        numbers = {"seconds": best, "memcpy seconds": least}
        row = Row(what.format(f"{nbytes // MIB} MiB"), opened.info.backend, rate, "x", detail, numbers=numbers)
        rows.append(row.judged_at_least(RATE, f"{RATE} of memcpy's rate"))
    return rows


def small(rounds: int) -> list[Row]:
    """Copies that are not staged, against the same calls with page-locked memory."""
    rows = []
    for nbytes in SMALL:
        pinned, source = dm.pinned_array(nbytes, np.uint8), np.ones(nbytes, np.uint8)
        array = dm.to_device(source)
        view = pinned.view(np.ndarray)  # NumPy's own class on both sides
        for what, verb in (("H2D", array.copy_to_device), ("D2H", array.copy_to_host)):
            calls: dict[str, Call] = {"pageable": partial(verb, source), "pinned": partial(verb, view)}
            times = interleaved(calls, rounds, 0.004, lambda name: None)
            value = ratio(times["pageable"], times["pinned"])
            detail = f"{spread(times['pageable']).least * 1e6:.2f} us, pinned {spread(times['pinned']).least * 1e6:.2f}"
            rows.append(Row(f"{what} {nbytes} B", "host", value, "x", detail).judged(PLAIN, f"{PLAIN} of pinned"))
    return rows


def strided(rounds: int) -> list[Row]:
    """Transposes and strided slices, against NumPy's packing alone."""
    host, packed = np.ones((SIDE, SIDE), np.float32), np.ones((SIDE, SIDE), np.float32)
    narrow = np.ones((SIDE, SIDE // 2), np.float32)
    array, half = dm.to_device(host), dm.to_device(narrow)
    shown = f"{PACKING} of NumPy's packing"
    rows = []
    for what, call, packing in (
        ("H2D, transposed", lambda: array.copy_to_device(host.T), lambda: np.copyto(packed, host.T)),
        ("H2D, [:, ::2]", lambda: half.copy_to_device(host[:, ::2]), lambda: np.copyto(narrow, host[:, ::2])),
        ("D2H, into a transposed array", lambda: array.copy_to_host(packed.T), lambda: np.copyto(packed.T, host)),
        ("D2H, into [:, ::2]", lambda: half.copy_to_host(packed[:, ::2]), lambda: np.copyto(packed[:, ::2], narrow)),
        ("D2H, of [:, ::2]", lambda: array[:, ::2].copy_to_host(narrow), lambda: np.copyto(narrow, host[:, ::2])),
    ):
        times = timed_once({"call": call, "packing": packing}, rounds)
        value = ratio(times["call"], times["packing"])
        best, other = spread(times["call"]).least, spread(times["packing"]).least
        detail = f"{best * 1e3:.2f} ms, packing {other * 1e3:.2f}"
        numbers = {"seconds": best, "packing seconds": other}
        row = Row(f"{what}, {SIDE} x {SIDE} f4", "host", value, "x", detail, numbers=numbers)
        rows.append(row.judged(PACKING, shown) if what.startswith("H2D") else row)
    return rows


def batches(rounds: int) -> list[Row]:
    """A thousand small arrays in one call, against a loop."""
    hosts = [np.full(EACH, number % 256, np.uint8) for number in range(MANY)]
    block, own = dm.to_device_many(hosts), [dm.to_device(host) for host in hosts]
    size = f"{MANY} x {EACH} B"
    rows = []
    for what, one_by_one, together in (
        ("H2D", lambda: [dm.to_device(host) for host in hosts], lambda: dm.to_device_many(hosts)),
        ("D2H of one block", lambda: [each.copy_to_host() for each in block], lambda: dm.to_host_many(block)),
        ("D2H of blocks of their own", lambda: [each.copy_to_host() for each in own], lambda: dm.to_host_many(own)),
    ):
        calls: dict[str, Call] = {"loop": one_by_one, "batch": together}
        times = timed_afresh(calls, rounds)
        best, other = spread(times["batch"]).least, spread(times["loop"]).least
        detail = f"{best * 1e6:.0f} us, loop {other * 1e6:.0f}"
        numbers = {"seconds": best, "loop seconds": other}
        value = ratio(times["loop"], times["batch"])
        row = Row(f"{what}, {size}, faster than a loop by", "host", value, "x", detail, numbers=numbers)
        rows.append(row.judged_at_least(BATCH, f"{BATCH:g} times as fast") if what == "H2D" else row)
    return rows


def timed_once(calls: dict[str, Call], rounds: int) -> dict[str, list[float]]:
    """Seconds of each call by round, one call per round."""
    found: dict[str, list[float]] = {name: [] for name in calls}
    for number in range(rounds + 1):
        for name, call in calls.items():
            start = perf_counter()
            call()
            if number:  # the first call creates threads and slots
                found[name].append(perf_counter() - start)
    return found


def timed_afresh(calls: dict[str, Call], rounds: int) -> dict[str, list[float]]:
    """Seconds of each call by round, minimum of several; results are freed between calls, untimed."""
    found: dict[str, list[float]] = {name: [] for name in calls}
    for _ in range(rounds):
        for name, call in calls.items():
            times = []
            for _ in range(REPEATED):
                dm.trim()
                gc.collect(0)
                gc.disable()
                start = perf_counter()
                made = call()
                times.append(perf_counter() - start)
                del made
                gc.enable()
            found[name].append(min(times))
    return found


def main() -> int:
    """Measure, show, write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--markdown", type=Path)
    parser.add_argument(
        "--backend", metavar="NAME", help="a real runtime, whose rate with 1 GiB is all that is measured"
    )
    options = parser.parse_args()
    sections: dict[str, list[Row]] = {}
    if options.backend:
        with dm.use_backend(options.backend):
            sections["1 GiB"] = whole(3 if options.quick else 15, WHOLE // 16 if options.quick else WHOLE)
            device = dm.current_device().info.name
        note = "Copies that are complete on return, against one thread's memcpy between the same arrays of the host."
    else:
        dm.register_backend(NullBackend("double", Double))
        with dm.use_backend("double"):
            sections = {
                "Large copies": large(5 if options.quick else 25, LARGE // 4 if options.quick else LARGE),
                "Strided copies": strided(5 if options.quick else 15),
                "Small copies": small(7 if options.quick else 40),
            }
        with dm.use_backend("host"):
            sections["Batches"] = batches(5 if options.quick else 15)
        device = "a test double; batches: the host"
        note = (
            "The driver is a test double whose copies cost nothing: the times are the host's part, not the rate of a device. "
            "Batches are on the host backend."
        )
    for rows in sections.values():
        for row in rows:
            print(line(row))
    about: dict[str, object] = {
        "device": device,
        "python": platform.python_version(),
        "numpy": np.__version__,
        "machine": platform.machine(),
        "cores": os.cpu_count(),
        "threads": THREADS,
        "devmem": dm.__version__,
    }
    if options.json:
        found = {"about": about, "rows": [vars(row) for rows in sections.values() for row in rows]}
        options.json.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    if options.markdown:
        named = f" --backend {options.backend}" if options.backend else ""
        notes = [
            f"Written by `python benchmarks/transfer.py{named} --json FILE --markdown FILE`.",
            "",
            f"{note} Ratios are medians of rounds in which both took turns.",
        ]
        title = f"Copies of 1 GiB: {options.backend}" if options.backend else "Copies: the host's part"
        options.markdown.write_text(markdown(title, about, notes, sections), encoding="utf-8")
    return int(any(row.verdict == "FALLS SHORT" for rows in sections.values() for row in rows))


if __name__ == "__main__":
    sys.exit(main())
