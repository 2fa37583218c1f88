"""Device memory that is owned: the heap it came from, the streams that use it, and the end that gives it back.

An allocation is shared by an array and all its views; Python's reference count decides when it is dropped. It remembers its home
stream, on whose order it is freed, and every other stream on which devmem used it: those are waited for by events before the
block goes back. A block that was dropped waits in the deferred free queue; `free` gives it back at once, in stream order.

Any thread may use an allocation; its streams' order keeps uses apart, not a lock.
"""

from __future__ import annotations

from collections import deque
from contextlib import suppress
from functools import partial
from threading import get_ident
from types import MethodType
from typing import TYPE_CHECKING, Any, NoReturn

from ..._native import core
from ...spi.errors import ClosedError, DevmemError, LayoutError
from ...spi.sizes import exact_size
from ..base.device_handle import DeviceHandle
from ..base.hot_state import AllocationState
from ..base.scopes import deferral
from ..memory.heap import Heap
from ..ordering.completions import CompletionTracker
from ..ordering.event import Event, wait_for
from ..ordering.stream import Stream
from .deferred_free import DeferredFreeQueue

if TYPE_CHECKING:
    from types import TracebackType


#: Streams that a block remembers before it asks which of them have passed.
MANY_STREAMS = 16


class Allocation(AllocationState):
    """A block of memory, shared by an array and all its views.

    Python's own reference count decides when it is dropped. If its class is the device's `owned` one, it is then appended to the
    device's queue, and the block is freed later, at a safe point, by the heap that made it.
    """

    __slots__ = ("__weakref__",)

    queue: DeferredFreeQueue
    device_handle: DeviceHandle
    heap: Heap
    home: Stream
    streams: dict[Stream, Event | None] | None

    #: Whether the memory is foreign and was lent to be read only.
    read_only = False

    def __init__(
        self, queue: DeferredFreeQueue, heap: Heap, ptr: int, nbytes: int, home: Stream, unnamed: bool = False
    ) -> None:
        self.queue = queue
        self.device_handle = queue.handle
        self.heap = heap
        #: Whether the user named no home stream: then the memory is there for every stream.
        self.unnamed = unnamed
        self.ptr = ptr
        self.nbytes = nbytes
        #: Where it is among the live blocks of the heap, if it is there.
        self.place = 0
        self.home = home
        #: Other streams that devmem used the block on. Of a foreign stream, whose life is not ours, the event behind the
        #: last use is kept instead of trusting the handle later.
        self.streams = None
        self.freed = False

    def check(self) -> None:
        """Raise if the block is gone."""
        if self.freed or self.device_handle.dead:
            self.refuse()

    def check_writable(self) -> None:
        """Raise if the block is gone, or is only to be read."""
        if self.freed or self.device_handle.dead:
            self.refuse()
        if self.read_only:
            raise LayoutError(
                "this array is read-only, as the owner of its memory has it: write to a copy of your own, array.copy()"
            )

    def lend(self) -> None:
        """Take note that another library is given the address: the block outlives the device, as long as this object lives."""
        if self.ptr:
            self.heap.lent.add(self.ptr)

    def refuse(self) -> NoReturn:
        """Say why the block is gone."""
        self.device_handle.check()
        raise ClosedError(
            f"this memory ({exact_size(self.nbytes)} on {self.device_handle.device}) was freed: it cannot be used any more; "
            f"keep the array until its last use, or allocate anew"
        )

    def before_use(self, stream: Stream) -> None:
        """Called before work that touches the block is enqueued on a stream; the device is entered.

        Memory without a named stream is there for every stream: one that does not wait for the memory's own by itself
        is made to, once. Between two streams that the user named nothing is inserted.
        """
        if stream.recorder is not None:
            stream.recorder.use(self)
        if stream is self.home or (self.streams is not None and stream in self.streams):
            return
        if self.unnamed and not stream.waits_for(self.home):
            self.queue.completions.order_behind(stream.handle, self.home)
        self._note(stream)

    def after_use(self, stream: Stream) -> None:
        """Called after the work is enqueued. Of a foreign stream, which may be gone by the time, an event is kept.

        Where that stream captures, the block is kept for good: the graph may run at any time. An event in it would only pull
        the stream that waits for it into the capture.
        """
        if stream.external:
            completions = self.queue.completions
            if completions.keep_if_captured(stream, self):
                return
            if self.streams is None:
                self.streams = {}
            self.streams[stream] = completions.event_behind(stream, self)
        elif self.streams is not None and stream is not self.home:
            self.streams[stream] = None  # again: another thread may have taken it for one that has passed

    def uses(self) -> dict[Stream, Event | None]:
        """Every stream that devmem's work on the block may still be on."""
        return {self.home: None, **(self.streams or {})}

    def order_for_consumer(self, stream: Stream) -> None:
        """Make a stream's later work come after all that devmem enqueued on the block, and count it among those that use it.

        For work of others, which the stream's own calls do not announce. The device is entered.
        """
        if self.streams is not None or stream is not self.home:
            self.order_behind(stream)
            self._note(stream)
        if stream.external:
            self.after_use(stream)

    def order_behind(self, stream: Stream) -> None:
        """Make a stream's later work come after all that devmem enqueued on the block. The device is entered."""
        handle = stream.handle
        for other, last_use in self.uses().items():
            if other is not stream and (last_use is not None or not stream.waits_for(other)):
                self._put_behind(handle, other, last_use)

    def wait(self) -> None:
        """Wait until all that devmem enqueued on the block is done. The device is entered.

        Raises
        ------
        UnsupportedError
            A graph is captured on one of its streams; nothing has been waited for.
        """
        with self.queue.streams.leases.hold():
            uses = self.uses()
            for other, last_use in uses.items():
                if last_use is None and other.device_handle is self.device_handle and not other.closed:
                    other.check_waitable()
            for other, last_use in uses.items():
                if last_use is not None:
                    last_use.synchronize()
                elif other.device_handle is not self.device_handle:
                    _synchronize_peer(other)
                elif not other.closed:
                    self.device_handle.driver.stream_synchronize(other.order_handle())

    def has_passed(self) -> bool:
        """Whether all that devmem enqueued on the block is done. The device is entered, and handles are leased."""
        here, query = self.device_handle, self.device_handle.driver.stream_query
        return all(
            last_use.query()
            if last_use is not None
            else other.closed or (query(other.order_handle()) if other.device_handle is here else other.query())
            for other, last_use in self.uses().items()
        )

    def before_peer_use(self, stream: Stream) -> None:
        """Called before a copy that reads the block is enqueued on a stream of another device.

        The stream has been put behind what is on the block. From now on the block's end waits for it, too.
        """
        self._note(stream)

    def after_peer_use(self, stream: Stream, completions: CompletionTracker) -> None:
        """Called after it was enqueued, or has failed, with the tracker of that device, which is entered."""
        if self.streams is not None:
            self.streams[stream] = None if stream.plain else completions.event_behind(stream, self)

    def _put_behind(self, later: int, other: Stream, last_use: Event | None) -> None:
        """Make a stream of the device, by handle, wait for a use of the block."""
        if last_use is None and other.device_handle is self.device_handle:
            self.queue.completions.order_behind(later, other)
            return
        try:
            wait_for(self.device_handle, later, last_use or other.record())
        except ClosedError:
            if not other.closed:  # by another thread, just now: then all its work has passed
                raise

    def _note(self, stream: Stream) -> None:
        if stream is self.home or (self.streams is not None and stream in self.streams):
            return
        if self.streams is None:
            self.streams = {}
        elif len(self.streams) >= MANY_STREAMS:
            self._forget_passed(self.streams)
        self.streams[stream] = None

    def _forget_passed(self, streams: dict[Stream, Event | None]) -> None:
        """Let go of streams that have passed, or a block that lives long would keep every stream of its life from dying."""
        with self.queue.streams.leases.hold():
            for stream in list(streams):
                # Taken out before it is asked: another thread that uses the block on it meanwhile puts it in again.
                last_use = streams.pop(stream, None)
                try:
                    passed = (
                        last_use.query() if last_use is not None else stream.closed or (stream.plain and stream.query())
                    )
                except DevmemError:
                    passed = False
                if not passed:
                    streams.setdefault(stream, last_use)

    def free(self) -> None:
        """Give the block back now, in stream order. A second call does nothing.

        Inside ``defer_cleanup()``, and while a graph is captured, it waits in the queue like a dropped one.
        """
        if self.freed:
            return
        handle = self.device_handle
        if handle.dead is not None:
            handle.check()
        me, token = get_ident(), None
        try:
            handle.callers.append(me)
            self.freed = True
            self.__class__ = Allocation  # what comes now is this call's to do, or the queue's
            if not self.ptr:
                return
            entry = handle.entry
            token = entry.enter()  # which refuses while the device is being closed
            if self.streams is not None or not self.home.simple or not self.heap.ordered or deferral.depth:
                self.queue.release_now(self)
                return
            self.heap.give_back(self, self.home.handle)
        except Exception:
            if self.is_out():
                self.queue.dropped.append(self)
            raise
        except BaseException:
            self.queue.dropped.append(self)  # no second interrupt comes before
            raise
        finally:
            handle.callers.remove(me)
            if token is not None:
                entry.exit(token)

    def discard(self) -> None:
        """Free the block on the way out of a failure, whose own error is the one to be raised."""
        try:
            self.free()
        except Exception:  # a plugin's resource may raise anything
            self.freed = True  # what could not be freed now is in the queue already

    @property
    def may_wait(self) -> bool:
        """Whether its heap takes back only what no stream uses."""
        return not self.heap.ordered

    def release(self, waited: set[int]) -> bool:
        """Give the block back behind every stream that devmem used it on; the device is entered.

        A heap that takes back only what no stream uses is given it after the host has waited for these streams, but for those in
        ``waited``, which this drain has waited for already.
        """
        if self.streams is None and self.home.is_default:
            self._release(waited)
        else:
            with self.queue.streams.leases.hold():
                self._release(waited)
        return True

    def release_at_close(self) -> None:
        """Give the block back; the device is idle."""
        self.heap.give_back(self, self.home.order_handle())

    def _release(self, waited: set[int]) -> None:
        if not self.heap.ordered:
            self._wait_for_streams(waited)
        elif self.streams is not None:
            self._order_home_behind(self.streams)
        self.freed = True
        self.heap.give_back(self, self.home.order_handle())

    def _order_home_behind(self, streams: dict[Stream, Event | None]) -> None:
        """Make the home stream wait for every other stream that devmem used the block on."""
        home = self.home.order_handle()
        for stream, last_use in streams.items():
            if last_use is not None or not stream.closed:
                self._put_behind(home, stream, last_use)

    def _wait_for_streams(self, waited: set[int]) -> None:
        handles = {self.home.order_handle(): None}
        for stream, last_use in (self.streams or {}).items():
            if last_use is not None:
                last_use.synchronize()
            elif stream.device_handle is not self.device_handle:
                _synchronize_peer(stream)
            elif not stream.closed:
                handles[stream.order_handle()] = None
        for handle in handles:
            if handle not in waited:
                self.device_handle.driver.stream_synchronize(handle)
                waited.add(handle)

    def is_out(self) -> bool:
        """Whether the heap has not taken the block back yet."""
        return bool(self.ptr)


