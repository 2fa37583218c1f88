"""Device memory that is kept for reuse: a pool with free lists for each stream."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from functools import partial

from ....spi.driver import Driver
from ....spi.errors import ConfigError, DevmemError, LayoutError, OutOfMemory, UnsupportedError
from ....spi.memory import MemoryResource
from ....spi.types import LEGACY_STREAM, PER_THREAD_STREAM, MemoryKind
from ....toolkit.deferred_errors import FirstError
from ..adaptor import Adaptor
from ..size_text import bytes_of, check_size
from .cross_stream import Crossing
from .free_lists import Books, Effort
from .size_bins import SMALL, UNIT, Shelf, rounded
from .stream_cache import Fence

MIB = 1 << 20
#: Small blocks are cut from chunks of this size at least, and of this part of what is reserved, up to `MAX_SLAB`.
SLAB, GROWTH, MAX_SLAB = 2 * MIB, 32, 64 * MIB
#: What may be reserved before idle chunks go back to make room for a new one: the most that ever was live, and so much more,
#: whichever is greater.
SLACK, SLACK_BYTES = 0.11, 28 * MIB


@dataclass(frozen=True, slots=True)
class PoolReport:
    """What a pool holds, and how broken up it is. Sizes are in bytes."""

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


class PoolMemory(Adaptor):
    """Keep freed blocks and hand them out again, in stream order, without asking the driver.

    A block that comes back on a stream serves that stream again at once: later work on it follows what used the block before.
    Another stream gets it only after an event behind that work has passed. Blocks are cut from chunks of the upstream and
    merge with free neighbours; sizes are rounded up by 1/64 at most. Neither verb waits, except where memory ran out.

    Chunks that nothing is in go back with `trim`; and by themselves, before the pool would hold much more than the most that
    ever was in use, or more than ``max_bytes``.

    Parameters
    ----------
    upstream : MemoryResource, optional
        Where chunks come from; the device's plain memory by default. A chunk goes back when every stream has passed it.
    max_bytes : int or str, optional
        The most to take from the upstream: bytes, ``"4GiB"``, or a share of the device's memory, ``"80%"``. OutOfMemory beyond
        it, after what is cached was given back.

    Notes
    -----
    Whoever destroys a stream on which blocks came back tells the pool before, with `forget_stream`. devmem does, for its own
    streams. On a stream that is capturing a graph the pool serves from what it has, and does not call the driver.
    """

    def __init__(self, upstream: MemoryResource | None = None, *, max_bytes: int | str | None = None) -> None:
        super().__init__(upstream)
        self.max_bytes = None if max_bytes is None else check_size(max_bytes)
        if isinstance(self.max_bytes, int) and self.max_bytes < UNIT:
            raise ConfigError(f"PoolMemory(max_bytes={max_bytes!r}): a pool needs at least {UNIT} bytes")
        self._most = sys.maxsize
        self._books = Books(ordered=super().stream_ordered)
        self._ready = self._books.ready
        self._mine = self._books.mine
        self._bound: Crossing | None = None

    def bind(self, driver: Driver) -> None:
        """Take the device, whose events tell what streams have passed."""
        if self.max_bytes is not None:
            self._most = bytes_of(self.max_bytes, driver.info.total_bytes)
        super().bind(driver)
        if self._bound is None:
            self._bound = Crossing(self._books, driver)

    @property
    def _crossing(self) -> Crossing:
        if self._bound is None:
            raise DevmemError(f"{self!r} is not bound to a device yet: install it with devmem.use_memory()")
        return self._bound

    def _facts(self) -> dict[str, object]:
        return {} if self.max_bytes is None else {"max_bytes": self.max_bytes}

    # -- the two verbs -------------------------------------------------------------------------------------------------

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
            return (self._ready[stream] if stream != PER_THREAD_STREAM else self._mine.ready)[nbytes].pop()
        except (LookupError, AttributeError):
            pass
        return self._miss(nbytes, stream)

    def deallocate(self, ptr: int, nbytes: int, stream: int) -> None:
        """Take a block back, for work that is enqueued on the stream from now on. Never waits, and never calls the driver."""
        if not ptr:
            return
        try:
            (self._ready[stream] if stream != PER_THREAD_STREAM else self._mine.ready)[nbytes].append(ptr)
        except (LookupError, AttributeError):
            self._file(ptr, nbytes, stream)

    @property
    def stream_ordered(self) -> bool:
        """True for device memory. The host is on no stream: what it can touch comes back only when all streams have passed."""
        return self.kind is MemoryKind.DEVICE

    def forget_stream(self, stream: int) -> None:
        """Take note that a stream is about to be destroyed: its number may be another stream's soon."""
        super().forget_stream(stream)
        self._crossing.forget(stream)

    # -- what is kept --------------------------------------------------------------------------------------------------

    @property
    def cached_bytes(self) -> int:
        """Bytes held for reuse and used by nobody, here and in the upstream."""
        return self._cached() + super().cached_bytes

    @property
    def shared_cache(self) -> object:
        """The pool: its cache is its own."""
        return self

    @property
    def largest_free_block(self) -> int:
        """Bytes of the largest block that could be handed out, to one stream or another, without asking the upstream."""
        return self.report().largest_free_block

    def report(self) -> PoolReport:
        """What the pool holds, and in how many pieces."""
        books = self._books
        with books.open() as ours:
            homes = books.homes()
            for home in homes if ours else ():
                home.gather()
            sets = [books.idle, *[home.free for home in homes], *[fence.free for fence in books.fences]]
            cached = books.cached()
            return PoolReport(
                reserved_bytes=books.reserved,
                peak_reserved_bytes=books.peak_reserved,
                live_bytes=books.held - cached,
                cached_bytes=cached,
                largest_free_block=max(each.largest for each in sets),
                free_blocks=sum(map(len, sets)),
                chunks=len(books.chunks),
                streams=sum(bool(home.free.nbytes) for home in homes),
            )

    def trim(self, keep_bytes: int) -> None:
        """Give chunks that nothing is in back to the upstream until at most ``keep_bytes`` are kept.

        Waits for the device where streams have not passed them. A chunk with a live block stays, with what is free in it. On a
        device that captures a graph only what needs no waiting goes.
        """
        self._crossing.poll()
        self._release(self._cached() - keep_bytes)
        if (
            self._cached() > keep_bytes or (keep_bytes == 0 and self._books.fences)
        ) and not self._crossing.any_capturing():
            self._crossing.wait_for_all()
            self._release(self._cached() - keep_bytes)
        with self._books.open() as ours:
            if ours:
                self._books.drop_empty_homes()
        if keep_bytes == 0:
            self._crossing.drop_events()
        super().trim(max(0, keep_bytes - self._cached()))

    def _cached(self) -> int:
        with self._books.open():
            return self._books.cached()

    # -- off the shortest path -----------------------------------------------------------------------------------------

    def _miss(self, nbytes: int, stream: int) -> int:
        if nbytes <= 0:
            if nbytes == 0:
                return 0
            raise LayoutError(f"{self!r} cannot allocate {nbytes} bytes")
        ptr = self._cut(nbytes, stream, Effort.FIRST)
        if ptr:
            return ptr
        if self._crossing.capturing(stream):
            ptr = self._cut(nbytes, stream, Effort.LAST)
            if ptr:
                return ptr
            raise UnsupportedError(
                f"{self!r} has no block of {nbytes} bytes for a stream that is capturing a graph, where the driver must not be "
                f"asked for more: run the same work once before it is captured"
            )
        self._crossing.open_to_all(stream, rounded(nbytes))
        return self._cut(nbytes, stream, Effort.FULL) or self._grow(nbytes, stream)

    def _cut(self, nbytes: int, stream: int, effort: Effort) -> int:
        with self._books.open() as ours:
            return self._books.cut(self._books.home(stream), nbytes, effort) if ours else 0

    def _file(self, ptr: int, nbytes: int, stream: int) -> None:
        """Take back the first block of its size on a stream."""
        with self._books.open() as ours:
            if not ours:
                # In a finalizer, in the thread that this one interrupted: by then the thread's own stream is still the same.
                self._books.later.append(partial(self._enter, ptr, nbytes, stream))
                return
            self._enter(ptr, nbytes, stream)

    def _enter(self, ptr: int, nbytes: int, stream: int) -> None:
        home = self._books.home(stream)
        self._books.trust(home)
        home.stack(nbytes, rounded(nbytes)).append(ptr)

    # -- the upstream --------------------------------------------------------------------------------------------------

    def _grow(self, nbytes: int, stream: int) -> int:
        """A block from a new chunk; if that cannot be had, from what is cached for others, after all have passed it."""
        size = rounded(nbytes)
        chunk, over = self._plan(size, stream)
        if over > 0:
            self._crossing.open_to_all(stream)
            # What goes back but does not make room is better used.
            ptr = self._cut(nbytes, stream, Effort.FULL if over <= self._books.idle.whole else Effort.LAST)
            if ptr:
                return ptr
            self._release(over)
        try:
            return self._from_new_chunk(chunk, nbytes, stream)
        except MemoryError:
            if not self._cached() or self._crossing.any_capturing():
                raise
        self._crossing.wait_for_all()
        ptr = self._cut(nbytes, stream, Effort.LAST)
        if ptr:
            return ptr
        self._release(self._cached())
        return self._from_new_chunk(size, nbytes, stream)

    def _plan(self, size: int, stream: int) -> tuple[int, int]:
        """How large the next chunk is, and by how much that is more than should be held without giving something back."""
        books = self._books
        with books.open() as ours:
            held = books.reserved
            free = books.gathered() if ours else books.cached()
            books.peak_live = max(books.peak_live, books.held - free + size)
            allowed = books.peak_live + max(int(books.peak_live * SLACK), SLACK_BYTES)
            known = not books.ordered or books.home(stream).trusted
        allowed = min(allowed, self._most)
        chunk = size
        # Where chunks are in a stream's order nobody could use the rest of one before that passed it; and how long a stream
        # lives is not known before blocks come back on it.
        if size < SMALL and known:
            slab = max(SLAB, rounded(min(held // GROWTH, MAX_SLAB)))
            chunk = max(size, min(slab if held + slab <= allowed else SLAB, (self._most - held) // UNIT * UNIT))
        return chunk, held + chunk - allowed

    def _from_new_chunk(self, chunk: int, nbytes: int, stream: int) -> int:
        """Ask the upstream for a chunk, and cut the block from it."""
        books, size = self._books, rounded(nbytes)
        with books.open():
            if books.reserved + chunk > self._most:
                raise OutOfMemory(
                    f"{self!r} is at its limit: {chunk} bytes more on top of {books.reserved} that it holds, of which "
                    f"{books.cached()} are cached but do not serve; raise max_bytes, or free something"
                )
            books.pledge(chunk)
        try:
            ptr = self._allocate(chunk, stream)
        except BaseException:
            with books.open():
                books.pledge(-chunk)
            raise
        with books.open() as ours:
            if not ours:
                # The rest is entered when the call that this one interrupted is done.
                books.later.append(lambda: self._adopt(ptr, chunk, size, stream, recording=False))
                return ptr
            fence = self._adopt(ptr, chunk, size, stream, recording=True)
            books.home(stream).stack(nbytes, size)
        if fence is not None:
            # How long this stream will be there is not known, but now it is.
            self._crossing.mark(fence, stream)
        return ptr

    def _adopt(self, ptr: int, chunk: int, size: int, stream: int, *, recording: bool) -> Fence | None:
        """Enter a chunk, and what is left of it; the fence to be recorded, where the rest is not the stream's own."""
        books = self._books
        books.enter_chunk(ptr, chunk)
        if chunk == size:
            return None
        home, fence = books.home(stream), None
        if not home.trusted:
            fence = Fence(home, Shelf(books.chunks), recording=recording)
            books.fences.append(fence)
        (fence or home).free.of(size).add(ptr + size, chunk - size)
        return fence

    def _release(self, nbytes: int) -> None:
        """Give chunks that are everyone's and nobody's back, until they make up so many bytes."""
        books = self._books
        with books.open() as ours:
            struck = books.strike_idle_chunks(nbytes) if ours else []
        with FirstError() as first:
            try:
                while struck:
                    start, size, _ = struck.pop()
                    try:
                        self._deallocate(start, size, LEGACY_STREAM)
                    except Exception as error:  # given back nevertheless, and the others are still to be
                        first.put(error)
                    finally:
                        with books.open():
                            books.pledge(-size)
            finally:
                with books.open():
                    for chunk in struck:
                        books.put_back(chunk)
