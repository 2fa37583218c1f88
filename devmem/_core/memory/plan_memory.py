"""The memory of a recorded plan: blocks that no other work is given while the plan may run."""

from __future__ import annotations

from ...spi.memory import MemoryResource
from ..base.interrupts import is_untaken
from .adaptor import Adaptor, kept_by

#: Blocks are handed out in multiples of it, so that nearly equal sizes serve each other.
UNIT = 512


class PlanMemory(Adaptor):
    """Takes blocks from the upstream, and gives none of them back before its `end`.

    A block that comes back serves the next request of its size: the work of a plan is in the order of one stream.
    """

    def __init__(self, upstream: MemoryResource) -> None:
        super().__init__(upstream)
        self._free: dict[int, list[int]] = {}
        self._ended = False

    def allocate(self, nbytes: int, stream: int) -> int:
        """Memory for the plan."""
        if not nbytes:
            return 0
        size = -(-nbytes // UNIT) * UNIT
        try:
            [ptr] = map(list.pop, (self._free[size],))
        except LookupError:
            [ptr] = map(self._allocate, (size,), (stream,))  # no interrupt comes before it is stored
        return ptr

    def deallocate(self, ptr: int, nbytes: int, stream: int) -> None:
        """Keep the block, unless the plan has ended."""
        if not ptr:
            return
        size = -(-nbytes // UNIT) * UNIT
        if self._ended:
            self._deallocate(ptr, size, stream)
        else:
            self._free.setdefault(size, []).append(ptr)

    def is_out(self, ptr: int) -> bool:
        """Whether an interrupted `deallocate` has not reached the driver; what is kept here was taken."""
        return not any(ptr in kept for kept in self._free.values()) and super().is_out(ptr)

    @property
    def cached_bytes(self) -> int:
        """Bytes that are kept here and in the upstream."""
        return kept_by(self.upstream) + sum(size * len(kept) for size, kept in list(self._free.items()))

    def end(self, stream: int) -> None:
        """Give back what is kept, in the order of a stream; what comes back from now on goes to the upstream at once."""
        self._ended = True
        for size, kept in list(self._free.items()):
            while kept:
                ptr = 0
                try:
                    [ptr] = map(list.pop, (kept,))
                    self._deallocate(ptr, size, stream)
                except BaseException as error:
                    if ptr and is_untaken(error, self.upstream, ptr):
                        kept.append(ptr)  # interrupted: the next call gives it back
                    raise
