"""New device arrays: uninitialised, or with the elements of a host array."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from ..spi.errors import DevmemError
from . import scopes, transfer
from .allocation import Allocation
from .array import H2D, DeviceNDArray, StreamLike
from .layout import Shape, address, like_strides

if TYPE_CHECKING:
    from .context import Context

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
    if not nbytes:
        return empty(context, shape, dtype, None, 0, stream)
    direct, strides = True, None
    if not src.flags.c_contiguous:
        direct = src.flags.f_contiguous
        strides = like_strides(shape, src.strides, dtype.itemsize)
    driver = context.driver
    token = driver.enter()
    try:
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
            if not direct or context.registry.segments:
                transfer.write(array, src, chosen, blocking=bound is None, host_copy=copy)
            else:
                if driver.copy(ptr, address(src), nbytes, H2D, chosen.handle, blocking=bound is None):
                    context.reclaim.retire(chosen, src)
                counter = context.uploads
                counter[0] += 1
                counter[1] += nbytes
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
