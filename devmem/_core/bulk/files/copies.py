"""Files to device arrays and back, in bounded host memory."""

from __future__ import annotations

import operator
import os
from io import BufferedReader, FileIO
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import numpy as np
import numpy.typing as npt

from .... import plugins
from ....spi.errors import LayoutError
from ...arrays.creation import empty, target_of
from ...arrays.ndarray import DeviceNDArray, device_view
from ...arrays.smart import SmartArray
from ...base.arguments import check_same, dtype_of, shape_of
from ...base.array_view import ArrayView, part_of
from ...base.device_handle import CurrentDevice
from ...base.layout import Shape, check_size, contiguous_strides
from ...copy.staging import Download, upload
from ...copy.staging.blocks import Block, nearest, tiles
from ...copy.statistics import begin
from ...device.device import open_device_of
from ...lifetime.allocation import StreamUse
from . import npy
from .disk import Disk, open_disk, replacing, telling
from .npy import Elements

if TYPE_CHECKING:
    from ....spi.files import DirectFiles
    from ...device.open_device import OpenDevice
    from ...ordering.stream import Stream

_BYTE = np.dtype(np.uint8)


def load(path: Any, dtype: Any, shape: Any, offset: Any, stream: Any, device: Any, to: Any) -> DeviceNDArray[Any]:
    """A device array of what is in a file; see `devmem.load`."""
    target = None if to is None else target_of(to, device)
    opened = open_device_of(device) if target is None else target.open_device
    chosen = opened.streams.stream_of(stream if target is None or target.stream is None else stream or target.stream)
    with open_disk(_name(path)) as file:
        elements = _elements(file, dtype, shape, offset)
        dtype, lengths = elements.dtype, elements.shape
        nbytes = check_size(lengths, dtype.itemsize)
        file.check_holds(elements.start, nbytes)
        if target is not None:
            check_same("load(to=)", target.shape, target.dtype, lengths, dtype)
            target.allocation.check_writable()
        strides = contiguous_strides(lengths, dtype.itemsize, "F") if elements.fortran else None
        with CurrentDevice(opened.handle):
            # No graph: it would copy again, from memory that is used for something else by then.
            chosen.check_waitable()
            array = empty(opened, lengths, dtype, strides, nbytes, stream) if target is None else target
            try:
                if nbytes:
                    with StreamUse(chosen, array.allocation):
                        if array.is_f_contiguous() if elements.fortran else array.is_c_contiguous():
                            _fill(array, file, elements.start, chosen, not stream)
                        else:
                            _spread(array, file, elements.start, strides, chosen)
            except BaseException:
                if target is None:
                    array.allocation.discard()
                raise
    return array if to is None else cast("DeviceNDArray[Any]", to)


def save(array: Any, path: Any) -> None:
    """Write a device array to a .npy file; see `devmem.save`."""
    source = device_view(array.gpu() if isinstance(array, SmartArray) else array)
    if source is None:
        raise TypeError(f"save() writes device arrays, not a {type(array).__name__}: that is numpy.save()")
    source.allocation.check()
    stream = source.stream_in_force()
    fortran = source.is_f_contiguous() and not source.is_c_contiguous()
    header = npy.header(source.dtype, source.shape, fortran)
    with replacing(_name(path)) as (file, beside):
        file.write(header, 0)
        if source.nbytes:
            with CurrentDevice(source.open_device.handle):
                stream.check_waitable()
                source.open_device.free_queue.safe_point()
                with StreamUse(stream, source.allocation):
                    if fortran or source.is_c_contiguous():
                        _drain(source, file, beside, len(header), stream)
                    else:
                        _gather(source, file, beside, len(header), stream)


# -- below -------------------------------------------------------------------------------------------------------------


def _name(path: Any) -> str:
    if isinstance(path, (str, bytes, os.PathLike)):
        return os.fsdecode(path)
    raise TypeError(f"a file is given by its path, not as a {type(path).__name__}")


def _elements(file: Disk, dtype: Any, shape: Any, offset: Any) -> Elements:
    """What is to be loaded: as the file says, or as the caller does."""
    start = operator.index(offset)
    if not 0 <= start <= file.size():
        raise LayoutError(
            f"load(offset={start}): an offset is a number of bytes from the file's beginning, and {file.path} has "
            f"{file.size()}"
        )
    if (dtype is None) is not (shape is None):
        given, missing = ("dtype", "shape") if shape is None else ("shape", "dtype")
        raise LayoutError(f"load({given}=) without {missing}=: of a raw file say both, of a .npy file neither")
    with BufferedReader(FileIO(os.dup(file.raw.fileno()))) as reader:
        reader.seek(start)
        if dtype is None:
            return npy.read(reader, file.path)
        if not start and reader.peek(len(npy.MAGIC)).startswith(npy.MAGIC):
            raise LayoutError(
                f"{file.path}: a .npy file, which says its dtype and shape by itself: leave out dtype= and shape=, or say at "
                f"which offset= its elements begin"
            )
    return Elements(dtype_of(dtype), shape_of(shape), False, start)


