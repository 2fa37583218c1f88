"""The measurement behind `devmem bench`: everything takes turns, and the best of each counts."""

from __future__ import annotations

import gc
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

import devmem

from .bench_cases import LIMIT, PAGE_LOCKED, WAYS, Direction, GiB, KiB, MiB, Room, Task, Way
from .output import size

#: Powers of four, from a page to what moves for a while.
SIZES = tuple(4 * KiB << 2 * at for at in range(10))
QUICK_SIZES = (4 * KiB, 64 * KiB, MiB, 16 * MiB)
#: Seconds that a turn takes at least: small copies are made many times in one.
TURN = 0.001
MOST_USES, MOST_ROUNDS = 1000, 200
#: How many times as long a size is measured as the one before it.
GROWTH = 1.4
#: The part of a size's time that one copy may take alone, and the seconds that it may take in any case.
ALONE, BRIEF = 0.2, 0.5
#: What the limit is looked for with, before anything is compared with it.
LIMIT_SIZE = 64 * MiB
#: The part of what is free that may be taken; and how much is free on the host where nothing tells.
SHARE, UNKNOWN = 0.8, 4 * GiB


@dataclass
class Cell:
    """One way at one size."""

    direction: Direction
    way: str
    nbytes: int
    seconds: float = float("inf")
    repetitions: int = 0
    path: str = ""

    @property
    def gb_per_s(self) -> float:
        """10^9 bytes a second, in the best repetition."""
        return self.nbytes / self.seconds / 1e9

    def timed(self, seconds: float, uses: int) -> None:
        """Take note of one more turn."""
        self.seconds = min(self.seconds, seconds)
        self.repetitions += uses


