"""Replays recorded allocations through each memory stack: time per call, driver calls, bytes reserved over bytes live.

    python benchmarks/allocators.py                    replay benchmarks/traces, write benchmarks/results/allocators-*.{json,md}
    python benchmarks/allocators.py --quick            fewer rounds; writes no files
    python benchmarks/allocators.py --only shareable   only hits, many, replays or shareable, into a file of that name
    python benchmarks/allocators.py --record           record the traces again

Four results have targets (exit status 1 if one is missed): the time of a pool hit, the cost of a million live blocks, the
peak of reserved bytes over the peak of live bytes, on every trace whose peak exceeds 256 MiB, and what it costs that other
processes can open the driver's pool.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import lzma
import os
import platform
import random
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from programs import FOLDER, PROGRAMS
from table import Row, line, markdown
from timing import interleaved, ratio, spread

import devmem as dm
from devmem import memory
from devmem._core.pool.size_bins import FreeSet, class_of, rounded
from devmem._core.telemetry.allocation_log import Record, read
from devmem.spi.driver import PROTOCOLS, Driver
from devmem.spi.types import LEGACY_STREAM, PER_THREAD_STREAM, Capability
from devmem.testing.replay import replay

HERE = Path(__file__).parent
TRACES = HERE / "traces"
#: Tests whose allocations stand for what the test suite does.
SUITE = [
    "copy/test_upload.py",
    "arrays/test_index.py",
    "arrays/test_assign.py",
    "arrays/test_views.py",
    "lifetime/test_dropped_during_copies.py",
]
UNIT = 512
#: Limits: the smallest peak that is judged, reserved over live bytes, the time of a hit, the cost of a million live blocks, and
#: that of memory which can be shared.
JUDGED_FROM, RESERVE, HIT, MANY, SHAREABLE = 256 << 20, 1.15, 2.0, 1.3, 1.02
STACKS: dict[str, Callable[[Any], Any]] = {
    "driver": lambda below: below,
    "stream_ordered": lambda below: memory.StreamOrderedMemory(),
    "pool": memory.PoolMemory,
    "statistics,pool": lambda below: memory.Statistics(memory.PoolMemory(below)),
    "limit,statistics,pool": lambda below: memory.Limit(memory.Statistics(memory.PoolMemory(below)), 1 << 40),
}


class Apart(memory.Adaptor):
    """Distinct addresses for blocks; the null driver returns the same address for all."""

    def __init__(self) -> None:
        super().__init__()
        self._next = 1 << 40

    def allocate(self, nbytes: int, stream: int) -> int:
        """Call the driver, and make up an address."""
        self._allocate(nbytes, stream)
        ptr, self._next = self._next, self._next + (nbytes + 511) // 512 * 512
        return ptr


class Counting:
    """A driver that counts its calls and the allocated bytes."""

    def __init__(self, driver: Driver) -> None:
        self.info = driver.info
        self.calls: Counter[str] = Counter()
        self.reserved = self.peak = 0
        self.noted: list[int] = []
        for protocol in (Driver, *PROTOCOLS.values()):
            for name in vars(protocol):
                if not name.startswith("_") and name != "info" and hasattr(driver, name):
                    setattr(self, name, self._counted(name, getattr(driver, name)))

    @property
    def memory_calls(self) -> int:
        """Calls that allocate or free: the expensive ones on a GPU."""
        return sum(self.calls[name] for name in ("alloc", "free", "alloc_async", "free_async"))

    def note(self, record: Record) -> None:
        """Record the counts after a call of the stack."""
        self.noted.append(self.memory_calls)

    def _counted(self, name: str, verb: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any, **options: Any) -> Any:
            self.calls[name] += 1
            result = verb(*arguments, **options)
            if name in ("alloc", "alloc_async"):
                self.reserved += arguments[0]
                self.peak = max(self.peak, self.reserved)
            elif name in ("free", "free_async"):
                self.reserved -= arguments[1]
            return result

        return call


class Place:
    """The device of this process, current, and a stream of it for each stream of a trace."""

    def __init__(self) -> None:
        self.device = dm.current_device()
        self.driver = self.device.driver()
        self.null = os.environ.get("DEVMEM_EMULATOR_MODE") == "null"
        self.where = "emulated CUDA" if self.device.backend == "cuda" else self.device.backend
        self._streams: dict[int, int] = {}

    def bottom(self) -> Any:
        """The driver below a stack."""
        return Apart() if self.null else memory.DriverMemory()

    def stacks(self) -> Iterator[tuple[str, Callable[[], Any]]]:
        """The stacks that this device supports."""
        for name, make in STACKS.items():
            if name == "stream_ordered" and (
                self.null or Capability.STREAM_ORDERED not in self.driver.info.capabilities
            ):
                continue
            yield name, partial(self._made, make)

    def _made(self, make: Callable[[Any], Any]) -> Any:
        return make(self.bottom())

    def stream(self, handle: int) -> int:
        """The stream for a recorded stream."""
        if handle in (LEGACY_STREAM, PER_THREAD_STREAM):
            return handle
        if handle not in self._streams:
            # The null driver has one handle for all streams and does no work, so any number will do.
            self._streams[handle] = 1000 + len(self._streams) if self.null else self.driver.stream_create(0, True)
        return self._streams[handle]


# -- traces ------------------------------------------------------------------------------------------------------------


def traces() -> dict[str, list[Record]]:
    """The recorded traces by name."""
    found = {}
    for path in sorted(TRACES.glob("*.jsonl.xz")):
        with tempfile.TemporaryDirectory() as folder:
            plain = Path(folder, "trace.jsonl")
            plain.write_bytes(lzma.decompress(path.read_bytes()))
            found[path.name.partition(".")[0]] = list(read(plain))
    return found


def record() -> None:
    """Run each program under `Log` and keep its log, with addresses renumbered and times in milliseconds."""
    for name in (*PROGRAMS, "demo", "suite"):
        with tempfile.TemporaryDirectory() as folder:
            told = {**os.environ, "DEVMEM_BACKEND": "host", "DEVMEM_MEMORY_MANAGER": "programs:logged", FOLDER: folder}
            told["PYTHONPATH"] = os.pathsep.join([str(HERE), str(HERE.parent), os.environ.get("PYTHONPATH", "")])
            run = subprocess.run(
                command_of(name), check=False, env=told, cwd=HERE.parent, capture_output=True, text=True
            )
            if run.returncode and name != "suite":  # some tests inspect the resource that is replaced here
                raise SystemExit(f"{name} ended with {run.returncode}:\n{run.stderr}")
            lines = b"".join(each.line() for each in joined(sorted(Path(folder).glob("*.jsonl"))))
        TRACES.mkdir(exist_ok=True)
        packed = lzma.compress(lines, preset=9 | lzma.PRESET_EXTREME)
        (TRACES / f"{name}.jsonl.xz").write_bytes(packed)
        print(f"{name}: {len(lines.splitlines()):,} records, {len(packed):,} bytes")


def command_of(name: str) -> list[str]:
    """The command that runs a program."""
    if name in PROGRAMS:
        return [sys.executable, "-c", f"import programs; programs.PROGRAMS[{name!r}]()"]
    if name == "demo":
        return [sys.executable, "-m", "devmem.cli", "roundtrip"]
    tests = [str(HERE.parent / "tests" / "integration" / "every_backend" / each) for each in SUITE]
    return [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "no:randomly", *tests]


def joined(paths: Iterable[Path]) -> Iterator[Record]:
    """Join the traces of several openings of a device; blocks live at a close are freed there."""
    began = 0.0
    for path in paths:
        live: dict[int, Record] = {}
        last = 0.0
        for each in renumbered(read(path)):
            last = each.t
            live[each.address] = each
            if each.op == "deallocate":
                del live[each.address]
            yield each._replace(t=round(began + each.t, 3))
        began += last
        for each in live.values():
            yield each._replace(op="deallocate", t=round(began, 3))


def renumbered(records: Iterable[Record]) -> Iterator[Record]:
    """The same calls, with addresses and streams renumbered from 0."""
    numbers: dict[int, int] = {}
    free: list[int] = []
    streams: dict[int, int] = {LEGACY_STREAM: LEGACY_STREAM, PER_THREAD_STREAM: PER_THREAD_STREAM}
    for op, address, nbytes, stream, t, *_ in records:
        stream = streams.setdefault(stream, len(streams) + 1)
        if op == "allocate":
            number = numbers[address] = free.pop() if free else len(numbers) + 1
        else:
            number = numbers.pop(address, 0)
            free.append(number)
        if number:
            yield Record(op, number, nbytes, stream, round(t, 3))


def peak_live(records: Iterable[Record]) -> int:
    """The peak of live bytes, in units."""
    live = peak = 0
    for each in records:
        nbytes = (each.nbytes + UNIT - 1) // UNIT * UNIT
        live += nbytes if each.op == "allocate" else -nbytes
        peak = max(peak, live)
    return peak


def arena(records: Iterable[Record]) -> int:
    """Bytes that best fit needs in one unlimited arena with one stream and nothing returned: a reference for reserved bytes."""
    chunks: dict[int, int] = {}
    free = FreeSet(chunks)
    top = UNIT
    live: dict[int, int] = {}
    for each in records:
        if not each.nbytes:
            continue
        size = rounded(each.nbytes)
        if each.op == "deallocate":
            free.add(live.pop(each.address), size)
            continue
        found = free.parts.find(class_of(size))
        if found:
            live[each.address] = free.take(found, size)
            continue
        start = free.ends.get(top, top)
        if start != top:
            free.remove(start)
        live[each.address] = start
        top = start + size
    return top - UNIT


# -- rows --------------------------------------------------------------------------------------------------------------


def replays(place: Place, rounds: int) -> Iterator[Row]:
    """Each trace through each stack: timed over the driver, then counted over a counting driver."""
    for trace, records in traces().items():
        peak = peak_live(records)
        calls = len(records)
        for stack, make in place.stacks():
            best = float("inf")
            for _ in range(rounds):
                resource = make()
                resource.bind(place.driver)
                best = min(best, replay(records, resource, stream=place.stream).seconds)
                if hasattr(resource, "trim"):
                    resource.trim(0)
            counting = Counting(place.driver)
            resource = make()
            resource.bind(counting)
            replay(records, resource, stream=place.stream, after=counting.note)
            ratio = counting.peak / peak
            asked = counting.noted[-1]
            late = asked - counting.noted[calls // 2]
            others = sum(counting.calls.values()) - asked
            if hasattr(resource, "trim"):
                resource.trim(0)
            told = (
                f"{calls:,} calls; driver calls: {asked:,} to allocate or free ({late:,} in the second half), {others:,} other; "
                f"peak live {peak / 2**20:,.1f} MiB, reserved {ratio:.3f} x"
            )
            numbers = {
                "us": best / calls * 1e6,
                "allocate or free": asked,
                "in the second half": late,
                "other driver calls": others,
                "peak live": peak,
                "peak reserved": counting.peak,
            }
            yield Row(f"{trace}: {stack}", place.where, best / calls * 1e6, "us", told, numbers=numbers)
            if stack == "pool":
                told = f"best fit in one unlimited arena, one stream, needs {arena(records) / peak:.3f} x"
                row = Row(f"{trace}: reserved / live, {stack}", place.where, ratio, "x", told, numbers={"ratio": ratio})
                yield row.judged(RESERVE, f"{RESERVE:g} x") if peak > JUDGED_FROM else row


def hits(place: Place, rounds: int) -> Iterator[Row]:
    """A block that is freed and reused: time of both calls, and their driver calls."""
    counting: Any = Counting(place.driver)
    pool = memory.PoolMemory(place.bottom())
    pool.bind(counting)
    sizes = [1000, 70_000, 5 << 20]
    for nbytes in sizes:
        pool.deallocate(pool.allocate(nbytes, LEGACY_STREAM), nbytes, LEGACY_STREAM)
    counting.calls.clear()
    for nbytes in sizes * 100:
        pool.deallocate(pool.allocate(nbytes, LEGACY_STREAM), nbytes, LEGACY_STREAM)
    yield Row("pool hit: driver calls", place.where, sum(counting.calls.values()), "calls").judged(0, "0")
    best = min(cost_of_hits(pool, 10_000) for _ in range(5 * rounds))
    yield Row("pool hit: allocate and deallocate", place.where, best * 1e6, "us").judged(HIT, f"{HIT:g} us")
    pool.trim(0)


def cost_of_hits(pool: Any, count: int) -> float:
    """Seconds for one pair of calls."""
    allocate, deallocate = pool.allocate, pool.deallocate
    began = time.perf_counter()
    for _ in range(count):
        deallocate(allocate(1000, LEGACY_STREAM), 1000, LEGACY_STREAM)
    return (time.perf_counter() - began) / count


def many(place: Place, rounds: int) -> Iterator[Row]:
    """Time of a call by number of live blocks: last in first out, and in random order."""
    levels = 1_000, 20_000 if rounds == 1 else 1_000_000
    pool = memory.PoolMemory(place.bottom())
    pool.bind(place.driver)
    live: list[int] = []
    found: dict[tuple[str, int], float] = {}
    chance = random.Random(1)
    first = 0.0
    for level in (*levels, *reversed(levels)):
        began, missing = time.perf_counter(), level - len(live)
        while len(live) < level:
            live.append(pool.allocate(64, LEGACY_STREAM))
        if missing > 0:
            first = (time.perf_counter() - began) / missing
        while len(live) > level:
            pool.deallocate(live.pop(), 64, LEGACY_STREAM)
        for _ in range(5 * rounds):
            for what, order in (("last in first out", None), ("random order", chance)):
                took = in_order(pool, live, order)
                found[what, level] = min(took, found.get((what, level), took))
    few, lots = levels
    for what in ("last in first out", "random order"):
        ratio = found[what, lots] / found[what, few]
        numbers = {f"us at {level}": found[what, level] * 1e6 for level in levels}
        told = ", ".join(f"{us:.2f} us with {level:,}" for level, us in zip(levels, numbers.values(), strict=True))
        row = Row(f"{lots:,} live / {few:,}: {what}", place.where, ratio, "x", told, numbers=numbers)
        yield row.judged(MANY, f"{MANY:g} x") if what.startswith("last") else row
    yield Row(f"the first {lots:,}, cut from chunks, per block", place.where, first * 1e6, "us")
    while len(live) < lots:
        live.append(pool.allocate(64, LEGACY_STREAM))
    chance.shuffle(live)
    began = time.perf_counter()
    for ptr in live:
        pool.deallocate(ptr, 64, LEGACY_STREAM)
    freed = time.perf_counter()
    pool.deallocate(pool.allocate(3 << 20, LEGACY_STREAM), 3 << 20, LEGACY_STREAM)
    merged = time.perf_counter()
    told = f"the next request of another size merges them, once: {(merged - freed) / len(live) * 1e6:.2f} us per block"
    each = (freed - began) / len(live) * 1e6
    yield Row(f"all {len(live):,} freed in random order, per block", place.where, each, "us", told)
    pool.trim(0)


def in_order(pool: Any, live: list[int], chance: random.Random | None) -> float:
    """Seconds per call, for equally many allocations and deallocations."""
    count = 500
    places = chance.sample(range(len(live)), count) if chance else range(len(live) - 1, len(live) - 1 - count, -1)
    began = time.perf_counter()
    if chance:
        for at in places:
            pool.deallocate(live[at], 64, LEGACY_STREAM)
        for at in places:
            live[at] = pool.allocate(64, LEGACY_STREAM)
    else:
        for _ in range(count):
            live.append(pool.allocate(64, LEGACY_STREAM))  # noqa: PERF401 -- each append is part of the workload
        for _ in range(count):
            pool.deallocate(live.pop(), 64, LEGACY_STREAM)
    return (time.perf_counter() - began) / (2 * count)


def shareable(place: Place, rounds: int) -> Iterator[Row]:
    """The driver's pool, the default memory, made so that other processes can open it, in turns with one made without."""
    if Capability.POOL_IPC not in place.driver.info.capabilities:
        return
    cuda: Any = importlib.import_module("devmem.backends.cuda.driver")
    handle_types = {"shareable": cuda.FILE_DESCRIPTOR, "plain": type(cuda.FILE_DESCRIPTOR)(0)}
    host = np.arange(16.0)

    def reopened(name: str) -> None:
        dm.close()
        cuda.FILE_DESCRIPTOR = handle_types[name]
        dm.to_device(host).free()

    uses: dict[str, Callable[[], object]] = {
        "to_device": lambda: dm.to_device(host),
        "device_array": lambda: dm.device_array(16),
    }
    for verb, once in uses.items():
        times = interleaved(dict.fromkeys(handle_types, once), 40 * rounds, 0.005, before=reopened)
        least = {name: spread(found).least * 1e6 for name, found in times.items()}
        told = f"{least['shareable']:.3f} us, plain {least['plain']:.3f} us; median of the rounds {ratio(*times.values()):.2f}"
        value = least["shareable"] / least["plain"]
        row = Row(f"shareable default memory / plain: {verb}, dropped", place.where, value, "x", told, numbers=least)
        yield row.judged(SHAREABLE, f"{SHAREABLE:g} x")
    reopened("shareable")


