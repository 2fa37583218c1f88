"""Device memory that is kept for reuse in stream order.

Work on one stream happens in order. So a block that comes back on a stream may serve the same stream at once, without a wait
and without a question: later work on it comes after the work that used the block before. `PoolMemory` keeps such blocks in
lists, by stream and requested size. A hit pops a block from its list and `deallocate` appends it again; neither takes a lock
or calls the driver. All else happens on a miss (`engine`): chunks are cut, free neighbours merge, and other streams get a
block when an event behind its last use has completed (`cross_stream`).
"""

# Decision: docs/adr/0005-what-a-pool-keeps.md
from __future__ import annotations

from dataclasses import dataclass

from ....spi.driver import Driver
from ....spi.errors import ConfigError, UnsupportedError
from ....spi.memory import MemoryResource
from ....spi.sizes import exact_size
from ....spi.types import PER_THREAD_STREAM, MemoryKind
from ...base.shown import Report
from ...base.size_text import bytes_of, check_size
from .engine import Pool
from .free_lists import Effort
from .size_bins import SMALL, UNIT, SizeBins, rounded
from .stream_cache import PendingBlocks

MIB = 1 << 20
#: Small blocks are cut from chunks of this size at least. With chunks that grow with the pool the traces ask the upstream 1,224
#: times, with this size 1,168 times, and reserve the same.
SLAB = 2 * MIB
#: The budget: so much more than the live peak may be reserved, as a part or in bytes, before idle chunks go back to make room
#: for a new one. With 0.08 instead of 0.11, or without the bytes, the traces ask the upstream a fifth or an eighth more often.
SLACK, SLACK_BYTES = 0.11, 28 * MIB


@dataclass(frozen=True, slots=True)
class PoolReport(Report):
    """The contents of a pool, and its fragmentation. Sizes are in bytes.

    Examples
    --------
    >>> with dm.use_memory(dm.memory.PoolMemory()) as pool:
    ...     d = dm.zeros(3)
    >>> report = pool.report()
    >>> report.reserved_bytes >= report.live_bytes >= d.nbytes
    True
    """

    reserved_bytes: int  #: taken from the upstream and not given back
    peak_reserved_bytes: int  #: the most that ever was
    live_bytes: int  #: handed out, rounded up to size classes
    cached_bytes: int  #: held for reuse
    largest_free_block: int  #: the most that could be handed out in one piece, to one stream or another
    free_blocks: int  #: pieces that the cached bytes are in
    chunks: int  #: pieces that the reserved bytes came in
    streams: int  #: streams that have memory of their own to reuse

    @property
    def fragmentation(self) -> float:
        """The part of the cached bytes that is not in the largest free block: 0.0 is one piece, near 1.0 is dust."""
        return 1.0 - self.largest_free_block / self.cached_bytes if self.cached_bytes else 0.0


