"""How long `copy_async` takes to return while its stream is held: every memory and direction, 1 B to 256 MiB, one backend.

    DEVMEM_BACKEND=host python benchmarks/copy_async.py                     measure, show, judge (exit status 1: falls short)
    devmem emulate cuda -- python benchmarks/copy_async.py --backend cuda   the same over an emulated driver
    python benchmarks/copy_async.py --quick                                 up to 1 MiB, fewer rounds
    python benchmarks/copy_async.py --json FILE --markdown FILE

The stream is held from before the call until after it, so no copy runs meanwhile. The target is 10 ms, and for a pageable source,
which has been read when the call returns, 10 ms and 1.5 times a memcpy of its bytes, by NumPy with one thread, into page-locked
memory that has been written before. Calls and memcpys take turns in every round; the value is the median of the rounds, so that a
call which waits every other time falls short; the least is shown beside it. ``first`` is the first call of a size, which is shown
and not judged: a pageable upload allocates its page-locked memory then, and the download after it takes the same. Where the call
makes its destination, the rounds take the memory that the one before gave back.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from time import perf_counter, strftime
from typing import Any

import numpy as np
import numpy.typing as npt
from gpucheck.about import commit
from table import Row, line, markdown
from timing import spread

import devmem as dm
from devmem.testing.stream_hold import StreamHold

KIB, MIB = 1 << 10, 1 << 20
SIZES = [1, KIB, 64 * KIB, MIB, 16 * MIB, 256 * MIB]
#: The targets: seconds, and how many memcpys of a pageable source.
LIMIT, COPIES = 0.010, 1.5
#: Memories whose bytes the call must read.
PAGEABLE = ("pageable", "mapped file", "registered in part")
MEMORIES = (*PAGEABLE, "page-locked", "registered", "mapped", "managed")
#: What makes memory of a kind; devices that lack it, or cannot register memory, leave it out.
MAKE: dict[str, Callable[..., Any]] = {
    "page-locked": dm.pinned_array,
    "mapped": dm.mapped_array,
    "managed": dm.managed_array,
}

Bytes = npt.NDArray[np.uint8]


@contextmanager
def memory_of(memory: str, nbytes: int) -> Iterator[Bytes]:
    """Host memory of a kind, written."""
    if memory == "mapped file":
        with tempfile.TemporaryDirectory() as folder:
            mapped = np.memmap(Path(folder) / "memory", np.uint8, "w+", shape=(nbytes,))
            mapped[:] = 1
            yield mapped
        return
    make = MAKE.get(memory, np.empty)
    made = make(nbytes, np.uint8)
    made[...] = 1
    if memory.startswith("registered"):
        with dm.pinned(made if memory == "registered" else made[: nbytes // 2]):
            yield made
    else:
        yield made


def held(call: Callable[[dm.Stream], dm.Transfer[Any]], stream: dm.Stream, device: dm.Device | None = None) -> float:
    """Seconds of a call while a stream is held, of this device; the copy is waited for after that."""
    with StreamHold((device or dm.current_device()).driver(), stream.handle) as latch:
        start = perf_counter()
        transfer = call(stream)
        seconds = perf_counter() - start
        if transfer.done():
            raise AssertionError("the stream was not held")
        latch.release()
    transfer.wait()
    return seconds


def shown(nbytes: int) -> str:
    """A size for people."""
    return f"{nbytes // MIB} MiB" if nbytes >= MIB else f"{nbytes // KIB} KiB" if nbytes >= KIB else f"{nbytes} B"


def judged(what: str, backend: str, first: float, times: list[float], memcpys: list[float] | None = None) -> Row:
    """The row of calls that took these seconds, the first and the rounds; `memcpys`: of a pageable source, which they read."""
    value, memcpy = spread(times), spread(memcpys or [0.0]).median
    limit = LIMIT + COPIES * memcpy
    detail = f"least {value.least * 1e3:.2f} ms, first {first * 1e3:.2f} ms"
    detail += f", memcpy {memcpy * 1e3:.2f} ms" if memcpys else ""
    numbers = {"seconds": value.median, "least": value.least, "first": first, "memcpy": memcpy, "limit": limit}
    row = Row(what, backend, value.median * 1e3, "ms", detail, numbers=numbers)
    return row.judged(limit * 1e3, f"{limit * 1e3:.2f} ms")


def measure(backend: str, memory: str, nbytes: int, rounds: int) -> list[Row]:
    """Both directions of one memory and size."""
    stream = dm.stream(non_blocking=True)
    array, other, warm = (
        dm.zeros(nbytes, "u1"),
        dm.to_device(np.ones(nbytes, np.uint8)),
        dm.pinned_array(nbytes, np.uint8),
    )
    warm[...] = 0
    with memory_of(memory, nbytes) as host:
        calls: dict[str, Callable[[dm.Stream], dm.Transfer[Any]]] = {
            "H2D": lambda on: dm.copy_async(host, array, stream=on),
            "D2H": lambda on: dm.copy_async(other, host, stream=on),
        }
        dm.synchronize()
        first = {what: held(call, stream) for what, call in calls.items()}
        times: dict[str, list[float]] = {"H2D": [], "D2H": [], "memcpy": []}
        for _ in range(rounds):
            for what, call in calls.items():
                times[what].append(held(call, stream))
            start = perf_counter()
            np.copyto(warm, host)
            times["memcpy"].append(perf_counter() - start)
    return [
        judged(
            f"{what} {shown(nbytes)}, {memory}",
            backend,
            first[what],
            times[what],
            times["memcpy"] if what == "H2D" and memory in PAGEABLE else None,
        )
        for what in calls
    ]


def measure_inside(backend: str, nbytes: int, rounds: int) -> list[Row]:
    """Within the device, and to destinations that the call makes."""
    stream, array, other = dm.stream(non_blocking=True), dm.zeros(nbytes, "u1"), dm.zeros(nbytes, "u1")
    locked = dm.pinned_array(nbytes, np.uint8)
    locked[...] = 1
    calls: dict[str, Callable[[dm.Stream], dm.Transfer[Any]]] = {
        "D2D {}, within the device": lambda on: dm.copy_async(array, other, stream=on),
        "H2D {}, page-locked to a new array": lambda on: dm.copy_async(locked, stream=on),
        "D2H {}, to a new array": lambda on: dm.copy_async(array, stream=on),
        "D2H {}, to a new page-locked array": lambda on: dm.copy_async(array, stream=on, pinned=True),
    }
    for call in calls.values():  # allocating for the first time may wait for the device, as the vendors say
        call(stream).wait()
    dm.synchronize()
    rows = []
    for what, call in calls.items():
        first, *times = [held(call, stream) for _ in range(rounds + 1)]
        rows.append(judged(what.format(shown(nbytes)), backend, first, times))
    return rows


def measure_peers(backend: str, there: dm.Device, nbytes: int, rounds: int) -> list[Row]:
    """From another device, directly and by way of slots, while the destination's or the source's stream is held."""
    here, on = dm.current_device(), dm.stream(non_blocking=True)
    array = dm.zeros(nbytes, "u1")
    with there:
        bound = dm.stream(non_blocking=True)
        source = dm.to_device(np.ones(nbytes, np.uint8)).bind(bound)
    rows = []
    for way, switch in (("", here.enable_peer_access), (" by slots", here.disable_peer_access)):
        switch(there)
        for whose, stream, device in (("its", on, here), ("the source's", bound, there)):
            for each in (here, there):
                each.synchronize()
            first, *times = [
                held(lambda _: dm.copy_async(source, array, stream=on), stream, device) for _ in range(rounds + 1)
            ]
            rows.append(judged(f"D2D {shown(nbytes)}{way}, {whose} stream held", backend, first, times))
    here.enable_peer_access(there)
    return rows


def main() -> int:
    """Measure, show, write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--backend", default=os.environ.get("DEVMEM_BACKEND", "host"))
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--markdown", type=Path)
    options = parser.parse_args()
    os.environ.setdefault("DEVMEM_HOST_DEVICES", "2")
    sizes, rounds = ([size for size in SIZES if size <= MIB], 5) if options.quick else (SIZES, 15)
    loaded = os.getloadavg()[0]
    sections: dict[str, list[Row]] = {}

    def add(title: str, rows: list[Row]) -> None:
        sections.setdefault(title, []).extend(rows)
        for row in rows:
            print(line(row), flush=True)

    with dm.use_backend(options.backend):
        info = dm.current_device().info
        lacks = {memory for memory in ("mapped", "managed") if memory not in info.memory_kinds}
        if "host_register" not in info.capabilities:
            lacks |= {"registered", "registered in part"}
        for memory in MEMORIES:
            for nbytes in () if memory in lacks else sizes:
                if memory != "registered in part" or nbytes >= 64 * KIB:  # a part of the pages
                    add(memory.capitalize(), measure(options.backend, memory, nbytes, rounds))
            dm.trim()
        for nbytes in sizes:
            add("Within the device, and to new arrays", measure_inside(options.backend, nbytes, rounds))
        others = [each for each in dm.devices() if each.backend == info.backend and each.ordinal != info.ordinal]
        if others and {"peer_events", "peer_access"} <= info.capabilities:
            for nbytes in sizes:
                add("From another device", measure_peers(options.backend, others[0], nbytes, rounds))
    about: dict[str, object] = {
        "backend": options.backend,
        "python": platform.python_version(),
        "numpy": np.__version__,
        "machine": platform.machine(),
        "cores": os.cpu_count(),
        "devmem": dm.__version__,
        "commit": commit(),
        "date": strftime("%Y-%m-%d"),
        "load": f"{loaded:.1f} processes that wanted to run before, {os.getloadavg()[0]:.1f} at the end, its own among them",
    }
    if options.json:
        found = {"about": about, "rows": [vars(row) for rows in sections.values() for row in rows]}
        options.json.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    if options.markdown:
        slowest = max((row for rows in sections.values() for row in rows), key=lambda row: (row.numbers or {})["first"])
        notes = [
            "Written by `benchmarks/copy_async.py`, which says what is measured. On an emulated driver the times are the "
            "host's part: no device takes part in the call.",
            "",
            f"The first call of a size is not judged. The slowest was {slowest.what}: "
            f"{(slowest.numbers or {})['first'] * 1e3:.0f} ms.",
        ]
        title = "How long `copy_async` takes to return while its stream is held"
        options.markdown.write_text(markdown(title, about, notes, sections), encoding="utf-8")
    return int(any(row.verdict == "FALLS SHORT" for rows in sections.values() for row in rows))


if __name__ == "__main__":
    sys.exit(main())
