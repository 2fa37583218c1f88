"""Optional: stream-ordered memory, strided and batched copies."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from devmem.spi.driver import (
    SupportsBatchCopy,
    SupportsDecompressPool,
    SupportsPoolControl,
    SupportsSharedPool,
    SupportsStreamOrdered,
    SupportsStridedCopy,
    SupportsVolumeBatch,
)
from devmem.spi.errors import OutOfMemory
from devmem.spi.types import LEGACY_STREAM, PER_THREAD_STREAM, Box, Capability, CopyKind

from .driver_fixture import STREAM_KINDS, Bytes, ConformanceSuite, DriverFixture, address, flip, pattern, same
from .driver_memory import TOO_LARGE, check_error
from .driver_streams import Upload


class StreamOrderedChecks(ConformanceSuite):
    def ordered(self, fixture: DriverFixture) -> SupportsStreamOrdered:
        fixture.need(Capability.STREAM_ORDERED)
        assert isinstance(fixture.driver, SupportsStreamOrdered)
        return fixture.driver

    @pytest.mark.parametrize("which", STREAM_KINDS)
    def test_alloc_async_is_usable_on_its_stream(self, fixture: DriverFixture, which: str) -> None:
        memory, stream = self.ordered(fixture), fixture.stream_of_kind(which)
        for nbytes in (1, 1000, 65_537, 1 << 20):
            data, back = pattern(nbytes), np.zeros(nbytes, np.uint8)
            ptr = memory.alloc_async(nbytes, stream)
            fixture.driver.copy(ptr, address(data), nbytes, CopyKind.H2D, stream, blocking=False)
            fixture.driver.copy(address(back), ptr, nbytes, CopyKind.D2H, stream, blocking=True)
            memory.free_async(ptr, nbytes, stream)
            assert same(back, data)

    @pytest.mark.parametrize("pool", [Capability.SHARED_POOL, Capability.DECOMPRESS_POOL])
    def test_memory_of_another_pool_is_usable_on_its_stream(self, fixture: DriverFixture, pool: Capability) -> None:
        fixture.need(pool)
        memory, driver, stream, data = self.ordered(fixture), fixture.driver, fixture.stream(), pattern(10_000)
        if pool is Capability.DECOMPRESS_POOL:
            assert isinstance(driver, SupportsDecompressPool)
            driver.pool_decompressible()
            driver.pool_decompressible()
            alloc = driver.alloc_decompressible
        else:
            assert isinstance(driver, SupportsSharedPool)
            alloc = driver.alloc_shared
        assert alloc(0, stream) == 0
        blocks = [alloc(10_000, stream) for _ in range(4)]
        for ptr in blocks:
            assert ptr % fixture.driver.info.alignment == 0
            fixture.driver.copy(ptr, address(data), 10_000, CopyKind.H2D, stream, blocking=False)
        driver.stream_synchronize(stream)
        for ptr in blocks:
            assert same(fixture.read(ptr, 10_000), data)
            memory.free_async(ptr, 10_000, stream)
        with pytest.raises(OutOfMemory) as caught:
            alloc(TOO_LARGE, stream)
        check_error(caught.value, fixture)

    def test_alloc_async_is_aligned(self, fixture: DriverFixture) -> None:
        memory, stream = self.ordered(fixture), fixture.stream()
        for nbytes in (1, 3, 257, 4097, 65_537, (3 << 20) + 1):
            ptr = memory.alloc_async(nbytes, stream)
            memory.free_async(ptr, nbytes, stream)
            assert ptr > 0 and ptr % fixture.driver.info.alignment == 0, f"{ptr:#x} for {nbytes} bytes"

    def test_alloc_async_of_zero_bytes_has_no_address(self, fixture: DriverFixture) -> None:
        memory = self.ordered(fixture)
        assert memory.alloc_async(0, LEGACY_STREAM) == 0
        memory.free_async(0, 0, LEGACY_STREAM)

    def test_alloc_async_gives_distinct_memory(self, fixture: DriverFixture) -> None:
        memory, stream = self.ordered(fixture), fixture.stream()
        blocks = sorted((memory.alloc_async(1 + 397 * n, stream), 1 + 397 * n) for n in range(64))
        for (ptr, nbytes), (later, _) in itertools.pairwise(blocks):
            assert ptr + nbytes <= later
        for ptr, nbytes in blocks:
            memory.free_async(ptr, nbytes, stream)

    def test_alloc_async_out_of_memory(self, fixture: DriverFixture) -> None:
        memory, stream = self.ordered(fixture), fixture.stream()
        with pytest.raises(OutOfMemory) as caught:
            memory.alloc_async(TOO_LARGE, stream)
        check_error(caught.value, fixture)
        memory.free_async(memory.alloc_async(1000, stream), 1000, stream)

    def test_alloc_async_and_free_async_do_not_wait(self, fixture: DriverFixture) -> None:
        memory, stream, driver = self.ordered(fixture), fixture.stream(), fixture.driver
        data = pattern(10_000)
        source, back = fixture.alloc_with(data), fixture.alloc_with(flip(data))
        with fixture.hold(stream) as hold:
            ptr = memory.alloc_async(10_000, stream)
            driver.copy(ptr, source, 10_000, CopyKind.D2D, stream, blocking=False)
            driver.copy(back, ptr, 10_000, CopyKind.D2D, stream, blocking=False)
            memory.free_async(ptr, 10_000, stream)
            assert not hold.expired, "alloc_async or free_async waited"
            hold.release()
            driver.stream_synchronize(stream)
        assert same(fixture.read(back, 10_000), data), "work enqueued before free_async keeps its memory"

    def test_freed_memory_reaches_no_other_stream_early(self, fixture: DriverFixture) -> None:
        memory, held, other, driver = self.ordered(fixture), fixture.stream(), fixture.stream(), fixture.driver
        data, back = pattern(100_000), fixture.alloc(100_000)
        ptr = memory.alloc_async(data.size, held)
        driver.copy(ptr, address(data), data.size, CopyKind.H2D, held, blocking=True)
        # A pool may reuse the block at once and make the other stream wait for this one; then the hold expires.
        with fixture.hold(held, patience=1.0, tolerant=True) as hold:
            driver.copy(back, ptr, data.size, CopyKind.D2D, held, blocking=False)
            memory.free_async(ptr, data.size, held)
            blocks = [memory.alloc_async(data.size, other) for _ in range(4)]
            for block in blocks:
                driver.fill(block, 0xEE, 1, data.size, other)
                memory.free_async(block, data.size, other)
            driver.stream_synchronize(other)
            hold.release()
            driver.stream_synchronize(held)
        assert same(fixture.read(back, data.size), data), (
            "memory was reused before the stream had passed its free_async"
        )

    def test_freed_on_another_stream_that_waited(self, fixture: DriverFixture) -> None:
        memory, one, two, event = self.ordered(fixture), fixture.stream(), fixture.stream(), fixture.event()
        back = fixture.pinned(1000)
        ptr = memory.alloc_async(1000, one)
        fixture.driver.fill(ptr, 0x5A, 1, 1000, one)
        fixture.driver.event_record(event, one)
        fixture.driver.stream_wait(two, event)
        fixture.driver.copy(address(back), ptr, 1000, CopyKind.D2H, two, blocking=False)
        memory.free_async(ptr, 1000, two)
        fixture.driver.stream_synchronize(two)
        assert same(back, np.full(1000, 0x5A, np.uint8))

    def pool(self, fixture: DriverFixture) -> SupportsPoolControl:
        fixture.need(Capability.POOL_CONTROL)
        assert isinstance(fixture.driver, SupportsPoolControl)
        return fixture.driver

    def test_pool_is_trimmed(self, fixture: DriverFixture) -> None:
        memory, pool, stream = self.ordered(fixture), self.pool(fixture), fixture.stream()
        blocks = [memory.alloc_async(1 << 20, stream) for _ in range(8)]
        kept, data = blocks.pop(), pattern(1 << 20)
        fixture.driver.copy(kept, address(data), data.size, CopyKind.H2D, stream, blocking=True)
        for ptr in blocks:
            memory.free_async(ptr, 1 << 20, stream)
        fixture.driver.stream_synchronize(stream)
        assert pool.pool_cached() >= 0
        cached = []
        for keep in (2 << 20, (1 << 20) - 1, 1, 0):  # also less than one block, which the driver has to release whole
            pool.pool_trim(keep)
            cached.append(pool.pool_cached())
            assert cached[-1] <= keep or not self.strict
        assert min(cached) >= 0
        assert cached == sorted(cached, reverse=True)
        assert same(fixture.read(kept, 1 << 20), data), "trimming took memory that is in use"
        memory.free_async(kept, 1 << 20, stream)
        fixture.driver.stream_synchronize(stream)
        pool.pool_trim(0)

    @pytest.mark.parametrize("wait", ["stream", "device"])
    def test_waiting_releases_what_is_over_the_threshold(self, fixture: DriverFixture, wait: str) -> None:
        memory, pool, stream = self.ordered(fixture), self.pool(fixture), fixture.stream()
        driver = fixture.driver
        kept, data = memory.alloc_async(1 << 20, stream), pattern(1 << 20)
        driver.copy(kept, address(data), data.size, CopyKind.H2D, stream, blocking=True)

        def held() -> int:
            blocks = [memory.alloc_async(1 << 20, stream) for _ in range(8)]
            for ptr in blocks:
                memory.free_async(ptr, 1 << 20, stream)
            for _ in range(2):  # the first wait may find the frees not done yet
                driver.stream_synchronize(stream) if wait == "stream" else driver.synchronize()
            return pool.pool_cached()

        pool.pool_threshold((1 << 64) - 1)
        everything = held()
        pool.pool_threshold(0)
        nothing = held()
        assert 0 <= nothing <= everything
        if self.strict:
            assert nothing == 0
        pool.pool_threshold((1 << 64) - 1)
        assert held() == everything or not self.strict
        assert same(fixture.read(kept, 1 << 20), data), "memory that is in use was released"
        memory.free_async(kept, 1 << 20, stream)
        driver.stream_synchronize(stream)
        pool.pool_trim(0)

    def test_all_memory_is_released(self, fixture: DriverFixture) -> None:
        fixture.need_strict()
        memory, pool, stream = self.ordered(fixture), self.pool(fixture), fixture.stream()
        before, _ = fixture.driver.memory_info()
        for _ in range(50):
            memory.free_async(memory.alloc_async(1 << 20, stream), 1 << 20, stream)
        fixture.driver.stream_synchronize(stream)
        pool.pool_trim(0)
        assert fixture.driver.memory_info()[0] == before


class StridedChecks(ConformanceSuite):
    def strided(self, fixture: DriverFixture) -> SupportsStridedCopy:
        fixture.need(Capability.STRIDED_COPY)
        assert isinstance(fixture.driver, SupportsStridedCopy)
        return fixture.driver

    @pytest.mark.parametrize("kind", list(CopyKind))
    @pytest.mark.parametrize(
        ("width", "height", "depth", "dst_pitch", "dst_rows", "src_pitch", "src_rows"),
        [
            (1, 1, 1, 1, 1, 1, 1),
            (1, 1000, 1, 2, 1000, 3, 1000),
            (1, 1000, 1, 4097, 1000, 1, 1000),
            (3, 77, 1, 3, 77, 64, 77),
            (8, 500, 1, 8, 500, 16, 500),
            (8, 500, 1, 1000, 500, 24, 500),
            (64, 64, 1, 64, 64, 64, 64),
            (100, 33, 1, 101, 33, 200, 33),
            (4096, 200, 1, 4096, 200, 4096, 200),
            (4095, 100, 1, 5001, 100, 8192, 100),
            (1 << 20, 3, 1, 1 << 20, 3, (1 << 20) + 1, 3),
            (10, 1, 1, 10, 1, 10, 1),
            (10, 1, 1, 5000, 1, 12, 1),
            (1, 50, 20, 2, 50, 3, 70),
            (8, 30, 4, 8, 30, 16, 31),
            (100, 3, 33, 101, 7, 200, 3),
            (4095, 10, 5, 5001, 11, 8192, 12),
        ],
    )
    def test_copy_strided_keeps_to_its_rows_and_slices(
        self,
        fixture: DriverFixture,
        kind: CopyKind,
        width: int,
        height: int,
        depth: int,
        dst_pitch: int,
        dst_rows: int,
        src_pitch: int,
        src_rows: int,
    ) -> None:
        """Any pitch and slice distance, narrow and wide rows, three directions; bytes between them do not change."""
        copy = self.strided(fixture).copy_strided
        # The memory ends with the last row, not with its pitch: the copy must not touch bytes after the last row.
        source = pattern(src_pitch * (src_rows * (depth - 1) + height - 1) + width, 1)
        before = pattern(dst_pitch * (dst_rows * (depth - 1) + height - 1) + width, 2)
        expected, got = before.copy(), before.copy()
        for at in range(depth):
            to, origin = expected[at * dst_rows * dst_pitch :], source[at * src_rows * src_pitch :]
            rows(to, dst_pitch, width, height)[:] = rows(origin, src_pitch, width, height)
        here = address(source) if kind is CopyKind.H2D else fixture.alloc_with(source)
        there = address(got) if kind is CopyKind.D2H else fixture.alloc_with(before)
        box = Box(there, dst_pitch, dst_rows, here, src_pitch, src_rows, width, height, depth)
        running = copy(box, kind, fixture.unheld_stream, blocking=True)
        assert running is False
        assert same(got if kind is CopyKind.D2H else fixture.read(there, before.size), expected)

    @pytest.mark.parametrize("kind", [CopyKind.H2D, CopyKind.D2H])
    def test_copy_strided_reports_pinned_memory_in_use(self, fixture: DriverFixture, kind: CopyKind) -> None:
        copy, stream = self.strided(fixture).copy_strided, fixture.stream()
        host, data = fixture.pinned(64 * 100), pattern(64 * 100)
        ptr = fixture.alloc_with(flip(data, 0x55) if kind is CopyKind.H2D else data)
        host[:] = data if kind is CopyKind.H2D else flip(data, 0x55)
        dst, src = (ptr, address(host)) if kind is CopyKind.H2D else (address(host), ptr)
        with fixture.hold(stream) as hold:
            running = copy(Box(dst, 64, 100, src, 64, 100, 64, 100, 1), kind, stream, blocking=False)
            assert fixture.stays_pending(stream)
            assert same(fixture.read(ptr, 6400) if kind is CopyKind.H2D else host, flip(data, 0x55))
            assert running is True or kind is CopyKind.H2D
            if running is False:
                host[:] = 0
            hold.release()
            fixture.driver.stream_synchronize(stream)
        assert same(fixture.read(ptr, 6400) if kind is CopyKind.H2D else host, data)

    @pytest.mark.parametrize("kind", [CopyKind.H2D, CopyKind.D2H])
    def test_copy_strided_is_done_with_pageable_memory_on_return(self, fixture: DriverFixture, kind: CopyKind) -> None:
        copy, stream, data = self.strided(fixture).copy_strided, fixture.stream(), pattern(100 * 999)
        ptr = fixture.alloc_with(data if kind is CopyKind.D2H else flip(data, 0x55))
        host = data.copy() if kind is CopyKind.H2D else np.zeros_like(data)
        dst, src = (ptr, address(host)) if kind is CopyKind.H2D else (address(host), ptr)
        running = copy(Box(dst, 100, 999, src, 100, 999, 100, 999, 1), kind, stream, blocking=False)
        if kind is CopyKind.H2D:
            host[:] = 0
            fixture.driver.stream_synchronize(stream)
        assert same(fixture.read(ptr, data.size) if kind is CopyKind.H2D else host, data)
        assert running is False

    def test_copy_strided_is_ordered_on_its_stream(self, fixture: DriverFixture) -> None:
        copy, stream, data = self.strided(fixture).copy_strided, fixture.stream(), pattern(6 * 64)
        source, ptr = fixture.alloc_with(data), fixture.alloc_with(flip(data, 0x55))
        with fixture.hold(stream) as hold:
            copy(Box(ptr, 64, 3, source, 64, 3, 64, 3, 2), CopyKind.D2D, stream, blocking=False)
            assert fixture.stays_pending(stream)
            assert same(fixture.read(ptr, data.size), flip(data, 0x55))
            hold.release()
            fixture.driver.stream_synchronize(stream)
        assert same(fixture.read(ptr, data.size), data)


class BatchChecks(ConformanceSuite):
    @pytest.mark.parametrize("kind", list(CopyKind))
    def test_copy_batch_makes_every_copy(self, fixture: DriverFixture, kind: CopyKind) -> None:
        copy, stream = self.batch(fixture).copy_batch, fixture.stream()
        sizes = [1, 3, 256, 4096, 65_537, 1 << 20, 7]
        data = [pattern(nbytes, seed=n) for n, nbytes in enumerate(sizes)]
        host = [one.copy() if kind is CopyKind.H2D else np.zeros_like(one) for one in data]
        source = [fixture.alloc_with(one) for one in data]
        other = [fixture.alloc_with(flip(one)) for one in data]
        dsts = [address(one) for one in host] if kind is CopyKind.D2H else other
        srcs = [address(one) for one in host] if kind is CopyKind.H2D else source
        running = copy(dsts, srcs, sizes, kind, stream)
        assert isinstance(running, bool)
        if kind is CopyKind.H2D and not running:
            for one in host:
                one[:] = 0
        if kind is not CopyKind.D2H or running:
            fixture.driver.stream_synchronize(stream)
        for n, nbytes in enumerate(sizes):
            assert same(host[n] if kind is CopyKind.D2H else fixture.read(dsts[n], nbytes), data[n])

    def test_copy_batch_takes_any_sequence_and_one_copy(self, fixture: DriverFixture) -> None:
        copy = self.batch(fixture).copy_batch
        for stream in (fixture.stream(), PER_THREAD_STREAM):
            data, ptr = pattern(100), fixture.alloc(100)
            copy((ptr,), (address(data),), (100,), CopyKind.H2D, stream)
            fixture.driver.stream_synchronize(stream)
            assert same(fixture.read(ptr, 100), data)

    def test_copy_batch_is_ordered_on_its_stream(self, fixture: DriverFixture) -> None:
        copy, stream, driver = self.batch(fixture).copy_batch, fixture.stream(), fixture.driver
        uploads = [Upload(fixture, 1000, seed=n) for n in range(5)]
        back = fixture.pinned(1000)
        back[:] = 0
        sources = [address(upload.data) for upload in uploads]
        with fixture.hold(stream) as hold:
            copy([upload.ptr for upload in uploads], sources, [1000] * 5, CopyKind.H2D, stream)
            driver.copy(address(back), uploads[-1].ptr, 1000, CopyKind.D2H, stream, blocking=False)
            assert fixture.stays_pending(stream)
            assert not any(upload.arrived for upload in uploads)
            hold.release()
            driver.stream_synchronize(stream)
        assert all(upload.arrived for upload in uploads)
        assert same(back, uploads[-1].data)

    def batch(self, fixture: DriverFixture) -> SupportsBatchCopy:
        fixture.need(Capability.BATCH_COPY)
        assert isinstance(fixture.driver, SupportsBatchCopy)
        return fixture.driver


class VolumeBatchChecks(ConformanceSuite):
    @pytest.mark.parametrize("kind", list(CopyKind))
    def test_copy_3d_batch_makes_every_copy(self, fixture: DriverFixture, kind: CopyKind) -> None:
        """Rows, slices and single runs in one call; bytes between them do not change."""
        copy, stream = self.boxes(fixture).copy_3d_batch, fixture.stream()
        # Width, height and depth; pitch and rows of the destination, pitch and rows of the source.
        shapes = [(100, 7, 1, 101, 7, 200, 7), (64, 3, 4, 64, 5, 96, 3), (1000, 1, 1, 1000, 1, 1000, 1)]
        made = []
        for n, (width, height, depth, to, to_rows, pitch, src_rows) in enumerate(shapes):
            source = pattern(pitch * src_rows * depth, seed=n)
            before = flip(pattern(to * to_rows * depth, seed=n + 9))
            expected, got = before.copy(), before.copy()
            for at in range(depth):
                there, here = expected[at * to_rows * to :], source[at * src_rows * pitch :]
                rows(there, to, width, height)[:] = rows(here, pitch, width, height)
            origin = address(source) if kind is CopyKind.H2D else fixture.alloc_with(source)
            target = address(got) if kind is CopyKind.D2H else fixture.alloc_with(before)
            box = Box(target, to, to_rows, origin, pitch, src_rows, width, height, depth)
            made.append((box, expected, got, source))
        assert isinstance(copy([box for box, *_ in made], kind, stream), bool)
        fixture.driver.stream_synchronize(stream)
        for box, expected, got, _ in made:
            assert same(got if kind is CopyKind.D2H else fixture.read(box.dst, expected.size), expected)

    def boxes(self, fixture: DriverFixture) -> SupportsVolumeBatch:
        fixture.need(Capability.VOLUME_BATCH)
        assert isinstance(fixture.driver, SupportsVolumeBatch)
        return fixture.driver


def rows(data: Bytes, pitch: int, width: int, height: int) -> Bytes:
    return np.lib.stride_tricks.as_strided(data, (height, width), (pitch, 1))
