"""Sharing device memory with other processes: an allocation's handle is 64 bytes, for every vendor of this kind."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ..spi.errors import BackendError, LayoutError
from .driver_state import DriverState, Part
from .status_errors import INVALID_VALUE

IPC_HANDLE_BYTES = 64
#: The only flag that there is: access between devices is enabled when it is needed.
LAZY_PEER_ACCESS = 1


class IpcMemory(Part):
    """Export and open; ``to_bytes`` and ``from_bytes`` convert a handle from and to what the vendor's functions take."""

    def __init__(
        self, state: DriverState, to_bytes: Callable[[Any], bytes], from_bytes: Callable[[bytes], Any]
    ) -> None:
        super().__init__(state)
        self._to_bytes = to_bytes
        self._from_bytes = from_bytes

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
