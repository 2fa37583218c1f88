"""Page locks, counted page by page for all devices of a backend, and ended with the last registration that needs them."""

# Decision: docs/adr/0002-page-locks-are-counted-per-backend.md
from __future__ import annotations

import mmap
import threading
import weakref
from bisect import bisect_left, bisect_right
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from typing import Any, TypeAlias

import numpy.typing as npt

from ...spi.driver import Driver, FullDriver
from ...spi.errors import ClosedError, DeviceLost, DevmemError, LayoutError
from ...spi.sizes import exact_size
from ...spi.types import Capability
from ...toolkit.deferred_errors import FirstError
from ...toolkit.locks import Rank, lock
from ..base.address import extent
from ..base.changes import Changes
from ..base.device_handle import CurrentDevice, DeviceHandle
from ..base.hot_state import LocksState
from ..base.interrupts import CannotWait, is_out
from ..ordering.completions import CompletionTracker

PAGE = mmap.PAGESIZE


class PageLockTable(LocksState):
    """The page-locked host memory of the devices of one backend, and how many registrations keep it locked.

    Drivers lock whole pages for the whole process, refuse pages that are locked already (or, on AMD, accept them and leak), and
    can only undo exactly what was registered. So devmem gives them disjoint runs of pages, and counts over all devices.
    The driver that locked a run unlocks it: one whose device is closed meanwhile is kept until it has (`close_later`).

    No lock of ours is held while a driver works. A run that a driver is busy with is marked; who wants its pages waits, and so
    does a copy that would touch them (`hold_page_locks`), as the driver waits for copies that do.

    Attributes
    ----------
    segments : list of Segment
        The locked runs, by address. Replaced and never changed, so that copies may look at it without a lock, and tell by its
        identity whether something was locked or unlocked in between.
    held : dict
        The registrations on each open device.
    closing : list
        Drivers of devices that were closed, which have something to unlock yet.
    """

    def __init__(self) -> None:
        self.segments: list[Segment] = []
        self._edges: list[int] = []
        self.held: dict[DeviceHandle, Held] = {}
        self._completions: dict[DeviceHandle, CompletionTracker] = {}
        #: Of each open device, the runs of `keep_locked`.
        self._kept: dict[DeviceHandle, list[weakref.ref[Run]]] = {}
        self.closing: list[Driver] = []
        #: Ranges of addresses that copies are touching, each with its thread, by a key of each copy's own.
        self._copies: dict[object, tuple[int, int, int]] = {}
        self._lock = lock("page locks", Rank.LEAF)
        self._changes = Changes(self._lock)

    def join(self, handle: DeviceHandle, completions: CompletionTracker) -> None:
        """Let an open device register memory; its running copies are waited for before pages are unlocked."""
        with self._lock:
            self.held[handle] = {}
            self._completions[handle] = completions

    def register(self, handle: DeviceHandle, array: npt.NDArray[Any]) -> Entry:
        """Lock an array's pages for a device, which is entered, or hold those that are; `end` undoes just this."""
        key, run = extent(array), Run()
        entry = array, run
        try:
            self.lock_together(handle, [array], run)
            with self._lock:
                held = self.held.get(handle)
                if held is None:
                    raise ClosedError(f"{handle.device} was closed while memory was registered on it")
                held.setdefault(key, []).append(entry)
            return entry
        except BaseException:
            self._forget_entry(handle, entry)
            with suppress(DevmemError):  # what comes first is told
                self.sweep(handle.driver)
            raise

    def keep_locked(self, handle: DeviceHandle, array: npt.NDArray[Any]) -> Run:
        """Hold an array's locked pages as long as the result lives and the device is open, also beyond `deregister`."""
        run = Run()
        with self._lock:
            kept = [each for each in self._kept.get(handle, ()) if each() is not None]
            self._kept[handle] = [*kept, weakref.ref(run)]
        self.lock_together(handle, [array], run)
        return run

    def lock_together(self, handle: DeviceHandle, arrays: Iterable[npt.NDArray[Any]], run: Run) -> None:
        """Let a run hold the pages of several arrays, so that those that share a page are not locked in pieces."""
        for start, end, those in _page_runs(arrays):
            self._cover(handle, start, end, those, run)

    def deregister(self, handle: DeviceHandle, *arrays: npt.NDArray[Any]) -> None:
        """Undo one registration of each on a device, which is entered, after the copies of any device that use the memory.

        Raises
        ------
        DevmemError
            An array is not registered, or the wait failed: nothing is touched. Or the driver complained when it let go.
        """
        self.check_held(handle, arrays)

        def last() -> Iterator[Entry]:
            self.check_held(handle, arrays)
            held = self.held[handle]
            yield from (held[extent(array)][-1] for array in arrays)

        self._undo(handle, last())

    def end(self, handle: DeviceHandle, entry: Entry) -> None:
        """Undo one registration as `deregister` does; nothing if that has happened."""
        self._undo(handle, iter((entry,)))

    def _undo(self, handle: DeviceHandle, entries: Iterator[Entry]) -> None:
        self._wait_for_copies_of_devices(handle.driver)
        try:
            with self._lock:
                for entry in entries:
                    self._forget_entry(handle, entry)
        finally:
            self.sweep(handle.driver)

    def _forget_entry(self, handle: DeviceHandle, entry: Entry) -> None:
        with self._lock:
            held, key = self.held.get(handle, {}), extent(entry[0])
            if key in held:
                held[key] = [each for each in held[key] if each is not entry]
                if not held[key]:
                    del held[key]
            entry[1].clear()

    def leave(self, handle: DeviceHandle, lost: bool) -> None:
        """End all that a device has registered. Called once, at its close: it is idle and entered, or ``lost``.

        What a lost device has locked ended with it, as far as can be known: nothing is undone, and the pages can be locked
        anew. It counts no more among the holders of pages that other devices locked.
        """
        with self._lock:
            held = self.held.pop(handle, {})
            self._completions.pop(handle, None)
            for run in [
                *(run for entries in held.values() for _, run in entries),
                *(run for kept in self._kept.pop(handle, ()) if (run := kept()) is not None),
            ]:
                run.clear()
            if lost:
                for each in self.segments:
                    if each.driver is handle.driver:
                        each._locked = False
                self._replace_segments(each for each in self.segments if each.driver is not handle.driver)
        self.sweep(None if lost else handle.driver)

    def sweep(self, entered: object) -> None:
        """Unlock what nothing holds any more, each run by the driver that locked it; ``entered`` needs not be entered for it.

        After the copies that touch them, on any device. If those cannot be waited for nothing is unlocked, and the next sweep
        tries again: so does the one after an interrupt, and after a handler's that found another thread copying.
        """
        if not self.segments and not self.closing:
            return
        ending, work = list[Segment](), Work()
        try:
            with self._lock:
                for segment in self.segments:
                    if not segment.busy and not segment.is_held():
                        segment.work = work
                        ending.append(segment)
            if ending:
                try:
                    self._wait_for_copies(ending)
                except CannotWait:
                    return
                self._wait_for_copies_of_devices(entered)
                with FirstError() as first:
                    for segment in ending:
                        if not segment.is_held():  # a signal's handler may have registered it
                            first.attempt(segment.unlock, entered)  # the others must still be unlocked
        finally:
            work.thread = 0
            if ending or self.closing or not all(each.busy or each.locked for each in self.segments):
                self._settle()

    def close_later(self, driver: Driver) -> bool:
        """Close the driver of a device that has left when the last run of pages that it locked is let go; False if none is."""
        with self._lock:
            if keeps := any(each.driver is driver for each in self.segments):
                self.closing.append(driver)
            return keeps

    def holds(self, handle: DeviceHandle, array: npt.NDArray[Any]) -> bool:
        """Whether the array is registered on a device."""
        return extent(array) in self.held.get(handle, {})

    def has(self, handle: DeviceHandle, entry: Entry) -> bool:
        """Whether one registration is still in force."""
        return any(each is entry for each in self.held.get(handle, {}).get(extent(entry[0]), ()))

    def check_held(self, handle: DeviceHandle, arrays: Iterable[npt.NDArray[Any]]) -> None:
        """Raise DevmemError unless every array is registered on a device, as often as it stands here."""
        held = self.held.get(handle, {})
        for (low, high), times in Counter(map(extent, arrays)).items():
            if len(held.get((low, high), ())) < times:
                raise DevmemError(
                    f"an array of {exact_size(high - low)} at {low:#x} is not registered on {handle.device}: "
                    f"deregister exactly what was given to register(), on the same device, once for each time"
                )

    def cuts(self, low: int, high: int) -> list[int]:
        """Return the addresses inside a range at which locked memory begins or ends."""
        edges = self._edges
        return edges[bisect_right(edges, low) : bisect_left(edges, high)]

    def covers(self, low: int, high: int) -> bool:
        """Whether all of a range of addresses is locked."""
        return _join(((each.start, each.end) for each in self._between(low, high)), low, high)

    def shares(self, low: int, high: int) -> bool:
        """Whether a range of addresses has bytes that no registration names, on pages that were locked for others."""
        return bool(self._between(low, high)) and not self.is_registered(low, high)

    def is_registered(self, low: int, high: int) -> bool:
        """Whether registrations, on any device, name all bytes of a range of addresses: whole pages are locked for them."""
        named = [key for held in list(self.held.values()) for key in list(held)]
        return _join(sorted(key for key in named if key[0] < high and key[1] > low), low, high)

    @contextmanager
    def hold_page_locks(self, low: int, high: int) -> Iterator[None]:
        """Within the block no other thread has pages of a range of addresses locked or unlocked.

        For copies: `cuts` stays true, and what they leave running can be waited for
        (`CompletionTracker.keep_until_complete`) before the block ends.

        Raises
        ------
        RuntimeError
            Another thread has the pages locked or unlocked, and this is a signal's handler or a finalizer, which cannot wait.
        """
        key = object()
        try:
            self._changes.wait_until(partial(self._begin_copy, key, low, high), _driver_at_work(low))
            yield
        finally:
            self._copies.pop(key, None)
            self._changes.tell()

    def device_pointer(self, handle: DeviceHandle, array: npt.NDArray[Any]) -> int:
        """A device's address of the lowest byte of an array that is registered on it; the device is entered.

        Raises
        ------
        LayoutError
            Its pages were locked in several runs: devices may see these at addresses apart from each other, and drivers refuse
            copies that lie in more than one.
        """
        low, high = extent(array)
        if high == low:
            return 0
        if len(self.held[handle][low, high][-1][1]) > 1:
            raise LayoutError(
                f"the array at {low:#x} lies on pages some of which were registered before, with it or with a neighbour that "
                f"shares them, and the device does not see them as one range with the others: map it first, map both in one "
                f"call, or use devmem.mapped_array(), which has pages of its own"
            )
        return handle.driver.device_pointer(low)

    def _begin_copy(self, key: object, low: int, high: int) -> bool:
        if self._is_driver_at_work(low, high, copies=True):
            return False
        self._copies[key] = low, high, threading.get_ident()
        return True

    # -- below ---------------------------------------------------------------------------------------------------------

    def _cover(self, handle: DeviceHandle, start: int, end: int, arrays: list[object], run: Run) -> None:
        """Let a run hold the segments that make up [start, end), after locking what is missing for some arrays."""
        fresh, work = list[Segment](), Work()
        try:
            mark = partial(self._mark, handle, start, end, arrays, run, fresh, work)
            self._changes.wait_until(mark, _driver_at_work(start))
            self._wait_for_copies(fresh)
            for segment in fresh:
                segment.lock(handle.has(Capability.MAPPED))
        finally:
            work.thread = 0
            self._settle()

    def _mark(
        self,
        handle: DeviceHandle,
        start: int,
        end: int,
        arrays: list[object],
        run: Run,
        fresh: list[Segment],
        work: Work,
    ) -> bool:
        """Enter the segments that make up [start, end), unless a driver works there; those to be locked are busy, and `fresh`."""
        if self._is_driver_at_work(start, end):
            return False
        covering, at = list[Segment](), start
        for segment in [*self._between(start, end), Segment(end, end, handle.driver, arrays)]:
            if segment.start > at:
                covering.append(Segment(at, segment.start, handle.driver, arrays))
            if segment.start < end:
                covering.append(segment)
            at = segment.end
        for segment in covering:
            if not segment.busy and not segment.locked:  # new, or its locking was interrupted
                segment.driver, segment.arrays, segment.work = handle.driver, arrays, work
                fresh.append(segment)
            segment.holders = [*filter(weakref.ref.__call__, segment.holders), weakref.ref(run)]
        run += covering
        if fresh:
            self._replace_segments({*self.segments, *fresh})
        return True

    def _settle(self) -> None:
        """Tell other threads that segments are locked, or unlocked; and close the drivers that nothing keeps any more.

        What is locked stays: to be used again, and to be unlocked when nothing holds it.
        """
        with self._lock:
            there = [each for each in self.segments if each.busy or each.locked]  # of a busy one it is not known yet
            if len(there) < len(self.segments):
                self._replace_segments(there)
            self._changes.tell()
            if not self.closing:
                return
            needed = {id(each.driver) for each in self.segments}
            done = [each for each in self.closing if id(each) not in needed]
            self.closing = [each for each in self.closing if id(each) in needed]
        with FirstError() as first:
            for driver in done:
                first.attempt(driver.close)

    def _is_driver_at_work(self, low: int, high: int, copies: bool = False) -> bool:
        """Whether another thread's driver locks or unlocks pages of a range; the lock is held.

        With ``copies`` not where a copy of this thread touches the pages, which the other thread waits for itself: a signal's
        handler, or a finalizer, may copy them too.
        """
        me = threading.get_ident()  # a finalizer run by the collector would wait for its own thread for ever
        return any(
            each.busy not in (0, me) and not (copies and me in self._copying(each)) for each in self._between(low, high)
        )

    def _wait_for_copies(self, segments: list[Segment]) -> None:
        """Wait for other threads' copies that touch these pages, to which new ones do not come any more: they are marked."""
        me = threading.get_ident()
        self._changes.wait_until(
            lambda: all(thread == me for each in segments for thread in self._copying(each)),
            "locking or unlocking host memory, which another thread copies,",
        )

    def _copying(self, segment: Segment) -> list[int]:
        """The threads whose copies touch a segment's pages."""
        return [
            thread for low, high, thread in list(self._copies.values()) if low < segment.end and high > segment.start
        ]

    def _wait_for_copies_of_devices(self, entered: object) -> None:
        """Wait for the copies in flight on every device of the backend: any driver may read locked memory.

        ``entered`` is the driver that needs not be entered for it.
        """
        for handle, completions in list(self._completions.items()):
            if handle.driver is entered:
                completions.wait_complete()
            elif completions.in_flight:
                # A lost device runs nothing any more, nor does one that was closed meanwhile.
                with suppress(DeviceLost, ClosedError), CurrentDevice(handle):
                    completions.wait_complete()

    def _between(self, start: int, end: int) -> list[Segment]:
        return [each for each in self.segments if each.start < end and each.end > start]

    def _replace_segments(self, segments: Iterable[Segment]) -> None:
        shown = sorted(segments, key=lambda each: each.start)
        edges = sorted({edge for each in shown for edge in (each.start, each.end)})
        self.segments, self._edges = shown, edges


