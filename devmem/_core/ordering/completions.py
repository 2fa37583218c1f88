"""Objects that must live until a stream has completed a piece of work: the only owner of "an event behind it".

A copy that may still run after its call needs both of its sides; a block that comes back on a stream may be used by another only
when that stream has passed the work before it. Each such payload is put behind an event, in the order of its stream, and given
out again when the event has completed.

`poll` is called at safe points: in verbs, on the caller's thread, never by the collector. It never waits. It asks the driver, and
lets go of payloads, outside its lock: their finalizers may run user code, which may poll again. What can never be told (work in a
captured graph, which may run at any time; events of a lost device) is kept until the process ends: a leak is preferred to a
dangling address.
"""

# Decision: docs/adr/0001-dropped-memory-waits-in-one-queue.md
from __future__ import annotations

from collections import deque
from collections.abc import Callable, Hashable, Iterable
from contextlib import AbstractContextManager, suppress
from functools import partial
from typing import Generic, TypeVar, cast
from weakref import WeakValueDictionary

from ..._native import core
from ...spi.errors import DevmemError, UnsupportedError
from ...toolkit.deferred_errors import FirstError
from ...toolkit.locks import Rank, lock
from ..base.device_handle import DeviceHandle
from .event import Event
from .leases import HandleLeases, HasDriver, OwnedHandle
from .spare import LentHandle, SpareHandles
from .stream import Stream

#: Completed events that are kept for the next use.
SPARE_EVENTS = 64
#: What a device may still touch at a time that cannot be told: kept until the process ends.
leaked: list[object] = []

#: The events of each open device, by the id of its driver: the memory stacks that are bound to the driver use the same.
_events_of: WeakValueDictionary[int, EventPool] = WeakValueDictionary()

K = TypeVar("K", bound=Hashable)
T = TypeVar("T")


class EventPool:
    """Events without timing, made when needed and kept for the next use.

    The handle that `record` returns goes back by itself, as soon as nothing refers to it: its finalizer is C's, and appends it to
    the spare ones. So no interrupt loses it, and no caller gives it back.
    """

    def __init__(self, owner: HasDriver) -> None:
        self.owner = owner
        #: The one lock of an open device: what runs on it, what was dropped, its slots and its memory stacks.
        self.lock = lock("open device", Rank.LEAF)
        self.leases = HandleLeases()
        #: Every event that exists, so that the close of the device can destroy them.
        self.events: dict[int, OwnedHandle] = {}
        #: Events that have passed, for the next `record`.
        self.passed: list[int] = []
        #: Those that users had, with timing and without.
        self.spare = SpareHandles(self.leases, SPARE_EVENTS)
        #: Makes a handle that goes back by itself. Python finalizes an object once: a spare one is a mere number.
        finalizer = property(partial(partial, self.passed.append))
        self.recorded: Callable[[int], int] = type("Recorded", (int,), {"__slots__": (), "__del__": finalizer})

    @classmethod
    def of(cls, owner: HasDriver) -> EventPool:
        """The events of the open device that the owner's driver belongs to; new ones for the driver of none."""
        found = _events_of.get(id(owner.driver))
        return found if found is not None and found.owner.driver is owner.driver else cls(owner)

    def record(self, stream: int) -> int:
        """An event behind all work that is on the stream now; the device is entered."""
        if len(self.passed) > SPARE_EVENTS:
            self.drop_spare(SPARE_EVENTS)
        try:
            event = self.recorded(self.passed.pop())
        except IndexError:
            event = self.recorded(self.create(False).handle)
        self.owner.driver.event_record(event, stream)
        return event

    def create(self, timing: bool, lent: bool = False) -> OwnedHandle:
        """An event, which the close of the device destroys if it is still there. The device is entered.

        ``lent``: for a user. It may be a spare one, which has passed, and goes back to these.
        """
        make = partial(LentHandle, self.spare, timing) if lent else OwnedHandle
        made = make(0, self.events, self.owner, "event_destroy", self.destroy)
        if not isinstance(made, LentHandle) or not self.spare.take(made, self.owner.driver.event_query):
            made.handle = self.owner.driver.event_create(timing)
            self.events[made.handle] = made
        return made

    def destroy(self, event: OwnedHandle) -> bool:
        """Destroy or keep an event, which nothing else can find any more."""
        self.leases.destroy(event)
        return True

    def drop_spare(self, keep: int = 0) -> None:
        """Destroy the events that are kept for the next use, but for so many."""
        with FirstError() as first:
            while len(self.passed) > keep:
                try:
                    event = self.events.get(self.passed.pop())
                except IndexError:  # another thread took it
                    break
                if event is not None:  # else its device was closed
                    first.attempt(self.leases.destroy, event)
            if not keep:
                first.attempt(self.spare.drop)
                first.attempt(self.leases.destroy_given_up)  # what calls that failed gave up

    def forget(self) -> None:
        """Forget every event without calling the driver: the device was closed."""
        self.events.clear()
        self.passed.clear()
        self.spare.forget()


