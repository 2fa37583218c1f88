"""Mistakes in copies on a held stream, and the tests of `testing/driver_held_copies.py` that find them."""

from __future__ import annotations

from typing import Any

from devmem.spi.types import CopyKind

from .base import Broken
from .optional import Batches, VolumeBatches


class RowsNeverBlock(Broken):
    def spoil(self) -> None:
        def copy_2d(*sides: Any, blocking: bool) -> bool:
            return bool(self.sound.copy_2d(*sides, blocking=False)) and not blocking

        self.copy_2d = copy_2d


class SlicesNeverBlock(Broken):
    def spoil(self) -> None:
        def copy_3d(*sides: Any, blocking: bool) -> bool:
            return bool(self.sound.copy_3d(*sides, blocking=False)) and not blocking

        self.copy_3d = copy_3d


class SlicesSayThatNothingRuns(Broken):
    def spoil(self) -> None:
        def copy_3d(*sides: Any, blocking: bool) -> bool:
            self.sound.copy_3d(*sides, blocking=blocking)
            return False

        self.copy_3d = copy_3d


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
        for broken, call in ((RowsNeverBlock, "copy_2d"), (SlicesNeverBlock, "copy_3d"))
        for kind in CopyKind
    ),
    *(
        (broken, "test_optional_copies_report_pinned_memory_in_use", {"call": call, "kind": kind})
        for broken, call in (
            (SlicesSayThatNothingRuns, "copy_3d"),
            (BatchSaysThatNothingRuns, "copy_batch"),
            (VolumeBatchSaysThatNothingRuns, "copy_3d_batch"),
        )
        for kind in (CopyKind.H2D, CopyKind.D2H)
    ),
]