@dataclass
class Bench:
    """All that is measured on one device; what there is of it is kept, however the measurement ends.

    Attributes
    ----------
    cells
        What was measured, by way and bytes.
    notes
        Why something was not.
    interrupted
        It was ended from the keyboard.
    failed
        Something went wrong that is not for want of memory, nor of a capability.
    bus
        The device's memory is another one than the host's: there is a limit to compare with.
    """

    device: devmem.Device
    advance: Callable[[], object] = lambda: None
    ways: Sequence[Way] = WAYS
    cells: dict[tuple[Direction, str, int], Cell] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    interrupted: bool = False
    failed: bool = False
    bus: bool = True

    def run(self, sizes: Sequence[int], seconds: float) -> None:
        """Measure all sizes, in about so many seconds: all once, but for what would take a good part of the time alone."""
        until = time.perf_counter() + seconds
        try:
            with self.device, _undisturbed():
                fitting = self._fitting(sizes)
                if fitting:
                    queued = [way for way in self.ways if way.name == LIMIT]
                    self._turns(min(LIMIT_SIZE, fitting[-1]), queued, time.perf_counter())
                for at, nbytes in enumerate(fitting):
                    left = max(0, until - time.perf_counter())
                    self._one_size(nbytes, left / sum(GROWTH**later for later in range(len(fitting) - at)))
        except KeyboardInterrupt:
            self.interrupted = True
            self.notes.append("interrupted: what had been measured by then is kept")
        except devmem.DevmemError as error:  # those of single ways do not get here: the device is gone
            self.failed = True
            self.notes.append(f"ended early: {error}")

    def limit(self, direction: Direction) -> float | None:
        """The most that page-locked memory reached in large copies, in GB/s: from 64 MiB on, or else the largest there were.

        None, if none was measured; and where there is no bus, as then page-locked memory is memory like any other.
        """
        if not self.bus:
            return None
        found = [cell for cell in self.cells.values() if cell.way in PAGE_LOCKED and cell.direction is direction]
        large = min(LIMIT_SIZE, max((cell.nbytes for cell in found), default=0))
        return max((cell.gb_per_s for cell in found if cell.nbytes >= large), default=None)

    def percent(self, cell: Cell) -> float | None:
        """How much of the limit a way reached."""
        limit = self.limit(cell.direction)
        return None if limit is None else 100 * cell.gb_per_s / limit

    def measured(self, direction: Direction) -> Iterator[tuple[str, list[Cell]]]:
        """Each way of a direction, with what was measured of it, in the order of sizes."""
        mine = [cell for cell in self.cells.values() if cell.direction is direction]
        for name in dict.fromkeys(way.name for way in self.ways if way.direction is direction):
            if cells := sorted((cell for cell in mine if cell.way == name), key=lambda cell: cell.nbytes):
                yield name, cells

    # -- below ---------------------------------------------------------------------------------------------------------

    def _fitting(self, sizes: Iterable[int]) -> list[int]:
        """The sizes that there is memory for; the others are named."""
        fitting = []
        for nbytes in sorted(sizes):
            lacking = self._lacking(nbytes)
            if lacking:
                self.notes.append(f"{size(nbytes)}: left out, it takes {lacking}")
            else:
                fitting.append(nbytes)
        return fitting

    def _lacking(self, nbytes: int) -> str:
        """What a size needs and does not find, in words."""
        for need, free, where in (
            (Room.ON_DEVICE * nbytes, self.device.memory_info().free, "on the device"),
            (Room.ON_HOST * nbytes, free_on_host(), "on the host"),
        ):
            if need > SHARE * free:
                return f"{size(need)} {where}, where {size(free)} are free"
        return ""

    def _one_size(self, nbytes: int, seconds: float) -> None:
        fitting = [way for way in self.ways if nbytes <= way.most]
        for apart in (False, True):
            chosen = [way for way in fitting if way.apart is apart]
            self._turns(nbytes, chosen, time.perf_counter() + seconds * len(chosen) / len(fitting))
        gc.collect()  # nobody else does meanwhile, and the next size needs the memory

    def _turns(self, nbytes: int, ways: Sequence[Way], until: float) -> None:
        """Once each, however long it takes; then in turns, in an order that changes, until the time is up."""
        with Room(nbytes) as room:
            tasks: dict[Way, tuple[Task, int]] = {}
            longest = max(BRIEF, ALONE * (until - time.perf_counter()))
            for way in ways:
                expected = self._expected(way, nbytes)
                if expected > longest:
                    self.notes.append(
                        f"{way.direction} {way.name}, {size(nbytes)}: left out, it may take {expected:.1f} s"
                    )
                    continue
                with self._told(way, nbytes):
                    task = way.build(room)
                    once = self._first(way, nbytes, task)
                    tasks[way] = task, max(1, min(MOST_USES, int(TURN / max(once, 1e-9))))
                self.advance()
            for turn in range(MOST_ROUNDS):
                order = [*tasks]
                first = turn % max(1, len(order))
                for way in order[first:] + order[:first]:
                    if time.perf_counter() > until:
                        return
                    task, uses = tasks.pop(way)
                    with self._told(way, nbytes):
                        self.cells[way.direction, way.name, nbytes].timed(timed(task, uses), uses * task.uses)
                        tasks[way] = task, uses

    def _expected(self, way: Way, nbytes: int) -> float:
        """Seconds that one copy takes if it is as fast as the largest one so far; 0 where none was measured."""
        cells = [
            cell for cell in self.cells.values() if (cell.direction, cell.way) == way[:2] and cell.nbytes <= nbytes
        ]
        if not cells:
            return 0.0
        last = max(cells, key=lambda cell: cell.nbytes)
        return last.seconds * nbytes / last.nbytes

    def _first(self, way: Way, nbytes: int, task: Task) -> float:
        """Time the first use, which makes what a way makes once, and see which path it takes."""
        devmem.transfer_stats(reset=True)
        seconds = timed(task, 1)
        key = way.direction, way.name, nbytes
        cell = self.cells.setdefault(key, Cell(way.direction, way.name, nbytes))
        cell.timed(seconds, task.uses)
        cell.path = ", ".join(path for path, told in devmem.transfer_stats().items() if told["copies"])
        return seconds * task.uses

    @contextmanager
    def _told(self, way: Way, nbytes: int) -> Iterator[None]:
        """What goes wrong with one way is noted, and the others go on; not so where the whole device is gone."""
        try:
            yield
        except (devmem.DeviceLost, devmem.ClosedError, devmem.ForkedError):
            raise
        except (devmem.DevmemError, MemoryError) as error:
            self.failed |= not isinstance(error, devmem.UnsupportedError | MemoryError)
            self.notes.append(f"{way.direction} {way.name}, {size(nbytes)}: {error or 'out of memory'}")


def timed(task: Task, uses: int) -> float:
    """Seconds for moving the bytes once."""
    made = None
    start = time.perf_counter()
    for _ in range(uses):
        made = task.run()
    seconds = time.perf_counter() - start
    del made
    return seconds / uses / task.uses


def free_on_host() -> int:
    """Bytes of the host's memory that can be taken without pushing anything out, as far as it can be found out."""
    found = []
    with suppress(OSError, KeyError, ValueError):
        found.append(1024 * _numbers(Path("/proc/meminfo"))["MemAvailable:"])
    group = Path("/sys/fs/cgroup")
    with suppress(OSError, KeyError, ValueError):
        most, used = (int((group / f"memory.{name}").read_text(encoding="ascii")) for name in ("max", "current"))
        found.append(most - used + _numbers(group / "memory.stat")["inactive_file"])
    return max(0, min(found, default=UNKNOWN))


def _numbers(path: Path) -> dict[str, int]:
    """The lines of a file of the kernel's: a name, a number, perhaps a unit."""
    lines = (line.split() for line in path.read_text(encoding="ascii").splitlines())
    return {fields[0]: int(fields[1]) for fields in lines if len(fields) > 1}


@contextmanager
def _undisturbed() -> Iterator[None]:
    """Without collections of cycles."""
    collecting = gc.isenabled()
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        if collecting:
            gc.enable()
