"""Recorded plans: work of one stream that is written down once, and enqueued by one call as often as is wanted.

``with capture(stream) as plan:`` gives the stream a recorder (`devmem._core.ordering.recorder`). At the block's end the driver
makes a graph of what was written down. From then on the plan owns what the graph uses: arrays on both sides, page locks, events,
and the memory that was allocated for the stream in the block. That ends when the plan is closed or dropped, and the stream has
passed what was replayed; a plan is then given back like a dropped block, through the queue.

A plan is used by one thread at a time, as its stream is.
"""

# Decision: docs/adr/0017-plans-are-recorded-above-the-driver.md
from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import partial
from operator import attrgetter
from typing import TYPE_CHECKING, Any, NoReturn

import numpy as np
import numpy.typing as npt

from ...spi.driver import GraphCall
from ...spi.errors import ClosedError, DevmemError, LayoutError, UnsupportedError
from ...spi.types import Capability
from ..arrays.ndarray import DeviceNDArray
from ..arrays.pinned import pinned_like
from ..base.advice import Listed, made_by
from ..base.device_handle import CurrentDevice
from ..device.open_device import OpenDevice
from ..interop.host_objects import check_no_mask
from ..memory.plan_memory import PlanMemory
from ..ordering.event import Event
from ..ordering.leases import OwnedHandle
from ..ordering.recorder import RecordedCopy, Recorder, Side
from ..ordering.stream import Stream

if TYPE_CHECKING:
    from types import TracebackType

#: Arrays that take the places of copies' sides: one of a plan's only copy, or one for each, None for one that stays.
Replacing = DeviceNDArray[Any] | npt.NDArray[Any] | Sequence[DeviceNDArray[Any] | npt.NDArray[Any] | None] | None


class Record:
    """The parts of a plan: its graph, and what the graph uses. They go back through the queue of dropped items."""

    __slots__ = ("event", "graph", "kept", "memory", "opened", "stream", "table")

    #: What it counts for in the queue, and whether it may wait: unlocking pages does, for copies.
    nbytes = 0
    may_wait = True

    def __init__(self, opened: OpenDevice, stream: Stream, memory: PlanMemory) -> None:
        self.opened = opened
        self.stream = stream
        self.memory: PlanMemory | None = memory
        self.kept: list[object] = []
        self.event: Event | None = None
        self.table: dict[int, OwnedHandle] = {}
        self.graph = OwnedHandle(0, self.table, opened.handle, "graph_destroy", lambda graph: True)

    def create(self, calls: list[GraphCall], on: Stream) -> None:
        """Let the driver make the graph on a stream; the device is entered. Without calls there is none."""
        if calls:
            self.graph.handle = self.opened.handle.driver.graph_create(calls, on.handle)
            self.table[self.graph.handle] = self.graph

    def is_out(self) -> bool:
        """Whether anything is kept."""
        return self.memory is not None or bool(self.kept) or self.graph.is_out()

    def release(self, waited: set[int]) -> bool:
        """Give all back once the stream has passed what was replayed. The device is entered."""
        if self.table:
            if not self._has_passed():
                return False
            self.graph.end()
        self.kept.clear()
        if self.memory is not None:
            self.memory.end(self.stream.order_handle())
            self.memory = None
        self.opened.page_locks.sweep(self.opened.handle.driver)
        return True

    def _has_passed(self) -> bool:
        """Whether the stream has passed what was replayed, which was before the first time that this is asked."""
        if self.stream.closed:
            return True
        if self.stream.recorder is not None:
            return False  # it cannot be asked
        if self.event is None:
            if self.stream.query():
                return True
            self.event = self.opened.completions.event_behind(self.stream)
        return self.event.query()

    def release_at_close(self) -> None:
        """Nothing: the close of the device ends graphs, memory and page locks."""


