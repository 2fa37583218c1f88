"""Virtual device memory: physical memory and addresses are made apart and mapped, here or in another process."""

from __future__ import annotations

from abc import ABC, abstractmethod
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from ..spi.errors import BackendError, LayoutError
from .deferred_errors import FirstError
from .driver_parts import DriverState
from .memory import IPC_HANDLE_BYTES, POSIX_FILE, Holdings
from .ranges import RangeTable
from .vendor_functions import INVALID_VALUE

#: The type of handle that other machines can open, as CUDA and HIP number it.
FABRIC = 8


@dataclass(frozen=True)
class Mapped:
    """Physical memory at the addresses from ``start`` to ``stop``."""

    start: int
    stop: int
    handle: Any
    kind: int


class VirtualMemory(Holdings, ABC):
    """The verbs of `SupportsVirtual`, for a vendor whose functions are CUDA's but for the prefix.

    A backend writes how the vendor takes and gives the structs.
    """

    def __init__(self, state: DriverState) -> None:
        super().__init__(state)
        self._virtual = self.table()
        self.mapped = RangeTable[Mapped]()

    @abstractmethod
    def _properties(self, kind: int) -> Any:
        """Return the properties of memory of this device, for handles of that kind."""

    @abstractmethod
    def _access(self) -> Any:
        """Return the description of this device's access: it may read and write."""

    @abstractmethod
    def _place(self, handle: Any) -> int:
        """The device that has the memory of a handle."""

    @abstractmethod
    def _export(self, handle: Any, kind: int) -> int | bytes:
        """Make a handle for other processes: a file descriptor, or bytes."""

    @abstractmethod
    def _import(self, given: int | bytes, kind: int) -> Any:
        """Make a handle of what another process exported."""

    def virtual_alloc(self, nbytes: int, stream: int, fabric: bool = False) -> int:
        if not nbytes:
            return 0
        kind = FABRIC if fabric else POSIX_FILE
        properties = self._properties(kind)
        unit = int(self._functions.MemGetAllocationGranularity(properties, self._least))
        size = -(-nbytes // unit) * unit
        return self._map(size, kind, self._functions.MemCreate(size, properties, 0))

    #: The granularity that is needed, as the vendor's function takes it.
    _least: Any = 0

    def _map(self, size: int, kind: int, handle: Any) -> int:
        """Map physical memory, which is released if that fails."""
        ptr, is_mapped = 0, False
        try:
            if kind == POSIX_FILE and self._place(handle) != self._ordinal:
                raise LayoutError(f"this memory is of device {self._place(handle)}, not of {self._ordinal}")
            ptr = int(self._functions.MemAddressReserve(size, 0, 0, 0))
            self._functions.MemMap(ptr, size, 0, handle, 0)
            is_mapped = True
            self._functions.MemSetAccess(ptr, size, self._access(), 1)
            self.mapped.add(Mapped(ptr, ptr + size, handle, kind))
            self._virtual[ptr] = ptr
        except BaseException:
            self.mapped.remove(ptr)
            with suppress(BackendError):  # the error above is the one to be raised
                if is_mapped:
                    self._functions.MemUnmap(ptr, size)
                if ptr:
                    self._functions.MemAddressFree(ptr, size)
                self._functions.MemRelease(handle)
            raise
        return ptr

    def virtual_free(self, ptr: int, nbytes: int, stream: int) -> None:
        if not ptr:
            return
        block = self.mapped.containing(ptr, ptr + 1)
        if block is None or block.start != ptr:
            self._errors.refuse(
                "MemUnmap", INVALID_VALUE, f"{ptr:#x} is no virtual memory of this device, or was freed"
            )
        self._virtual.pop(ptr, None)  # first: another thread may be given the addresses at once
        self.mapped.remove(ptr)
        size = block.stop - ptr
        with FirstError() as first:
            first.attempt(self._functions.MemUnmap, ptr, size)
            first.attempt(self._functions.MemRelease, block.handle)
            first.attempt(self._functions.MemAddressFree, ptr, size)

    def virtual_range(self, ptr: int) -> tuple[int, int] | None:
        block = self.mapped.containing(ptr, ptr + 1)
        return None if block is None else (block.start, block.stop - block.start)

    def virtual_share(self, ptr: int) -> int | bytes:
        block = self.mapped.containing(ptr, ptr + 1)
        if block is None:
            self._errors.refuse("MemExportToShareableHandle", INVALID_VALUE, f"{ptr:#x} is no virtual memory")
        return self._export(block.handle, block.kind)

    def virtual_open(self, given: int | bytes, nbytes: int) -> int:
        if isinstance(given, bytes) and len(given) != IPC_HANDLE_BYTES:
            raise LayoutError(f"a fabric handle has {IPC_HANDLE_BYTES} bytes, not {len(given)}: give it as exported")
        kind = FABRIC if isinstance(given, bytes) else POSIX_FILE
        return self._map(nbytes, kind, self._import(given, kind))
