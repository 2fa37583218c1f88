"""One host array cut over several devices, and put together again."""

from __future__ import annotations

import operator
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from itertools import pairwise, zip_longest
from typing import TYPE_CHECKING, Any, cast

import numpy as np
import numpy.typing as npt

from ...spi.errors import DevmemError, LayoutError
from ..arrays.creation import empty, like
from ..arrays.ndarray import DeviceNDArray, device_view
from ..arrays.pinned import pinned_like
from ..base.arguments import check_destination, host_array
from ..base.array_view import part_of
from ..base.device_handle import CurrentDevice
from ..copy.staging.blocks import blocks
from ..device.device import open_device_of
from ..lifetime.allocation import StreamUse
from . import async_copy

if TYPE_CHECKING:
    from ..device.open_device import OpenDevice
    from ..ordering.stream import Stream

#: Downloads that are begun before the first of them is waited for, for each array.
UNDER_WAY = 4

Key = tuple[slice, ...]


def scatter(array: Any, devices: Any, axis: Any) -> list[DeviceNDArray[Any]]:
    """Pieces of a host array, one on each device; see `devmem.scatter`."""
    if device_view(array) is not None:
        raise TypeError(
            "scatter() cuts host arrays; a device array is cut by indexing, and a piece copied by to_device()"
        )
    source = host_array(array)
    opened_devices = [open_device_of(device) for device in _listed(devices)]
    pieces = np.array_split(source, len(opened_devices), _axis_of("scatter", axis, source.ndim))
    streams = {opened: opened.streams.stream_of(0) for opened in opened_devices}
    made: list[DeviceNDArray[Any]] = []
    try:
        for opened, stream in streams.items():
            with CurrentDevice(opened.handle):
                stream.check_waitable()
        for at, (piece, opened) in enumerate(zip(pieces, opened_devices, strict=True)):
            with _naming("scatter", "piece", at, len(pieces), f"of shape {piece.shape} for {opened.device}"):
                made.append(empty(opened, *like(piece), 0))
        for at, key in _in_turns(pieces, opened_devices):
            piece, opened = pieces[at], opened_devices[at]
            with _naming("scatter", "piece", at, len(pieces), f"of shape {piece.shape} for {opened.device}"):
                _write(made[at], piece, key, streams[opened])
        for opened, stream in streams.items():
            with _naming("scatter", "copies", None, 0, f"to {opened.device}"):
                stream.synchronize()
    except BaseException:
        for each in made:
            each.allocation.discard()
        raise
    return made


def gather(arrays: Any, axis: Any, out: Any, pinned: bool) -> npt.NDArray[Any]:
    """The elements of device arrays in one host array; see `devmem.gather`."""
    views = _device_arrays(arrays)
    first = views[0]
    along = _axis_of("gather", axis, first.ndim)
    for at, view in enumerate(views):
        _check_fits(at, view, first, along)
    ends = [0]
    for view in views:
        ends.append(ends[-1] + view.shape[along])
    shape = (*first.shape[:along], ends[-1], *first.shape[along + 1 :])
    if out is not None:
        if pinned:
            raise LayoutError("gather(pinned=True) makes a new array: leave out= out")
        check_destination(out, shape, first.dtype, "gather(out=)")
    else:
        out = pinned_like(first.open_device, shape, first.dtype, None) if pinned else np.empty(shape, first.dtype)
    before: Key = (slice(None),) * along
    rooms = [out[(*before, slice(start, end))] for start, end in pairwise(ends)]
    _fetch(views, rooms)
    return cast("npt.NDArray[Any]", out)


# -- below -------------------------------------------------------------------------------------------------------------


def _fetch(views: list[DeviceNDArray[Any]], rooms: list[npt.NDArray[Any]]) -> None:
    """Copy device arrays into host arrays, all devices at once."""
    under_way: deque[tuple[int, async_copy.Transfer]] = deque()

    def wait() -> None:
        at, oldest = under_way[0]
        with _naming("gather", "array", at, len(views), f"of shape {views[at].shape} on {views[at].device}"):
            oldest.wait()
        under_way.popleft()  # not before: interrupted, it is still under way

    try:
        for at, key in _in_turns(rooms, [view.open_device for view in views]):
            with _naming("gather", "array", at, len(views), f"of shape {views[at].shape} on {views[at].device}"):
                under_way.append((at, async_copy.copy_async(views[at][key], rooms[at][key], None, None)))
            if len(under_way) > UNDER_WAY * len(views):
                wait()
        while under_way:
            wait()
    except BaseException:
        for _, each in under_way:  # nobody may write to the caller's array after this
            with suppress(Exception):
                each.wait()
        raise


