"""What is page-locked: counted, page by page, for all devices of a backend, and undone on time."""

# Decision: docs/adr/0002-page-locks-are-counted-per-backend.md
from __future__ import annotations

import mmap
import threading
from bisect import bisect_left, bisect_right
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from typing import Any, TypeAlias

import numpy.typing as npt

from ...spi.driver import Driver, FullDriver
from ...spi.errors import ClosedError, DeviceLost, DevmemError, LayoutError
from ...spi.types import Capability
from ...toolkit.deferred_errors import FirstError
from ..base.address import extent
from ..base.device_handle import CurrentDevice, DeviceHandle
from ..ordering.completions import CompletionTracker

PAGE = mmap.PAGESIZE


class PageLockTable:
    """What is page-locked for the devices of one backend, and which device's registrations lean on it.

    Drivers lock whole pages for the whole process, refuse pages that are locked already (or, on AMD, accept them and leak), and
    can only undo exactly what was registered. So devmem gives them disjoint runs of pages, and counts over all devices.
    The driver that locked a run unlocks it: one whose device is closed meanwhile is kept until it has (`close_driver`).

    No lock of ours is held while a driver works. A run that a driver is busy with is marked; who wants its pages waits, and so
    does a copy that would touch them (`steady`), as the driver waits for copies that do.

    Attributes
    ----------
    segments : list of Segment
        What is locked, by address. Replaced and never changed, so that copies may look at it without a lock, and tell by its
        identity whether something was locked or unlocked in between.
    held : dict
        Of each open device, what is registered on it.
    closing : list
        Drivers of devices that were closed, which have something to unlock yet.
    """

    def __init__(self) -> None:
        self.segments: list[Segment] = []
        self._edges: list[int] = []
        self.held: dict[DeviceHandle, Held] = {}
        self._completions: dict[DeviceHandle, CompletionTracker] = {}
        self.closing: list[Driver] = []
        #: Ranges of addresses that copies are touching, each with its thread.
        self._copies: list[tuple[int, int, int]] = []
        self._changed = threading.Condition()

    def join(self, handle: DeviceHandle, completions: CompletionTracker) -> None:
        """Let an open device register memory; its running copies are waited for before pages are unlocked."""
        with self._changed:
            self.held[handle] = {}
            self._completions[handle] = completions

    def register(self, handle: DeviceHandle, array: npt.NDArray[Any]) -> None:
        """Lock an array's pages for a device, which is entered, or count once more those that are."""
        low, high = extent(array)
        segments = [each for run in _page_runs([array]) for each in self._cover(handle, *run)]
        with self._changed:
            held = self.held.get(handle)
            if held is not None:
                held.setdefault((low, high), []).append((array, segments))
                return
        self._let_go(segments, handle.driver)
        raise ClosedError(f"{handle.device} was closed while memory was registered on it")

    @contextmanager
    def together(self, handle: DeviceHandle, arrays: Iterable[npt.NDArray[Any]]) -> Iterator[None]:
        """Lock the pages of several arrays at once, so that those that share a page are not registered in pieces.

        Within the block the pages stay locked; after it those do that an array was registered in.
        """
        locked: list[Segment] = []
        try:
            for run in _page_runs(arrays):
                locked += self._cover(handle, *run)
            yield
        finally:
            self._let_go(locked, handle.driver)

    def deregister(self, handle: DeviceHandle, *arrays: npt.NDArray[Any]) -> None:
        """Undo one registration of each on a device, which is entered, after the copies of any device that use the memory.

        Raises
        ------
        DevmemError
            An array is not registered, or the wait failed: nothing is touched. Or the driver complained when it let go.
        """
        self.check_held(handle, arrays)
        self._wait_for_copies_of_devices(handle.driver)
        segments: list[Segment] = []
        with self._changed:
            self.check_held(handle, arrays)
            held = self.held[handle]
            for key in map(extent, arrays):
                segments += held[key].pop()[1]
                if not held[key]:
                    del held[key]
        self._let_go(segments, handle.driver)

    def leave(self, handle: DeviceHandle, lost: bool) -> None:
        """End all that a device has registered. Called once, at its close: it is idle and entered, or ``lost``.

        What a lost device has locked ended with it, as far as anybody can tell: nothing is undone, and the pages can be locked
        anew. What it counted on others is let go.
        """
        with self._changed:
            held = self.held.pop(handle, {})
            self._completions.pop(handle, None)
            segments = [each for entries in held.values() for _, run in entries for each in run]
            for each in [each for each in self.segments if each.driver is handle.driver]:
                if lost:
                    each.locked = False
                elif not each.count and not each.busy:  # could not be unlocked before: once more
                    each.count = 1
                    segments.append(each)
            if lost:
                self._show(each for each in self.segments if each.driver is not handle.driver)
        self._let_go(segments, None if lost else handle.driver)

    def close_driver(self, driver: Driver) -> None:
        """Close the driver of a device that has left: now, or when the last run of pages that it locked is let go."""
        with self._changed:
            if any(each.driver is driver for each in self.segments):
                self.closing.append(driver)
                return
        driver.close()

    def holds(self, handle: DeviceHandle, array: npt.NDArray[Any]) -> bool:
        """Whether the array is registered on a device."""
        return extent(array) in self.held.get(handle, {})

    def check_held(self, handle: DeviceHandle, arrays: Iterable[npt.NDArray[Any]]) -> None:
        """Raise DevmemError unless every array is registered on a device, as often as it stands here."""
        held = self.held.get(handle, {})
        for (low, high), times in Counter(map(extent, arrays)).items():
            if len(held.get((low, high), ())) < times:
                raise DevmemError(
                    f"an array of {high - low} bytes at {low:#x} is not registered on {handle.device}: "
                    f"deregister exactly what was given to register(), on the same device, once for each time"
                )

    def cuts(self, low: int, high: int) -> list[int]:
        """Where, inside a range of addresses, locked memory begins or ends."""
        edges = self._edges
        return edges[bisect_right(edges, low) : bisect_left(edges, high)]

    def covers(self, low: int, high: int) -> bool:
        """Whether all of a range of addresses is locked."""
        for segment in self._between(low, high):
            if segment.start > low:
                return False
            low = segment.end
        return low >= high

    @contextmanager
    def steady(self, low: int, high: int) -> Iterator[None]:
        """Within the block no other thread has pages of a range of addresses locked or unlocked.

        For copies: `cuts` stays true, and what they leave running can be waited for
        (`CompletionTracker.keep_until_complete`) before the block ends.
        """
        copy = low, high, threading.get_ident()
        with self._changed:
            self._wait_for_drivers(low, high)
            self._copies.append(copy)
        try:
            yield
        finally:
            with self._changed:
                self._copies.remove(copy)
                self._changed.notify_all()

    def device_pointer(self, handle: DeviceHandle, array: npt.NDArray[Any]) -> int:
        """A device's address of the lowest byte of an array that is registered on it; the device is entered."""
        low, high = extent(array)
        if high == low:
            return 0
        segments = self.held[handle][low, high][-1][1]
        driver = handle.driver
        pointer: int = driver.device_pointer(low)
        for segment in segments[1:]:
            if driver.device_pointer(segment.start) - pointer != segment.start - low:
                raise LayoutError(
                    f"the array at {low:#x} lies on pages some of which were registered before, with it or with a neighbour that "
                    f"shares them, and the device does not see them as one range with the others: map it first, or use "
                    f"devmem.mapped_array(), which has pages of its own"
                )
        return pointer

    # -- below ---------------------------------------------------------------------------------------------------------

    def _cover(self, handle: DeviceHandle, start: int, end: int, arrays: list[object]) -> list[Segment]:
        """The segments that make up [start, end), each counted once more, after locking what is missing for some arrays."""
        covering, fresh, at = [], [], start
        with self._changed:
            self._wait_for_drivers(start, end)
            for segment in self._between(start, end):
                if segment.start > at:
                    fresh.append(Segment(at, segment.start, handle.driver, arrays))
                    covering.append(fresh[-1])
                covering.append(segment)
                at = segment.end
            if at < end:
                fresh.append(Segment(at, end, handle.driver, arrays))
                covering.append(fresh[-1])
            for segment in covering:
                segment.count += 1
            self._show([*self.segments, *fresh])
        try:
            self._wait_for_copies(fresh)
            for segment in fresh:
                segment.lock(handle.has(Capability.MAPPED))
        except BaseException:
            with suppress(DevmemError):  # what comes first is told
                self._let_go(covering, handle.driver)
            raise
        with self._changed:
            for segment in fresh:
                segment.busy = 0
            self._changed.notify_all()
        return covering

    def _let_go(self, segments: Iterable[Segment], entered: object) -> None:
        """Count each down; those without a registration are unlocked by the driver that locked them.

        After the copies that touch them, on any device. If those cannot be waited for nothing is unlocked.
        """
        with self._changed:
            ending = []
            for segment in segments:
                segment.count -= 1
                if not segment.count:
                    segment.busy = threading.get_ident()
                    ending.append(segment)
        if not ending:
            return
        with FirstError() as first:
            try:
                self._wait_for_copies(ending)
                self._wait_for_copies_of_devices(entered)
            except BaseException as error:  # no thread may be left waiting for what is marked
                first.put(error)
            for segment in ending if first.error is None else ():
                try:
                    segment.unlock(entered)
                except BaseException as error:  # the others must still be let go
                    first.put(error)
            for driver in self._forget(ending):
                try:
                    driver.close()
                except DevmemError as error:  # of a device that is not used any more
                    first.put(error)

    def _forget(self, ending: list[Segment]) -> list[Any]:
        """Take out what was unlocked. The drivers that nothing keeps from closing any more.

        What is locked still, because its driver could not be entered or copies not be waited for, stays: to be used again, and
        asked for again.
        """
        with self._changed:
            self._show([each for each in self.segments if each not in ending or each.locked])
            for segment in ending:
                segment.busy = 0
            self._changed.notify_all()
            needed = [each.driver for each in self.segments]
            done = [each for each in self.closing if each not in needed]
            self.closing = [each for each in self.closing if each in needed]
            return done

    def _wait_for_drivers(self, low: int, high: int) -> None:
        """Wait until no other thread's driver locks or unlocks pages of a range; the lock is held, and let go of meanwhile."""
        me = threading.get_ident()  # a finalizer run by the collector would wait for its own thread for ever
        while any(each.busy not in (0, me) for each in self._between(low, high)):
            self._changed.wait()

    def _wait_for_copies(self, segments: list[Segment]) -> None:
        """Wait for other threads' copies that touch these pages, to which new ones do not come any more: they are marked."""
        me = threading.get_ident()
        with self._changed:
            while any(
                low < each.end and high > each.start and thread != me
                for low, high, thread in self._copies
                for each in segments
            ):
                self._changed.wait()

    def _wait_for_copies_of_devices(self, entered: object) -> None:
        """Wait for the copies in flight on every device of the backend: any driver may read locked memory.

        ``entered`` is the driver that needs not be entered for it.
        """
        for handle, completions in list(self._completions.items()):
            if handle.driver is entered:
                completions.wait_complete()
            elif completions.busy:
                # A lost device runs nothing any more, nor does one that was closed meanwhile.
                with suppress(DeviceLost, ClosedError), CurrentDevice(handle):
                    completions.wait_complete()

    def _between(self, start: int, end: int) -> list[Segment]:
        return [each for each in self.segments if each.start < end and each.end > start]

    def _show(self, segments: Iterable[Segment]) -> None:
        self.segments = sorted(segments, key=lambda each: each.start)
        self._edges = sorted({edge for each in self.segments for edge in (each.start, each.end)})


