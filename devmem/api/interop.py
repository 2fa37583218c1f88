"""Arrays of other libraries."""

from __future__ import annotations

from typing import Any

from .._core.arrays import exchange
from .._core.arrays.exchange import from_dlpack as _from_dlpack
from .._core.arrays.ndarray import DeviceNDArray
from .._core.interop.ipc import IpcHandle


def from_dlpack(x: Any, /, *, device: Any = None, copy: bool | None = None) -> DeviceNDArray[Any]:
    """The array of another library, by DLPack: in place where it is in device memory, which it keeps alive.

    Parameters
    ----------
    x : object with ``__dlpack__`` and ``__dlpack_device__``
        Device memory is used in place, on its own device. Host memory is copied to the current device; a host backend that is not
        strict uses it in place.
    device : Device, int or str, optional
        Where to: what is not there is copied.
    copy : bool, optional
        True always copies, False never does, None if there is no other way.

    Returns
    -------
    DeviceNDArray
        Ready for the current stream (`with stream:`), or the default one; other streams of the device wait for that one at
        their first use. Read-only if ``x`` says so. ``free()`` lets go of ``x``, and frees nothing.

    Raises
    ------
    BufferError
        It cannot be had so: the producer refuses, the device is none of devmem's, a copy that was forbidden, a capsule that
        describes what cannot be.
    TypeError
        ``x`` does not speak DLPack.
    """
    return _from_dlpack(x, device, copy)


def as_device_array(obj: Any) -> DeviceNDArray[Any]:
    """The device's view of an object, without a copy; it keeps the object's memory alive.

    Takes device arrays and records (as they are), mapped and managed arrays, and arrays of other libraries in device memory that
    speak DLPack or the CUDA Array Interface, DLPack before the other. What of another library's work has to be waited for, the
    current stream waits for; DEVMEM_CUDA_ARRAY_INTERFACE_SYNC=0 leaves that to you where the array has no DLPack.

    Raises
    ------
    UnsupportedError
        The object has no memory that a device can use in place; `to_device` copies it.
    LayoutError
        Its CUDA Array Interface says what cannot be.
    BufferError
        Its DLPack capsule does, or it refuses to hand one out.
    """
    return exchange.as_device_array(obj)


def is_device_array(obj: Any) -> bool:
    """Whether `as_device_array` takes the object, as far as the object says; the memory itself is not asked for."""
    return exchange.is_device_array(obj)


def open_ipc_array(handle: IpcHandle, shape: Any = None, dtype: Any = None, strides: Any = None) -> DeviceNDArray[Any]:
    """Device memory of another process, in place.

    Parameters
    ----------
    handle : IpcHandle
        What ``get_ipc_handle()`` of the array returned in that process.
    shape, dtype, strides : optional
        Of the array here, which begins where the other one does; that one's own, if none of them is given. They have to fit into
        the memory.

    Returns
    -------
    DeviceNDArray
        On the device that the handle names. It is the one owner of what was opened here, with its views: the last one that is
        dropped, or ``free()``, lets go of it, after the work that uses it. The memory itself ends with the other process's array.

    Raises
    ------
    LayoutError
        The array does not fit into the memory.
    UnsupportedError
        The handle was made in this process, or its device is none of this process's.
    BackendError
        The driver refuses; the array may be gone.
    """
    return exchange.open_ipc_array(handle, shape, dtype, strides)


__all__ = ["as_device_array", "from_dlpack", "is_device_array", "open_ipc_array"]
