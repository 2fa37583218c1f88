"""Copies and fills: that the right bytes arrive, that no others change, and that the host side is told the truth."""

from __future__ import annotations

import numpy as np
import pytest

from devmem.spi.types import LEGACY_STREAM, PER_THREAD_STREAM, CopyKind

from .driver_fixture import Harness, Rig, address, flip, pattern, same

SIZES = (1, 2, 3, 7, 255, 256, 257, 4095, 4096, 65_536, 65_537, 1 << 20, (4 << 20) + 5)


class CopyChecks(Harness):
    # -- bytes ---------------------------------------------------------------------------------------------------------

    @pytest.mark.parametrize("nbytes", SIZES)
    def test_round_trip(self, rig: Rig, nbytes: int) -> None:
        data, back = pattern(nbytes), np.zeros(nbytes, np.uint8)
        ptr, stream = rig.alloc(nbytes), rig.stream()
        rig.driver.copy(ptr, address(data), nbytes, CopyKind.H2D, stream, blocking=True)
        assert same(rig.read(ptr, nbytes), data)
        rig.driver.copy(address(back), ptr, nbytes, CopyKind.D2H, stream, blocking=True)
        assert same(back, data)

    @pytest.mark.parametrize("nbytes", SIZES)
    def test_round_trip_without_blocking(self, rig: Rig, nbytes: int) -> None:
        data, back = pattern(nbytes), np.zeros(nbytes, np.uint8)
        ptr, stream = rig.alloc(nbytes), rig.stream()
        rig.driver.copy(ptr, address(data), nbytes, CopyKind.H2D, stream, blocking=False)
        rig.driver.copy(address(back), ptr, nbytes, CopyKind.D2H, stream, blocking=False)
        rig.driver.stream_synchronize(stream)
        assert same(back, data)

    @pytest.mark.parametrize("nbytes", SIZES)
    def test_round_trip_through_pinned_memory(self, rig: Rig, nbytes: int) -> None:
        source, back, stream = rig.pinned(nbytes), rig.pinned(nbytes), rig.stream()
        source[:] = pattern(nbytes)
        back[:] = 0
        ptr = rig.alloc(nbytes)
        rig.driver.copy(ptr, address(source), nbytes, CopyKind.H2D, stream, blocking=False)
        rig.driver.copy(address(back), ptr, nbytes, CopyKind.D2H, stream, blocking=False)
        rig.driver.stream_synchronize(stream)
        assert same(back, source)

    @pytest.mark.parametrize("nbytes", SIZES)
    def test_device_to_device(self, rig: Rig, nbytes: int) -> None:
        data = pattern(nbytes)
        source, ptr = rig.device(data), rig.device(flip(data))
        rig.driver.copy(ptr, source, nbytes, CopyKind.D2D, rig.side, blocking=True)
        assert same(rig.read(ptr, nbytes), data)
        assert same(rig.read(source, nbytes), data)

    @pytest.mark.parametrize("stream", [LEGACY_STREAM, PER_THREAD_STREAM])
    def test_default_streams_copy(self, rig: Rig, stream: int) -> None:
        data, back = pattern(5000), np.zeros(5000, np.uint8)
        ptr = rig.alloc(5000)
        rig.driver.copy(ptr, address(data), 5000, CopyKind.H2D, stream, blocking=False)
        rig.driver.copy(address(back), ptr, 5000, CopyKind.D2H, stream, blocking=False)
        rig.driver.stream_synchronize(stream)
        assert same(back, data)

    @pytest.mark.parametrize("kind", list(CopyKind))
    @pytest.mark.parametrize(("to", "start", "nbytes"), [(0, 1, 1), (1, 0, 4095), (13, 7, 100), (4097, 255, 9001)])
    def test_inside_of_blocks(self, rig: Rig, kind: CopyKind, to: int, start: int, nbytes: int) -> None:
        """Interior addresses, unaligned on both sides; the neighbours stay as they were."""
        room = 20_000
        source, before = pattern(room, 1), pattern(room, 2)
        expected = before.copy()
        expected[to : to + nbytes] = source[start : start + nbytes]
        got = before.copy()
        here = address(source) if kind is CopyKind.H2D else rig.device(source)
        there = address(got) if kind is CopyKind.D2H else rig.device(before)
        rig.driver.copy(there + to, here + start, nbytes, kind, rig.side, blocking=True)
        assert same(got if kind is CopyKind.D2H else rig.read(there, room), expected)

    def test_within_one_block(self, rig: Rig) -> None:
        data = pattern(10_000)
        ptr = rig.device(data)
        rig.driver.copy(ptr + 5001, ptr + 3, 4000, CopyKind.D2D, rig.side, blocking=True)
        data[5001:9001] = data[3:4003]
        assert same(rig.read(ptr, data.size), data)

    def test_uploads_are_snapshots(self, rig: Rig) -> None:
        """A driver that kept the host's address instead of its bytes would be found out here."""
        data = pattern(10_000)
        expected = data.copy()
        ptr = rig.device(data)
        data[:] = 0
        assert same(rig.read(ptr, expected.size), expected)

    def test_read_only_sources(self, rig: Rig) -> None:
        data = np.frombuffer(bytes(range(256)) * 4, np.uint8)
        assert same(rig.read(rig.device(data), data.size), data)

    # -- blocking ------------------------------------------------------------------------------------------------------

    @pytest.mark.parametrize("kind", list(CopyKind))
    @pytest.mark.parametrize("where", ["pageable", "pinned"])
    def test_blocking_is_complete_on_return(self, rig: Rig, kind: CopyKind, where: str) -> None:
        nbytes, stream = 3 << 20, rig.stream()
        data = pattern(nbytes)
        ptr, other = rig.device(data), rig.alloc(nbytes)
        host = rig.pinned(nbytes) if where == "pinned" else np.empty(nbytes, np.uint8)
        host[:] = data if kind is CopyKind.H2D else 0
        dst, src = {
            CopyKind.H2D: (other, address(host)),
            CopyKind.D2H: (address(host), ptr),
            CopyKind.D2D: (other, ptr),
        }[kind]
        running = rig.driver.copy(dst, src, nbytes, kind, stream, blocking=True)
        assert running is False, "nothing is running after a blocking copy"
        if kind is CopyKind.H2D:
            host[:] = 0
        assert rig.driver.stream_query(stream)
        assert same(host if kind is CopyKind.D2H else rig.read(other, nbytes), data)

    @pytest.mark.parametrize("kind", list(CopyKind))
    def test_blocking_waits_its_turn(self, rig: Rig, kind: CopyKind) -> None:
        data = pattern(1000)
        first, ptr, other, stream = rig.pinned(1000), rig.device(flip(data)), rig.alloc(1000), rig.stream()
        first[:] = data
        back, late = np.zeros(1000, np.uint8), flip(data, 0x0F)
        dst, src = {
            CopyKind.H2D: (ptr, address(late)),
            CopyKind.D2H: (address(back), ptr),
            CopyKind.D2D: (other, ptr),
        }[kind]
        with rig.hold(stream) as latch:
            rig.driver.copy(ptr, address(first), 1000, CopyKind.H2D, stream, blocking=False)
            copying = rig.start(lambda: rig.driver.copy(dst, src, 1000, kind, stream, blocking=True))
            assert not copying.done.wait(self.grace), "a blocking copy returned while its stream was held"
            latch.release()
            copying.finish()
        if kind is CopyKind.D2H:
            assert same(back, data)
        else:
            assert same(rig.read(dst, 1000), late if kind is CopyKind.H2D else data)

    # -- the truth about the host side ---------------------------------------------------------------------------------

    @pytest.mark.parametrize("nbytes", [1, 4096, 1 << 20])
    def test_pinned_source_is_read_later(self, rig: Rig, nbytes: int) -> None:
        source, stream = rig.pinned(nbytes), rig.stream()
        data = pattern(nbytes)
        ptr = rig.device(flip(data, 0x55))
        source[:] = data
        with rig.hold(stream) as latch:
            running = rig.driver.copy(ptr, address(source), nbytes, CopyKind.H2D, stream, blocking=False)
            assert isinstance(running, bool)
            assert rig.waiting(stream)
            assert same(rig.read(ptr, nbytes), flip(data, 0x55)), "the copy did not wait for its stream"
            source[:] = flip(data)
            latch.release()
            rig.driver.stream_synchronize(stream)
        got = rig.read(ptr, nbytes)
        if running and (self.strict or not np.array_equal(got, data)):
            assert same(got, flip(data)), "what arrives is what the source held when the copy ran"
        elif not running:
            assert same(got, data), "the source was touched after the driver said that it was done with it"

    @pytest.mark.parametrize("nbytes", [1, 4096, 1 << 20])
    def test_pinned_destination_is_written_later(self, rig: Rig, nbytes: int) -> None:
        back, stream = rig.pinned(nbytes), rig.stream()
        data = pattern(nbytes)
        ptr = rig.device(data)
        back[:] = flip(data)
        with rig.hold(stream) as latch:
            running = rig.driver.copy(address(back), ptr, nbytes, CopyKind.D2H, stream, blocking=False)
            assert running is True, "the host side will be written after the call"
            assert same(back, flip(data)), "the copy did not wait for its stream"
            latch.release()
            rig.driver.stream_synchronize(stream)
        assert same(back, data)

    @pytest.mark.parametrize("nbytes", [1, 4096, 65_537, 4 << 20])
    def test_pageable_source_may_change_after_false(self, rig: Rig, nbytes: int) -> None:
        data, stream = pattern(nbytes), rig.stream()
        expected = data.copy()
        ptr = rig.device(flip(data, 0x55))
        running = rig.driver.copy(ptr, address(data), nbytes, CopyKind.H2D, stream, blocking=False)
        if not running:
            data[:] = flip(expected)
        rig.driver.stream_synchronize(stream)
        assert same(rig.read(ptr, nbytes), expected)

    @pytest.mark.parametrize("nbytes", [1, 4096, 65_537])
    def test_pageable_source_under_a_latch(self, rig: Rig, nbytes: int) -> None:
        data, stream = pattern(nbytes), rig.stream()
        expected = data.copy()
        ptr = rig.device(flip(data, 0x55))
        # Vendors may wait for the stream before they stage pageable memory: the latch gives way then, and that is right.
        with rig.hold(stream, patience=0.5, tolerant=True) as latch:
            running = rig.driver.copy(ptr, address(data), nbytes, CopyKind.H2D, stream, blocking=False)
            if not running:
                data[:] = flip(expected)
            seen = rig.read(ptr, nbytes)  # before it is asked whether the latch held until then
            if not latch.expired:
                assert same(seen, flip(expected, 0x55)), "the copy did not wait for its stream"
            latch.release()
            rig.driver.stream_synchronize(stream)
        assert same(rig.read(ptr, nbytes), expected)

    @pytest.mark.parametrize("nbytes", [1, 4096, 65_537, 4 << 20])
    def test_pageable_destination_is_complete_after_false(self, rig: Rig, nbytes: int) -> None:
        data, stream = pattern(nbytes), rig.stream()
        source, back = rig.device(data), np.zeros(nbytes, np.uint8)
        ptr = rig.alloc(nbytes)
        rig.driver.copy(ptr, source, nbytes, CopyKind.D2D, stream, blocking=False)
        if rig.driver.copy(address(back), ptr, nbytes, CopyKind.D2H, stream, blocking=False):
            rig.driver.stream_synchronize(stream)
        assert same(back, data)

    def test_device_to_device_has_no_host_side(self, rig: Rig) -> None:
        source, ptr = rig.device(pattern(1000)), rig.alloc(1000)
        assert rig.driver.copy(ptr, source, 1000, CopyKind.D2D, rig.side, blocking=False) is False

    # -- fill ----------------------------------------------------------------------------------------------------------

    @pytest.mark.parametrize("width", [1, 2, 4])
    @pytest.mark.parametrize("count", [1, 2, 3, 255, 1000, 65_537, 1 << 20])
    def test_fill(self, rig: Rig, width: int, count: int) -> None:
        value = {1: 0x9C, 2: 0x9C01, 4: 0x9C01_02FE}[width]
        ptr = rig.alloc(width * count)
        rig.driver.fill(ptr, value, width, count, rig.side)
        expected = np.full(count, value, f"=u{width}").view(np.uint8)
        assert same(rig.read(ptr, width * count), expected)

    @pytest.mark.parametrize("width", [1, 2, 4])
    @pytest.mark.parametrize("extreme", ["zero", "one", "largest"])
    def test_fill_value(self, rig: Rig, width: int, extreme: str) -> None:
        value = {"zero": 0, "one": 1, "largest": 256**width - 1}[extreme]
        ptr = rig.device(pattern(400))
        rig.driver.fill(ptr, value, width, 400 // width, rig.side)
        assert same(rig.read(ptr, 400), np.full(400 // width, value, f"=u{width}").view(np.uint8))

    @pytest.mark.parametrize("width", [1, 2, 4])
    def test_fill_touches_nothing_else(self, rig: Rig, width: int) -> None:
        data = pattern(1000)
        ptr = rig.device(data)
        rig.driver.fill(ptr + 3 * width, 0x11, width, 50, rig.side)
        data[3 * width : 53 * width] = np.full(50, 0x11, f"=u{width}").view(np.uint8)
        assert same(rig.read(ptr, data.size), data)

    def test_fill_is_ordered_on_its_stream(self, rig: Rig) -> None:
        data, stream = pattern(1000), rig.stream()
        ptr = rig.device(data)
        with rig.hold(stream) as latch:
            rig.driver.fill(ptr, 0xEE, 1, 1000, stream)
            assert rig.waiting(stream)
            assert same(rig.read(ptr, 1000), data)
            latch.release()
            rig.driver.stream_synchronize(stream)
        assert same(rig.read(ptr, 1000), np.full(1000, 0xEE, np.uint8))
