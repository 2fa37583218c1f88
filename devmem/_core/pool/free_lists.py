"""The free bytes of a pool, and the streams that may use them. No driver is called here.

A pool takes chunks from its upstream. Every free byte of a chunk is in one of three places: in the cache of a stream
(`StreamCache`), behind an event (`PendingBlocks`), or idle, where every stream may use it. Chunks whose every byte is idle
can go back to the upstream.

`FreeLists.change` changes them, under the lock, which is never held across a call of the driver or the upstream. A finalizer or a
signal's handler may run in the middle, and come back to the pool on the same thread. It finds `changing` true: what it gives back
waits until the change ends, what it asks for comes from the upstream, and a stream that it would end has to stay for now. Lists
of a `StreamCache` are used without the lock: each step on them is atomic.

An exception may come into a change: then the lists are `broken`, and the next change begins with making them anew from what is
known for certain, which are the chunks and the free blocks by address. Each step takes a block out of one place before it puts
it into another. So a block that was on its way is in none, and stays in use until the device is reset; never is it in two.
"""

from __future__ import annotations

import threading
import weakref
from bisect import bisect_left
from collections import deque
from collections.abc import Callable, Iterable
from enum import IntEnum
from operator import itemgetter
from typing import ParamSpec, TypeVar

from ...spi.types import PER_THREAD_STREAM
from .size_bins import SMALL, Fit, FreeSet, SizeBins, cut_from, rounded
from .stream_cache import PendingBlocks, StreamCache, Token

P = ParamSpec("P")
R = TypeVar("R")

#: Each time so many more streams are known, those that only ever allocated are forgotten: a bound on memory.
MANY_STREAMS = 64
#: So many small blocks are cut at once, but not more than so many bytes: a new block of 64 bytes takes 2 us, one by one 13 us.
BATCH, BATCH_BYTES = 16, 16 << 10
#: What counts as little when a large block would be cut from one that is far larger (`FreeLists._cut_far`), as a part of the
#: live peak. Four variations of the traces `serving` and `analysis` reserve 1.12 and 1.12 of what is live, on average; with
#: 0.07 1.13 and 1.12, with 0.09 1.13 and 1.13. With 0.001 the traces ask the upstream 3,530 times, with this value 1,168
#: times.
LITTLE = 0.075
#: A block of at most one part in so many of the live peak is always cut from parts of chunks. With 32 the trace `analysis`
#: reserves 1.15, with 128 the traces ask the upstream 1.5 times as often, without the rule 2.7 times.
SMALL_SHARE = 64


class Effort(IntEnum):
    """The effort of a search for a large block that is not close to the request."""

    FIRST = 1  #: other streams have not been asked yet: do not
    FULL = 2  #: as far as enough chunks stay whole
    LAST = 3  #: memory has run out: whatever is free


