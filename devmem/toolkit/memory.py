"""Memory parts of a driver: a device's own pool, and memory that others allocated."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ..spi.errors import BackendError, DevmemError, LayoutError
from .deferred_errors import FirstError
from .driver_parts import DriverState, Part, Taken
from .vendor_functions import INVALID_VALUE, NOT_FOUND

KEEP_EVERYTHING = (1 << 64) - 1
#: Attributes of a pool, as CUDA and HIP number them.
RELEASE_THRESHOLD, RESERVED_BYTES, USED_BYTES = 4, 5, 7
IPC_HANDLE_BYTES = 64
#: The type of handle that is a file descriptor, and access for reading and writing, as CUDA and HIP number them.
POSIX_FILE, READ_AND_WRITE = 1, 3
#: The only flag of opening a handle: access between devices is enabled when it is needed.
LAZY_PEER_ACCESS = 1


class Holdings(Part):
    """Memory that a device has allocated or locked and not released: what is left in the tables, closing the driver gives back.

    An address is kept as the very int that the caller has. One that was given back, and given out again, is another object.
    """

    def __init__(self, state: DriverState) -> None:
        super().__init__(state)
        self._tables: list[dict[int, int]] = []

    def table(self) -> dict[int, int]:
        """A table of addresses, for one kind of memory."""
        self._tables.append({})
        return self._tables[-1]

    def is_out(self, ptr: int) -> bool:
        """Whether this very address, or this handle, is out. Asked when an interrupt has come while it was given back."""
        is_handle = self._streams.holds(ptr) or self._events.holds(ptr) or ptr in self._graphs
        return is_handle or any(table.get(ptr) is ptr for table in self._tables)

    def _take(
        self, table: dict[int, int], give_back: Callable[[int], object], make: Callable[..., object], *arguments: Any
    ) -> int:
        """Allocate or lock, enter the address, and return it; an interrupt before it is entered releases the memory."""
        made: list[Any] = []
        try:
            make(made, *arguments)
            ptr = int(made[0])
            table[ptr] = ptr
        except BaseException:
            for each in map(int, made):
                table.pop(each, None)
                give_back(each)
            raise
        return ptr

    def _give(self, table: dict[int, int], ptr: int, end: Callable[..., object], *arguments: Any) -> None:
        """Release an address; an interrupt before the driver has done it leaves the address in the table."""
        ended: list[Any] = []
        try:
            table.pop(ptr, None)  # first: another thread may be given the address at once
            end(ended, ptr, *arguments)
        except DevmemError:
            raise
        except BaseException:
            if not ended:
                table[ptr] = ptr
            raise


class MemoryPool(Part):
    """A device's own memory pool, for stream-ordered allocation.

    The vendors' default pool of a device is shared by all libraries of the process, and so is its threshold: how much unused
    memory it keeps. So a driver makes a pool of its own. Its threshold starts at "keep everything": with the vendors' default of
    zero, every synchronization gives the unused memory back, which costs milliseconds a gigabyte at the next allocation.

    ``handle`` is the vendor's, or None before `create` and after `destroy`. The backend's ``alloc_async`` and ``free_async`` read
    it; they are called most. ``attribute`` makes the vendor's attribute from its number, ``threshold`` a number of bytes,
    ``pool`` the handle.
    """

    def __init__(
        self,
        state: DriverState,
        attribute: Callable[[int], Any],
        threshold: Callable[[int], Any] = int,
        pool: Callable[[int], Any] = int,
    ) -> None:
        super().__init__(state)
        self._attribute, self._threshold, self._pool = attribute, threshold, pool
        self.handle: Any = None
        #: A second pool, for memory that the device's decompression engine uses.
        self.decompressible: Any = None
        self._kept = KEEP_EVERYTHING
        self._taken = Taken()

    def create(self, properties: Any, name: str = "handle") -> None:
        """Make a pool; ``properties`` as the vendor's function takes them."""
        setattr(self, name, self._pool(int(self._taken.take(self._recorded.MemPoolCreate, properties))))
        self.pool_threshold(self._kept)

    def destroy(self) -> None:
        """Destroy the pools, if there are any."""
        self.handle = self.decompressible = None
        self._taken.give_back(lambda ended, pool: self._recorded.MemPoolDestroy(ended, self._pool(int(pool))))

    def pool_cached(self) -> int:
        return sum(map(self._cached, self._handles()))

    def pool_trim(self, keep_bytes: int) -> None:
        for handle in self._handles():
            used = self.bytes_of(handle, USED_BYTES)  # the vendors count memory in use among what is kept
            self._relaxed(self._functions.MemPoolTrimTo, handle, min(used + keep_bytes, KEEP_EVERYTHING))
            # The pool keeps at least that, in pieces of its own size. If it kept more, keep nothing instead.
            if keep_bytes and self._cached(handle) > keep_bytes:
                self._relaxed(self._functions.MemPoolTrimTo, handle, used)
            if self.decompressible is not None:
                keep_bytes = max(keep_bytes - self._cached(handle), 0)

    def pool_threshold(self, nbytes: int) -> None:
        self._kept = nbytes
        for handle in self._handles():
            threshold = self._attribute(RELEASE_THRESHOLD), self._threshold(nbytes)
            self._relaxed(self._functions.MemPoolSetAttribute, handle, *threshold)

    def _handles(self) -> list[Any]:
        return [each for each in (self.handle, self.decompressible) if each is not None]

    def _cached(self, handle: Any) -> int:
        return self.bytes_of(handle, RESERVED_BYTES) - self.bytes_of(handle, USED_BYTES)

    def bytes_of(self, handle: Any, attribute: int) -> int:
        """An attribute of a pool that counts bytes."""
        return int(self._relaxed(self._functions.MemPoolGetAttribute, handle, self._attribute(attribute)))


