"""Page-locking memory that the user allocated."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy.typing as npt

from ...spi.errors import ClosedError, DevmemError
from ...spi.types import Capability
from ...toolkit.deferred_errors import FirstError
from ..base.device_handle import CurrentDevice, DeviceHandle
from .page_locks import PageLockTable

if TYPE_CHECKING:
    from types import TracebackType


class Registration:
    """Arrays that are registered until the end of a ``with`` block, or until ``deregister``."""

    __slots__ = ("arrays", "closed", "handle", "page_locks")

    def __init__(self, handle: DeviceHandle, page_locks: PageLockTable, arrays: tuple[npt.NDArray[Any], ...]) -> None:
        handle.require(Capability.HOST_REGISTER, "page-lock memory", "copy without registering, or use pinned_array()")
        self.handle = handle
        self.page_locks = page_locks
        self.arrays: list[npt.NDArray[Any]] = []
        self.closed = False
        try:
            with CurrentDevice(handle), page_locks.together(handle, arrays):
                for array in arrays:
                    page_locks.register(handle, array)
                    self.arrays.append(array)
        except BaseException:  # also when leaving the device fails: the caller would have no handle to close
            self.close()
            raise

    def __enter__(self) -> Registration:
        if self.closed:
            raise ClosedError(
                "these arrays are not registered any more: call register() or pinned() again for each block"
            )
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    def close(self) -> None:
        """Deregister what is still registered, each array after the copies that use it. A second call does nothing."""
        self.closed = True
        if self.arrays and self.handle.dead is None:
            with CurrentDevice(self.handle):
                self._undo()

    def _undo(self) -> None:
        with FirstError() as first:
            for array in self.arrays[::-1]:
                try:
                    self.page_locks.deregister(self.handle, array)
                except DevmemError as error:  # the others must still be let go
                    first.put(error)
            # Where only the wait failed, an array is still registered, and closing can be tried again.
            held = [] if first.error is None else self.arrays
            self.arrays = [array for array in held if self.page_locks.holds(self.handle, array)]
