"""The base of all pools, for device memory and for page-locked memory.

A pool takes chunks from its upstream and keeps freed blocks for reuse. A request goes through these steps, until one serves it:

1. A free block that may be used at once.
2. A block whose event has completed by now.
3. A new chunk from the upstream. If that would take the pool over its budget, idle chunks go back first.
4. The upstream has no memory: wait for the device, use any block, give all idle chunks back and ask the upstream once more, for
   no more than the request.

Only the last step waits, where anything is cached, and `Pool.trim`. Any thread may allocate and deallocate; `FreeLists` has the
lock, `CrossStreamReuse` speaks to the driver. A subclass says how blocks are found (`_find`), reclaimed (`_reclaim`), and how
large the next chunk is (`_plan`).
"""

from __future__ import annotations

import sys
from abc import ABC, abstractmethod
from collections.abc import Iterable
from contextlib import suppress
from threading import get_ident

from ...spi.driver import Driver
from ...spi.errors import DevmemError, LayoutError, OutOfMemory, UnsupportedError
from ...spi.memory import MemoryResource
from ...spi.sizes import exact_size
from ...spi.types import LEGACY_STREAM
from ...toolkit.deferred_errors import FirstError
from ..base.interrupts import CannotWait
from ..memory.adaptor import Adaptor
from .cross_stream import CrossStreamReuse
from .free_lists import Effort, FreeLists
from .stream_cache import PendingBlocks


