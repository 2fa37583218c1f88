"""The queue: what must outlive a call, and when it is given back.

Two kinds of things wait here. Dropped handles (memory, streams, events), which finalizers append to `dropped` and which are
examined at safe points, in the caller's thread, never in the collector. And host buffers of copies that are still
running, held on their stream together with an event.

No lock of ours is held across a driver call that can block; finalizers take none at all.
"""

from __future__ import annotations

import gc
import threading
import warnings
from collections import deque
from collections.abc import Callable, Iterable
from functools import partial
from typing import TYPE_CHECKING

from ..spi.errors import BackendError, DevmemError, DevmemWarning, OutOfMemory
from ..spi.types import LEGACY_STREAM, Capability, MemoryKind
from .allocation import Allocation, Heap, Onward
from .config import settings
from .memory.adaptor import cached_in, chain, largest_free_block
from .memory.machine import host_bytes
from .memory.statistics import Statistics
from .scopes import deferral
from .stream import Event, Stream

if TYPE_CHECKING:
    from .context import Context

#: Completion events that are kept for reuse.
SPARE_EVENTS = 64
#: Lines of the program that the message of an OutOfMemory names, where something counts them.
LARGEST_OWNERS = 5
#: Kinds of memory that is the host's, with its pages locked.
HOST_KINDS = frozenset({MemoryKind.PINNED, MemoryKind.MAPPED})
#: What a device may still touch where nothing can tell any more: kept until the process ends.
_stranded: list[object] = []


