"""Making device arrays, by the names that NumPy, CuPy and PyTorch have for it."""

from __future__ import annotations

from typing import Any, Never, TypeVar, cast, overload

import numpy as np
import numpy.typing as npt

from .._core.arrays.creation import empty as empty_array
from .._core.arrays.creation import like
from .._core.arrays.creation import to_device as _to_device
from .._core.arrays.ndarray import ArrayLike, DeviceNDArray, device_view
from .._core.base.advice import refuse_keywords
from .._core.base.argument_types import ShapeLike
from .._core.base.arguments import dtype_of, flag_of, layout_of
from .._core.device.device import DeviceLike, open_device_of
from .._core.interop.host_objects import host_array
from .._core.ordering.event import StreamLike
from ..spi.errors import LayoutError
from .arrays import ArrayOf, ElementType, S

K = TypeVar("K", bound=np.generic)


@overload
def empty(
    shape: ShapeLike,
    dtype: type[np.float64] = np.float64,
    order: str = "C",
    stream: StreamLike = 0,
    *,
    device: DeviceLike = None,
) -> DeviceNDArray[np.float64]: ...


@overload
def empty(
    shape: ShapeLike, dtype: ElementType[S], order: str = "C", stream: StreamLike = 0, *, device: DeviceLike = None
) -> DeviceNDArray[S]: ...


@overload
def empty(
    shape: ShapeLike, dtype: npt.DTypeLike, order: str = "C", stream: StreamLike = 0, *, device: DeviceLike = None
) -> DeviceNDArray[Any]: ...


def empty(
    shape: ShapeLike,
    dtype: npt.DTypeLike = np.float64,
    order: str = "C",
    stream: StreamLike = 0,
    *,
    device: DeviceLike = None,
) -> DeviceNDArray[Any]:
    """An uninitialised device array, with the arguments of ``numpy.empty``; otherwise as `device_array`.

    Parameters
    ----------
    shape, dtype, order, stream
        As for `device_array`.
    device : Device, int or str, optional
        Where: ``"cuda:1"``; the current device, if not given.

    Examples
    --------
    >>> dm.empty((2, 3), np.float32).nbytes
    24
    """
    return _empty(shape, dtype, order, stream, device)


@overload
def zeros(
    shape: ShapeLike,
    dtype: type[np.float64] = np.float64,
    order: str = "C",
    stream: StreamLike = 0,
    *,
    device: DeviceLike = None,
) -> DeviceNDArray[np.float64]: ...


@overload
def zeros(
    shape: ShapeLike, dtype: ElementType[S], order: str = "C", stream: StreamLike = 0, *, device: DeviceLike = None
) -> DeviceNDArray[S]: ...


@overload
def zeros(
    shape: ShapeLike, dtype: npt.DTypeLike, order: str = "C", stream: StreamLike = 0, *, device: DeviceLike = None
) -> DeviceNDArray[Any]: ...


def zeros(
    shape: ShapeLike,
    dtype: npt.DTypeLike = np.float64,
    order: str = "C",
    stream: StreamLike = 0,
    *,
    device: DeviceLike = None,
) -> DeviceNDArray[Any]:
    """A device array of zeros; otherwise as `empty`.

    Examples
    --------
    >>> dm.zeros(3).copy_to_host()
    array([0., 0., 0.])
    """
    return _filled(shape, dtype, order, stream, device, np.zeros((), dtype_of(dtype)))


@overload
def ones(
    shape: ShapeLike,
    dtype: type[np.float64] = np.float64,
    order: str = "C",
    stream: StreamLike = 0,
    *,
    device: DeviceLike = None,
) -> DeviceNDArray[np.float64]: ...


@overload
def ones(
    shape: ShapeLike, dtype: ElementType[S], order: str = "C", stream: StreamLike = 0, *, device: DeviceLike = None
) -> DeviceNDArray[S]: ...


@overload
def ones(
    shape: ShapeLike, dtype: npt.DTypeLike, order: str = "C", stream: StreamLike = 0, *, device: DeviceLike = None
) -> DeviceNDArray[Any]: ...


def ones(
    shape: ShapeLike,
    dtype: npt.DTypeLike = np.float64,
    order: str = "C",
    stream: StreamLike = 0,
    *,
    device: DeviceLike = None,
) -> DeviceNDArray[Any]:
    """A device array of ones; otherwise as `empty`.

    Examples
    --------
    >>> dm.ones(3, np.int8).copy_to_host()
    array([1, 1, 1], dtype=int8)
    """
    return _filled(shape, dtype, order, stream, device, _value("ones", 1, dtype))


@overload
def full(
    shape: ShapeLike,
    fill_value: Any,
    dtype: None = None,
    order: str = "C",
    stream: StreamLike = 0,
    *,
    device: DeviceLike = None,
) -> DeviceNDArray[Any]: ...


@overload
def full(
    shape: ShapeLike,
    fill_value: Any,
    dtype: ElementType[S],
    order: str = "C",
    stream: StreamLike = 0,
    *,
    device: DeviceLike = None,
) -> DeviceNDArray[S]: ...


