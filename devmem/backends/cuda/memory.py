"""Memory of a CUDA device, and host memory that it reaches."""

from __future__ import annotations

import ctypes
from typing import Any

from cuda.bindings import driver as cu

from ...spi.types import AllocFlags, MemoryKind
from ...toolkit.driver_parts import DriverState, Part
from ...toolkit.memory import IPC_HANDLE_BYTES, MemoryPool
from .binding import code_of

#: Flags of cuMemHostAlloc and cuMemHostRegister, and of cuMemAllocManaged.
PORTABLE, DEVICE_MAP, WRITE_COMBINED = 1, 2, 4
ATTACH_GLOBAL, ATTACH_HOST = 1, 2
# Called as they are: a checked call would cost a frame in the verbs that are called most.
_alloc_async, _free_async = cu.cuMemAllocFromPoolAsync, cu.cuMemFreeAsync


class Memory(Part):
    """Device memory and page-locked, mapped and managed memory."""

    def __init__(self, state: DriverState, pool: MemoryPool) -> None:
        super().__init__(state)
        self._pool = pool
        #: Addresses of live memory that the host can see.
        self.host_blocks: set[int] = set()

    def alloc(
        self, nbytes: int, stream: int, kind: MemoryKind = MemoryKind.DEVICE, flags: AllocFlags = AllocFlags.NONE
    ) -> int:
        if not nbytes:
            return 0
        if kind is MemoryKind.DEVICE:
            return int(self._functions.MemAlloc(nbytes))
        if kind is MemoryKind.MANAGED:
            attach = ATTACH_HOST if flags & AllocFlags.ATTACH_HOST else ATTACH_GLOBAL
            ptr = int(self._relaxed(self._functions.MemAllocManaged, nbytes, attach))
        else:
            wanted = PORTABLE if flags & AllocFlags.PORTABLE else 0
            wanted |= DEVICE_MAP if kind is MemoryKind.MAPPED else 0
            wanted |= WRITE_COMBINED if flags & AllocFlags.WRITE_COMBINED else 0
            ptr = int(self._relaxed(self._functions.MemHostAlloc, nbytes, wanted))
        self.host_blocks.add(ptr)
        return ptr

    def free(self, ptr: int, nbytes: int, stream: int, kind: MemoryKind = MemoryKind.DEVICE) -> None:
        if not ptr:
            return
        if kind is not MemoryKind.DEVICE:
            self.host_blocks.discard(ptr)
        on_host = kind is MemoryKind.PINNED or kind is MemoryKind.MAPPED
        self._relaxed(self._functions.MemFreeHost if on_host else self._functions.MemFree, ptr)

    def alloc_async(self, nbytes: int, stream: int) -> int:
        try:
            error, ptr = _alloc_async(nbytes, self._pool.handle, self._streams[stream])
        except ValueError as unknown:
            error = code_of(unknown)
        if error:
            if not nbytes:
                return 0
            self._errors.fail("cuMemAllocFromPoolAsync", int(error))
        return int(ptr)

    def free_async(self, ptr: int, nbytes: int, stream: int) -> None:
        if not ptr:
            return
        try:
            (error,) = _free_async(ptr, self._streams[stream])
        except ValueError as unknown:
            error = code_of(unknown)
        if error:
            self._errors.fail("cuMemFreeAsync", int(error))

    def memory_info(self) -> tuple[int, int]:
        """(free, total) bytes; memory that any pool of the process keeps counts as used."""
        free, total = self._functions.MemGetInfo()
        return int(free), int(total)

    # -- host memory, managed memory -----------------------------------------------------------------------------------

    def host_register(self, ptr: int, nbytes: int, mapped: bool) -> None:
        self._functions.MemHostRegister(ptr, nbytes, PORTABLE | (DEVICE_MAP if mapped else 0))

    def host_unregister(self, ptr: int, nbytes: int) -> None:
        self._functions.MemHostUnregister(ptr)

    def device_pointer(self, host: int) -> int:
        return int(self._functions.MemHostGetDevicePointer(host, 0))

    def prefetch(self, ptr: int, nbytes: int, to_host: bool, stream: int) -> None:
        self._functions.MemPrefetchAsync(ptr, nbytes, self._location(to_host), 0, self._streams[stream])

    def advise(self, ptr: int, nbytes: int, advice: str, to_host: bool) -> None:
        word = getattr(cu.CUmem_advise, f"CU_MEM_ADVISE_{advice.upper()}")
        self._functions.MemAdvise(ptr, nbytes, word, self._location(to_host))

    def _location(self, to_host: bool) -> Any:
        place, kinds = cu.CUmemLocation(), cu.CUmemLocationType
        place.type = kinds.CU_MEM_LOCATION_TYPE_HOST if to_host else kinds.CU_MEM_LOCATION_TYPE_DEVICE
        place.id = 0 if to_host else self._ordinal
        return place


def ipc_bytes(handle: Any) -> bytes:
    """The bytes of a handle; read by address, because the struct's one field comes and goes with the version of the binding."""
    return ctypes.string_at(int(handle.getPtr()), IPC_HANDLE_BYTES)


def ipc_handle(raw: bytes) -> Any:
    """The handle of such bytes."""
    handle = cu.CUipcMemHandle()
    ctypes.memmove(int(handle.getPtr()), raw, IPC_HANDLE_BYTES)
    return handle
