"""Copies to, from, on and between CUDA devices, and fills."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any
from weakref import WeakSet, WeakValueDictionary

from cuda.bindings import driver as cu

from ...spi.errors import BackendError
from ...spi.types import LEGACY_STREAM, Box, CopyKind
from ...toolkit.driver_parts import DriverState, Part
from ...toolkit.memory import MemoryPool
from ...toolkit.streams import Streams
from ...toolkit.vendor_functions import INVALID_VALUE
from .binding import code_of
from .memory import Memory

_H2D, _D2H, _D2D = CopyKind.H2D, CopyKind.D2H, CopyKind.D2D
_ASYNC = {_H2D: "MemcpyHtoDAsync", _D2H: "MemcpyDtoHAsync", _D2D: "MemcpyDtoDAsync"}
_ON_HOST, _ON_DEVICE = cu.CUmemorytype.CU_MEMORYTYPE_HOST, cu.CUmemorytype.CU_MEMORYTYPE_DEVICE
_NO_ACCESS = cu.CUmemAccess_flags.CU_MEM_ACCESS_FLAGS_PROT_NONE
_READ_WRITE = cu.CUmemAccess_flags.CU_MEM_ACCESS_FLAGS_PROT_READWRITE
# Called as they are: a checked call would cost a frame in the verbs that are called most.
_upload, _download = cu.cuMemcpyHtoD, cu.cuMemcpyDtoH


#: The pools of open devices, and the primary contexts of those that are or were open, by ordinal.
pools: WeakValueDictionary[int, MemoryPool] = WeakValueDictionary()
contexts: dict[int, Any] = {}
#: The driver version that brought cuMemcpyWithAttributesAsync; CU_MEMCPY_FLAG_PREFER_OVERLAP_WITH_COMPUTE.
ATTRIBUTES_SINCE, OVERLAP = 13020, 1
PEER_ACCESS_ALREADY_ENABLED, PEER_ACCESS_NOT_ENABLED, TOO_MANY_PEERS = 704, 705, 711


class Copies(Part):
    """Copies and fills. The driver has read or written pageable memory when its asynchronous copies return."""

    def __init__(self, state: DriverState, device: Any, streams: Streams, memory: Memory) -> None:
        super().__init__(state)
        self._device, self._memory = device, memory
        self._is_page_locked = memory.is_page_locked
        self._capturing = streams.capturing
        #: Whether single copies of page-locked memory take the call with attributes, which `CopyCalls` chooses once.
        self.with_attributes = False
        #: The pools of devices to whose memory access was enabled, or cannot be.
        self._peers: WeakSet[MemoryPool] = WeakSet()
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
        on, attributes = self._streams[stream], False
        if self.with_attributes and kind is not _D2D and stream != LEGACY_STREAM:
            attributes = self._is_page_locked(src if kind is _H2D else dst) and not self._capturing(stream)
        if attributes:
            self._functions.MemcpyWithAttributesAsync(dst, src, nbytes, _BESIDE_WORK, on)
        else:
            getattr(self._functions, _ASYNC[kind])(dst, src, nbytes, on)
        if blocking:
            self._synchronize(stream)
            return False
        return attributes or (kind is not _D2D and self._is_page_locked(src if kind is _H2D else dst))

    def take_attributes(self, taken: bool) -> None:
        """Make single copies of page-locked memory by the call with attributes, or by the plain ones."""
        self.with_attributes = taken

    def fill(self, dst: int, value: int, width: int, count: int, stream: int) -> None:
        getattr(self._functions, f"MemsetD{8 * width}Async")(dst, value, count, self._streams[stream])

    def copy_strided(self, box: Box, kind: CopyKind, stream: int, *, blocking: bool) -> bool:
        plan = cu.CUDA_MEMCPY2D() if box.depth == 1 else cu.CUDA_MEMCPY3D()
        for side, address, on_host in (("src", box.src, kind is _H2D), ("dst", box.dst, kind is _D2H)):
            setattr(plan, f"{side}MemoryType", _ON_HOST if on_host else _ON_DEVICE)
            setattr(plan, f"{side}{'Host' if on_host else 'Device'}", address)
        plan.srcPitch, plan.dstPitch, plan.WidthInBytes, plan.Height = (
            box.src_pitch,
            box.dst_pitch,
            box.width,
            box.height,
        )
        if box.depth == 1:
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
            plan.srcHeight, plan.dstHeight, plan.Depth = box.src_rows, box.dst_rows, box.depth
            self._functions.Memcpy3DAsync(plan, self._streams[stream])
        if blocking:
            self._synchronize(stream)
            return False
        return kind is not _D2D and self._is_page_locked(box.src if kind is _H2D else box.dst)

    def copy_batch(
        self, dsts: Sequence[int], srcs: Sequence[int], sizes: Sequence[int], kind: CopyKind, stream: int
    ) -> bool:
        access = _IN_ORDER if kind is _D2D else _BESIDE_WORK
        to, origin = list(map(cu.CUdeviceptr, dsts)), list(map(cu.CUdeviceptr, srcs))
        on = self._streams[stream]
        self._functions.MemcpyBatchAsync(to, origin, list(sizes), len(to), [access], [0], 1, on)
        return kind is not _D2D

    def copy_3d_batch(self, boxes: Sequence[Box], kind: CopyKind, stream: int) -> bool:
        operations = [_operation(box, 0 if kind is _D2D else OVERLAP) for box in boxes]
        self._functions.Memcpy3DBatchAsync(len(boxes), operations, 0, self._streams[stream])
        return kind is not _D2D

    def can_access(self, ordinal: int) -> bool:
        return bool(self._functions.DeviceCanAccessPeer(self._device, self._functions.DeviceGet(ordinal)))

    def copy_peer(
        self, dst: int, dst_ordinal: int, src: int, src_ordinal: int, nbytes: int, stream: int, *, blocking: bool
    ) -> None:
        on = self._streams[stream]
        to, origin = contexts[dst_ordinal], contexts[src_ordinal]  # both are open: their memory is copied
        for other, context in ((dst_ordinal, to), (src_ordinal, origin)):
            pool = pools.get(other)
            if other != self._ordinal and pool is not None and pool not in self._peers:
                self._enable_access(other, context, pool)
        self._functions.MemcpyPeerAsync(dst, to, src, origin, nbytes, on)
        if blocking:
            self._synchronize(stream)

    def peer_access(self, ordinal: int, enabled: bool) -> None:
        if enabled:
            self._enable_access(ordinal, contexts[ordinal], pools[ordinal])
            return
        self._peers.add(pools[ordinal])  # asked for already: no copy asks again
        try:
            self._functions.CtxDisablePeerAccess(contexts[ordinal])
        except BackendError as error:
            if error.code != PEER_ACCESS_NOT_ENABLED:
                raise
        self._set_pool_access(pools[ordinal], _NO_ACCESS)

    def _enable_access(self, other: int, context: Any, pool: MemoryPool) -> None:
        """Let this device reach another's memory, plain and of its pool; without that the same copy passes through the host."""
        if self.can_access(other):
            try:
                self._functions.CtxEnablePeerAccess(context, 0)
            except BackendError as error:
                if error.code not in (PEER_ACCESS_ALREADY_ENABLED, TOO_MANY_PEERS):
                    raise
            self._set_pool_access(pool, _READ_WRITE)
        self._peers.add(pool)

    def _set_pool_access(self, pool: MemoryPool, flags: Any) -> None:
        """Say what this device may do with memory of another's pool."""
        if pool.handle is not None:
            access = cu.CUmemAccessDesc()
            access.location.type = cu.CUmemLocationType.CU_MEM_LOCATION_TYPE_DEVICE
            access.location.id = self._ordinal
            access.flags = flags
            self._functions.MemPoolSetAccess(pool.handle, [access], 1)