PARTS: dict[str, Callable[[Place, int], Iterable[Row]]] = {
    "hits": hits,
    "many": many,
    "replays": replays,
    "shareable": shareable,
}


# -- the program -------------------------------------------------------------------------------------------------------


def measure(quick: bool, only: str | None) -> list[Row]:
    """All rows of this process's device, or those of one part."""
    place = Place()
    rounds = 1 if quick else 5
    rows: list[Row] = []
    for name, part in PARTS.items():
        if only in (None, name):
            # A part that opens the device anew cannot be inside of it.
            with nullcontext() if part is shareable else place.device.entered():
                rows += part(place, rounds)
    return rows


def in_its_place(where: str, arguments: list[str]) -> list[Row]:
    """The rows of a device that another process measured, or one row with the reason why there are none."""
    told = {**os.environ, "DEVMEM_BACKEND": "host", "DEVMEM_HOST_STRICT": "1", "DEVMEM_HOST_DEVICES": "1"}
    if where != "host":
        from devmem.testing import emulator

        try:
            if importlib.util.find_spec("cuda.bindings.driver") is None:
                raise ImportError("cuda-bindings is not installed")
            variables = emulator.environment("cuda")
        except (ImportError, OSError) as error:
            return [Row("everything", where, None, "us").skipped(str(error).partition("\n")[0])]
        told |= {**variables, "DEVMEM_BACKEND": "cuda", "DEVMEM_EMULATOR_MODE": "null"}
    command = [sys.executable, __file__, "--child", *arguments]
    run = subprocess.run(command, env=told, capture_output=True, text=True, check=False)
    if run.returncode:
        last = (run.stderr.strip().splitlines() or ["no reason"])[-1]
        return [Row("everything", where, None, "us").skipped(f"it ended: {last}")]
    return [Row(**row) for row in json.loads(run.stdout.splitlines()[-1])]