class EventQueues(dict[K, deque[tuple[int, T]]]):
    """By stream, ``(event, payload)`` in the stream's order; in Python. In the compiled core each method is one step."""

    def __init__(self, lock: AbstractContextManager[object]) -> None:
        super().__init__()
        self._lock = lock
        self._entering = False

    def enter(self, key: K, entry: tuple[int, T], /) -> None:
        """Put an entry behind all that a stream has."""
        with self._lock:
            # A finalizer that polls in between would take the empty queue out.
            entering, self._entering = self._entering, True
            try:
                self.setdefault(key, deque()).append(entry)
            finally:
                self._entering = entering

    def take(self, key: K, entry: tuple[int, T], into: list[T], /) -> bool:
        """Take an entry out, and append its payload to a list; whether it was what the stream had first."""
        with self._lock:
            queue = self.get(key)
            if not queue or queue[0] is not entry:  # another call has taken it; none comes before the next line
                return False
            queue.popleft()
            into.append(entry[1])
            return True

    def tidy(self) -> None:
        """Take out streams that have nothing."""
        with self._lock:
            for key in () if self._entering else [key for key, queue in list(self.items()) if not queue]:
                if key in self and not self[key]:  # no handler of a signal comes before the next line
                    self.pop(key)


class CompletionQueue(Generic[K, T]):
    """Payloads behind events, by stream and in the order of the stream.

    Attributes
    ----------
    waiting : EventQueues
        By key of a stream, ``(event, payload)`` in the stream's order; without streams that have completed everything.
    """

    def __init__(self, events: EventPool) -> None:
        self.events = events
        self.lock = events.lock
        self.waiting: EventQueues[K, T] = EventQueues(events.lock) if core is None else core.EventQueues()
        self._completed: list[T] = []

    def add(self, key: K, stream: int, payload: T) -> None:
        """Put a payload behind all work that is on the stream now; the device is entered."""
        self.waiting.enter(key, (self.events.record(stream), payload))

    def completed(self) -> list[T]:
        """Take out the payloads whose events have completed.

        A query that fails loses no payload: the next call returns what this one has found.
        """
        query = self.events.owner.driver.event_query
        for key, queue in list(self.waiting.items()):
            while queue:
                try:
                    event, _ = first = queue[0]  # which keeps the event from being recorded anew
                except IndexError:  # another thread has taken the last one
                    break
                captured = False
                try:
                    if not query(event):  # nor have those behind it: events of one stream complete in order
                        break
                except UnsupportedError:  # it was recorded into a captured graph
                    captured = True
                # Not read before the query: another thread may have taken what was there.
                self.waiting.take(key, first, cast("list[T]", leaked) if captured else self._completed)
        found, self._completed = self._completed, []
        self.waiting.tidy()  # last: as long as something is to be let go of, the queue has something waiting
        return found

    def forget(self) -> None:
        """Let go of every payload."""
        self.waiting.clear()
        self._completed.clear()

    def synchronize(self, keys: Iterable[K] | None = None) -> None:
        """Wait for the events of these streams, or of all."""
        for key in list(self.waiting) if keys is None else keys:
            with self.events.leases.hold():  # another thread may find meanwhile that they have completed
                with self.lock:
                    waiting = list(self.waiting.get(key, ()))  # in one step: a finalizer may poll
                # All of them: two threads may have entered theirs in another order than they recorded them.
                for event, _ in waiting:
                    with suppress(UnsupportedError):  # in a captured graph: nothing tells when it completes
                        self.events.owner.driver.event_synchronize(event)