def _attributes(flags: int) -> Any:
    made = cu.CUmemcpyAttributes()
    made.srcAccessOrder, made.flags = _STREAM_ORDER, flags
    return made


def _operation(box: Box, flags: int) -> Any:
    """One copy of a batch, which reads its source in stream order."""
    made = cu.CUDA_MEMCPY3D_BATCH_OP()
    for operand, address, pitch, rows in ((made.dst, *box[:3]), (made.src, *box[3:6])):
        operand.type = cu.CUmemcpy3DOperandType.CU_MEMCPY_OPERAND_TYPE_POINTER
        operand.op.ptr.ptr, operand.op.ptr.rowLength, operand.op.ptr.layerHeight = cu.CUdeviceptr(address), pitch, rows
    made.extent.width, made.extent.height, made.extent.depth = box[6:]
    made.srcAccessOrder, made.flags = _STREAM_ORDER, flags
    return made


if hasattr(cu, "CUmemcpyAttributes"):
    _STREAM_ORDER = cu.CUmemcpySrcAccessOrder.CU_MEMCPY_SRC_ACCESS_ORDER_STREAM
    #: Attributes of copies within a device, which other work waits for, and of those from and to the host, for which copy engines
    #: are rather to be taken than the units that compute.
    _IN_ORDER, _BESIDE_WORK = _attributes(0), _attributes(OVERLAP)
