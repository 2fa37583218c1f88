"""What the vendor's library knows of an address, whichever library allocated the memory."""

from __future__ import annotations

from collections.abc import Callable

from ..spi.errors import BackendError
from .driver_state import DriverState, Part
from .status_errors import INVALID_VALUE, NOT_FOUND


class Pointers(Part):
    """Questions about addresses; ``device_of`` asks for the device of one, and raises or returns None where there is none."""

    def __init__(self, state: DriverState, device_of: Callable[[int], int | None]) -> None:
        super().__init__(state)
        self._device_of = device_of

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
