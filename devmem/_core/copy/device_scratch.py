"""Device scratch for strided copies that would otherwise take one driver call per row between host and device."""

# Decision: docs/adr/0003-one-plan-chooses-the-path-of-a-copy.md
from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from ..base.array_view import ArrayView, part_of
from ..lifetime.allocation import StreamUse
from ..lifetime.device_memory import DeviceMemory
from ..ordering.stream import Stream
from .staging.blocks import Block, block_shape, blocks

if TYPE_CHECKING:
    from types import TracebackType

#: Bytes of it. Each part takes two calls, which is little beside moving as much.
PART_BYTES = 4 << 20


class DeviceScratch:
    """``with DeviceScratch(memory, view, stream) as parts:`` each part of a view, with as much contiguous memory beside it.

    Iterating gives (block, that part of the view, the contiguous part). The view's axes go from the largest stride to the
    smallest. The memory is the same for all parts, which the stream's order keeps apart, and is given back in that order; where
    giving it back would wait, it is left to the queue.
    """

    def __init__(self, memory: DeviceMemory, view: ArrayView[Any], stream: Stream) -> None:
        self.view = view
        self._blocks = list(blocks(view.shape, view.itemsize, PART_BYTES))
        first = part_of(view, self._blocks[0])  # none is larger than the first
        self._allocation = memory.allocate(first.nbytes, stream)
        self._use = StreamUse(stream, self._allocation)

    def __enter__(self) -> DeviceScratch:
        self._use.__enter__()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        try:
            self._use.__exit__(kind, error, at)
        finally:
            if self._allocation.heap.ordered:
                self._allocation.discard()

    def __iter__(self) -> Iterator[tuple[Block, ArrayView[Any], ArrayView[Any]]]:
        for block in self._blocks:
            lengths = block_shape(self.view.shape, block)
            yield block, part_of(self.view, block), ArrayView(self._allocation.ptr, lengths, self.view.dtype)
