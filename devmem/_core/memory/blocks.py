"""Free blocks of a pool: size classes, and sets of blocks that merge with their neighbours."""

from __future__ import annotations

from collections.abc import Mapping

#: The smallest block, and what every size is a multiple of.
UNIT = 512
#: Classes to an octave: rounding up costs at most one part in so many.
CLASSES = 64
#: From here on blocks are large: each from a chunk of its own, or one that is larger by one part in `NEAR` at most.
SMALL, NEAR = 1 << 20, 4
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

    Neighbours in the set are merged, never over the edge of a chunk: a chunk goes back as it came. The smallest class that
    serves is found in the bits of one integer, so that neither the number of blocks nor that of classes counts.

    Not safe to be used by two threads at once: its pool sees to that.
    """

    __slots__ = ("bins", "chunks", "ends", "mask", "nbytes", "starts")

    def __init__(self, chunks: Mapping[int, int]) -> None:
        self.chunks = chunks
        self.starts: dict[int, int] = {}
        self.ends: dict[int, int] = {}
        self.bins: dict[int, dict[int, None]] = {}
        self.mask = 0
        self.nbytes = 0

    def __len__(self) -> int:
        return len(self.starts)

    @property
    def largest(self) -> int:
        """Bytes of the largest block."""
        return max(map(self.starts.__getitem__, self.bins[self.mask.bit_length() - 1])) if self.mask else 0

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

    def take(self, number: int, size: int, most: int = 0) -> int:
        """Cut ``size`` bytes, whose class has this number, out of the smallest block that serves; 0 if there is none.

        With ``most`` a block of a higher class than that number serves nobody.
        """
        above = self.mask >> number
        if not above or (most and not above & ((1 << (most - number + 1)) - 1)):
            return 0
        # The blocks of one class differ by 1/64 at most: any will do. Looked at by popitem: the last key of a dict from which
        # many were deleted is far from its end for every other way to ask.
        found = self.bins[number + (above & -above).bit_length() - 1]
        start = found.popitem()[0]
        found[start] = None
        whole = self.remove(start)
        if whole > size:
            self._insert(start + size, whole - size)
        return start

    def remove(self, start: int) -> int:
        """Take a whole block out; its size."""
        # Out of the books first: should this be interrupted, a block is lost, and not in two places.
        size = self.starts.pop(start)
        self.nbytes -= size
        del self.ends[start + size]
        number = class_of(size)
        found = self.bins[number]
        del found[start]
        if not found:
            del self.bins[number]
            self.mask &= ~(1 << number)
        return size

    def absorb(self, other: FreeSet) -> None:
        """Take over all blocks of another set."""
        blocks = other.starts
        other.starts, other.ends, other.bins, other.mask, other.nbytes = {}, {}, {}, 0, 0
        for start, size in blocks.items():
            self.add(start, size)

    def whole(self) -> list[int]:
        """The chunks that are free from end to end."""
        starts = self.starts
        return [start for start, size in self.chunks.items() if starts.get(start) == size]

    def _insert(self, start: int, size: int) -> None:
        number = class_of(size)
        self.starts[start] = size
        self.ends[start + size] = start
        found = self.bins.get(number)
        if found is None:
            self.bins[number] = {start: None}
            self.mask |= 1 << number
        else:
            found[start] = None
        self.nbytes += size


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
    def largest(self) -> int:
        """Bytes of the largest block."""
        return max(self.small.largest, self.large.largest)

    def of(self, size: int) -> FreeSet:
        """The set that blocks of a class are cut from, and come back to."""
        return self.small if size < SMALL else self.large

    def cut(self, size: int, near: bool) -> int:
        """Cut ``size`` bytes out; 0 if nothing serves.

        With ``near`` a large block is cut only from one that is little larger. What is cut off serves few, and as long as one
        part of a chunk is in use, the rest of it cannot go back: that would be most of what a pool holds too much.
        """
        number = class_of(size)
        if size < SMALL:
            return self.small.take(number, size)
        return self.large.take(number, size, class_of(size + size // NEAR) if near else 0)

    def absorb(self, other: Shelf) -> None:
        """Take over all blocks of another shelf."""
        self.small.absorb(other.small)
        self.large.absorb(other.large)
