"""Making device arrays."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from .._core import upload as _upload
from .._core.args import check_same, host_array, layout_of
from .._core.array import DeviceNDArray, device_view
from .._core.device import context_of, current_context
from .._core.layout import contiguous_strides, like_strides
from .._core.record import DeviceRecord
from ..spi.errors import LayoutError


def to_device(obj: Any, stream: Any = 0, copy: bool = True, to: Any = None, *, device: Any = None) -> Any:
    """Copy to a device.

    Parameters
    ----------
    obj : array_like or DeviceNDArray
        A host object is always copied, in any layout; lists and scalars go through ``numpy.asarray``. A device array is returned
        as it is if it is on the device already, else copied there; one of another library as `as_device_array` has it. A NumPy record (``np.void``) gives a `DeviceRecord`.
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
    if type(obj) is np.ndarray and to is None and not obj.dtype.hasobject:
        return _upload.upload(current_context() if device is None else context_of(device), obj, stream, copy)
    return _to_device(obj, stream, copy, to, device)


def _to_device(obj: Any, stream: Any, copy: bool, to: Any, device: Any) -> Any:
    """The rarer cases of `to_device`."""
    if to is not None:
        return _into(obj, stream, copy, to, device)
    if isinstance(obj, DeviceRecord):
        view = obj.__devmem_view__()
        moved = _to_device(view, stream, copy, to, device)
        return obj if moved is view else DeviceRecord(moved)
    if isinstance(obj, DeviceNDArray):
        wanted = current_context() if device is None else context_of(device)
        return obj if obj.context is wanted else _across(obj, wanted, stream)
    lent = None if isinstance(obj, np.ndarray) else device_view(obj)
    if lent is not None:
        return _to_device(lent, stream, copy, to, lent.device if device is None else device)
    context = context_of(device)
    uploaded = _upload.upload(context, host_array(obj), stream, copy)
    return DeviceRecord(uploaded) if isinstance(obj, np.void) and obj.dtype.fields is not None else uploaded


def _into(obj: Any, stream: Any, copy: bool, to: Any, device: Any) -> Any:
    target = to.__devmem_view__() if isinstance(to, DeviceRecord) else to
    if not isinstance(target, DeviceNDArray):
        raise TypeError(f"to= takes a device array to copy into, not a {type(to).__name__}")
    if device is not None and context_of(device) is not target.context:
        raise LayoutError(f"device={device!s} is not where to= is ({target.device}): leave one of them out")
    view = device_view(obj)
    source = host_array(obj) if view is None else view
    check_same("to_device(to=)", target.shape, target.dtype, source.shape, source.dtype)
    target.put(source, stream, host_copy=copy)
    return to


def _across(obj: DeviceNDArray[Any], context: Any, stream: Any) -> DeviceNDArray[Any]:
    strides = like_strides(obj.shape, obj.strides, obj.itemsize)
    result = _upload.empty(context, obj.shape, obj.dtype, strides, obj.nbytes, stream)
    result.copy_to_device(obj, stream)
    return result


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
    return _upload.empty(current_context(), lengths, kind, None if packed else steps, nbytes, stream)


def device_array_like(ary: Any, stream: Any = 0) -> DeviceNDArray[Any]:
    """Allocate an uninitialised device array with the shape, dtype and order of axes of an array, without its gaps."""
    shape, dtype, strides, nbytes = like(ary)
    return _upload.empty(current_context(), shape, dtype, strides, nbytes, stream)


def zeros(shape: Any, dtype: npt.DTypeLike = np.float64, order: str = "C", stream: Any = 0) -> DeviceNDArray[Any]:
    """A device array of zeros; otherwise as `device_array`."""
    result = device_array(shape, dtype, None, order, stream)
    result.fill(np.zeros((), result.dtype), stream)  # not of 0, which for text would be "0"
    return result


def full(
    shape: Any, fill_value: Any, dtype: npt.DTypeLike | None = None, order: str = "C", stream: Any = 0
) -> DeviceNDArray[Any]:
    """A device array of one value, of the value's own dtype if none is given; otherwise as `device_array`."""
    result = device_array(shape, np.asarray(fill_value).dtype if dtype is None else dtype, None, order, stream)
    result.fill(np.array(fill_value, result.dtype), stream)  # the dtype was named: NumPy converts to it
    return result


def like(ary: Any) -> tuple[tuple[int, ...], np.dtype[Any], tuple[int, ...], int]:
    """(shape, dtype, strides, bytes) of an array like this one, contiguous in its order of axes."""
    model = ary if isinstance(ary, DeviceNDArray) else host_array(ary)
    itemsize = model.dtype.itemsize
    strides = (
        like_strides(model.shape, model.strides, itemsize)
        if model.ndim > 1
        else contiguous_strides(model.shape, itemsize)
    )
    return model.shape, model.dtype, strides, model.size * itemsize


__all__ = ["device_array", "device_array_like", "full", "to_device", "zeros"]
