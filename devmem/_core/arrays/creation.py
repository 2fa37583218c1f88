"""New device arrays: uninitialised, of one value, or with the elements of whatever the user has."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

import numpy as np
import numpy.typing as npt

from ...spi.errors import DevmemError, LayoutError
from ..base.arguments import check_same, host_array
from ..base.layout import Shape, contiguous_strides, like_strides
from ..device.device import current_open_device, open_device_of
from ..device.open_device import OpenDevice
from .ndarray import DeviceNDArray, DeviceRecord, StreamLike, device_view, new


def empty(
    opened: OpenDevice, shape: Shape, dtype: np.dtype[Any], strides: Shape | None, nbytes: int, stream: StreamLike
) -> DeviceNDArray[Any]:
    """An uninitialised array, bound to the stream if one is named; strides of None are those of a C-contiguous array."""
    chosen = opened.streams.stream_of(stream)
    driver = opened.handle.driver
    token = driver.enter()
    try:
        return new(opened, shape, dtype, strides, chosen, nbytes, chosen if stream else None)
    finally:
        if token is not None:
            driver.exit(token)


def upload(opened: OpenDevice, src: npt.NDArray[Any], stream: StreamLike, copy: bool) -> DeviceNDArray[Any]:
    """A device array with the elements of a host array, contiguous in the same order of axes."""
    chosen = opened.streams.stream_of(stream)
    shape, dtype = src.shape, src.dtype
    if dtype.hasobject:
        host_array(src)  # says why not
    strides = None if src.flags.c_contiguous else like_strides(shape, src.strides, dtype.itemsize)
    driver = opened.handle.driver
    token = driver.enter()
    try:
        if not stream:
            chosen.check_waitable()
        array = new(opened, shape, dtype, strides, chosen, src.nbytes, chosen if stream else None)
        try:
            opened.copies.upload(array, src, chosen, not stream, copy)
            if chosen.external:
                array.allocation.after_use(chosen)
        except BaseException:
            with suppress(DevmemError):
                array.allocation.after_use(chosen)  # some of it may be on its way
            array.allocation.discard()
            raise
        return array
    finally:
        if token is not None:
            driver.exit(token)


def to_device(obj: object, stream: StreamLike, copy: bool, to: object, device: object) -> Any:
    """`devmem.to_device` of a device array, a record or an object that NumPy converts to an ndarray; and with ``to=``."""
    if to is not None:
        return _into(obj, stream, copy, to, device)
    if isinstance(obj, DeviceRecord):
        view = obj.__devmem_view__()
        moved = to_device(view, stream, copy, to, device)
        return obj if moved is view else DeviceRecord(moved)
    if isinstance(obj, DeviceNDArray):
        obj.allocation.check()
        wanted = current_open_device() if device is None else open_device_of(device)
        return obj if obj.open_device is wanted else _across(obj, wanted, stream)
    lent = None if isinstance(obj, np.ndarray) else device_view(obj)
    if lent is not None:
        return to_device(lent, stream, copy, to, lent.device if device is None else device)
    opened = open_device_of(device)
    uploaded = upload(opened, host_array(obj), stream, copy)
    return DeviceRecord(uploaded) if isinstance(obj, np.void) and obj.dtype.fields is not None else uploaded


def filled(
    opened: OpenDevice,
    shape: Shape,
    dtype: np.dtype[Any],
    strides: Shape | None,
    nbytes: int,
    value: npt.NDArray[Any],
    stream: StreamLike,
) -> DeviceNDArray[Any]:
    """A new array with one value in every element."""
    result = empty(opened, shape, dtype, strides, nbytes, stream)
    result.fill(value, stream)
    return result


def like(ary: object) -> tuple[Shape, np.dtype[Any], Shape, int]:
    """(shape, dtype, strides, bytes) of an array like this one, contiguous in its order of axes."""
    model = ary if isinstance(ary, DeviceNDArray) else host_array(ary)
    itemsize = model.dtype.itemsize
    strides = (
        like_strides(model.shape, model.strides, itemsize)
        if model.ndim > 1
        else contiguous_strides(model.shape, itemsize)
    )
    return model.shape, model.dtype, strides, model.size * itemsize


def target_of(to: object, device: object) -> DeviceNDArray[Any]:
    """The device array that an argument ``to=`` means; ``device``: what is said of where it is."""
    target = to.__devmem_view__() if isinstance(to, DeviceRecord) else to
    if not isinstance(target, DeviceNDArray):
        raise TypeError(f"to= takes a device array to copy into, not a {type(to).__name__}")
    if device is not None and open_device_of(device) is not target.open_device:
        raise LayoutError(f"device={device!s} is not where to= is ({target.device}): leave one of them out")
    return target


def _into(obj: object, stream: StreamLike, copy: bool, to: object, device: object) -> Any:
    target = target_of(to, device)
    view = device_view(obj)
    source = host_array(obj) if view is None else view
    check_same("to_device(to=)", target.shape, target.dtype, source.shape, source.dtype)
    target.put(source, stream, host_copy=copy)
    return to


def _across(obj: DeviceNDArray[Any], opened: OpenDevice, stream: StreamLike) -> DeviceNDArray[Any]:
    strides = like_strides(obj.shape, obj.strides, obj.itemsize)
    result = empty(opened, obj.shape, obj.dtype, strides, obj.nbytes, stream)
    result.put(obj, stream)
    return result
