"""What every pool does, for device memory and for page-locked memory.

A pool takes chunks from its upstream and keeps freed blocks for reuse. A request goes through these steps, until one serves it:

1. A free block that may be used at once.
2. A block whose event has completed by now.
3. A new chunk from the upstream. If that would take the pool over its budget, idle chunks go back first.
4. The upstream has no memory: wait for the device, use any block, give all idle chunks back and ask the upstream once more, for
   no more than the request.

Only the last step waits, where anything is cached, and `Pool.trim`. Any thread may allocate and deallocate; `FreeLists` has the
lock, `CrossStreamReuse` speaks to the driver. A subclass says how blocks are found (`_cut`), reclaimed (`_reclaim`), and how
large the next chunk is (`_plan`).
"""

from __future__ import annotations

import sys
from abc import ABC, abstractmethod
from functools import partial

from ....spi.driver import Driver
from ....spi.errors import DevmemError, LayoutError, OutOfMemory
from ....spi.memory import MemoryResource
from ....spi.types import LEGACY_STREAM
from ....toolkit.deferred_errors import FirstError
from ..adaptor import Adaptor
from .cross_stream import CrossStreamReuse
from .free_lists import Effort, FreeLists
from .stream_cache import PendingBlocks


class Pool(Adaptor, ABC):
    """Keeps freed blocks of its upstream, and hands them out again."""

    def __init__(self, upstream: MemoryResource | None, *, whole_blocks: bool) -> None:
        super().__init__(upstream)
        self._limit = sys.maxsize
        self._lists = FreeLists(ordered=super().stream_ordered, whole_blocks=whole_blocks)
        self._bound: CrossStreamReuse | None = None

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
    def _cut(self, nbytes: int, stream: int, effort: Effort) -> int:
        """A free block, out of what the stream may use now; 0 if none serves."""

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
        [ptr] = map(self._allocate, (size,), (stream,))  # no interrupt comes before it is stored
        return ptr

    def _deallocate_chunk(self, ptr: int, size: int) -> None:
        self._deallocate(ptr, size, LEGACY_STREAM)

    @property
    def cached_bytes(self) -> int:
        """Bytes that are free, here and in the upstream; also those that a stream may still use."""
        return self._cached() + super().cached_bytes

    def trim(self, keep_bytes: int) -> None:
        """Give idle chunks back to the upstream until at most ``keep_bytes`` are kept.

        Waits for the device where streams may still use them. A chunk with a live block stays, with what is free in it. On a
        device that captures a graph only what needs no waiting goes.
        """
        reuse, keep_nothing = self._reuse, keep_bytes == 0
        reuse.reclaim_completed()
        self._release(self._cached() - keep_bytes)
        if (self._cached() > keep_bytes or (keep_nothing and reuse.queue.waiting)) and not reuse.any_capturing():
            reuse.wait_for_device()
            self._release(self._cached() - keep_bytes)
        with self._lists.lock, self._lists as writable:
            if writable:
                self._lists.drop_empty_caches()
        if keep_nothing:
            reuse.events.drop_spare()
        super().trim(max(0, keep_bytes - self._cached()))

    def forget_stream(self, stream: int) -> None:
        """Take note that a stream is about to be destroyed: its handle may be another stream's soon."""
        super().forget_stream(stream)
        self._reuse.forget(stream)

    def _cached(self) -> int:
        with self._lists.lock, self._lists:
            return self._lists.cached

    def _miss(self, nbytes: int, stream: int) -> int:
        if nbytes <= 0:
            if nbytes == 0:
                return 0
            raise LayoutError(f"{self!r} cannot allocate {nbytes} bytes")
        # In this form no interrupt comes between what a step returns and the next line.
        [ptr] = map(self._cut, (nbytes,), (stream,), (Effort.FIRST,))
        if not ptr:
            [ptr] = map(self._reclaim, (nbytes,), (stream,))
        if not ptr:
            [ptr] = map(self._grow, (nbytes,), (stream,))
        return ptr

    def _grow(self, nbytes: int, stream: int) -> int:
        chunk, over = self._plan(nbytes, stream)
        if over > 0:
            self._reuse.reclaim(stream)
            # Chunks that would go back without making enough room are better cut.
            effort = Effort.FULL if over <= self._lists.idle.whole else Effort.LAST
            [ptr] = map(self._cut, (nbytes,), (stream,), (effort,))
            if ptr:
                return ptr
            self._release(over)
        try:
            [ptr] = map(self._from_new_chunk, (chunk,), (nbytes,), (stream,))
            return ptr
        except MemoryError:
            reusable = self._cached() and not self._reuse.any_capturing()
            if not reusable and self._size(nbytes) >= chunk:
                raise
        if reusable:
            self._reuse.wait_for_device()
            [ptr] = map(self._cut, (nbytes,), (stream,), (Effort.LAST,))
            if ptr:
                return ptr
            self._release(self._cached())
        [ptr] = map(self._from_new_chunk, (self._size(nbytes),), (nbytes,), (stream,))
        return ptr

    def _from_new_chunk(self, chunk: int, nbytes: int, stream: int) -> int:
        lists = self._lists
        with lists.lock, lists:
            if lists.reserved + chunk > self._limit:
                raise OutOfMemory(
                    f"{self!r} is at its limit: {chunk} bytes more on top of {lists.reserved} that it holds, of which "
                    f"{lists.cached} are cached but do not serve; raise max_bytes, or free something"
                )
            lists.begin_transit(chunk)
        ptr = 0
        try:
            [ptr] = map(self._allocate_chunk, (chunk,), (stream,))
            with lists.lock, lists as writable:
                if not writable:
                    lists.deferred.append(partial(self._enter_chunk, ptr, chunk, nbytes, stream))
                    return ptr
                rest = self._enter_chunk(ptr, chunk, nbytes, stream)
            if rest is not None:
                # How long this stream will be there is not known, but now it is.
                self._reuse.record_if_possible(rest, stream, stream)
            return ptr
        except BaseException:
            with lists.lock, lists:  # what was half entered is undone by now
                entered = ptr in lists.chunks
                if not entered:
                    lists.begin_transit(-chunk)
            if entered:
                self.deallocate(ptr, nbytes, stream)
            elif ptr:
                self._deallocate_chunk(ptr, chunk)
            raise

    def _release(self, nbytes: int) -> None:
        """Give idle chunks back until they make up so many bytes."""
        lists = self._lists
        with lists.lock, lists as writable:
            taken = lists.take_idle_chunks(nbytes) if writable else []
        with FirstError() as first:
            try:
                while taken:
                    start, size = taken.pop()
                    try:
                        self._deallocate_chunk(start, size)
                    except Exception as error:  # it is gone nevertheless, and the other chunks are still to go
                        first.put(error)
                    finally:
                        with lists.lock, lists:
                            lists.begin_transit(-size)
            finally:
                with lists.lock, lists:
                    for start, size in taken:
                        lists.put_back(start, size)
