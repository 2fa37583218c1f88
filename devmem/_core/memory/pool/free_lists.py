"""The books of a pool: which bytes are free, and for whom. Nothing here calls a driver."""

from __future__ import annotations

import threading
import weakref
from bisect import bisect_left
from collections import deque
from collections.abc import Callable
from enum import IntEnum
from operator import itemgetter
from types import TracebackType

from ....spi.types import PER_THREAD_STREAM
from .size_bins import SMALL, Reach, Shelf, rounded
from .stream_cache import Chunk, Fence, Home, Token

#: Each time so many streams are known those are forgotten that only ever allocated.
MANY_STREAMS = 64
#: So many small blocks are cut at once, but not more than so many bytes.
MORE, FEW_BYTES = 16, 16 << 10
#: A whole chunk is broken for a large block only if this part of what is held stays whole; and that and large parts are cut only
#: as long as what lies idle in parts is not more than this part of the most that was live: see `Books._cut_far`.
KEPT_WHOLE, IN_PARTS = 0.06, 0.08
#: Parts are used up if no more than this lay idle when last so nearly all was live, both as parts of the most that was.
USED_UP, NEARLY = 0.05, 0.1
#: A block of which the most that was live would make so many may be cut from any part; so many more, and other streams are not
#: asked before.
MIDDLING, MINOR = 64, 256


class Effort(IntEnum):
    """What may be done to find a block, besides what costs nothing."""

    FIRST = 1  #: other streams have not been asked yet
    FULL = 2  #: all that leaves enough chunks whole
    LAST = 3  #: whatever there is


