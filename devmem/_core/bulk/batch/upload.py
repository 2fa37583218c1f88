"""Host arrays to a device: one block of memory, and one copy for all that are small."""

from __future__ import annotations

from collections.abc import Sequence
from operator import add, attrgetter
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from ....spi.errors import LayoutError
from ....spi.types import Capability, CopyKind
from ...arrays.creation import to_device
from ...arrays.ndarray import DeviceNDArray, DeviceRecord, device_view
from ...base.address import address
from ...base.arguments import host_array
from ...base.array_view import ArrayView
from ...base.device_handle import CurrentDevice
from ...base.layout import like_strides
from ...copy.host_memory import HostMemory, host_memory_of
from ...device.device import open_device_of
from ...lifetime.allocation import Allocation, StreamUse
from .submit_many import copy_many
from .pack import gathered, parts, steps
from .tree import Tree, flatten, path, paths, rebuild

if TYPE_CHECKING:
    from ...device.open_device import OpenDevice
    from ...ordering.stream import Stream

#: Arrays of so many bytes are copied from where they are: to gather them, which moves them once more, takes longer than a
#: call for each, or, of page-locked ones, a place in the driver's batch.
LARGE = 32 << 10

#: How an array gets to the device: with the others, in a batch of the driver's, or alone.
TOGETHER, BATCHED, ALONE = range(3)

_new = object.__new__
_nbytes, _dtype = attrgetter("nbytes"), attrgetter("dtype")
H2D = CopyKind.H2D


def upload_many(tree: Tree, stream: Any, device: Any) -> Tree:
    """The same structure with device arrays; see `devmem.to_device_many`."""
    opened = open_device_of(device)
    chosen = opened.streams.stream_of(stream)
    leaves, classes, flat = flatten(tree)
    records = _records(leaves, classes)
    there = _already_there(tree, leaves, classes, stream, opened)
    numbers: Sequence[int] = range(len(leaves))
    if there:
        numbers = [at for at in numbers if at not in there]
    upload = _Upload(opened, [leaves[at] for at in numbers] if there else leaves, chosen, chosen if stream else None)
    with CurrentDevice(opened.handle):
        if not stream:
            chosen.check_waitable()
        ranks = upload.prepare()
        order = [numbers[rank] for rank in ranks] if ranks else numbers
        try:
            arrays = upload.run()
        except Exception as error:
            error.add_note(f"to_device_many: {paths(tree, order[upload.under_way])}")
            raise
    if ranks or there:
        there.update(zip(order, arrays, strict=True))
        arrays = [there[at] for at in range(len(leaves))]
    for at in records:
        arrays[at] = DeviceRecord(arrays[at])
    return arrays if flat else rebuild(tree, iter(arrays))


