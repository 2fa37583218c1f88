"""A stand-in for the driver of a recorded stream: it enqueues nothing, and writes down what a graph is to do.

A stream has a `Recorder` from the beginning of ``with capture(stream)`` to its end. The core gives it the calls that it would
give to the driver. Nothing of the vendor's is in capture mode meanwhile, so no other call of the process is in its way: memory
is allocated, kernels are compiled, and other streams and other libraries work as ever. What cannot be recorded is refused
before anything is written down.
"""

# Decision: docs/adr/0017-plans-are-recorded-above-the-driver.md
from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NoReturn

from ...spi.driver import FullDriver, GraphCall
from ...spi.errors import UnsupportedError
from ...spi.types import Box, CopyKind
from ..base.hot_state import EventState

#: Given a driver, a stream, and how far the destination and the source have moved since: enqueues one piece of work.
Call = Callable[[FullDriver, int, int, int], object]


class Side:
    """One side of a recorded copy: where it was at first, where it is now, and what keeps it alive."""

    __slots__ = ("address", "first", "keep", "view")

    def __init__(self, view: Any, first: int, address: int, keep: tuple[Any, ...] = ()) -> None:
        self.view = view  #: the array or view that it has now: an ndarray for the host's side
        self.first = first  #: the address that was recorded
        self.address = address  #: the address that it has now
        self.keep = keep


class RecordedCopy:
    """A copy, whose sides can be replaced by others of the same layout."""

    __slots__ = ("dst", "kind", "src")

    def __init__(self, kind: CopyKind, dst: Side, src: Side) -> None:
        self.kind = kind
        self.dst = dst
        self.src = src


class Recorder:
    """The work that was given to one stream since its recording began.

    Attributes
    ----------
    steps : list
        The calls in their order, each with the copy that it is a part of, or None.
    copies : list of RecordedCopy
        The copies between arrays, in their order.
    events : list
        What is recorded, or waited for, whenever the work runs.
    uses : dict
        The allocations that the work uses, but for those of ``heap``, by id.
    kept : list
        What else has to live as long as the work may run.
    heap : Heap
        Where memory for the stream comes from meanwhile; typed as an object, as heaps are in a later room.
    page_locked : callable
        Makes a page-locked array of so many bytes, which is kept.
    """

    def __init__(self, heap: Any, page_locked: Callable[[int], Any]) -> None:
        self.heap = heap
        self.page_locked = page_locked
        self.steps: list[tuple[Call, RecordedCopy | None]] = []
        self.copies: list[RecordedCopy] = []
        self.events: list[EventState] = []
        self.uses: dict[int, Any] = {}
        self.kept: list[object] = []
        self._pending: list[Any] = []
        self._copy: RecordedCopy | None = None
        self._may_read_host = False

    def calls(self) -> list[GraphCall]:
        """The calls for a graph, with each copy's sides as they are now."""
        return [_bound(call, copy) for call, copy in self.steps]

    def use(self, allocation: Any) -> None:
        """Take note that the work that comes next uses an allocation."""
        if allocation.heap is not self.heap:
            self._pending.append(allocation)

    @contextmanager
    def copying(self, copy: RecordedCopy) -> Iterator[None]:
        """Record a block of work as the parts of one copy; all of them, or none."""
        began, pending = len(self.steps), self._pending
        self._pending, self._copy = [], copy
        try:
            yield
        except BaseException:
            del self.steps[began:]
            raise
        finally:
            self._copy = None
        for side in (copy.dst, copy.src):
            side.keep += tuple(each for each in pending if each.ptr <= side.address < each.ptr + each.nbytes)
        self.copies.append(copy)

    @contextmanager
    def reading(self, host: object) -> Iterator[None]:
        """In this block page-locked memory, which is kept, is read beside the copies of arrays."""
        self.kept.append(host)
        self._may_read_host = True
        try:
            yield
        finally:
            self._may_read_host = False

    # -- as a driver ---------------------------------------------------------------------------------------------------

    def copy(self, dst: int, src: int, nbytes: int, kind: CopyKind, stream: int, *, blocking: bool) -> bool:
        """Record a copy."""
        self._check_copy(kind, blocking)
        self._add(lambda driver, on, to, at: driver.copy(dst + to, src + at, nbytes, kind, on, blocking=False))
        return kind is not CopyKind.D2D

    def copy_strided(self, box: Box, kind: CopyKind, stream: int, *, blocking: bool) -> bool:
        """Record a copy of rows and slices."""
        self._check_copy(kind, blocking)

        def call(driver: FullDriver, on: int, to: int, at: int) -> bool:
            moved = box._replace(dst=box.dst + to, src=box.src + at)
            return driver.copy_strided(moved, kind, on, blocking=False)

        self._add(call)
        return kind is not CopyKind.D2D

    def fill(self, dst: int, value: int, width: int, count: int, stream: int) -> None:
        """Record a fill."""
        self._add(lambda driver, on, to, at: driver.fill(dst, value, width, count, on))

    def launch(self, launch: Callable[[int], object]) -> None:
        """Record a launch, which ``launch(stream)`` makes; it keeps the arguments."""
        self._add(lambda driver, on, to, at: launch(on))

    def record_event(self, event: EventState) -> None:
        """Record that an event is recorded here."""
        handle = event.handle
        self._add(lambda driver, on, to, at: driver.graph_record_event(handle, on))
        self.events.append(event)

    def wait_event(self, event: EventState) -> None:
        """Record that what comes next waits for an event."""
        handle = event.handle
        self._add(lambda driver, on, to, at: driver.graph_wait_event(on, handle))
        self.events.append(event)

    def _check_copy(self, kind: CopyKind, blocking: bool) -> None:
        if blocking or (kind is not CopyKind.D2D and self._copy is None and not self._may_read_host):
            self.refuse("a copy by way of other host memory than the caller's")

    def refuse(self, what: str) -> NoReturn:
        """Say that something is not recorded."""
        raise UnsupportedError(
            f"{what} cannot be recorded: a plan has copies between device arrays and page-locked host arrays, of runs or "
            f"pitched rows of bytes, and fills, events and launches, each with the stream named; do it before the capture"
        )

    def _add(self, call: Call) -> None:
        if self._copy is None and self._pending:
            self.uses.update((id(each), each) for each in self._pending)
            self._pending = []
        self.steps.append((call, self._copy))


def _bound(call: Call, copy: RecordedCopy | None) -> GraphCall:
    to = at = 0
    if copy is not None:
        to, at = copy.dst.address - copy.dst.first, copy.src.address - copy.src.first
    return lambda driver, stream: call(driver, stream, to, at)
