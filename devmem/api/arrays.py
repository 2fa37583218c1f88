"""Making device arrays, by the names that Numba has for it, and pitched ones."""

from __future__ import annotations

from typing import Any, TypeVar, overload

import numpy as np
import numpy.typing as npt
from numpy import ndarray

from .._core.arrays.creation import empty as empty_array
from .._core.arrays.creation import like, upload
from .._core.arrays.creation import to_device as _to_device
from .._core.arrays.ndarray import ArrayLike, DeviceNDArray, DeviceRecord
from .._core.arrays.pinned import PinnedNDArray
from .._core.base.argument_types import ShapeLike, StridesLike
from .._core.base.arguments import flag_of, layout_of
from .._core.device.device import DeviceLike, current_open_device, open_device_of
from .._core.ordering.event import StreamLike
from .._native import core

#: A type of elements, what says one, and an array of them. A dtype as text says nothing to a type checker.
S = TypeVar("S", bound=np.generic)
T = TypeVar("T", bound=DeviceNDArray[Any] | DeviceRecord)
ElementType = type[S] | np.dtype[S]
#: What has elements of a type: arrays of NumPy's, and of devmem's.
ArrayOf = npt.NDArray[S] | DeviceNDArray[S]


@overload
def to_device(  # type: ignore[overload-overlap]  # a record is an ArrayLike too
    obj: np.void | DeviceRecord,
    stream: StreamLike = 0,
    copy: bool = True,
    to: None = None,
    *,
    device: DeviceLike = None,
) -> DeviceRecord: ...


@overload
def to_device(
    obj: ArrayOf[S], stream: StreamLike = 0, copy: bool = True, to: None = None, *, device: DeviceLike = None
) -> DeviceNDArray[S]: ...


@overload
def to_device(obj: ArrayLike, stream: StreamLike = 0, copy: bool = True, *, to: T, device: DeviceLike = None) -> T: ...


@overload
def to_device(
    obj: ArrayLike, stream: StreamLike = 0, copy: bool = True, to: None = None, *, device: DeviceLike = None
) -> DeviceNDArray[Any]: ...


def to_device(
    obj: ArrayLike,
    stream: StreamLike = 0,
    copy: bool = True,
    to: DeviceNDArray[Any] | DeviceRecord | None = None,
    *,
    device: DeviceLike = None,
) -> DeviceNDArray[Any] | DeviceRecord:
    """Copy to a device.

    Parameters
    ----------
    obj : array_like or DeviceNDArray
        A host object is always copied, in any layout; lists and scalars go through ``numpy.asarray``. A device array is returned
        as it is if it is on the device already, else copied there; one of another library as `as_device_array` has it. A NumPy
        record (``np.void``) gives a `DeviceRecord`.
    stream : stream, optional
        0 or None, a `Stream`, its int handle, or an object with ``__cuda_stream__``. Given, the copy is ordered on it and may
        still run on return; both sides are kept alive until it is done, and the result is bound to it. A pageable source has been
        read by then, a page-locked one has not ("What pageable memory does"). Not given, the copy is complete on return.
    copy : bool
        False forbids an extra copy *on the host* on the way. A device that takes the host's addresses (`DeviceInfo.coherence`)
        then uses the memory of a host array in place: both see what either writes, and the array keeps the host's alive.
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

    Examples
    --------
    >>> d = dm.to_device(np.arange(6).reshape(2, 3))
    >>> d.shape, d.device
    ((2, 3), <device host:0: ...>)
    >>> d[1].copy_to_host()
    array([3, 4, 5])
    """
    if core is not None and (made := core.upload(obj, stream, copy, to, device)) is not None:
        quick: DeviceNDArray[Any] | DeviceRecord = made
        return quick
    if copy is not True:
        copy = flag_of(copy, "copy")
    if (type(obj) is ndarray or type(obj) is PinnedNDArray) and to is None:
        return upload(current_open_device() if device is None else open_device_of(device), obj, stream, copy)
    return _to_device(obj, stream, copy, to, device)


@overload
def device_array(
    shape: ShapeLike,
    dtype: type[np.float64] = np.float64,
    strides: StridesLike | None = None,
    order: str = "C",
    stream: StreamLike = 0,
) -> DeviceNDArray[np.float64]: ...


@overload
def device_array(
    shape: ShapeLike,
    dtype: ElementType[S],
    strides: StridesLike | None = None,
    order: str = "C",
    stream: StreamLike = 0,
) -> DeviceNDArray[S]: ...


@overload
def device_array(
    shape: ShapeLike, dtype: npt.DTypeLike, strides: StridesLike | None = None, order: str = "C", stream: StreamLike = 0
) -> DeviceNDArray[Any]: ...


def device_array(
    shape: ShapeLike,
    dtype: npt.DTypeLike = np.float64,
    strides: StridesLike | None = None,
    order: str = "C",
    stream: StreamLike = 0,
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

    Examples
    --------
    >>> d = dm.device_array((2, 3), np.float32)
    >>> d.fill(1)
    >>> d.nbytes
    24
    """
    if core is not None and (made := core.make(shape, dtype, strides, order, stream)) is not None:
        quick: DeviceNDArray[Any] = made
        return quick
    lengths, kind, steps, nbytes = layout_of(shape, dtype, strides, order)
    packed = None if strides is None and order == "C" else steps
    if core is not None and (made := core.allocate(lengths, kind, packed, nbytes, stream)) is not None:
        array: DeviceNDArray[Any] = made
        return array
    return empty_array(current_open_device(), lengths, kind, packed, nbytes, stream)


@overload
def device_array_like(ary: ArrayOf[S], stream: StreamLike = 0) -> DeviceNDArray[S]: ...


@overload
def device_array_like(ary: ArrayLike, stream: StreamLike = 0) -> DeviceNDArray[Any]: ...


def device_array_like(ary: ArrayLike, stream: StreamLike = 0) -> DeviceNDArray[Any]:
    """Allocate an uninitialised device array with the shape, dtype and order of axes of an array, without its gaps.

    Examples
    --------
    >>> dm.device_array_like(np.zeros((2, 3), "f4"))
    <DeviceNDArray shape=(2, 3) dtype=float32 on host:0>
    """
    shape, dtype, strides, nbytes = like(ary)
    return empty_array(current_open_device(), shape, dtype, strides, nbytes, stream)


def pitched_array(
    shape: ShapeLike,
    dtype: npt.DTypeLike = np.float64,
    *,
    pitch: int | None = None,
    stream: StreamLike = 0,
    device: DeviceLike = None,
) -> DeviceNDArray[Any]:
    """Allocate an uninitialised device array whose rows begin a pitch apart, as vendors' pitched allocations do.

    Parameters
    ----------
    shape, dtype, stream
        As for `device_array`; two axes or more. Rows are along the last one.
    pitch : int, optional
        Bytes from row to row, at least those of a row; a row rounded up to the device's alignment, if not given, so that every
        row begins at a multiple of it. ``strides[-2]`` of the result.
    device : Device, int or str, optional
        Where: ``"cuda:1"``; the current device, if not given.

    Raises
    ------
    LayoutError
        Fewer than two axes, or a pitch that is smaller than a row.
    OutOfMemory
        It does not fit.

    Examples
    --------
    >>> d = dm.pitched_array((4, 5), np.float32)
    >>> d.strides[0] >= 5 * 4, d.strides[1]
    (True, 4)
    """
    from .._core.bulk import pitched  # late: few programs want it

    return pitched.pitched_array(open_device_of(device), shape, dtype, pitch, stream)


__all__ = ["device_array", "device_array_like", "pitched_array", "to_device"]