def main() -> int:
    """Replay, show, write; or record."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--record", action="store_true")
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--only", choices=PARTS)
    parser.add_argument("--child", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.record:
        record()
        return 0
    if options.child:
        print(json.dumps([vars(row) for row in measure(options.quick, options.only)]))
        return 0
    short = False
    for where in ("host", "emulated-cuda"):
        rows = in_its_place(where, sys.argv[1:])
        for row in rows:
            print(line(row))
        short |= any(row.verdict == "FALLS SHORT" for row in rows)
        if not options.quick and rows and rows[0].verdict != "skipped":
            write(f"{options.only or 'allocators'}-{where}", rows)
    return int(short)


def write(name: str, rows: list[Row]) -> None:
    """The results as JSON and Markdown."""
    about: dict[str, object] = {
        "python": platform.python_version(),
        "machine": platform.machine(),
        "cores": os.cpu_count(),
    }
    about["devmem"] = dm.__version__
    notes = [
        "Written by `python benchmarks/allocators.py`. Traces: `benchmarks/traces`, recorded by `--record`.",
        "Microseconds per call of the stack, allocations and deallocations alike, minimum of five replays. Peak live is "
        f"counted in units of {UNIT} bytes. The emulated driver runs in null mode: its calls cost nearly "
        "nothing. On a GPU, allocating and freeing are expensive, and the other calls, mostly events, cost about a "
        "microsecond. So of shareable memory this shows what devmem does for it, and not what the driver does.",
    ]
    stem = HERE / "results" / name
    found = {"about": about, "rows": [vars(row) for row in rows]}
    stem.with_suffix(".json").write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    sections = {
        "Targets": [row for row in rows if row.verdict],
        "All": [row for row in rows if not row.verdict],
    }
    text = markdown(f"Memory stacks, {name}", about, notes, sections)
    stem.with_suffix(".md").write_text(text, encoding="utf-8")


if __name__ == "__main__":
    sys.exit(main())
