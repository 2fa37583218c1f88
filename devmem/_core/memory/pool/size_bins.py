"""Free blocks of a pool: size classes, and sets of blocks that merge with their neighbours."""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum

#: The smallest block, and what every size is a multiple of.
UNIT = 512
#: Classes to an octave: rounding up costs at most one part in so many.
CLASSES = 64
#: From here on blocks are large. Near is what is larger by one part in `NEAR` at most.
SMALL, NEAR = 1 << 20, 8
#: Below this every multiple of the unit is a class of its own.
_LINEAR = UNIT * CLASSES
_LINEAR_BITS = _LINEAR.bit_length()
_BITS = CLASSES.bit_length()


def rounded(nbytes: int) -> int:
    """The size of the class that a request falls into: exact in units up to 32 KiB, at most 1/64 more above."""
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


class FreeSet:
    """Blocks that are free under one condition: a stream's order, an event, or none.

    Neighbours in the set are merged, never over the edge of a chunk: a chunk goes back as it came. Chunks that are free from end
    to end are kept apart from parts of chunks.

    Not safe to be used by two threads at once: its pool sees to that.
    """

    __slots__ = ("chunks", "ends", "nbytes", "parts", "starts", "whole")

    def __init__(self, chunks: Mapping[int, int]) -> None:
        self.chunks = chunks
        self.starts: dict[int, int] = {}
        self.ends: dict[int, int] = {}
        self.parts = Bins()
        self.whole = Bins()
        self.nbytes = 0

    def __len__(self) -> int:
        return len(self.starts)

    @property
    def largest(self) -> int:
        """Bytes of the largest block."""
        sizes = self.starts.__getitem__
        return max(max(map(sizes, each.highest()), default=0) for each in (self.parts, self.whole))

    def add(self, start: int, size: int) -> None:
        """Put a block in, and merge it with what lies right before and after it."""
        chunks, end = self.chunks, start + size
        if start not in chunks:
            before = self.ends.get(start)
            if before is not None:
                start = before
                self.remove(before)
        if end not in chunks:
            after = self.starts.get(end)
            if after is not None:
                self.remove(end)
                end += after
        self._insert(start, end - start)

    def take(self, start: int, size: int) -> int:
        """Cut ``size`` bytes out of a block, which starts there; the start."""
        whole = self.remove(start)
        if whole > size:
            self._insert(start + size, whole - size)
        return start

    def remove(self, start: int) -> int:
        """Take a block out; its size."""
        # Out of the books first: should this be interrupted, a block is lost, and not in two places.
        size = self.starts.pop(start)
        self.nbytes -= size
        del self.ends[start + size]
        (self.whole if self.chunks.get(start) == size else self.parts).drop(class_of(size), start, size)
        return size

    def absorb(self, other: FreeSet) -> None:
        """Take over all blocks of another set."""
        blocks = other.starts
        other.starts, other.ends, other.parts, other.whole, other.nbytes = {}, {}, Bins(), Bins(), 0
        for start, size in blocks.items():
            self.add(start, size)

    def _insert(self, start: int, size: int) -> None:
        self.starts[start] = size
        self.ends[start + size] = start
        self.nbytes += size
        (self.whole if self.chunks.get(start) == size else self.parts).put(class_of(size), start, size)


class Bins:
    """Blocks by class. The smallest class that serves is found in the bits of one integer: neither the number of blocks nor that
    of classes counts.
    """

    __slots__ = ("bins", "mask", "nbytes")

    def __init__(self) -> None:
        self.bins: dict[int, dict[int, None]] = {}
        self.mask = 0
        self.nbytes = 0

    def put(self, number: int, start: int, size: int) -> None:
        """Enter a block of a class."""
        found = self.bins.get(number)
        if found is None:
            self.bins[number] = {start: None}
            self.mask |= 1 << number
        else:
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
        """The smallest block of this class or a higher one, up to ``most`` if given; 0 if there is none."""
        above = self.mask >> number
        if not above or (most and not above & ((1 << (most - number + 1)) - 1)):
            return 0
        # The blocks of one class differ by 1/64 at most: any will do. Looked at by popitem: the last key of a dict from which
        # many were deleted is far from its end for every other way to ask.
        found = self.bins[number + (above & -above).bit_length() - 1]
        start = found.popitem()[0]
        found[start] = None
        return start

    def starts(self) -> list[int]:
        """The blocks."""
        return [start for found in self.bins.values() for start in found]

    def highest(self) -> Mapping[int, None]:
        """The blocks of the highest class that there is."""
        return self.bins[self.mask.bit_length() - 1] if self.mask else {}


class Reach(Enum):
    """How far a large request may go, in this order. All that serves a small one is near.

    What is cut off serves few, and as long as one part of a chunk is in use, the rest of it can neither go back nor serve a
    larger request. So whole chunks are the last that are broken up.
    """

    NEAR = 1  #: blocks that are little larger
    PARTS = 2  #: of chunks that are broken already, whatever is large enough
    WHOLE = 3  #: whole chunks


class Shelf:
    """Blocks that are free under one condition, small and large ones apart.

    A small block that lives long, cut from the chunk of a large one, would keep all of it from being used or given back.
    """

    __slots__ = ("large", "small")

    def __init__(self, chunks: Mapping[int, int]) -> None:
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
        return self.small if size < SMALL else self.large

    def cut(self, size: int, reach: Reach) -> int:
        """Cut ``size`` bytes out; 0 if nothing serves within reach."""
        free, number = self.of(size), class_of(size)
        if size < SMALL:
            start = free.parts.find(number) or free.whole.find(number)
        elif reach is Reach.NEAR:
            most = class_of(size + size // NEAR)
            start = free.parts.find(number, most) or free.whole.find(number, most)
        else:
            start = (free.parts if reach is Reach.PARTS else free.whole).find(number)
        return free.take(start, size) if start else 0

    def absorb(self, other: Shelf) -> None:
        """Take over all blocks of another shelf."""
        self.small.absorb(other.small)
        self.large.absorb(other.large)
