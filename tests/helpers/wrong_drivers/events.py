"""Mistakes in events, and the tests of `testing/driver_events.py` that find them."""

from __future__ import annotations

from typing import Any

from devmem.spi.types import CopyKind

from .base import Broken
from .copies import IgnoresStreams
from .errors import AcceptsADestroyedEventAgain


class EventsAreAlwaysDone(Broken):
    def event_query(self, event: int) -> bool:
        return True


class UnrecordedEventsAreNotDone(Broken):
    def event_query(self, event: int) -> bool:
        return self.calls["event_record"] > 0 and super().event_query(event)


class EventsAreRecordedOnce(Broken):
    def event_record(self, event: int, stream: int) -> None:
        if event not in self.__dict__.setdefault("once", set()):
            self.once.add(event)
            super().event_record(event, stream)


class EventsWaitForNothing(Broken):
    def event_synchronize(self, event: int) -> None:
        pass


class StreamsDoNotWait(Broken):
    def stream_wait(self, stream: int, event: int) -> None:
        pass


class ElapsedInSeconds(Broken):
    def event_elapsed(self, start: int, end: int) -> float:
        return super().event_elapsed(start, end) / 1000


class HandsOutOneEventTwice(AcceptsADestroyedEventAgain):
    def event_create(self, timing: bool) -> int:
        made = super().event_create(timing)
        return min(self._events) if len(self._events) % 2 else made


class ElapsedInMicroseconds(Broken):
    def event_elapsed(self, start: int, end: int) -> float:
        return super().event_elapsed(start, end) * 1000


class EventsSeeTheirWholeStream(Broken):
    """Reports an event as done only when its stream is idle, work behind the event included."""

    def event_record(self, event: int, stream: int) -> None:
        self.__dict__.setdefault("of", {})[event] = stream
        super().event_record(event, stream)

    def event_query(self, event: int) -> bool:
        return super().event_query(event) and (event not in self.of or self.sound.stream_query(self.of[event]))


class TheLastWaitReplacesTheOthers(Broken):
    """As long as nothing was enqueued in between."""

    def spoil(self) -> None:
        self.waits: dict[int, int] = {}

    def stream_wait(self, stream: int, event: int) -> None:
        self.sound.stream_query(stream)  # which refuses what is no stream
        helper, captured = self.sound.stream_create(0, True), self.sound.event_create(False)
        self.sound.stream_wait(helper, event)
        self.sound.event_record(captured, helper)
        self.waits[stream] = captured

    def wait(self, stream: int) -> None:
        if event := self.waits.pop(stream, None):
            super().stream_wait(stream, event)

    def copy(self, dst: int, src: int, nbytes: int, kind: CopyKind, stream: int, *, blocking: bool) -> bool:
        self.wait(stream)
        return super().copy(dst, src, nbytes, kind, stream, blocking=blocking)

    def event_record(self, event: int, stream: int) -> None:
        self.wait(stream)
        super().event_record(event, stream)


BROKEN: list[tuple[type[Broken], str, dict[str, Any]]] = [
    (IgnoresStreams, "test_stream_waits_for_another", {"waiter": "created"}),
    (EventsAreAlwaysDone, "test_captures_what_was_enqueued", {"which": "created"}),
    (UnrecordedEventsAreNotDone, "test_unrecorded_event_is_done", {"timing": True}),
    (EventsAreRecordedOnce, "test_can_be_recorded_again", {}),
    (EventsAreRecordedOnce, "test_recorded_again_forgets_what_it_captured", {}),
    (EventsWaitForNothing, "test_captures_what_was_enqueued", {"which": "legacy"}),
    (StreamsDoNotWait, "test_stream_waits_for_another", {"waiter": "blocking"}),
    (StreamsDoNotWait, "test_destroyed_event_does_not_disturb_waiters", {}),
    (ElapsedInSeconds, "test_elapsed_is_in_milliseconds", {}),
    (HandsOutOneEventTwice, "test_events_are_distinct", {"timing": True}),
    (ElapsedInMicroseconds, "test_elapsed_is_in_milliseconds", {}),
    (EventsSeeTheirWholeStream, "test_does_not_capture_what_comes_later", {}),
    (TheLastWaitReplacesTheOthers, "test_waits_add_up", {"done": 1}),
]