class Reclaimer:
    """The queue of one open device."""

    def __init__(self, context: Context) -> None:
        self.context = context
        self.dropped: deque[Allocation | Stream | Event] = deque()
        self.pending: deque[Allocation | Stream | Event] = deque()
        self.pending_bytes = 0
        #: Memory of others that consumers of ours have let go of.
        self.parting: deque[Onward] = deque()
        self.max_count = settings().max_pending_deallocs_count
        self.max_bytes = int(settings().max_pending_deallocs_ratio * context.info.total_bytes)
        self.lock = threading.RLock()
        self.polling = False
        self.busy: dict[Stream, None] = {}
        self.spare_events: list[int] = []
        self.events: dict[int, None] = {}

    # -- safe points ---------------------------------------------------------------------------------------------------

    def examine(self) -> None:
        """Take stock of what was dropped; drain if that is too much. The device must be entered."""
        self._take_stock()
        if self.parting:
            self._part()
        if self.busy:
            self.poll()
        if len(self.pending) > self.max_count or self.pending_bytes > self.max_bytes:
            self.drain()

    def drain(self) -> None:
        """Free all that waits, unless cleanup is deferred. The device must be entered.

        A failure to free is told as a DevmemWarning. What comes after it stays in the queue, and so does the item itself if
        the failure came before it was given back; else it is the driver's: a leak is preferred to an address in use twice.
        """
        if deferral.depth or self._capturing():
            return
        self._take_stock()
        with self.lock:
            batch, self.pending = self.pending, deque()
            self.pending_bytes = 0
        item = None
        try:
            if self.context.unordered:
                self._wait_for_unordered(batch)
            while batch:
                item = batch.popleft()
                self._give_back(item)
        except Exception as error:  # a plugin's resource may raise anything
            if item is not None:
                self.keep(item)
            told = "; ".join([str(error), *getattr(error, "__notes__", ())])
            warnings.warn(f"while freeing dropped memory on {self.context.device}: {told}", DevmemWarning, stacklevel=3)
        finally:
            if batch:
                self._put_back(batch)

    def rescue(self, heap: Heap, nbytes: int, stream: Stream, first: MemoryError) -> int:
        """The one answer to memory that ran out: drain, wait, collect once, drain and wait again, trim, try once more.

        While a graph is captured nothing of it may be done: then the answer is the error.
        """
        if isinstance(first, OutOfMemory) or not isinstance(first, DevmemError):
            if self._capturing():
                raise self._out_of_memory(heap, nbytes, first) from first
            self.drain()
            self._wait_for_everything()
            gc.collect()  # also what finished copies held until then
            self.drain()
            self._wait_for_everything()  # what was freed in stream order can be trimmed only when its stream has passed
            self._trim_for_rescue()
            try:
                return heap.allocate(nbytes, stream.handle)
            except MemoryError as second:
                raise self._out_of_memory(heap, nbytes, second) from first
            except Exception as error:
                heap.explain(error, nbytes)
                raise
        raise first

    def release_now(self, allocation: Allocation) -> None:
        """Free one block at once, after the streams that it was used on, unless cleanup is deferred."""
        driver = self.context.driver
        token = None
        try:
            token = driver.enter()
            if deferral.depth or self._capturing():
                self._put_back([allocation])
            else:
                self._wait_for_unordered([allocation])
                self._give_back(allocation)
        except BaseException:
            self.keep(allocation)
            raise
        finally:
            if token is not None:
                driver.exit(token)

    def keep(self, item: Allocation | Stream | Event) -> None:
        """Queue what could not be given back, if it is still out."""
        if item.is_out():
            self._put_back([item])

    def trim(self, keep_bytes: int) -> None:
        """Drain, then let every heap give back what it caches."""
        self._part()
        self.poll()
        self.drain()
        if self.dropped:
            self.drain()  # streams that only the blocks just freed had kept
        for heap in self.context.heaps:
            heap.trim(keep_bytes)
        with self.lock:
            spare, self.spare_events = self.spare_events, []
        for event in spare:
            self._destroy_event(event)

    # -- copies that are still running ---------------------------------------------------------------------------------

    def retire(self, stream: Stream, *keep: object) -> None:
        """Keep these alive until the stream has passed what is enqueued on it now."""
        try:
            event = self._take_event()
            try:
                self.context.driver.event_record(event, stream.handle)
            except BaseException:
                self._spare(event)
                raise
        except BaseException:
            self._last_resort(stream, keep)
            raise
        with self.lock:
            stream.inflight.append((event, keep))
            self.busy[stream] = None
        if len(stream.inflight) > 1:
            self.poll()

    def poll(self) -> None:
        """Let go of what finished copies held."""
        if not self.lock.acquire(blocking=False):
            return  # somebody else is at it
        if self.polling:  # and so is this thread: a finalizer of the user's, run by the collector, came by here
            self.lock.release()
            return
        self.polling = True
        released: list[object] = []
        surplus: list[int] = []
        try:
            query = self.context.driver.event_query
            for stream in list(self.busy):
                flight = stream.inflight
                # Events of one stream pass in order, so the first that has not ends the search there, and a slow stream
                # never holds up another.
                while flight and query(flight[0][0]):
                    event, keep = flight.popleft()
                    released.append(keep)
                    (self.spare_events if len(self.spare_events) < SPARE_EVENTS else surplus).append(event)
                if not flight:
                    self.busy.pop(stream, None)
        finally:
            self.polling = False
            self.lock.release()
        for event in surplus:
            self._destroy_event(event)
        # `released` dies here, outside the lock: user objects may have finalizers of their own.

    def settle(self, streams: Iterable[Stream] | None = None) -> None:
        """Wait until the copies in flight on these streams (or on all) have passed."""
        for stream in list(self.busy) if streams is None else streams:
            with self.lock:
                events = [event for event, _ in stream.inflight]
            for (
                event
            ) in events:  # all of them: two threads may have queued theirs in another order than they were recorded
                self.context.driver.event_synchronize(event)
        self.poll()

    def order(self, later: int, earlier: int) -> None:
        """Make one stream's later work wait for what is on another now; by handle."""
        driver = self.context.driver
        event = self._take_event()
        try:
            driver.event_record(event, earlier)
            driver.stream_wait(later, event)
        finally:
            self._spare(event)

    def mark(self, stream: Stream, *keep: object) -> Event:
        """An event behind everything that is on the stream now. If it cannot be had, ``keep`` outlives the stream's work."""
        try:
            event = Event(self.context, timing=False)
            event.record(stream)
        except BaseException:
            self._last_resort(stream, keep)
            raise
        return event

    # -- the end -------------------------------------------------------------------------------------------------------

    def clear(self) -> None:
        """Free everything that came from this device, referenced or not; the device is idle. Called once, at its close.

        Memory that the host can see is left alone while somebody refers to it: an ndarray cannot be told that its buffer is
        gone. The driver keeps it readable.
        """
        self._take_stock()
        driver = self.context.driver
        problems: list[Exception] = []

        def attempt(step: Callable[..., object], *arguments: object) -> None:
            try:
                step(*arguments)
            except Exception as error:  # the rest must still be given back; a plugin's resource may raise anything
                problems.append(error)

        for heap in self.context.heaps:
            for ptr, nbytes in list(heap.live.items()) if heap.kind is MemoryKind.DEVICE else ():
                attempt(heap.give_back, ptr, nbytes, LEGACY_STREAM)
            attempt(heap.trim, 0)
        for item in self.pending:
            if isinstance(item, Allocation):
                attempt(item.give_back)
        self.pending.clear()
        for stream in list(self.busy):
            stream.inflight = deque()
        self.busy.clear()
        self.parting.clear()
        for handle in list(self.context.handles):
            attempt(driver.stream_destroy, handle)
        self.context.handles.clear()
        for event in list(self.events):
            attempt(driver.event_destroy, event)
        self.events.clear()
        self.spare_events.clear()
        if problems:
            raise problems[0]

    def strand(self) -> None:
        """Nobody can tell when the running copies are done: never let go of their host buffers."""
        _stranded.extend(stream.inflight for stream in self.busy)
        _stranded.append(self.parting.copy())

    def abandon(self) -> None:
        """In the child of a fork: forget everything, free nothing, and take no lock that the parent may have held."""
        self.lock = threading.RLock()
        # Kept referenced on purpose: copies of the parent's host buffers die with this process, not before.
        _stranded.extend((self.dropped, self.pending, self.busy, self.parting))
        self.dropped, self.pending, self.busy, self.parting = deque(), deque(), {}, deque()

    def waiting_bytes(self) -> int:
        """Bytes that were dropped and not freed yet."""
        self._take_stock()
        return self.pending_bytes

    # -- below ---------------------------------------------------------------------------------------------------------

    def _take_stock(self) -> None:
        with self.lock:
            while True:
                try:
                    item = self.dropped.popleft()
                except IndexError:  # asked rather than looked at first: a finalizer of the user's may come in between
                    return
                self.pending.append(item)
                self.pending_bytes += item.nbytes

    def _part(self) -> None:
        """See to it that memory of others, which was handed on, is let go of behind those who used it."""
        while self.parting and not self._capturing():
            try:
                self.parting.popleft().part()
            except IndexError:  # another thread had it
                return
            except DevmemError as error:  # it was waited for then, or is kept for good
                warnings.warn(
                    f"while letting go of memory on {self.context.device}: {error}", DevmemWarning, stacklevel=4
                )

    def _put_back(self, items: Iterable[Allocation | Stream | Event]) -> None:
        with self.lock:
            for item in items:
                self.pending.append(item)
                self.pending_bytes += item.nbytes

    def _give_back(self, item: Allocation | Stream | Event) -> None:
        if isinstance(item, Allocation):
            if item.streams is not None:
                self._order_behind_other_streams(item)
            item.freed = True
            item.give_back()
        elif isinstance(item, Stream) and not item.passed():
            self._put_back([item])  # its copies still run; look again at the next safe point
        else:
            item.destroy()

    def _order_behind_other_streams(self, allocation: Allocation) -> None:
        """Make the home stream wait for every other stream that devmem used the block on."""
        driver = self.context.driver
        home = allocation.home.order_handle()
        for stream, last_use in (allocation.streams or {}).items():
            if last_use is not None:
                driver.stream_wait(home, last_use.handle)
            elif not stream.closed:
                self.order(home, stream.order_handle())

    def _wait_for_unordered(self, batch: Iterable[Allocation | Stream | Event]) -> None:
        """Wait for the streams of blocks whose heap takes memory back only when nobody uses it."""
        streams: dict[int, None] = {}
        for item in batch:
            if isinstance(item, Allocation) and not item.heap.ordered:
                streams[item.home.order_handle()] = None
                for stream, last_use in (item.streams or {}).items():
                    if last_use is not None:
                        last_use.synchronize()
                    elif not stream.closed:
                        streams[stream.order_handle()] = None
        for handle in streams:
            self.context.driver.stream_synchronize(handle)

    def _trim_for_rescue(self) -> None:
        steps: list[tuple[str, Callable[[], object]]] = []
        steps += [(repr(heap.resource), partial(heap.trim, 0)) for heap in list(self.context.heaps)]
        for what, trim in [*steps, ("the staging slots", self.context.ring.trim)]:
            try:
                trim()
            except Exception as error:  # one stack that fails must not keep the memory of the others
                warnings.warn(f"while trimming {what}: {error}", DevmemWarning, stacklevel=5)

    def _wait_for_everything(self) -> None:
        self.context.driver.synchronize()
        self.poll()

    def _capturing(self) -> bool:
        context = self.context
        if not context.has(Capability.CAPTURE):
            return False
        return any(context.driver.capturing(stream.handle) for stream in context.own_streams() if not stream.closed)

    def _take_event(self) -> int:
        with self.lock:
            if self.spare_events:
                return self.spare_events.pop()
        event: int = self.context.driver.event_create(False)
        self.events[event] = None
        return event

    def _spare(self, event: int) -> None:
        if len(self.spare_events) < SPARE_EVENTS:
            with self.lock:
                self.spare_events.append(event)
        else:
            self._destroy_event(event)

    def _destroy_event(self, event: int) -> None:
        self.events.pop(event, None)
        self.context.driver.event_destroy(event)

    def _last_resort(self, stream: Stream, keep: object) -> None:
        """No event could be had behind a running copy: wait for it, or never let go of its buffer."""
        try:
            self.context.driver.stream_synchronize(stream.handle)
        except DevmemError:
            _stranded.append(keep)

    def _what_there_is(self, kind: MemoryKind, nbytes: int) -> str:
        """What was asked for, and where memory of that kind is. Of the host's, no driver tells how much more can be locked."""
        context = self.context
        waiting = [item for item in list(self.pending) if isinstance(item, Allocation)]  # others may be dropping theirs
        heaps = [*context.heaps, *context.host_heaps.values()]
        if kind not in HOST_KINDS:
            info = context.memory_info()
            count = sum(len(each.live) for each in heaps) - len(waiting)
            return (
                f"out of memory on {context.device}: asked for {nbytes} bytes; free {info.free} of {info.total}, "
                f"cached {info.cached}, pending {info.pending}, live {info.live} bytes in {count} blocks"
            )
        heaps = [each for each in heaps if each.kind in HOST_KINDS]
        waiting = [item for item in waiting if item.heap.kind in HOST_KINDS]
        pending = sum(item.nbytes for item in waiting)
        live = sum(sum(list(each.live.values())) for each in heaps) - pending
        return (
            f"out of page-locked host memory for {context.device}: asked for {nbytes} bytes of a host that has {host_bytes()}; "
            f"devmem holds cached {cached_in(each.resource for each in heaps)}, pending {pending}, live {live} bytes in "
            f"{sum(len(each.live) for each in heaps) - len(waiting)} blocks"
        )

    def _out_of_memory(self, heap: Heap, nbytes: int, cause: MemoryError) -> OutOfMemory:
        context = self.context
        message = self._what_there_is(heap.kind, nbytes)
        largest = largest_free_block(heap.resource)
        if largest is not None:
            message += f", largest free block {largest} bytes"
        if deferral.depth and self.pending:
            message += f"; {self.pending_bytes} bytes cannot be freed inside defer_cleanup(): leave it"
        if self._capturing():
            message += "; nothing can be given back while a graph is captured: allocate before the capture begins"
        message += f" ({cause})"
        counting = [part for part in chain(heap.resource) if isinstance(part, Statistics)]
        owners = [owner for part in counting[:1] for owner in part.owners(LARGEST_OWNERS)]
        if owners:
            message += "; largest owners: " + "; ".join(map(str, owners))
        known = cause if isinstance(cause, BackendError) else None
        return OutOfMemory(
            message,
            backend=context.info.backend,
            call=known.call if known else type(heap.resource).__name__ + ".allocate",
            code=known.code if known else 0,
            name=known.name if known else type(cause).__name__,
        )
