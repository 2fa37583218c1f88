"""Optional copies on a held stream: rows, slices and batches say what is still in use, and blocking ones wait."""

from __future__ import annotations

import numpy as np
import pytest

from devmem.spi.driver import SupportsBatchCopy, SupportsStridedCopy, SupportsVolumeBatch
from devmem.spi.types import Box, Capability, CopyKind, MemoryKind

from .driver_fixture import Bytes, ConformanceSuite, DriverFixture, address, flip, pattern, same

#: 100 rows of 64 bytes, two slices of 50 such rows, or three copies.
NBYTES = 6400
PARTS = ((0, 1000), (1000, 400), (1400, 5000))
CAPABILITY = {
    "rows": Capability.STRIDED_COPY,
    "slices": Capability.STRIDED_COPY,
    "copy_batch": Capability.BATCH_COPY,
    "copy_3d_batch": Capability.VOLUME_BATCH,
}


class HeldCopyChecks(ConformanceSuite):
    @pytest.mark.parametrize("call", ["rows", "slices"])
    @pytest.mark.parametrize("kind", list(CopyKind))
    def test_blocking_copies_of_rows_wait_for_earlier_work(
        self, fixture: DriverFixture, call: str, kind: CopyKind
    ) -> None:
        fixture.need(CAPABILITY[call])
        stream, data, before = fixture.stream(), pattern(NBYTES), flip(pattern(NBYTES), 0x55)
        # Page-locked where there is such memory: for pageable memory a copy may wait whether it was to or not.
        pinned = MemoryKind.PINNED in fixture.driver.info.memory_kinds
        host: Bytes = fixture.pinned(NBYTES) if pinned else np.empty(NBYTES, np.uint8)
        host[:] = data if kind is CopyKind.H2D else before
        dst = address(host) if kind is CopyKind.D2H else fixture.alloc_with(before)
        src = address(host) if kind is CopyKind.H2D else fixture.alloc_with(data)
        running: list[object] = []
        with fixture.hold(stream) as hold:
            copying = fixture.run_in_thread(
                lambda: running.append(enqueue(fixture, call, dst, src, kind, stream, blocking=True))
            )
            assert not copying.done.wait(self.grace), f"a blocking copy of {call} returned while its stream was held"
            hold.release()
            copying.finish()
        assert running == [False], f"nothing is running after a blocking copy of {call}"
        assert same(host if kind is CopyKind.D2H else fixture.read(dst, NBYTES), data)

    @pytest.mark.parametrize("call", ["slices", "copy_batch", "copy_3d_batch"])
    @pytest.mark.parametrize("kind", [CopyKind.H2D, CopyKind.D2H])
    def test_optional_copies_report_pinned_memory_in_use(
        self, fixture: DriverFixture, call: str, kind: CopyKind
    ) -> None:
        """Optional copies return what ``copy_strided`` does: False says that the host side is not touched any more."""
        fixture.need(CAPABILITY[call])
        stream, host, data = fixture.stream(), fixture.pinned(NBYTES), pattern(NBYTES)
        upload, before = kind is CopyKind.H2D, flip(data, 0x55)
        host[:] = data if upload else before
        ptr = fixture.alloc_with(before if upload else data)
        dst, src = (ptr, address(host)) if upload else (address(host), ptr)
        with fixture.hold(stream) as hold:
            running = enqueue(fixture, call, dst, src, kind, stream, blocking=False)
            assert isinstance(running, bool)
            assert fixture.stays_pending(stream)
            assert same(fixture.read(ptr, NBYTES) if upload else host, before), "the copy did not wait for its stream"
            assert running or upload, "the host side will be written after the call"
            if not running:
                host[:] = 0
            hold.release()
            fixture.driver.stream_synchronize(stream)
        assert same(fixture.read(ptr, NBYTES) if upload else host, data)


def enqueue(
    fixture: DriverFixture, call: str, dst: int, src: int, kind: CopyKind, stream: int, *, blocking: bool
) -> bool:
    """Copy `NBYTES` by one of the calls; batches never block."""
    driver = fixture.driver
    if call in ("rows", "slices"):
        assert isinstance(driver, SupportsStridedCopy)
        height, depth = (100, 1) if call == "rows" else (50, 2)
        return driver.copy_strided(
            Box(dst, 64, height, src, 64, height, 64, height, depth), kind, stream, blocking=blocking
        )
    if call == "copy_3d_batch":
        assert isinstance(driver, SupportsVolumeBatch)
        halves = [Box(dst + at, 64, 25, src + at, 64, 25, 64, 25, 2) for at in (0, NBYTES // 2)]
        return driver.copy_3d_batch(halves, kind, stream)
    assert isinstance(driver, SupportsBatchCopy)
    starts, sizes = zip(*PARTS, strict=True)
    return driver.copy_batch([dst + at for at in starts], [src + at for at in starts], list(sizes), kind, stream)
