"""Copies to, from, on and between CUDA devices, and fills."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from cuda.bindings import driver as cu

from ...spi.errors import BackendError
from ...spi.types import LEGACY_STREAM, CopyKind, Extent
from ...toolkit.driver_parts import DriverState, Part, StridedCopies
from ...toolkit.handles import DEFAULT_STREAMS
from ...toolkit.streams import Streams
from ...toolkit.vendor_functions import INVALID_VALUE
from .binding import code_of

_H2D, _D2H, _D2D = CopyKind.H2D, CopyKind.D2H, CopyKind.D2D
_ASYNC = {_H2D: "MemcpyHtoDAsync", _D2H: "MemcpyDtoHAsync", _D2D: "MemcpyDtoDAsync"}
_ON_HOST, _ON_DEVICE = cu.CUmemorytype.CU_MEMORYTYPE_HOST, cu.CUmemorytype.CU_MEMORYTYPE_DEVICE
# Called as they are: a checked call would cost a frame in the verbs that are called most.
_upload, _download = cu.cuMemcpyHtoD, cu.cuMemcpyDtoH


class Copies(StridedCopies, Part):
    """Copies and fills. Whether host memory is page-locked is not asked, so every asynchronous copy may still touch it."""

    def __init__(self, state: DriverState, device: Any, streams: Streams) -> None:
        super().__init__(state)
        self._device = device
        self._synchronize = streams.stream_synchronize

    def copy(self, dst: int, src: int, nbytes: int, kind: CopyKind, stream: int, *, blocking: bool) -> bool:
        if blocking and stream == LEGACY_STREAM and kind is not _D2D:
            # The synchronous verbs are ordered on the legacy stream: one call instead of two.
            try:
                (error,) = _upload(dst, src, nbytes) if kind is _H2D else _download(dst, src, nbytes)
            except ValueError as unknown:
                error = code_of(unknown)
            if error:
                self._errors.fail("cuMemcpyHtoD" if kind is _H2D else "cuMemcpyDtoH", int(error))
            if kind is _H2D and self._streams.unordered:
                # cuMemcpyHtoD returns when it has read pageable memory, which may be before the device has it. Streams that
                # wait for the legacy stream see no difference; where other streams exist, the copy has to be waited for.
                self._synchronize(stream)
            return False
        getattr(self._functions, _ASYNC[kind])(dst, src, nbytes, self._streams[stream])
        if blocking:
            self._synchronize(stream)
            return False
        return kind is not _D2D

    def fill(self, dst: int, value: int, width: int, count: int, stream: int) -> None:
        getattr(self._functions, f"MemsetD{8 * width}Async")(dst, value, count, self._streams[stream])

    def copy_slices(
        self, call: str, dst: Extent, src: Extent, shape: Extent, kind: CopyKind, stream: int, blocking: bool
    ) -> bool:
        (to, to_pitch, to_rows), (source, source_pitch, source_rows), (width, height, depth) = dst, src, shape
        plan = cu.CUDA_MEMCPY2D() if depth == 1 else cu.CUDA_MEMCPY3D()
        for side, address, on_host in (("src", source, kind is _H2D), ("dst", to, kind is _D2H)):
            setattr(plan, f"{side}MemoryType", _ON_HOST if on_host else _ON_DEVICE)
            setattr(plan, f"{side}{'Host' if on_host else 'Device'}", address)
        plan.srcPitch, plan.dstPitch, plan.WidthInBytes, plan.Height = source_pitch, to_pitch, width, height
        if depth == 1:
            try:
                self._functions.Memcpy2DAsync(plan, self._streams[stream])
            except BackendError as error:
                if error.code != INVALID_VALUE or kind is not _D2D:
                    raise
                # Copies within a device may refuse pitches that cuMemAllocPitch did not choose. This one takes any. It is ordered
                # on the legacy stream, and within a device does not wait by itself.
                self._synchronize(stream)
                self._functions.Memcpy2DUnaligned(plan)
                self._synchronize(LEGACY_STREAM)
                return False
        else:
            plan.srcHeight, plan.dstHeight, plan.Depth = source_rows, to_rows, depth
            self._functions.Memcpy3DAsync(plan, self._streams[stream])
        if blocking:
            self._synchronize(stream)
            return False
        return kind is not _D2D

    def copy_batch(
        self, dsts: Sequence[int], srcs: Sequence[int], sizes: Sequence[int], kind: CopyKind, stream: int
    ) -> bool:
        if stream in DEFAULT_STREAMS:  # the driver refuses batches on them
            running = [self.copy(*each, kind, stream, blocking=False) for each in zip(dsts, srcs, sizes, strict=True)]
            return any(running)
        access = cu.CUmemcpyAttributes()
        access.srcAccessOrder = cu.CUmemcpySrcAccessOrder.CU_MEMCPY_SRC_ACCESS_ORDER_STREAM
        to, origin = list(map(cu.CUdeviceptr, dsts)), list(map(cu.CUdeviceptr, srcs))
        on = self._streams[stream]
        self._functions.MemcpyBatchAsync(to, origin, list(sizes), len(to), [access], [0], 1, on)
        return kind is not _D2D

    def can_access(self, ordinal: int) -> bool:
        return bool(self._functions.DeviceCanAccessPeer(self._device, self._functions.DeviceGet(ordinal)))

    def copy_peer(
        self, dst: int, dst_ordinal: int, src: int, src_ordinal: int, nbytes: int, stream: int, *, blocking: bool
    ) -> None:
        on = self._streams[stream]
        with self._context_of(dst_ordinal) as to, self._context_of(src_ordinal) as origin:
            self._functions.MemcpyPeerAsync(dst, to, src, origin, nbytes, on)
        if blocking:
            self._synchronize(stream)

    @contextmanager
    def _context_of(self, ordinal: int) -> Iterator[Any]:
        """The primary context of a device that is open, because its memory is being copied."""
        device = self._functions.DeviceGet(ordinal)
        primary = self._functions.DevicePrimaryCtxRetain(device)
        try:
            yield primary
        finally:
            self._functions.DevicePrimaryCtxRelease(device)