def _driver_at_work(low: int) -> str:
    return f"host memory at {low:#x}, which another thread has locked or unlocked,"


def _join(ranges: Iterable[tuple[int, int]], low: int, high: int) -> bool:
    """Whether ranges of addresses, sorted, leave no gap between two addresses."""
    for start, end in ranges:
        if start > low:
            return False
        low = max(low, end)
    return low >= high


class Run(list["Segment"]):
    """The segments of a registration, which stay locked until it is cleared, or nothing refers to it any more."""

    __slots__ = ("__weakref__",)


class Work:
    """One thread's locking or unlocking of segments. All of them are free for other threads again when ``thread`` is 0."""

    __slots__ = ("thread",)

    def __init__(self) -> None:
        self.thread = threading.get_ident()


class Segment:
    """A run of pages that a driver has locked."""

    __slots__ = ("_locked", "arrays", "driver", "end", "holders", "start", "work")

    def __init__(self, start: int, end: int, driver: FullDriver, arrays: list[object]) -> None:
        self.start = start
        self.end = end
        #: The arrays that it was locked for. Its pages are theirs, and must not be reused while they are locked,
        #: also when only a registration of another array keeps them locked by then.
        self.arrays = arrays
        #: Who locks it and will unlock it; not the handle's own, which may be replaced by then.
        self.driver = driver
        #: The runs that it is, or was, in.
        self.holders: list[weakref.ref[Run]] = []
        #: What locks or unlocks it, or did last.
        self.work: Work | None = None
        self._locked: bool | None = False

    @property
    def busy(self) -> int:
        """The thread whose driver locks or unlocks it just now, or 0."""
        return 0 if self.work is None else self.work.thread

    @property
    def locked(self) -> bool:
        """Whether the driver has the pages locked; it is asked where an interrupt came while it locked or unlocked them."""
        if self._locked is None:
            self._locked = is_out(self.driver, self.start)
        return self._locked

    def is_held(self) -> bool:
        """Whether a registration needs it."""
        return any(self in (each() or ()) for each in self.holders)

    def lock(self, mapped: bool) -> None:
        """Lock the pages; the driver is entered. What is only copied from now may be mapped later, by any device."""
        self._locked = None
        try:
            self.driver.host_register(self.start, self.end - self.start, mapped)
            self._locked = True
        except DevmemError:  # it refused; behind anything else, a handler's exception say, it is asked
            self._locked = False
            raise

    def unlock(self, entered: object) -> None:
        """Unlock the pages, if they are; ``entered`` is the driver that needs not be entered for it."""
        if not self.locked:
            return
        if self.driver is entered:
            self._unlock()
            return
        try:
            token = self.driver.enter()
        except DeviceLost:
            self._locked = False  # its locks went with it, and the caller that used the device has been told
            return
        try:
            self._unlock()
        finally:
            if token is not None:
                self.driver.exit(token)

    def _unlock(self) -> None:
        self._locked = None
        try:
            self.driver.host_unregister(self.start, self.end - self.start)
            self._locked = False
        except DevmemError:  # the driver complains: it has let go by then
            self._locked = False
            raise


