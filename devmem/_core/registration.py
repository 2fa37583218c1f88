"""Page-locking memory that the user allocated: counted, page by page, and undone on time."""

from __future__ import annotations

import mmap
import threading
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import numpy.typing as npt

from ..spi.errors import ClosedError, DevmemError, LayoutError
from ..spi.types import Capability
from .entered import Entered
from .layout import extent

if TYPE_CHECKING:
    from types import TracebackType

    from .context import Context

PAGE = mmap.PAGESIZE


class Segment:
    """A run of pages that the driver has locked, and how many registrations lean on it."""

    __slots__ = ("count", "end", "mapped", "start")

    def __init__(self, start: int, end: int, mapped: bool) -> None:
        self.start = start
        self.end = end
        self.mapped = mapped
        self.count = 0


class Registry:
    """What is registered on one device.

    Drivers lock whole pages, refuse pages that are locked already (or, on AMD, accept them and leak), and can only undo exactly
    what was registered. So devmem gives them disjoint runs of pages, and counts.
    """

    def __init__(self, context: Context) -> None:
        self.context = context
        self.segments: list[Segment] = []
        self.held: dict[tuple[int, int], list[tuple[object, list[Segment]]]] = {}
        self.lock = threading.RLock()

    def register(self, array: npt.NDArray[Any], mapped: bool = False) -> None:
        """Lock an array's pages, or count once more those that are."""
        low, high = extent(array)
        with self.lock:
            segments = self._cover(low // PAGE * PAGE, -(-high // PAGE) * PAGE, mapped) if high > low else []
            for segment in segments:
                segment.count += 1
            # The array is held so that its memory cannot go away while the driver has it locked.
            self.held.setdefault((low, high), []).append((array, segments))

    @contextmanager
    def together(self, arrays: Iterable[npt.NDArray[Any]], mapped: bool) -> Iterator[None]:
        """Lock the pages of several arrays at once, so that those that share a page are not registered in pieces.

        Within the block the pages stay locked; after it those do that an array was registered in.
        """
        held: list[Segment] = []
        try:
            for start, end in _page_runs(arrays):
                with self.lock:
                    segments = self._cover(start, end, mapped)
                    for segment in segments:
                        segment.count += 1
                held += segments
            yield
        finally:
            with self.lock:
                self._let_go(held)

    def deregister(self, *arrays: npt.NDArray[Any]) -> None:
        """Undo one registration of each, after the copies that use the memory.

        Raises
        ------
        DevmemError
            An array is not registered, or the wait failed: nothing is touched. Or the driver complained when it let go.
        """
        self.check_held(arrays)
        self.context.reclaim.settle()
        with self.lock:
            self.check_held(arrays)
            segments: list[Segment] = []
            for key in map(extent, arrays):
                segments += self.held[key].pop()[1]
                if not self.held[key]:
                    del self.held[key]
            self._let_go(segments)

    def holds(self, array: npt.NDArray[Any]) -> bool:
        """Whether the array is registered."""
        return extent(array) in self.held

    def cuts(self, low: int, high: int) -> list[int]:
        """Where, inside a range of addresses, locked memory begins or ends."""
        if not self.segments:
            return []
        return sorted({edge for each in self.segments for edge in (each.start, each.end) if low < edge < high})

    def check_held(self, arrays: Iterable[npt.NDArray[Any]]) -> None:
        """Raise DevmemError unless every array is registered, as often as it stands here."""
        wanted = Counter(map(extent, arrays))
        with self.lock:
            for (low, high), times in wanted.items():
                if len(self.held.get((low, high), ())) < times:
                    raise DevmemError(
                        f"an array of {high - low} bytes at {low:#x} is not registered on {self.context.device}: "
                        f"deregister exactly what was given to register(), once for each time"
                    )

    def device_pointer(self, array: npt.NDArray[Any]) -> int:
        """The device's address of the lowest byte of a registered array."""
        low, high = extent(array)
        if high == low:
            return 0
        segments = self.held[low, high][-1][1]
        driver = self.context.driver
        pointer: int = driver.device_pointer(low)
        for segment in segments[1:]:
            if driver.device_pointer(segment.start) - pointer != segment.start - low:
                raise LayoutError(
                    f"the array at {low:#x} spans memory that was registered in pieces, which the device does not see as one "
                    f"range: deregister the pieces first"
                )
        return pointer

    def clear(self) -> None:
        """Undo everything; the device is idle and entered. Called once, at its close."""
        with self.lock:
            segments, self.segments = self.segments, []
            self.held.clear()
        problem: DevmemError | None = None
        for segment in segments:
            try:
                self.context.driver.host_unregister(segment.start, segment.end - segment.start)
            except DevmemError as error:  # the others must still be let go
                problem = problem or error
        if problem is not None:
            raise problem

    def _cover(self, start: int, end: int, mapped: bool) -> list[Segment]:
        """The segments that make up [start, end), after locking what is missing."""
        covering, fresh = [], []
        at = start
        try:
            for segment in [s for s in self.segments if s.start < end and s.end > start]:
                if segment.start > at:
                    fresh.append(self._lock_pages(at, segment.start, mapped))
                    covering.append(fresh[-1])
                covering.append(segment)
                at = segment.end
            if at < end:
                fresh.append(self._lock_pages(at, end, mapped))
                covering.append(fresh[-1])
        except BaseException:
            for segment in fresh:
                segment.count = 1
            self._let_go(fresh)
            raise
        return covering

    def _lock_pages(self, start: int, end: int, mapped: bool) -> Segment:
        self.context.driver.host_register(start, end - start, mapped)
        segment = Segment(start, end, mapped)
        self.segments.append(segment)
        self.segments.sort(key=lambda each: each.start)
        return segment

    def _let_go(self, segments: list[Segment]) -> None:
        problem: DevmemError | None = None
        for segment in segments:
            segment.count -= 1
            if segment.count == 0:
                self.segments.remove(segment)
                try:
                    self.context.driver.host_unregister(segment.start, segment.end - segment.start)
                except DevmemError as error:  # the others must still be let go
                    problem = problem or error
        if problem is not None:
            raise problem


def _page_runs(arrays: Iterable[npt.NDArray[Any]]) -> list[tuple[int, int]]:
    """The pages of some arrays as disjoint runs (start, end), joined where they touch."""
    runs: list[tuple[int, int]] = []
    for low, high in sorted(map(extent, arrays)):
        start, end = low // PAGE * PAGE, -(-high // PAGE) * PAGE
        if high == low:
            continue
        if runs and start <= runs[-1][1]:
            runs[-1] = runs[-1][0], max(end, runs[-1][1])
        else:
            runs.append((start, end))
    return runs


class Registration:
    """Arrays that are registered until the end of a ``with`` block, or until ``deregister``."""

    __slots__ = ("arrays", "closed", "context")

    def __init__(self, context: Context, arrays: tuple[npt.NDArray[Any], ...], mapped: bool = False) -> None:
        context.require(Capability.HOST_REGISTER, "page-lock memory", "copy without registering, or use pinned_array()")
        self.context = context
        self.arrays: list[npt.NDArray[Any]] = []
        self.closed = False
        try:
            with Entered(context), context.registry.together(arrays, mapped):
                for array in arrays:
                    context.registry.register(array, mapped)
                    self.arrays.append(array)
        except BaseException:  # also when leaving the device fails: nobody would have a handle to close
            self.close()
            raise

    def __enter__(self) -> Registration:
        if self.closed:
            raise ClosedError(
                "these arrays are not registered any more: call register() or pinned() again for each block"
            )
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    def close(self) -> None:
        """Deregister what is still registered, each array after the copies that use it. A second call does nothing."""
        self.closed = True
        if self.arrays and self.context.dead is None:
            with Entered(self.context):
                self._undo()

    def _undo(self) -> None:
        problem: DevmemError | None = None
        for array in self.arrays[::-1]:
            try:
                self.context.registry.deregister(array)
            except DevmemError as error:  # the others must still be let go
                problem = problem or error
        # Where only the wait failed, an array is still registered, and closing can be tried again.
        self.arrays = [array for array in self.arrays if problem is not None and self.context.registry.holds(array)]
        if problem is not None:
            raise problem
