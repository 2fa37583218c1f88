"""Optional: stream-ordered memory, strided and batched copies."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from devmem.spi.driver import SupportsBatchCopy, SupportsStreamOrdered, SupportsStridedCopy, SupportsVolumeCopy
from devmem.spi.errors import OutOfMemory
from devmem.spi.types import LEGACY_STREAM, PER_THREAD_STREAM, Capability, CopyKind

from .driver_fixture import Bytes, Harness, Rig, address, flip, pattern, same
from .driver_memory import ABSURD, described
from .driver_streams import Upload


class StreamOrderedChecks(Harness):
    def ordered(self, rig: Rig) -> SupportsStreamOrdered:
        rig.need(Capability.STREAM_ORDERED)
        assert isinstance(rig.driver, SupportsStreamOrdered)
        return rig.driver

    @pytest.mark.parametrize("which", ["created", "blocking", "legacy", "per-thread"])
    def test_alloc_async_is_usable_on_its_stream(self, rig: Rig, which: str) -> None:
        memory, stream = self.ordered(rig), streams(rig)[which]
        for nbytes in (1, 1000, 65_537, 1 << 20):
            data, back = pattern(nbytes), np.zeros(nbytes, np.uint8)
            ptr = memory.alloc_async(nbytes, stream)
            assert ptr and ptr % 256 == 0
            rig.driver.copy(ptr, address(data), nbytes, CopyKind.H2D, stream, blocking=False)
            rig.driver.copy(address(back), ptr, nbytes, CopyKind.D2H, stream, blocking=True)
            memory.free_async(ptr, nbytes, stream)
            assert same(back, data)

    def test_alloc_async_gives_distinct_memory(self, rig: Rig) -> None:
        memory, stream = self.ordered(rig), rig.stream()
        blocks = sorted((memory.alloc_async(1 + 397 * n, stream), 1 + 397 * n) for n in range(64))
        for (ptr, nbytes), (later, _) in itertools.pairwise(blocks):
            assert ptr + nbytes <= later
        for ptr, nbytes in blocks:
            memory.free_async(ptr, nbytes, stream)

    def test_alloc_async_out_of_memory(self, rig: Rig) -> None:
        memory, stream = self.ordered(rig), rig.stream()
        with pytest.raises(OutOfMemory) as caught:
            memory.alloc_async(ABSURD, stream)
        described(caught.value, rig)
        memory.free_async(memory.alloc_async(1000, stream), 1000, stream)

    def test_neither_waits(self, rig: Rig) -> None:
        memory, stream, driver = self.ordered(rig), rig.stream(), rig.driver
        source, back = rig.pinned(10_000), rig.pinned(10_000)
        source[:], back[:] = pattern(10_000), 0
        with rig.hold(stream) as latch:
            ptr = memory.alloc_async(10_000, stream)
            driver.copy(ptr, address(source), 10_000, CopyKind.H2D, stream, blocking=False)
            driver.copy(address(back), ptr, 10_000, CopyKind.D2H, stream, blocking=False)
            memory.free_async(ptr, 10_000, stream)
            assert not latch.expired, "alloc_async or free_async waited"
            latch.release()
            driver.stream_synchronize(stream)
        assert same(back, source), "work enqueued before free_async keeps its memory"

    def test_freed_memory_reaches_no_other_stream_early(self, rig: Rig) -> None:
        memory, held, other, driver = self.ordered(rig), rig.stream(), rig.stream(), rig.driver
        data, back = pattern(100_000), rig.pinned(100_000)
        back[:] = 0
        ptr = memory.alloc_async(data.size, held)
        driver.copy(ptr, address(data), data.size, CopyKind.H2D, held, blocking=True)
        # A pool may hand the block on and make the other stream wait for this one: then the latch gives way.
        with rig.hold(held, patience=1.0, tolerant=True) as latch:
            driver.copy(address(back), ptr, data.size, CopyKind.D2H, held, blocking=False)
            memory.free_async(ptr, data.size, held)
            blocks = [memory.alloc_async(data.size, other) for _ in range(4)]
            for block in blocks:
                driver.fill(block, 0xEE, 1, data.size, other)
                memory.free_async(block, data.size, other)
            driver.stream_synchronize(other)
            latch.release()
            driver.stream_synchronize(held)
        assert same(back, data), "memory was reused before the stream had passed its free_async"

    def test_freed_on_another_stream_that_waited(self, rig: Rig) -> None:
        memory, one, two, event = self.ordered(rig), rig.stream(), rig.stream(), rig.event()
        back = rig.pinned(1000)
        ptr = memory.alloc_async(1000, one)
        rig.driver.fill(ptr, 0x5A, 1, 1000, one)
        rig.driver.event_record(event, one)
        rig.driver.stream_wait(two, event)
        rig.driver.copy(address(back), ptr, 1000, CopyKind.D2H, two, blocking=False)
        memory.free_async(ptr, 1000, two)
        rig.driver.stream_synchronize(two)
        assert same(back, np.full(1000, 0x5A, np.uint8))

    def test_pool_is_trimmed(self, rig: Rig) -> None:
        memory, stream = self.ordered(rig), rig.stream()
        blocks = [memory.alloc_async(1 << 20, stream) for _ in range(8)]
        kept, data = blocks.pop(), pattern(1 << 20)
        rig.driver.copy(kept, address(data), data.size, CopyKind.H2D, stream, blocking=True)
        for ptr in blocks:
            memory.free_async(ptr, 1 << 20, stream)
        rig.driver.stream_synchronize(stream)
        assert memory.pool_cached() >= 0
        cached = []
        for keep in (2 << 20, (1 << 20) - 1, 1, 0):  # also less than a piece, which the driver has to give back whole
            memory.pool_trim(keep)
            cached.append(memory.pool_cached())
            assert cached[-1] <= keep or not self.strict
        assert min(cached) >= 0
        assert cached == sorted(cached, reverse=True)
        assert same(rig.read(kept, 1 << 20), data), "trimming took memory that is in use"
        memory.free_async(kept, 1 << 20, stream)
        rig.driver.stream_synchronize(stream)
        memory.pool_trim(0)

    @pytest.mark.parametrize("wait", ["stream", "device"])
    def test_waiting_gives_back_what_is_over_the_threshold(self, rig: Rig, wait: str) -> None:
        memory, stream, driver = self.ordered(rig), rig.stream(), rig.driver
        kept, data = memory.alloc_async(1 << 20, stream), pattern(1 << 20)
        driver.copy(kept, address(data), data.size, CopyKind.H2D, stream, blocking=True)

        def held() -> int:
            blocks = [memory.alloc_async(1 << 20, stream) for _ in range(8)]
            for ptr in blocks:
                memory.free_async(ptr, 1 << 20, stream)
            for _ in range(2):  # the first wait may find the frees not done yet
                driver.stream_synchronize(stream) if wait == "stream" else driver.synchronize()
            return memory.pool_cached()

        memory.pool_threshold((1 << 64) - 1)
        everything = held()
        memory.pool_threshold(0)
        nothing = held()
        assert 0 <= nothing <= everything
        if self.strict:
            assert nothing == 0
        memory.pool_threshold((1 << 64) - 1)
        assert held() == everything or not self.strict
        assert same(rig.read(kept, 1 << 20), data), "memory that is in use was given back"
        memory.free_async(kept, 1 << 20, stream)
        driver.stream_synchronize(stream)
        memory.pool_trim(0)

    def test_memory_comes_back(self, rig: Rig) -> None:
        rig.need_strict()
        memory, stream = self.ordered(rig), rig.stream()
        before, _ = rig.driver.memory_info()
        for _ in range(50):
            memory.free_async(memory.alloc_async(1 << 20, stream), 1 << 20, stream)
        rig.driver.stream_synchronize(stream)
        memory.pool_trim(0)
        assert rig.driver.memory_info()[0] == before


class StridedChecks(Harness):
    def strided(self, rig: Rig) -> SupportsStridedCopy:
        rig.need(Capability.STRIDED_COPY)
        assert isinstance(rig.driver, SupportsStridedCopy)
        return rig.driver

    @pytest.mark.parametrize("kind", list(CopyKind))
    @pytest.mark.parametrize(
        ("width", "height", "dst_pitch", "src_pitch"),
        [
            (1, 1, 1, 1),
            (1, 1000, 2, 3),
            (1, 1000, 4097, 1),
            (3, 77, 3, 64),
            (8, 500, 8, 16),
            (8, 500, 1000, 24),
            (64, 64, 64, 64),
            (100, 33, 101, 200),
            (4096, 200, 4096, 4096),
            (4095, 100, 5001, 8192),
            (1 << 20, 3, 1 << 20, (1 << 20) + 1),
            (10, 1, 10, 10),
            (10, 1, 5000, 12),
        ],
    )
    def test_copy_2d(self, rig: Rig, kind: CopyKind, width: int, height: int, dst_pitch: int, src_pitch: int) -> None:
        """Any pitch, narrow and wide rows, three directions; what lies between the rows stays as it was."""
        copy = self.strided(rig).copy_2d
        # The memory ends with the last row, not with its pitch: a copy that runs into the last gap is a copy too far.
        source = pattern(src_pitch * (height - 1) + width, 1)
        before = pattern(dst_pitch * (height - 1) + width, 2)
        expected, got = before.copy(), before.copy()
        rows(expected, dst_pitch, width, height)[:] = rows(source, src_pitch, width, height)
        here = address(source) if kind is CopyKind.H2D else rig.device(source)
        there = address(got) if kind is CopyKind.D2H else rig.device(before)
        running = copy(there, dst_pitch, here, src_pitch, width, height, kind, rig.side, blocking=True)
        assert running is False
        assert same(got if kind is CopyKind.D2H else rig.read(there, before.size), expected)

    @pytest.mark.parametrize("kind", [CopyKind.H2D, CopyKind.D2H])
    def test_copy_2d_tells_the_truth_about_pinned_memory(self, rig: Rig, kind: CopyKind) -> None:
        copy, stream = self.strided(rig).copy_2d, rig.stream()
        host, data = rig.pinned(64 * 100), pattern(64 * 100)
        ptr = rig.device(flip(data, 0x55) if kind is CopyKind.H2D else data)
        host[:] = data if kind is CopyKind.H2D else flip(data, 0x55)
        dst, src = (ptr, address(host)) if kind is CopyKind.H2D else (address(host), ptr)
        with rig.hold(stream) as latch:
            running = copy(dst, 64, src, 64, 64, 100, kind, stream, blocking=False)
            assert rig.waiting(stream)
            assert same(rig.read(ptr, 6400) if kind is CopyKind.H2D else host, flip(data, 0x55))
            assert running is True or kind is CopyKind.H2D
            if running is False:
                host[:] = 0
            latch.release()
            rig.driver.stream_synchronize(stream)
        assert same(rig.read(ptr, 6400) if kind is CopyKind.H2D else host, data)

    @pytest.mark.parametrize("kind", [CopyKind.H2D, CopyKind.D2H])
    def test_copy_2d_tells_the_truth_about_pageable_memory(self, rig: Rig, kind: CopyKind) -> None:
        copy, stream, data = self.strided(rig).copy_2d, rig.stream(), pattern(100 * 999)
        ptr = rig.device(data if kind is CopyKind.D2H else flip(data, 0x55))
        host = data.copy() if kind is CopyKind.H2D else np.zeros_like(data)
        dst, src = (ptr, address(host)) if kind is CopyKind.H2D else (address(host), ptr)
        running = copy(dst, 100, src, 100, 100, 999, kind, stream, blocking=False)
        if kind is CopyKind.H2D and not running:
            host[:] = 0
        if kind is CopyKind.H2D or running:
            rig.driver.stream_synchronize(stream)
        assert same(rig.read(ptr, data.size) if kind is CopyKind.H2D else host, data)


class VolumeChecks(Harness):
    def volume(self, rig: Rig) -> SupportsVolumeCopy:
        rig.need(Capability.VOLUME_COPY)
        assert isinstance(rig.driver, SupportsVolumeCopy)
        return rig.driver

    @pytest.mark.parametrize("kind", list(CopyKind))
    @pytest.mark.parametrize(
        ("width", "height", "depth", "dst_pitch", "dst_rows", "src_pitch", "src_rows"),
        [
            (1, 1, 1, 1, 1, 1, 1),
            (1, 50, 20, 2, 50, 3, 70),
            (8, 30, 4, 8, 30, 16, 31),
            (100, 3, 33, 101, 7, 200, 3),
            (4095, 10, 5, 5001, 11, 8192, 12),
        ],
    )
    def test_copy_3d(
        self,
        rig: Rig,
        kind: CopyKind,
        width: int,
        height: int,
        depth: int,
        dst_pitch: int,
        dst_rows: int,
        src_pitch: int,
        src_rows: int,
    ) -> None:
        """Any pitch and any distance of slices, three directions; what lies between rows and slices stays as it was."""
        copy = self.volume(rig).copy_3d
        source = pattern(src_pitch * (src_rows * (depth - 1) + height - 1) + width, 1)
        before = pattern(dst_pitch * (dst_rows * (depth - 1) + height - 1) + width, 2)
        expected, got = before.copy(), before.copy()
        for at in range(depth):
            there, here = expected[at * dst_rows * dst_pitch :], source[at * src_rows * src_pitch :]
            rows(there, dst_pitch, width, height)[:] = rows(here, src_pitch, width, height)
        origin = address(source) if kind is CopyKind.H2D else rig.device(source)
        target = address(got) if kind is CopyKind.D2H else rig.device(before)
        running = copy(
            target,
            dst_pitch,
            dst_rows,
            origin,
            src_pitch,
            src_rows,
            width,
            height,
            depth,
            kind,
            rig.side,
            blocking=True,
        )
        assert running is False
        assert same(got if kind is CopyKind.D2H else rig.read(target, before.size), expected)

    def test_copy_3d_is_ordered_on_its_stream(self, rig: Rig) -> None:
        copy, stream, data = self.volume(rig).copy_3d, rig.stream(), pattern(6 * 64)
        source, ptr = rig.device(data), rig.device(flip(data, 0x55))
        with rig.hold(stream) as latch:
            copy(ptr, 64, 3, source, 64, 3, 64, 3, 2, CopyKind.D2D, stream, blocking=False)
            assert rig.waiting(stream)
            assert same(rig.read(ptr, data.size), flip(data, 0x55))
            latch.release()
            rig.driver.stream_synchronize(stream)
        assert same(rig.read(ptr, data.size), data)


class BatchChecks(Harness):
    @pytest.mark.parametrize("kind", list(CopyKind))
    def test_copy_batch(self, rig: Rig, kind: CopyKind) -> None:
        copy, stream = self.batch(rig).copy_batch, rig.stream()
        sizes = [1, 3, 256, 4096, 65_537, 1 << 20, 7]
        data = [pattern(nbytes, seed=n) for n, nbytes in enumerate(sizes)]
        host = [one.copy() if kind is CopyKind.H2D else np.zeros_like(one) for one in data]
        source = [rig.device(one) for one in data]
        other = [rig.device(flip(one)) for one in data]
        dsts = [address(one) for one in host] if kind is CopyKind.D2H else other
        srcs = [address(one) for one in host] if kind is CopyKind.H2D else source
        running = copy(dsts, srcs, sizes, kind, stream)
        assert isinstance(running, bool)
        if kind is CopyKind.H2D and not running:
            for one in host:
                one[:] = 0
        if kind is not CopyKind.D2H or running:
            rig.driver.stream_synchronize(stream)
        for n, nbytes in enumerate(sizes):
            assert same(host[n] if kind is CopyKind.D2H else rig.read(dsts[n], nbytes), data[n])

    def test_copy_batch_takes_any_sequence_and_one_copy(self, rig: Rig) -> None:
        copy, data, ptr = self.batch(rig).copy_batch, pattern(100), rig.alloc(100)
        copy((ptr,), (address(data),), (100,), CopyKind.H2D, rig.side)
        assert same(rig.read(ptr, 100), data)

    def test_copy_batch_is_ordered_on_its_stream(self, rig: Rig) -> None:
        copy, stream, driver = self.batch(rig).copy_batch, rig.stream(), rig.driver
        uploads = [Upload(rig, 1000, seed=n) for n in range(5)]
        back = rig.pinned(1000)
        back[:] = 0
        sources = [address(upload.data) for upload in uploads]
        with rig.hold(stream) as latch:
            copy([upload.ptr for upload in uploads], sources, [1000] * 5, CopyKind.H2D, stream)
            driver.copy(address(back), uploads[-1].ptr, 1000, CopyKind.D2H, stream, blocking=False)
            assert rig.waiting(stream)
            assert not any(upload.arrived for upload in uploads)
            latch.release()
            driver.stream_synchronize(stream)
        assert all(upload.arrived for upload in uploads)
        assert same(back, uploads[-1].data)

    def batch(self, rig: Rig) -> SupportsBatchCopy:
        rig.need(Capability.BATCH_COPY)
        assert isinstance(rig.driver, SupportsBatchCopy)
        return rig.driver


def streams(rig: Rig) -> dict[str, int]:
    return {
        "created": rig.stream(),
        "blocking": rig.stream(non_blocking=False),
        "legacy": LEGACY_STREAM,
        "per-thread": PER_THREAD_STREAM,
    }


def rows(data: Bytes, pitch: int, width: int, height: int) -> Bytes:
    return np.lib.stride_tricks.as_strided(data, (height, width), (pitch, 1))
