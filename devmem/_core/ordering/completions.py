"""What running copies need: kept with an event behind them, until the stream has passed."""

from __future__ import annotations

import threading
from collections.abc import Iterable
from contextlib import suppress
from typing import TYPE_CHECKING

from ...spi.errors import DevmemError, UnsupportedError
from ...spi.types import Capability
from .stream import Event, Stream

if TYPE_CHECKING:
    from ..device.open_device import Context

#: Completion events that are kept for reuse.
SPARE_EVENTS = 64
#: What a device may still touch where nothing can tell any more: kept until the process ends.
stranded: list[object] = []


class InFlight:
    """The streams of one open device that run copies of ours, and what each keeps alive.

    Nothing waits here but `settle`: `poll` lets go of what has passed, at safe points, in the caller's thread.
    """

    def __init__(self, context: Context) -> None:
        self.context = context
        self.lock = threading.RLock()
        self.polling = False
        self.busy: dict[Stream, None] = {}
        self.spare_events: list[int] = []
        self.events: dict[int, None] = {}

    def retire(self, stream: Stream, *keep: object) -> None:
        """Keep these alive until the stream has passed what is enqueued on it now; for good, where that goes into a graph."""
        if stream.external and self.goes_into_graph(stream, *keep):
            return
        try:
            event = self._take_event()
            try:
                self.context.driver.event_record(event, stream.handle)
            except BaseException:
                self._spare(event)
                raise
            with self.lock:
                stream.inflight.append((event, keep))
                self.busy[stream] = None
        except BaseException:
            self._last_resort(stream, keep)
            raise
        if len(stream.inflight) > 1:
            self.poll()

    def goes_into_graph(self, stream: Stream, *keep: object) -> bool:
        """Whether somebody captures on a foreign stream; then ``keep`` is kept for good, as the graph may run at any time.

        Asked before an event is recorded: one that was recorded into a graph can never be waited for, and spoils that when it is
        asked for. Of streams of ours it is found out later, by `poll`.
        """
        try:
            captured = self.context.has(Capability.CAPTURE) and bool(self.context.driver.capturing(stream.handle))
        except BaseException:
            self._last_resort(stream, keep)
            raise
        if captured:
            stranded.append(keep)
        return captured

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
                while flight:
                    try:
                        if not query(flight[0][0]):
                            break
                    except UnsupportedError:  # recorded into a graph after all
                        stranded.append(flight[0][1])
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
            # All of them: two threads may have queued theirs in another order than they were recorded.
            for event in events:
                with suppress(UnsupportedError):  # a graph's: it has passed when that ran, of which nobody knows
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

    def strand(self) -> None:
        """Nobody can tell when the running copies are done: never let go of their host buffers."""
        stranded.extend(stream.inflight for stream in self.busy)

    # -- events --------------------------------------------------------------------------------------------------------

    def forget_spare(self) -> None:
        """Destroy the events that are kept for reuse."""
        with self.lock:
            spare, self.spare_events = self.spare_events, []
        for event in spare:
            self._destroy_event(event)

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
            stranded.append(keep)
