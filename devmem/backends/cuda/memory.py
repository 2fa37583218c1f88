"""Memory of a CUDA device, and host memory that it reaches."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from cuda.bindings import driver as cu

from ...spi.errors import BackendError, DeviceLost, OutOfMemory, UnsupportedError
from ...spi.types import AllocFlags, MemoryKind, Place, PlaceKind
from ...toolkit.driver_parts import DriverState
from ...toolkit.mappings import permissions_of
from ...toolkit.memory import IPC_HANDLE_BYTES, MemoryPool
from ...toolkit.numa import near_node
from ...toolkit.vendor_functions import INVALID_VALUE
from ...toolkit.virtual import VirtualMemory

#: Flags of cuMemHostAlloc and cuMemHostRegister, and of cuMemAllocManaged.
PORTABLE, DEVICE_MAP, WRITE_COMBINED, READ_ONLY = 1, 2, 4, 8
ATTACH_GLOBAL, ATTACH_HOST = 1, 2
#: The driver version that brought batches of hints for managed memory.
MANAGED_BATCHES_SINCE = 13000
_LOCATIONS = {
    PlaceKind.DEVICE: cu.CUmemLocationType.CU_MEM_LOCATION_TYPE_DEVICE,
    PlaceKind.HOST: cu.CUmemLocationType.CU_MEM_LOCATION_TYPE_HOST,
    PlaceKind.NUMA_NODE: cu.CUmemLocationType.CU_MEM_LOCATION_TYPE_HOST_NUMA,
}
# Called as they are: a checked call would cost a frame in the verbs that are called most.
_flags, _attribute = cu.cuMemHostGetFlags, cu.cuPointerGetAttribute
MEMORY_TYPE = cu.CUpointer_attribute.CU_POINTER_ATTRIBUTE_MEMORY_TYPE


class Memory(VirtualMemory):
    """Device memory, virtual memory, and page-locked, mapped and managed memory."""

    _least = cu.CUmemAllocationGranularity_flags.CU_MEM_ALLOC_GRANULARITY_MINIMUM

    def __init__(self, state: DriverState, pool: MemoryPool) -> None:
        super().__init__(state)
        self._pool = pool
        #: The NUMA node for memory that is locked; -1: the system chooses.
        self.node = -1
        #: Addresses of live memory: of the device, and what the host can see.
        self.blocks, self.host_blocks, self.managed_blocks = self.table(), self.table(), self.table()
        self.registered = self.table()

    def alloc(
        self, nbytes: int, stream: int, kind: MemoryKind = MemoryKind.DEVICE, flags: AllocFlags = AllocFlags.NONE
    ) -> int:
        if not nbytes:
            return 0
        if kind is MemoryKind.DEVICE:
            return self._take(self.blocks, self._functions.MemFree, self._recorded.MemAlloc, nbytes)
        if kind is MemoryKind.MANAGED:
            attach = ATTACH_HOST if flags & AllocFlags.ATTACH_HOST else ATTACH_GLOBAL
            make = partial(self._relaxed, self._recorded.MemAllocManaged)
            return self._take(self.managed_blocks, self._functions.MemFree, make, nbytes, attach)
        wanted = PORTABLE if flags & AllocFlags.PORTABLE else 0
        wanted |= DEVICE_MAP if kind is MemoryKind.MAPPED else 0
        wanted |= WRITE_COMBINED if flags & AllocFlags.WRITE_COMBINED else 0
        make = partial(self._relaxed, self._recorded.MemHostAlloc if self.node < 0 else self._alloc_near)
        return self._take(self.host_blocks, self._functions.MemFreeHost, make, nbytes, wanted)

    def _alloc_near(self, made: list[Any], nbytes: int, flags: int) -> None:
        """Allocate by the calling thread's policy: cuMemHostAlloc itself takes no node."""
        near_node(self.node, partial(self._recorded.MemHostAlloc, made, nbytes, flags))

    def free(self, ptr: int, nbytes: int, stream: int, kind: MemoryKind = MemoryKind.DEVICE) -> None:
        if not ptr:
            return
        on_host = kind is MemoryKind.PINNED or kind is MemoryKind.MAPPED
        live = self.host_blocks if on_host else self.managed_blocks if kind is MemoryKind.MANAGED else self.blocks
        self._give(live, ptr, partial(self._relaxed, self._recorded.MemFreeHost if on_host else self._recorded.MemFree))

    def _properties(self, kind: int) -> Any:
        properties = cu.CUmemAllocationProp()
        properties.type = cu.CUmemAllocationType.CU_MEM_ALLOCATION_TYPE_PINNED
        properties.location = self._here(to_host=False)
        properties.requestedHandleTypes = cu.CUmemAllocationHandleType(kind)
        return properties

    def _access(self) -> Any:
        return [access_of(self._ordinal)]

    def _place(self, handle: Any) -> int:
        return int(self._functions.MemGetAllocationPropertiesFromHandle(handle).location.id)

    def _export(self, handle: Any, kind: int) -> int | bytes:
        made = self._functions.MemExportToShareableHandle(handle, cu.CUmemAllocationHandleType(kind), 0)
        return made if isinstance(made, int) else bytes(made.data)

    def _import(self, given: int | bytes, kind: int) -> Any:
        return self._functions.MemImportFromShareableHandle(given, cu.CUmemAllocationHandleType(kind))

    def alloc_async(self, nbytes: int, stream: int) -> int:
        return self._alloc_on(self._recorded.MemAllocFromPoolAsync, nbytes, stream, self._pool.handle)

    def alloc_shared(self, nbytes: int, stream: int) -> int:
        return self._alloc_on(self._recorded.MemAllocAsync, nbytes, stream)

    def alloc_decompressible(self, nbytes: int, stream: int) -> int:
        return self._alloc_on(self._recorded.MemAllocFromPoolAsync, nbytes, stream, self._pool.decompressible)

    def _alloc_on(self, make: Callable[..., object], nbytes: int, stream: int, *pool: Any) -> int:
        if not nbytes:
            return 0
        give_back = partial(self.free_async, nbytes=nbytes, stream=stream)
        return self._take(self.blocks, give_back, make, nbytes, *pool, self._streams[stream])

    def free_async(self, ptr: int, nbytes: int, stream: int) -> None:
        if ptr:
            self._give(self.blocks, ptr, self._recorded.MemFreeAsync, self._streams[stream])

    def memory_info(self) -> tuple[int, int]:
        """(free, total) bytes; memory that any pool of the process keeps counts as used."""
        free, total = self._functions.MemGetInfo()
        return int(free), int(total)

    # -- host memory, managed memory -----------------------------------------------------------------------------------

    def host_register(self, ptr: int, nbytes: int, mapped: bool) -> None:
        flags = PORTABLE | (DEVICE_MAP if mapped else 0)
        try:
            self._lock(ptr, nbytes, flags)
        except BackendError as error:
            permissions = permissions_of(ptr, ptr + nbytes)
            if isinstance(error, DeviceLost | OutOfMemory) or "r-" not in permissions:
                raise
            if len(permissions) > 1:
                error.add_note("some of this memory is mapped read-only, and some not: register each part by itself")
                raise
            self._lock(ptr, nbytes, flags | READ_ONLY)  # which not every device takes

    def _lock(self, ptr: int, nbytes: int, flags: int) -> None:
        lock, unlock = self._recorded.MemHostRegister, self._functions.MemHostUnregister
        self._take(self.registered, unlock, lock, ptr, nbytes, flags)

    def host_unregister(self, ptr: int, nbytes: int) -> None:
        self._give(self.registered, ptr, self._recorded.MemHostUnregister)

    def is_page_locked(self, ptr: int) -> bool:
        """Whether an address of the host is one that the driver knows: page-locked, by any library, or managed."""
        # The flags of registered memory are not documented, but asked in a tenth of the time.
        try:
            return not _flags(ptr)[0] or _attribute(MEMORY_TYPE, ptr)[0] != INVALID_VALUE
        except ValueError:  # a status that the binding does not know
            return True

    def device_pointer(self, host: int) -> int:
        return int(self._functions.MemHostGetDevicePointer(host, 0))

    def prefetch(self, ptr: int, nbytes: int, to_host: bool, stream: int) -> None:
        self._functions.MemPrefetchAsync(ptr, nbytes, self._here(to_host), 0, self._streams[stream])

    def advise(self, ptr: int, nbytes: int, advice: str, to_host: bool) -> None:
        word = getattr(cu.CUmem_advise, f"CU_MEM_ADVISE_{advice.upper()}")
        self._functions.MemAdvise(ptr, nbytes, word, self._here(to_host))

    def prefetch_to(self, ptrs: Sequence[int], sizes: Sequence[int], to: Place, stream: int, *, discard: bool) -> None:
        place, on = _location(to), self._streams[stream]
        if discard or self._has_batches():
            if discard:
                self._check_batches()
            move = self._functions.MemDiscardAndPrefetchBatchAsync if discard else self._functions.MemPrefetchBatchAsync
            move(list(map(cu.CUdeviceptr, ptrs)), list(sizes), len(ptrs), [place], [0], 1, 0, on)
            return
        for ptr, nbytes in zip(ptrs, sizes, strict=True):
            self._functions.MemPrefetchAsync(ptr, nbytes, place, 0, on)

    def discard(self, ptrs: Sequence[int], sizes: Sequence[int], stream: int) -> None:
        self._check_batches()
        ranges = list(map(cu.CUdeviceptr, ptrs)), list(sizes), len(ptrs)
        self._functions.MemDiscardBatchAsync(*ranges, 0, self._streams[stream])

    def advise_for(self, ptr: int, nbytes: int, advice: str, to: Place) -> None:
        word = getattr(cu.CUmem_advise, f"CU_MEM_ADVISE_{advice.upper()}")
        self._functions.MemAdvise(ptr, nbytes, word, _location(to))

    def _has_batches(self) -> bool:
        return (
            hasattr(cu, "cuMemDiscardBatchAsync") and int(self._functions.DriverGetVersion()) >= MANAGED_BATCHES_SINCE
        )

    def _check_batches(self) -> None:
        if not self._has_batches():
            raise UnsupportedError("this driver, or this cuda-bindings, cannot discard managed memory: CUDA 13.0 can")

    def _here(self, to_host: bool) -> Any:
        return _location(Place(PlaceKind.HOST) if to_host else Place(PlaceKind.DEVICE, self._ordinal))


def _location(place: Place) -> Any:
    made = cu.CUmemLocation()
    made.type = _LOCATIONS[place.kind]
    made.id = place.number
    return made


def access_of(ordinal: int) -> Any:
    """Return the description of a device's access: it may read and write."""
    access = cu.CUmemAccessDesc()
    access.location = _location(Place(PlaceKind.DEVICE, ordinal))
    access.flags = cu.CUmemAccess_flags.CU_MEM_ACCESS_FLAGS_PROT_READWRITE
    return access


def ipc_bytes(handle: Any) -> bytes:
    """The bytes of a handle; read by address, because the struct's one field comes and goes with the version of the binding."""
    return ctypes.string_at(int(handle.getPtr()), IPC_HANDLE_BYTES)


def ipc_handle(raw: bytes) -> Any:
    """The handle of such bytes."""
    return _filled(cu.CUipcMemHandle(), raw)


def pointer_data(raw: bytes) -> Any:
    """The data of a pool's pointer, of such bytes."""
    return _filled(cu.CUmemPoolPtrExportData(), raw)


def _filled(struct: Any, raw: bytes) -> Any:
    ctypes.memmove(int(struct.getPtr()), raw, IPC_HANDLE_BYTES)
    return struct
