"""What must live until a stream has completed a piece of work: the only owner of "an event behind it".

A copy that may still run after its call needs both of its sides; a block that comes back on a stream may be used by another only
when that stream has passed the work before it. Each such payload is put behind an event, in the order of its stream, and given
out again when the event has completed.

`poll` is called at safe points: in verbs, on the caller's thread, never by the collector. It never waits, and lets go of payloads
outside its lock, because their finalizers may run user code. It may be re-entered by such a finalizer on the same thread: the
inner call then does nothing. What can never be told (work in a captured graph, which may run at any time; events of a lost
device) is kept until the process ends: a leak is preferred to a dangling address.
"""

# Decision: docs/adr/0001-dropped-memory-waits-in-one-queue.md
from __future__ import annotations

import threading
from collections import deque
from collections.abc import Hashable, Iterable
from contextlib import suppress
from typing import Generic, Protocol, TypeVar

from ...spi.driver import Driver
from ...spi.errors import DevmemError, UnsupportedError
from ...toolkit.deferred_errors import FirstError
from ..base.device_handle import DeviceHandle
from .leases import HandleLeases
from .stream import Event, Stream

#: Completed events that are kept for the next use.
SPARE_EVENTS = 64
#: What a device may still touch at a time that cannot be told: kept until the process ends.
leaked: list[object] = []

K = TypeVar("K", bound=Hashable)
T = TypeVar("T")


class HasDriver(Protocol):
    """An object with a driver, which may change: a device handle, or a bound memory resource."""

    @property
    def driver(self) -> Driver: ...


class EventPool:
    """Events without timing, made when needed and kept for the next use."""

    def __init__(self, owner: HasDriver) -> None:
        self.owner = owner
        self.leases = HandleLeases()
        #: Every event that exists, so that the close of the device can destroy them.
        self.events: dict[int, None] = {}
        self._spare: list[int] = []

    def record(self, stream: int) -> int:
        """An event behind all work that is on the stream now; the device is entered."""
        event = self._take()
        try:
            self.owner.driver.event_record(event, stream)
        except BaseException:
            self.give_back(event)
            raise
        return event

    def give_back(self, event: int) -> None:
        """Keep an event for the next use, or destroy it where there are enough."""
        if len(self._spare) < SPARE_EVENTS:
            self._spare.append(event)
        else:
            self.destroy(event)

    def destroy(self, event: int) -> None:
        """Destroy an event, which nothing else can find any more."""
        self.leases.destroy(self._destroy, event)

    def drop_spare(self) -> None:
        """Destroy the events that are kept for the next use."""
        with FirstError() as first:
            while self._spare:
                try:
                    event = self._spare.pop()
                except IndexError:  # another thread took it
                    return
                first.attempt(self.destroy, event)

    def forget(self) -> None:
        """Forget every event without calling the driver: the device was closed."""
        self.events.clear()
        self._spare.clear()

    def _destroy(self, event: int) -> None:
        if event in self.events:  # else the device was closed meanwhile
            del self.events[event]
            self.owner.driver.event_destroy(event)

    def _take(self) -> int:
        try:
            return self._spare.pop()
        except IndexError:
            event = self.owner.driver.event_create(False)
            self.events[event] = None
            return event


class CompletionQueue(Generic[K, T]):
    """Payloads behind events, by stream and in the order of the stream.

    Attributes
    ----------
    waiting : dict
        By key of a stream, ``(event, payload)`` in the stream's order; without streams that have completed everything.
    """

    def __init__(self, events: EventPool) -> None:
        self.events = events
        self.lock = threading.RLock()
        self.waiting: dict[K, deque[tuple[int, T]]] = {}
        self._polling = False
        self._completed: list[T] = []

    def add(self, key: K, stream: int, payload: T) -> None:
        """Put a payload behind all work that is on the stream now; the device is entered."""
        event = self.events.record(stream)
        with self.lock:
            self.waiting.setdefault(key, deque()).append((event, payload))

    def completed(self) -> list[T]:
        """Take out the payloads whose events have completed; none where a finalizer re-enters a call on its thread.

        A query that fails loses no payload: the next call returns what this one has found.
        """
        with self.lock:
            if self._polling:
                return []
            self._polling = True
            try:
                return self._take_completed()
            finally:
                self._polling = False

    def _take_completed(self) -> list[T]:
        query = self.events.owner.driver.event_query
        for key, queue in list(self.waiting.items()):
            # Events of one stream complete in order: the first that has not ends the search on that stream.
            while queue:
                event, payload = queue[0]
                try:
                    if not query(event):
                        break
                    self._completed.append(payload)
                except UnsupportedError:  # it was recorded into a captured graph
                    leaked.append(payload)
                queue.popleft()
                self.events.give_back(event)
            if not queue:
                self.waiting.pop(key, None)
        found, self._completed = self._completed, []
        return found

    def synchronize(self, keys: Iterable[K] | None = None) -> None:
        """Wait for the events of these streams, or of all."""
        for key in list(self.waiting) if keys is None else keys:
            with self.events.leases.hold():  # another thread may find meanwhile that they have completed
                with self.lock:
                    events = [event for event, _ in self.waiting.get(key, ())]
                # All of them: two threads may have entered theirs in another order than they recorded them.
                for event in events:
                    with suppress(UnsupportedError):  # in a captured graph: nothing tells when it completes
                        self.events.owner.driver.event_synchronize(event)


