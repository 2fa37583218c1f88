"""Making device arrays."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
from numpy import ndarray

from .._core.arrays.creation import empty, filled, like, upload
from .._core.arrays.creation import to_device as _to_device
from .._core.arrays.ndarray import DeviceNDArray
from .._core.arrays.pinned import PinnedNDArray
from .._core.base.arguments import layout_of
from .._core.device.device import current_open_device, open_device_of


def to_device(obj: Any, stream: Any = 0, copy: bool = True, to: Any = None, *, device: Any = None) -> Any:
    """Copy to a device.

    Parameters
    ----------
    obj : array_like or DeviceNDArray
        A host object is always copied, in any layout; lists and scalars go through ``numpy.asarray``. A device array is returned
        as it is if it is on the device already, else copied there; one of another library as `as_device_array` has it. A NumPy
        record (``np.void``) gives a `DeviceRecord`.
    stream : stream, optional
        0 or None, a `Stream`, its int handle, or an object with ``__cuda_stream__``. Given, the copy is ordered on it and may
        still run on return; both sides are kept alive until it is done, and the result is bound to it. Not given, the copy is
        complete on return.
    copy : bool
        False forbids an extra copy *on the host* on the way.
    to : DeviceNDArray, optional
        Copy into this array, of the same shape and dtype, and return it.
    device : Device, int or str, optional
        Where to: ``"cuda:1"``. The current device, if not given.

    Returns
    -------
    DeviceNDArray
        Contiguous in the source's order of axes, and owned by the caller: its memory is given back when the last view of it is
        dropped.

    Raises
    ------
    LayoutError
        The source holds Python objects; ``to`` has another shape or dtype; ``copy=False`` and the source has to be gathered;
        the stream belongs to another device.
    OutOfMemory
        It does not fit.
    BackendError
        The driver refused; nothing is left allocated.
    """
    if (type(obj) is ndarray or type(obj) is PinnedNDArray) and to is None:
        return upload(current_open_device() if device is None else open_device_of(device), obj, stream, copy)
    return _to_device(obj, stream, copy, to, device)


def device_array(
    shape: Any, dtype: npt.DTypeLike = np.float64, strides: Any = None, order: str = "C", stream: Any = 0
) -> DeviceNDArray[Any]:
    """Allocate an uninitialised device array on the current device, as ``numpy.empty`` does on the host.

    Parameters
    ----------
    shape : int or sequence of int
        Lengths of the axes; anything integer-like.
    dtype : dtype
        Type of the elements; no Python objects.
    strides : sequence of int, optional
        Bytes from one element to the next along each axis: positive, and no two elements overlap. The span is allocated.
    order : {'C', 'F'}
        Contiguous order, where no strides are given.
    stream : stream, optional
        The stream that the memory is ordered on, and that the array is bound to.

    Raises
    ------
    LayoutError
        A negative length, an impossible layout, Python objects.
    OutOfMemory
        It does not fit.
    """
    lengths, kind, steps, nbytes = layout_of(shape, dtype, strides, order)
    packed = strides is None and order == "C"
    return empty(current_open_device(), lengths, kind, None if packed else steps, nbytes, stream)


def device_array_like(ary: Any, stream: Any = 0) -> DeviceNDArray[Any]:
    """Allocate an uninitialised device array with the shape, dtype and order of axes of an array, without its gaps."""
    shape, dtype, strides, nbytes = like(ary)
    return empty(current_open_device(), shape, dtype, strides, nbytes, stream)


def zeros(shape: Any, dtype: npt.DTypeLike = np.float64, order: str = "C", stream: Any = 0) -> DeviceNDArray[Any]:
    """A device array of zeros; otherwise as `device_array`."""
    lengths, kind, steps, nbytes = layout_of(shape, dtype, None, order)
    nothing = np.zeros((), kind)  # not 0, which for text would be "0"
    return filled(current_open_device(), lengths, kind, None if order == "C" else steps, nbytes, nothing, stream)


def full(
    shape: Any, fill_value: Any, dtype: npt.DTypeLike | None = None, order: str = "C", stream: Any = 0
) -> DeviceNDArray[Any]:
    """A device array of one value, of the value's own dtype if none is given; otherwise as `device_array`."""
    wanted = np.asarray(fill_value).dtype if dtype is None else dtype
    lengths, kind, steps, nbytes = layout_of(shape, wanted, None, order)
    value = np.array(fill_value, kind)  # the dtype was named: NumPy converts to it
    return filled(current_open_device(), lengths, kind, None if order == "C" else steps, nbytes, value, stream)


__all__ = ["device_array", "device_array_like", "full", "to_device", "zeros"]
