"""One record in device memory."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

import numpy as np

from ..base.arguments import assignable

if TYPE_CHECKING:
    from ..device.device import Device
    from ..device.open_device import OpenDevice
    from .ndarray import DeviceNDArray


class DeviceRecord:
    """An element of a record array on a device. ``r["x"]`` reads a field, ``r["x"] = 1`` writes it; both are synchronous.

    It shares the memory of the array that it came from, and keeps it alive.
    """

    __slots__ = ("_array",)

    def __init__(self, array: DeviceNDArray[Any]) -> None:
        self._array = array

    def __repr__(self) -> str:
        return f"<{type(self).__name__} dtype={self.dtype} on {self.device}>"

    def __getitem__(self, name: str) -> Any:
        field = self._array[name]
        return field if field.shape else field[()]

    def __setitem__(self, name: str, value: object) -> None:
        self._array[name] = value

    @property
    def dtype(self) -> np.dtype[Any]:
        """The record's dtype."""
        return self._array.dtype

    @property
    def nbytes(self) -> int:
        """Bytes of the record, with its padding."""
        return self._array.nbytes

    @property
    def open_device(self) -> OpenDevice:
        """The open device that the record lives on."""
        return self._array.open_device

    @property
    def device(self) -> Device:
        """The device that the record lives on."""
        return self._array.device

    @property
    def ptr(self) -> int:
        """The device's address of the record."""
        return self._array.ptr

    def copy_to_host(self, ary: Any = None, stream: Any = 0) -> np.void:
        """The record as a NumPy record; ``ary``, an ndarray without axes, is filled if given. Otherwise as for arrays."""
        host = self._array.copy_to_host(ary, stream)
        return cast(np.void, host[()])

    def copy_to_device(self, ary: object, stream: Any = 0) -> None:
        """Copy a record of the same dtype, of host or device, or a tuple of its fields, into this one."""
        self._array.copy_to_device(assignable(ary, self.dtype) if isinstance(ary, tuple) else ary, stream)

    def free(self) -> None:
        """Give back the memory that the record shares with its array."""
        self._array.free()

    def __devmem_view__(self) -> DeviceNDArray[Any]:
        return self._array