class PoolMemory(Pool):
    """Keep freed blocks and hand them out again, in stream order, without asking the driver.

    A block that comes back on a stream serves that stream again at once, and another stream when an event behind its last use
    has completed. Blocks are cut from chunks of the upstream and merge with free neighbours; sizes are rounded up by 1/64 at
    most. Neither verb waits, except where memory ran out. Idle chunks go back with `trim`; and by themselves, before the pool
    would hold much more than the most that ever was in use, or more than ``max_bytes``.

    Parameters
    ----------
    upstream : MemoryResource, optional
        Where chunks come from; the device's plain memory by default. A chunk goes back when every stream has passed it.
    max_bytes : int or str, optional
        The most to take from the upstream: bytes, ``"4GiB"``, or a share of the device's memory, ``"80%"``. OutOfMemory beyond
        it, after what is cached was given back.

    Notes
    -----
    A program that uses a pool directly and destroys a stream on which blocks came back calls `forget_stream` before.
    devmem does, for its own streams. On a stream that is capturing a graph the pool serves from what it has, and does not
    call the driver.

    Examples
    --------
    >>> with dm.use_memory(dm.memory.PoolMemory(max_bytes="1GiB")) as pool:
    ...     d = dm.zeros(3)
    ...     d.free()
    >>> pool.cached_bytes > 0
    True
    """

    _shown = ("max_bytes",)

    def __init__(self, upstream: MemoryResource | None = None, *, max_bytes: int | str | None = None) -> None:
        super().__init__(upstream, whole_blocks=False)
        self.max_bytes = None if max_bytes is None else check_size(max_bytes)
        if isinstance(self.max_bytes, int) and self.max_bytes < UNIT:
            raise ConfigError(f"PoolMemory(max_bytes={max_bytes!r}): a pool needs at least {exact_size(UNIT)}")

    def _start_anew(self) -> None:
        super()._start_anew()
        self._ready = self._lists.ready
        self._thread = self._lists.thread
        #: By stream, the free blocks of each requested size: for the compiled core, which does what a hit does.
        self._hits = self._lists.ready

    def bind(self, driver: Driver) -> None:
        """Take the device; a share of its memory becomes a number of bytes."""
        if self.max_bytes is not None:
            self._limit = bytes_of(self.max_bytes, driver.info.total_bytes)
        super().bind(driver)

    def allocate(self, nbytes: int, stream: int) -> int:
        """Memory for work on the stream, enqueued from now on; what came back on it before, if that serves.

        Raises
        ------
        OutOfMemory
            The upstream has no more, or ``max_bytes`` would be passed, after what is cached was given back.
        UnsupportedError
            The stream is capturing a graph, and the pool has nothing to serve it from.
        """
        try:
            blocks: list[int] = (self._ready[stream] if stream != PER_THREAD_STREAM else self._thread.ready)[nbytes]
            return blocks.pop()
        except (LookupError, AttributeError):
            return self._miss(nbytes, stream)

    def deallocate(self, ptr: int, nbytes: int, stream: int) -> None:
        """Take a block back, for work that is enqueued on the stream from now on. Never waits, and never calls the driver."""
        if not ptr:
            return
        try:
            blocks: list[int] = (self._ready[stream] if stream != PER_THREAD_STREAM else self._thread.ready)[nbytes]
        except (LookupError, AttributeError):  # the first block of its size on the stream
            self._lists.change(self._lists.put_block, ptr, nbytes, stream)
        else:
            blocks.append(ptr)

    @property
    def stream_ordered(self) -> bool:
        """True for device memory. What the host can touch comes back only when all streams have passed: the host is on none."""
        return self.kind is MemoryKind.DEVICE

    @property
    def largest_free_block(self) -> int:
        """Bytes of the largest block that could be handed out, to one stream or another, without asking the upstream."""
        return self.report().largest_free_block

    def report(self) -> PoolReport:
        """Return the contents of the pool, and the number of pieces."""
        with self._lists.lock:
            self._lists.ask(self._lists.coalesce)
            return self._lists.look(self._report)

    def _report(self) -> PoolReport:
        lists = self._lists
        bins, cached = lists.all_bins(), lists.cached
        return PoolReport(
            reserved_bytes=lists.reserved,
            peak_reserved_bytes=lists.peak_reserved,
            live_bytes=lists.chunk_bytes - cached,
            cached_bytes=cached,
            largest_free_block=max(each.largest for each in bins),
            free_blocks=sum(map(len, bins)),
            chunks=len(lists.chunks),
            streams=sum(bool(cache.free.nbytes) for cache in lists.caches()),
        )

    def _size(self, nbytes: int) -> int:
        return rounded(nbytes)

    def _find(self, nbytes: int, stream: int, effort: Effort) -> int:
        return self._lists.cut(self._lists.cache_of(stream), nbytes, effort)

    def _reclaim(self, nbytes: int, stream: int) -> int:
        if not self._reuse.capturing(stream):
            self._reuse.reclaim(stream, rounded(nbytes))
            return self._cut(nbytes, stream, Effort.FULL)
        ptr = self._cut(nbytes, stream, Effort.LAST)
        if not ptr:
            raise UnsupportedError(
                f"{self!r} has no block of {exact_size(nbytes)} for a stream that is capturing a graph, where the driver must "
                f"not be asked for more: run the same work once before it is captured"
            )
        return ptr

    def _plan(self, nbytes: int, stream: int) -> tuple[int, int]:
        lists, size = self._lists, rounded(nbytes)
        with lists.lock:
            lists.ask(lists.coalesce)
            reserved = lists.reserved
            lists.peak_live = max(lists.peak_live, lists.chunk_bytes - lists.cached + size)
            budget = lists.peak_live + max(int(lists.peak_live * SLACK), SLACK_BYTES)
            cache = lists.ask(lists.cache_of, stream)
            shared = not lists.ordered or (cache is not None and cache.handle_valid)
        budget = min(budget, self._limit)
        chunk = size
        # Where chunks have the order of a stream, others could use the rest only after it has completed; and how long a stream
        # lives is not known before blocks come back on it. So such a stream gets a chunk of the size of its request.
        if size < SMALL and shared:
            chunk = max(size, min(SLAB, (self._limit - reserved) // UNIT * UNIT))
        return chunk, reserved + chunk - budget

    def _enter_chunk(self, ptr: int, chunk: int, nbytes: int, stream: int) -> PendingBlocks | None:
        lists, size = self._lists, rounded(nbytes)
        cache = lists.cache_of(stream)
        cache.list_for(nbytes, size)
        rest = None if chunk == size or cache.handle_valid else PendingBlocks(cache, SizeBins(lists.chunks))
        free = (rest or cache).free.of(size)
        super()._enter_chunk(ptr, chunk, nbytes, stream)
        if chunk > size:
            if rest is not None:
                lists.add_pending(rest)
            free.add(ptr + size, chunk - size)
        return rest
