"""Free blocks of a pool, found by size and merged with their neighbours.

A request is rounded up to a size class: multiples of 512 bytes up to 32 KiB, above that 64 classes to an octave, so at most
1/64 is lost. `FreeSet` holds free blocks by address, so that a block merges with the blocks before and after it, and by class
(`Bins`), so that the smallest block that serves a request is found without a search. Chunks that are free from end to end are
kept apart: only they can go back to the upstream. `SizeBins` keeps small and large blocks apart: a small block that lives
long, cut from the chunk of a large one, would keep all of it from being used or given back.

Nothing here is safe to be used by two threads at once: `FreeLists` holds the lock. The truth of a set is its blocks by address,
`FreeSet.starts`, in which a block is never entered before it was taken out of where it came from. All else is made anew from that
(`FreeSet.renew`) where an exception came into a change.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from enum import Enum
from itertools import repeat

#: The smallest block, and what every size is a multiple of.
UNIT = 512
#: Size classes in an octave.
CLASSES = 64
#: Blocks of this size and more are large.
SMALL = 1 << 20
#: A large block is close to a request if it is larger by one part in so many at most. With 4 the trace `serving` reserves
#: 1.21 of what is live, with 8 1.12; with 16 the traces ask the upstream 1.3 times as often.
CLOSE = 8
_LINEAR = UNIT * CLASSES
_LINEAR_BITS = _LINEAR.bit_length()
_BITS = CLASSES.bit_length()


def rounded(nbytes: int) -> int:
    """The size of the class that a request falls into."""
    size = (nbytes + UNIT - 1) & -UNIT
    if size <= _LINEAR:
        return size
    step = 1 << (size.bit_length() - _BITS)
    return (size + step - 1) & -step


def class_of(size: int) -> int:
    """The number of the greatest class that is not above a size; all blocks of it and of higher classes serve it."""
    bits = size.bit_length()
    if bits < _LINEAR_BITS:
        return size // UNIT
    return (bits - _LINEAR_BITS) * CLASSES + (size >> (bits - _BITS))


class Bins:
    """Blocks by class. The smallest class that serves is found in the bits of one integer, without a search."""

    __slots__ = ("bins", "mask", "nbytes")

    def __init__(self) -> None:
        self.bins: dict[int, dict[int, None]] = {}
        self.mask = 0
        self.nbytes = 0

    def put(self, number: int, start: int, size: int) -> None:
        """Enter a block of a class."""
        found = self.bins.get(number)
        if found is None:
            found = self.bins[number] = {}
            self.mask |= 1 << number
        found[start] = None
        self.nbytes += size

    def drop(self, number: int, start: int, size: int) -> None:
        """Take a block out."""
        found = self.bins[number]
        del found[start]
        if not found:
            del self.bins[number]
            self.mask &= ~(1 << number)
        self.nbytes -= size

    def find(self, number: int, most: int = 0) -> int:
        """A block of the smallest class from ``number`` up, to ``most`` if given; 0 if there is none."""
        above = self.mask >> number
        if not above or (most and not above & ((1 << (most - number + 1)) - 1)):
            return 0
        # The blocks of one class differ by 1/64 at most: any will do. Popped and put back, because any other look at the last
        # key of a dict first passes over the keys that were deleted behind it.
        found = self.bins[number + (above & -above).bit_length() - 1]
        start, _ = found.popitem()
        found[start] = None
        return start

    def starts(self) -> list[int]:
        """The blocks."""
        return [start for found in list(self.bins.values()) for start in list(found)]

    def highest(self) -> Mapping[int, None]:
        """The blocks of the highest class that there is."""
        return self.bins.get(self.mask.bit_length() - 1, {})


class FreeSet:
    """Free blocks of one condition, each merged with its neighbours in the set, but never over the edge of a chunk."""

    __slots__ = ("chunks", "ends", "nbytes", "parts", "starts", "whole")

    def __init__(self, chunks: dict[int, int]) -> None:
        #: The size of every chunk of the pool, by its address.
        self.chunks = chunks
        #: The size of each block by its address, in the order of entry.
        self.starts: dict[int, int] = {}
        self._clear_index()

    def __len__(self) -> int:
        return len(self.starts)

    @property
    def largest(self) -> int:
        """Bytes of the largest block; a handler that asks in the middle of a change may find one in no or one table."""
        size = self.starts.get
        return max(max(map(size, each.highest(), repeat(0)), default=0) for each in (self.parts, self.whole))

    def add(self, start: int, size: int) -> None:
        """Put a block in, and merge it with the blocks right before and after it."""
        if start not in self.chunks and (before := self.ends.get(start)) is not None:
            size += self.remove(before)
            start = before
        end = start + size
        if end not in self.chunks and end in self.starts:
            size += self.remove(end)
        self._insert(start, size)

    def take(self, start: int, size: int) -> int:
        """Cut ``size`` bytes off the block that starts there; its address."""
        whole = self.remove(start)
        if whole > size:
            self._insert(start + size, whole - size)
        return start

    def remove(self, start: int) -> int:
        """Take a block out; its size."""
        size = self.starts.pop(start)
        self.nbytes -= size
        del self.ends[start + size]
        (self.whole if self.chunks.get(start) == size else self.parts).drop(class_of(size), start, size)
        return size

    def absorb(self, other: FreeSet) -> None:
        """Take over all blocks of another set."""
        for start, size in list(other.starts.items()):
            del other.starts[start]
            self.add(start, size)
        other._clear_index()

    def renew(self) -> None:
        """Make all that follows from the blocks' addresses and sizes anew."""
        self._clear_index()
        for start, size in self.starts.items():
            self._index(start, size)

    def _insert(self, start: int, size: int) -> None:
        self.starts[start] = size
        self._index(start, size)

    def _index(self, start: int, size: int) -> None:
        self.ends[start + size] = start
        self.nbytes += size
        (self.whole if self.chunks.get(start) == size else self.parts).put(class_of(size), start, size)

    def _clear_index(self) -> None:
        #: The address of each block by its end.
        self.ends: dict[int, int] = {}
        #: Blocks that are parts of chunks, and chunks that are free from end to end.
        self.parts, self.whole = Bins(), Bins()
        self.nbytes = 0