def _fill(array: DeviceNDArray[Any], file: Disk, start: int, stream: Stream, blocking: bool) -> None:
    """Copy a file's bytes to where an array has its elements."""
    opened, nbytes, low = array.open_device, array.nbytes, array.ptr
    began = begin()
    workers = opened.ring.workers

    def read(block: Block, room: npt.NDArray[Any]) -> None:
        file.read(room, start + (block[0].start or 0), workers)

    if _is_small(opened, nbytes):
        host = np.empty(nbytes, _BYTE)
        read((slice(None),), host)
        opened.copies.upload(_bytes(array), host, stream, blocking)
        return
    direct = _direct(opened)
    if direct is not None:
        opened.handle.driver.stream_synchronize(stream.handle)  # what the memory was before may still be in use
        _check_moved(file, direct.read(file.path, start, low, nbytes), nbytes)
        opened.statistics.count("h2d file direct", nbytes, began, array=array, stream=stream)
        return
    upload(opened.ring, opened.copies.submitter, _bytes(array), read, stream)
    if blocking:
        opened.copies.wait_for(stream)
    opened.statistics.count("h2d file", nbytes, began, array=array, stream=stream)


def _spread(array: DeviceNDArray[Any], file: Disk, start: int, strides: Shape | None, stream: Stream) -> None:
    """Copy elements of a file to where an array has them: the file is mapped, as they do not go where they come from."""
    with telling(file.path):
        raw: npt.NDArray[Any] = np.memmap(file.raw, _BYTE, "r", start, (array.nbytes,))
    # Blocking: the file is the caller's again on return.
    elements: npt.NDArray[Any] = np.ndarray(array.shape, array.dtype, raw, 0, strides)
    array.open_device.copies.upload(array, elements, stream, True)


def _drain(array: DeviceNDArray[Any], file: Disk, beside: Path, start: int, stream: Stream) -> None:
    """Copy the bytes of a contiguous array to a file, behind its header."""
    opened, nbytes, low = array.open_device, array.nbytes, array.ptr
    began = begin()
    if _is_small(opened, nbytes):
        host = np.empty(nbytes, _BYTE)
        opened.copies.download(_bytes(array), host, stream, True)
        file.write(host, start)
        return
    direct = _direct(opened)
    if direct is not None:
        opened.handle.driver.stream_synchronize(stream.handle)
        _check_moved(file, direct.write(str(beside), start, low, nbytes), nbytes)
        opened.statistics.count("d2h file direct", nbytes, began, array=array, stream=stream)
        return
    download = Download(
        opened.ring, opened.copies.submitter, lambda block, room: file.write(room, start + (block[0].start or 0))
    )
    try:
        download.start(_bytes(array), stream)
        download.finish()
    except BaseException:
        download.cancel()
        raise
    opened.statistics.count("d2h file", nbytes, began, array=array, stream=stream)


def _gather(array: DeviceNDArray[Any], file: Disk, beside: Path, start: int, stream: Stream) -> None:
    """Copy the elements of any other array to a file, which is mapped: where they go is not where they come from."""
    file.reserve(start + array.nbytes)
    raw: npt.NDArray[Any] = np.memmap(beside, _BYTE, "r+", start, (array.nbytes,))
    mapped: npt.NDArray[Any] = np.ndarray(array.shape, array.dtype, raw)
    # What is too scattered for the ring is gathered in a host array, which is a tile's and not the whole's.
    limit, long = array.open_device.ring.slot_bytes, {nearest(array.shape, array.strides)}
    for tile in tiles(array.shape, array.itemsize, limit, long):
        array.open_device.copies.download(part_of(array, tile), mapped[tile], stream, True)


def _is_small(opened: OpenDevice, nbytes: int) -> bool:
    """Whether a file goes through a host array of its own: one that is no larger than a slot."""
    return nbytes < min(opened.ring.threshold, opened.ring.slot_bytes)


def _bytes(array: DeviceNDArray[Any]) -> ArrayView[np.uint8]:
    return ArrayView(array.ptr, (array.nbytes,), _BYTE)


def _direct(opened: OpenDevice) -> DirectFiles | None:
    found = plugins.registry.direct_files(opened.handle.info.backend)
    return found if found is not None and found.unavailable() is None else None


def _check_moved(file: Disk, moved: int, nbytes: int) -> None:
    if moved != nbytes:
        raise OSError(f"{file.path}: {moved} of {nbytes} bytes were moved")
