"""Files to device arrays and back, in bounded host memory."""

from __future__ import annotations

import os
from collections.abc import Callable
from io import BufferedReader, FileIO
from pathlib import Path
from typing import Any, SupportsIndex, cast

import numpy as np
import numpy.typing as npt

from .... import plugins
from ....spi.errors import LayoutError
from ....spi.files import DirectFiles
from ...arrays.creation import empty, target_of
from ...arrays.ndarray import DeviceNDArray, device_view
from ...arrays.smart import SmartArray
from ...base.arguments import check_same, dtype_of, integers_of, shape_of
from ...base.array_view import part_of
from ...base.config import settings
from ...base.device_handle import CurrentDevice
from ...base.layout import Shape, check_size, contiguous_strides
from ...copy.engine import SLOT_FROM
from ...copy.staging.blocks import Block, nearest, tiles
from ...copy.statistics import begin
from ...device.device import DeviceLike, open_device_of
from ...device.open_device import OpenDevice
from ...lifetime.allocation import StreamUse
from ...ordering.event import StreamLike
from ...ordering.stream import Stream
from . import npy
from .disk import OpenFile, naming, open_file, replacing
from .npy import Elements


def load(
    path: object,
    dtype: object,
    shape: object,
    offset: SupportsIndex,
    stream: StreamLike,
    device: DeviceLike,
    to: object,
) -> DeviceNDArray[Any]:
    """A device array of what is in a file; see `devmem.load`."""
    target = None if to is None else target_of(to, device)
    with open_file(path_of(path)) as file:
        array = load_elements(file, _elements(file, dtype, shape, offset), stream, device, target)
    return array if to is None else cast("DeviceNDArray[Any]", to)


def load_elements(
    file: OpenFile,
    elements: Elements,
    stream: StreamLike,
    device: DeviceLike,
    target: DeviceNDArray[Any] | None = None,
    *,
    waits: bool = True,
) -> DeviceNDArray[Any]:
    """A new device array, or the target, with elements of a file; unless it ``waits``, the caller waits for the stream."""
    opened = open_device_of(device) if target is None else target.open_device
    chosen = opened.streams.stream_of(stream if target is None or target.stream is None else stream or target.stream)
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
                        _read_contiguous(array, file, elements.start, chosen, waits and not stream)
                    else:
                        _read_strided(array, file, elements.start, strides, chosen)
        except BaseException:
            if target is None:
                array.allocation.discard()
            raise
    return array


def save(array: object, path: object) -> None:
    """Write a device array to a .npy file; see `devmem.save`."""
    source = source_of(array)
    fortran = source.is_f_contiguous() and not source.is_c_contiguous()
    header = npy.make_header(source.dtype, source.shape, fortran)
    with replacing(path_of(path)) as (file, temporary):
        file.write(header, 0)
        store_elements(source, file, temporary, len(header), fortran)


def store_elements(
    source: DeviceNDArray[Any], file: OpenFile, temporary: Path, start: int, fortran: bool = False
) -> None:
    """Write the elements of a device array to a place in a new file, in C order, or ``fortran`` order."""
    if not source.nbytes:
        return
    stream = source.stream_in_force()
    with CurrentDevice(source.open_device.handle):
        stream.check_waitable()
        source.open_device.free_queue.free_if_due()
        with StreamUse(stream, source.allocation):
            if fortran or source.is_c_contiguous():
                _write_contiguous(source, file, temporary, start, stream)
            else:
                _write_strided(source, file, temporary, start, stream)


def source_of(array: object) -> DeviceNDArray[Any]:
    """The device array to be written, which is there."""
    source = device_view(array.gpu() if isinstance(array, SmartArray) else array)
    if source is None:
        raise TypeError(f"save() writes device arrays, not a {type(array).__name__}: that is numpy.save()")
    source.allocation.check()
    return source


def path_of(path: object) -> str:
    """The path of a file as text."""
    if isinstance(path, (str, bytes, os.PathLike)):
        return os.fsdecode(path)
    raise TypeError(f"a file is given by its path, not as a {type(path).__name__}")


# -- below -------------------------------------------------------------------------------------------------------------


def _elements(file: OpenFile, dtype: object, shape: object, offset: SupportsIndex) -> Elements:
    """Return the elements to load: as the file says, or as the caller does."""
    (start,) = integers_of((offset,), "load(offset=): an offset is a whole number of bytes")
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
            return npy.read_header(reader, file.path)
        if not start and reader.peek(len(npy.MAGIC)).startswith(npy.MAGIC):
            raise LayoutError(
                f"{file.path}: a .npy file, which says its dtype and shape by itself: leave out dtype= and shape=, or say at "
                f"which offset= its elements begin"
            )
    return Elements(dtype_of(dtype), shape_of(shape), False, start)


