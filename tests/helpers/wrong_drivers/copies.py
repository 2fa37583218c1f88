"""Mistakes in copies and fills, and the tests of `testing/driver_copies.py` that find them."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from typing import Any

from devmem.spi.errors import BackendError
from devmem.spi.types import LEGACY_STREAM, CopyKind, MemoryKind

from .base import Broken


class CopiesNothing(Broken):
    def copy(self, dst: int, src: int, nbytes: int, kind: CopyKind, stream: int, *, blocking: bool) -> bool:
        return False


class CopiesOneByteLess(Broken):
    def copy(self, dst: int, src: int, nbytes: int, kind: CopyKind, stream: int, *, blocking: bool) -> bool:
        return nbytes > 1 and super().copy(dst, src, nbytes - 1, kind, stream, blocking=blocking)


class CopiesTooMuch(Broken):
    def copy(self, dst: int, src: int, nbytes: int, kind: CopyKind, stream: int, *, blocking: bool) -> bool:
        more = nbytes + 1 if nbytes % 2 and kind is CopyKind.D2H and nbytes < 20_000 else nbytes
        try:
            return super().copy(dst, src, more, kind, stream, blocking=blocking)
        except BackendError:
            return super().copy(dst, src, nbytes, kind, stream, blocking=blocking)


class AlwaysBlocks(Broken):
    def copy(self, dst: int, src: int, nbytes: int, kind: CopyKind, stream: int, *, blocking: bool) -> bool:
        return super().copy(dst, src, nbytes, kind, stream, blocking=True)


class NeverBlocks(Broken):
    def copy(self, dst: int, src: int, nbytes: int, kind: CopyKind, stream: int, *, blocking: bool) -> bool:
        # The tests read memory on the stream that they created first; that one must work.
        if blocking and stream != min(self._streams):
            super().copy(dst, src, nbytes, kind, stream, blocking=False)
            return False
        return super().copy(dst, src, nbytes, kind, stream, blocking=blocking)


class SaysThatNothingRuns(Broken):
    def copy(self, dst: int, src: int, nbytes: int, kind: CopyKind, stream: int, *, blocking: bool) -> bool:
        super().copy(dst, src, nbytes, kind, stream, blocking=blocking)
        return False


class SaysThatAllRuns(Broken):
    def copy(self, dst: int, src: int, nbytes: int, kind: CopyKind, stream: int, *, blocking: bool) -> bool:
        super().copy(dst, src, nbytes, kind, stream, blocking=blocking)
        return True


class IgnoresStreams(Broken):
    """Work runs at once, without waiting for its stream."""

    def copy(self, dst: int, src: int, nbytes: int, kind: CopyKind, stream: int, *, blocking: bool) -> bool:
        own = self.sound.stream_create(0, True)
        super().copy(dst, src, nbytes, kind, own, blocking=True)
        self.sound.stream_destroy(own)
        return not blocking and kind is not CopyKind.D2D


class RunsBackwards(Broken):
    """Work is queued until a call waits, and then runs last to first."""

    def spoil(self) -> None:
        self.queue: list[Callable[[], object]] = []

    def copy(self, dst: int, src: int, nbytes: int, kind: CopyKind, stream: int, *, blocking: bool) -> bool:
        if not blocking:
            self.queue.append(lambda: self.sound.copy(dst, src, nbytes, kind, stream, blocking=True))
            return True
        self.stream_synchronize(stream)
        return super().copy(dst, src, nbytes, kind, stream, blocking=True)

    def fill(self, dst: int, value: int, width: int, count: int, stream: int) -> None:
        self.queue.append(lambda: self.sound.fill(dst, value, width, count, stream))

    def stream_synchronize(self, stream: int) -> None:
        while self.queue:
            self.queue.pop()()
        super().stream_synchronize(stream)


class UsesPageableMemoryLate(RunsBackwards):
    """And says that it has read, or written, it."""

    def copy(self, dst: int, src: int, nbytes: int, kind: CopyKind, stream: int, *, blocking: bool) -> bool:
        super().copy(dst, src, nbytes, kind, stream, blocking=blocking)
        return False


class FillIgnoresWidth(Broken):
    def fill(self, dst: int, value: int, width: int, count: int, stream: int) -> None:
        super().fill(dst, value & 0xFF, 1, width * count, stream)


class FillCountsBytes(Broken):
    def fill(self, dst: int, value: int, width: int, count: int, stream: int) -> None:
        super().fill(dst, value, width, max(1, count // width), stream)


class FillOverruns(Broken):
    def fill(self, dst: int, value: int, width: int, count: int, stream: int) -> None:
        super().fill(dst, value, width, count + 1, stream)


class ReadsSourcesAgain(Broken):
    """A download reads the source of the upload again; every plain round trip passes."""

    def spoil(self) -> None:
        self.sources: dict[int, int] = {}

    def copy(self, dst: int, src: int, nbytes: int, kind: CopyKind, stream: int, *, blocking: bool) -> bool:
        if kind is CopyKind.H2D:
            self.sources[dst] = src
        elif kind is CopyKind.D2H and src in self.sources:
            ctypes.memmove(dst, self.sources[src], nbytes)
            return False
        return super().copy(dst, src, nbytes, kind, stream, blocking=blocking)


class CopiesTheWrongWay(Broken):
    def copy(self, dst: int, src: int, nbytes: int, kind: CopyKind, stream: int, *, blocking: bool) -> bool:
        back = {CopyKind.H2D: CopyKind.D2H, CopyKind.D2H: CopyKind.H2D, CopyKind.D2D: CopyKind.D2D}[kind]
        return super().copy(src, dst, nbytes, back, stream, blocking=blocking)


class ReadsPageableMemoryLate(Broken):
    """Says that the source is free, and reads it when the stream is waited for."""

    def spoil(self) -> None:
        self.late: list[Callable[[], object]] = []

    def copy(self, dst: int, src: int, nbytes: int, kind: CopyKind, stream: int, *, blocking: bool) -> bool:
        if kind is CopyKind.H2D and not blocking:
            self.late.append(lambda: self.sound.copy(dst, src, nbytes, kind, stream, blocking=True))
            return False
        return super().copy(dst, src, nbytes, kind, stream, blocking=blocking)

    def stream_synchronize(self, stream: int) -> None:
        while self.late:
            self.late.pop(0)()
        super().stream_synchronize(stream)


class KeepsTheNewestSourceOnly(Broken):
    """Copies pageable sources into memory of its own, of which there is one piece for all."""

    def copy(self, dst: int, src: int, nbytes: int, kind: CopyKind, stream: int, *, blocking: bool) -> bool:
        if kind is CopyKind.H2D and not blocking and nbytes <= 4096:
            if "slot" not in self.__dict__:
                self.slot = self.sound.alloc(4096, LEGACY_STREAM, MemoryKind.PINNED)
            ctypes.memmove(self.slot, src, nbytes)
            src = self.slot
        running = super().copy(dst, src, nbytes, kind, stream, blocking=blocking)
        return running and src != self.__dict__.get("slot")


class FillSwapsBytes(Broken):
    def fill(self, dst: int, value: int, width: int, count: int, stream: int) -> None:
        super().fill(dst, int.from_bytes(value.to_bytes(width, "little"), "big"), width, count, stream)


class FillWaitsForNoStream(Broken):
    def fill(self, dst: int, value: int, width: int, count: int, stream: int) -> None:
        own = self.sound.stream_create(0, True)
        super().fill(dst, value, width, count, own)
        self.sound.stream_synchronize(own)
        self.sound.stream_destroy(own)


class PinnedMemoryIsKnownByItsFirstAddress(Broken):
    """Copies of addresses inside of it run late, and the driver says that the host side is free."""

    def copy(self, dst: int, src: int, nbytes: int, kind: CopyKind, stream: int, *, blocking: bool) -> bool:
        running = super().copy(dst, src, nbytes, kind, stream, blocking=blocking)
        return running and (src if kind is CopyKind.H2D else dst) in self.__dict__.get("pinned", ())

    def alloc(self, nbytes: int, stream: int, kind: MemoryKind = MemoryKind.DEVICE, *flags: Any) -> int:
        ptr = super().alloc(nbytes, stream, kind, *flags)
        self.__dict__.setdefault("pinned", set()).update([ptr] * (kind is MemoryKind.PINNED))
        return ptr


class UploadsEndAtEightMebibytes(Broken):
    def copy(self, dst: int, src: int, nbytes: int, kind: CopyKind, stream: int, *, blocking: bool) -> bool:
        less = min(nbytes, 8 << 20) if kind is CopyKind.H2D else nbytes
        return super().copy(dst, src, less, kind, stream, blocking=blocking)


BROKEN: list[tuple[type[Broken], str, dict[str, Any]]] = [
    (CopiesNothing, "test_round_trip_keeps_every_byte", {"nbytes": 4096}),
    (CopiesNothing, "test_device_to_device_keeps_every_byte", {"nbytes": 1}),
    (CopiesOneByteLess, "test_round_trip_keeps_every_byte", {"nbytes": 257}),
    (
        CopiesTooMuch,
        "test_copies_inside_of_blocks_touch_nothing_else",
        {"kind": CopyKind.D2H, "to": 1, "start": 0, "nbytes": 4095},
    ),
    (AlwaysBlocks, "test_pinned_source_is_read_later", {"nbytes": 4096}),
    (NeverBlocks, "test_blocking_waits_for_earlier_work", {"kind": CopyKind.H2D}),
    (SaysThatNothingRuns, "test_pinned_source_is_read_later", {"nbytes": 4096}),
    (SaysThatNothingRuns, "test_pinned_destination_is_written_later", {"nbytes": 1}),
    (SaysThatAllRuns, "test_device_to_device_has_no_host_side", {}),
    (SaysThatAllRuns, "test_blocking_is_complete_on_return", {"kind": CopyKind.H2D, "where": "pinned"}),
    (IgnoresStreams, "test_pinned_destination_is_written_later", {"nbytes": 4096}),
    (RunsBackwards, "test_round_trip_without_blocking", {"nbytes": 4096}),
    (FillIgnoresWidth, "test_fill_stores_the_value_as_often_as_asked", {"width": 2, "count": 255}),
    (FillIgnoresWidth, "test_fill_stores_every_bit_of_the_value", {"width": 4, "extreme": "one"}),
    (FillCountsBytes, "test_fill_stores_the_value_as_often_as_asked", {"width": 4, "count": 255}),
    (FillOverruns, "test_fill_touches_nothing_else", {"width": 1}),
    (ReadsSourcesAgain, "test_uploads_are_snapshots", {}),
    (CopiesTheWrongWay, "test_round_trip_keeps_every_byte", {"nbytes": 257}),
    (RunsBackwards, "test_pageable_source_has_been_read_on_return", {"nbytes": 4096}),
    (SaysThatAllRuns, "test_pageable_source_has_been_read_on_return", {"nbytes": 4096}),
    (ReadsPageableMemoryLate, "test_pageable_source_has_been_read_on_return", {"nbytes": 65_537}),
    (ReadsPageableMemoryLate, "test_pageable_source_on_a_held_stream", {"nbytes": 4096}),
    (KeepsTheNewestSourceOnly, "test_pageable_sources_of_threads_are_kept_apart_on_a_held_stream", {}),
    (UsesPageableMemoryLate, "test_pageable_destination_is_complete_on_return", {"nbytes": 1}),
    (FillSwapsBytes, "test_fill_stores_the_value_as_often_as_asked", {"width": 2, "count": 3}),
    (FillWaitsForNoStream, "test_fill_is_ordered_on_its_stream", {}),
    (
        PinnedMemoryIsKnownByItsFirstAddress,
        "test_addresses_inside_of_pinned_memory_are_pinned",
        {"kind": CopyKind.H2D},
    ),
    (
        PinnedMemoryIsKnownByItsFirstAddress,
        "test_addresses_inside_of_pinned_memory_are_pinned",
        {"kind": CopyKind.D2H},
    ),
    (UploadsEndAtEightMebibytes, "test_large_copies_keep_every_byte", {}),
]
