"""Streams: creating and destroying them, waiting for them, and the order that the default streams imply."""

from __future__ import annotations

import numpy as np
import pytest

from devmem.spi.driver import SupportsCapture
from devmem.spi.types import LEGACY_STREAM, PER_THREAD_STREAM, Capability, CopyKind, MemoryKind

from .driver_fixture import STREAM_KINDS, Bytes, ConformanceSuite, DriverFixture, address, flip, pattern, same


class Upload:
    """A copy to device memory with other contents, so that a test can see whether it ran.

    It does not wait for its stream: its source is page-locked, or device memory where the device has no page-locked memory.
    """

    def __init__(self, fixture: DriverFixture, nbytes: int = 1000, seed: int = 0) -> None:
        self.fixture = fixture
        pinned = MemoryKind.PINNED in fixture.driver.info.memory_kinds
        self.data: Bytes = fixture.pinned(nbytes) if pinned else np.empty(nbytes, np.uint8)
        self.data[:] = pattern(nbytes, seed)
        self.source = address(self.data) if pinned else fixture.alloc_with(self.data)
        self.kind = CopyKind.H2D if pinned else CopyKind.D2D
        self.ptr = fixture.alloc_with(flip(self.data))

    def enqueue(self, stream: int) -> None:
        self.fixture.driver.copy(self.ptr, self.source, self.data.size, self.kind, stream, blocking=False)

    @property
    def arrived(self) -> bool:
        """Whether the copy is complete. Fails the test if a part of the bytes arrived."""
        got = self.fixture.read(self.ptr, self.data.size)
        if np.array_equal(got, self.data):
            return True
        return not same(got, flip(self.data))