@overload
def full(
    shape: ShapeLike,
    fill_value: Any,
    dtype: npt.DTypeLike | None,
    order: str = "C",
    stream: StreamLike = 0,
    *,
    device: DeviceLike = None,
) -> DeviceNDArray[Any]: ...


def full(
    shape: ShapeLike,
    fill_value: Any,
    dtype: npt.DTypeLike | None = None,
    order: str = "C",
    stream: StreamLike = 0,
    *,
    device: DeviceLike = None,
) -> DeviceNDArray[Any]:
    """A device array of one value, of the value's own dtype if none is given; otherwise as `empty`.

    Examples
    --------
    >>> dm.full((2, 2), 7).copy_to_host()
    array([[7, 7],
           [7, 7]])
    """
    wanted = host_array(fill_value).dtype if dtype is None else dtype
    return _filled(shape, wanted, order, stream, device, _value("full", fill_value, wanted))


@overload
def empty_like(
    ary: ArrayOf[S], dtype: None = None, stream: StreamLike = 0, *, device: DeviceLike = None
) -> DeviceNDArray[S]: ...


@overload
def empty_like(
    ary: ArrayLike, dtype: ElementType[K], stream: StreamLike = 0, *, device: DeviceLike = None
) -> DeviceNDArray[K]: ...


@overload
def empty_like(
    ary: ArrayLike, dtype: npt.DTypeLike | None = None, stream: StreamLike = 0, *, device: DeviceLike = None
) -> DeviceNDArray[Any]: ...


def empty_like(
    ary: ArrayLike, dtype: npt.DTypeLike | None = None, stream: StreamLike = 0, *, device: DeviceLike = None
) -> DeviceNDArray[Any]:
    """An uninitialised device array with the shape and order of axes of an array, without its gaps.

    Parameters
    ----------
    ary : array_like or DeviceNDArray
        The model.
    dtype : dtype, optional
        That of the model, if not given.
    stream : stream, optional
        As for `device_array`.
    device : Device, int or str, optional
        Where; if not given, where the model is, or the current device for one on the host.

    Examples
    --------
    >>> dm.empty_like(np.zeros((2, 3)), np.int8).dtype
    dtype('int8')
    """
    if device is None and isinstance(ary, DeviceNDArray):
        device = ary.device
    shape, kind, strides, nbytes = like(ary, None if dtype is None else dtype_of(dtype))
    return empty_array(open_device_of(device), shape, kind, strides, nbytes, stream)


@overload
def zeros_like(
    ary: ArrayOf[S], dtype: None = None, stream: StreamLike = 0, *, device: DeviceLike = None
) -> DeviceNDArray[S]: ...


@overload
def zeros_like(
    ary: ArrayLike, dtype: ElementType[K], stream: StreamLike = 0, *, device: DeviceLike = None
) -> DeviceNDArray[K]: ...


@overload
def zeros_like(
    ary: ArrayLike, dtype: npt.DTypeLike | None = None, stream: StreamLike = 0, *, device: DeviceLike = None
) -> DeviceNDArray[Any]: ...


def zeros_like(
    ary: ArrayLike, dtype: npt.DTypeLike | None = None, stream: StreamLike = 0, *, device: DeviceLike = None
) -> DeviceNDArray[Any]:
    """A device array of zeros; otherwise as `empty_like`.

    Examples
    --------
    >>> dm.zeros_like(np.arange(3)).copy_to_host()
    array([0, 0, 0])
    """
    result = empty_like(ary, dtype, stream, device=device)
    result.fill(np.zeros((), result.dtype), stream)
    return result


@overload
def ones_like(
    ary: ArrayOf[S], dtype: None = None, stream: StreamLike = 0, *, device: DeviceLike = None
) -> DeviceNDArray[S]: ...


@overload
def ones_like(
    ary: ArrayLike, dtype: ElementType[K], stream: StreamLike = 0, *, device: DeviceLike = None
) -> DeviceNDArray[K]: ...


@overload
def ones_like(
    ary: ArrayLike, dtype: npt.DTypeLike | None = None, stream: StreamLike = 0, *, device: DeviceLike = None
) -> DeviceNDArray[Any]: ...


def ones_like(
    ary: ArrayLike, dtype: npt.DTypeLike | None = None, stream: StreamLike = 0, *, device: DeviceLike = None
) -> DeviceNDArray[Any]:
    """A device array of ones; otherwise as `empty_like`.

    Examples
    --------
    >>> dm.ones_like(np.arange(3)).copy_to_host()
    array([1, 1, 1])
    """
    return full_like(ary, 1, dtype, stream, device=device)


@overload
def full_like(
    ary: ArrayOf[S], fill_value: Any, dtype: None = None, stream: StreamLike = 0, *, device: DeviceLike = None
) -> DeviceNDArray[S]: ...


@overload
def full_like(
    ary: ArrayLike, fill_value: Any, dtype: ElementType[K], stream: StreamLike = 0, *, device: DeviceLike = None
) -> DeviceNDArray[K]: ...


