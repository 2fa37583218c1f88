"""numba.roc's functions, over devmem's."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

import devmem

from ...spi.errors import BackendError, LayoutError, UnsupportedError
from .hsadrv.devicearray import DeviceNDArray, HostArray, as_roc_array, from_array_like
from .hsadrv.devices import device_of, is_context, select_default_backend
from .hsadrv.driver import Stream, new_stream
from .hsadrv.error import translated, translating


@translating
def to_device(obj: Any, stream: Any = None, context: Any = None, copy: Any = True, to: Any = None) -> DeviceNDArray:
    """Allocate a device array like an array, and copy the array there.

    Both the documented order of the arguments, ``to_device(obj, context, copy=True, to=None)``, and the actual one of numba.roc
    are accepted.

    Parameters
    ----------
    obj : ndarray, NumPy scalar or DeviceNDArray
        A value without axes becomes an array of one element. A device array is copied too.
    stream : Stream, optional
        If given, orders the copy, which may still run on return; both arrays are kept alive until it is done.
    context : Context, optional
        The device to use; by default the current one.
    copy : bool
        False allocates only.
    to : DeviceNDArray, optional
        Copy there instead of allocating.

    Returns
    -------
    DeviceNDArray
        ``to``, or the new array; it is bound to no stream.

    Raises
    ------
    AttributeError
        ``obj`` is not an array.
    ValueError
        It holds Python objects; ``to`` has another shape or dtype.
    HsaContextMismatchError
        ``to`` is on another device than ``context``.
    """
    if is_context(stream) or isinstance(context, bool):
        if isinstance(context, bool):
            context, copy, to = None, context, to if isinstance(copy, bool) else copy
        if is_context(stream):
            stream, context = None, stream
    select_default_backend()
    if context is not None and to is None:
        with device_of(context):
            return _upload(obj, stream, copy)
    if to is None:
        return _upload(obj, stream, copy)
    if copy:
        to.copy_to_device(obj, stream=stream, context=context)
    found: DeviceNDArray = to
    return found


def device_array(shape: Any, dtype: npt.DTypeLike = np.float64, strides: Any = None, order: str = "C") -> DeviceNDArray:
    """Allocate an uninitialised device array; the shape ``()`` stands for ``(1,)``. ValueError for an impossible layout."""
    select_default_backend()
    try:
        found: Any = devmem.device_array(_axes(shape), dtype, strides and _strides(strides), order)
        found.__class__ = DeviceNDArray  # as `as_roc_array` does
        return found  # type: ignore[no-any-return]
    except BackendError as error:
        raise translated(error) from error


def device_array_like(ary: Any) -> DeviceNDArray:
    """Allocate an uninitialised device array with the shape, dtype and strides of an array."""
    if type(ary) is not np.ndarray or not ary.ndim or not ary.flags.c_contiguous:
        return from_array_like(ary)
    select_default_backend()
    try:
        found: Any = devmem.device_array_like(ary)
        found.__class__ = DeviceNDArray
        return found  # type: ignore[no-any-return]
    except BackendError as error:
        raise translated(error) from error


@translating
def stream() -> Stream:
    """Make a stream on the current device."""
    return new_stream()


@translating
def register(*args: npt.NDArray[Any]) -> Any:
    """Page-lock ndarrays until `deregister`, or until the end of a ``with`` block; TypeError for anything else.

    Counted: each array has to be deregistered as often as it was registered.
    """
    select_default_backend()
    return devmem.register(*args)


@translating
def deregister(*args: npt.NDArray[Any]) -> None:
    """Undo one `register` of each array, after the copies that use it; TypeError for other objects."""
    select_default_backend()
    devmem.deregister(*args)


def coarsegrain_array(
    shape: Any, dtype: npt.DTypeLike = np.float64, strides: Any = None, order: str = "C"
) -> HostArray:
    """Allocate an uninitialised ndarray that kernels access in place; their writes are visible once they were waited for."""
    return _host_array("coarse", shape, dtype, strides, order)


def finegrain_array(shape: Any, dtype: npt.DTypeLike = np.float64, strides: Any = None, order: str = "C") -> HostArray:
    """Allocate an uninitialised ndarray that kernels access in place; writes of both sides are visible while kernels run."""
    return _host_array("fine", shape, dtype, strides, order)


@translating
def _host_array(coherence: str, shape: Any, dtype: npt.DTypeLike, strides: Any, order: str) -> HostArray:
    select_default_backend()
    try:
        array = devmem.mapped_array(_axes(shape), dtype, _strides(strides), order, portable=True, coherence=coherence)
    except UnsupportedError as error:
        raise LayoutError(f"{coherence}grain mempool is not available in {devmem.current_device()}: {error}") from error
    found: HostArray = array.view(HostArray)
    return found


def _upload(obj: Any, stream: Any, copy: Any) -> DeviceNDArray:
    if not copy or obj.ndim == 0 or not (obj.flags["C_CONTIGUOUS"] or obj.flags["F_CONTIGUOUS"]) or _on_device(obj):
        made = from_array_like(obj)
        if copy:
            made.copy_to_device(obj, stream=stream)
        return made
    return as_roc_array(devmem.to_device(obj, stream or 0))


def _on_device(obj: Any) -> bool:
    return not isinstance(obj, np.ndarray) and devmem.is_device_array(obj)


def _axes(shape: Any) -> Any:
    return (1,) if type(shape) in (tuple, list) and not shape else shape


def _strides(strides: Any) -> Any:
    return (strides,) if isinstance(strides, int) else strides or None