#: One registration of an array, and its pages.
Entry: TypeAlias = "tuple[npt.NDArray[Any], Run]"
#: What is registered on one device, by (lowest address, end).
Held: TypeAlias = dict[tuple[int, int], list[Entry]]

_tables: dict[str, PageLockTable] = {}


def page_locks_of(backend: str) -> PageLockTable:
    """The page-lock table of a backend."""
    return _tables.setdefault(backend, PageLockTable())


def forget_after_fork() -> None:
    """In the child of a fork: what is locked is the parent's."""
    _tables.clear()


def _page_runs(arrays: Iterable[npt.NDArray[Any]]) -> list[tuple[int, int, list[object]]]:
    """The pages of some arrays as disjoint runs (start, end, arrays there); arrays that share a page share a run.

    Runs that only touch stay apart: one may be mapped read-only, and the other not.
    """
    runs: list[tuple[int, int, list[object]]] = []
    for (low, high), array in sorted(((extent(each), each) for each in arrays), key=lambda pair: pair[0]):
        start, end = low // PAGE * PAGE, -(-high // PAGE) * PAGE
        if high == low:
            continue
        if runs and start < runs[-1][1]:
            runs[-1] = runs[-1][0], max(end, runs[-1][1]), [*runs[-1][2], array]
        else:
            runs.append((start, end, [array]))
    return runs
