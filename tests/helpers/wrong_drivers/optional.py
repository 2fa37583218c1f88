"""Mistakes in stream-ordered memory, rows, slices and batches, and the tests of `testing/driver_optional.py` that find them."""

from __future__ import annotations

from typing import Any

from devmem.spi.types import Box, Capability, CopyKind, DeviceInfo

from .base import Broken, Tells


class Strided(Broken):
    """Each copy is made of another box, or of several."""

    def boxes(self, box: Box) -> list[Box]:
        raise NotImplementedError

    def spoil(self) -> None:
        def copy_strided(box: Box, kind: CopyKind, stream: int, *, blocking: bool) -> bool:
            made = [self.sound.copy_strided(each, kind, stream, blocking=blocking) for each in self.boxes(box)]
            return bool(made[-1])

        self.copy_strided = copy_strided


class RowsTouchGaps(Strided):
    def boxes(self, box: Box) -> list[Box]:
        wide = min(box.width + 1, box.dst_pitch, box.src_pitch) if box.height > 1 else box.width
        return [box._replace(width=wide, height=box.height - 1 or 1), box]


class RowsShareAPitch(Strided):
    def boxes(self, box: Box) -> list[Box]:
        return [box._replace(dst_pitch=box.src_pitch)]


class FreesAsyncAtOnce(Broken):
    """The pool reuses freed memory at once, before the stream reaches the free."""

    def spoil(self) -> None:
        spare: dict[int, list[int]] = {}

        def alloc_async(nbytes: int, stream: int) -> int:
            kept = spare.get(nbytes)
            return kept.pop() if kept else self.sound.alloc_async(nbytes, stream)

        self.alloc_async = alloc_async
        self.free_async = lambda ptr, nbytes, stream: spare.setdefault(nbytes, []).append(ptr)


class FreesAsyncWaits(Broken):
    def spoil(self) -> None:
        def free_async(ptr: int, nbytes: int, stream: int) -> None:
            self.sound.stream_synchronize(stream)
            self.sound.free_async(ptr, nbytes, stream)

        self.free_async = free_async


class AllocatesZeroBytesAsync(Broken):
    def spoil(self) -> None:
        self.alloc_async = lambda nbytes, stream: self.sound.alloc_async(max(nbytes, 1), stream)


class UnalignedAsync(Broken):
    def spoil(self) -> None:
        self.alloc_async = lambda nbytes, stream: self.sound.alloc_async(nbytes + 8, stream) + 8
        self.free_async = lambda ptr, nbytes, stream: self.sound.free_async(ptr - 8, nbytes + 8, stream)


class PitchIsOffByOne(Strided):
    def boxes(self, box: Box) -> list[Box]:
        return [box._replace(dst_pitch=max(box.dst_pitch - 1, box.width))]


class SlicesShareTheirRows(Strided):
    def boxes(self, box: Box) -> list[Box]:
        less = min(box.dst_rows, box.src_rows)
        return [box._replace(dst_rows=less, src_rows=less)]


class Batches(Tells):
    """Sound: copies in batches, which the host driver does not."""

    def difference(self, info: DeviceInfo) -> dict[str, Any]:
        return {"capabilities": info.capabilities | {Capability.BATCH_COPY}}

    def copy_batch(self, dsts: Any, srcs: Any, sizes: Any, kind: CopyKind, stream: int) -> bool:
        each = zip(dsts, srcs, sizes, strict=True)
        running = [self.sound.copy(*one, kind, stream, blocking=False) for one in each]
        return any(running)


class BatchLosesTheLast(Batches):
    sound_driver = Batches

    def copy_batch(self, dsts: Any, srcs: Any, sizes: Any, kind: CopyKind, stream: int) -> bool:
        return super().copy_batch(dsts[:-1], srcs[:-1], sizes[:-1], kind, stream)


class VolumeBatches(Tells):
    """Sound: copies of rows and slices in batches, which the host driver does not."""

    def difference(self, info: DeviceInfo) -> dict[str, Any]:
        return {"capabilities": info.capabilities | {Capability.VOLUME_BATCH}}

    def copy_3d_batch(self, boxes: Any, kind: CopyKind, stream: int) -> bool:
        running = [self.sound.copy_strided(box, kind, stream, blocking=False) for box in boxes]
        return any(running)


class VolumeBatchLosesTheFirst(VolumeBatches):
    sound_driver = VolumeBatches

    def copy_3d_batch(self, boxes: Any, kind: CopyKind, stream: int) -> bool:
        return super().copy_3d_batch(boxes[1:], kind, stream)


class PoolHoldsLessThanNothing(Broken):
    def spoil(self) -> None:
        self.pool_cached = lambda: -1


class PoolIsNeverTrimmed(Broken):
    def spoil(self) -> None:
        self.pool_cached = lambda: 1 << 20


BROKEN: list[tuple[type[Broken], str, dict[str, Any]]] = [
    (
        RowsTouchGaps,
        "test_copy_strided_keeps_to_its_rows_and_slices",
        {
            "kind": CopyKind.H2D,
            "width": 100,
            "height": 33,
            "depth": 1,
            "dst_pitch": 101,
            "dst_rows": 33,
            "src_pitch": 200,
            "src_rows": 33,
        },
    ),
    (
        RowsShareAPitch,
        "test_copy_strided_keeps_to_its_rows_and_slices",
        {
            "kind": CopyKind.D2D,
            "width": 8,
            "height": 500,
            "depth": 1,
            "dst_pitch": 1000,
            "dst_rows": 500,
            "src_pitch": 24,
            "src_rows": 500,
        },
    ),
    (FreesAsyncAtOnce, "test_freed_memory_reaches_no_other_stream_early", {}),
    (FreesAsyncWaits, "test_alloc_async_and_free_async_do_not_wait", {}),
    (AllocatesZeroBytesAsync, "test_alloc_async_of_zero_bytes_has_no_address", {}),
    (UnalignedAsync, "test_alloc_async_is_aligned", {}),
    (
        PitchIsOffByOne,
        "test_copy_strided_keeps_to_its_rows_and_slices",
        {
            "kind": CopyKind.D2D,
            "width": 8,
            "height": 500,
            "depth": 1,
            "dst_pitch": 1000,
            "dst_rows": 500,
            "src_pitch": 24,
            "src_rows": 500,
        },
    ),
    (
        SlicesShareTheirRows,
        "test_copy_strided_keeps_to_its_rows_and_slices",
        {
            "kind": CopyKind.D2D,
            "width": 100,
            "height": 3,
            "depth": 33,
            "dst_pitch": 101,
            "dst_rows": 7,
            "src_pitch": 200,
            "src_rows": 3,
        },
    ),
    (BatchLosesTheLast, "test_copy_batch_makes_every_copy", {"kind": CopyKind.H2D}),
    (VolumeBatchLosesTheFirst, "test_copy_3d_batch_makes_every_copy", {"kind": CopyKind.D2D}),
    (PoolHoldsLessThanNothing, "test_pool_is_trimmed", {}),
    (PoolIsNeverTrimmed, "test_pool_is_trimmed", {}),
]
