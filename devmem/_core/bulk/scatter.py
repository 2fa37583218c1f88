"""One host array cut over several devices, and put together again.

The pieces are copied in parts, as large as a device's ring, and in turns: a part of each piece, then the next part of each. So
no device waits until the whole piece of another has passed.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from itertools import islice, pairwise, zip_longest
from typing import Any, SupportsIndex

import numpy as np
import numpy.typing as npt

from ...spi.errors import DevmemError, LayoutError
from ..arrays.creation import empty, like
from ..arrays.ndarray import DeviceNDArray, device_view
from ..arrays.pinned import pinned_like
from ..base.arguments import check_destination, integer_of
from ..base.array_view import part_of
from ..base.device_handle import CurrentDevice
from ..base.layout import new_host
from ..copy.staging.blocks import blocks
from ..device.device import open_device_of
from ..device.open_device import OpenDevice
from ..interop.host_objects import host_array
from ..lifetime.allocation import StreamUse
from ..ordering.stream import Stream
from .async_copy import Transfer, copy_async

#: Downloads of each array that are begun before the first of them is waited for.
MAX_IN_FLIGHT = 4
#: An array is scattered over so many at most; a device may be named more than once.
MOST_DEVICES = 4096

Key = tuple[slice, ...]
HostArray = npt.NDArray[Any]


def scatter(array: object, devices: object, axis: SupportsIndex) -> list[DeviceNDArray[Any]]:
    """Pieces of a host array, one on each device; see `devmem.scatter`."""
    if device_view(array) is not None:
        raise TypeError(
            "scatter() cuts host arrays; a device array is cut by indexing, and a piece copied by to_device()"
        )
    source = host_array(array)
    opened_devices = [open_device_of(device) for device in _device_list(devices)]
    pieces = np.array_split(source, len(opened_devices), _axis_of("scatter", axis, source.ndim))
    notes = [
        f"scatter: piece {at} of {len(pieces)}, of shape {piece.shape} for {opened.device}"
        for at, (piece, opened) in enumerate(zip(pieces, opened_devices, strict=True))
    ]
    streams = {opened: opened.streams.stream_of(0) for opened in opened_devices}
    made: list[DeviceNDArray[Any]] = []
    try:
        for opened, stream in streams.items():
            with CurrentDevice(opened.handle):
                stream.check_waitable()
        for piece, opened, note in zip(pieces, opened_devices, notes, strict=True):
            with _noting(note):
                made.append(empty(opened, *like(piece), 0))
        for at, key in _in_turns(pieces, opened_devices):
            with _noting(notes[at]):
                _upload_part(made[at], pieces[at], key, streams[opened_devices[at]])
        for opened, stream in streams.items():
            with _noting(f"scatter: copies to {opened.device}"):
                stream.synchronize()
    except BaseException:
        for each in made:
            each.allocation.discard()
        raise
    return made


def gather(arrays: object, axis: SupportsIndex, out: HostArray | None, pinned: bool) -> HostArray:
    """The elements of device arrays in one host array; see `devmem.gather`."""
    views = _device_arrays(arrays)
    first = views[0]
    along = _axis_of("gather", axis, first.ndim)
    ends = [0]
    for at, view in enumerate(views):
        _check_fits(at, view, first, along)
        ends.append(ends[-1] + view.shape[along])
    shape = (*first.shape[:along], ends[-1], *first.shape[along + 1 :])
    if out is not None:
        if pinned:
            raise LayoutError("gather(pinned=True) makes a new array: leave out= out")
        target = check_destination(out, shape, first.dtype, "gather(out=)")
    else:
        out = target = (
            pinned_like(first.open_device, shape, first.dtype, None) if pinned else new_host(shape, first.dtype)
        )
    before: Key = (slice(None),) * along
    _download(views, [target[(*before, slice(start, end))] for start, end in pairwise(ends)])
    return out


# -- below -------------------------------------------------------------------------------------------------------------


def _upload_part(array: DeviceNDArray[Any], piece: HostArray, key: Key, stream: Stream) -> None:
    with CurrentDevice(array.open_device.handle), StreamUse(stream, array.allocation):
        array.open_device.copies.upload(part_of(array, key), piece[key], stream, False)


def _download(views: list[DeviceNDArray[Any]], targets: list[HostArray]) -> None:
    """Copy device arrays into host arrays, all devices at once."""
    in_flight: deque[tuple[int, Transfer[Any]]] = deque()

    def wait_for_oldest() -> None:
        at, oldest = in_flight[0]
        with _noting(_gather_note(at, views)):
            oldest.wait()
        in_flight.popleft()  # not before: interrupted, it is still in flight

    try:
        for at, key in _in_turns(targets, [view.open_device for view in views]):
            with _noting(_gather_note(at, views)):
                in_flight.append((at, copy_async(views[at][key], targets[at][key], None, None)))
            if len(in_flight) > MAX_IN_FLIGHT * len(views):
                wait_for_oldest()
        while in_flight:
            wait_for_oldest()
    except BaseException:
        for _, each in in_flight:  # after this nothing may be written to the caller's array
            with suppress(Exception):
                each.wait()
        raise


def _in_turns(arrays: Sequence[HostArray], opened_devices: Sequence[OpenDevice]) -> Iterator[tuple[int, Key]]:
    """Parts of host arrays, of each array in turn: the number of the array, and the index of the part."""
    parts = [_parts(array, opened) for array, opened in zip(arrays, opened_devices, strict=True)]
    for turn in zip_longest(*parts):
        for at, key in enumerate(turn):
            if key is not None:
                yield at, key


def _parts(array: HostArray, opened: OpenDevice) -> Iterator[Key]:
    if not array.nbytes:
        return
    ring = opened.ring
    axes = sorted(range(array.ndim), key=lambda axis: -abs(array.strides[axis]))
    shape = tuple(array.shape[axis] for axis in axes)
    for block in blocks(shape, array.itemsize, ring.slot_bytes * max(ring.slot_limit, 1)):
        key = dict(zip(axes, block, strict=True))
        yield tuple(key[axis] for axis in range(array.ndim))


def _device_list(devices: object) -> list[Any]:
    if isinstance(devices, (str, bytes)) or not hasattr(devices, "__iter__"):
        raise TypeError(f"scatter() takes a list of devices, not {devices!r}")
    listed = list(islice(devices, MOST_DEVICES + 1))  # there may be no end of them
    if not 0 < len(listed) <= MOST_DEVICES:
        number = f"more than {MOST_DEVICES:,} devices" if listed else "no device"
        raise LayoutError(f"scatter() over {number}: give a list of one or more")
    return listed


def _device_arrays(arrays: object) -> list[DeviceNDArray[Any]]:
    if device_view(arrays) is not None or not hasattr(arrays, "__iter__"):
        raise TypeError(f"gather() takes a list of device arrays, not a {type(arrays).__name__}")
    views: list[DeviceNDArray[Any]] = []
    for at, each in enumerate(arrays):
        view = device_view(each)
        if view is None:
            raise TypeError(f"gather: array {at} is no device array but a {type(each).__name__}")
        views.append(view)
    for at, view in enumerate(views):
        with _noting(_gather_note(at, views)):
            view.allocation.check()
    if not views:
        raise LayoutError("gather() of no arrays: give one or more")
    return views


def _check_fits(at: int, view: DeviceNDArray[Any], first: DeviceNDArray[Any], axis: int) -> None:
    if view.dtype != first.dtype:
        raise LayoutError(
            f"gather: array {at} has dtype {view.dtype}, array 0 {first.dtype}: convert one of them first"
        )
    if view.ndim != first.ndim or np.delete(view.shape, axis).tolist() != np.delete(first.shape, axis).tolist():
        raise LayoutError(
            f"gather: array {at} has shape {view.shape}, array 0 {first.shape}: they may differ along axis {axis} only"
        )


def _axis_of(what: str, axis: SupportsIndex, ndim: int) -> int:
    number = integer_of(axis, f"{what}(axis=) is an integer")
    if not ndim:
        raise LayoutError(f"{what}: an array without axes cannot be cut, nor be made of pieces")
    if not -ndim <= number < ndim:
        raise LayoutError(f"{what}(axis={number}): the array has axes {-ndim} to {ndim - 1}")
    return number % ndim


def _gather_note(at: int, views: list[DeviceNDArray[Any]]) -> str:
    return f"gather: array {at} of {len(views)}, of shape {views[at].shape} on {views[at].device}"


@contextmanager
def _noting(note: str) -> Iterator[None]:
    """Add a note to an error."""
    try:
        yield
    except DevmemError as error:
        error.add_note(note)
        raise
