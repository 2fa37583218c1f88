"""Memory of other processes, and what the vendor's library knows of an address whose memory any library may have allocated."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ..spi.errors import BackendError, LayoutError
from .driver_parts import DriverState, Part
from .status_errors import INVALID_VALUE, NOT_FOUND

IPC_HANDLE_BYTES = 64
#: The only flag of opening a handle: access between devices is enabled when it is needed.
LAZY_PEER_ACCESS = 1


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