class Books:
    """Chunks, the free blocks in them, and whose they are.

    What is free belongs to a stream (`Home`), waits behind an event (`Fence`), or is idle: everyone's. ``with books.open() as
    ours:`` guards all of it. The lock is never held across a call of the driver or the upstream. The collector may run a
    finalizer of the user's in the middle, which comes back here in the same thread: it finds ``ours`` false, must leave the
    books alone, and puts what it wants written into `later`.

    Attributes
    ----------
    ordered : bool
        Chunks are made in the order of a stream: what is cut from a new one is no other stream's before that has passed.
    ready : dict
        By stream and requested size, the blocks to hand out again: all that a hit touches, and without the lock. Each step on
        it is atomic, and a list stays the list of its class and stream for good.
    held : int
        Bytes of all chunks.
    pledged : int
        Bytes being taken from the upstream or given back right now: they count for the limit.
    parts_at_peak : int
        Bytes that lay idle in parts of chunks when last nearly as much was live as ever.
    """

    def __init__(self, *, ordered: bool) -> None:
        self.ordered = ordered
        self.ready: dict[int, dict[int, list[int]]] = {}
        self.mine = threading.local()
        self.chunks: dict[int, int] = {}
        self.parts_at_peak = 0
        self.held = self.pledged = self.peak_live = self.peak_reserved = 0
        self.streams: dict[int, Home] = {}
        self.threads: list[Home] = []
        self.idle = Shelf(self.chunks)
        self.fences: list[Fence] = []
        self.later: deque[Callable[[], object]] = deque()
        self._lock = threading.RLock()
        self._inside = False

    def open(self) -> Opened:
        """Guard the books for a ``with`` block."""
        return Opened(self)

    # -- chunks --------------------------------------------------------------------------------------------------------

    @property
    def reserved(self) -> int:
        """Bytes that the upstream has given, or may be about to."""
        return self.held + self.pledged

    def cached(self) -> int:
        """Bytes that are free."""
        free = self.idle.nbytes + sum(fence.free.nbytes for fence in self.fences)
        return free + sum(home.cached() for home in self.homes())

    def gathered(self) -> int:
        """Bytes that are free, after everything that lies ready was merged with its neighbours: for those who will take of it."""
        homes = self.homes()
        for home in homes:
            home.gather()
        fenced = sum(fence.free.nbytes for fence in self.fences)
        return self.idle.nbytes + fenced + sum(home.free.nbytes for home in homes)

    def pledge(self, nbytes: int) -> None:
        """Note that so much is about to come from the upstream; less than nothing: that it came, or did not."""
        self.pledged += nbytes
        self.peak_reserved = max(self.peak_reserved, self.reserved)

    def enter_chunk(self, start: int, size: int) -> None:
        """Note a chunk, for which was pledged."""
        self.pledged -= size
        self.chunks[start] = size
        self.held += size

    def strike_idle_chunks(self, nbytes: int) -> list[Chunk]:
        """Take out chunks that nobody uses until they make up so many bytes, and little more; pledged until they are gone."""
        struck: list[Chunk] = []
        idle = [self.idle.small, self.idle.large]
        chunks = (
            sorted((self.chunks[start], start, free) for free in idle for start in free.whole.starts())
            if nbytes > 0
            else []
        )
        while nbytes > 0 and chunks:
            # The smallest that is enough alone, else the largest.
            enough = bisect_left(chunks, nbytes, key=itemgetter(0))
            size, start, free = chunks.pop(min(enough, len(chunks) - 1))
            free.remove(start)
            del self.chunks[start]
            self.held -= size
            self.pledged += size
            nbytes -= size
            struck.append(Chunk(start, size, free))
        return struck

    def put_back(self, chunk: Chunk) -> None:
        """Note that a chunk that was taken out is there still."""
        self.enter_chunk(chunk.start, chunk.size)
        chunk.free.add(chunk.start, chunk.size)

    # -- whose it is ---------------------------------------------------------------------------------------------------

    def home(self, stream: int) -> Home:
        """The home of what comes back on a stream."""
        if stream == PER_THREAD_STREAM:
            # Another stream in each thread, though the number is the same: told apart by what dies with the thread.
            found: Home | None = getattr(self.mine, "home", None)
            if found is None:
                self.mine.token = token = Token()
                found = self.mine.home = Home(stream, self.chunks, weakref.ref(token))
                self.mine.ready = found.ready
                self.threads.append(found)
            return found
        found = self.streams.get(stream)
        if found is None:
            if len(self.streams) % MANY_STREAMS == MANY_STREAMS - 1:
                self.drop_empty_homes()
            found = self.streams[stream] = Home(stream, self.chunks)
            if found.trusted:
                self.ready[stream] = found.ready
        return found

    def homes(self) -> list[Home]:
        """All homes."""
        return [*list(self.streams.values()), *self.threads]

    def trust(self, home: Home) -> None:
        """A block came back on the stream: so it is one that lives until we are told. What was cut for it is its own now."""
        if not home.trusted:
            home.trusted = True
            for fence in self.fences:
                if fence.home is home:
                    fence.home = None
                    if not self.ordered:
                        home.free.absorb(fence.free)
            self.ready[home.stream] = home.ready

    def forget(self, stream: int, *, recording: bool) -> tuple[Fence | None, list[threading.Lock]]:
        """A stream will be destroyed: the fence for what is its own, and what is held while somebody names it."""
        home = self.streams.pop(stream, None)
        self.ready.pop(stream, None)
        if home is None:
            return None, []
        theirs = [fence for fence in self.fences if fence.home is home]
        recordings = [fence.recording for fence in theirs if fence.recording is not None]
        for fence in theirs:
            if not fence.event and fence.recording is None:
                self.unfence(fence)
            fence.home = None
        made = self.fence(home, recording=recording)
        if made is not None:
            made.home = None
        return made, recordings

    def cut(self, home: Home, nbytes: int, effort: Effort) -> int:
        """A block out of what the stream may use now; 0 if nothing serves."""
        size = rounded(nbytes)
        # A stream that is not trusted may be another one than the chunk was made for, with its number. Where chunks are made in
        # no stream's order that is the same: what is left of a new one was used by nobody.
        own = home.trusted or not self.ordered
        sets = [home.free, *[fence.free for fence in self.fences if fence.home is home and own], self.idle]
        ptr = _cut_from(sets, size, Reach.NEAR)
        # Only now: what is gathered has to be cut again, which the next hit pays for.
        if not ptr and home.gather():
            ptr = _cut_from(sets, size, Reach.NEAR)
        if not ptr and size >= SMALL:
            ptr = self._cut_far(sets, size, effort)
        if ptr:
            stack = home.stack(nbytes, size)
            if size <= FEW_BYTES and home.trusted:
                self._cut_more(sets, size, stack)
        return ptr

    def _cut_far(self, sets: list[Shelf], size: int, effort: Effort) -> int:
        """Cut a large block from one that is far larger.

        A whole chunk can go back to make room for one that fits; parts cannot. If all memory came into use but the parts, all of
        them would be held beyond what is live: so their sum is bounded, and beyond it a chunk is changed for another instead.
        """
        if effort is Effort.LAST:
            return _cut_from(sets, size, Reach.PARTS) or _cut_from(sets, size, Reach.WHOLE)
        times = self.peak_live // size
        if effort is Effort.FIRST and times < MINOR:
            return 0
        shelves = self.shelves()
        whole = sum(each.large.whole.nbytes for each in shelves)
        parts = sum(each.nbytes for each in shelves) - whole
        idle = max(0, self.peak_live - (self.held - whole - parts))
        if idle <= NEARLY * self.peak_live:
            self.parts_at_peak = parts
        # Programs that do the same again use what they left in parts as they grow: what was live and is not may lie in parts too.
        again = self.parts_at_peak <= USED_UP * self.peak_live
        few = parts <= IN_PARTS * self.peak_live + (idle if again else 0)
        ptr = _cut_from(sets, size, Reach.PARTS) if few or times >= MIDDLING else 0
        if not ptr and few and effort is Effort.FULL and whole - size >= KEPT_WHOLE * self.held:
            ptr = _cut_from(sets, size, Reach.WHOLE)
        return ptr

    def shelves(self) -> list[Shelf]:
        """All sets of free blocks."""
        return [self.idle, *[home.free for home in self.homes()], *[fence.free for fence in self.fences]]

    def _cut_more(self, sets: list[Shelf], size: int, stack: list[int]) -> None:
        """Cut more small blocks than are asked for, so that the next ones are hits."""
        count = min(MORE, FEW_BYTES // size)
        start = _cut_from(sets, rounded(count * size), Reach.NEAR)
        if start:
            stack.extend(range(start + (count - 1) * size, start - 1, -size))

    def fence(self, home: Home, *, recording: bool) -> Fence | None:
        """Put what is the stream's own behind a fence; None if it has nothing."""
        home.gather()
        if not home.free.nbytes:
            return None
        made = Fence(home, home.free, recording=recording)
        home.free = Shelf(self.chunks)
        self.fences.append(made)
        return made

    def unfence(self, fence: Fence) -> None:
        """Take a fence away that came to nothing; what was behind it is the stream's again."""
        if fence in self.fences and fence.home is not None:
            self.fences.remove(fence)
            fence.pass_to(fence.home.free)

    def drop_empty_homes(self) -> None:
        """Forget threads that have ended, and streams that only ever allocated."""
        fenced = {id(fence.home) for fence in self.fences}
        for home in self.homes():
            ended = home.thread is not None and home.thread() is None
            if (home.trusted and not ended) or id(home) in fenced or home.cached():
                continue
            if ended:
                self.threads.remove(home)
            else:
                del self.streams[home.stream]


class Opened:
    """The books, open in a ``with`` block; the value says whether they are ours to change."""

    __slots__ = ("books", "ours")

    def __init__(self, books: Books) -> None:
        self.books = books
        self.ours = False

    def __enter__(self) -> bool:
        books = self.books
        books._lock.acquire()
        if not books._inside:
            books._inside = self.ours = True
            self._catch_up()
        return self.ours

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        try:
            if self.ours:
                # In the thread that was interrupted: it alone can name its own default stream.
                self._catch_up()
        finally:
            if self.ours:
                self.books._inside = False
            self.books._lock.release()

    def _catch_up(self) -> None:
        later = self.books.later
        while later:
            later.popleft()()


def _cut_from(sets: list[Shelf], size: int, reach: Reach) -> int:
    for free in sets:
        ptr = free.cut(size, reach)
        if ptr:
            return ptr
    return 0
