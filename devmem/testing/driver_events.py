"""Events: what they capture, and waiting for it from the host and from other streams."""

from __future__ import annotations

import math

import pytest

from devmem.spi.types import LEGACY_STREAM, PER_THREAD_STREAM, CopyKind

from .driver_fixture import Harness, Rig, same
from .driver_streams import Upload


class EventChecks(Harness):
    @pytest.mark.parametrize("timing", [True, False])
    def test_events_are_distinct(self, rig: Rig, timing: bool) -> None:
        events = [rig.event(timing=timing) for _ in range(16)]
        assert len(set(events)) == 16
        assert all(isinstance(event, int) and event for event in events)

    @pytest.mark.parametrize("timing", [True, False])
    def test_unrecorded_event_is_done(self, rig: Rig, timing: bool) -> None:
        event = rig.event(timing=timing)
        assert rig.driver.event_query(event) is True
        rig.driver.event_synchronize(event)

    def test_waiting_for_an_unrecorded_event_is_nothing(self, rig: Rig) -> None:
        stream, event = rig.stream(), rig.event()
        rig.driver.stream_wait(stream, event)
        ptr = rig.alloc(100)
        rig.driver.fill(ptr, 1, 1, 100, stream)
        rig.driver.stream_synchronize(stream)
        assert rig.driver.event_query(event) is True

    @pytest.mark.parametrize("which", ["created", "legacy", "per-thread"])
    def test_recorded_and_done(self, rig: Rig, which: str) -> None:
        stream = {"created": rig.stream(), "legacy": LEGACY_STREAM, "per-thread": PER_THREAD_STREAM}[which]
        event, ptr = rig.event(), rig.alloc(1 << 20)
        rig.driver.fill(ptr, 1, 1, 1 << 20, stream)
        rig.driver.event_record(event, stream)
        rig.driver.event_synchronize(event)
        assert rig.driver.event_query(event) is True

    @pytest.mark.parametrize("which", ["created", "legacy", "per-thread"])
    def test_captures_what_was_enqueued(self, rig: Rig, which: str) -> None:
        stream = {"created": rig.stream(), "legacy": LEGACY_STREAM, "per-thread": PER_THREAD_STREAM}[which]
        event, upload = rig.event(), Upload(rig)
        with rig.hold(stream) as latch:
            upload.enqueue(stream)
            rig.driver.event_record(event, stream)
            assert rig.driver.event_query(event) is False
            waiting = rig.start(lambda: rig.driver.event_synchronize(event))
            assert not waiting.done.wait(self.grace), "returned before the captured work was done"
            latch.release()
            waiting.finish()
            assert rig.driver.event_query(event) is True
            assert upload.arrived

    def test_does_not_capture_what_comes_later(self, rig: Rig) -> None:
        stream, event, early, late = rig.stream(), rig.event(), Upload(rig, seed=1), Upload(rig, seed=2)
        early.enqueue(stream)
        rig.driver.event_record(event, stream)
        with rig.hold(stream):
            late.enqueue(stream)
            rig.driver.event_synchronize(event)
            assert rig.driver.event_query(event) is True
            assert early.arrived and not late.arrived

    def test_can_be_recorded_again(self, rig: Rig) -> None:
        free, held, event, upload = rig.stream(), rig.stream(), rig.event(), Upload(rig)
        rig.driver.event_record(event, free)
        rig.driver.event_synchronize(event)
        with rig.hold(held) as latch:
            upload.enqueue(held)
            rig.driver.event_record(event, held)
            assert rig.driver.event_query(event) is False, "it must stand for the second recording now"
            latch.release()
            rig.driver.event_synchronize(event)
            assert upload.arrived

    def test_recorded_again_forgets_what_it_captured(self, rig: Rig) -> None:
        free, held, event = rig.stream(), rig.stream(), rig.event()
        with rig.hold(held):
            rig.driver.event_record(event, held)
            assert rig.driver.event_query(event) is False
            rig.driver.event_record(event, free)
            rig.driver.event_synchronize(event)
            assert rig.driver.event_query(event) is True

    # -- between streams -----------------------------------------------------------------------------------------------

    @pytest.mark.parametrize("waiter", ["created", "blocking", "legacy", "per-thread"])
    def test_stream_waits_for_another(self, rig: Rig, waiter: str) -> None:
        held, event, early, late = rig.stream(), rig.event(), Upload(rig, seed=1), Upload(rig, seed=2)
        stream = {
            "created": rig.stream(),
            "blocking": rig.stream(non_blocking=False),
            "legacy": LEGACY_STREAM,
            "per-thread": PER_THREAD_STREAM,
        }[waiter]
        with rig.hold(held) as latch:
            early.enqueue(held)
            rig.driver.event_record(event, held)
            rig.driver.stream_wait(stream, event)
            late.enqueue(stream)
            assert rig.waiting(stream)
            assert not late.arrived
            latch.release()
            rig.driver.stream_synchronize(stream)
            assert early.arrived and late.arrived

    def test_data_passes_from_stream_to_stream(self, rig: Rig) -> None:
        one, two, event, upload = rig.stream(), rig.stream(), rig.event(), Upload(rig, 1 << 20)
        ptr = rig.alloc(1 << 20)
        with rig.hold(one) as latch:
            upload.enqueue(one)
            rig.driver.event_record(event, one)
            rig.driver.stream_wait(two, event)
            rig.driver.copy(ptr, upload.ptr, 1 << 20, CopyKind.D2D, two, blocking=False)
            latch.release()
            rig.driver.stream_synchronize(two)
        assert same(rig.read(ptr, 1 << 20), upload.data)

    def test_only_later_work_waits(self, rig: Rig) -> None:
        held, stream, event, early = rig.stream(), rig.stream(), rig.event(), Upload(rig)
        before = rig.event()
        with rig.hold(held):
            rig.driver.event_record(event, held)
            early.enqueue(stream)
            rig.driver.event_record(before, stream)
            rig.driver.stream_wait(stream, event)
            rig.driver.event_synchronize(before)
            assert early.arrived

    def test_waits_for_what_was_captured_then(self, rig: Rig) -> None:
        """Recording an event again does not move those that already wait, nor those that no longer have to."""
        free, held, stream, event, upload = rig.stream(), rig.stream(), rig.stream(), rig.event(), Upload(rig)
        rig.driver.event_record(event, free)
        rig.driver.stream_wait(stream, event)
        with rig.hold(held):
            rig.driver.event_record(event, held)
            upload.enqueue(stream)
            rig.driver.stream_synchronize(stream)
            assert upload.arrived

    def test_waiters_stay_when_it_is_recorded_again(self, rig: Rig) -> None:
        free, held, stream, event, upload = rig.stream(), rig.stream(), rig.stream(), rig.event(), Upload(rig)
        with rig.hold(held) as latch:
            rig.driver.event_record(event, held)
            rig.driver.stream_wait(stream, event)
            upload.enqueue(stream)
            rig.driver.event_record(event, free)
            rig.driver.event_synchronize(event)
            assert rig.waiting(stream) and not upload.arrived
            latch.release()
            rig.driver.stream_synchronize(stream)
        assert upload.arrived

    def test_destroyed_event_does_not_disturb_waiters(self, rig: Rig) -> None:
        held, stream, event, early, late = rig.stream(), rig.stream(), rig.event(), Upload(rig, seed=1), Upload(rig)
        with rig.hold(held) as latch:
            early.enqueue(held)
            rig.driver.event_record(event, held)
            rig.driver.stream_wait(stream, event)
            rig.destroy_event(event)
            late.enqueue(stream)
            assert rig.waiting(stream) and not late.arrived
            latch.release()
            rig.driver.stream_synchronize(stream)
            assert early.arrived and late.arrived

    def test_one_event_many_waiters(self, rig: Rig) -> None:
        held, event, streams = rig.stream(), rig.event(), [rig.stream() for _ in range(4)]
        uploads = [Upload(rig, seed=n) for n in range(4)]
        with rig.hold(held) as latch:
            rig.driver.event_record(event, held)
            for stream, upload in zip(streams, uploads, strict=True):
                rig.driver.stream_wait(stream, event)
                upload.enqueue(stream)
            assert all(rig.waiting(stream) for stream in streams)
            assert not any(upload.arrived for upload in uploads)
            latch.release()
            for stream in streams:
                rig.driver.stream_synchronize(stream)
        assert all(upload.arrived for upload in uploads)

    def test_stream_may_wait_for_itself(self, rig: Rig) -> None:
        stream, event, upload = rig.stream(), rig.event(), Upload(rig)
        rig.driver.event_record(event, stream)
        rig.driver.stream_wait(stream, event)
        upload.enqueue(stream)
        rig.driver.stream_synchronize(stream)
        assert upload.arrived

    def test_create_and_destroy_many_events(self, rig: Rig) -> None:
        for turn in range(200):
            event = rig.driver.event_create(turn % 2 == 0)
            rig.driver.event_record(event, rig.side)
            rig.driver.event_destroy(event)

    # -- time ----------------------------------------------------------------------------------------------------------

    def test_elapsed(self, rig: Rig) -> None:
        stream, ptr = rig.stream(), rig.alloc(1 << 20)
        first, second, third = (rig.event(timing=True) for _ in range(3))
        rig.driver.event_record(first, stream)
        rig.driver.fill(ptr, 1, 1, 1 << 20, stream)
        rig.driver.event_record(second, stream)
        rig.driver.fill(ptr, 2, 1, 1 << 20, stream)
        rig.driver.event_record(third, stream)
        rig.driver.event_synchronize(third)
        one, two = rig.driver.event_elapsed(first, second), rig.driver.event_elapsed(second, third)
        both = rig.driver.event_elapsed(first, third)
        assert all(isinstance(ms, float) and math.isfinite(ms) and ms >= 0.0 for ms in (one, two, both))
        assert both == pytest.approx(one + two, abs=0.01), "clocks of one stream add up"

    def test_elapsed_is_in_milliseconds(self, rig: Rig) -> None:
        """A stream that is held while this thread watches its own clock took at least as long as that."""
        stream, start, end = rig.stream(), rig.event(timing=True), rig.event(timing=True)
        rig.driver.event_record(start, stream)
        rig.driver.event_synchronize(start)
        with rig.hold(stream) as latch:
            rig.driver.event_record(end, stream)
            done = rig.start(lambda: rig.driver.event_synchronize(end))
            assert not done.done.wait(self.grace)
            latch.release()
            done.finish()
        assert self.grace * 900 <= rig.driver.event_elapsed(start, end) < 60_000

    def test_elapsed_backwards_is_negative(self, rig: Rig) -> None:
        rig.need_strict()
        stream, start, end = rig.stream(), rig.event(timing=True), rig.event(timing=True)
        rig.driver.event_record(start, stream)
        rig.driver.event_record(end, stream)
        rig.driver.event_synchronize(end)
        assert rig.driver.event_elapsed(end, start) <= 0.0
