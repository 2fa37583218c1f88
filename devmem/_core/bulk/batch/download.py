"""Device arrays to the host: one copy for all that are small."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from itertools import accumulate
from math import prod
from operator import add
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from ....spi.errors import DevmemError, OutOfMemory
from ....spi.types import CopyKind
from ...arrays.ndarray import DeviceNDArray, DeviceRecord, device_view
from ...arrays.pinned import pinned_like
from ...base.address import address
from ...base.array_view import ArrayView
from ...base.device_handle import CurrentDevice
from ...base.layout import Shape, like_strides, span
from ...lifetime.allocation import StreamUse
from .submit_many import copy_many
from .pack import steps
from .tree import Tree, flatten, path, paths, rebuild

if TYPE_CHECKING:
    from ...device.open_device import OpenDevice
    from ...ordering.stream import Stream

#: Arrays of so many bytes are copied on their own: nothing is saved by putting them into one block before.
LARGE = 256 << 10
#: How many times the wanted bytes a block may have, to be fetched whole.
DENSE = 2
#: What the addresses of new host memory are multiples of, at least; no element needs more.
ALIGNED = 16

Arrays = list[DeviceNDArray[Any]]
D2H, D2D = CopyKind.D2H, CopyKind.D2D
_BYTE = np.dtype(np.uint8)


def download_many(tree: Tree, stream: Any, pinned: bool) -> Tree:
    """The same structure with host arrays; see `devmem.to_host_many`."""
    leaves, classes, flat = flatten(tree)
    views: list[Any] = leaves
    if classes != {DeviceNDArray}:
        views = [leaf if type(leaf) is DeviceNDArray else device_view(leaf) for leaf in leaves]
    numbers = [at for at, view in enumerate(views) if view is not None]
    arrays: Arrays = [views[at] for at in numbers]
    blocks = {id(array.allocation): array.allocation for array in arrays}.values()
    for block in blocks:
        try:
            block.check()
        except DevmemError as error:
            at = next(at for at in numbers if views[at].allocation is block)
            error.add_note(f"to_host_many: {path(tree, at)}")
            raise
    opened_devices = dict.fromkeys(array.open_device for array in arrays)
    found = list(leaves)
    for opened in opened_devices:
        if len(opened_devices) > 1:
            numbers = [at for at, view in enumerate(views) if view is not None and view.open_device is opened]
            arrays = [views[at] for at in numbers]
        where = partial(_where, tree, numbers)
        for at, host in zip(numbers, _downloaded(opened, arrays, stream, pinned, where), strict=True):
            found[at] = host[()] if isinstance(leaves[at], DeviceRecord) else host
    return found if flat else rebuild(tree, iter(found))


def _downloaded(
    opened: OpenDevice, arrays: Arrays, on: Any, pinned: bool, where: Callable[[Sequence[int]], str]
) -> list[npt.NDArray[Any]]:
    """Host arrays of arrays of one device. ``where`` says of some of them where they are in the tree."""
    stream = opened.streams.stream_of(on)
    sizes = [prod(array._shape) * array._dtype.itemsize for array in arrays]
    under_way: Sequence[int] = range(len(arrays))
    with CurrentDevice(opened.handle):
        stream.check_waitable()
        for bound in {array._stream for array in arrays} - {None, stream}:
            assert bound is not None
            stream.wait(bound)
        try:
            if max(sizes) < LARGE:
                return _fetched(opened, arrays, sizes, stream, pinned)
            under_way = small = [at for at, nbytes in enumerate(sizes) if nbytes < LARGE]
            fetched = _fetched(opened, [arrays[at] for at in small], [sizes[at] for at in small], stream, pinned)
            found = dict(zip(small, fetched, strict=True))
            for at, array in enumerate(arrays):
                if at not in found:
                    under_way = [at]
                    found[at] = array.bind(stream).copy_to_host(pinned=pinned)
        except Exception as error:
            error.add_note(f"to_host_many: {where(under_way)}")
            raise
    return [found[at] for at in range(len(arrays))]


def _where(tree: Tree, numbers: Sequence[int], under_way: Sequence[int]) -> str:
    return paths(tree, [numbers[at] for at in under_way])


def _fetched(
    opened: OpenDevice, arrays: Arrays, sizes: list[int], stream: Stream, pinned: bool
) -> list[npt.NDArray[Any]]:
    """Host arrays of small device arrays, views of one buffer: their block as it is, or one that they are put into."""
    wanted = steps(sizes, set(sizes))
    total = sum(wanted)
    if not total:
        return [np.empty(array._shape, array._dtype) for array in arrays]
    blocks = {id(array.allocation): array.allocation for array, nbytes in zip(arrays, sizes, strict=True) if nbytes}
    strided = [at for at, array in enumerate(arrays) if array._strides is not None and sizes[at]]
    if len(blocks) == 1:
        low, high = _reach(arrays, sizes, strided)
        if high - low <= DENSE * total:
            [block] = blocks.values()
            low = max(low - low % ALIGNED, min(low, block.ptr))  # so that elements stay aligned in the host's buffer
            host = _room(opened, high - low, pinned)
            with StreamUse(stream, block):
                _read(opened, low, host, stream)
            places = [array._ptr - low for array in arrays]
            return _views(host, arrays, places, {at: arrays[at].strides for at in strided})
    places = [*accumulate(wanted, initial=0)][:-1]
    layouts = {at: like_strides(arrays[at].shape, arrays[at].strides, arrays[at].itemsize) for at in strided}
    host = _room(opened, total, pinned)
    with StreamUse(stream, *blocks.values()):
        # Where pageable memory is as good as any, nothing is put into a block on the way.
        gather = _gathered if opened.handle.info.staging_threshold else _one_by_one
        return gather(opened, arrays, sizes, places, layouts, host, stream)


def _one_by_one(
    opened: OpenDevice,
    arrays: Arrays,
    sizes: list[int],
    places: list[int],
    layouts: dict[int, Shape],
    host: npt.NDArray[Any],
    stream: Stream,
) -> list[npt.NDArray[Any]]:
    """Copy each array to its place in a host buffer."""
    views = _views(host, arrays, places, layouts)
    for at in layouts:
        opened.copies.download(arrays[at], views[at], stream, True)
    _copy_whole(opened, address(host), arrays, sizes, places, layouts, D2H, stream, host)
    opened.handle.driver.stream_synchronize(stream.handle)
    return views


def _gathered(
    opened: OpenDevice,
    arrays: Arrays,
    sizes: list[int],
    places: list[int],
    layouts: dict[int, Shape],
    host: npt.NDArray[Any],
    stream: Stream,
) -> list[npt.NDArray[Any]]:
    """Put the arrays into one block on the device, and fetch that; where there is no room for it, each on its own."""
    try:
        block = opened.memory.allocate(host.nbytes, stream, False)
    except OutOfMemory:  # no other copy to the host has to have memory of the device
        views = _views(host, arrays, places, layouts)
        for array, view in zip(arrays, views, strict=True):
            opened.copies.download(array, view, stream, True)
        return views
    try:
        with StreamUse(stream, block):
            for at, strides in layouts.items():
                array, ptr = arrays[at], block.ptr + places[at]
                packed: ArrayView[Any] = ArrayView(ptr, array._shape, array._dtype, strides)
                opened.copies.place(packed, array, stream, False)
            _copy_whole(opened, block.ptr, arrays, sizes, places, layouts, D2D, stream)
            _read(opened, block.ptr, host, stream)
    finally:
        block.discard()
    return _views(host, arrays, places, layouts)


def _copy_whole(
    opened: OpenDevice,
    base: int,
    arrays: Arrays,
    sizes: list[int],
    places: list[int],
    layouts: dict[int, Shape],
    kind: CopyKind,
    stream: Stream,
    *keep: object,
) -> None:
    """Enqueue copies of those that are runs of bytes."""
    whole = [at for at, nbytes in enumerate(sizes) if nbytes and at not in layouts]
    if whole:
        dsts, srcs = [base + places[at] for at in whole], [arrays[at]._ptr for at in whole]
        copy_many(opened, dsts, srcs, [sizes[at] for at in whole], kind, stream, keep)


def _reach(arrays: Arrays, sizes: list[int], strided: list[int]) -> tuple[int, int]:
    """Addresses of the lowest byte of all arrays and of the byte behind the highest; empty ones are nowhere."""
    ptrs = [array._ptr for array in arrays]
    if strided or 0 in sizes:
        reaches = [span(array.shape, array.strides, array.itemsize) for array in arrays]
        ends = [(ptr + low, ptr + high) for ptr, (low, high) in zip(ptrs, reaches, strict=True) if low != high]
        return min(low for low, _ in ends), max(high for _, high in ends)
    return min(ptrs), max(map(add, ptrs, sizes))


def _room(opened: OpenDevice, nbytes: int, pinned: bool) -> npt.NDArray[Any]:
    return pinned_like(opened, (nbytes,), _BYTE, None) if pinned else np.empty(nbytes, _BYTE)


def _read(opened: OpenDevice, low: int, host: npt.NDArray[Any], stream: Stream) -> None:
    opened.copies.download(ArrayView(low, host.shape, host.dtype), host, stream, True)


def _views(
    host: npt.NDArray[Any], arrays: Arrays, places: list[int], layouts: dict[int, Shape]
) -> list[npt.NDArray[Any]]:
    """Arrays like these in a buffer, at these places; C-contiguous, where no strides are said."""
    make = type(host)
    if layouts or any(0 in array._shape or not array._dtype.itemsize for array in arrays):
        return [
            np.empty(array._shape, array._dtype)
            if 0 in array._shape or not array._dtype.itemsize
            else make(array._shape, array._dtype, host, place, layouts.get(at))
            for at, (array, place) in enumerate(zip(arrays, places, strict=True))
        ]
    return [make(array._shape, array._dtype, host, at) for array, at in zip(arrays, places, strict=True)]
