"""The common base of device arrays and records, and their handle for other processes."""

from __future__ import annotations

import ctypes
from types import SimpleNamespace
from typing import Any

from . import state
from .dummyarray import Array
from .layouts import byte_bounds
from .pointers import ArrayMemory


class DeviceNDArrayBase:
    """The common attributes of arrays and records in device memory."""

    __slots__ = ()

    __cuda_memory__ = True
    __cuda_ndarray__ = True

    def _devmem_array(self) -> Any:
        """The native array over the same elements."""
        raise NotImplementedError

    @property
    def device_ctypes_pointer(self) -> ctypes.c_size_t:
        """The device address of the first element, for ctypes."""
        return ctypes.c_size_t(self._devmem_array().ptr)

    @property
    def gpu_data(self) -> Any:
        """The memory, from the first element on."""
        array = self._devmem_array()
        allocation = array.allocation
        given = getattr(allocation, "owner", None)
        if getattr(given, "device_pointer", None) == array._ptr and hasattr(given, "device_ctypes_pointer"):
            return given
        return ArrayMemory(allocation, array._ptr, self.alloc_size, state.context_of(array.open_device))

    @property
    def alloc_size(self) -> int:
        """Bytes from the first element to the end of the last one."""
        array = self._devmem_array()
        begin, end = byte_bounds(0, array.shape, array.strides, array.itemsize)
        return end - begin

    @property
    def _strided_memory_view_shim(self) -> SimpleNamespace:
        """The description that numba-cuda's launcher takes from objects that declare themselves device memory."""
        array = self._devmem_array()
        order = array.is_c_contiguous(), array.is_f_contiguous()
        layout = SimpleNamespace(
            strides_in_bytes=array.strides,
            is_contiguous_c=order[0],
            is_contiguous_f=order[1],
            is_contiguous_any=any(order),
        )
        return SimpleNamespace(ptr=array.ptr, shape=array.shape, dtype=array.dtype, size=array.size, _layout=layout)

    @property
    def _dummy(self) -> Array:
        """The layout, as numba.cuda's arrays have it."""
        array = self._devmem_array()
        return Array.from_desc(0, array.shape, array.strides, array.itemsize)

    def as_cuda_arg(self) -> Any:
        """The memory, as an argument of a kernel."""
        return self.gpu_data

    def get_ipc_handle(self) -> IpcArrayHandle:
        """A handle with which another process opens the array; OSError if the system has none."""
        memory = self.gpu_data
        native = self._devmem_array()
        handle = state.context_of(native.open_device).get_ipc_handle(memory)
        description = {"shape": native.shape, "strides": native.strides, "dtype": native.dtype}
        return IpcArrayHandle(ipc_handle=handle, array_desc=description)


class IpcArrayHandle:
    """A handle of an array for another process: ``with handle as array:`` opens it there, and closes it at the end."""

    def __init__(self, ipc_handle: Any, array_desc: dict[str, Any]) -> None:
        self._ipc_handle = ipc_handle
        self._array_desc = array_desc

    def open(self) -> Any:
        """The array over the other process's memory; ValueError in the process that made it, or if it is open."""
        return self._ipc_handle.open_array(state.context_of(state.ready_device()), **self._array_desc)

    def close(self) -> None:
        """Close the memory; ValueError if it is not open."""
        self._ipc_handle.close()

    def __enter__(self) -> Any:
        return self.open()

    def __exit__(self, *_: object) -> None:
        self.close()