class CompletionTracker:
    """What the running copies of one open device keep alive."""

    def __init__(self, handle: DeviceHandle) -> None:
        self.handle = handle
        self.events = EventPool(handle)
        self._queue: CompletionQueue[Stream, tuple[object, ...]] = CompletionQueue(self.events)
        #: Streams that something waits on; what is false here needs no `poll`.
        self.busy = self._queue.waiting

    def keep_until_complete(self, stream: Stream, *keep: object) -> None:
        """Keep objects alive until the stream has completed what is enqueued on it now.

        For good, where that is captured into a graph. If no event can be had, the stream is waited for instead.
        """
        if stream.external and self.keep_if_captured(stream, *keep):
            return
        try:
            self._queue.add(stream, stream.handle, keep)
        except BaseException:
            self._wait_or_leak(stream, keep)
            raise
        if len(self.busy.get(stream, ())) > 1:
            self.poll()

    def keep_if_captured(self, stream: Stream, *keep: object) -> bool:
        """Whether another library captures a graph on its stream; then ``keep`` is kept for good: the graph may run at any time.

        Asked before an event is recorded: an event in a captured graph can never be waited for. Streams of devmem are found out
        later, by `poll`.
        """
        try:
            captured = self.handle.capturing(stream.handle)
        except BaseException:
            self._wait_or_leak(stream, keep)
            raise
        if captured:
            leaked.append(keep)
        return captured

    def poll(self) -> None:
        """Let go of what completed copies kept."""
        if self.busy:
            self._queue.completed()  # dies here, outside the lock

    def wait_complete(self, streams: Iterable[Stream] | None = None) -> None:
        """Wait until the copies in flight on these streams, or on all, have completed."""
        self._queue.synchronize(streams)
        self.poll()

    def is_busy(self, stream: Stream) -> bool:
        """Whether a copy on the stream still keeps something alive."""
        return stream in self.busy

    def count(self, stream: Stream) -> int:
        """How many copies on the stream keep something alive."""
        return len(self.busy.get(stream, ()))

    def order(self, later: int, earlier: int) -> None:
        """Make one stream's later work wait for what is on another now; by handle."""
        event = self.events.record(earlier)
        try:
            self.handle.driver.stream_wait(later, event)
        finally:
            self.events.give_back(event)

    def order_behind(self, later: int, earlier: Stream) -> None:
        """As `order`, behind a stream that another thread may close meanwhile."""
        with self.events.leases.hold():
            self.order(later, earlier.order_handle())

    def event_behind(self, stream: Stream, *keep: object) -> Event:
        """An event behind everything that is on the stream now. If none can be had, ``keep`` outlives the stream's work."""
        try:
            event = Event(stream.services, timing=False)
            event.record(stream)
        except BaseException:
            self._wait_or_leak(stream, keep)
            raise
        return event

    def leak_pending(self) -> None:
        """Never let go of what the running copies keep: nothing tells when they complete."""
        leaked.extend(self.busy.values())

    def forget(self) -> None:
        """Let go of everything: the device is idle, and its events are destroyed."""
        self.busy.clear()
        self.events.forget()

    def forget_after_fork(self) -> None:
        """In the child of a fork: keep what the parent's copies use, and take no lock that the parent may have held."""
        leaked.append(self._queue)
        self._queue = CompletionQueue(self.events)
        self.busy = self._queue.waiting

    def _wait_or_leak(self, stream: Stream, keep: object) -> None:
        try:
            self.handle.driver.stream_synchronize(stream.handle)
        except DevmemError:
            leaked.append(keep)