class Segment:
    """A run of pages that a driver has locked, and how many registrations lean on it."""

    __slots__ = ("arrays", "busy", "count", "driver", "end", "locked", "start")

    def __init__(self, start: int, end: int, driver: FullDriver, arrays: list[object]) -> None:
        self.start = start
        self.end = end
        #: The arrays that it was locked for. Its pages are theirs, and must not be reused while they are locked,
        #: also when only another array leans on it by then.
        self.arrays = arrays
        #: Who locks it and will unlock it; not the handle's own, which may be replaced by then.
        self.driver = driver
        self.count = 0
        #: The thread whose driver locks or unlocks it just now, or 0.
        self.busy = threading.get_ident()
        self.locked = False

    def lock(self, mapped: bool) -> None:
        """Lock the pages; the driver is entered. What is only copied from now may be mapped later, by any device."""
        self.driver.host_register(self.start, self.end - self.start, mapped)
        self.locked = True

    def unlock(self, entered: object) -> None:
        """Unlock the pages, if they are; ``entered`` is the driver that needs not be entered for it."""
        if not self.locked:
            return
        if self.driver is entered:
            self.locked = False  # also if it complains: it has let go by then
            self.driver.host_unregister(self.start, self.end - self.start)
            return
        try:
            token = self.driver.enter()
        except DeviceLost:
            self.locked = False  # its locks went with it, and the caller that used the device has been told
            return
        self.locked = False
        try:
            self.driver.host_unregister(self.start, self.end - self.start)
        finally:
            if token is not None:
                self.driver.exit(token)


#: What is registered on one device: (lowest address, end) -> each registration's array and pages.
Held: TypeAlias = dict[tuple[int, int], list[tuple[object, list[Segment]]]]

_tables: dict[str, PageLockTable] = {}


def page_locks_of(backend: str) -> PageLockTable:
    """The one registry of a backend."""
    return _tables.setdefault(backend, PageLockTable())


def forget_after_fork() -> None:
    """In the child of a fork: what is locked is the parent's."""
    _tables.clear()


def _page_runs(arrays: Iterable[npt.NDArray[Any]]) -> list[tuple[int, int, list[object]]]:
    """The pages of some arrays as disjoint runs (start, end, arrays there), joined where they touch."""
    runs: list[tuple[int, int, list[object]]] = []
    for (low, high), array in sorted(((extent(each), each) for each in arrays), key=lambda pair: pair[0]):
        start, end = low // PAGE * PAGE, -(-high // PAGE) * PAGE
        if high == low:
            continue
        if runs and start <= runs[-1][1]:
            runs[-1] = runs[-1][0], max(end, runs[-1][1]), [*runs[-1][2], array]
        else:
            runs.append((start, end, [array]))
    return runs