def _read_contiguous(array: DeviceNDArray[Any], file: OpenFile, start: int, stream: Stream, blocking: bool) -> None:
    """Copy bytes of a file to where an array has its elements."""
    opened, nbytes = array.open_device, array.nbytes
    direct, link = _direct_files(opened, nbytes), file.link()
    # A stream that is not waited for may be busy: the file is then read into slots, and the stream copies from them later.
    if direct is not None and link is not None and (blocking or _is_idle(opened, stream)):
        moved = _move_directly("h2d file direct", direct.read, link, array, file, start, stream)
        if moved < nbytes:
            raise file.too_short(start, moved, nbytes)
        return
    workers = opened.ring.workers

    def fill(block: Block, host: npt.NDArray[Any]) -> None:
        file.read(host, start + (block[0].start or 0), workers)

    opened.copies.upload_bytes("h2d file", array, fill, stream, blocking)


def _read_strided(array: DeviceNDArray[Any], file: OpenFile, start: int, strides: Shape | None, stream: Stream) -> None:
    """Copy elements of a file to an array of another order of axes, or with gaps: the file is mapped."""
    with naming(file.path):
        mapped: npt.NDArray[Any] = np.memmap(file.raw, np.uint8, "r", start, (array.nbytes,))
    elements: npt.NDArray[Any] = np.ndarray(array.shape, array.dtype, mapped, 0, strides)
    array.open_device.copies.upload(array, elements, stream, True)  # blocking: the file is the caller's again on return


def _write_contiguous(source: DeviceNDArray[Any], file: OpenFile, temporary: Path, start: int, stream: Stream) -> None:
    """Copy the bytes of a contiguous array to a file, behind its header."""
    opened = source.open_device
    direct = _direct_files(opened, source.nbytes)
    if direct is not None:
        moved = _move_directly("d2h file direct", direct.write, str(temporary), source, file, start, stream)
        if moved < source.nbytes:
            raise OSError(f"{file.path}: {moved} of {source.nbytes} bytes were written")
        return

    def store(block: Block, host: npt.NDArray[Any]) -> None:
        file.write(host, start + (block[0].start or 0))

    opened.copies.download_bytes("d2h file", source, store, stream)


def _write_strided(array: DeviceNDArray[Any], file: OpenFile, temporary: Path, start: int, stream: Stream) -> None:
    """Copy the elements of any other array to a file, which is mapped."""
    file.reserve(start + array.nbytes)
    raw: npt.NDArray[Any] = np.memmap(temporary, np.uint8, "r+", start, (array.nbytes,))
    mapped: npt.NDArray[Any] = np.ndarray(array.shape, array.dtype, raw)
    # In tiles: a copy that is too scattered for the ring goes through a host array of its size.
    limit, long = array.open_device.ring.slot_bytes, {nearest(array.shape, array.strides)}
    for tile in tiles(array.shape, array.itemsize, limit, long):
        array.open_device.copies.download(part_of(array, tile), mapped[tile], stream, True)


def _is_idle(opened: OpenDevice, stream: Stream) -> bool:
    """Whether work on the stream would begin at once: it is idle, and so is the default one, if it waits for that."""
    query, legacy = opened.handle.driver.stream_query, opened.streams.legacy
    return query(stream.handle) and (not stream.waits_for(legacy) or query(legacy.handle))


def _direct_files(opened: OpenDevice, nbytes: int) -> DirectFiles | None:
    """The library that moves so many bytes between files and the device by itself, if there is one."""
    # Races are looked for in the calls of the driver.
    if settings().races or (opened.copies.is_small(nbytes) and nbytes < SLOT_FROM):
        return None
    found = plugins.registry.direct_files(opened.handle.info.backend)
    return found if found is not None and found.unavailable() is None else None


def _move_directly(
    path: str,
    move: Callable[[str, int, int, int], int],
    name: str,
    array: DeviceNDArray[Any],
    file: OpenFile,
    start: int,
    stream: Stream,
) -> int:
    """Let a library move the bytes of a contiguous array, and count them under this path; how many it moved."""
    began = begin()
    # What the memory was before may still be in use, or what it is may be on its way. An event comes after what is on other
    # streams as work would: the default stream and those that wait for it may have none of their own.
    stream.record().synchronize()
    with naming(file.path):
        moved = move(name, start, array.ptr, array.nbytes)
    array.open_device.statistics.count(path, moved, began, array=array, stream=stream)
    return moved
