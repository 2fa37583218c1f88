"""Streams: making them, waiting for them, and who waits for whom."""

from __future__ import annotations

import numpy as np
import pytest

from devmem.spi.types import LEGACY_STREAM, PER_THREAD_STREAM, Capability, CopyKind, MemoryKind

from .driver_fixture import Bytes, Harness, Rig, address, flip, pattern, same


class Upload:
    """One copy that a test can see happen: pinned bytes on their way to device memory that holds others."""

    def __init__(self, rig: Rig, nbytes: int = 1000, seed: int = 0) -> None:
        self.rig = rig
        # Pageable memory would do for a driver that cannot be held, and so has nothing to wait for.
        pageable = not {Capability.HOLD, MemoryKind.PINNED} & {
            *rig.driver.info.capabilities,
            *rig.driver.info.memory_kinds,
        }
        self.data: Bytes = np.empty(nbytes, np.uint8) if pageable else rig.pinned(nbytes)
        self.data[:] = pattern(nbytes, seed)
        self.ptr = rig.device(flip(self.data))

    def enqueue(self, stream: int) -> None:
        self.rig.driver.copy(self.ptr, address(self.data), self.data.size, CopyKind.H2D, stream, blocking=False)

    @property
    def arrived(self) -> bool:
        """Complete. Half of it is a failure: nothing here overlaps."""
        got = self.rig.read(self.ptr, self.data.size)
        if np.array_equal(got, self.data):
            return True
        return not same(got, flip(self.data))


