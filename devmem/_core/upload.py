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
from .layout import Shape, address, contiguous_strides, like_strides

if TYPE_CHECKING:
    from .context import Context


def empty(
    context: Context, shape: Shape, dtype: np.dtype[Any], strides: Shape, nbytes: int, stream: StreamLike
) -> DeviceNDArray[Any]:
    """An uninitialised array, bound to the stream if one is named."""
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
    if stream:
        bound = chosen = context.stream_of(stream)
    else:
        if stream is not None and type(stream) is not int:
            context.stream_of(stream)  # False, "" and the like name no stream
        current = scopes.stream.get()
        bound = None
        chosen = (
            current
            if current is not None and current.context is context
            else context.shared_default or context.per_thread
        )
    shape, dtype = src.shape, src.dtype
    flags = src.flags
    nbytes = src.nbytes
    if not nbytes:
        return empty(context, shape, dtype, contiguous_strides(shape, dtype.itemsize), 0, stream)
    direct = True
    if flags.c_contiguous:
        strides = contiguous_strides(shape, dtype.itemsize)
    elif flags.f_contiguous:
        strides = contiguous_strides(shape, dtype.itemsize, "F")
    else:
        strides = like_strides(shape, src.strides, dtype.itemsize)
        direct = False
    driver = context.driver
    token = driver.enter()
    try:
        allocation = context.allocate(nbytes, chosen, bound is None)
        array: DeviceNDArray[Any] = DeviceNDArray(allocation, allocation.ptr, shape, dtype, strides, bound)
        try:
            if not direct or context.registry.segments:
                transfer.write(array, src, chosen, blocking=bound is None, host_copy=copy)
            else:
                if driver.copy(allocation.ptr, address(src), nbytes, H2D, chosen.handle, blocking=bound is None):
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
