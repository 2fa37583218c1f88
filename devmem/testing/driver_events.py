"""Events: which work an event marks, and waiting for it on the host and on other streams."""

from __future__ import annotations

import math
import time

import pytest

from devmem.spi.types import CopyKind

from .driver_fixture import STREAM_KINDS, ConformanceSuite, DriverFixture, same
from .driver_streams import Upload


class EventChecks(ConformanceSuite):
    @pytest.mark.parametrize("timing", [True, False])
    def test_events_are_distinct(self, fixture: DriverFixture, timing: bool) -> None:
        events = [fixture.event(timing=timing) for _ in range(16)]
        assert len(set(events)) == 16
        assert all(isinstance(event, int) and event for event in events)

    @pytest.mark.parametrize("timing", [True, False])
    def test_unrecorded_event_is_done(self, fixture: DriverFixture, timing: bool) -> None:
        event = fixture.event(timing=timing)
        assert fixture.driver.event_query(event) is True
        fixture.driver.event_synchronize(event)

    def test_waiting_for_an_unrecorded_event_is_nothing(self, fixture: DriverFixture) -> None:
        stream, event = fixture.stream(), fixture.event()
        fixture.driver.stream_wait(stream, event)
        ptr = fixture.alloc(100)
        fixture.driver.fill(ptr, 1, 1, 100, stream)
        fixture.driver.stream_synchronize(stream)
        assert fixture.driver.event_query(event) is True

    @pytest.mark.parametrize("which", ["created", "legacy", "per-thread"])
    def test_recorded_and_done(self, fixture: DriverFixture, which: str) -> None:
        stream = fixture.stream_of_kind(which)
        event, ptr = fixture.event(), fixture.alloc(1 << 20)
        fixture.driver.fill(ptr, 1, 1, 1 << 20, stream)
        fixture.driver.event_record(event, stream)
        fixture.driver.event_synchronize(event)
        assert fixture.driver.event_query(event) is True

    @pytest.mark.parametrize("which", ["created", "legacy", "per-thread"])
    def test_captures_what_was_enqueued(self, fixture: DriverFixture, which: str) -> None:
        stream = fixture.stream_of_kind(which)
        event, upload = fixture.event(), Upload(fixture)
        with fixture.hold(stream) as hold:
            upload.enqueue(stream)
            fixture.driver.event_record(event, stream)
            assert fixture.driver.event_query(event) is False
            waiting = fixture.run_in_thread(lambda: fixture.driver.event_synchronize(event))
            assert not waiting.done.wait(self.grace), "returned before the work that the event marks was complete"
            hold.release()
            waiting.finish()
            assert fixture.driver.event_query(event) is True
            assert upload.arrived

    def test_does_not_capture_what_comes_later(self, fixture: DriverFixture) -> None:
        stream, event, early, late = fixture.stream(), fixture.event(), Upload(fixture, seed=1), Upload(fixture, seed=2)
        early.enqueue(stream)
        fixture.driver.event_record(event, stream)
        with fixture.hold(stream):
            late.enqueue(stream)
            fixture.driver.event_synchronize(event)
            assert fixture.driver.event_query(event) is True
            assert early.arrived and not late.arrived

    def test_can_be_recorded_again(self, fixture: DriverFixture) -> None:
        free, held, event, upload = fixture.stream(), fixture.stream(), fixture.event(), Upload(fixture)
        fixture.driver.event_record(event, free)
        fixture.driver.event_synchronize(event)
        with fixture.hold(held) as hold:
            upload.enqueue(held)
            fixture.driver.event_record(event, held)
            assert fixture.driver.event_query(event) is False, "the event must mark the second recording now"
            hold.release()
            fixture.driver.event_synchronize(event)
            assert upload.arrived

    def test_recorded_again_forgets_what_it_captured(self, fixture: DriverFixture) -> None:
        free, held, event = fixture.stream(), fixture.stream(), fixture.event()
        with fixture.hold(held):
            fixture.driver.event_record(event, held)
            assert fixture.driver.event_query(event) is False
            fixture.driver.event_record(event, free)
            fixture.driver.event_synchronize(event)
            assert fixture.driver.event_query(event) is True

    # -- between streams -----------------------------------------------------------------------------------------------

    @pytest.mark.parametrize("waiter", STREAM_KINDS)
    def test_stream_waits_for_another(self, fixture: DriverFixture, waiter: str) -> None:
        held, event, early, late = fixture.stream(), fixture.event(), Upload(fixture, seed=1), Upload(fixture, seed=2)
        stream = fixture.stream_of_kind(waiter)
        with fixture.hold(held) as hold:
            early.enqueue(held)
            fixture.driver.event_record(event, held)
            fixture.driver.stream_wait(stream, event)
            late.enqueue(stream)
            assert fixture.stays_pending(stream)
            assert not late.arrived
            hold.release()
            fixture.driver.stream_synchronize(stream)
            assert early.arrived and late.arrived

    def test_data_passes_from_stream_to_stream(self, fixture: DriverFixture) -> None:
        one, two, event, upload = fixture.stream(), fixture.stream(), fixture.event(), Upload(fixture, 1 << 20)
        ptr = fixture.alloc(1 << 20)
        with fixture.hold(one) as hold:
            upload.enqueue(one)
            fixture.driver.event_record(event, one)
            fixture.driver.stream_wait(two, event)
            fixture.driver.copy(ptr, upload.ptr, 1 << 20, CopyKind.D2D, two, blocking=False)
            hold.release()
            fixture.driver.stream_synchronize(two)
        assert same(fixture.read(ptr, 1 << 20), upload.data)

    def test_only_later_work_waits(self, fixture: DriverFixture) -> None:
        held, stream, event, early = fixture.stream(), fixture.stream(), fixture.event(), Upload(fixture)
        before = fixture.event()
        with fixture.hold(held):
            fixture.driver.event_record(event, held)
            early.enqueue(stream)
            fixture.driver.event_record(before, stream)
            fixture.driver.stream_wait(stream, event)
            fixture.driver.event_synchronize(before)
            assert early.arrived

    def test_waits_for_what_was_captured_then(self, fixture: DriverFixture) -> None:
        """A stream waits for the work that the event marked at the time of the wait, not for a later recording."""
        free, held, stream, event, upload = (
            fixture.stream(),
            fixture.stream(),
            fixture.stream(),
            fixture.event(),
            Upload(fixture),
        )
        fixture.driver.event_record(event, free)
        fixture.driver.stream_wait(stream, event)
        with fixture.hold(held):
            fixture.driver.event_record(event, held)
            upload.enqueue(stream)
            fixture.driver.stream_synchronize(stream)
            assert upload.arrived

    def test_waiters_stay_when_it_is_recorded_again(self, fixture: DriverFixture) -> None:
        free, held, stream, event, upload = (
            fixture.stream(),
            fixture.stream(),
            fixture.stream(),
            fixture.event(),
            Upload(fixture),
        )
        with fixture.hold(held) as hold:
            fixture.driver.event_record(event, held)
            fixture.driver.stream_wait(stream, event)
            upload.enqueue(stream)
            fixture.driver.event_record(event, free)
            fixture.driver.event_synchronize(event)
            assert fixture.stays_pending(stream) and not upload.arrived
            hold.release()
            fixture.driver.stream_synchronize(stream)
        assert upload.arrived

    def test_destroyed_event_does_not_disturb_waiters(self, fixture: DriverFixture) -> None:
        held, stream, event, early, late = (
            fixture.stream(),
            fixture.stream(),
            fixture.event(),
            Upload(fixture, seed=1),
            Upload(fixture),
        )
        with fixture.hold(held) as hold:
            early.enqueue(held)
            fixture.driver.event_record(event, held)
            fixture.driver.stream_wait(stream, event)
            fixture.destroy_event(event)
            late.enqueue(stream)
            assert fixture.stays_pending(stream) and not late.arrived
            hold.release()
            fixture.driver.stream_synchronize(stream)
            assert early.arrived and late.arrived

    def test_one_event_many_waiters(self, fixture: DriverFixture) -> None:
        held, event, streams = fixture.stream(), fixture.event(), [fixture.stream() for _ in range(4)]
        uploads = [Upload(fixture, seed=n) for n in range(4)]
        with fixture.hold(held) as hold:
            fixture.driver.event_record(event, held)
            for stream, upload in zip(streams, uploads, strict=True):
                fixture.driver.stream_wait(stream, event)
                upload.enqueue(stream)
            assert all(fixture.stays_pending(stream) for stream in streams)
            assert not any(upload.arrived for upload in uploads)
            hold.release()
            for stream in streams:
                fixture.driver.stream_synchronize(stream)
        assert all(upload.arrived for upload in uploads)

    @pytest.mark.parametrize("done", [0, 1], ids=["first is done", "second is done"])
    def test_waits_add_up(self, fixture: DriverFixture, done: int) -> None:
        """A stream that was made to wait for two events waits for both."""
        held, events = [fixture.stream(), fixture.stream()], [fixture.event(), fixture.event()]
        stream, upload = fixture.stream(), Upload(fixture)
        with fixture.hold(held[0]) as first, fixture.hold(held[1]) as second:
            for event, other in zip(events, held, strict=True):
                fixture.driver.event_record(event, other)
                fixture.driver.stream_wait(stream, event)
            upload.enqueue(stream)
            (first, second)[done].release()
            fixture.driver.event_synchronize(events[done])
            assert fixture.stays_pending(stream) and not upload.arrived
            (second, first)[done].release()
            fixture.driver.stream_synchronize(stream)
        assert upload.arrived

    def test_stream_may_wait_for_itself(self, fixture: DriverFixture) -> None:
        stream, event, upload = fixture.stream(), fixture.event(), Upload(fixture)
        fixture.driver.event_record(event, stream)
        fixture.driver.stream_wait(stream, event)
        upload.enqueue(stream)
        fixture.driver.stream_synchronize(stream)
        assert upload.arrived

    def test_create_and_destroy_many_events(self, fixture: DriverFixture) -> None:
        for turn in range(200):
            event = fixture.driver.event_create(turn % 2 == 0)
            fixture.driver.event_record(event, fixture.unheld_stream)
            fixture.driver.event_destroy(event)

    # -- time ----------------------------------------------------------------------------------------------------------

    def test_elapsed(self, fixture: DriverFixture) -> None:
        stream, ptr = fixture.stream(), fixture.alloc(1 << 20)
        first, second, third = (fixture.event(timing=True) for _ in range(3))
        fixture.driver.event_record(first, stream)
        fixture.driver.fill(ptr, 1, 1, 1 << 20, stream)
        fixture.driver.event_record(second, stream)
        fixture.driver.fill(ptr, 2, 1, 1 << 20, stream)
        fixture.driver.event_record(third, stream)
        fixture.driver.event_synchronize(third)
        one, two = fixture.driver.event_elapsed(first, second), fixture.driver.event_elapsed(second, third)
        both = fixture.driver.event_elapsed(first, third)
        assert all(isinstance(ms, float) and math.isfinite(ms) and ms >= 0.0 for ms in (one, two, both))
        assert both == pytest.approx(one + two, abs=0.01), "elapsed times of one stream add up"

    def test_elapsed_is_in_milliseconds(self, fixture: DriverFixture) -> None:
        """The stream is held for `grace` seconds: the events are 90 % of that apart or more, and no more than this thread saw."""
        stream, start, end = fixture.stream(), fixture.event(timing=True), fixture.event(timing=True)
        began = time.perf_counter()
        fixture.driver.event_record(start, stream)
        fixture.driver.event_synchronize(start)
        with fixture.hold(stream) as hold:
            fixture.driver.event_record(end, stream)
            done = fixture.run_in_thread(lambda: fixture.driver.event_synchronize(end))
            assert not done.done.wait(self.grace)
            hold.release()
            done.finish()
        seen = (time.perf_counter() - began) * 1000
        assert self.grace * 900 <= fixture.driver.event_elapsed(start, end) <= seen * 1.1 + 1

    def test_elapsed_backwards_is_negative(self, fixture: DriverFixture) -> None:
        fixture.need_strict()
        stream, start, end = fixture.stream(), fixture.event(timing=True), fixture.event(timing=True)
        fixture.driver.event_record(start, stream)
        fixture.driver.event_record(end, stream)
        fixture.driver.event_synchronize(end)
        assert fixture.driver.event_elapsed(end, start) <= 0.0
