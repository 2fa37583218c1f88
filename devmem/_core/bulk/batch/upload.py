"""Host arrays to a device: one block of memory for all, and few copies.

Arrays that are small are packed on the host and copied together. Larger ones are copied from where they are: page-locked ones
by one call of the driver, where it copies several at once, and those whose rows lie apart by another. Of the others, those that
have to be gathered are packed up to a larger size, and the rest is copied one by one.
Arrays that are copied alike lie side by side in the block.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import IntEnum
from itertools import accumulate
from operator import add, attrgetter
from typing import Any

import numpy as np
import numpy.typing as npt

from ...._native import core
from ....spi.errors import LayoutError
from ....spi.types import Box, CopyKind
from ...arrays.creation import to_device
from ...arrays.ndarray import DeviceNDArray, DeviceRecord, device_view
from ...arrays.pinned import PinnedNDArray
from ...base.address import address, addresses, extent
from ...base.array_view import ArrayView
from ...base.device_handle import CurrentDevice
from ...base.layout import like_strides
from ...base.rows import rows
from ...copy.host_memory import HostMemory, host_memory_of
from ...copy.plan import against_rows
from ...device.device import open_device_of
from ...device.open_device import OpenDevice
from ...interop.host_objects import host_array
from ...lifetime.allocation import Allocation, StreamUse
from ...ordering.event import StreamLike
from ...ordering.stream import Stream
from .pack import aligned_sizes, groups, join
from .submit_many import copy_boxes, copy_many
from .tree import Tree, flatten, path, paths, rebuild

#: Arrays of so many bytes are copied from where they are: packing moves them once more, which takes longer than a call of the
#: driver for each, or than a place in its batch.
LARGE = 32 << 10

#: The same of arrays that are not contiguous and that no batch takes: from there a call for each takes no longer than packing.
LARGE_STRIDED = 128 << 10

#: The most page-locked arrays that one call of the driver is given: the device copies them while the next call is prepared.
TOGETHER = 2048

_nbytes, _dtype = attrgetter("nbytes"), attrgetter("dtype")


class _Route(IntEnum):
    """The way of an array to the device."""

    PACKED = 0
    BATCHED = 1
    ROWS = 2
    SINGLE = 3


def upload_many(tree: Tree, stream: StreamLike, device: object) -> Tree:
    """The same structure with device arrays; see `devmem.to_device_many`."""
    opened = open_device_of(device)
    chosen = opened.streams.stream_of(stream)
    leaves, classes, flat = flatten(tree)
    records = _records(leaves, classes)
    found = _device_arrays(tree, leaves, classes, stream, opened)
    with CurrentDevice(opened.handle):
        if not stream:
            chosen.check_waitable()
        numbers = [at for at in range(len(leaves)) if at not in found] if found else range(len(leaves))
        upload = _Upload(opened, leaves, numbers, chosen, chosen if stream else None)
        try:
            arrays = upload.run()
        except Exception as error:
            error.add_note(f"to_device_many: {paths(tree, upload.numbers[upload.in_progress])}")
            raise
    if upload.numbers is not numbers or found:
        found.update(zip(upload.numbers, arrays, strict=True))
        arrays = [found[at] for at in range(len(leaves))]
    for at in records:
        arrays[at] = DeviceRecord(arrays[at])
    return arrays if flat else rebuild(tree, iter(arrays))


class _Upload:
    """Host arrays on their way into one block of device memory, which is entered.

    Attributes
    ----------
    numbers : sequence of int
        The leaves that are uploaded, in the order in which they are to lie in the block.
    sources, sizes : list
        Their arrays and bytes.
    steps : list of int
        Bytes from the beginning of each in the block to that of the next.
    in_progress : slice
        Those that are being copied.
    """

    def __init__(
        self, opened: OpenDevice, leaves: list[Any], numbers: Sequence[int], stream: Stream, bound: Stream | None
    ) -> None:
        self.opened = opened
        self.stream = stream
        self.bound = bound
        self.numbers = numbers
        self.sources: list[npt.NDArray[Any]] = leaves if len(numbers) == len(leaves) else [leaves[at] for at in numbers]
        self.sizes: list[int] = list(map(_nbytes, self.sources))
        self.in_progress = slice(None)
        self.captured = stream.is_capturing()
        self._page_locks_seen = opened.page_locks.segments
        routes = self._routes()
        if routes and routes.count(routes[0]) < len(routes):  # else they lie as they are given
            ranks = sorted(range(len(routes)), key=routes.__getitem__)
            self.numbers = [numbers[rank] for rank in ranks]
            self.sources = [self.sources[rank] for rank in ranks]
            self.sizes = [self.sizes[rank] for rank in ranks]
        self.steps = aligned_sizes(self.sizes)
        self.packed_end = routes.count(_Route.PACKED) if routes else len(numbers)
        self.batched_end = self.packed_end + routes.count(_Route.BATCHED)
        self.rows_end = self.batched_end + routes.count(_Route.ROWS)

    def run(self) -> list[Any]:
        """Device arrays, complete where no stream was named."""
        total = sum(self.steps)
        if not total:
            return self._arrays(None, contiguous=False)
        if self.captured:
            self._check_captured()
        block = self.opened.memory.allocate(total, self.stream, self.bound is None)
        try:
            with StreamUse(self.stream, block):
                contiguous = self._copy_packed(block) and self.batched_end == len(self.sources)
                batched = self.packed_end == self.batched_end or self._copy_batched(block)
                arrays = self._arrays(block, contiguous=contiguous)  # made while the device copies
                for at in () if batched else range(self.packed_end, self.batched_end):
                    self._copy_single(arrays, at)
                if self.batched_end < self.rows_end:
                    self._copy_rows(arrays)
                for at in range(self.rows_end, len(arrays)):
                    self._copy_single(arrays, at)
            self.in_progress = slice(None)
            if self.bound is None:
                self.opened.handle.driver.stream_synchronize(self.stream.handle)
        except BaseException:
            block.discard()
            raise
        return arrays

    def _check_captured(self) -> None:
        """Raise where a graph cannot have one of the copies, before it has any."""
        for at, (source, nbytes) in enumerate(zip(self.sources, self.sizes, strict=True)):
            self.in_progress = slice(at, at + 1)
            if nbytes:
                shape, dtype = source.shape, source.dtype
                strides = None if source.flags.c_contiguous else like_strides(shape, source.strides, dtype.itemsize)
                self.opened.copies.check_upload(ArrayView(0, shape, dtype, strides), source, self.stream)

    def _routes(self) -> list[_Route]:
        """Choose the way of each array; an empty list where all are packed."""
        if self.sources and self.captured:
            # What a graph copies it copies whenever it is launched, from where the user's arrays are.
            return [_Route.SINGLE] * len(self.sources)
        if max(self.sizes, default=0) < LARGE:
            return []
        if self.opened.page_locks.segments or not self.opened.copies.batches:
            return [
                _Route.PACKED if nbytes < LARGE else self._route(source)
                for source, nbytes in zip(self.sources, self.sizes, strict=True)
            ]
        # Nothing is registered, so views of one array are page-locked all or none: only the first in a row is looked at closely.
        routes: list[_Route] = []
        base, of_base = None, _Route.SINGLE
        for source, nbytes in zip(self.sources, self.sizes, strict=True):
            if nbytes < LARGE:
                routes.append(_Route.PACKED)
            elif not source.flags.c_contiguous:
                routes.append(self._route(source))
            else:
                if source.base is not base:
                    base, of_base = source.base, self._route(source)
                routes.append(of_base)
        return routes

    def _route(self, source: npt.NDArray[Any]) -> _Route:
        """Choose the way of a large array."""
        copies, contiguous = self.opened.copies, source.flags.c_contiguous
        unbatched = _Route.SINGLE if contiguous or source.nbytes >= LARGE_STRIDED else _Route.PACKED
        if not (copies.batches or copies.volume_batches) or not self._is_locked(source):
            return unbatched
        if contiguous:
            return _Route.BATCHED if copies.batches else unbatched
        strides = like_strides(source.shape, source.strides, source.itemsize)
        parts = rows(source.shape, source.itemsize, strides, source.strides)
        return unbatched if not copies.volume_batches or against_rows(parts, copies) else _Route.ROWS

    def _is_locked(self, source: npt.NDArray[Any]) -> bool:
        """Whether the driver can be given an array in one piece, to be read when the turn of the copy comes."""
        locks = self.opened.page_locks
        if source.base is None and not locks.segments:
            return False  # most arrays: to look closer takes as long as to copy them
        # Memory that another library has locked is not asked for, which takes the driver longer than a copy of this size.
        memory = host_memory_of(self.opened.handle, locks, source, ask=False)
        return memory in (HostMemory.LOCKED, HostMemory.MANAGED) and not self.opened.copies.is_cut(source)

    def _copy_packed(self, block: Allocation) -> bool:
        """Copy the arrays that are packed on the host; whether all of them are C-contiguous."""
        contiguous, ptr = True, block.ptr
        for group in groups(self.steps[: self.packed_end], block.nbytes):
            self.in_progress = group
            joined, were_contiguous = join(self.sources[group], self.sizes[group], gaps=self.steps is not self.sizes)
            contiguous = contiguous and were_contiguous
            if joined:
                packed = np.frombuffer(joined, np.uint8)
                self._copy(ArrayView(ptr, packed.shape, packed.dtype), packed)
            ptr += len(joined)
        return contiguous

    def _copy_batched(self, block: Allocation) -> bool:
        """Copy page-locked arrays from where they are, by few calls; False where memory was (un)locked meanwhile."""
        locks, start = self.opened.page_locks, block.ptr + sum(self.steps[: self.packed_end])
        for at in range(self.packed_end, self.batched_end, TOGETHER):
            self.in_progress = part = slice(at, min(at + TOGETHER, self.batched_end))
            sources, sizes = self.sources[part], self.sizes[part]
            *dsts, start = accumulate(self.steps[part], initial=start)
            srcs = addresses(sources)
            with locks.hold_page_locks(min(srcs), max(map(add, srcs, sizes))):
                if locks.segments is not self._page_locks_seen:
                    return False
                copy_many(self.opened, dsts, srcs, sizes, CopyKind.H2D, self.stream, sources)
        return True

    def _copy_rows(self, arrays: list[Any]) -> None:
        """Copy page-locked arrays whose rows lie apart from where they are, by one call of the driver."""
        self.in_progress = part = slice(self.batched_end, self.rows_end)
        sources, locks = self.sources[part], self.opened.page_locks
        boxes: list[Box] = []
        for array, source in zip(arrays[part], sources, strict=True):
            parts = rows(source.shape, source.itemsize, array.strides, source.strides)
            boxes += parts.boxes(array._ptr, address(source))
        lows, highs = zip(*map(extent, sources), strict=True)
        with locks.hold_page_locks(min(lows), max(highs)):
            if locks.segments is self._page_locks_seen:
                copy_boxes(self.opened, boxes, CopyKind.H2D, self.stream, sources)
                return
        for at in range(part.start, part.stop):  # memory was locked or unlocked since it was looked at
            self._copy_single(arrays, at)

    def _copy_single(self, arrays: list[Any], at: int) -> None:
        self.in_progress = slice(at, at + 1)
        self._copy(arrays[at], self.sources[at])

    def _copy(self, dst: ArrayView[Any], src: npt.NDArray[Any]) -> None:
        copies = self.opened.copies
        # A copy that is not staged is waited for at once: most drivers wait for it anyway.
        copies.upload(dst, src, self.stream, self.bound is None and src.nbytes < copies.staging_threshold)

    def _arrays(self, block: Allocation | None, *, contiguous: bool) -> list[Any]:
        """Device arrays for the sources' elements, one behind the other in the block.

        ``contiguous``: all are known to be C-contiguous, and there is a block. Asking them takes long, compared with the rest.
        """
        opened, bound = self.opened, self.bound
        nothing = opened.memory.empty_allocation(self.stream)
        ptr = 0 if block is None else block.ptr
        if contiguous and core is not None:
            made: list[Any] = core.beside(opened, block, ptr, bound, nothing, self.sources, self.sizes, self.steps)
            return made
        arrays: list[Any] = []
        for source, nbytes, step in zip(self.sources, self.sizes, self.steps, strict=True):
            shape, dtype, strides = source.shape, source.dtype, None
            if not contiguous and not source.flags.c_contiguous:
                strides = like_strides(shape, source.strides, dtype.itemsize)
            allocation, start = (block, ptr) if nbytes and block is not None else (nothing, 0)
            arrays.append(DeviceNDArray(opened, allocation, start, shape, dtype, strides, bound))
            ptr += step
        return arrays


def _records(leaves: list[Any], classes: set[type]) -> list[int]:
    """The numbers of the leaves that are records of NumPy."""
    if not any(issubclass(each, np.void) for each in classes):
        return []
    return [at for at, leaf in enumerate(leaves) if isinstance(leaf, np.void) and leaf.dtype.fields is not None]


def _device_arrays(
    tree: Tree, leaves: list[Any], classes: set[type], stream: StreamLike, opened: OpenDevice
) -> dict[int, Any]:
    """The leaves that are device arrays of any library, on this device, by number; any other becomes an ndarray in place."""
    found: dict[int, Any] = {}
    if classes <= {np.ndarray, PinnedNDArray} and not any(dtype.hasobject for dtype in set(map(_dtype, leaves))):
        return found
    for at, leaf in enumerate(leaves):
        if type(leaf) is not np.ndarray or leaf.dtype.hasobject:
            try:
                if device_view(leaf) is not None:
                    found[at] = to_device(leaf, stream, True, None, opened.device)
                else:
                    leaves[at] = host_array(leaf)
            except (TypeError, LayoutError) as error:
                raise type(error)(f"{path(tree, at)}: {error}") from None
            except Exception as error:  # the driver's, or of the leaf's own conversion
                error.add_note(f"to_device_many: {path(tree, at)}")
                raise
    return found
