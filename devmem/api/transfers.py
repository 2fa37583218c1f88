"""Copies that go on while the caller does something else."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, TypeVar, overload

import numpy as np
import numpy.typing as npt

from .._core.arrays.ndarray import ArrayLike, ArrayTree, DeviceArrayLike, DeviceNDArray
from .._core.bulk import async_copy, batch, pitched
from .._core.bulk import scatter as pieces
from .._core.bulk.async_copy import Transfer
from .._core.device.device import DeviceLike
from .._core.ordering.event import StreamLike
from .arrays import ArrayOf

S = TypeVar("S", bound=np.generic)
U = TypeVar("U", bound=np.generic)
K = TypeVar("K")
T = TypeVar("T", bound=npt.NDArray[Any] | DeviceArrayLike)


@overload
def copy_async(
    src: npt.NDArray[S], dst: None = None, *, stream: StreamLike = 0, device: DeviceLike = None, pinned: bool = False
) -> Transfer[DeviceNDArray[S]]: ...


@overload
def copy_async(
    src: DeviceNDArray[S], dst: None = None, *, stream: StreamLike = 0, device: DeviceLike = None, pinned: bool = False
) -> Transfer[npt.NDArray[S]]: ...


@overload
def copy_async(
    src: ArrayLike, dst: T, *, stream: StreamLike = 0, device: DeviceLike = None, pinned: bool = False
) -> Transfer[T]: ...


@overload
def copy_async(
    src: ArrayLike, dst: None = None, *, stream: StreamLike = 0, device: DeviceLike = None, pinned: bool = False
) -> Transfer[Any]: ...


def copy_async(
    src: ArrayLike,
    dst: npt.NDArray[Any] | DeviceArrayLike | None = None,
    *,
    stream: StreamLike = 0,
    device: DeviceLike = None,
    pinned: bool = False,
) -> Transfer[Any]:
    """Begin a copy between host and device, or on a device, and return at once a handle that owns both sides.

    Parameters
    ----------
    src : array_like or DeviceNDArray
        What to copy. Pageable memory has been read when the call returns; page-locked memory, and memory of another device, must
        not be changed before the copy is done.
    dst : ndarray or DeviceNDArray, optional
        Where to: same shape and dtype. Not given: a new array on the other side, in the source's order of axes.
    stream : stream, optional
        Orders the copy; the array's own, the current or the default one, if not given.
    device : Device, int or str, optional
        Where a new device array is made; the current device, if not given.
    pinned : bool
        Make a new host array in page-locked memory, as `DeviceNDArray.copy_to_host` does: the thread that waits has nothing
        to copy.

    Returns
    -------
    Transfer
        ``wait``, ``result``, ``done``; it can be awaited, and used in ``with``. Dropping it is safe: both sides live until the
        stream has passed the copy. A new host array is seen through ``result`` only. The call returns when all is enqueued,
        so later work on the stream comes after, and waits for no stream (but between devices of two backends). A pageable
        destination is written by the thread that
        waits, or asks ``done``; if the transfer is dropped before, what it holds is undefined.

    Raises
    ------
    LayoutError
        The destination has another shape or dtype, is read-only, or is on another device than ``device``.
    TypeError
        Both sides are on the host.
    BackendError
        Nothing could be enqueued. What the driver says later is raised by ``wait`` and ``result``.

    Examples
    --------
    >>> upload = dm.copy_async(np.arange(3))
    >>> d = upload.result()                     # waits
    >>> dm.copy_async(d).result()
    array([0, 1, 2])
    """
    return async_copy.copy_async(src, dst, stream, device, pinned)


@overload
def to_device_many(tree: npt.NDArray[S], stream: StreamLike = 0, *, device: DeviceLike = None) -> DeviceNDArray[S]: ...


@overload
def to_device_many(
    tree: list[npt.NDArray[S]], stream: StreamLike = 0, *, device: DeviceLike = None
) -> list[DeviceNDArray[S]]: ...


@overload
def to_device_many(
    tree: tuple[npt.NDArray[S], npt.NDArray[U]], stream: StreamLike = 0, *, device: DeviceLike = None
) -> tuple[DeviceNDArray[S], DeviceNDArray[U]]: ...


@overload
def to_device_many(
    tree: tuple[npt.NDArray[S], ...], stream: StreamLike = 0, *, device: DeviceLike = None
) -> tuple[DeviceNDArray[S], ...]: ...


@overload
def to_device_many(
    tree: dict[K, npt.NDArray[S]], stream: StreamLike = 0, *, device: DeviceLike = None
) -> dict[K, DeviceNDArray[S]]: ...


@overload
def to_device_many(tree: ArrayTree, stream: StreamLike = 0, *, device: DeviceLike = None) -> Any: ...


def to_device_many(tree: ArrayTree, stream: StreamLike = 0, *, device: DeviceLike = None) -> Any:
    """Copy many arrays to a device together: one block of memory, and one copy for all that are small.

    Parameters
    ----------
    tree : list, tuple, dict or array_like
        Arrays in lists, tuples, named tuples and dicts, in one another. Everything else is a leaf, copied as by `to_device`: an
        array, a number, text, a record; an array of this device is taken as it is, one of another device is copied across.
    stream : stream, optional
        As for `to_device`: given, the copies may still run on return, and the arrays are bound to it. Arrays below 32 KiB have
        been read by then, page-locked ones too: wait first for a stream that still writes to one.
    device : Device, int or str, optional
        Where to; the current device, if not given.

    Returns
    -------
    list, tuple, dict or DeviceNDArray
        The same structure. The arrays share the block: it is given back when the last of them is dropped, and ``free()`` of one
        frees all.

    Raises
    ------
    TypeError, LayoutError
        A leaf cannot be copied, None say; the message begins with where it is, ``tree['w'][2]``. A container is within itself.
        Nothing was copied.
    OutOfMemory, BackendError
        As `to_device`; no array is made. A note on the error tells which leaves were being copied.

    Examples
    --------
    >>> weights = dm.to_device_many({"w": np.ones((2, 2)), "b": [np.zeros(2), np.zeros(3)]})
    >>> weights["b"][1].shape
    (3,)
    """
    return batch.upload_many(tree, stream, device)


@overload
def to_host_many(tree: DeviceNDArray[S], stream: StreamLike = 0, *, pinned: bool = False) -> npt.NDArray[S]: ...


@overload
def to_host_many(
    tree: list[DeviceNDArray[S]], stream: StreamLike = 0, *, pinned: bool = False
) -> list[npt.NDArray[S]]: ...


@overload
def to_host_many(
    tree: tuple[DeviceNDArray[S], DeviceNDArray[U]], stream: StreamLike = 0, *, pinned: bool = False
) -> tuple[npt.NDArray[S], npt.NDArray[U]]: ...


@overload
def to_host_many(
    tree: tuple[DeviceNDArray[S], ...], stream: StreamLike = 0, *, pinned: bool = False
) -> tuple[npt.NDArray[S], ...]: ...


@overload
def to_host_many(
    tree: dict[K, DeviceNDArray[S]], stream: StreamLike = 0, *, pinned: bool = False
) -> dict[K, npt.NDArray[S]]: ...


@overload
def to_host_many(tree: object, stream: StreamLike = 0, *, pinned: bool = False) -> Any: ...


def to_host_many(tree: object, stream: StreamLike = 0, *, pinned: bool = False) -> Any:
    """Copy many device arrays to the host together: one copy for all that are small.

    Arrays that share a block are fetched as they lie in it; others are put into one on the device first. What is bound to
    other streams is waited for, on the device.

    Parameters
    ----------
    tree : list, tuple, dict or DeviceNDArray
        Device arrays in lists, tuples, named tuples and dicts; other leaves are returned as they are.
    stream : stream, optional
        Orders the copies; the current or the default one, if not given.
    pinned : bool
        Make the host arrays in page-locked memory, as `DeviceNDArray.copy_to_host` does.

    Returns
    -------
    list, tuple, dict or ndarray
        The same structure, complete on return. Small arrays are views of one host block, which lives as long as any of them;
        those that overlap on the device may overlap there too.

    Raises
    ------
    BackendError, ClosedError
        A driver refused, or an array is gone: a note on the error tells which, ``tree['w'][2]``.
    OutOfMemory
        There is no page-locked memory left.
    LayoutError
        A container is within itself.

    Examples
    --------
    >>> dm.to_host_many([dm.ones(2), dm.zeros(3)])
    [array([1., 1.]), array([0., 0., 0.])]
    """
    return batch.download_many(tree, stream, pinned)


def copy_pitched(
    dst: npt.NDArray[Any] | DeviceNDArray[Any],
    src: npt.NDArray[Any] | DeviceNDArray[Any],
    width: int,
    height: int,
    depth: int = 1,
    *,
    dst_pitch: int | None = None,
    src_pitch: int | None = None,
    dst_rows: int | None = None,
    src_rows: int | None = None,
    dst_offset: int = 0,
    src_offset: int = 0,
    stream: StreamLike = 0,
) -> None:
    """Copy rows of bytes that lie a pitch apart, as vendors' two- and three-dimensional copies do.

    It copies between a device and the host, on a device, and between devices. Each side is the bytes from its array's first
    element to its last. By elements, `DeviceNDArray.copy_to_device` of views does the same.

    Parameters
    ----------
    dst, src : DeviceNDArray or ndarray
        One of them at least on a device; a host array is C-contiguous.
    width, height, depth : int
        Bytes of a row, rows of a slice, slices.
    dst_pitch, src_pitch : int, optional
        Bytes from row to row, ``width`` or more; ``width``, if not given.
    dst_rows, src_rows : int, optional
        Rows from slice to slice, ``height`` or more; ``height``, if not given.
    dst_offset, src_offset : int
        The byte where the first row begins.
    stream : stream, optional
        As for `to_device`: given, the copy may still run on return, and both sides are kept alive until it is done.

    Raises
    ------
    LayoutError
        A row lies outside of its array, or rows overlap: nothing was copied.
    TypeError
        Both sides are on the host.

    Examples
    --------
    >>> image = np.arange(12, dtype=np.uint8).reshape(3, 4)
    >>> d = dm.zeros(6, np.uint8)
    >>> dm.copy_pitched(d, image, width=2, height=3, src_pitch=4)     # the first two columns
    >>> d.copy_to_host()
    array([0, 1, 4, 5, 8, 9], dtype=uint8)
    """
    shape, to = (depth, height, width), (dst_offset, dst_pitch, dst_rows)
    pitched.copy_pitched(dst, src, shape, to, (src_offset, src_pitch, src_rows), stream)


@overload
def scatter(array: ArrayOf[S], devices: Iterable[DeviceLike], axis: int = 0) -> list[DeviceNDArray[S]]: ...


@overload
def scatter(array: ArrayLike, devices: Iterable[DeviceLike], axis: int = 0) -> list[DeviceNDArray[Any]]: ...


def scatter(array: ArrayLike, devices: Iterable[DeviceLike], axis: int = 0) -> list[DeviceNDArray[Any]]:
    """Cut a host array along an axis, and copy the pieces to devices, to all of them at once.

    Parameters
    ----------
    array : array_like
        Any layout and memory; page-locked memory is read by the devices directly.
    devices : sequence of Device, int or str
        One for each piece, in order; a device may stand there several times, and they may be of several vendors.
    axis : int
        Which axis is cut, as evenly as it goes, as by ``numpy.array_split``: pieces may be empty.

    Returns
    -------
    list of DeviceNDArray
        The pieces, complete on return, each contiguous in the source's order of axes and owned by the caller. The copies are
        ordered on each device's current or default stream.

    Raises
    ------
    LayoutError
        The array has no such axis or holds Python objects; there are no devices.
    OutOfMemory, BackendError
        A piece does not fit, or a driver refused; a note on the error tells which. Nothing is left allocated.

    Examples
    --------
    >>> pieces = dm.scatter(np.arange(5), ["host:0", "host:1"])
    >>> [(str(piece.device), piece.size) for piece in pieces]
    [('host:0', 3), ('host:1', 2)]
    """
    return pieces.scatter(array, devices, axis)


def gather(
    arrays: Iterable[DeviceNDArray[S]], axis: int = 0, out: npt.NDArray[S] | None = None, *, pinned: bool = False
) -> npt.NDArray[S]:
    """Copy device arrays into one host array, one behind the other along an axis, from all devices at once.

    Parameters
    ----------
    arrays : sequence of DeviceNDArray
        Of one dtype, and of one shape but for the axis; on any devices. What was enqueued on the stream of each comes before.
    axis : int
        Which axis they make up together, as in ``numpy.concatenate``.
    out : ndarray, optional
        Where to: of that shape and dtype, any strides, writable; a new array, if not given.
    pinned : bool
        Make the new array in page-locked memory of the first array's device, as `DeviceNDArray.copy_to_host` does.

    Returns
    -------
    ndarray
        ``out`` or the new array, complete on return.

    Raises
    ------
    LayoutError
        The arrays do not fit together or into ``out``, or both ``out`` and ``pinned`` are given: nothing was copied.
    OutOfMemory
        There is no page-locked memory left.
    BackendError, ClosedError
        A driver refused, or an array is gone; a note on the error tells which. What ``out`` holds is undefined.

    Examples
    --------
    >>> dm.gather(dm.scatter(np.arange(5), ["host:0", "host:1"]))
    array([0, 1, 2, 3, 4])
    """
    return pieces.gather(arrays, axis, out, pinned)
