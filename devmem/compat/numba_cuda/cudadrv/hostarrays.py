"""Host arrays that a device reaches, mapped or managed: devmem's, which NumPy's own methods see as ndarrays."""

from __future__ import annotations

from typing import Any

import numpy as np

import devmem

from ....spi.errors import DevmemError
from .array_base import DeviceNDArrayBase
from .arrays import DeviceNDArray
from .error import translated
from .streams import dressed, named, shown


class HostVisible(DeviceNDArrayBase):
    """What mapped and managed arrays have besides what an ndarray has; views keep their device address."""

    _stream: Any
    _given: Any = None

    def device_setup(self, gpu_data: Any, stream: Any = 0) -> None:
        """Say where the device finds the array's memory; for arrays that were not made here."""
        self._given = gpu_data
        self.stream = stream

    @property
    def stream(self) -> Any:
        """The stream that the array is bound to, or 0. It can be set."""
        return shown(self._stream)

    @stream.setter
    def stream(self, stream: Any) -> None:
        chosen = named(stream)
        self._stream = devmem.current_device().opened().streams.stream_of(chosen) if chosen else None

    @property
    def gpu_data(self) -> Any:
        """The device's view of the memory."""
        return DeviceNDArrayBase.gpu_data.fget(self) if self._given is None else self._given  # type: ignore[attr-defined]

    def copy_to_host(self, ary: Any = None, stream: Any = 0, **old: Any) -> Any:
        """Copy the elements into an ordinary array, or ``ary``; as for device arrays."""
        return dressed(self._devmem_array(), DeviceNDArray).copy_to_host(ary, stream, **old)

    def copy_to_device(self, ary: Any, stream: Any = 0) -> None:
        """Copy elements of host or device into this array; as for device arrays."""
        dressed(self._devmem_array(), DeviceNDArray).copy_to_device(ary, stream)

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        return dressed(self._devmem_array(), DeviceNDArray).__cuda_array_interface__  # type: ignore[no-any-return]

    @property
    def _numba_type_(self) -> Any:
        """What Numba's compiler takes the array for."""
        return dressed(self._devmem_array(), DeviceNDArray)._numba_type_

    def _devmem_array(self) -> Any:
        if self._given is not None:
            array: Any = self
            return dressed(
                DeviceNDArray(array.shape, array.strides, array.dtype, self.stream, self._given), devmem.DeviceNDArray
            )
        try:
            return devmem.as_device_array(self)
        except DevmemError as error:
            raise translated(error) from error


class MappedNDArray(HostVisible, devmem.MappedNDArray):
    """A host array in page-locked memory that the device reads and writes in place."""


class ManagedNDArray(HostVisible, devmem.ManagedNDArray):
    """An array with one address for host and device."""


def on_host(array: np.ndarray[Any, Any], kind: type[Any]) -> Any:
    """A native mapped or managed array as one of ours."""
    return array.view(kind)
