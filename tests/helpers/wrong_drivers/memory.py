"""Mistakes in allocating and freeing, and the tests of `testing/driver_memory.py` that find them."""

from __future__ import annotations

import itertools
from typing import Any

from devmem.spi.errors import BackendError, OutOfMemory
from devmem.spi.types import LEGACY_STREAM, MemoryKind

from .base import Broken


class OverlappingAddresses(Broken):
    """A bump allocator that ignores the size of the previous block."""

    def spoil(self) -> None:
        self.arena: int = self.sound.alloc(8 << 20, LEGACY_STREAM)
        self.next = itertools.count(0, 256)

    def alloc(self, nbytes: int, stream: int, kind: MemoryKind = MemoryKind.DEVICE, *flags: Any) -> int:
        if kind is not MemoryKind.DEVICE or nbytes > 1 << 20:
            return super().alloc(nbytes, stream, kind, *flags)
        return self.arena + next(self.next)

    def free(self, ptr: int, nbytes: int, stream: int, kind: MemoryKind = MemoryKind.DEVICE) -> None:
        if not self.arena <= ptr < self.arena + (8 << 20):
            super().free(ptr, nbytes, stream, kind)


class Unaligned(Broken):
    def alloc(self, nbytes: int, stream: int, kind: MemoryKind = MemoryKind.DEVICE, *flags: Any) -> int:
        return super().alloc(nbytes + 64, stream, kind, *flags) + 64

    def free(self, ptr: int, nbytes: int, stream: int, kind: MemoryKind = MemoryKind.DEVICE) -> None:
        super().free(ptr - 64, nbytes + 64, stream, kind)


class FreesNothing(Broken):
    def free(self, ptr: int, nbytes: int, stream: int, kind: MemoryKind = MemoryKind.DEVICE) -> None:
        pass


class LosesMemoryWhenFull(Broken):
    def alloc(self, nbytes: int, stream: int, kind: MemoryKind = MemoryKind.DEVICE, *flags: Any) -> int:
        try:
            return super().alloc(nbytes, stream, kind, *flags)
        except OutOfMemory:
            super().alloc(1 << 20, stream)
            raise


class SaysOnlyThatItFailed(Broken):
    raises = True

    def alloc(self, nbytes: int, stream: int, kind: MemoryKind = MemoryKind.DEVICE, *flags: Any) -> int:
        try:
            return super().alloc(nbytes, stream, kind, *flags)
        except OutOfMemory as error:
            raise BackendError(str(error)) from error


class AllocatesZeroBytes(Broken):
    def alloc(self, nbytes: int, stream: int, kind: MemoryKind = MemoryKind.DEVICE, *flags: Any) -> int:
        return super().alloc(max(nbytes, 1), stream, kind, *flags)


class RaisesAnEarlierErrorAgain(Broken):
    def spoil(self) -> None:
        self.earlier: list[BackendError] = []

    def alloc(self, nbytes: int, stream: int, kind: MemoryKind = MemoryKind.DEVICE, *flags: Any) -> int:
        try:
            return super().alloc(nbytes, stream, kind, *flags)
        except OutOfMemory as error:
            self.earlier.append(error)
            raise

    def stream_query(self, stream: int) -> bool:
        while self.earlier:
            raise self.earlier.pop()
        return super().stream_query(stream)


class SaysHowMuchIsUsed(Broken):
    def memory_info(self) -> tuple[int, int]:
        free, total = super().memory_info()
        return total - free, total


class SaysTotalThenFree(Broken):
    def memory_info(self) -> tuple[int, int]:
        free, total = super().memory_info()
        return total, free


class AlwaysSaysTheSameFreeBytes(Broken):
    def memory_info(self) -> tuple[int, int]:
        if not hasattr(self, "first"):
            self.first = super().memory_info()
        return self.first


BROKEN: list[tuple[type[Broken], str, dict[str, Any]]] = [
    (OverlappingAddresses, "test_alloc_gives_distinct_memory", {"kind": MemoryKind.DEVICE}),
    (OverlappingAddresses, "test_alloc_keeps_blocks_apart", {}),
    (Unaligned, "test_alloc_is_aligned", {"kind": MemoryKind.DEVICE}),
    (FreesNothing, "test_memory_info_follows_allocations", {}),
    (LosesMemoryWhenFull, "test_out_of_memory_hands_nothing_out", {"kind": MemoryKind.DEVICE}),
    (SaysOnlyThatItFailed, "test_out_of_memory_hands_nothing_out", {"kind": MemoryKind.PINNED}),
    (AllocatesZeroBytes, "test_zero_bytes_have_no_address", {"kind": MemoryKind.DEVICE}),
    (RaisesAnEarlierErrorAgain, "test_an_error_is_not_raised_again_by_later_calls", {}),
    (SaysHowMuchIsUsed, "test_memory_info_follows_allocations", {}),
    (SaysTotalThenFree, "test_memory_info_is_plausible", {}),
    (AlwaysSaysTheSameFreeBytes, "test_memory_info_follows_allocations", {}),
]