class Pool(Adaptor, ABC):
    """Keeps freed blocks of its upstream, and hands them out again."""

    def __init__(self, upstream: MemoryResource | None, *, whole_blocks: bool) -> None:
        super().__init__(upstream)
        self._limit = sys.maxsize
        self._whole_blocks = whole_blocks
        self._start_anew()

    def _start_anew(self) -> None:
        self._lists = FreeLists(self._lock, ordered=super().stream_ordered, whole_blocks=self._whole_blocks)
        self._bound: CrossStreamReuse | None = None
        #: What is known of streams, by number: those that are not here need not be forgotten.
        self._by_stream = self._lists.by_stream

    def bind(self, driver: Driver) -> None:
        """Take the device, whose events tell what streams have completed."""
        super().bind(driver)
        if self._bound is None:
            self._bound = CrossStreamReuse(self._lists, driver)

    @property
    def _reuse(self) -> CrossStreamReuse:
        if self._bound is None:
            raise DevmemError(f"{self!r} is not bound to a device yet: install it with devmem.use_memory()")
        return self._bound

    @abstractmethod
    def _size(self, nbytes: int) -> int:
        """The size of the block that serves a request."""

    @abstractmethod
    def _find(self, nbytes: int, stream: int, effort: Effort) -> int:
        """Take a free block out of the lists, which are being changed, of those that the stream may use now; 0 if none serves."""

    @abstractmethod
    def _reclaim(self, nbytes: int, stream: int) -> int:
        """A block, after those were reclaimed whose work has completed; 0 if none serves."""

    @abstractmethod
    def _plan(self, nbytes: int, stream: int) -> tuple[int, int]:
        """The size of the next chunk; and by how many bytes the pool would be over its budget with it."""

    def _enter_chunk(self, ptr: int, chunk: int, nbytes: int, stream: int) -> PendingBlocks | None:
        """Enter a new chunk, from whose start the block is cut; its rest, if that has to wait for an event on the stream."""
        self._lists.add_chunk(ptr, chunk)
        return None

    def _allocate_chunk(self, size: int, stream: int) -> int:
        return self._allocate(size, stream)

    def deallocate_chunk(self, ptr: int, size: int) -> None:
        self._deallocate(ptr, size, LEGACY_STREAM)

    @property
    def cached_bytes(self) -> int:
        """Bytes that are free or on their way back, here and in the upstream; also those that a stream may still use."""
        return self._lists.cached + sum(list(self._lists.transit.values())) + super().cached_bytes

    def is_out(self, ptr: int) -> bool:
        """No: blocks are kept here."""
        return False

    def trim(self, keep_bytes: int) -> None:
        """Give idle chunks back to the upstream until at most ``keep_bytes`` are kept.

        Waits for the device where streams may still use them. A chunk with a live block stays, with what is free in it. On a
        device that captures a graph only what needs no waiting goes.
        """
        reuse, keep_nothing = self._reuse, keep_bytes == 0
        reuse.reclaim_completed()
        cached = self._released(keep_bytes)
        if (cached > keep_bytes or (keep_nothing and reuse.queue.waiting)) and not reuse.any_capturing():
            with suppress(UnsupportedError):  # a stream of which this pool knows nothing is captured
                reuse.wait_for_device()
            cached = self._released(keep_bytes)
        self._lists.ask(self._lists.drop_empty_caches)
        if keep_nothing:
            reuse.events.drop_spare()
        super().trim(max(0, keep_bytes - cached))

    def forget_stream(self, stream: int) -> None:
        """Take note that a stream is about to be destroyed: its handle may be another stream's soon."""
        super().forget_stream(stream)
        self._reuse.forget(stream)

    def detach(self, streams: Iterable[int]) -> None:
        """Forget these streams, of whose ends the pool is not told."""
        super().detach(streams)
        for stream in streams:
            self._reuse.forget(stream)

    def _released(self, keep_bytes: int) -> int:
        """Release idle chunks beyond so many bytes; how many bytes are kept then."""
        cached = self._lists.cached
        self._release(cached - keep_bytes)
        return self._lists.cached if cached > keep_bytes else cached

    def _miss(self, nbytes: int, stream: int) -> int:
        if nbytes <= 0:
            if nbytes == 0:
                return 0
            raise LayoutError(f"{self!r} cannot allocate {nbytes} bytes")
        return self._cut(nbytes, stream, Effort.FIRST) or self._reclaim(nbytes, stream) or self._grow(nbytes, stream)

    def _cut(self, nbytes: int, stream: int, effort: Effort) -> int:
        """A free block, of those that the stream may use now; 0 if none serves, or the lists are being changed."""
        return self._lists.ask(self._find, nbytes, stream, effort) or 0

    def _grow(self, nbytes: int, stream: int) -> int:
        chunk, over = self._plan(nbytes, stream)
        if over > 0:
            self._reuse.reclaim(stream)
            # Chunks that would go back without making enough room are better cut.
            effort = Effort.FULL if over <= self._lists.idle.whole else Effort.LAST
            if ptr := self._cut(nbytes, stream, effort):
                return ptr
            self._release(over)
        try:
            return self._from_new_chunk(chunk, nbytes, stream)
        except MemoryError:
            reusable = self._lists.cached and not self._reuse.any_capturing()
            if not reusable and self._size(nbytes) >= chunk:
                raise
        if reusable:
            self._reuse.wait_for_device()
            if ptr := self._cut(nbytes, stream, Effort.LAST):
                return ptr
            self._release(self._lists.cached)
        return self._from_new_chunk(self._size(nbytes), nbytes, stream)

    def _from_new_chunk(self, chunk: int, nbytes: int, stream: int) -> int:
        lists, me = self._lists, get_ident()
        with lists.lock:
            if lists.reserved + chunk > self._limit:
                cached = lists.cached
                rounded = "" if chunk == nbytes else f"; it takes {exact_size(chunk)} at once"
                raise OutOfMemory(
                    f"the limit is {exact_size(self._limit)}, of which {exact_size(lists.reserved)} are held, "
                    f"{exact_size(cached)} of these cached in blocks that do not serve ({self!r}){rounded}; "
                    f"raise max_bytes, or free something",
                    requested=nbytes,
                    free=self._limit - lists.reserved + cached,
                    limit=self._limit,
                )
            lists.request(me, chunk)
        try:
            ptr = self._allocate_chunk(chunk, stream)
            with lists.lock:
                if lists.changing:
                    # The block may come back before its chunk is entered: it must not merge with a neighbour in another chunk.
                    lists.chunks[ptr] = chunk
                rest = lists.change(self._enter_chunk, ptr, chunk, nbytes, stream)
        finally:
            lists.requested.pop(me, None)
        if rest is not None:
            # How long this stream will be there is not known, but now it is.
            self._reuse.record_if_possible(rest, stream, stream)
        return ptr

    def _release(self, nbytes: int) -> None:
        """Give idle chunks back to the upstream until they make up so many bytes, and those that are in transit."""
        lists = self._lists
        lists.ask(lists.take_idle_chunks, nbytes)
        with lists.lock:
            starts = [] if lists.changing else list(lists.transit)  # inside a change they wait for the next call
        with FirstError() as first:
            for start in starts:
                first.attempt(self._give_back_chunk, start)  # if one cannot be freed, the other chunks are still to go

    def _give_back_chunk(self, start: int) -> None:
        """Give a chunk in transit back, unless another thread has."""
        transit = self._lists.transit
        size = transit.pop(start, 0)
        if size:
            try:
                self.deallocate_chunk(start, size)
            except CannotWait:  # a handler, to whom the upstream was refused
                transit[start] = size
                raise