@made_by("`with capture(stream) as plan:` records one", OpenDevice)
class TransferPlan(Listed):
    """Copies, fills, events and launches of one stream, recorded once; see `devmem.capture`.

    Attributes
    ----------
    stream : Stream
        Where the work is enqueued.

    Examples
    --------
    >>> stream, device = dm.stream(), dm.device_array(3)
    >>> with dm.capture(stream) as plan:
    ...     _ = device.fill(2, stream=stream)
    >>> plan.replay()
    >>> stream.synchronize()
    >>> device.tolist()
    [2.0, 2.0, 2.0]
    >>> plan.close()
    """

    __slots__ = ("__weakref__", "_drop", "_on", "_record", "_recorder", "_state", "opened", "stream")
    _unlisted = frozenset({"opened"})

    #: Called in C for the method, which is then called: most often the queue's ``append``.
    __del__ = property(attrgetter("_drop"))

    def __init__(self, opened: OpenDevice, stream: Stream) -> None:
        self._drop: Callable[[], object] = tuple
        self.opened = opened
        self.stream = stream
        self._state = "new"
        handle = opened.handle
        handle.require(Capability.GRAPHS, "record work", "enqueue it each time")
        if stream.is_default or stream.external or stream.owned is None:
            raise UnsupportedError(
                f"the work of {stream!r} cannot be recorded, as others enqueue there, too: capture(devmem.stream())"
            )
        with CurrentDevice(handle):
            heap = opened.memory.stacks.current_heap() or opened.memory.stacks.heap
            memory = PlanMemory(heap.resource)
            self._record = Record(opened, stream, memory)
            self._recorder = Recorder(opened.memory.stacks.bind(memory), partial(_page_locked, opened))
            #: Where the driver records: nothing is enqueued there.
            self._on = opened.new_stream(0, True)
        self._drop = partial(handle.dropped.append, self._record)

    def __repr__(self) -> str:
        return f"<plan of {len(self._recorder.steps)} calls on {self.stream!r}, {self._state}>"

    def __enter__(self) -> TransferPlan:
        if self._state != "new":
            raise DevmemError("a plan is recorded once: call capture(stream) for another")
        self.opened.handle.check()
        self.stream.check_not_recorded("another plan in this one")
        with CurrentDevice(self.opened.handle):
            self.stream.check_waitable()  # nor may another library capture a graph there
        # Dropped while it is recorded, as where an interrupt comes before the block, it lets go of the stream, too.
        self._drop = partial(_let_go, self.stream, self._drop)
        self._state = "being recorded"
        self.stream.recorder = self._recorder
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        drop = partial(self.opened.handle.dropped.append, self._record)
        self.stream.recorder = None
        self._drop, self._state = drop, "closed"
        if kind is None and self.opened.handle.dead is None:
            recorder, record = self._recorder, self._record
            record.kept = [recorder]
            with CurrentDevice(self.opened.handle):
                record.create(recorder.calls(), self._on)
            self._state = "recorded"
            return
        self._give_back()

    @property
    def copies(self) -> int:
        """Number of copies between arrays that were recorded; `update` replaces their sides."""
        return len(self._recorder.copies)

    @property
    def closed(self) -> bool:
        """Whether the plan was closed, or its device was."""
        return self._state == "closed" or self.opened.handle.dead is not None

    def replay(self) -> None:
        """Enqueue the work on the plan's stream, by one call of the driver. Never waits.

        It comes after what is on the stream, and later work there after all of it. Sources are read when it runs, and
        destinations are complete when the stream has passed it: ``plan.stream.synchronize()``.

        Raises
        ------
        ClosedError
            The plan is closed, or its stream or device; or memory that it uses was freed, or an event closed.
        UnsupportedError
            The plan is still being recorded, or its stream's work is recorded for another.
        BackendError
            The driver refused.
        """
        self._check()
        opened, stream, recorder = self.opened, self.stream, self._recorder
        with CurrentDevice(opened.handle) as driver:
            if opened.handle.dropped or opened.completions.in_flight:
                opened.free_queue.free_if_due()
            for allocation in self._allocations():
                if allocation.freed:
                    allocation.refuse()
                allocation.before_use(stream)
            for event in recorder.events:
                event.handle  # noqa: B018  (raises if closed)
            if self._record.table:
                driver.graph_launch(self._record.graph.handle, stream.handle)

    def update(self, src: Replacing = None, dst: Replacing = None) -> None:
        """Let the plan copy from and to other arrays from now on; what is enqueued already is not changed.

        Parameters
        ----------
        src, dst : array or sequence, optional
            The arrays that take the places of the copies' sources and destinations: one array where the plan has one copy, else
            a sequence with one for each copy, in the order of recording, or None for a side that stays. Each has the shape,
            dtype and strides of the array that it replaces, and is on the same side: page-locked on the host, or on the same
            device.

        Raises
        ------
        LayoutError
            An array has another layout, or is on another side; or there are more or fewer than copies. Nothing is changed.
        UnsupportedError
            Memory of the host is not page-locked. Nothing is changed.
        ClosedError, BackendError
            As for `replay`. Nothing is changed.
        """
        self._check()
        opened, recorder, before = self.opened, self._recorder, self._record
        sources, destinations = self._replacing("src", src), self._replacing("dst", dst)
        with CurrentDevice(opened.handle):
            copies = [
                RecordedCopy(
                    copy.kind, self._replaced("dst", at, copy.dst, to), self._replaced("src", at, copy.src, origin)
                )
                for at, (copy, to, origin) in enumerate(zip(recorder.copies, destinations, sources, strict=True))
            ]
            changed = dict(zip(map(id, recorder.copies), copies, strict=True))
            after = Recorder(recorder.heap, recorder.page_locked)
            after.steps = [(call, None if copy is None else changed[id(copy)]) for call, copy in recorder.steps]
            after.copies, after.events = copies, recorder.events
            after.uses, after.kept = recorder.uses, recorder.kept
            assert before.memory is not None
            record = Record(opened, self.stream, before.memory)
            record.kept = [after]
            dropped = opened.handle.dropped
            record.create(after.calls(), self._on)
            drop = partial(dropped.append, record)
            self._recorder, self._record, self._drop = after, record, drop
            before.memory = None  # first: it is the other record's now
            dropped.append(before)

    def close(self) -> None:
        """Let go of all that the plan uses, once the stream has passed what was replayed. A second call does nothing."""
        if self._state == "being recorded":
            raise DevmemError("a plan is closed when it has been recorded: leave the with block first")
        if self._state != "closed" and self.opened.handle.dead is None:
            self._state = "closed"
            self._give_back()
        self._state = "closed"

    def _give_back(self) -> None:
        """Give the record back now or, if that is interrupted, when this is dropped."""
        self._recorder = Recorder(self._recorder.heap, self._recorder.page_locked)
        if self.opened.handle.dead is None:
            with CurrentDevice(self.opened.handle):
                self.opened.free_queue.release_now(self._record)
        self._drop = tuple

    def _check(self) -> None:
        self.opened.handle.check()
        if self._state == "closed":
            raise ClosedError("this plan is closed: record it anew with devmem.capture(stream)")
        if self._state != "recorded":
            raise UnsupportedError("this plan is not recorded yet: leave its with block first")
        self.stream.handle  # noqa: B018  (raises if closed)
        self.stream.check_not_recorded("another plan in this one")

    def _allocations(self) -> Iterable[Any]:
        recorder = self._recorder
        found = dict(recorder.uses)
        for copy in recorder.copies:
            for side in (copy.dst, copy.src):
                if not isinstance(side.view, np.ndarray):
                    found.update((id(each), each) for each in side.keep)
        return found.values()

    def _replacing(self, name: str, given: Replacing) -> Sequence[Any]:
        count = self.copies
        if given is None:
            return [None] * count
        found: Sequence[Any] = [given] if isinstance(given, (np.ndarray, DeviceNDArray)) else given
        if len(found) != count:
            raise LayoutError(
                f"update({name}=...) of {len(found)} arrays, but the plan has {count} copies: give one for each"
            )
        return found

    def _replaced(self, name: str, at: int, side: Side, given: Any) -> Side:
        if given is None:
            return side
        on_host = isinstance(side.view, np.ndarray)
        array: Any = given
        what = f"update({name}=...): the array for copy {at}"
        if not isinstance(given, np.ndarray if on_host else DeviceNDArray):
            _refuse(what, f"is a {type(given).__name__}", "a host array" if on_host else "a device array")
        if on_host:
            check_no_mask(array)
            array = np.asarray(array)
        for fact in ("shape", "dtype", "strides"):
            if getattr(array, fact) != getattr(side.view, fact):
                _refuse(what, f"has {fact} {getattr(array, fact)}", f"{fact} {getattr(side.view, fact)}")
        if on_host:
            if name == "dst" and not array.flags.writeable:
                _refuse(what, "is read-only", "one that can be written to")
            now = self.opened.copies.host_side(array)
            return Side(array, side.first, now.address, now.keep)
        if array.open_device is not self.opened:
            _refuse(what, f"is on {array.device}", f"one on {self.stream.device}")
        (array.allocation.check_writable if name == "dst" else array.allocation.check)()
        now = self.opened.copies.device_side(array, self._recorder)
        array.allocation.before_use(self.stream)
        return Side(array, side.first, now.address, (array.allocation,))


def _let_go(stream: Stream, drop: Callable[[], object]) -> None:
    stream.recorder = None
    drop()


def _page_locked(opened: OpenDevice, nbytes: int) -> npt.NDArray[Any]:
    return pinned_like(opened, (nbytes,), np.dtype(np.uint8), None)


def _refuse(what: str, given: str, wanted: str) -> NoReturn:
    raise LayoutError(f"{what} {given}, and replaces {wanted}: the places of a plan keep their layout")