@overload
def full_like(
    ary: ArrayLike,
    fill_value: Any,
    dtype: npt.DTypeLike | None = None,
    stream: StreamLike = 0,
    *,
    device: DeviceLike = None,
) -> DeviceNDArray[Any]: ...


def full_like(
    ary: ArrayLike,
    fill_value: Any,
    dtype: npt.DTypeLike | None = None,
    stream: StreamLike = 0,
    *,
    device: DeviceLike = None,
) -> DeviceNDArray[Any]:
    """A device array of one value, cast to the dtype; otherwise as `empty_like`.

    Examples
    --------
    >>> dm.full_like(np.arange(3), 5).copy_to_host()
    array([5, 5, 5])
    """
    result = empty_like(ary, dtype, stream, device=device)
    result.fill(_value("full_like", fill_value, result.dtype), stream)
    return result


@overload
def asarray(
    obj: ArrayOf[S], dtype: None = None, *, stream: StreamLike = 0, device: DeviceLike = None, copy: bool | None = None
) -> DeviceNDArray[S]: ...


@overload
def asarray(
    obj: ArrayLike,
    dtype: ElementType[K],
    *,
    stream: StreamLike = 0,
    device: DeviceLike = None,
    copy: bool | None = None,
) -> DeviceNDArray[K]: ...


@overload
def asarray(
    obj: ArrayLike,
    dtype: npt.DTypeLike | None = None,
    *,
    stream: StreamLike = 0,
    device: DeviceLike = None,
    copy: bool | None = None,
) -> DeviceNDArray[Any]: ...


def asarray(
    obj: ArrayLike,
    dtype: npt.DTypeLike | None = None,
    *,
    stream: StreamLike = 0,
    device: DeviceLike = None,
    copy: bool | None = None,
    **others: Never,
) -> DeviceNDArray[Any]:
    """A device array of whatever there is: an array that is on the device already is returned as it is.

    Parameters
    ----------
    obj : array_like or DeviceNDArray
        As for `to_device`.
    dtype : dtype, optional
        A host array is converted on the host, by ``numpy.asarray``; a device array must have it.
    stream : stream, optional
        As for `to_device`.
    device : Device, int or str, optional
        Where to; the current device, if not given.
    copy : bool, optional
        True copies always, False never, which leaves arrays that are on the device already. None copies where it is needed.

    Raises
    ------
    LayoutError
        A device array has another dtype; ``copy=False``, and a copy is needed.

    Examples
    --------
    >>> d = dm.asarray([1, 2, 3])
    >>> dm.asarray(d) is d
    True
    """
    if others:
        refuse_keywords("asarray()", others)
    if copy is not None:
        copy = flag_of(copy, "copy")
    lent = device_view(obj)
    if lent is None:
        if copy is False:
            raise LayoutError(
                f"asarray(copy=False) of a {type(obj).__name__} of the host: a device array of it is a copy, leave copy= out"
            )
        host = obj if dtype is None else host_array(obj, dtype_of(dtype))
        return cast("DeviceNDArray[Any]", _to_device(host, stream, True, None, device))  # of a record, its like
    if dtype is not None and dtype_of(dtype) != lent.dtype:
        raise LayoutError(
            f"asarray(dtype={dtype_of(dtype)}) of a device array of {lent.dtype}: devmem converts on the host only, "
            f"devmem.asarray(d.copy_to_host(), dtype); d.view(dtype) reads the same bytes as another type"
        )
    found: DeviceNDArray[Any] = lent.to(lent.device if device is None and lent is not obj else device, stream)
    if copy is False and found is not lent:
        raise LayoutError(
            f"asarray(copy=False) of an array on {lent.device} for {found.device}: another device has it as a copy only"
        )
    return lent.copy(stream) if copy and found is lent else found


def _empty(
    shape: ShapeLike, dtype: npt.DTypeLike, order: str, stream: StreamLike, device: DeviceLike
) -> DeviceNDArray[Any]:
    lengths, kind, steps, nbytes = layout_of(shape, dtype, None, order)
    return empty_array(open_device_of(device), lengths, kind, None if order == "C" else steps, nbytes, stream)


def _filled(
    shape: ShapeLike, dtype: npt.DTypeLike, order: str, stream: StreamLike, device: DeviceLike, value: npt.NDArray[Any]
) -> DeviceNDArray[Any]:
    result = _empty(shape, dtype, order, stream, device)
    result.fill(value, stream)
    return result


def _value(call: str, value: Any, dtype: npt.DTypeLike) -> npt.NDArray[Any]:
    """The value as an array of the dtype, which was named: NumPy converts to it."""
    kind = dtype_of(dtype)
    try:
        return host_array(value, kind)
    except OverflowError as error:
        raise LayoutError(f"{call}(fill_value={value!r}) does not fit into {kind}: {error}") from None


__all__ = [
    "asarray",
    "empty",
    "empty_like",
    "full",
    "full_like",
    "ones",
    "ones_like",
    "zeros",
    "zeros_like",
]
