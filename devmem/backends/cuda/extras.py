"""What a CUDA device can do beyond the contract."""

from __future__ import annotations

import ctypes
from abc import abstractmethod
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from cuda.bindings import driver as binding

from ...spi.errors import BackendError, LayoutError
from ...spi.types import LEGACY_STREAM, PER_THREAD_STREAM, CopyKind
from .calls import Calls, unseen
from .library import checked, code_of, cu

#: CUDA_ERROR_INVALID_VALUE and _NOT_FOUND, and the statuses of a stream that cannot be asked, as some other is capturing.
INVALID_VALUE, NOT_FOUND = 1, 500
CAPTURE_ELSEWHERE = range(900, 910)
IPC_HANDLE_BYTES = 64
_ORDINAL = cu.CUpointer_attribute.CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL
# Called as they are, because a frame more would be felt.
_range_around, _pointer_attribute = binding.cuMemGetAddressRange, binding.cuPointerGetAttribute

# The versioned verbs are spelled _v2 in cuda-bindings 12 and have taken the plain name over in 13.
_prefetch = getattr(cu, "cuMemPrefetchAsync_v2", None) or cu.cuMemPrefetchAsync
_advise = getattr(cu, "cuMemAdvise_v2", None) or cu.cuMemAdvise


class Extras(Calls):
    """The optional protocols; the driver is the rest."""

    # -- stream-ordered pool -------------------------------------------------------------------------------------------

    def pool_cached(self) -> int:
        """Bytes that our pool keeps and nobody uses."""
        return self._pool_bytes("RESERVED_MEM_CURRENT") - self._pool_bytes("USED_MEM_CURRENT")

    def pool_trim(self, keep_bytes: int) -> None:
        """Give back what the pool keeps; the driver counts memory in use among what is kept."""
        used = self._pool_bytes("USED_MEM_CURRENT")
        self.check("cuMemPoolTrimTo", unseen(cu.cuMemPoolTrimTo, self.pool, used + keep_bytes))
        # It keeps at least that, in pieces of its own size: then all, as more was not to be kept.
        if keep_bytes and self.pool_cached() > keep_bytes:
            self.check("cuMemPoolTrimTo", unseen(cu.cuMemPoolTrimTo, self.pool, used))

    def pool_threshold(self, nbytes: int) -> None:
        """From how many bytes on the pool gives back what is unused, whenever a stream, an event or the device is waited for."""
        attribute = cu.CUmemPool_attribute.CU_MEMPOOL_ATTR_RELEASE_THRESHOLD
        self.check(
            "cuMemPoolSetAttribute", unseen(cu.cuMemPoolSetAttribute, self.pool, attribute, cu.cuuint64_t(nbytes))
        )

    def _pool_bytes(self, what: str) -> int:
        attribute = getattr(cu.CUmemPool_attribute, f"CU_MEMPOOL_ATTR_{what}")
        return int(self.check("cuMemPoolGetAttribute", unseen(cu.cuMemPoolGetAttribute, self.pool, attribute)))

    # -- copies --------------------------------------------------------------------------------------------------------

    def copy_2d(
        self,
        dst: int,
        dst_pitch: int,
        src: int,
        src_pitch: int,
        width: int,
        height: int,
        kind: CopyKind,
        stream: int,
        *,
        blocking: bool,
    ) -> bool:
        """Rows a pitch apart."""
        plan = _sides(cu.CUDA_MEMCPY2D(), dst, src, kind)
        plan.srcPitch, plan.dstPitch, plan.WidthInBytes, plan.Height = src_pitch, dst_pitch, width, height
        on = self.streams[stream]
        result = cu.cuMemcpy2DAsync(plan, on)
        if int(result[0]) == INVALID_VALUE and kind is CopyKind.D2D:
            # Copies within a device may refuse pitches that cuMemAllocPitch did not choose; this one takes any, and waits.
            self.check("cuStreamSynchronize", cu.cuStreamSynchronize(on))
            self.check("cuMemcpy2DUnaligned", cu.cuMemcpy2DUnaligned(plan))
            # It is ordered on the legacy stream, and within a device does not wait by itself.
            legacy = self.streams[LEGACY_STREAM]
            self.check("cuStreamSynchronize", cu.cuStreamSynchronize(legacy))
            return False
        self.check("cuMemcpy2DAsync", result)
        if blocking:
            self.check("cuStreamSynchronize", cu.cuStreamSynchronize(on))
            return False
        return kind is not CopyKind.D2D

    def copy_3d(
        self,
        dst: int,
        dst_pitch: int,
        dst_rows: int,
        src: int,
        src_pitch: int,
        src_rows: int,
        width: int,
        height: int,
        depth: int,
        kind: CopyKind,
        stream: int,
        *,
        blocking: bool,
    ) -> bool:
        """Slices of rows."""
        plan = _sides(cu.CUDA_MEMCPY3D(), dst, src, kind)
        plan.srcPitch, plan.srcHeight, plan.dstPitch, plan.dstHeight = src_pitch, src_rows, dst_pitch, dst_rows
        plan.WidthInBytes, plan.Height, plan.Depth = width, height, depth
        on = self.streams[stream]
        self.check("cuMemcpy3DAsync", cu.cuMemcpy3DAsync(plan, on))
        if blocking:
            self.check("cuStreamSynchronize", cu.cuStreamSynchronize(on))
            return False
        return kind is not CopyKind.D2D

    def copy_batch(
        self, dsts: Sequence[int], srcs: Sequence[int], sizes: Sequence[int], kind: CopyKind, stream: int
    ) -> bool:
        """Many copies in one call; the default streams, which batches are refused on, take them one by one."""
        if stream in (LEGACY_STREAM, PER_THREAD_STREAM):
            running = [self.copy(*each, kind, stream, blocking=False) for each in zip(dsts, srcs, sizes, strict=True)]
            return any(running)
        access = cu.CUmemcpyAttributes()
        access.srcAccessOrder = cu.CUmemcpySrcAccessOrder.CU_MEMCPY_SRC_ACCESS_ORDER_STREAM
        to, origin = list(map(cu.CUdeviceptr, dsts)), list(map(cu.CUdeviceptr, srcs))
        result = cu.cuMemcpyBatchAsync(to, origin, list(sizes), len(to), [access], [0], 1, self.streams[stream])
        self.check("cuMemcpyBatchAsync", result)
        return kind is not CopyKind.D2D

    @abstractmethod
    def copy(self, dst: int, src: int, nbytes: int, kind: CopyKind, stream: int, *, blocking: bool) -> bool:
        """One copy; the driver's."""

    def can_access(self, ordinal: int) -> bool:
        """Whether copies from that device need not pass through the host."""
        peer = self.check("cuDeviceGet", cu.cuDeviceGet(ordinal))
        return bool(self.check("cuDeviceCanAccessPeer", cu.cuDeviceCanAccessPeer(self.device, peer)))

    def copy_peer(
        self, dst: int, dst_ordinal: int, src: int, src_ordinal: int, nbytes: int, stream: int, *, blocking: bool
    ) -> None:
        """Between two devices of this driver library."""
        on = self.streams[stream]
        with _primary(dst_ordinal) as to, _primary(src_ordinal) as origin:
            self.check("cuMemcpyPeerAsync", cu.cuMemcpyPeerAsync(dst, to, src, origin, nbytes, on))
        if blocking:
            self.check("cuStreamSynchronize", cu.cuStreamSynchronize(on))

    # -- host memory ---------------------------------------------------------------------------------------------------

    def host_register(self, ptr: int, nbytes: int, mapped: bool) -> None:
        """Page-lock, for every device."""
        self.check("cuMemHostRegister", cu.cuMemHostRegister(ptr, nbytes, 1 | (2 if mapped else 0)))

    def host_unregister(self, ptr: int, nbytes: int) -> None:
        """Undo ``host_register``."""
        self.check("cuMemHostUnregister", cu.cuMemHostUnregister(ptr))

    def device_pointer(self, host: int) -> int:
        """The device's address of mapped host memory."""
        return int(self.check("cuMemHostGetDevicePointer", cu.cuMemHostGetDevicePointer(host, 0)))

    def prefetch(self, ptr: int, nbytes: int, to_host: bool, stream: int) -> None:
        """Move managed pages ahead of use."""
        on = self.streams[stream]
        self.check("cuMemPrefetchAsync", _prefetch(ptr, nbytes, self._location(to_host), 0, on))

    def advise(self, ptr: int, nbytes: int, advice: str, to_host: bool) -> None:
        """Say how managed pages will be used."""
        word = getattr(cu.CUmem_advise, f"CU_MEM_ADVISE_{advice.upper()}")
        self.check("cuMemAdvise", _advise(ptr, nbytes, word, self._location(to_host)))

    def _location(self, to_host: bool) -> Any:
        place = cu.CUmemLocation()
        kinds = cu.CUmemLocationType
        place.type = kinds.CU_MEM_LOCATION_TYPE_HOST if to_host else kinds.CU_MEM_LOCATION_TYPE_DEVICE
        place.id = 0 if to_host else self.ordinal
        return place

    # -- sharing, capture, holding -------------------------------------------------------------------------------------

    def ipc_export(self, ptr: int) -> bytes:
        """64 bytes that open the allocation in another process; plain allocations only."""
        result = cu.cuIpcGetMemHandle(ptr)
        if int(result[0]) == INVALID_VALUE:
            raise BackendError(
                f"cuIpcGetMemHandle refused {ptr:#x}: only the first address of memory that cuMemAlloc made can be shared, not "
                f"memory of a pool; allocate it under use_memory(DriverMemory())",
                backend="cuda",
                call="cuIpcGetMemHandle",
                code=INVALID_VALUE,
                name="CUDA_ERROR_INVALID_VALUE",
            )
        handle = self.check("cuIpcGetMemHandle", result)
        # By address: the struct's one field has come and gone between versions of the binding.
        return ctypes.string_at(int(handle.getPtr()), IPC_HANDLE_BYTES)

    def ipc_open(self, handle: bytes) -> int:
        """The address here of an allocation of another process."""
        if len(handle) != IPC_HANDLE_BYTES:
            raise LayoutError(
                f"an IPC handle of CUDA has {IPC_HANDLE_BYTES} bytes, not {len(handle)}: give it as exported"
            )
        raw = cu.CUipcMemHandle()
        ctypes.memmove(int(raw.getPtr()), handle, IPC_HANDLE_BYTES)
        return int(self.check("cuIpcOpenMemHandle", cu.cuIpcOpenMemHandle(raw, 1)))

    def ipc_close(self, ptr: int) -> None:
        """Let go of what ``ipc_open`` returned."""
        self.check("cuIpcCloseMemHandle", cu.cuIpcCloseMemHandle(ptr))

    def capturing(self, stream: int) -> bool:
        """Whether the stream records a graph, or cannot be asked because another does."""
        error, status = cu.cuStreamIsCapturing(self.streams[stream])
        if int(error) in CAPTURE_ELSEWHERE:
            return True
        self.check("cuStreamIsCapturing", (error, status))
        return int(status) != 0

    def hold(self, stream: int) -> int:
        """Make the stream wait for a word of host memory to become 1."""
        word = int(self.check("cuMemHostAlloc", cu.cuMemHostAlloc(4, 2)))
        ctypes.c_uint32.from_address(word).value = 0
        try:
            waited = cu.cuStreamWaitValue32(self.streams[stream], self.device_pointer(word), 1, 0)
            self.check("cuStreamWaitValue32", waited)
        except BackendError:
            cu.cuMemFreeHost(word)  # the error to be told is the one above
            raise
        return word

    def release(self, hold: int) -> None:
        """Let the stream go on. The word is small, and left to the driver: the stream may not have read it yet."""
        ctypes.c_uint32.from_address(hold).value = 1

    def pointer_range(self, ptr: int) -> tuple[int, int] | None:
        """The allocation around an address. All memory is in one address space, so what the driver knows a device can use."""
        try:
            error, base, nbytes = _range_around(ptr)
        except ValueError as unknown:
            error = code_of(unknown)
        if error:
            if int(error) in (INVALID_VALUE, NOT_FOUND):
                return None
            self.fail("cuMemGetAddressRange", error)
        return int(base), nbytes

    def pointer_device(self, ptr: int) -> int | None:
        """Whose memory it is."""
        try:
            error, ordinal = _pointer_attribute(_ORDINAL, ptr)
        except ValueError as unknown:
            error = code_of(unknown)
        if error:
            if int(error) == INVALID_VALUE:
                return None
            self.fail("cuPointerGetAttribute", error)
        return int(ordinal)


def _sides(plan: Any, dst: int, src: int, kind: CopyKind) -> Any:
    """The two addresses of a strided copy, each with its kind of memory."""
    host, device = cu.CUmemorytype.CU_MEMORYTYPE_HOST, cu.CUmemorytype.CU_MEMORYTYPE_DEVICE
    if kind is CopyKind.H2D:
        plan.srcMemoryType, plan.srcHost = host, src
    else:
        plan.srcMemoryType, plan.srcDevice = device, src
    if kind is CopyKind.D2H:
        plan.dstMemoryType, plan.dstHost = host, dst
    else:
        plan.dstMemoryType, plan.dstDevice = device, dst
    return plan


@contextmanager
def _primary(ordinal: int) -> Iterator[Any]:
    """The primary context of a device, which stays open because memory of it is being copied."""
    device = checked("cuDeviceGet", cu.cuDeviceGet(ordinal))
    primary = checked("cuDevicePrimaryCtxRetain", cu.cuDevicePrimaryCtxRetain(device))
    try:
        yield primary
    finally:
        checked("cuDevicePrimaryCtxRelease", cu.cuDevicePrimaryCtxRelease(device))
