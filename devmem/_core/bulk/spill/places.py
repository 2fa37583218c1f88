"""A value on one tier: its arrays, and what else is in it."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import TYPE_CHECKING, Any, cast

import numpy as np
import numpy.typing as npt

from ....spi.errors import OutOfMemory, UnsupportedError
from ...arrays.array_base import ArrayBase
from ...arrays.creation import empty, upload
from ...arrays.ndarray import DeviceNDArray
from ...arrays.pinned import Buffer, buffer_of, pinned_over
from ...base.device_handle import CurrentDevice
from ...base.layout import Shape, like_strides, new_host
from ..async_copy import Transfer, copy_async
from ..batch.tree import flatten, rebuild
from ..files.copies import load
from .blocks import Block, Blocks
from .folder import StoredFile

if TYPE_CHECKING:
    from ...device.device import Device
    from ...device.open_device import OpenDevice
    from ...lifetime.allocation import Allocation
    from ...ordering.stream import Stream

HostArray = npt.NDArray[Any]


class Slot(Enum):
    """The placeholder of an array in a value. It is the same object after pickling."""

    SLOT = "array"


SLOT = Slot.SLOT


@dataclass(frozen=True, slots=True)
class Layout:
    """The layout of an array that has been moved: without gaps, in its own order of axes."""

    kind: type[DeviceNDArray[Any]]
    device: Device
    shape: Shape
    dtype: np.dtype[Any]
    strides: Shape
    nbytes: int

    def over(self, memory: DeviceNDArray[Any]) -> DeviceNDArray[Any]:
        """The array, in another array's memory."""
        return _made(
            self.kind, memory.open_device, memory.allocation, memory._ptr, self.shape, self.dtype, self.strides
        )


@dataclass(frozen=True, slots=True)
class Array:
    """An array on the device, without its memory; ``block`` is None where it has none, being empty."""

    layout: Layout
    block: Block | None
    opened: OpenDevice
    ptr: int
    strides: Shape | None
    stream: Stream | None
    size: int

    @classmethod
    def of(cls, array: DeviceNDArray[Any], blocks: Blocks) -> Array:
        """Return the record of an array whose memory the store looks after from now on."""
        packed = like_strides(array.shape, array.strides, array.itemsize)
        layout = Layout(type(array), array.device, array.shape, array.dtype, packed, array.nbytes)
        allocation = array.allocation
        block = blocks.take(array) if allocation.ptr else None
        return cls(layout, block, array.open_device, array._ptr, array._strides, array.stream, allocation.nbytes)

    def over(self, allocation: Allocation) -> DeviceNDArray[Any]:
        """The array, with an allocation of its block; bound to no stream."""
        layout = self.layout
        return _made(layout.kind, self.opened, allocation, self.ptr, layout.shape, layout.dtype, self.strides)

    def given(self, blocks: Blocks) -> DeviceNDArray[Any]:
        """The array, for the program."""
        nothing = self.opened.memory.empty_allocation
        made = self.over(nothing(self.opened.streams.default) if self.block is None else blocks.lend(self.block))
        made._stream = self.stream
        return made


@dataclass(frozen=True, slots=True)
class Place:
    """A value where it is now.

    Attributes
    ----------
    value : object
        The value itself where it has no array to move; else with `SLOT` for each.
    layouts : list of Layout
        Of these arrays, in order.
    arrays, host, file
        Where they are: on the device, on the host, or in a file, which has the value too where that is pickled.
    """

    value: object
    layouts: Sequence[Layout] = ()
    arrays: Sequence[Array] = ()
    host: list[HostArray] = field(default_factory=list)
    file: StoredFile | None = None

    def is_held(self) -> bool:
        """Whether the program has an array over one of the blocks, as far as the store has noted."""
        return any(each.block is not None and each.block.allocation is None for each in self.arrays)

    def device_bytes(self) -> int:
        """Bytes of the blocks."""
        return sum({id(each.block): each.size for each in self.arrays}.values())

    def given(self, blocks: Blocks) -> Any:
        """The value with its arrays, for the program."""
        if not self.layouts:
            return self.value
        arrays = iter([each.given(blocks) for each in self.arrays])
        if self.value is SLOT:
            return next(arrays)
        leaves, _, _ = flatten(self.value)
        return rebuild(self.value, iter([next(arrays) if leaf is SLOT else leaf for leaf in leaves]))

    def remove_file(self) -> None:
        """Delete the file, if there is one."""
        if self.file is not None:
            self.file.remove()


