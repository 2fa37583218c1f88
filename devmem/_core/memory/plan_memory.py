"""The memory of a recorded plan: blocks that no other work is given while the plan may run."""

from __future__ import annotations

from contextlib import suppress

from ...spi.memory import MemoryResource
from ..base.interrupts import CannotWait
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
        with suppress(LookupError):
            return self._free[size].pop()
        return self._allocate(size, stream)

    def deallocate(self, ptr: int, nbytes: int, stream: int) -> None:
        """Keep the block, unless the plan has ended."""
        if not ptr:
            return
        size = -(-nbytes // UNIT) * UNIT
        if self._ended:
            self._deallocate(ptr, size, stream)
        else:
            self._free.setdefault(size, []).append(ptr)

    @property
    def cached_bytes(self) -> int:
        """Bytes that are kept here and in the upstream."""
        return kept_by(self.upstream) + sum(size * len(kept) for size, kept in list(self._free.items()))

    def end(self, stream: int) -> None:
        """Give back what is kept, in the order of a stream; what comes back from now on goes to the upstream at once."""
        self._ended = True
        for size, kept in list(self._free.items()):
            while kept:
                ptr = kept.pop()
                try:
                    self._deallocate(ptr, size, stream)
                except CannotWait:
                    kept.append(ptr)  # the next call gives it back
                    raise
