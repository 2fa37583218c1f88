"""Many arrays in one go: one block of device memory, one copy for all the small ones."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from math import prod
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from ..spi.errors import LayoutError
from ..spi.types import CopyKind
from . import transfer
from .allocation import Allocation, Using
from .args import host_array
from .array import DeviceNDArray, device_view
from .device import context_of
from .entered import Entered
from .layout import Shape, like_strides, span
from .upload import to_device

if TYPE_CHECKING:
    from .context import Context
    from .stream import Stream

#: Each array begins at a multiple of this in the block, as arrays of their own do.
ALIGNMENT = 256
#: Arrays of so many bytes are copied from where they are: to gather them would take longer than a call more.
LARGE = 256 << 10
#: How many times the wanted bytes a block may have, to be fetched whole.
DENSE = 2

Tree = Any
_new = object.__new__
D2D = CopyKind.D2D


def upload_many(tree: Tree, stream: Any, device: Any) -> Tree:
    """The same structure with device arrays; see `devmem.to_device_many`."""
    context = context_of(device)
    chosen = context.stream_of(stream)
    leaves: list[Any] = []
    _flatten(tree, leaves)
    there = _already_there(tree, leaves, stream, context)
    order = list(range(len(leaves))) if not there else [at for at in range(len(leaves)) if at not in there]
    sources: list[npt.NDArray[Any]] = leaves if not there else [leaves[at] for at in order]
    sizes = [source.nbytes for source in sources]
    if max(sizes, default=0) >= LARGE:  # these are copied from where they are, and stand behind the others
        ranks = sorted(range(len(sources)), key=lambda rank: sizes[rank] >= LARGE)
        order, sources = [order[rank] for rank in ranks], [sources[rank] for rank in ranks]
        sizes = [sizes[rank] for rank in ranks]
    bound = chosen if stream else None
    total = sum([_aligned(nbytes) for nbytes in sizes])
    with Entered(context) as driver:
        if bound is None:
            chosen.check_waitable(driver)
        block = context.allocate(total, chosen, bound is None) if total else None
        try:
            arrays = _arrays(context, block, sources, sizes, chosen, bound)
            if block is not None:
                with Using(chosen, block):
                    _fill(block, sources, sizes, arrays, chosen)
                if bound is None:
                    driver.stream_synchronize(chosen.handle)
        except BaseException:
            if block is not None:
                block.discard()
            raise
    if order != sorted(order) or there:
        there.update(zip(order, arrays, strict=True))
        arrays = [there[at] for at in range(len(leaves))]
    return _rebuild(tree, iter(arrays))


def download_many(tree: Tree, stream: Any) -> Tree:
    """The same structure with host arrays; see `devmem.to_host_many`."""
    leaves: list[Any] = []
    _flatten(tree, leaves)
    groups: dict[Context, list[tuple[int, DeviceNDArray[Any]]]] = {}
    for at, leaf in enumerate(leaves):
        array = leaf if type(leaf) is DeviceNDArray else device_view(leaf)
        if array is not None:
            array.allocation.check()
            groups.setdefault(array.allocation.context, []).append((at, array))
    for context, arrays in groups.items():
        chosen = context.stream_of(stream)
        with Entered(context) as driver:
            chosen.check_waitable(driver)
            for bound in {array._stream for _, array in arrays} - {None, chosen}:
                assert bound is not None
                chosen.wait(bound)
            small: list[tuple[int, DeviceNDArray[Any], int]] = []
            for at, array in arrays:
                nbytes = prod(array._shape) * array._dtype.itemsize
                if nbytes < LARGE:
                    small.append((at, array, nbytes))
                else:
                    leaves[at] = array.copy_to_host(stream=chosen)
                    driver.stream_synchronize(chosen.handle)
            fetched = _fetched(context, [array for _, array, _ in small], [nbytes for *_, nbytes in small], chosen)
            for (at, *_), host in zip(small, fetched, strict=True):
                leaves[at] = host
    return _rebuild(tree, iter(leaves))


def _aligned(nbytes: int) -> int:
    return (nbytes + ALIGNMENT - 1) // ALIGNMENT * ALIGNMENT


# -- trees -------------------------------------------------------------------------------------------------------------


def _flatten(tree: Tree, leaves: list[Any]) -> None:
    """Put the leaves of a tree into a list, in order."""
    if not isinstance(tree, (list, tuple, dict)):
        leaves.append(tree)
        return
    for item in tree.values() if isinstance(tree, dict) else tree:
        if type(item) is np.ndarray:
            leaves.append(item)
        else:
            _flatten(item, leaves)


def _rebuild(tree: Tree, leaves: Iterator[Any]) -> Tree:
    """The same structure with other leaves."""
    if isinstance(tree, dict):
        made = {} if type(tree) is dict else tree.copy()  # keeps what its class has besides, a default_factory say
        for key, value in tree.items():
            made[key] = _rebuild(value, leaves)
        return made
    if not isinstance(tree, (list, tuple)):
        return next(leaves)
    items = [next(leaves) if type(item) is np.ndarray else _rebuild(item, leaves) for item in tree]
    if type(tree) is list:
        return items
    return type(tree)(*items) if hasattr(tree, "_fields") else type(tree)(items)


def _path(tree: Tree, number: int) -> str:
    """Where a leaf is."""

    def walk(tree: Tree, path: str) -> Iterator[str]:
        if isinstance(tree, (list, tuple, dict)):
            for key, item in tree.items() if isinstance(tree, dict) else enumerate(tree):
                yield from walk(item, f"{path}[{key!r}]")
        else:
            yield path

    return next(islice(walk(tree, "tree"), number, None))


# -- up ----------------------------------------------------------------------------------------------------------------


def _already_there(tree: Tree, leaves: list[Any], stream: Any, context: Context) -> dict[int, Any]:
    """The leaves that are device arrays, of any library, by their number, on this device; all others become ndarrays in place."""
    there: dict[int, Any] = {}
    for at, leaf in enumerate(leaves):
        if type(leaf) is not np.ndarray or leaf.dtype.hasobject:
            try:
                if isinstance(leaf, DeviceNDArray) or device_view(leaf) is not None:
                    there[at] = to_device(leaf, stream, True, None, context.device)
                else:
                    leaves[at] = host_array(leaf)
            except (TypeError, LayoutError) as error:
                raise type(error)(f"{_path(tree, at)}: {error}") from None
    return there


def _arrays(
    context: Context,
    block: Allocation | None,
    sources: list[npt.NDArray[Any]],
    sizes: list[int],
    chosen: Stream,
    bound: Stream | None,
) -> list[Any]:
    """Device arrays for the elements of host arrays, one behind the other in the block."""
    arrays = []
    ptr = 0 if block is None else block.ptr
    for source, nbytes in zip(sources, sizes, strict=True):
        array: DeviceNDArray[Any] = _new(DeviceNDArray)
        # What DeviceNDArray(...) does, without the call: most of what an array of a few bytes takes.
        array.allocation = block if block is not None and nbytes else Allocation(context, context.heap, 0, 0, chosen)
        array._ptr = ptr if nbytes else 0
        array._shape = source.shape
        array._dtype = source.dtype
        array._strides = None
        array._stream = bound
        if nbytes and not source.flags.c_contiguous:
            array._strides = like_strides(source.shape, source.strides, source.itemsize)
        arrays.append(array)
        ptr += (nbytes + ALIGNMENT - 1) // ALIGNMENT * ALIGNMENT
    return arrays


def _fill(
    block: Allocation, sources: list[npt.NDArray[Any]], sizes: list[int], arrays: list[Any], stream: Stream
) -> None:
    """Copy the small ones, which come first, together, and the others one by one."""
    small = next((at for at, nbytes in enumerate(sizes) if nbytes >= LARGE), len(sizes))
    joined = _joined(sources[:small], sizes[:small])
    if joined:
        packed = np.frombuffer(joined, np.uint8)
        together: DeviceNDArray[Any] = DeviceNDArray(block, block.ptr, packed.shape, packed.dtype, None)
        transfer.write(together, packed, stream, blocking=False)
    for source, array in zip(sources[small:], arrays[small:], strict=True):
        transfer.write(array, source, stream, blocking=False)


def _joined(leaves: list[npt.NDArray[Any]], sizes: list[int]) -> bytes:
    """All elements, with the gaps that their places in the block leave between them."""
    leaves = [leaf if leaf.flags.c_contiguous else _packed(leaf) for leaf in leaves]
    pieces: list[Any] = leaves
    gaps = [-nbytes % ALIGNMENT for nbytes in sizes]
    if any(gaps):
        pieces = [piece for leaf, gap in zip(leaves, gaps, strict=True) for piece in (leaf, bytes(gap))]
    try:
        return b"".join(pieces)
    except (BufferError, ValueError, TypeError):  # types that have no buffer: datetimes, and those of extensions
        return b"".join(piece if isinstance(piece, bytes) else piece.reshape(-1).view(np.uint8) for piece in pieces)


def _packed(array: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """The elements one behind the other, in the order in which the device has them."""
    strides = like_strides(array.shape, array.strides, array.itemsize)
    axes = sorted(range(array.ndim), key=lambda axis: -strides[axis])
    return np.ascontiguousarray(array.transpose(axes))


# -- down --------------------------------------------------------------------------------------------------------------


def _fetched(
    context: Context, arrays: list[DeviceNDArray[Any]], sizes: list[int], stream: Stream
) -> list[npt.NDArray[Any]]:
    """Host arrays of device arrays, by one copy: of the block that they lie in, or of one that they are put into first."""
    blocks = {id(array.allocation): array.allocation for array, nbytes in zip(arrays, sizes, strict=True) if nbytes}
    wanted = sum([_aligned(nbytes) for nbytes in sizes])
    if len(blocks) == 1:
        [block] = blocks.values()
        reaches = [_reach(array, nbytes) for array, nbytes in zip(arrays, sizes, strict=True) if nbytes]
        low, high = min([first for first, _ in reaches]), max([end for _, end in reaches])
        if high - low <= DENSE * wanted:
            with Using(stream, block):
                host = _host_bytes(block, low, high - low, stream)
            return _views(host, arrays, [(array._ptr - low, array._strides) for array in arrays])
    if not blocks:
        return _views(np.empty(0, np.uint8), arrays, [(0, None)] * len(arrays))
    gathered = context.allocate(wanted, stream, False)
    try:
        with Using(stream, gathered, *blocks.values()):
            offset, places = 0, list[tuple[int, Shape | None]]()
            copy, handle = context.driver.copy, stream.handle
            for array, nbytes in zip(arrays, sizes, strict=True):
                to = gathered.ptr + offset
                strides = array._strides
                if strides is None and nbytes:
                    copy(to, array._ptr, nbytes, D2D, handle, blocking=False)
                elif nbytes:
                    strides = like_strides(array._shape, strides or array.strides, array.itemsize)
                    packed: DeviceNDArray[Any] = DeviceNDArray(gathered, to, array._shape, array._dtype, strides)
                    transfer.move(packed, array, stream, blocking=False)
                places.append((offset, strides))
                offset += _aligned(nbytes)
            host = _host_bytes(gathered, gathered.ptr, offset, stream)
    finally:
        gathered.discard()
    return _views(host, arrays, places)


def _reach(array: DeviceNDArray[Any], nbytes: int) -> tuple[int, int]:
    strides = array._strides
    if strides is None:
        return array._ptr, array._ptr + nbytes
    low, high = span(array._shape, strides, array._dtype.itemsize)
    return array._ptr + low, array._ptr + high


def _host_bytes(block: Allocation, low: int, nbytes: int, stream: Stream) -> npt.NDArray[Any]:
    host = np.empty(nbytes, np.uint8)
    transfer.read(DeviceNDArray(block, low, host.shape, host.dtype, None), host, stream, blocking=True)
    return host


def _views(
    host: npt.NDArray[Any], arrays: list[DeviceNDArray[Any]], places: list[tuple[int, Shape | None]]
) -> list[npt.NDArray[Any]]:
    return [
        np.empty(array._shape, array._dtype)
        if 0 in array._shape or not array._dtype.itemsize
        else np.ndarray(array._shape, array._dtype, host, offset, strides)
        for array, (offset, strides) in zip(arrays, places, strict=True)
    ]