class StreamChecks(Harness):
    # -- handles -------------------------------------------------------------------------------------------------------

    def test_streams_are_distinct(self, rig: Rig) -> None:
        streams = [rig.stream(non_blocking=bool(n % 2)) for n in range(16)]
        assert len(set(streams)) == 16
        assert all(
            isinstance(stream, int) and stream not in (0, LEGACY_STREAM, PER_THREAD_STREAM) for stream in streams
        )

    def test_every_priority_is_accepted(self, rig: Rig) -> None:
        least, greatest = rig.driver.info.stream_priorities
        for priority in range(greatest, least + 1):
            stream = rig.stream(priority)
            upload = pattern(100, priority & 0xFF)
            ptr = rig.alloc(100)
            rig.driver.copy(ptr, address(upload), 100, CopyKind.H2D, stream, blocking=True)
            assert same(rig.read(ptr, 100), upload)

    @pytest.mark.parametrize("non_blocking", [True, False])
    def test_create_and_destroy_many_streams(self, rig: Rig, non_blocking: bool) -> None:
        for _ in range(100):
            rig.driver.stream_destroy(rig.driver.stream_create(0, non_blocking))

    @pytest.mark.parametrize("which", ["created", "legacy", "per-thread"])
    def test_idle_stream(self, rig: Rig, which: str) -> None:
        stream = {"created": rig.stream(), "legacy": LEGACY_STREAM, "per-thread": PER_THREAD_STREAM}[which]
        assert rig.driver.stream_query(stream) is True
        rig.driver.stream_synchronize(stream)
        assert rig.driver.stream_query(stream) is True

    # -- waiting -------------------------------------------------------------------------------------------------------

    @pytest.mark.parametrize("which", ["created", "blocking", "legacy", "per-thread"])
    def test_query_and_synchronize(self, rig: Rig, which: str) -> None:
        driver, upload = rig.driver, Upload(rig)
        stream = {
            "created": rig.stream(),
            "blocking": rig.stream(non_blocking=False),
            "legacy": LEGACY_STREAM,
            "per-thread": PER_THREAD_STREAM,
        }[which]
        with rig.hold(stream) as latch:
            upload.enqueue(stream)
            assert driver.stream_query(stream) is False
            assert rig.waiting(stream)
            assert not upload.arrived
            latch.release()
            driver.stream_synchronize(stream)
            assert driver.stream_query(stream) is True
        assert upload.arrived

    def test_device_synchronize_waits_for_every_stream(self, rig: Rig) -> None:
        streams = [rig.stream(), rig.stream(non_blocking=False), LEGACY_STREAM, PER_THREAD_STREAM]
        uploads = [Upload(rig, seed=n) for n in range(len(streams))]
        for upload, stream in zip(uploads, streams, strict=True):
            upload.enqueue(stream)
        rig.driver.synchronize()
        assert all(rig.driver.stream_query(stream) for stream in streams)
        assert all(upload.arrived for upload in uploads)

    def test_device_synchronize_waits_for_a_held_stream(self, rig: Rig) -> None:
        stream, upload = rig.stream(), Upload(rig)
        with rig.hold(stream) as latch:
            upload.enqueue(stream)
            waiting = rig.start(rig.driver.synchronize)
            assert not waiting.done.wait(self.grace)
            latch.release()
            waiting.finish()
        assert upload.arrived

    # -- order ---------------------------------------------------------------------------------------------------------

    def test_work_runs_in_order(self, rig: Rig) -> None:
        """Many writes of one place, a chain through three blocks: only the order given leads to the end expected."""
        nbytes, stream, driver = 50_000, rig.stream(), rig.driver
        a, b, c = (rig.alloc(nbytes) for _ in range(3))
        for turn in range(40):
            driver.fill(a, turn, 1, nbytes, stream)
            driver.copy(b, a, nbytes, CopyKind.D2D, stream, blocking=False)
            driver.fill(a, 0xFF, 1, nbytes, stream)
            driver.copy(c, b, nbytes, CopyKind.D2D, stream, blocking=False)
            back = np.zeros(nbytes, np.uint8)
            driver.copy(address(back), c, nbytes, CopyKind.D2H, stream, blocking=turn % 2 == 0)
            driver.stream_synchronize(stream)
            assert same(back, np.full(nbytes, turn, np.uint8))

    def test_held_work_runs_in_order(self, rig: Rig) -> None:
        stream, driver = rig.stream(), rig.driver
        first, last = Upload(rig, seed=1), Upload(rig, seed=2)
        back = rig.pinned(1000)
        back[:] = 0
        with rig.hold(stream) as latch:
            first.enqueue(stream)
            driver.copy(last.ptr, first.ptr, 1000, CopyKind.D2D, stream, blocking=False)
            driver.copy(address(back), last.ptr, 1000, CopyKind.D2H, stream, blocking=False)
            driver.fill(first.ptr, 7, 1, 1000, stream)
            last.enqueue(stream)
            assert rig.waiting(stream)
            assert not first.arrived and not last.arrived and not back.any()
            latch.release()
            driver.stream_synchronize(stream)
        assert same(back, first.data)
        assert same(rig.read(first.ptr, 1000), np.full(1000, 7, np.uint8))
        assert last.arrived

    def test_streams_are_independent(self, rig: Rig) -> None:
        held, free = rig.stream(), rig.stream()
        waiting, going = Upload(rig, seed=1), Upload(rig, seed=2)
        with rig.hold(held) as latch:
            waiting.enqueue(held)
            going.enqueue(free)
            rig.driver.stream_synchronize(free)
            assert going.arrived and not waiting.arrived
            assert rig.driver.stream_query(free) and not rig.driver.stream_query(held)
            latch.release()
            rig.driver.stream_synchronize(held)
        assert waiting.arrived

    def test_a_hold_leaves_earlier_work_alone(self, rig: Rig) -> None:
        stream, early, late, event = rig.stream(), Upload(rig, seed=1), Upload(rig, seed=2), rig.event()
        early.enqueue(stream)
        rig.driver.event_record(event, stream)
        with rig.hold(stream) as latch:
            late.enqueue(stream)
            rig.driver.event_synchronize(event)
            assert early.arrived and not late.arrived
            latch.release()
            rig.driver.stream_synchronize(stream)
        assert late.arrived

    def test_holds_nest(self, rig: Rig) -> None:
        stream, upload = rig.stream(), Upload(rig)
        with rig.hold(stream) as first, rig.hold(stream) as second:
            upload.enqueue(stream)
            first.release()
            assert rig.waiting(stream) and not upload.arrived
            second.release()
            rig.driver.stream_synchronize(stream)
        assert upload.arrived

    # -- the default streams -------------------------------------------------------------------------------------------

    def test_legacy_waits_for_blocking_streams(self, rig: Rig) -> None:
        blocking, early, late = rig.stream(non_blocking=False), Upload(rig, seed=1), Upload(rig, seed=2)
        with rig.hold(blocking) as latch:
            early.enqueue(blocking)
            late.enqueue(LEGACY_STREAM)
            assert rig.waiting(LEGACY_STREAM)
            assert not early.arrived and not late.arrived
            latch.release()
            rig.driver.stream_synchronize(LEGACY_STREAM)
            assert early.arrived and late.arrived

    def test_blocking_streams_wait_for_legacy(self, rig: Rig) -> None:
        blocking, early, late = rig.stream(non_blocking=False), Upload(rig, seed=1), Upload(rig, seed=2)
        with rig.hold(LEGACY_STREAM) as latch:
            early.enqueue(LEGACY_STREAM)
            late.enqueue(blocking)
            assert rig.waiting(blocking)
            assert not early.arrived and not late.arrived
            latch.release()
            rig.driver.stream_synchronize(blocking)
            assert early.arrived and late.arrived

    def test_non_blocking_stream_does_not_wait_for_legacy(self, rig: Rig) -> None:
        stream, held, going = rig.stream(), Upload(rig, seed=1), Upload(rig, seed=2)
        with rig.hold(LEGACY_STREAM) as latch:
            held.enqueue(LEGACY_STREAM)
            going.enqueue(stream)
            rig.driver.stream_synchronize(stream)
            assert going.arrived and not held.arrived
            latch.release()
            rig.driver.stream_synchronize(LEGACY_STREAM)
        assert held.arrived

    def test_legacy_does_not_wait_for_a_non_blocking_stream(self, rig: Rig) -> None:
        stream, held, going = rig.stream(), Upload(rig, seed=1), Upload(rig, seed=2)
        with rig.hold(stream) as latch:
            held.enqueue(stream)
            going.enqueue(LEGACY_STREAM)
            rig.driver.stream_synchronize(LEGACY_STREAM)
            assert going.arrived and not held.arrived
            latch.release()
            rig.driver.stream_synchronize(stream)
        assert held.arrived

    def test_blocking_streams_do_not_wait_for_each_other(self, rig: Rig) -> None:
        one, two = rig.stream(non_blocking=False), rig.stream(non_blocking=False)
        held, going = Upload(rig, seed=1), Upload(rig, seed=2)
        with rig.hold(one) as latch:
            held.enqueue(one)
            going.enqueue(two)
            rig.driver.stream_synchronize(two)
            assert going.arrived and not held.arrived
            latch.release()
            rig.driver.stream_synchronize(one)
        assert held.arrived

    def test_per_thread_stream_waits_for_legacy(self, rig: Rig) -> None:
        """It is a blocking stream: one for each thread, but no island."""
        early, late = Upload(rig, seed=1), Upload(rig, seed=2)
        with rig.hold(LEGACY_STREAM) as latch:
            early.enqueue(LEGACY_STREAM)
            late.enqueue(PER_THREAD_STREAM)
            assert rig.waiting(PER_THREAD_STREAM) and not late.arrived
            latch.release()
            rig.driver.stream_synchronize(PER_THREAD_STREAM)
            assert early.arrived and late.arrived

    def test_per_thread_streams_are_one_for_each_thread(self, rig: Rig) -> None:
        held, going = Upload(rig, seed=1), Upload(rig, seed=2)

        def elsewhere() -> None:
            going.enqueue(PER_THREAD_STREAM)
            rig.driver.stream_synchronize(PER_THREAD_STREAM)
            assert rig.driver.stream_query(PER_THREAD_STREAM)
            assert going.arrived and not held.arrived

        with rig.hold(PER_THREAD_STREAM) as latch:
            held.enqueue(PER_THREAD_STREAM)
            rig.start(elsewhere).finish()
            latch.release()
            rig.driver.stream_synchronize(PER_THREAD_STREAM)
        assert held.arrived

    # -- destroying ----------------------------------------------------------------------------------------------------

    def test_destroyed_stream_finishes_its_work(self, rig: Rig) -> None:
        # The stream waits for a held one by an event, so that nothing depends on holds of a stream that is gone.
        held, stream, gate, done = rig.stream(), rig.stream(), rig.event(), rig.event()
        upload = Upload(rig)
        with rig.hold(held, patience=1.0, tolerant=True) as latch:  # a vendor's destroy may wait
            rig.driver.event_record(gate, held)
            rig.driver.stream_wait(stream, gate)
            upload.enqueue(stream)
            rig.driver.event_record(done, stream)
            rig.destroy_stream(stream)
            seen = upload.arrived, rig.driver.event_query(done)  # before it is asked whether the latch held until then
            if not latch.expired:
                assert seen == (False, False)
            latch.release()
            rig.driver.event_synchronize(done)
        assert upload.arrived

    def test_device_synchronize_covers_destroyed_streams(self, rig: Rig) -> None:
        stream, uploads = rig.stream(), [Upload(rig, 1 << 20, seed=n) for n in range(4)]
        for upload in uploads:
            upload.enqueue(stream)
        rig.destroy_stream(stream)
        rig.driver.synchronize()
        assert all(upload.arrived for upload in uploads)