class FreeLists:
    """The chunks of a pool and its free blocks."""

    def __init__(self, lock: threading.RLock, *, ordered: bool, whole_blocks: bool) -> None:
        #: Chunks are made in the order of a stream: what is left of a new one is no other stream's before that has completed.
        self.ordered = ordered
        #: Every block is a chunk: none is cut or merged, and the one that was freed first goes back first.
        self.whole_blocks = whole_blocks
        #: By stream and requested size, the free blocks: all that a hit touches.
        self.ready: dict[int, dict[int, list[int]]] = {}
        self.thread = threading.local()
        #: The size of every chunk, by its address.
        self.chunks: dict[int, int] = {}
        #: Bytes of all chunks.
        self.chunk_bytes = 0
        #: Chunks of the upstream's that are in no list: they are to be given back. By address.
        self.transit: dict[int, int] = {}
        #: Bytes that a thread is asking the upstream for right now.
        self.requested: dict[int, int] = {}
        self.peak_live = self.peak_reserved = 0
        #: Bytes that were idle in parts of chunks when last nearly as much was live as ever.
        self.parts_at_peak = 0
        self.by_stream: dict[int, StreamCache] = {}
        self.by_thread: list[StreamCache] = []
        self.idle = self.new_bins()
        self.pending: dict[PendingBlocks, None] = {}
        self.lock = lock
        #: Whether a change is being made, by the thread that has the lock.
        self.changing = False
        #: Whether an exception came into a change.
        self.broken = False
        #: What a handler or finalizer wants changed, which came into a change.
        self._later: deque[Callable[[], object]] = deque()

    def change(self, step: Callable[P, R], *arguments: P.args, **named: P.kwargs) -> R | None:
        """Call a step that changes the lists, whose result this returns.

        Inside another change the step is called when that one ends, and None is returned.
        """
        with self.lock:
            if self.changing:
                self._later.append(lambda: step(*arguments, **named))
                return None
            return self._change(step, *arguments, **named)

    def ask(self, step: Callable[P, R], *arguments: P.args, **named: P.kwargs) -> R | None:
        """Call a step like `change`, but drop it if another change is under way."""
        with self.lock:
            return None if self.changing else self._change(step, *arguments, **named)

    def look(self, step: Callable[[], R]) -> R:
        """Call a step that looks at the lists; what a handler changes meanwhile waits for its end."""
        with self.lock:
            return step() if self.changing else self._change(step)

    def is_changing(self) -> bool:
        """Whether this is a finalizer or a handler that came into a change."""
        with self.lock:
            return self.changing

    def _change(self, step: Callable[P, R], *arguments: P.args, **named: P.kwargs) -> R:
        self.changing = True
        try:
            if self.broken:
                self._renew()
            self.broken = True
            self._make_later()  # what an interrupted change has left; a stream is forgotten after what came back on it
            made = step(*arguments, **named)
            self._make_later()
            self.broken = False
            return made
        finally:
            self.changing = False

    def _make_later(self) -> None:
        while self._later:
            self._later.popleft()()

    def _renew(self) -> None:
        """Make all that follows from the chunks and the free blocks' addresses anew."""
        self.chunk_bytes = sum(self.chunks.values())
        for cache in self.caches():
            cache.free.renew()
        for waiting in self.pending:
            waiting.free.renew()
        self.idle.renew()

    # -- bytes and chunks ----------------------------------------------------------------------------------------------

    @property
    def reserved(self) -> int:
        """Bytes that the upstream has given, or may be about to give."""
        return self.chunk_bytes + sum(list(self.transit.values())) + sum(list(self.requested.values()))

    @property
    def cached(self) -> int:
        """Bytes that are free; in the middle of a change, those that are counted so far."""
        return self.look(self._count_cached)

    def _count_cached(self) -> int:
        pending = sum(each.free.nbytes for each in self.pending)
        return self.idle.nbytes + pending + sum(cache.nbytes for cache in self.caches())

    def caches(self) -> list[StreamCache]:
        """The caches of all streams."""
        return [*self.by_stream.values(), *self.by_thread]

    def all_bins(self) -> list[SizeBins]:
        """All free blocks that are merged with their neighbours."""
        return [self.idle, *[each.free for each in self.caches()], *[each.free for each in self.pending]]

    def new_bins(self) -> SizeBins:
        """Bins without blocks."""
        return SizeBins(self.chunks, 0 if self.whole_blocks else SMALL)

    def coalesce(self) -> None:
        """Merge all free blocks with their neighbours."""
        for cache in self.caches():
            cache.coalesce()

    def request(self, thread: int, nbytes: int) -> None:
        """Count bytes that a thread is about to ask the upstream for, until it takes them out of `requested`."""
        self.requested[thread] = nbytes
        self.peak_reserved = max(self.peak_reserved, self.reserved)

    def add_chunk(self, start: int, size: int) -> None:
        """Enter a new chunk."""
        self.chunks[start] = size
        self.chunk_bytes += size

    def take_idle_chunks(self, nbytes: int) -> None:
        """Take out idle chunks until they make up so many bytes, and little more; they are in `transit` from now on."""
        idle: list[tuple[int, int, FreeSet]] = []
        for free in (self.idle.small, self.idle.large) if nbytes > 0 else ():
            starts = free.starts if self.whole_blocks else free.whole.starts()
            idle += [(self.chunks[start], start, free) for start in starts]
        if not self.whole_blocks:
            idle.sort(key=itemgetter(0))
        while nbytes > 0 and idle:
            # The one that was freed first; or the smallest that is enough alone, else the largest.
            enough = 0 if self.whole_blocks else bisect_left(idle, nbytes, key=itemgetter(0))
            size, start, free = idle.pop(min(enough, len(idle) - 1))
            # Forgotten before it goes back: another thread may be given its address at once, and enter it.
            free.remove(start)
            del self.chunks[start]
            self.chunk_bytes -= size
            self.transit[start] = size
            nbytes -= size

    # -- streams -------------------------------------------------------------------------------------------------------

    def cache_of(self, stream: int) -> StreamCache:
        """The cache of a stream."""
        if stream == PER_THREAD_STREAM:
            # Another stream in each thread, though the handle is the same: told apart by what dies with the thread.
            found: StreamCache | None = getattr(self.thread, "cache", None)
            if found is None:
                self.thread.token = token = Token()
                found = self.thread.cache = StreamCache(stream, self.chunks, weakref.ref(token))
                self.thread.ready = found.by_request
                self.by_thread.append(found)
            return found
        found = self.by_stream.get(stream)
        if found is None:
            if len(self.by_stream) % MANY_STREAMS == MANY_STREAMS - 1:
                self.drop_empty_caches()
            found = self.by_stream[stream] = StreamCache(stream, self.chunks)
            if found.handle_valid:
                self.ready[stream] = found.by_request
        return found

    def put_block(self, ptr: int, nbytes: int, stream: int) -> None:
        """Put a block that came back into the cache of its stream, whose handle is therefore valid until `forget_stream`."""
        cache = self.cache_of(stream)
        if not cache.handle_valid:
            for each in self.pending:
                if each.cache is cache:
                    # Entered when the number may have meant another stream: to be used only after the event, unless new chunks
                    # have no order.
                    each.cache = None
                    if not self.ordered:
                        cache.free.absorb(each.free)
            cache.handle_valid = True
            self.ready[stream] = cache.by_request
        cache.list_for(nbytes, rounded(nbytes)).append(ptr)

    def forget_stream(self, stream: int) -> PendingBlocks | None:
        """Remove the cache of a stream that is about to be destroyed; its blocks, for which an event is to be recorded."""
        cache = self.by_stream.get(stream)
        if cache is None:
            return None
        self.ready.pop(stream, None)
        own = [each for each in self.pending if each.cache is cache]
        self.undo_pending(own)
        for each in own:
            each.cache = None
        made = self.make_pending(cache)
        if made is not None:
            made.cache = None
        del self.by_stream[stream]
        return made

    def drop_empty_caches(self) -> None:
        """Forget threads that have ended, and streams that only ever allocated."""
        caches = self.caches()
        used = {each.cache for each in self.pending} if caches else set()
        for cache in caches:
            if (cache.handle_valid and not cache.ended) or cache in used or cache.nbytes:
                continue
            if cache.ended:
                self.by_thread.remove(cache)
            else:
                del self.by_stream[cache.stream]

    # -- blocks that wait for an event ---------------------------------------------------------------------------------

    def make_pending(self, cache: StreamCache) -> PendingBlocks | None:
        """Let the free blocks of a stream wait for an event; None if it has none."""
        cache.coalesce()
        if not cache.free.nbytes:
            return None
        made = PendingBlocks(cache, self.new_bins())
        self.add_pending(made)
        made.free.absorb(cache.free)
        return made

    def add_pending(self, made: PendingBlocks) -> None:
        """Enter blocks that wait for an event, or for the device."""
        self.pending[made] = None

    def undo_pending(self, made: Iterable[PendingBlocks]) -> None:
        """Give blocks without a recorded event back to their stream; blocks without a stream wait for the device."""
        for each in made:
            if not each.recorded and each.cache is not None and each in self.pending:
                each.cache.free.absorb(each.free)
                each.cache = None
                del self.pending[each]

    def complete(self, completed: Iterable[PendingBlocks]) -> None:
        """Make blocks idle whose event, or whose device, has completed."""
        for each in completed:
            self.idle.absorb(each.free)
            each.cache = None
            self.pending.pop(each, None)
        self.drop_empty_caches()

    # -- allocation ----------------------------------------------------------------------------------------------------

    def cut(self, cache: StreamCache, nbytes: int, effort: Effort) -> int:
        """A block of the bytes that the stream may use now; 0 if none serves."""
        size = rounded(nbytes)
        # A stream whose handle is not known to be valid may be another than the chunk was made for, with its number. Where
        # chunks have no order that does not matter: what is left of a new chunk was never used.
        own = cache.handle_valid or not self.ordered
        bins = [cache.free, *[each.free for each in self.pending if each.cache is cache and own], self.idle]
        ptr = cut_from(bins, size, Fit.CLOSE)
        # Not before: what is merged now has to be cut again, which the next hit pays for.
        if not ptr and cache.coalesce():
            ptr = cut_from(bins, size, Fit.CLOSE)
        if not ptr and size >= SMALL and effort is not Effort.FIRST:
            ptr = self._cut_far(bins, size, effort)
        if ptr:
            blocks = cache.list_for(nbytes, size)
            if size <= BATCH_BYTES and cache.handle_valid:
                count = min(BATCH, BATCH_BYTES // size)
                start = cut_from(bins, rounded(count * size), Fit.CLOSE)
                if start:
                    blocks.extend(range(start + (count - 1) * size, start - 1, -size))
        return ptr

    def _cut_far(self, bins: list[SizeBins], size: int, effort: Effort) -> int:
        """Cut a large block from one that is far larger.

        A whole chunk can go back to make room for one that fits, its parts cannot. If all memory came into use but the parts,
        all of them would be reserved beyond what is live. So their sum is bounded; beyond it a chunk is exchanged instead.
        """
        if effort is Effort.LAST:
            return cut_from(bins, size, Fit.PARTS) or cut_from(bins, size, Fit.WHOLE)
        little = LITTLE * self.peak_live
        every = self.all_bins()
        whole = sum(each.large.whole.nbytes for each in every)
        parts = sum(each.nbytes for each in every) - whole
        below_peak = max(0, self.peak_live - (self.chunk_bytes - whole - parts))
        if below_peak <= little:
            self.parts_at_peak = parts
        # A program that used its parts up when it was last near its peak does so again as it grows: then parts may also make up
        # what is missing to the peak. Without this rule a training step whose sizes all came before asks for new chunks again.
        few = parts <= little + (below_peak if self.parts_at_peak <= little else 0)
        ptr = cut_from(bins, size, Fit.PARTS) if few or size * SMALL_SHARE <= self.peak_live else 0
        if not ptr and few and whole - size >= LITTLE * self.chunk_bytes:
            ptr = cut_from(bins, size, Fit.WHOLE)
        return ptr