class CompletionTracker:
    """The tracker of the running copies of one open device, which keeps their sides alive."""

    def __init__(self, handle: DeviceHandle) -> None:
        self.handle = handle
        self.events = _events_of[id(handle.driver)] = EventPool(handle)
        self._queue: CompletionQueue[Stream, tuple[object, ...]] = CompletionQueue(self.events)
        #: Streams that something waits on; what is false here needs no `poll`.
        self.in_flight = self._queue.waiting

    def keep_until_complete(self, stream: Stream, *keep: object) -> None:
        """Keep objects alive until the stream has completed what is enqueued on it now.

        For good, where that is captured into a graph. If no event can be had, the stream is waited for instead.
        """
        if (stream.external or stream.recorder is not None) and self.keep_if_captured(stream, *keep):
            return
        try:
            self.in_flight.enter(stream, (self.events.record(stream.handle), keep))
        except BaseException:
            self.wait_or_leak(stream, keep)
            raise
        if len(self.in_flight.get(stream, ())) > 1:
            self.poll()

    def keep_interrupted(self, error: BaseException, stream: Stream, *keep: object) -> None:
        """Keep host memory until the stream has passed a copy that may have been enqueued when an exception came.

        An error of the driver's means that it was not; anything else, an interrupt say, may come behind the driver's call and
        before the copy is in the tracker.
        """
        if not isinstance(error, DevmemError):
            with suppress(DevmemError):  # then the memory is kept for good
                self.keep_until_complete(stream, *keep)

    def keep_host_side(self, running: bool, stream: Stream, *keep: object) -> None:
        """Keep the host side of a copy that was enqueued, if it is still ``running``, as the driver says.

        What a graph captures it copies whenever it is launched, whatever the memory: that is kept, too.
        """
        if running:
            self.keep_until_complete(stream, *keep)
        elif stream.recorder is not None or not stream.simple:
            self.keep_if_captured(stream, *keep)

    def keep_if_captured(self, stream: Stream, *keep: object) -> bool:
        """Whether a graph is captured on the stream; then ``keep`` is kept for good: the graph may run at any time.

        What is recorded for a plan is kept by the plan.

        Of another library's stream this is asked before an event is recorded: an event in a captured graph can never be waited
        for. Where an event was recorded on a stream of devmem's, `poll` finds it out.
        """
        if stream.recorder is not None:
            stream.recorder.kept.append(keep)
            return True
        try:
            captured = self.handle.capturing(stream.handle)
        except BaseException:
            self.wait_or_leak(stream, keep)
            raise
        if captured:
            leaked.append(keep)
        return captured

    def poll(self) -> None:
        """Let go of what completed copies kept."""
        if self.in_flight:
            self._queue.completed()  # dies here, outside the lock
            if len(self.events.passed) > SPARE_EVENTS:
                self.events.drop_spare(SPARE_EVENTS)

    def wait_complete(self, streams: Iterable[Stream] | None = None) -> None:
        """Wait until the copies in flight on these streams, or on all, have completed."""
        self._queue.synchronize(streams)
        self.poll()

    def is_busy(self, stream: Stream) -> bool:
        """Whether a copy on the stream still keeps something alive."""
        return stream in self.in_flight

    def count(self, stream: Stream) -> int:
        """Count the copies on the stream that keep something alive."""
        return len(self.in_flight.get(stream, ()))

    def order(self, later: int, earlier: int) -> None:
        """Make one stream's later work wait for what is on another now; by handle.

        Raises
        ------
        UnsupportedError
            A graph is captured on the later one alone.
        """
        self.handle.check_order(later, earlier)
        self.handle.driver.stream_wait(later, self.events.record(earlier))

    def order_behind(self, later: int, earlier: Stream) -> None:
        """Make one stream wait for another, which another thread may close meanwhile."""
        with self.events.leases.hold():
            self.order(later, earlier.order_handle())

    def event_behind(self, stream: Stream, *keep: object) -> Event:
        """An event behind everything that is on the stream now. If none can be had, ``keep`` outlives the stream's work."""
        if stream.recorder is not None:
            stream.recorder.refuse("an event that is waited for by itself")
        try:
            event = Event(stream.services, timing=False)
            event.record(stream)
        except BaseException:
            self.wait_or_leak(stream, keep)
            raise
        return event

    def leak_pending(self) -> None:
        """Never let go of what the running copies keep: nothing tells when they complete."""
        leaked.extend(self.in_flight.values())

    def forget(self) -> None:
        """Let go of everything: the device is idle, and its events are destroyed."""
        self._queue.forget()
        self.events.forget()

    def forget_after_fork(self) -> None:
        """In the child of a fork: keep what the parent's copies use, and take no lock that the parent may have held."""
        leaked.append(self._queue)
        self._queue = CompletionQueue(self.events)
        self.in_flight = self._queue.waiting

    def wait_or_leak(self, stream: Stream, keep: object) -> None:
        """Wait for a stream, in place of an event behind its work; what that work uses is kept for good where that fails."""
        try:
            stream.check_waitable()
            self.handle.driver.stream_synchronize(stream.handle)
        except DevmemError:
            leaked.append(keep)
