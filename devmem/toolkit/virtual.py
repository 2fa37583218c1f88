"""Virtual device memory: physical memory and addresses are made apart and mapped, here or in another process."""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from ..spi.errors import BackendError, LayoutError
from .driver_parts import DriverState
from .memory import IPC_HANDLE_BYTES, POSIX_FILE, Holdings, end_all
from .ranges import RangeTable
from .vendor_functions import INVALID_VALUE

#: The type of handle that other machines can open, as CUDA and HIP number it.
FABRIC = 8


@dataclass(frozen=True)
class Mapped:
    """Physical memory at the addresses from ``start`` to ``stop``; what of it has not ended, with the arguments of that."""

    start: int
    stop: int
    handle: Any
    kind: int
    left: dict[str, tuple[Any, ...]]


class VirtualMemory(Holdings, ABC):
    """The verbs of `SupportsVirtual`, for a vendor whose functions are CUDA's but for the prefix.

    A backend writes how the vendor takes and gives the structs.
    """

    def __init__(self, state: DriverState) -> None:
        super().__init__(state)
        self._virtual = self.table()
        self._mapped = RangeTable[Mapped]()

    @abstractmethod
    def _properties(self, kind: int) -> Any:
        """What the memory is: of this device, for handles of that kind."""

    @abstractmethod
    def _access(self) -> Any:
        """That this device may read and write."""

    @abstractmethod
    def _place(self, handle: Any) -> int:
        """The device that has the memory of a handle."""

    @abstractmethod
    def _export(self, made: list[Any], handle: Any, kind: int) -> None:
        """Make a handle for other processes, as the recorded functions do."""

    @abstractmethod
    def _told(self, made: Any, kind: int) -> int | bytes:
        """What `_export` made, as the file descriptor or the bytes that it is."""

    @abstractmethod
    def _import(self, made: list[Any], given: int | bytes, kind: int) -> None:
        """Make a handle of what another process exported, as the recorded functions do."""

    def virtual_alloc(self, nbytes: int, stream: int, fabric: bool = False) -> int:
        if not nbytes:
            return 0
        kind = FABRIC if fabric else POSIX_FILE
        properties = self._properties(kind)
        unit = int(self._functions.MemGetAllocationGranularity(properties, self._least))
        size = -(-nbytes // unit) * unit
        [ptr] = map(self._map, (size,), (kind,), (lambda made: self._recorded.MemCreate(made, size, properties, 0),))
        return ptr

    #: The granularity that is needed, as the vendor's function takes it.
    _least: Any = 0

    def _map(self, size: int, kind: int, make: Callable[[list[Any]], object]) -> int:
        handles: list[Any] = []
        places: list[Any] = []
        mapped: list[Any] = []
        try:
            make(handles)
            if kind == POSIX_FILE and self._place(handles[0]) != self._ordinal:
                raise LayoutError(f"this memory is of device {self._place(handles[0])}, not of {self._ordinal}")
            self._recorded.MemAddressReserve(places, size, 0, 0, 0)
            [ptr] = map(int, places)
            self._recorded.MemMap(mapped, ptr, size, 0, handles[0], 0)
            self._functions.MemSetAccess(ptr, size, self._access(), 1)
            left = {"MemUnmap": (ptr, size), "MemRelease": (handles[0],)}
            self._mapped.add(Mapped(ptr, ptr + size, handles[0], kind, left))
            self._virtual[ptr] = ptr
            return ptr
        except BaseException:
            for each in map(int, places):
                self._virtual.pop(each, None)
                self._mapped.remove(each)
            for ends, made in (("MemUnmap", mapped), ("MemAddressFree", places)):
                for each in map(int, made):
                    getattr(self._functions, ends)(each, size)
            for each in handles:
                self._functions.MemRelease(each)
            raise

    def virtual_free(self, ptr: int, nbytes: int, stream: int) -> None:
        if not ptr:
            return
        block = self._mapped.containing(ptr, ptr + 1)
        if block is None or block.start != ptr:
            self._errors.refuse(
                "MemUnmap", INVALID_VALUE, f"{ptr:#x} is no virtual memory of this device, or was freed"
            )
        try:
            try:
                end_all(self._recorded, block.left)
            finally:
                if not block.left:
                    self._mapped.remove(ptr)  # first: another thread may be given the addresses at once
                    self._give(self._virtual, ptr, self._recorded.MemAddressFree, block.stop - ptr)
        except BackendError:
            raise
        except BaseException:
            if self.is_out(ptr):
                self._mapped.add(block)
            raise

    def virtual_range(self, ptr: int) -> tuple[int, int] | None:
        block = self._mapped.containing(ptr, ptr + 1)
        return None if block is None else (block.start, block.stop - block.start)

    def virtual_share(self, ptr: int) -> int | bytes:
        block = self._mapped.containing(ptr, ptr + 1)
        if block is None:
            self._errors.refuse("MemExportToShareableHandle", INVALID_VALUE, f"{ptr:#x} is no virtual memory")
        made: list[Any] = []
        try:
            self._export(made, block.handle, block.kind)
            [told] = map(self._told, made, (block.kind,))
            return told
        except BaseException:
            for each in map(self._told, made, (block.kind,)):
                if isinstance(each, int):
                    os.close(each)
            raise

    def virtual_open(self, given: int | bytes, nbytes: int) -> int:
        if isinstance(given, bytes) and len(given) != IPC_HANDLE_BYTES:
            raise LayoutError(f"a fabric handle has {IPC_HANDLE_BYTES} bytes, not {len(given)}: give it as exported")
        kind = FABRIC if isinstance(given, bytes) else POSIX_FILE
        [ptr] = map(self._map, (nbytes,), (kind,), (lambda made: self._import(made, given, kind),))
        return ptr
