"""The measurement of `devmem bench`: the cases take turns, and the best time of each counts."""

from __future__ import annotations

import gc
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

import devmem

from ..spi.sizes import size_text
from .bench_cases import CASES, LIMIT_CASE, PAGE_LOCKED, BenchArrays, BenchCase, CopyTask, Direction, GiB, KiB, MiB

#: Powers of four, from 4 KiB to 1 GiB.
SIZES = tuple(4 * KiB << 2 * at for at in range(10))
QUICK_SIZES = (4 * KiB, 64 * KiB, MiB, 16 * MiB)
#: Shortest turn in seconds: a turn repeats small copies.
MIN_TURN_SECONDS = 0.001
MAX_REPEATS, MAX_ROUNDS = 1000, 200
#: Each size is measured this many times as long as the next smaller one.
GROWTH = 1.4
#: A single copy may take this share of the time for its size, or this many seconds if that is more.
MAX_SHARE, ALWAYS_ALLOWED_SECONDS = 0.2, 0.5
#: Size of the copies that determine the limit; they run first.
LIMIT_SIZE = 64 * MiB
#: The share of free memory to use; and the free host memory to assume where the system does not report it.
USABLE_SHARE, ASSUMED_FREE_BYTES = 0.8, 4 * GiB


@dataclass
class Measurement:
    """The best time of one case at one size."""

    direction: Direction
    case: str
    nbytes: int
    seconds: float = float("inf")
    repetitions: int = 0
    path: str = ""

    @property
    def gb_per_s(self) -> float:
        """The best rate, in 10^9 bytes a second."""
        return self.nbytes / self.seconds / 1e9

    def record(self, seconds: float, repeats: int) -> None:
        """Add one turn."""
        self.seconds = min(self.seconds, seconds)
        self.repetitions += repeats


