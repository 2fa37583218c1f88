"""Memory parts of a driver: a device's own pool, and memory that others allocated."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ..spi.errors import BackendError, LayoutError
from .driver_parts import DriverState, Part
from .vendor_functions import INVALID_VALUE, NOT_FOUND

KEEP_EVERYTHING = (1 << 64) - 1
#: Attributes of a pool, as CUDA and HIP number them.
RELEASE_THRESHOLD, RESERVED_BYTES, USED_BYTES = 4, 5, 7
IPC_HANDLE_BYTES = 64
#: The only flag of opening a handle: access between devices is enabled when it is needed.
LAZY_PEER_ACCESS = 1


class MemoryPool(Part):
    """A device's own memory pool, for stream-ordered allocation.

    The vendors' default pool of a device is shared by all libraries of the process, and so is its threshold: how much unused
    memory it keeps. So a driver makes a pool of its own. Its threshold starts at "keep everything": with the vendors' default of
    zero, every synchronization gives the unused memory back, which costs milliseconds a gigabyte at the next allocation.

    ``handle`` is the vendor's, or None before `create` and after `destroy`. The backend's ``alloc_async`` and ``free_async`` read
    it; they are called most. ``attribute`` makes the vendor's attribute from its number, ``threshold`` a number of bytes.
    """

    def __init__(
        self, state: DriverState, attribute: Callable[[int], Any], threshold: Callable[[int], Any] = int
    ) -> None:
        super().__init__(state)
        self._attribute = attribute
        self._threshold = threshold
        self.handle: Any = None

    def create(self, properties: Any) -> None:
        """Make the pool; ``properties`` as the vendor's function takes them."""
        self.handle = self._functions.MemPoolCreate(properties)
        self.pool_threshold(KEEP_EVERYTHING)

    def destroy(self) -> None:
        """Destroy the pool, if there is one."""
        handle, self.handle = self.handle, None
        if handle is not None:
            self._functions.MemPoolDestroy(handle)

    def pool_cached(self) -> int:
        return self.bytes_of(RESERVED_BYTES) - self.bytes_of(USED_BYTES)

    def pool_trim(self, keep_bytes: int) -> None:
        used = self.bytes_of(USED_BYTES)  # the vendors count memory in use among what is kept
        self._relaxed(self._functions.MemPoolTrimTo, self.handle, used + keep_bytes)
        # The pool keeps at least that, in pieces of its own size. If it kept more, keep nothing instead.
        if keep_bytes and self.pool_cached() > keep_bytes:
            self._relaxed(self._functions.MemPoolTrimTo, self.handle, used)

    def pool_threshold(self, nbytes: int) -> None:
        attribute = self._attribute(RELEASE_THRESHOLD)
        self._relaxed(self._functions.MemPoolSetAttribute, self.handle, attribute, self._threshold(nbytes))

    def bytes_of(self, attribute: int) -> int:
        """An attribute of the pool that counts bytes."""
        return int(self._relaxed(self._functions.MemPoolGetAttribute, self.handle, self._attribute(attribute)))


class ForeignMemory(Part):
    """Handles of allocations for other processes, and questions about addresses.

    ``to_bytes`` and ``from_bytes`` convert a handle from and to what the vendor's functions take. ``device_of`` gives the device
    of an address or None, or raises BackendError.
    """

    def __init__(
        self,
        state: DriverState,
        to_bytes: Callable[[Any], bytes],
        from_bytes: Callable[[bytes], Any],
        device_of: Callable[[int], int | None],
    ) -> None:
        super().__init__(state)
        self._to_bytes, self._from_bytes, self._device_of = to_bytes, from_bytes, device_of

    def ipc_export(self, ptr: int) -> bytes:
        try:
            handle = self._functions.IpcGetMemHandle(ptr)
        except BackendError as error:
            if error.code == INVALID_VALUE:
                error.args = (
                    f"{error}: {ptr:#x} cannot be shared, only the first address of a plain allocation and no memory of a pool; "
                    f"allocate it under use_memory(DriverMemory())",
                )
            raise
        return self._to_bytes(handle)

    def ipc_open(self, handle: bytes) -> int:
        if len(handle) != IPC_HANDLE_BYTES:
            raise LayoutError(f"an IPC handle has {IPC_HANDLE_BYTES} bytes, not {len(handle)}: give it as exported")
        return int(self._functions.IpcOpenMemHandle(self._from_bytes(handle), LAZY_PEER_ACCESS))

    def ipc_close(self, ptr: int) -> None:
        self._functions.IpcCloseMemHandle(ptr)

    def pointer_range(self, ptr: int) -> tuple[int, int] | None:
        try:
            base, nbytes = self._functions.MemGetAddressRange(ptr)
        except BackendError as error:
            if error.code in (INVALID_VALUE, NOT_FOUND):
                return None
            raise
        return int(base), int(nbytes)

    def pointer_device(self, ptr: int) -> int | None:
        try:
            return self._device_of(ptr)
        except BackendError as error:
            if error.code == INVALID_VALUE:
                return None
            raise