class _Upload:
    """Host arrays on their way into one block of device memory.

    Attributes
    ----------
    sources : list of ndarray
        In the order in which they are to lie in the block; `prepare` may change it.
    sizes, steps : list of int
        Bytes of each, and from the beginning of each to that of the next.
    ways : list of int
        How each is copied, in rising order; empty: all together.
    under_way : slice
        Those that are being copied.
    """

    def __init__(
        self, opened: OpenDevice, sources: list[npt.NDArray[Any]], stream: Stream, bound: Stream | None
    ) -> None:
        self.open_device = opened
        self.sources = sources
        self.stream = stream
        self.bound = bound
        self.sizes = list(map(_nbytes, sources))
        self.distinct = set(self.sizes)
        self.steps = self.sizes
        self.ways: list[int] = []
        self.under_way = slice(None)
        self._locked = opened.page_locks.segments

    def prepare(self) -> list[int]:
        """Find out how each array is copied, and sort them by it, as what goes together is to lie together.

        Their numbers in the new order; none, if it is the old one. The device is entered.
        """
        ranks: list[int] = []
        ways = self._ways()
        if ways:
            ranks = sorted(range(len(ways)), key=ways.__getitem__)
            self.ways = sorted(ways)
            self.sources = [self.sources[rank] for rank in ranks]
            self.sizes = [self.sizes[rank] for rank in ranks]
        self.steps = steps(self.sizes, self.distinct)
        return ranks

    def run(self) -> list[Any]:
        """Device arrays, complete where no stream was named; the device is entered."""
        opened, stream, sources, ways = self.open_device, self.stream, self.sources, self.ways
        total = sum(self.steps)
        if not total:
            return self._arrays(None, plain=False)
        block = opened.memory.allocate(total, stream, self.bound is None)
        try:
            with StreamUse(stream, block):
                first = ways.count(TOGETHER) if ways else len(sources)
                last = len(sources) - ways.count(ALONE)
                plain = self._copy_together(block, first)
                arrays = self._arrays(block, plain=plain and not ways)
                if first < last:
                    self._copy_batched(arrays, slice(first, last))
                if last < len(sources):
                    self._copy_alone(arrays, last)
            self.under_way = slice(None)
            if self.bound is None:
                opened.handle.driver.stream_synchronize(stream.handle)
        except BaseException:
            block.discard()
            raise
        return arrays

    def _ways(self) -> list[int]:
        """How each array gets to the device; an empty list where all go together."""
        opened, sources, sizes = self.open_device, self.sources, self.sizes
        if sources and opened.copies.is_capturing(self.stream):
            # What a graph copies it copies whenever it is launched, from where the user's arrays are.
            return [ALONE] * len(sources)
        if max(self.distinct, default=0) < LARGE:
            return []
        ways = [ALONE if nbytes >= LARGE else TOGETHER for nbytes in sizes]
        if opened.handle.has(Capability.BATCH_COPY):
            for at, source in enumerate(sources):
                if ways[at] and source.flags.c_contiguous and _locked(opened, source, sizes[at]):
                    ways[at] = BATCHED
        return ways

    def _copy_together(self, block: Allocation, count: int) -> bool:
        """Copy the first so many, which are gathered on the host. Whether all of them are C-contiguous."""
        plain, ptr, steps = True, block.ptr, self.steps
        for part in parts(steps if count == len(steps) else steps[:count], block.nbytes):
            self.under_way = part
            joined, were_plain = gathered(self.sources[part], self.sizes[part], gaps=steps is not self.sizes)
            plain = plain and were_plain
            if joined:
                packed = np.frombuffer(joined, np.uint8)
                there: ArrayView[Any] = ArrayView(ptr, packed.shape, packed.dtype)
                self.open_device.copies.upload(there, packed, self.stream, self._waits(packed.size))
            ptr += len(joined)
        return plain

    def _copy_batched(self, arrays: list[Any], part: slice) -> None:
        """Copy page-locked arrays from where they are, by one call of the driver."""
        registry, stream, self.under_way = self.open_device.page_locks, self.stream, part
        arrays, sources, sizes = arrays[part], self.sources[part], self.sizes[part]
        dsts, srcs = [array._ptr for array in arrays], list(map(address, sources))
        with registry.steady(min(srcs), max(map(add, srcs, sizes))):
            if registry.segments is self._locked:
                copy_many(self.open_device, dsts, srcs, sizes, H2D, stream, sources)
                return
        # Something was locked or unlocked since it was looked at.
        for array, source, nbytes in zip(arrays, sources, sizes, strict=True):
            self.open_device.copies.upload(array, source, stream, self._waits(nbytes))

    def _copy_alone(self, arrays: list[Any], first: int) -> None:
        """Copy arrays one by one, from the first of them on, as `to_device` would."""
        for at in range(first, len(arrays)):
            self.under_way = slice(at, at + 1)
            source = self.sources[at]
            self.open_device.copies.upload(arrays[at], source, self.stream, self._waits(source.nbytes))

    def _waits(self, nbytes: int) -> bool:
        """Whether a copy of so many bytes is waited for at once: what is not staged the driver mostly waits for anyway."""
        return self.bound is None and nbytes < self.open_device.ring.threshold

    def _arrays(self, block: Allocation | None, *, plain: bool) -> list[Any]:
        """Device arrays for the sources' elements, one behind the other in the block.

        ``plain``: it is known that all are C-contiguous. Asking them takes long, compared with the rest.
        """
        opened, bound = self.open_device, self.bound
        nothing = opened.memory.nothing(self.stream)
        ptr = 0 if block is None else block.ptr
        arrays: list[Any] = []
        for source, nbytes, step in zip(self.sources, self.sizes, self.steps, strict=True):
            shape, dtype, strides = source.shape, source.dtype, None
            if not plain and not source.flags.c_contiguous:
                strides = like_strides(shape, source.strides, dtype.itemsize)
            allocation, place = (block, ptr) if nbytes and block is not None else (nothing, 0)
            arrays.append(DeviceNDArray(opened, allocation, place, shape, dtype, strides, bound))
            ptr += step
        return arrays


def _records(leaves: list[Any], classes: set[type]) -> list[int]:
    """The leaves that are records of NumPy, by their number."""
    if not any(issubclass(each, np.void) for each in classes):
        return []
    return [at for at, leaf in enumerate(leaves) if isinstance(leaf, np.void) and leaf.dtype.fields is not None]


def _already_there(
    tree: Tree, leaves: list[Any], classes: set[type], stream: Any, opened: OpenDevice
) -> dict[int, Any]:
    """The leaves that are device arrays, of any library, by their number, on this device; all others become ndarrays in place."""
    there: dict[int, Any] = {}
    if classes == {np.ndarray} and not any(dtype.hasobject for dtype in set(map(_dtype, leaves))):
        return there
    for at, leaf in enumerate(leaves):
        if type(leaf) is not np.ndarray or leaf.dtype.hasobject:
            try:
                if isinstance(leaf, DeviceNDArray) or device_view(leaf) is not None:
                    there[at] = to_device(leaf, stream, True, None, opened.device)
                else:
                    leaves[at] = host_array(leaf)
            except (TypeError, LayoutError) as error:
                raise type(error)(f"{path(tree, at)}: {error}") from None
            except Exception as error:  # a driver's, or of the leaf's own making
                error.add_note(f"to_device_many: {path(tree, at)}")
                raise
    return there


def _locked(opened: OpenDevice, source: npt.NDArray[Any], nbytes: int) -> bool:
    """Whether the driver can be given a contiguous array in one piece, to be read whenever the copy's turn comes."""
    if source.base is None and not opened.page_locks.segments:
        return False  # most arrays: to look closer takes as long as to copy them
    # What other libraries have locked is not asked for, which takes the driver longer than a copy of this size.
    memory = host_memory_of(opened.handle, opened.page_locks, source, ask=False)
    if memory not in (HostMemory.LOCKED, HostMemory.MANAGED):
        return False
    low = address(source)
    return not opened.page_locks.cuts(low, low + nbytes)
