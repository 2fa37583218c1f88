"""Copies and fills: the right bytes arrive, no other bytes change, and the result says when host memory may be used."""

from __future__ import annotations

import numpy as np
import pytest

from devmem.spi.types import LEGACY_STREAM, PER_THREAD_STREAM, CopyKind

from .driver_fixture import THREADS, ConformanceSuite, DriverFixture, address, flip, pattern, same

#: What only page-locked memory may be.
READ = "pageable memory was read, or written, before the call returned: it is not still touched"
SIZES = (1, 2, 3, 7, 255, 256, 257, 4095, 4096, 65_536, 65_537, 1 << 20, (4 << 20) + 5)


class CopyChecks(ConformanceSuite):
    # -- bytes ---------------------------------------------------------------------------------------------------------

    @pytest.mark.parametrize("nbytes", SIZES)
    def test_round_trip_keeps_every_byte(self, fixture: DriverFixture, nbytes: int) -> None:
        data, back = pattern(nbytes), np.zeros(nbytes, np.uint8)
        ptr, stream = fixture.alloc(nbytes), fixture.stream()
        fixture.driver.copy(ptr, address(data), nbytes, CopyKind.H2D, stream, blocking=True)
        assert same(fixture.read(ptr, nbytes), data)
        fixture.driver.copy(address(back), ptr, nbytes, CopyKind.D2H, stream, blocking=True)
        assert same(back, data)

    @pytest.mark.parametrize("nbytes", SIZES)
    def test_round_trip_without_blocking(self, fixture: DriverFixture, nbytes: int) -> None:
        data, back = pattern(nbytes), np.zeros(nbytes, np.uint8)
        ptr, stream = fixture.alloc(nbytes), fixture.stream()
        fixture.driver.copy(ptr, address(data), nbytes, CopyKind.H2D, stream, blocking=False)
        fixture.driver.copy(address(back), ptr, nbytes, CopyKind.D2H, stream, blocking=False)
        fixture.driver.stream_synchronize(stream)
        assert same(back, data)

    @pytest.mark.parametrize("nbytes", SIZES)
    def test_round_trip_through_pinned_memory(self, fixture: DriverFixture, nbytes: int) -> None:
        source, back, stream = fixture.pinned(nbytes), fixture.pinned(nbytes), fixture.stream()
        source[:] = pattern(nbytes)
        back[:] = 0
        ptr = fixture.alloc(nbytes)
        fixture.driver.copy(ptr, address(source), nbytes, CopyKind.H2D, stream, blocking=False)
        fixture.driver.copy(address(back), ptr, nbytes, CopyKind.D2H, stream, blocking=False)
        fixture.driver.stream_synchronize(stream)
        assert same(back, source)

    def test_large_copies_keep_every_byte(self, fixture: DriverFixture) -> None:
        """Larger than the memory by way of which a driver may copy pageable memory, and no multiple of it."""
        data = pattern((33 << 20) + 5)
        ptr, back, stream = fixture.alloc(data.size), np.zeros_like(data), fixture.stream()
        fixture.driver.copy(ptr, address(data), data.size, CopyKind.H2D, stream, blocking=False)
        fixture.driver.copy(address(back), ptr, data.size, CopyKind.D2H, stream, blocking=True)
        assert same(back, data)

    @pytest.mark.parametrize("nbytes", SIZES)
    def test_device_to_device_keeps_every_byte(self, fixture: DriverFixture, nbytes: int) -> None:
        data = pattern(nbytes)
        source, ptr = fixture.alloc_with(data), fixture.alloc_with(flip(data))
        fixture.driver.copy(ptr, source, nbytes, CopyKind.D2D, fixture.unheld_stream, blocking=True)
        assert same(fixture.read(ptr, nbytes), data)
        assert same(fixture.read(source, nbytes), data)

    @pytest.mark.parametrize("stream", [LEGACY_STREAM, PER_THREAD_STREAM])
    def test_default_streams_copy(self, fixture: DriverFixture, stream: int) -> None:
        data, back = pattern(5000), np.zeros(5000, np.uint8)
        ptr = fixture.alloc(5000)
        fixture.driver.copy(ptr, address(data), 5000, CopyKind.H2D, stream, blocking=False)
        fixture.driver.copy(address(back), ptr, 5000, CopyKind.D2H, stream, blocking=False)
        fixture.driver.stream_synchronize(stream)
        assert same(back, data)

    @pytest.mark.parametrize("kind", list(CopyKind))
    @pytest.mark.parametrize(("to", "start", "nbytes"), [(0, 1, 1), (1, 0, 4095), (13, 7, 100), (4097, 255, 9001)])
    def test_copies_inside_of_blocks_touch_nothing_else(
        self, fixture: DriverFixture, kind: CopyKind, to: int, start: int, nbytes: int
    ) -> None:
        """Interior addresses, unaligned on both sides; the bytes around the copy do not change."""
        room = 20_000
        source, before = pattern(room, 1), pattern(room, 2)
        expected = before.copy()
        expected[to : to + nbytes] = source[start : start + nbytes]
        got = before.copy()
        here = address(source) if kind is CopyKind.H2D else fixture.alloc_with(source)
        there = address(got) if kind is CopyKind.D2H else fixture.alloc_with(before)
        fixture.driver.copy(there + to, here + start, nbytes, kind, fixture.unheld_stream, blocking=True)
        assert same(got if kind is CopyKind.D2H else fixture.read(there, room), expected)

    def test_within_one_block(self, fixture: DriverFixture) -> None:
        data = pattern(10_000)
        ptr = fixture.alloc_with(data)
        fixture.driver.copy(ptr + 5001, ptr + 3, 4000, CopyKind.D2D, fixture.unheld_stream, blocking=True)
        data[5001:9001] = data[3:4003]
        assert same(fixture.read(ptr, data.size), data)

    def test_uploads_are_snapshots(self, fixture: DriverFixture) -> None:
        """Finds a driver that keeps the address of the host memory instead of its bytes."""
        data = pattern(10_000)
        expected = data.copy()
        ptr = fixture.alloc_with(data)
        data[:] = 0
        assert same(fixture.read(ptr, expected.size), expected)

    def test_read_only_sources(self, fixture: DriverFixture) -> None:
        data = np.frombuffer(bytes(range(256)) * 4, np.uint8)
        assert same(fixture.read(fixture.alloc_with(data), data.size), data)

    # -- blocking ------------------------------------------------------------------------------------------------------

    @pytest.mark.parametrize("kind", list(CopyKind))
    @pytest.mark.parametrize("where", ["pageable", "pinned"])
    def test_blocking_is_complete_on_return(self, fixture: DriverFixture, kind: CopyKind, where: str) -> None:
        nbytes, stream = 3 << 20, fixture.stream()
        data = pattern(nbytes)
        ptr, other = fixture.alloc_with(data), fixture.alloc(nbytes)
        host = fixture.pinned(nbytes) if where == "pinned" else np.empty(nbytes, np.uint8)
        host[:] = data if kind is CopyKind.H2D else 0
        dst, src = {
            CopyKind.H2D: (other, address(host)),
            CopyKind.D2H: (address(host), ptr),
            CopyKind.D2D: (other, ptr),
        }[kind]
        running = fixture.driver.copy(dst, src, nbytes, kind, stream, blocking=True)
        assert running is False, "nothing is running after a blocking copy"
        if kind is CopyKind.H2D:
            host[:] = 0
        assert fixture.driver.stream_query(stream)
        assert same(host if kind is CopyKind.D2H else fixture.read(other, nbytes), data)

    @pytest.mark.parametrize("kind", list(CopyKind))
    def test_blocking_waits_for_earlier_work(self, fixture: DriverFixture, kind: CopyKind) -> None:
        data = pattern(1000)
        first, ptr, other, stream = (
            fixture.pinned(1000),
            fixture.alloc_with(flip(data)),
            fixture.alloc(1000),
            fixture.stream(),
        )
        first[:] = data
        back, late = np.zeros(1000, np.uint8), flip(data, 0x0F)
        dst, src = {
            CopyKind.H2D: (ptr, address(late)),
            CopyKind.D2H: (address(back), ptr),
            CopyKind.D2D: (other, ptr),
        }[kind]
        with fixture.hold(stream) as hold:
            fixture.driver.copy(ptr, address(first), 1000, CopyKind.H2D, stream, blocking=False)
            copying = fixture.run_in_thread(lambda: fixture.driver.copy(dst, src, 1000, kind, stream, blocking=True))
            assert not copying.done.wait(self.grace), "a blocking copy returned while its stream was held"
            hold.release()
            copying.finish()
        if kind is CopyKind.D2H:
            assert same(back, data)
        else:
            assert same(fixture.read(dst, 1000), late if kind is CopyKind.H2D else data)

    # -- when host memory may be used again ----------------------------------------------------------------------------

    @pytest.mark.parametrize("nbytes", [1, 4096, 1 << 20])
    def test_pinned_source_is_read_later(self, fixture: DriverFixture, nbytes: int) -> None:
        source, stream = fixture.pinned(nbytes), fixture.stream()
        data = pattern(nbytes)
        ptr = fixture.alloc_with(flip(data, 0x55))
        source[:] = data
        with fixture.hold(stream) as hold:
            running = fixture.driver.copy(ptr, address(source), nbytes, CopyKind.H2D, stream, blocking=False)
            assert isinstance(running, bool)
            assert fixture.stays_pending(stream)
            assert same(fixture.read(ptr, nbytes), flip(data, 0x55)), "the copy did not wait for its stream"
            source[:] = flip(data)
            hold.release()
            fixture.driver.stream_synchronize(stream)
        got = fixture.read(ptr, nbytes)
        if running and (self.strict or not np.array_equal(got, data)):
            assert same(got, flip(data)), "what arrives is what the source held when the copy ran"
        elif not running:
            assert same(got, data), "the driver read the source after it returned False"

    @pytest.mark.parametrize("nbytes", [1, 4096, 1 << 20])
    def test_pinned_destination_is_written_later(self, fixture: DriverFixture, nbytes: int) -> None:
        back, stream = fixture.pinned(nbytes), fixture.stream()
        data = pattern(nbytes)
        ptr = fixture.alloc_with(data)
        back[:] = flip(data)
        with fixture.hold(stream) as hold:
            running = fixture.driver.copy(address(back), ptr, nbytes, CopyKind.D2H, stream, blocking=False)
            assert running is True, "the host side will be written after the call"
            assert same(back, flip(data)), "the copy did not wait for its stream"
            hold.release()
            fixture.driver.stream_synchronize(stream)
        assert same(back, data)

    @pytest.mark.parametrize("kind", [CopyKind.H2D, CopyKind.D2H])
    def test_addresses_inside_of_pinned_memory_are_pinned(self, fixture: DriverFixture, kind: CopyKind) -> None:
        """The result tells the truth about them: False says that the host side is not touched any more."""
        host, stream, data = fixture.pinned(8192), fixture.stream(), pattern(4000)
        part, before = host[100:4100], flip(data, 0x55)
        upload = kind is CopyKind.H2D
        ptr = fixture.alloc_with(before if upload else data)
        part[:] = data if upload else before
        dst, src = (ptr, address(part)) if upload else (address(part), ptr)
        with fixture.hold(stream) as hold:
            running = fixture.driver.copy(dst, src, 4000, kind, stream, blocking=False)
            assert same(fixture.read(ptr, 4000) if upload else part, before), "the copy did not wait for its stream"
            if upload:
                part[:] = flip(data)
            hold.release()
            fixture.driver.stream_synchronize(stream)
        if not upload:
            assert running is True, "the host side was written after the call"
            assert same(part, data)
        elif not running:
            assert same(fixture.read(ptr, 4000), data), "the driver read the source after it returned False"

    @pytest.mark.parametrize("nbytes", [1, 4096, 65_537, 4 << 20])
    def test_pageable_source_has_been_read_on_return(self, fixture: DriverFixture, nbytes: int) -> None:
        data, stream = pattern(nbytes), fixture.stream()
        expected = data.copy()
        ptr = fixture.alloc_with(flip(data, 0x55))
        running = fixture.driver.copy(ptr, address(data), nbytes, CopyKind.H2D, stream, blocking=False)
        data[:] = flip(expected)
        assert running is False, READ
        fixture.driver.stream_synchronize(stream)
        assert same(fixture.read(ptr, nbytes), expected)

    @pytest.mark.parametrize("nbytes", [1, 4096, 65_537])
    def test_pageable_source_on_a_held_stream(self, fixture: DriverFixture, nbytes: int) -> None:
        data, stream = pattern(nbytes), fixture.stream()
        expected = data.copy()
        ptr = fixture.alloc_with(flip(data, 0x55))
        # A vendor may wait for the stream before it stages pageable memory; the hold then expires, which is allowed.
        with fixture.hold(stream, patience=0.5, tolerant=True) as hold:
            running = fixture.driver.copy(ptr, address(data), nbytes, CopyKind.H2D, stream, blocking=False)
            data[:] = flip(expected)
            assert running is False, READ
            seen = fixture.read(ptr, nbytes)  # read before `expired` is checked
            if not hold.expired:
                assert same(seen, flip(expected, 0x55)), "the copy did not wait for its stream"
            hold.release()
            fixture.driver.stream_synchronize(stream)
        assert same(fixture.read(ptr, nbytes), expected)

    def test_pageable_sources_of_threads_are_kept_apart_on_a_held_stream(self, fixture: DriverFixture) -> None:
        """A driver that keeps copies of them keeps each until the stream has passed it, whatever other threads enqueue."""
        stream, turns, nbytes = fixture.stream(), 150, 64
        blocks = [fixture.alloc(turns * nbytes) for _ in range(THREADS)]

        sources = [pattern(turns * nbytes, seed=number) for number in range(THREADS)]

        def work(number: int) -> None:
            for at in range(0, turns * nbytes, nbytes):
                data = sources[number][at : at + nbytes].copy()
                fixture.driver.copy(blocks[number] + at, address(data), nbytes, CopyKind.H2D, stream, blocking=False)
                data[:] = flip(data)

        with fixture.hold(stream, patience=0.5, tolerant=True):
            fixture.run_in_threads(THREADS, work)
        fixture.driver.stream_synchronize(stream)
        for data, ptr in zip(sources, blocks, strict=True):
            assert same(fixture.read(ptr, turns * nbytes), data)

    @pytest.mark.parametrize("nbytes", [1, 4096, 65_537, 4 << 20])
    def test_pageable_destination_is_complete_on_return(self, fixture: DriverFixture, nbytes: int) -> None:
        data, stream = pattern(nbytes), fixture.stream()
        source, back = fixture.alloc_with(data), np.zeros(nbytes, np.uint8)
        ptr = fixture.alloc(nbytes)
        fixture.driver.copy(ptr, source, nbytes, CopyKind.D2D, stream, blocking=False)
        running = fixture.driver.copy(address(back), ptr, nbytes, CopyKind.D2H, stream, blocking=False)
        assert same(back, data)
        assert running is False, READ

    def test_device_to_device_has_no_host_side(self, fixture: DriverFixture) -> None:
        source, ptr = fixture.alloc_with(pattern(1000)), fixture.alloc(1000)
        assert fixture.driver.copy(ptr, source, 1000, CopyKind.D2D, fixture.unheld_stream, blocking=False) is False

    # -- fill ----------------------------------------------------------------------------------------------------------

    @pytest.mark.parametrize("width", [1, 2, 4])
    @pytest.mark.parametrize("count", [1, 2, 3, 255, 1000, 65_537, 1 << 20])
    def test_fill_stores_the_value_as_often_as_asked(self, fixture: DriverFixture, width: int, count: int) -> None:
        value = {1: 0x9C, 2: 0x9C01, 4: 0x9C01_02FE}[width]
        ptr = fixture.alloc(width * count)
        fixture.driver.fill(ptr, value, width, count, fixture.unheld_stream)
        expected = np.full(count, value, f"=u{width}").view(np.uint8)
        assert same(fixture.read(ptr, width * count), expected)

    @pytest.mark.parametrize("width", [1, 2, 4])
    @pytest.mark.parametrize("extreme", ["zero", "one", "largest"])
    def test_fill_stores_every_bit_of_the_value(self, fixture: DriverFixture, width: int, extreme: str) -> None:
        value = {"zero": 0, "one": 1, "largest": 256**width - 1}[extreme]
        ptr = fixture.alloc_with(pattern(400))
        fixture.driver.fill(ptr, value, width, 400 // width, fixture.unheld_stream)
        assert same(fixture.read(ptr, 400), np.full(400 // width, value, f"=u{width}").view(np.uint8))

    @pytest.mark.parametrize("width", [1, 2, 4])
    def test_fill_touches_nothing_else(self, fixture: DriverFixture, width: int) -> None:
        data = pattern(1000)
        ptr = fixture.alloc_with(data)
        fixture.driver.fill(ptr + 3 * width, 0x11, width, 50, fixture.unheld_stream)
        data[3 * width : 53 * width] = np.full(50, 0x11, f"=u{width}").view(np.uint8)
        assert same(fixture.read(ptr, data.size), data)

    def test_fill_is_ordered_on_its_stream(self, fixture: DriverFixture) -> None:
        data, stream = pattern(1000), fixture.stream()
        ptr = fixture.alloc_with(data)
        with fixture.hold(stream) as hold:
            fixture.driver.fill(ptr, 0xEE, 1, 1000, stream)
            assert fixture.stays_pending(stream)
            assert same(fixture.read(ptr, 1000), data)
            hold.release()
            fixture.driver.stream_synchronize(stream)
        assert same(fixture.read(ptr, 1000), np.full(1000, 0xEE, np.uint8))