class Fit(Enum):
    """The free blocks that may serve a large request; a small one is cut from any small block.

    As long as one part of a chunk is in use, the rest can neither go back nor serve a larger request. So whole chunks are the
    last to be broken up.
    """

    EXACT = 0  #: whole chunks of its own class
    CLOSE = 1  #: blocks that are little larger
    PARTS = 2  #: parts of chunks that are broken up already
    WHOLE = 3  #: whole chunks


class SizeBins:
    """Free blocks of one condition, those below ``small`` bytes apart from the large ones."""

    __slots__ = ("_limit", "large", "small")

    def __init__(self, chunks: dict[int, int], small: int = SMALL) -> None:
        self._limit = small
        self.small = FreeSet(chunks)
        self.large = FreeSet(chunks)

    def __len__(self) -> int:
        return len(self.small) + len(self.large)

    @property
    def nbytes(self) -> int:
        """Bytes of all blocks."""
        return self.small.nbytes + self.large.nbytes

    @property
    def whole(self) -> int:
        """Bytes of all chunks that are free from end to end."""
        return self.small.whole.nbytes + self.large.whole.nbytes

    @property
    def largest(self) -> int:
        """Bytes of the largest block."""
        return max(self.small.largest, self.large.largest)

    def of(self, size: int) -> FreeSet:
        """The set that blocks of a class are cut from, and come back to."""
        return self.small if size < self._limit else self.large

    def absorb(self, other: SizeBins) -> None:
        """Take over all blocks of other bins."""
        self.small.absorb(other.small)
        self.large.absorb(other.large)

    def renew(self) -> None:
        """Make all that follows from the blocks' addresses and sizes anew."""
        self.small.renew()
        self.large.renew()


def cut_from(bins: Iterable[SizeBins], size: int, fit: Fit) -> int:
    """Cut ``size`` bytes out of the first bins that have a block that serves; 0 if none has."""
    number, most = class_of(size), 0
    if fit is Fit.EXACT:
        most = number
    elif fit is Fit.CLOSE and size >= SMALL:
        most = class_of(size + size // CLOSE)
    for each in bins:
        free = each.of(size)
        if free.starts:
            start = free.parts.find(number, most) if fit is Fit.PARTS or fit is Fit.CLOSE else 0
            if not start and fit is not Fit.PARTS:
                start = free.whole.find(number, most)
            if start:
                return free.take(start, size)
    return 0
