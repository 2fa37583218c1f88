"""New device arrays: uninitialised, of one value, or with the elements of whatever the user has."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from ...spi.errors import BackendError, DevmemError, LayoutError
from ..base import scopes
from ..base.arguments import check_same, host_array
from ..base.layout import Shape, address, contiguous_strides, like_strides
from ..copy import host_device
from ..copy.statistics import SAMPLED
from ..device.device import context_of, current_context
from ..lifetime.allocation import Allocation
from .ndarray import H2D, DeviceNDArray, StreamLike, device_view
from .record import DeviceRecord

if TYPE_CHECKING:
    from ..device.open_device import Context
    from ..ordering.stream import Stream

_new = object.__new__
_stream_in_scope = scopes.stream.get
#: What says most often that no stream is named. Other spellings are as right, and take longer.
_UNNAMED = 0


def empty(
    context: Context, shape: Shape, dtype: np.dtype[Any], strides: Shape | None, nbytes: int, stream: StreamLike
) -> DeviceNDArray[Any]:
    """An uninitialised array, bound to the stream if one is named; strides of None are those of a C-contiguous array."""
    chosen = context.stream_of(stream)
    bound = chosen if stream else None
    driver = context.driver
    token = driver.enter()
    try:
        if not nbytes:
            return DeviceNDArray(Allocation(context, context.heap, 0, 0, chosen), 0, shape, dtype, strides, bound)
        allocation = context.allocate(nbytes, chosen, bound is None)
        return DeviceNDArray(allocation, allocation.ptr, shape, dtype, strides, bound)
    finally:
        if token is not None:
            driver.exit(token)


def upload(context: Context, src: npt.NDArray[Any], stream: StreamLike, copy: bool) -> DeviceNDArray[Any]:
    """A device array with the elements of a host array, contiguous in the same order of axes.

    Everything generic about an upload happens here, once; the driver is two frames away.
    """
    bound = None
    if stream is _UNNAMED:
        chosen = _stream_in_scope()
        if chosen is None or chosen.context is not context:
            chosen = context.shared_default or context.per_thread
    else:
        chosen = context.stream_of(stream)
        if stream:
            bound = chosen
    shape, dtype, nbytes = src.shape, src.dtype, src.nbytes
    if dtype.hasobject:
        host_array(src)  # says why not
    if not nbytes:
        return empty(context, shape, dtype, None, 0, stream)
    direct, strides = True, None
    if not src.flags.c_contiguous:
        direct = src.flags.f_contiguous
        strides = like_strides(shape, src.strides, dtype.itemsize)
    driver = context.driver
    token = driver.enter()
    try:
        if bound is None and not chosen.simple:
            chosen.check_waitable(driver)
        allocation = context.allocate(nbytes, chosen, bound is None)
        ptr = allocation.ptr
        # What DeviceNDArray(...) does, without the call, which takes longer than all of it.
        array: DeviceNDArray[Any] = _new(DeviceNDArray)
        array.allocation = allocation
        array._ptr = ptr
        array._shape = shape
        array._dtype = dtype
        array._strides = strides
        array._stream = bound
        try:
            locked = context.registry.segments
            counter = context.uploads
            if not direct or locked or nbytes >= context.timed_from or not counter[0] & SAMPLED:
                _write(array, src, chosen, bound is not None, copy)
            else:
                try:
                    if driver.copy(ptr, address(src), nbytes, H2D, chosen.handle, blocking=bound is None):
                        context.reclaim.retire(chosen, src)
                    counter[0] += 1
                    counter[1] += nbytes
                except BackendError:
                    if context.registry.segments is locked:
                        raise
                    # As in `transfer`: cut at what was locked meanwhile.
                    _write(array, src, chosen, bound is not None, copy)
            if chosen.external:
                allocation.after_use(chosen)
        except BaseException:
            with suppress(DevmemError):
                allocation.after_use(chosen)  # some of it may be on its way
            allocation.discard()
            raise
        return array
    finally:
        if token is not None:
            driver.exit(token)


def to_device(obj: Any, stream: StreamLike, copy: bool, to: Any, device: Any) -> Any:
    """The rarer cases of the verb: device arrays, of others too, records, what NumPy makes an array of, and ``to=``."""
    if to is not None:
        return _into(obj, stream, copy, to, device)
    if isinstance(obj, DeviceRecord):
        view = obj.__devmem_view__()
        moved = to_device(view, stream, copy, to, device)
        return obj if moved is view else DeviceRecord(moved)
    if isinstance(obj, DeviceNDArray):
        wanted = current_context() if device is None else context_of(device)
        return obj if obj.context is wanted else _across(obj, wanted, stream)
    lent = None if isinstance(obj, np.ndarray) else device_view(obj)
    if lent is not None:
        return to_device(lent, stream, copy, to, lent.device if device is None else device)
    context = context_of(device)
    uploaded = upload(context, host_array(obj), stream, copy)
    return DeviceRecord(uploaded) if isinstance(obj, np.void) and obj.dtype.fields is not None else uploaded


def filled(
    context: Context,
    shape: Shape,
    dtype: np.dtype[Any],
    strides: Shape | None,
    nbytes: int,
    value: npt.NDArray[Any],
    stream: StreamLike,
) -> DeviceNDArray[Any]:
    """A new array with one value in every element."""
    result = empty(context, shape, dtype, strides, nbytes, stream)
    result.fill(value, stream)
    return result


def like(ary: Any) -> tuple[Shape, np.dtype[Any], Shape, int]:
    """(shape, dtype, strides, bytes) of an array like this one, contiguous in its order of axes."""
    model = ary if isinstance(ary, DeviceNDArray) else host_array(ary)
    itemsize = model.dtype.itemsize
    strides = (
        like_strides(model.shape, model.strides, itemsize)
        if model.ndim > 1
        else contiguous_strides(model.shape, itemsize)
    )
    return model.shape, model.dtype, strides, model.size * itemsize


def _write(array: DeviceNDArray[Any], src: npt.NDArray[Any], stream: Stream, named: bool, copy: bool) -> None:
    host_device.write(array, src, stream, blocking=not named, host_copy=copy, named=named)


def target_of(to: Any, device: Any) -> DeviceNDArray[Any]:
    """The device array that an argument ``to=`` means; ``device``: what is said of where it is."""
    target = to.__devmem_view__() if isinstance(to, DeviceRecord) else to
    if not isinstance(target, DeviceNDArray):
        raise TypeError(f"to= takes a device array to copy into, not a {type(to).__name__}")
    if device is not None and context_of(device) is not target.context:
        raise LayoutError(f"device={device!s} is not where to= is ({target.device}): leave one of them out")
    return target


def _into(obj: Any, stream: StreamLike, copy: bool, to: Any, device: Any) -> Any:
    target = target_of(to, device)
    view = device_view(obj)
    source = host_array(obj) if view is None else view
    check_same("to_device(to=)", target.shape, target.dtype, source.shape, source.dtype)
    target.put(source, stream, host_copy=copy)
    return to


def _across(obj: DeviceNDArray[Any], context: Context, stream: StreamLike) -> DeviceNDArray[Any]:
    strides = like_strides(obj.shape, obj.strides, obj.itemsize)
    result = empty(context, obj.shape, obj.dtype, strides, obj.nbytes, stream)
    result.put(obj, stream)
    return result