@dataclass
class Bench:
    """A measurement on one device; however it ends, its results so far are kept.

    Attributes
    ----------
    measurements
        By direction, name of the case, and bytes.
    notes
        What was not measured, and why.
    interrupted
        Ctrl-C ended the run.
    failed
        A case failed for another reason than too little memory or a missing capability.
    has_bus
        A bus connects the memories of host and device, so its limit can be determined.
    """

    device: devmem.Device
    advance: Callable[[], object] = lambda: None
    cases: Sequence[BenchCase] = CASES
    measurements: dict[tuple[Direction, str, int], Measurement] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    interrupted: bool = False
    failed: bool = False
    has_bus: bool = True

    def run(self, sizes: Sequence[int], seconds: float) -> None:
        """Measure all sizes in about ``seconds``: every case at least once, except copies too slow for that time."""
        until = time.perf_counter() + seconds
        try:
            with self.device, _without_gc():
                fitting = self._fitting(sizes)
                if fitting:
                    queued = [case for case in self.cases if case.name == LIMIT_CASE]
                    self._measure_in_turns(min(LIMIT_SIZE, fitting[-1]), queued, time.perf_counter())
                for at, nbytes in enumerate(fitting):
                    left = max(0, until - time.perf_counter())
                    self._one_size(nbytes, left / sum(GROWTH**later for later in range(len(fitting) - at)))
        except KeyboardInterrupt:
            self.interrupted = True
            self.notes.append("interrupted: what had been measured by then is kept")
        except devmem.DevmemError as error:  # the device is lost: errors of a single case are noted
            self.failed = True
            self.notes.append(f"ended early: {error}")

    def limit(self, direction: Direction) -> float | None:
        """The best rate of large page-locked copies in GB/s: of those from 64 MiB on, or else of the largest measured.

        None if none was measured, or if there is no bus.
        """
        if not self.has_bus:
            return None
        found = [row for row in self.measurements.values() if row.case in PAGE_LOCKED and row.direction is direction]
        large = min(LIMIT_SIZE, max((row.nbytes for row in found), default=0))
        return max((row.gb_per_s for row in found if row.nbytes >= large), default=None)

    def percent(self, row: Measurement) -> float | None:
        """The rate as a percentage of the limit."""
        limit = self.limit(row.direction)
        return None if limit is None else 100 * row.gb_per_s / limit

    def measured(self, direction: Direction) -> Iterator[tuple[str, list[Measurement]]]:
        """Each case of a direction with its measurements, smallest size first."""
        mine = [row for row in self.measurements.values() if row.direction is direction]
        for name in dict.fromkeys(case.name for case in self.cases if case.direction is direction):
            if measurements := sorted((row for row in mine if row.case == name), key=lambda row: row.nbytes):
                yield name, measurements

    # -- private -------------------------------------------------------------------------------------------------------

    def _fitting(self, sizes: Iterable[int]) -> list[int]:
        """The sizes that memory suffices for; a note names each of the rest."""
        fitting = []
        for nbytes in sorted(sizes):
            lacking = self._lacking(nbytes)
            if lacking:
                self.notes.append(f"{size_text(nbytes)}: left out, it takes {lacking}")
            else:
                fitting.append(nbytes)
        return fitting

    def _lacking(self, nbytes: int) -> str:
        """Return the memory that is too small for a size, in words; empty if none is."""
        for need, free, where in (
            (BenchArrays.ON_DEVICE * nbytes, self.device.memory_info().free, "on the device"),
            (BenchArrays.ON_HOST * nbytes, free_on_host(), "on the host"),
        ):
            if need > USABLE_SHARE * free:
                return f"{size_text(need)} {where}, where {size_text(free)} are free"
        return ""

    def _one_size(self, nbytes: int, seconds: float) -> None:
        fitting = [case for case in self.cases if nbytes <= case.max_bytes]
        for last in (False, True):
            chosen = [case for case in fitting if case.last is last]
            self._measure_in_turns(nbytes, chosen, time.perf_counter() + seconds * len(chosen) / len(fitting))
        gc.collect()  # automatic collection is off, and the next size needs the memory

    def _measure_in_turns(self, nbytes: int, cases: Sequence[BenchCase], until: float) -> None:
        """Run each case once, then all in turns until the time is up; the order rotates from turn to turn."""
        with BenchArrays(nbytes) as arrays:
            tasks: dict[BenchCase, tuple[CopyTask, int]] = {}
            longest = max(ALWAYS_ALLOWED_SECONDS, MAX_SHARE * (until - time.perf_counter()))
            for case in cases:
                expected = self._expected_seconds(case, nbytes)
                if expected > longest:
                    self.notes.append(
                        f"{case.direction} {case.name}, {size_text(nbytes)}: left out, it may take {expected:.1f} s"
                    )
                    continue
                with self._errors_noted(case, nbytes):
                    task = case.build(arrays)
                    once = self._measure_first(case, nbytes, task)
                    tasks[case] = task, max(1, min(MAX_REPEATS, int(MIN_TURN_SECONDS / max(once, 1e-9))))
                self.advance()
            for turn in range(MAX_ROUNDS):
                order = [*tasks]
                first = turn % max(1, len(order))
                for case in order[first:] + order[:first]:
                    if time.perf_counter() > until:
                        return
                    task, repeats = tasks.pop(case)
                    with self._errors_noted(case, nbytes):
                        self.measurements[case.direction, case.name, nbytes].record(
                            time_copy(task, repeats), repeats * task.repeats
                        )
                        tasks[case] = task, repeats

    def _expected_seconds(self, case: BenchCase, nbytes: int) -> float:
        """Seconds for one copy at the rate of the largest one measured so far; 0 where none was."""
        measurements = [
            row for row in self.measurements.values() if (row.direction, row.case) == case[:2] and row.nbytes <= nbytes
        ]
        if not measurements:
            return 0.0
        last = max(measurements, key=lambda row: row.nbytes)
        return last.seconds * nbytes / last.nbytes

    def _measure_first(self, case: BenchCase, nbytes: int, task: CopyTask) -> float:
        """Time the first run, which includes one-time setup, and record which transfer path it takes."""
        devmem.transfer_stats(reset=True)
        seconds = time_copy(task, 1)
        key = case.direction, case.name, nbytes
        row = self.measurements.setdefault(key, Measurement(case.direction, case.name, nbytes))
        row.record(seconds, task.repeats)
        row.path = ", ".join(path for path, told in devmem.transfer_stats().items() if told["copies"])
        return seconds * task.repeats

    @contextmanager
    def _errors_noted(self, case: BenchCase, nbytes: int) -> Iterator[None]:
        """Note an error of one case, so that the other cases go on; the loss of the device is raised."""
        try:
            yield
        except (devmem.DeviceLost, devmem.ClosedError, devmem.ForkedError):
            raise
        except (devmem.DevmemError, MemoryError) as error:
            self.failed |= not isinstance(error, devmem.UnsupportedError | MemoryError)
            self.notes.append(f"{case.direction} {case.name}, {size_text(nbytes)}: {error or 'out of memory'}")


def time_copy(task: CopyTask, repeats: int) -> float:
    """Seconds for moving the bytes once, as the mean over the repeats."""
    made = None
    start = time.perf_counter()
    for _ in range(repeats):
        made = task.run()
    seconds = time.perf_counter() - start
    del made
    return seconds / repeats / task.repeats


def free_on_host() -> int:
    """Bytes of host memory available without swapping, within the limit of the control group."""
    found = []
    with suppress(OSError, KeyError, ValueError):
        found.append(1024 * _numbers(Path("/proc/meminfo"))["MemAvailable:"])
    group = Path("/sys/fs/cgroup")
    with suppress(OSError, KeyError, ValueError):
        most, used = (int((group / f"memory.{name}").read_text(encoding="ascii")) for name in ("max", "current"))
        found.append(most - used + _numbers(group / "memory.stat")["inactive_file"])
    return max(0, min(found, default=ASSUMED_FREE_BYTES))


def _numbers(path: Path) -> dict[str, int]:
    """The numbers of a file in /proc or /sys by the names before them."""
    lines = (line.split() for line in path.read_text(encoding="ascii").splitlines())
    return {fields[0]: int(fields[1]) for fields in lines if len(fields) > 1}


@contextmanager
def _without_gc() -> Iterator[None]:
    """Switch the garbage collector off, as its runs would be timed too."""
    collecting = gc.isenabled()
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        if collecting:
            gc.enable()
