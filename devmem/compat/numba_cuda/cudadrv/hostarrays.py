"""Mapped and managed arrays: devmem's, which are ndarrays for NumPy, with numba.cuda's attributes."""

from __future__ import annotations

from typing import Any

import devmem

from ....spi.errors import DevmemError
from .array_base import DeviceNDArrayBase
from .arrays import DeviceNDArray
from .error import translated
from .streams import native_stream, numba_stream, with_class


class HostAccessible(DeviceNDArrayBase):
    """The attributes of mapped and managed arrays beyond an ndarray's; views keep their device address."""

    _stream: Any
    _given: Any = None

    def device_setup(self, gpu_data: Any, stream: Any = 0) -> None:
        """Set the device memory of an array that was not made here."""
        self._given = gpu_data
        self.stream = stream

    @property
    def stream(self) -> Any:
        """The stream that the array is bound to, or 0. It can be set."""
        return numba_stream(self._stream)

    @stream.setter
    def stream(self, stream: Any) -> None:
        chosen = native_stream(stream)
        self._stream = devmem.current_device().opened().streams.stream_of(chosen) if chosen else None

    @property
    def gpu_data(self) -> Any:
        """The device's view of the memory."""
        return DeviceNDArrayBase.gpu_data.fget(self) if self._given is None else self._given  # type: ignore[attr-defined]

    def copy_to_host(self, ary: Any = None, stream: Any = 0, **old: Any) -> Any:
        """Copy the elements into a new array, or ``ary``, as for device arrays."""
        return with_class(self._devmem_array(), DeviceNDArray).copy_to_host(ary, stream, **old)

    def copy_to_device(self, ary: Any, stream: Any = 0) -> None:
        """Copy elements of a host or device array into this array, as for device arrays."""
        with_class(self._devmem_array(), DeviceNDArray).copy_to_device(ary, stream)

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        return with_class(self._devmem_array(), DeviceNDArray).__cuda_array_interface__  # type: ignore[no-any-return]

    @property
    def _numba_type_(self) -> Any:
        """The type of the array for Numba's compiler."""
        return with_class(self._devmem_array(), DeviceNDArray)._numba_type_

    def _devmem_array(self) -> Any:
        if self._given is not None:
            array: Any = self
            return with_class(
                DeviceNDArray(array.shape, array.strides, array.dtype, self.stream, self._given), devmem.DeviceNDArray
            )
        try:
            return devmem.as_device_array(self)
        except DevmemError as error:
            raise translated(error) from error


class MappedNDArray(HostAccessible, devmem.MappedNDArray):
    """A host array in page-locked memory that the device reads and writes in place."""


class ManagedNDArray(HostAccessible, devmem.ManagedNDArray):
    """An array with one address for host and device."""