class StreamChecks(ConformanceSuite):
    # -- handles -------------------------------------------------------------------------------------------------------

    def test_streams_are_distinct(self, fixture: DriverFixture) -> None:
        streams = [fixture.stream(non_blocking=bool(n % 2)) for n in range(16)]
        assert len(set(streams)) == 16
        assert all(
            isinstance(stream, int) and stream not in (0, LEGACY_STREAM, PER_THREAD_STREAM) for stream in streams
        )

    def test_every_priority_is_accepted(self, fixture: DriverFixture) -> None:
        least, greatest = fixture.driver.info.stream_priorities
        for priority in range(greatest, least + 1):
            stream = fixture.stream(priority)
            upload = pattern(100, priority & 0xFF)
            ptr = fixture.alloc(100)
            fixture.driver.copy(ptr, address(upload), 100, CopyKind.H2D, stream, blocking=True)
            assert same(fixture.read(ptr, 100), upload)

    @pytest.mark.parametrize("non_blocking", [True, False])
    def test_create_and_destroy_many_streams(self, fixture: DriverFixture, non_blocking: bool) -> None:
        for _ in range(100):
            fixture.driver.stream_destroy(fixture.driver.stream_create(0, non_blocking))

    @pytest.mark.parametrize("which", ["created", "legacy", "per-thread"])
    def test_idle_stream(self, fixture: DriverFixture, which: str) -> None:
        stream = fixture.stream_of_kind(which)
        assert fixture.driver.stream_query(stream) is True
        fixture.driver.stream_synchronize(stream)
        assert fixture.driver.stream_query(stream) is True

    # -- waiting -------------------------------------------------------------------------------------------------------

    @pytest.mark.parametrize("which", STREAM_KINDS)
    def test_held_work_is_pending_until_it_is_released(self, fixture: DriverFixture, which: str) -> None:
        driver, upload = fixture.driver, Upload(fixture)
        stream = fixture.stream_of_kind(which)
        with fixture.hold(stream) as hold:
            upload.enqueue(stream)
            assert driver.stream_query(stream) is False
            assert fixture.stays_pending(stream)
            assert not upload.arrived
            hold.release()
            driver.stream_synchronize(stream)
            assert driver.stream_query(stream) is True
        assert upload.arrived

    def test_device_synchronize_waits_for_every_stream(self, fixture: DriverFixture) -> None:
        streams = [fixture.stream(), fixture.stream(non_blocking=False), LEGACY_STREAM, PER_THREAD_STREAM]
        uploads = [Upload(fixture, seed=n) for n in range(len(streams))]
        for upload, stream in zip(uploads, streams, strict=True):
            upload.enqueue(stream)
        fixture.driver.synchronize()
        assert all(fixture.driver.stream_query(stream) for stream in streams)
        assert all(upload.arrived for upload in uploads)

    @pytest.mark.parametrize("which", STREAM_KINDS)
    def test_device_synchronize_waits_for_a_held_stream(self, fixture: DriverFixture, which: str) -> None:
        stream, upload = fixture.stream_of_kind(which), Upload(fixture)
        with fixture.hold(stream) as hold:
            upload.enqueue(stream)
            waiting = fixture.run_in_thread(fixture.driver.synchronize)
            assert not waiting.done.wait(self.grace)
            hold.release()
            waiting.finish()
        assert upload.arrived

    def test_device_synchronize_waits_for_a_fill(self, fixture: DriverFixture) -> None:
        stream, ptr = fixture.stream(), fixture.alloc_with(pattern(100))
        with fixture.hold(stream) as hold:
            fixture.driver.fill(ptr, 1, 1, 100, stream)
            waiting = fixture.run_in_thread(fixture.driver.synchronize)
            assert not waiting.done.wait(self.grace), "returned while a fill was pending"
            hold.release()
            waiting.finish()
        assert same(fixture.read(ptr, 100), np.ones(100, np.uint8))

    # -- order ---------------------------------------------------------------------------------------------------------

    def test_work_runs_in_order(self, fixture: DriverFixture) -> None:
        """A chain of copies through three blocks, repeated: only the given order leads to the expected bytes."""
        nbytes, stream, driver = 50_000, fixture.stream(), fixture.driver
        a, b, c = (fixture.alloc(nbytes) for _ in range(3))
        for turn in range(40):
            driver.fill(a, turn, 1, nbytes, stream)
            driver.copy(b, a, nbytes, CopyKind.D2D, stream, blocking=False)
            driver.fill(a, 0xFF, 1, nbytes, stream)
            driver.copy(c, b, nbytes, CopyKind.D2D, stream, blocking=False)
            back = np.zeros(nbytes, np.uint8)
            driver.copy(address(back), c, nbytes, CopyKind.D2H, stream, blocking=turn % 2 == 0)
            driver.stream_synchronize(stream)
            assert same(back, np.full(nbytes, turn, np.uint8))

    def test_held_work_runs_in_order(self, fixture: DriverFixture) -> None:
        stream, driver = fixture.stream(), fixture.driver
        first, last = Upload(fixture, seed=1), Upload(fixture, seed=2)
        back = fixture.pinned(1000)
        back[:] = 0
        with fixture.hold(stream) as hold:
            first.enqueue(stream)
            driver.copy(last.ptr, first.ptr, 1000, CopyKind.D2D, stream, blocking=False)
            driver.copy(address(back), last.ptr, 1000, CopyKind.D2H, stream, blocking=False)
            driver.fill(first.ptr, 7, 1, 1000, stream)
            last.enqueue(stream)
            assert fixture.stays_pending(stream)
            assert not first.arrived and not last.arrived and not back.any()
            hold.release()
            driver.stream_synchronize(stream)
        assert same(back, first.data)
        assert same(fixture.read(first.ptr, 1000), np.full(1000, 7, np.uint8))
        assert last.arrived

    @pytest.mark.parametrize("nbytes", [4, 64])
    def test_small_work_waits_for_its_stream(self, fixture: DriverFixture, nbytes: int) -> None:
        """A driver may have another way for a few bytes; it does not lead past the stream."""
        stream, data = fixture.stream(), pattern(64)
        filled, copied = fixture.alloc_with(data), fixture.alloc_with(flip(data))
        with fixture.hold(stream) as hold:
            fixture.driver.copy(copied, filled, nbytes, CopyKind.D2D, stream, blocking=False)
            fixture.driver.fill(filled, 7, 1, nbytes, stream)
            assert fixture.stays_pending(stream)
            assert same(fixture.read(copied, 64), flip(data)) and same(fixture.read(filled, 64), data)
            hold.release()
            fixture.driver.stream_synchronize(stream)
        assert same(fixture.read(copied, nbytes), data[:nbytes])
        assert same(fixture.read(filled, nbytes), np.full(nbytes, 7, np.uint8))

    def test_streams_are_independent(self, fixture: DriverFixture) -> None:
        held, free = fixture.stream(), fixture.stream()
        waiting, going = Upload(fixture, seed=1), Upload(fixture, seed=2)
        with fixture.hold(held) as hold:
            waiting.enqueue(held)
            going.enqueue(free)
            fixture.driver.stream_synchronize(free)
            assert going.arrived and not waiting.arrived
            assert fixture.driver.stream_query(free) and not fixture.driver.stream_query(held)
            hold.release()
            fixture.driver.stream_synchronize(held)
        assert waiting.arrived

    def test_a_hold_does_not_stop_earlier_work(self, fixture: DriverFixture) -> None:
        stream, early, late, event = fixture.stream(), Upload(fixture, seed=1), Upload(fixture, seed=2), fixture.event()
        early.enqueue(stream)
        fixture.driver.event_record(event, stream)
        with fixture.hold(stream) as hold:
            late.enqueue(stream)
            fixture.driver.event_synchronize(event)
            assert early.arrived and not late.arrived
            hold.release()
            fixture.driver.stream_synchronize(stream)
        assert late.arrived

    def test_holds_nest(self, fixture: DriverFixture) -> None:
        stream, upload = fixture.stream(), Upload(fixture)
        with fixture.hold(stream) as first, fixture.hold(stream) as second:
            upload.enqueue(stream)
            first.release()
            assert fixture.stays_pending(stream) and not upload.arrived
            second.release()
            fixture.driver.stream_synchronize(stream)
        assert upload.arrived

    # -- the default streams -------------------------------------------------------------------------------------------

    @pytest.mark.parametrize(
        ("earlier", "later"),
        [("blocking", "legacy"), ("legacy", "blocking"), ("legacy", "per-thread"), ("per-thread", "legacy")],
    )
    def test_legacy_and_blocking_streams_wait_for_each_other(
        self, fixture: DriverFixture, earlier: str, later: str
    ) -> None:
        """The legacy stream and the blocking streams, the per-thread streams among them, wait for each other."""
        first, second = fixture.stream_of_kind(earlier), fixture.stream_of_kind(later)
        early, late = Upload(fixture, seed=1), Upload(fixture, seed=2)
        with fixture.hold(first) as hold:
            early.enqueue(first)
            late.enqueue(second)
            assert fixture.stays_pending(second)
            assert not early.arrived and not late.arrived
            hold.release()
            fixture.driver.stream_synchronize(second)
            assert early.arrived and late.arrived

    def test_legacy_stream_waits_for_every_blocking_stream(self, fixture: DriverFixture) -> None:
        """For one that is neither the oldest nor the newest, with work on the others too."""
        streams = [fixture.stream(non_blocking=False) for _ in range(3)]
        uploads, late = [Upload(fixture, seed=n) for n in range(3)], Upload(fixture, seed=3)
        with fixture.hold(streams[1]) as hold:
            for upload, stream in zip(uploads, streams, strict=True):
                upload.enqueue(stream)
            late.enqueue(LEGACY_STREAM)
            assert fixture.stays_pending(LEGACY_STREAM)
            assert not late.arrived
            hold.release()
            fixture.driver.stream_synchronize(LEGACY_STREAM)
        assert late.arrived and all(upload.arrived for upload in uploads)

    @pytest.mark.parametrize(("held", "free"), [("legacy", "created"), ("created", "legacy"), ("blocking", "blocking")])
    def test_other_streams_do_not_wait_for_each_other(self, fixture: DriverFixture, held: str, free: str) -> None:
        """Neither between a non-blocking stream and the legacy stream, nor between two blocking streams."""
        first, second = fixture.stream_of_kind(held), fixture.stream_of_kind(free)
        waiting, going = Upload(fixture, seed=1), Upload(fixture, seed=2)
        with fixture.hold(first) as hold:
            waiting.enqueue(first)
            going.enqueue(second)
            fixture.driver.stream_synchronize(second)
            assert going.arrived and not waiting.arrived
            hold.release()
            fixture.driver.stream_synchronize(first)
        assert waiting.arrived

    def test_per_thread_streams_are_one_for_each_thread(self, fixture: DriverFixture) -> None:
        held, going = Upload(fixture, seed=1), Upload(fixture, seed=2)

        def elsewhere() -> None:
            going.enqueue(PER_THREAD_STREAM)
            fixture.driver.stream_synchronize(PER_THREAD_STREAM)
            assert fixture.driver.stream_query(PER_THREAD_STREAM)
            assert going.arrived and not held.arrived

        with fixture.hold(PER_THREAD_STREAM) as hold:
            held.enqueue(PER_THREAD_STREAM)
            fixture.run_in_thread(elsewhere).finish()
            hold.release()
            fixture.driver.stream_synchronize(PER_THREAD_STREAM)
        assert held.arrived

    # -- destroying ----------------------------------------------------------------------------------------------------

    def test_destroyed_stream_finishes_its_work(self, fixture: DriverFixture) -> None:
        # The stream waits for a held one by an event, so that the test does not hold a destroyed stream.
        held, stream, gate, done = fixture.stream(), fixture.stream(), fixture.event(), fixture.event()
        upload = Upload(fixture)
        with fixture.hold(held, patience=1.0, tolerant=True) as hold:  # destroying may wait, on some vendors
            fixture.driver.event_record(gate, held)
            fixture.driver.stream_wait(stream, gate)
            upload.enqueue(stream)
            fixture.driver.event_record(done, stream)
            fixture.destroy_stream(stream)
            seen = (
                upload.arrived,
                fixture.driver.event_query(done),
            )  # read before `expired` is checked
            if not hold.expired:
                assert seen == (False, False)
            hold.release()
            fixture.driver.event_synchronize(done)
        assert upload.arrived

    def test_device_synchronize_waits_for_a_destroyed_stream(self, fixture: DriverFixture) -> None:
        stream, upload = fixture.stream(), Upload(fixture)
        with fixture.hold(stream, patience=1.0, tolerant=True) as hold:  # destroying may wait, on some vendors
            upload.enqueue(stream)
            fixture.destroy_stream(stream)
            waiting = fixture.run_in_thread(fixture.driver.synchronize)
            early = waiting.done.wait(self.grace) and not hold.expired
            hold.release()
            waiting.finish()
        assert not early, "returned while work of the destroyed stream was pending"
        assert upload.arrived

    def test_device_synchronize_covers_destroyed_streams(self, fixture: DriverFixture) -> None:
        stream, uploads = fixture.stream(), [Upload(fixture, 1 << 20, seed=n) for n in range(4)]
        for upload in uploads:
            upload.enqueue(stream)
        fixture.destroy_stream(stream)
        fixture.driver.synchronize()
        assert all(upload.arrived for upload in uploads)

    # -- capture -------------------------------------------------------------------------------------------------------

    @pytest.mark.parametrize("which", ["created", "per-thread"])
    def test_streams_do_not_capture_by_themselves(self, fixture: DriverFixture, which: str) -> None:
        fixture.need(Capability.CAPTURE)
        assert isinstance(fixture.driver, SupportsCapture)
        assert fixture.driver.capturing(fixture.stream_of_kind(which)) is False