def owned(dropped: deque[Any]) -> type[Allocation]:
    """The class of a device's allocations that are freed when they are dropped: their finalizer appends them to the queue.

    It runs wherever the collector runs: no lock, no driver, and no frame of Python's, at whose beginning an interrupt could lose
    the block. The append resurrects the block until the queue has freed it; the finalizer is not called a second time.
    """
    if core is not None:
        found: type[Allocation] = core.owned_class(Allocation)
        return found
    return queued(dropped)


def queued(dropped: deque[Any]) -> type[Allocation]:
    """The same with a queue of another's, who learns so that an allocation was dropped, and has it."""
    finalizer = property(partial(MethodType, dropped.append))  # called for the method, which is then called
    return type("Allocation", (Allocation,), {"__slots__": (), "__del__": finalizer, "__module__": __name__})


def _synchronize_peer(stream: Stream) -> None:
    """Wait for a stream of another device, unless it is closed."""
    with suppress(ClosedError):
        stream.synchronize()


class StreamUse:
    """``with StreamUse(stream, *allocations):`` work on these blocks is enqueued on the stream, within the block."""

    __slots__ = ("allocations", "stream")

    def __init__(self, stream: Stream, *allocations: Allocation) -> None:
        self.stream = stream
        self.allocations = allocations

    def __enter__(self) -> None:
        for each in self.allocations:
            each.before_use(self.stream)

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        # Also after a failure: some of the work may be on its way.
        left = iter(self.allocations)
        for each in left:
            try:
                each.after_use(self.stream)
            except DevmemError:
                for other in left:  # they must still be told
                    with suppress(DevmemError):
                        other.after_use(self.stream)
                raise


