"""A second array on the device: what takes the driver a call for each row from or to the host, it does there in one."""

from __future__ import annotations

from collections.abc import Iterator
from types import TracebackType
from typing import TYPE_CHECKING, Any

from ...spi.types import CopyKind
from ..base.layout import Rows, contiguous_strides, in_memory_order, memory_order, rows
from ..lifetime.allocation import Using
from .staging.blocks import Block, blocks
from .submit import run

if TYPE_CHECKING:
    from ..arrays.ndarray import DeviceNDArray
    from ..ordering.stream import Stream

#: Bytes of it. Each part takes two calls, which is little beside moving as much.
PART_BYTES = 4 << 20

D2D = CopyKind.D2D


class Aside:
    """``with Aside(array, stream) as parts:`` (block, that part of the array, as much contiguous memory) of each part in turn.

    The array's axes go from the largest stride to the smallest. The memory is the same for all parts, which the stream's order
    keeps apart. After the block it is given back, in that order.
    """

    def __init__(self, array: DeviceNDArray[Any], stream: Stream) -> None:
        self.array = array
        self.blocks = list(blocks(array.shape, array.itemsize, PART_BYTES))
        self.room = array._at(self.blocks[0]).like(stream)  # none is larger than the first
        self._using = Using(stream, self.room.allocation)

    def __enter__(self) -> Iterator[tuple[Block, DeviceNDArray[Any], DeviceNDArray[Any]]]:
        self._using.__enter__()
        return map(self._part, self.blocks)

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        try:
            self._using.__exit__(kind, error, at)
        finally:
            self.room.allocation.discard()

    def _part(self, block: Block) -> tuple[Block, DeviceNDArray[Any], DeviceNDArray[Any]]:
        part = self.array._at(block)
        return block, part, self.room._view(self.room.ptr, part.shape, None)


def along_rows(dst: DeviceNDArray[Any], src: DeviceNDArray[Any], stream: Stream) -> None:
    """Enqueue a copy on the device, by its driver alone, in however many calls."""
    run(dst.context, rows(dst.shape, dst.itemsize, dst.strides, src.strides), dst.ptr, src.ptr, D2D, stream, False)


def unpacking(array: DeviceNDArray[Any]) -> Rows:
    """How a copy to the array's elements goes from as many in one run, which lie there in the same order."""
    shape, strides = in_memory_order(array.shape, array.strides, *memory_order(array.shape, array.strides))
    return rows(shape, array.itemsize, strides, contiguous_strides(shape, array.itemsize))
