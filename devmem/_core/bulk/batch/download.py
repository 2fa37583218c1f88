"""Device arrays to the host: one copy for all that are small.

Where small arrays lie close together in one block, what they span is fetched in one run. Else the device packs them into a new
block, which is fetched; where that does not pay, or the device has no memory left, each is copied by itself. The host arrays
are views of one buffer. Larger arrays are copied one by one.
"""

from __future__ import annotations

from functools import partial
from itertools import accumulate
from math import prod
from operator import add
from typing import Any

import numpy as np
import numpy.typing as npt

from ....spi.errors import DevmemError, OutOfMemory
from ....spi.types import Box, CopyKind
from ...arrays.ndarray import DeviceNDArray, DeviceRecord, device_view
from ...arrays.pinned import pinned_like
from ...base.address import address
from ...base.array_view import ArrayView
from ...base.device_handle import CurrentDevice
from ...base.layout import Shape, like_strides, new_host, span
from ...device.open_device import OpenDevice
from ...lifetime.allocation import StreamUse
from ...ordering.event import StreamLike
from ...ordering.stream import Stream
from .pack import aligned_sizes
from .submit_many import copy_boxes, copy_many
from .tree import Tree, flatten, path, paths, rebuild

#: Arrays of so many bytes are copied by themselves: packing them on the device saves nothing.
LARGE = 256 << 10
#: How many times the wanted bytes a span may have, to be fetched whole.
DENSE = 2
#: What the addresses of new host memory are multiples of, at least; no element needs more.
ALIGNED = 16

_BYTE = np.dtype(np.uint8)
HostArray = npt.NDArray[Any]


def download_many(tree: Tree, stream: StreamLike, pinned: bool) -> Tree:
    """The same structure with host arrays; see `devmem.to_host_many`."""
    leaves, _, flat = flatten(tree)
    found = list(leaves)
    views: dict[int, DeviceNDArray[Any]] = {}
    checked = None
    for at, leaf in enumerate(leaves):
        view = device_view(leaf)
        if view is not None:
            views[at] = view
            if view.allocation is not checked:
                checked = view.allocation
                try:
                    checked.check()
                except DevmemError as error:
                    error.add_note(f"to_host_many: {path(tree, at)}")
                    raise
    for opened in dict.fromkeys(view.open_device for view in views.values()):
        on_device = {at: view for at, view in views.items() if view.open_device is opened}
        for at, host in _download(tree, opened, on_device, opened.streams.stream_of(stream), pinned).items():
            found[at] = host[()] if isinstance(leaves[at], DeviceRecord) else host
    return found if flat else rebuild(tree, iter(found))


def _download(
    tree: Tree, opened: OpenDevice, views: dict[int, DeviceNDArray[Any]], stream: Stream, pinned: bool
) -> dict[int, HostArray]:
    """Host arrays of device arrays of one device, by the number of their leaf."""
    sizes = [prod(view._shape) * view._dtype.itemsize for view in views.values()]
    small = [at for at, nbytes in zip(views, sizes, strict=True) if nbytes < LARGE]
    in_progress = small
    with CurrentDevice(opened.handle):
        stream.check_waitable()
        for bound in {view._stream for view in views.values()}:
            if bound is not None and bound is not stream:
                stream.wait(bound)
        try:
            packed = _SmallArrays(opened, [views[at] for at in small], [n for n in sizes if n < LARGE], stream, pinned)
            found = dict(zip(small, packed.fetch(), strict=True))
            for at, view in views.items():
                if at not in found:
                    in_progress = [at]
                    found[at] = view.bind(stream).copy_to_host(pinned=pinned)
        except Exception as error:
            error.add_note(f"to_host_many: {paths(tree, in_progress)}")
            raise
    return found


