"""Files to device arrays and back."""

from __future__ import annotations

from typing import Any

from .._core.arrays.ndarray import DeviceNDArray
from .._core.bulk import files


def load(
    path: Any,
    *,
    dtype: Any = None,
    shape: Any = None,
    offset: int = 0,
    stream: Any = 0,
    device: Any = None,
    to: Any = None,
) -> DeviceNDArray[Any]:
    """Read a file into a device array, without a copy of it in host memory.

    A large file passes through the device's page-locked slots, block by block. On NVIDIA devices KvikIO reads it instead, where
    that is installed and the machine has GPUDirect Storage.

    Parameters
    ----------
    path : str, bytes or path-like
        A .npy file, which says its dtype, shape and order by itself; or a raw one, of which ``dtype`` and ``shape`` say it.
    dtype : dtype, optional
        Type of a raw file's elements; no Python objects.
    shape : int or sequence of int, optional
        Lengths of the axes of a raw file's elements, which are in C order.
    offset : int
        Bytes before the elements of a raw file, or before the beginning of a .npy file in another file.
    stream : stream, optional
        As for `to_device`: given, the call returns when the file was read and the last block is enqueued on it, and the array is
        bound to it. Not given, the array is complete on return.
    device : Device, int or str, optional
        Where to; the current device, if not given.
    to : DeviceNDArray, optional
        Read into this array, of the same shape and dtype, and return it; where it has its elements in another order than the
        file, that is mapped, and read before the call returns. A failure leaves undefined what it holds.

    Returns
    -------
    DeviceNDArray
        ``to``, or a new array. That is contiguous: in C order, or in Fortran order where the .npy file is.

    Raises
    ------
    LayoutError
        The file is no .npy file and ``dtype`` and ``shape`` are missing; it is cut short; it holds Python objects. ``to`` has
        another shape or dtype, or is read-only.
    OSError
        It cannot be read.
    OutOfMemory, BackendError
        As `to_device`; nothing is left allocated.
    UnsupportedError
        A graph is captured on the stream.
    """
    return files.load(path, dtype, shape, offset, stream, device, to)


def save(array: Any, path: Any) -> None:
    """Write a device array to a .npy file, without a copy of it in host memory.

    The file is complete on return. It is written beside the path, under another name, and takes its place at the end: a failure
    leaves what was there. A large array passes through the device's page-locked slots, block by block; on NVIDIA devices KvikIO
    writes it instead, where that is installed and the machine has GPUDirect Storage.

    Parameters
    ----------
    array : DeviceNDArray or SmartArray
        Any layout, on any device, after what was enqueued on its stream. Contiguous arrays keep their order, C or Fortran; others
        are written in C order. Of a SmartArray the device side is written, brought up to date.
    path : str, bytes or path-like
        Where to; nothing is appended to the name.

    Raises
    ------
    TypeError
        It is no device array.
    OSError
        The file cannot be written: no such folder, no permission, the disk is full, or something is there that is no regular
        file.
    BackendError
        The driver refused.
    """
    files.save(array, path)