def _write(array: DeviceNDArray[Any], piece: npt.NDArray[Any], key: Key, stream: Stream) -> None:
    with CurrentDevice(array.open_device.handle), StreamUse(stream, array.allocation):
        array.open_device.copies.upload(part_of(array, key), piece[key], stream, False)


def _in_turns(arrays: Sequence[npt.NDArray[Any]], opened_devices: Sequence[OpenDevice]) -> Iterator[tuple[int, Key]]:
    """Parts of host arrays, as large as a device's ring: of each array in turn, so that no device waits until others are done."""
    parts = [_parts(array, opened) for array, opened in zip(arrays, opened_devices, strict=True)]
    for turn in zip_longest(*parts):
        for at, key in enumerate(turn):
            if key is not None:
                yield at, key


def _parts(array: npt.NDArray[Any], opened: OpenDevice) -> Iterator[Key]:
    if not array.nbytes:
        return
    ring = opened.ring
    axes = sorted(range(array.ndim), key=lambda axis: -abs(array.strides[axis]))
    shape = tuple(array.shape[axis] for axis in axes)
    for block in blocks(shape, array.itemsize, ring.slot_bytes * max(ring.slot_limit, 1)):
        key = dict(zip(axes, block, strict=True))
        yield tuple(key[axis] for axis in range(array.ndim))


def _listed(devices: Any) -> list[Any]:
    if isinstance(devices, (str, bytes)) or not hasattr(devices, "__iter__"):
        raise TypeError(f"scatter() takes a list of devices, not {devices!r}")
    listed = list(devices)
    if not listed:
        raise LayoutError("scatter() over no device: give a list of one or more")
    return listed


def _device_arrays(arrays: Any) -> list[DeviceNDArray[Any]]:
    if device_view(arrays) is not None or not hasattr(arrays, "__iter__"):
        raise TypeError(f"gather() takes a list of device arrays, not a {type(arrays).__name__}")
    views = []
    listed = list(arrays)
    for at, each in enumerate(listed):
        view = device_view(each)
        if view is None:
            raise TypeError(f"gather: array {at} is no device array but a {type(each).__name__}")
        with _naming("gather", "array", at, len(listed), f"of shape {view.shape} on {view.device}"):
            view.allocation.check()
        views.append(view)
    if not views:
        raise LayoutError("gather() of no arrays: give one or more")
    return views


def _check_fits(at: int, view: DeviceNDArray[Any], first: DeviceNDArray[Any], axis: int) -> None:
    if view.dtype != first.dtype:
        raise LayoutError(
            f"gather: array {at} has dtype {view.dtype}, array 0 {first.dtype}: convert one of them first"
        )
    fits = view.ndim == first.ndim and all(
        one == other for along, (one, other) in enumerate(zip(view.shape, first.shape, strict=True)) if along != axis
    )
    if not fits:
        raise LayoutError(
            f"gather: array {at} has shape {view.shape}, array 0 {first.shape}: they may differ along axis {axis} only"
        )


def _axis_of(what: str, axis: Any, ndim: int) -> int:
    number = operator.index(axis)
    if not ndim:
        raise LayoutError(f"{what}: an array without axes cannot be cut, nor be made of pieces")
    if not -ndim <= number < ndim:
        raise LayoutError(f"{what}(axis={number}): the array has axes {-ndim} to {ndim - 1}")
    return number % ndim


@contextmanager
def _naming(what: str, part: str, at: int | None, count: int, facts: str) -> Iterator[None]:
    """Errors tell the part that they are about."""
    try:
        yield
    except DevmemError as error:
        error.add_note(f"{what}: {part} {facts}" if at is None else f"{what}: {part} {at} of {count}, {facts}")
        raise