class _SmallArrays:
    """Small arrays of one device, which is entered, on their way into one host buffer."""

    def __init__(
        self, opened: OpenDevice, arrays: list[DeviceNDArray[Any]], sizes: list[int], stream: Stream, pinned: bool
    ) -> None:
        self.opened = opened
        self.arrays = arrays
        self.sizes = sizes
        self.stream = stream
        self.pinned = pinned
        #: The allocations that they lie in, each once.
        self.allocations = list(
            {id(a.allocation): a.allocation for a, n in zip(arrays, sizes, strict=True) if n}.values()
        )
        #: Those that are not C-contiguous.
        self.strided = [at for at, array in enumerate(arrays) if array._strides is not None and sizes[at]]

    def fetch(self) -> list[HostArray]:
        """Host arrays with their elements."""
        steps = aligned_sizes(self.sizes)
        total = sum(steps)
        if not total:
            return [new_host(array._shape, array._dtype) for array in self.arrays]
        for array in self.arrays if self.opened.copies.coherent else ():
            self.opened.copies.await_source(array, self.stream)
        if len(self.allocations) == 1:
            low, high = self._span()
            if high - low <= DENSE * total:
                return self._fetch_span(low, high)
        offsets = [*accumulate(steps, initial=0)][:-1]
        layouts = {
            at: like_strides(array.shape, array.strides, array.itemsize)
            for at, array in ((at, self.arrays[at]) for at in self.strided)
        }
        host = self._buffer(total)
        views = self._views(host, offsets, layouts)
        with StreamUse(self.stream, *self.allocations):
            # Where pageable memory is as good as page-locked memory, a block on the device saves nothing.
            if not (self.opened.handle.info.staging_threshold and self._pack_on_device(host, offsets, layouts)):
                for at in layouts:
                    self.opened.copies.download(self.arrays[at], views[at], self.stream, True)
                self._copy_contiguous(address(host), offsets, CopyKind.D2H, host)
                self.opened.handle.driver.stream_synchronize(self.stream.handle)
        return views

    def _fetch_span(self, low: int, high: int) -> list[HostArray]:
        """Fetch all bytes that the arrays span, gaps included."""
        [allocation] = self.allocations
        low = max(low - low % ALIGNED, min(low, allocation.ptr))  # so that elements stay aligned in the host's buffer
        host = self._buffer(high - low)
        with StreamUse(self.stream, allocation):
            self._read(low, host)
        offsets = [array._ptr - low for array in self.arrays]
        return self._views(host, offsets, {at: self.arrays[at].strides for at in self.strided})

    def _pack_on_device(self, host: HostArray, offsets: list[int], layouts: dict[int, Shape]) -> bool:
        """Pack the arrays into one block on the device, and fetch that; False where there is no memory for it."""
        opened, stream = self.opened, self.stream
        try:
            block = opened.memory.allocate(host.nbytes, stream, False)
        except OutOfMemory:
            return False
        try:
            with StreamUse(stream, block):
                boxes: list[Box] = []
                for at, strides in layouts.items():
                    array = self.arrays[at]
                    packed = ArrayView(block.ptr + offsets[at], array._shape, array._dtype, strides)
                    together = opened.copies.boxes(packed, array, stream)
                    if not together:
                        opened.copies.copy_part(packed, array, stream, False)
                    boxes += together
                if boxes:
                    copy_boxes(opened, boxes, CopyKind.D2D, stream)
                self._copy_contiguous(block.ptr, offsets, CopyKind.D2D)
                self._read(block.ptr, host)
        finally:
            block.discard()
        return True

    def _copy_contiguous(self, base: int, offsets: list[int], kind: CopyKind, *keep: object) -> None:
        """Enqueue copies of the arrays that are runs of bytes."""
        skip = set(self.strided)
        chosen = [at for at, nbytes in enumerate(self.sizes) if nbytes and at not in skip]
        if chosen:
            dsts, srcs = [base + offsets[at] for at in chosen], [self.arrays[at]._ptr for at in chosen]
            copy_many(self.opened, dsts, srcs, [self.sizes[at] for at in chosen], kind, self.stream, keep)

    def _span(self) -> tuple[int, int]:
        """Addresses of the lowest byte of all arrays and of the byte behind the highest."""
        ptrs = [array._ptr for array in self.arrays]
        if not self.strided and 0 not in self.sizes:
            return min(ptrs), max(map(add, ptrs, self.sizes))
        spans = [span(array.shape, array.strides, array.itemsize) for array in self.arrays]
        ends = [(ptr + low, ptr + high) for ptr, (low, high) in zip(ptrs, spans, strict=True) if low != high]
        return min(low for low, _ in ends), max(high for _, high in ends)

    def _buffer(self, nbytes: int) -> HostArray:
        return pinned_like(self.opened, (nbytes,), _BYTE, None) if self.pinned else np.empty(nbytes, _BYTE)

    def _read(self, ptr: int, host: HostArray) -> None:
        self.opened.copies.download(ArrayView(ptr, host.shape, host.dtype), host, self.stream, True)

    def _views(self, host: HostArray, offsets: list[int], layouts: dict[int, Shape]) -> list[HostArray]:
        """Arrays like these in a buffer; C-contiguous, unless ``layouts`` has their strides."""
        make = partial(np.ndarray.__new__, type(host))  # an array in page-locked memory is not made by call
        if not layouts and 0 not in self.sizes:
            return [make(array._shape, array._dtype, host, at) for array, at in zip(self.arrays, offsets, strict=True)]
        return [
            make(array._shape, array._dtype, host, offset, layouts.get(at))
            if nbytes
            else new_host(array._shape, array._dtype)
            for at, (array, nbytes, offset) in enumerate(zip(self.arrays, self.sizes, offsets, strict=True))
        ]
