"""Device arrays and conversions to them: the public names of numba.cuda's ``cudadrv.devicearray``."""

from __future__ import annotations

from typing import Any

import numpy as np

import devmem

from ....spi.errors import DevmemError
from . import state
from .array_base import DeviceNDArrayBase, IpcArrayHandle
from .arrays import DeviceNDArray, DeviceRecord
from .error import translated
from .hostarrays import ManagedNDArray, MappedNDArray
from .layouts import NOT_CONTIGUOUS, array_core, check_array_compatibility, is_contiguous, sentry_contiguous
from .streams import native_stream, with_class

__all__ = [
    "DeviceNDArray",
    "DeviceNDArrayBase",
    "DeviceRecord",
    "IpcArrayHandle",
    "ManagedNDArray",
    "MappedNDArray",
    "array_core",
    "auto_device",
    "check_array_compatibility",
    "errmsg_contiguous_buffer",
    "from_array_like",
    "from_record_like",
    "is_contiguous",
    "is_cuda_ndarray",
    "require_cuda_ndarray",
    "sentry_contiguous",
    "verify_cuda_ndarray_interface",
]

errmsg_contiguous_buffer = NOT_CONTIGUOUS


def is_cuda_ndarray(obj: Any) -> bool:
    """Whether an object declares itself a device array."""
    return bool(getattr(obj, "__cuda_ndarray__", False))


def require_cuda_ndarray(obj: Any) -> None:
    """Raise ValueError unless an object declares itself a device array."""
    if not is_cuda_ndarray(obj):
        raise ValueError(f"require an cuda ndarray object, not a {type(obj).__name__}")


def verify_cuda_ndarray_interface(obj: Any) -> None:
    """Raise unless an object is a device array with the attributes that one has.

    Raises
    ------
    ValueError
        It does not say that it is one.
    AttributeError
        It lacks ``shape``, ``strides``, ``dtype`` or ``size``, or one is of another type.
    """
    require_cuda_ndarray(obj)
    for name, kind in (("shape", tuple), ("strides", tuple), ("dtype", np.dtype), ("size", int)):
        if not isinstance(getattr(obj, name), kind):
            raise AttributeError(f"{name} must be of type {kind}")


def from_array_like(ary: Any, stream: Any = 0, gpu_data: Any = None) -> DeviceNDArray:
    """A device array with the layout of an array."""
    return DeviceNDArray(ary.shape, ary.strides, ary.dtype, stream=stream, gpu_data=gpu_data)


def from_record_like(rec: Any, stream: Any = 0, gpu_data: Any = None) -> DeviceRecord:
    """A device record with the dtype of a record."""
    return DeviceRecord(rec.dtype, stream=stream, gpu_data=gpu_data)


def is_host_record(obj: object) -> bool:
    """Whether it is a NumPy record."""
    return isinstance(obj, np.void)


def auto_device(obj: Any, stream: Any = 0, copy: bool = True, user_explicit: bool = False) -> tuple[Any, bool]:
    """The object on the device, and whether it is new: device memory as it is, anything else as a copy.

    Raises
    ------
    ValueError
        A host array that is not contiguous.
    """
    if getattr(obj, "__cuda_memory__", False):
        return obj, False
    if isinstance(obj, devmem.DeviceNDArray):
        return as_numba_array(obj), False
    if not isinstance(obj, np.ndarray | np.generic) and devmem.is_device_array(obj):
        return borrow(obj), False
    if isinstance(obj, np.void):
        record = from_record_like(obj, stream)
        if copy:
            record.copy_to_device(obj, stream)
        return record, True
    host = np.asanyarray(obj)
    sentry_contiguous(host)
    if not copy:
        return from_array_like(host, stream), True
    return upload(host, stream), True


def upload(host: Any, stream: Any) -> DeviceNDArray:
    """A device array with the elements and strides of a contiguous host array; along axes of stride 0 one index is copied."""
    state.ready_device()
    core = array_core(host)
    try:
        found = with_class(devmem.to_device(core, native_stream(stream)), DeviceNDArray)
    except DevmemError as error:
        raise translated(error) from error
    same = core is host and (host.size or host.strides == found.strides)
    whole: DeviceNDArray = found if same else found._view(found._ptr, host.shape, host.strides)
    return whole


def borrow(obj: Any) -> DeviceNDArray:
    """An array over an object's device memory, by DLPack or the CUDA Array Interface; it keeps the object alive."""
    state.ready_device()
    try:
        return as_numba_array(devmem.as_device_array(obj))
    except DevmemError as error:
        raise translated(error) from error


def as_numba_array(native: Any) -> DeviceNDArray:
    """A view of a native array as a `DeviceNDArray` of this module; the native array is not changed."""
    found: DeviceNDArray = with_class(native._view(native._ptr, native._shape, native._strides), DeviceNDArray)
    return found