class Spare:
    """The page-locked memory of the array that came back last: the next one of its size that leaves has it.

    Locked pages that are given back wait for an event behind the work of their stream, which a small copy costs less than.
    """

    def __init__(self) -> None:
        self._kept: deque[Buffer] = deque(maxlen=1)

    def keep(self, host: Sequence[HostArray]) -> None:
        """Keep the memory of an array that nothing refers to, and no stream uses."""
        buffer = buffer_of(host[0]) if len(host) == 1 else None
        if buffer is not None:
            self._kept.append(buffer)

    def take(self, source: DeviceNDArray[Any], layout: Layout) -> HostArray | None:
        """A host array with the memory, if it is of the array's device and size; what is not is dropped."""
        try:
            buffer = self._kept.pop()
        except IndexError:
            return None
        found = buffer.allocation
        if found.nbytes != layout.nbytes or found.device_handle is not source.open_device.handle:
            return None
        return pinned_over(buffer, layout.shape, layout.dtype, layout.strides)

    def drop(self) -> None:
        """Give the memory back."""
        self._kept.clear()


def fetched(arrays: Sequence[Array], spare: Spare) -> list[HostArray]:
    """Host arrays with the elements of idle arrays, in page-locked memory as far as there is any."""
    sources = [each.over(_ordered(each)) if each.block is not None else None for each in arrays]
    # One goes without an event behind the copy, which costs as much as a small one.
    if len(sources) == 1 and sources[0] is not None:
        host = spare.take(sources[0], arrays[0].layout)
        try:
            return [sources[0].copy_to_host(host) if host is not None else sources[0].copy_to_host(pinned=True)]
        except (OutOfMemory, UnsupportedError):
            pass
    transfers = [None if source is None else _download(source) for source in sources]
    return [
        new_host(each.layout.shape, each.layout.dtype) if transfer is None else transfer.result()
        for each, transfer in zip(arrays, transfers, strict=True)
    ]


def returned(place: Place, block: Allocation | None) -> list[DeviceNDArray[Any]]:
    """New device arrays with the elements that a place on the host or on disk has.

    ``block``: where a single array comes to lie, if it is one of `reusable`.
    """
    if place.file is not None:
        files = zip(place.layouts, place.file.offsets, strict=True)
        return [_loaded(layout, place.file.path, offset) for layout, offset in files]
    pairs = list(zip(place.layouts, place.host, strict=True))
    if len(pairs) == 1 and place.layouts[0].nbytes:
        [(layout, host)] = pairs
        opened = layout.device.opened()
        if block is None:
            return [layout.over(upload(opened, host, 0, True))]
        array = _made(layout.kind, opened, block, block.ptr, layout.shape, layout.dtype, layout.strides)
        array.put(host, 0)
        return [array]
    transfers = [copy_async(host, None, None, layout.device) if layout.nbytes else None for layout, host in pairs]
    return [
        layout.over(_nothing(layout) if transfer is None else transfer.result())
        for layout, transfer in zip(place.layouts, transfers, strict=True)
    ]


def reusable(blocks: Sequence[Allocation], place: Place) -> Allocation | None:
    """A block, of those that only the caller has, for the one array of a place on the host.

    It is of that array's size, and as one that is allocated now on the device's default stream.
    """
    if not blocks or len(place.host) != 1:
        return None
    [layout] = place.layouts
    opened = layout.device.opened()
    home, heap, owned = opened.streams.stream_of(0), opened.memory.heap_in_force(), opened.memory.owned
    for block in blocks if home.recorder is None else ():
        usual = block.unnamed and block.home is home and block.streams is None
        if usual and block.nbytes == layout.nbytes and block.heap is heap and type(block) is owned:
            return block
    return None


def _ordered(array: Array) -> Allocation:
    """The allocation of an idle array, when the stream that moves it comes after all that was enqueued on the block."""
    assert array.block is not None
    allocation = cast("Allocation", array.block.allocation)
    stream = array.opened.streams.stream_of(0)
    if allocation.streams is not None or stream is not allocation.home:
        with CurrentDevice(array.opened.handle):
            allocation.order_for_consumer(stream)
    return allocation


def _download(source: DeviceNDArray[Any]) -> Transfer[Any]:
    try:
        return copy_async(source, None, None, None, pinned=True)
    except (OutOfMemory, UnsupportedError):
        return copy_async(source, None, None, None)


def _loaded(layout: Layout, path: str, offset: int) -> DeviceNDArray[Any]:
    if not layout.nbytes:
        return layout.over(_nothing(layout))
    return layout.over(load(path, np.uint8, layout.nbytes, offset, 0, layout.device, None))


def _nothing(layout: Layout) -> DeviceNDArray[Any]:
    return empty(layout.device.opened(), layout.shape, layout.dtype, layout.strides, 0, 0)


def _made(
    kind: type[DeviceNDArray[Any]],
    opened: OpenDevice,
    allocation: Allocation,
    ptr: int,
    shape: Shape,
    dtype: np.dtype[Any],
    strides: Shape | None,
) -> DeviceNDArray[Any]:
    # Not by the constructor: a subclass of the user's may have another one.
    made: DeviceNDArray[Any] = object.__new__(kind)
    ArrayBase.__init__(made, opened, allocation, ptr, shape, dtype, strides)
    return made