class ForeignAllocation(Allocation):
    """Memory of another library, kept alive by a reference to its owner; freeing it only lets go.

    ``ready`` is the stream that its owner has made to wait for the memory; None where the owner orders each use by itself.
    """

    __slots__ = ("owner", "read_only", "ready")

    def __init__(
        self,
        queue: DeferredFreeQueue,
        heap: Heap,
        ptr: int,
        nbytes: int,
        owner: object,
        ready: Stream | None,
        read_only: bool,
    ) -> None:
        no_home: Any = None  # then every use is told to `after_use`
        super().__init__(queue, heap, ptr, nbytes, no_home, unnamed=True)
        self.owner = owner
        self.ready = ready
        self.read_only = read_only

    def lend(self) -> None:
        """Nothing: its owner keeps the memory beyond the close of the device, and no heap has it to give back."""

    def before_use(self, stream: Stream) -> None:
        """A stream that the memory was not made ready for is made to wait until it is, once."""
        if stream.recorder is not None:
            stream.recorder.use(self)
        ready = self.ready
        if ready is None or stream is ready or (self.streams is not None and stream in self.streams):
            return
        if not stream.waits_for(ready):
            self.queue.completions.order_behind(stream.handle, ready)
        self._note(stream)

    def after_use(self, stream: Stream) -> None:
        """Keep the owner alive until the stream has passed this use."""
        self.queue.completions.keep_until_complete(stream, self.owner)
        if self.ready is not None:
            super().after_use(stream)

    def after_peer_use(self, stream: Stream, completions: CompletionTracker) -> None:
        """Keep the owner alive until another device's stream has passed this use."""
        completions.keep_until_complete(stream, self.owner)
        super().after_peer_use(stream, completions)

    def uses(self) -> dict[Stream, Event | None]:
        """Return the streams that made it ready or used it; where it only lent an address, all that have copies in flight."""
        if self.ready is not None:
            return {self.ready: None, **(self.streams or {})}
        return dict.fromkeys(self.queue.completions.in_flight)

    def free(self) -> None:
        """Let go of the owner, once the work that uses its memory has passed."""
        if not self.freed:
            self.device_handle.check()
            self.freed = True
            self.owner = None