class PoolSharing(Part):
    """Memory of a device's own pool for other processes, by a file descriptor of the pool.

    Each opened block has its imported pool to itself, which is destroyed behind it: the vendors do not say that a pool may go
    first. ``to_bytes`` and ``from_bytes`` convert the data of a pointer from and to what the vendor's functions take, ``kind`` is
    the type of handle, ``grant`` gives this device access to an imported pool, ``free`` is the vendor's function that frees an
    imported pointer.
    """

    def __init__(
        self,
        state: DriverState,
        pool: MemoryPool,
        to_bytes: Callable[[Any], bytes],
        from_bytes: Callable[[bytes], Any],
        kind: Any,
        grant: Callable[[Any], object],
        free: str,
    ) -> None:
        super().__init__(state)
        self._pool, self._kind, self._grant, self._free = pool, kind, grant, free
        self._to_bytes, self._from_bytes = to_bytes, from_bytes
        #: By the address of an opened block, the pool that it was imported from.
        self.imported: dict[int, Any] = {}

    def pool_descriptor(self) -> int:
        return int(self._functions.MemPoolExportToShareableHandle(self._pool.handle, self._kind, 0))

    def pool_export(self, ptr: int) -> bytes:
        return self._to_bytes(self._functions.MemPoolExportPointer(ptr))

    def pool_open(self, descriptor: int, data: bytes) -> int:
        if len(data) != IPC_HANDLE_BYTES:
            raise LayoutError(
                f"the data of a shared block have {IPC_HANDLE_BYTES} bytes, not {len(data)}: give them as exported"
            )
        pool = self._functions.MemPoolImportFromShareableHandle(descriptor, self._kind, 0)
        try:
            self._grant(pool)
            ptr = int(self._functions.MemPoolImportPointer(pool, self._from_bytes(data)))
        except BaseException:
            self._functions.MemPoolDestroy(pool)
            raise
        self.imported[ptr] = pool
        return ptr

    def pool_close(self, ptr: int) -> None:
        pool = self.imported.pop(ptr, None)
        if pool is None:
            return
        with FirstError() as first:
            first.attempt(getattr(self._functions, self._free), ptr)
            first.attempt(self._functions.MemPoolDestroy, pool)


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
