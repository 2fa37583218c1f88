"""Files to device arrays and back."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal, Never, TypeVar, overload

import numpy as np
import numpy.typing as npt

from .._core.arrays.ndarray import DeviceArrayLike, DeviceNDArray
from .._core.base.advice import refuse_keywords
from .._core.base.argument_types import PathLike, PathTree, ShapeLike
from .._core.bulk import files
from .._core.bulk.files import ArrayFile
from .._core.device.device import DeviceLike
from .._core.ordering.event import StreamLike
from .._core.smart import SmartArray
from ..spi.errors import LayoutError

S = TypeVar("S", bound=np.generic)
T = TypeVar("T", bound=DeviceNDArray[Any])


@overload
def load(path: PathLike, *, lazy: Literal[True], stream: StreamLike = 0, device: DeviceLike = None) -> ArrayFile: ...


@overload
def load(
    path: PathLike,
    *,
    dtype: type[S] | np.dtype[S],
    shape: ShapeLike,
    offset: int = 0,
    stream: StreamLike = 0,
    device: DeviceLike = None,
) -> DeviceNDArray[S]: ...


@overload
def load(
    path: PathLike,
    *,
    dtype: npt.DTypeLike | None = None,
    shape: ShapeLike | None = None,
    offset: int = 0,
    stream: StreamLike = 0,
    device: DeviceLike = None,
    to: T,
) -> T: ...


@overload
def load(
    path: PathLike,
    *,
    dtype: npt.DTypeLike | None = None,
    shape: ShapeLike | None = None,
    offset: int = 0,
    stream: StreamLike = 0,
    device: DeviceLike = None,
    to: DeviceNDArray[Any] | None = None,
    lazy: bool = False,
) -> Any: ...


def load(
    path: PathLike,
    *,
    dtype: npt.DTypeLike | None = None,
    shape: ShapeLike | None = None,
    offset: int = 0,
    stream: StreamLike = 0,
    device: DeviceLike = None,
    to: DeviceNDArray[Any] | None = None,
    lazy: bool = False,
    **others: Never,
) -> Any:
    """Read a file into a device array, or into a dict of them, without a copy of it in host memory.

    A large file passes through the device's page-locked slots, block by block. On NVIDIA devices KvikIO reads it instead, where
    that is installed and the machine has GPUDirect Storage; into the memory of host devices it is read directly.

    Parameters
    ----------
    path : str, bytes or path-like
        A .npy file, which says its dtype, shape and order by itself; or a raw one, of which ``dtype`` and ``shape`` say it. What
        ends in .safetensors, .safetensors.index.json (a model in several files) or .npz holds arrays by name.
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
    lazy : bool
        Of a file with arrays by name, load each when it is asked for.

    Returns
    -------
    DeviceNDArray
        ``to``, or a new array. That is contiguous: in C order, or in Fortran order where the .npy file is. Of a file with
        arrays by name a dict of them, of which the small ones share a block of memory; or an `ArrayFile`, if ``lazy``.

    Raises
    ------
    LayoutError
        The file is no .npy file and ``dtype`` and ``shape`` are missing; it is cut short; it holds Python objects. ``to`` has
        another shape or dtype, or is read-only. A file with arrays by name describes an impossible array, or names an unknown
        dtype.
    OSError
        It cannot be read.
    OutOfMemory, BackendError
        As `to_device`; nothing is left allocated.
    UnsupportedError
        A graph is captured on the stream.

    Examples
    --------
    >>> dm.save({"w": dm.ones(3), "b": dm.zeros(2)}, "model.safetensors")
    >>> model = dm.load("model.safetensors")
    >>> sorted(model), model["w"].copy_to_host()
    (['b', 'w'], array([1., 1., 1.]))
    >>> dm.load("model.safetensors", lazy=True)["b"].copy_to_host()     # reads b alone
    array([0., 0.])
    """
    if others:
        refuse_keywords("load()", others)
    text = files.path_of(path)
    if files.holds_several(text) and dtype is None:
        if shape is not None or offset or to is not None:
            raise LayoutError(f"load({text!r}) gives arrays by name: leave out shape=, offset= and to=")
        arrays = files.ArrayFile(text, stream, device)
        return arrays if lazy else arrays.load()
    if lazy:
        raise LayoutError(f"load(lazy=True) is for files with arrays by name, .safetensors and .npz, not for {text!r}")
    return files.load(path, dtype, shape, offset, stream, device, to)


def load_many(paths: PathTree, *, stream: StreamLike = 0, device: DeviceLike = None) -> Any:
    """Read many files into device arrays: large ones through the page-locked slots, all that are small in one block.

    Parameters
    ----------
    paths : path, list, tuple or dict
        Of .npy files, and of files with arrays by name, as for `load`; in lists, tuples and dicts, in one another.
    stream, device
        As for `load`.

    Returns
    -------
    DeviceNDArray, list, tuple or dict
        The same structure, with what `load` gives of each file. Arrays of less than 1 MiB share a block of memory, which is given
        back when the last of them is dropped.

    Raises
    ------
    LayoutError, OSError, OutOfMemory, BackendError
        As `load`; what was loaded is dropped.

    Examples
    --------
    >>> for n in range(3):
    ...     np.save(f"part{n}.npy", np.full(2, n))
    >>> [int(array[0]) for array in dm.load_many(["part0.npy", "part1.npy", "part2.npy"])]
    [0, 1, 2]
    """
    return files.load_many(paths, stream, device)


def save(
    array: DeviceArrayLike | SmartArray | Mapping[str, DeviceArrayLike | SmartArray],
    path: PathLike,
    *,
    metadata: Mapping[str, str] | None = None,
) -> None:
    """Write a device array to a .npy file, or a dict of them to a .safetensors or .npz file, without a copy in host memory.

    The file is complete on return. It is written beside the path, under another name, and takes its place at the end: a failure
    leaves what was there. A large array passes through the device's page-locked slots, block by block; on NVIDIA devices KvikIO
    writes it instead, where that is installed and the machine has GPUDirect Storage; that of a host device is written directly.

    Parameters
    ----------
    array : DeviceNDArray or SmartArray, or a dict of them
        Any layout, on any device, after what was enqueued on its stream. Contiguous arrays keep their order, C or Fortran; others
        are written in C order. Of a SmartArray the device side is written, brought up to date.
        A dict goes to a file that is named .safetensors, where each array is in C order, or .npz, uncompressed, for which one
        array at a time is in host memory.
    path : str, bytes or path-like
        Where to; nothing is appended to the name.
    metadata : dict of str, optional
        Texts for the header of a .safetensors file.

    Raises
    ------
    TypeError
        It is no device array; a name is no text.
    LayoutError
        A dict, and the file has another name; one array, and it has one of these; a dtype that .safetensors files do not have.
    OSError
        The file cannot be written: no such folder, no permission, the disk is full, or something is there that is no regular
        file.
    BackendError
        The driver refused.

    Examples
    --------
    >>> dm.save(dm.ones(3), "ones.npy")
    >>> np.load("ones.npy")
    array([1., 1., 1.])
    """
    if isinstance(array, Mapping):
        files.save_many(array, path, metadata)
    elif metadata is not None:
        raise LayoutError("save(metadata=) is for a dict of arrays and a .safetensors file")
    elif files.holds_several(text := files.path_of(path)):
        raise LayoutError(
            f"save({text!r}): files of this name hold arrays by name: save({{'name': array}}, ...), or .npy"
        )
    else:
        files.save(array, path)
