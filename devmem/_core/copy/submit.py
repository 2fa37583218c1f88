"""What a driver is asked to do for a copy, in as few calls as the device can do it in.

`Submitter.copy_run` is the one place where a run of bytes is copied: every other copy is made of it, or of the driver's copies in
two and three dimensions.
"""

# Decision: docs/adr/0002-page-locks-are-counted-per-backend.md
from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial
from itertools import pairwise

from ...spi.errors import DevmemError
from ...spi.types import Capability, CopyKind
from ..base.device_handle import DeviceHandle
from ..lifetime.page_locks import PageLockTable
from ..ordering.stream import Stream
from .rows import Rows

H2D, D2D = CopyKind.H2D, CopyKind.D2D  # an enum's attribute takes as long as a call


class Submitter:
    """Enqueue copies on one open device, which is entered. Each method says whether the host side may still be touched."""

    __slots__ = ("handle", "page_locks")

    def __init__(self, handle: DeviceHandle, page_locks: PageLockTable) -> None:
        self.handle = handle
        self.page_locks = page_locks

    def copy_run(self, dst: int, src: int, nbytes: int, kind: CopyKind, stream: int, *, blocking: bool = False) -> bool:
        """Copy one run of bytes, cut where page-locked memory begins or ends: CUDA refuses a copy that lies half in it."""
        copy = self.handle.driver.copy
        if kind is D2D or not self.page_locks.segments:
            return copy(dst, src, nbytes, kind, stream, blocking=blocking)
        host, running = src if kind is H2D else dst, False
        ends = [0, *(cut - host for cut in self.page_locks.cuts(host, host + nbytes)), nbytes]
        for start, end in pairwise(ends):
            running |= copy(dst + start, src + start, end - start, kind, stream, blocking=blocking and end == nbytes)
        return running

    def copy_rows(self, rows: Rows, dst: int, src: int, kind: CopyKind, stream: Stream, blocking: bool) -> bool:
        """Copy rows. Only the last call waits: those before it are on the same stream."""
        steps = list(self._calls(rows, dst, src, kind, stream.handle))
        running = False
        try:
            for step in steps[:-1]:
                running |= step(blocking=False)
            running |= steps[-1](blocking=blocking)
        except BaseException:
            if len(steps) > 1:  # some of it may be on its way, and the caller is about to let go of both sides
                with suppress(DevmemError):
                    self.handle.driver.stream_synchronize(stream.handle)
            raise
        return running and not blocking

    def _calls(self, rows: Rows, dst: int, src: int, kind: CopyKind, stream: int) -> Iterator[Callable[..., bool]]:
        driver, width, height = self.handle.driver, rows.width, rows.height
        pitched = is_pitched(self.handle, rows, kind)
        slices = rows.slices() if rows.outer and pitched and self.handle.has(Capability.VOLUME_COPY) else None
        if slices is not None:
            for to, origin in slices.offsets:
                sides = (dst + to, rows.dst_pitch, slices.dst_rows, src + origin, rows.src_pitch, slices.src_rows)
                yield partial(driver.copy_3d, *sides, width, height, slices.depth, kind, stream)
        elif height > 1 and pitched:
            for to, origin in rows.offsets():
                sides_2d = (dst + to, rows.dst_pitch, src + origin, rows.src_pitch)
                yield partial(driver.copy_2d, *sides_2d, width, height, kind, stream)
        else:
            for to, origin in rows.offsets():
                for row in range(height):
                    there, here = dst + to + row * rows.dst_pitch, src + origin + row * rows.src_pitch
                    yield partial(self.copy_run, there, here, width, kind, stream)


def calls(handle: DeviceHandle, rows: Rows, kind: CopyKind = H2D) -> int:
    """Driver calls that rows take on a device: between it and the host, either way, or on it."""
    if not is_pitched(handle, rows, kind):
        return rows.calls * rows.height
    slices = rows.slices() if handle.has(Capability.VOLUME_COPY) else None
    return rows.calls if slices is None else len(slices.offsets)


def is_pitched(handle: DeviceHandle, rows: Rows, kind: CopyKind = H2D) -> bool:
    """Whether the device copies these rows in one call, and better so than one by one."""
    multiple = 1 if kind is D2D else handle.info.strided_pitch_multiple
    return handle.has(Capability.STRIDED_COPY) and not (rows.dst_pitch % multiple or rows.src_pitch % multiple)
