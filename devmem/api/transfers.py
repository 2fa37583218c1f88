"""Copies that go on while the caller does something else."""

from __future__ import annotations

from typing import Any

import numpy.typing as npt

from .._core.arrays.ndarray import DeviceNDArray
from .._core.bulk import async_copy, batch
from .._core.bulk import scatter as pieces
from .._core.bulk.async_copy import Transfer


def copy_async(src: Any, dst: Any = None, *, stream: Any = None, device: Any = None, pinned: bool = False) -> Transfer:
    """Begin a copy between host and device, or on a device, and return at once a handle that owns both sides.

    Parameters
    ----------
    src : array_like or DeviceNDArray
        What to copy. Of pageable memory a large part may still be read by the call itself; it is never read after the call.
        Page-locked memory must not be changed before the copy is done.
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
        so later work on the stream comes after. A large download into pageable memory is written by the thread that waits; if it
        is dropped before, what its destination holds is undefined.

    Raises
    ------
    LayoutError
        The destination has another shape or dtype, is read-only, or is on another device than ``device``.
    TypeError
        Both sides are on the host.
    BackendError
        Nothing could be enqueued. What the driver says later is raised by ``wait`` and ``result``.
    """
    return async_copy.copy_async(src, dst, stream, device, pinned)


def to_device_many(tree: Any, stream: Any = 0, *, device: Any = None) -> Any:
    """Copy many arrays to a device together: one block of memory, and one copy for all that are small.

    Parameters
    ----------
    tree : list, tuple, dict or array_like
        Arrays in lists, tuples, named tuples and dicts, in one another. Everything else is a leaf, copied as by `to_device`: an
        array, a number, text, a record; an array of this device is taken as it is, one of another device is copied across.
    stream : stream, optional
        As for `to_device`: given, the copies may still run on return, and the arrays are bound to it.
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
    """
    return batch.upload_many(tree, stream, device)


def to_host_many(tree: Any, stream: Any = 0, *, pinned: bool = False) -> Any:
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
    """
    return batch.download_many(tree, stream, pinned)


def scatter(array: Any, devices: Any, axis: int = 0) -> list[DeviceNDArray[Any]]:
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
    """
    return pieces.scatter(array, devices, axis)


def gather(
    arrays: Any, axis: int = 0, out: npt.NDArray[Any] | None = None, *, pinned: bool = False
) -> npt.NDArray[Any]:
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
    """
    return pieces.gather(arrays, axis, out, pinned)
