"""Mistakes in copies on a held stream, and the tests of `testing/driver_held_copies.py` that find them."""

from __future__ import annotations

from typing import Any

from devmem.spi.types import Box, CopyKind

from .base import Broken
from .optional import Batches, VolumeBatches


class StridedNeverBlocks(Broken):
    def spoil(self) -> None:
        def copy_strided(box: Box, kind: CopyKind, stream: int, *, blocking: bool) -> bool:
            return bool(self.sound.copy_strided(box, kind, stream, blocking=False)) and not blocking

        self.copy_strided = copy_strided


class SlicesNeverBlock(Broken):
    def spoil(self) -> None:
        def copy_strided(box: Box, kind: CopyKind, stream: int, *, blocking: bool) -> bool:
            wait = blocking and box.depth == 1
            return bool(self.sound.copy_strided(box, kind, stream, blocking=wait)) and not blocking

        self.copy_strided = copy_strided


class SlicesSayThatNothingRuns(Broken):
    def spoil(self) -> None:
        def copy_strided(box: Box, kind: CopyKind, stream: int, *, blocking: bool) -> bool:
            return bool(self.sound.copy_strided(box, kind, stream, blocking=blocking)) and box.depth == 1

        self.copy_strided = copy_strided


class BatchSaysThatNothingRuns(Batches):
    sound_driver = Batches

    def copy_batch(self, dsts: Any, srcs: Any, sizes: Any, kind: CopyKind, stream: int) -> bool:
        super().copy_batch(dsts, srcs, sizes, kind, stream)
        return False


class VolumeBatchSaysThatNothingRuns(VolumeBatches):
    sound_driver = VolumeBatches

    def copy_3d_batch(self, boxes: Any, kind: CopyKind, stream: int) -> bool:
        super().copy_3d_batch(boxes, kind, stream)
        return False


BROKEN: list[tuple[type[Broken], str, dict[str, Any]]] = [
    *(
        (broken, "test_blocking_copies_of_rows_wait_for_earlier_work", {"call": call, "kind": kind})
        for broken, call in ((StridedNeverBlocks, "rows"), (SlicesNeverBlock, "slices"))
        for kind in CopyKind
    ),
    *(
        (broken, "test_optional_copies_report_pinned_memory_in_use", {"call": call, "kind": kind})
        for broken, call in (
            (SlicesSayThatNothingRuns, "slices"),
            (BatchSaysThatNothingRuns, "copy_batch"),
            (VolumeBatchSaysThatNothingRuns, "copy_3d_batch"),
        )
        for kind in (CopyKind.H2D, CopyKind.D2H)
    ),
]
