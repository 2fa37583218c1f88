"""An allocator of blocks in one range of addresses.

The range consists of chunks of 1 MiB. A block of up to half a chunk is a slot of a *slab*: one chunk, cut into slots of equal
size. A larger block is a slab of its own, a run of chunks with one slot. A dict leads from every chunk in use to its slab, so
each operation costs the same with ten live blocks as with a million. Free chunks form runs, neighbours always joined, of which
the smallest that fits is taken. One mapping serves all blocks: a process has at most 65,530 mappings.

A block ends in two steps. After `invalidate` no address in it is found, but its bytes stay taken; after `recycle` they can
become another block. Between the two the owner waits for the work that uses the block.

Any thread may call any method. A lock is held around bookkeeping alone; it is not reentrant, because a finalizer that frees
memory from within a garbage collection is a bug of the caller. `resolve` and `block_around` take no lock.
"""

from __future__ import annotations

import threading
from bisect import bisect_left, insort

from .error_codes import host_error
from .mapping import Mapping

CHUNK = 1 << 20
SLAB_LIMIT = CHUNK // 2  # larger blocks are slabs of their own
#: Freed slabs of so many bytes give their pages back to the system at once, smaller ones when so many bytes have been freed.
DISCARD_AT_ONCE = 32 * CHUNK
DISCARD_TOGETHER = 256 * CHUNK

_CHUNK_SHIFT = 20


class Arena:
    """A range of ``nbytes``, rounded up to whole chunks; ``hidden`` is that of `Mapping`.

    Attributes
    ----------
    base, end, shift : int
        The range, and what leads from an address in it to where its byte can be touched.
    used, asked : int
        Bytes taken from the range, with what rounding up has added; bytes of the live blocks, as asked for.
    live : dict
        The address of each live block -> the bytes that were asked for.
    """

    def __init__(self, nbytes: int, hidden: bool) -> None:
        self.mapping = Mapping(-(-nbytes // CHUNK) * CHUNK, hidden)
        self.base, self.end, self.shift = self.mapping.base, self.mapping.end, self.mapping.shift
        self.size = self.mapping.size
        self.used = 0
        self.asked = 0
        self.live: dict[int, int] = {}
        self._slabs: dict[int, _Slab] = {}  # by the index of each chunk
        self._with_room: dict[int, dict[_Slab, None]] = {}  # by the size of a slot; the newest slab is filled first
        self._free = _FreeChunks(self.size >> _CHUNK_SHIFT)
        self._resident = 0  # bytes of freed slabs whose pages have not been given back
        self._lock = threading.Lock()

    def allocate(self, nbytes: int) -> int:
        """Return the address of a new block of ``nbytes``, a multiple of 256; raise `OutOfMemory`."""
        with self._lock:
            step = _slot_size(nbytes) if nbytes <= SLAB_LIMIT else -(-nbytes // CHUNK) * CHUNK
            slabs = self._with_room.get(step)
            slab = next(reversed(slabs)) if slabs else self._new_slab(step, nbytes)
            ptr = slab.free.pop()
            if not slab.free:
                del self._with_room[step][slab]
            slab.used += 1
            self.live[ptr] = nbytes
            self.asked += nbytes
            self.used += step
            return ptr

    def invalidate(self, ptr: int, nbytes: int) -> bool:
        """End the block: no call finds it from now on, its bytes stay taken. False if there is no such block."""
        with self._lock:
            if self.live.get(ptr) != nbytes:
                return False
            del self.live[ptr]
            self.asked -= nbytes
            return True

    def recycle(self, ptr: int) -> None:
        """Make the bytes of an invalidated block available again."""
        slab = self._slabs[(ptr - self.base) >> _CHUNK_SHIFT]
        if slab.step >= DISCARD_AT_ONCE:
            self.mapping.discard(slab.base, slab.span)  # outside the lock: these bytes cannot be another block yet
        with self._lock:
            self.used -= slab.step
            slab.used -= 1
            slabs = self._with_room[slab.step]
            slab.free.append(ptr)
            slabs[slab] = None
            # One empty slab of each size stays, or allocating and freeing one small block would build a slab each time.
            if not slab.used and (len(slabs) > 1 or slab.step > SLAB_LIMIT):
                self._drop(slab)

    def resolve(self, ptr: int, nbytes: int) -> int:
        """Return where the bytes at ``ptr`` can be touched; 0 unless all of them lie in one live block."""
        size = self.live.get(ptr)
        if size is None:
            found = self.block_around(ptr)
            if found is None:
                return 0
            size = found[0] + found[1] - ptr
        return ptr + self.shift if nbytes <= size else 0

    def block_around(self, ptr: int) -> tuple[int, int] | None:
        """Return (address, bytes) of the live block that an address lies in."""
        slab = self._slabs.get((ptr - self.base) >> _CHUNK_SHIFT)
        if slab is None:
            return None
        start = ptr - (ptr - slab.base) % slab.step
        size = self.live.get(start, 0)
        return (start, size) if ptr < start + size else None

    def overlaps(self, ptr: int, nbytes: int) -> bool:
        """Return whether any of the bytes lies in the range, in a live block or not."""
        return ptr < self.end and ptr + nbytes > self.base

    # -- inside the lock ---------------------------------------------------------------------------------------------

    def _new_slab(self, step: int, nbytes: int) -> _Slab:
        span = max(step, CHUNK)
        count = span >> _CHUNK_SHIFT
        first = self._free.take(count)
        if first is None:
            for slab in [slab for slabs in self._with_room.values() for slab in slabs if not slab.used]:
                self._drop(slab)
            first = self._free.take(count)
        if first is None:
            free = self.size - self.used
            raise host_error("alloc", "OUT_OF_MEMORY", f"asked for {nbytes} bytes, {free} of {self.size} are free")
        slab = _Slab(self.base + (first << _CHUNK_SHIFT), step, span)
        self._slabs.update(dict.fromkeys(range(first, first + count), slab))
        self._with_room.setdefault(step, {})[slab] = None
        return slab

    def _drop(self, slab: _Slab) -> None:
        """Make the chunks of an empty slab free."""
        first, count = (slab.base - self.base) >> _CHUNK_SHIFT, slab.span >> _CHUNK_SHIFT
        del self._with_room[slab.step][slab]
        for index in range(first, first + count):
            del self._slabs[index]
        self._free.give(first, count)
        if slab.step < DISCARD_AT_ONCE:
            self._resident += slab.span
        if self._resident >= DISCARD_TOGETHER:
            self._resident = 0
            for start, length in self._free.lengths.items():
                self.mapping.discard(self.base + (start << _CHUNK_SHIFT), length << _CHUNK_SHIFT)


class _Slab:
    """Chunks cut into slots of ``step`` bytes."""

    __slots__ = ("base", "free", "span", "step", "used")

    def __init__(self, base: int, step: int, span: int) -> None:
        self.base = base
        self.step = step
        self.span = span
        self.free = list(range(base + (span // step - 1) * step, base - 1, -step))  # the lowest is taken first
        self.used = 0


class _FreeChunks:
    """Runs of free chunks."""

    def __init__(self, count: int) -> None:
        self.lengths: dict[int, int] = {}  # by the first chunk
        self._first: dict[int, int] = {}  # by the chunk after the last
        self._by_length: list[tuple[int, int]] = []  # (length, first chunk), sorted
        self._add(0, count)

    def take(self, count: int) -> int | None:
        at = bisect_left(self._by_length, (count, 0))
        if at == len(self._by_length):
            return None
        length, first = self._by_length[at]
        self._remove(first, length)
        if length > count:
            self._add(first + count, length - count)
        return first

    def give(self, first: int, count: int) -> None:
        before = self._first.get(first)
        if before is not None:
            self._remove(before, first - before)
            first, count = before, count + first - before
        after = self.lengths.get(first + count)
        if after is not None:
            self._remove(first + count, after)
            count += after
        self._add(first, count)

    def _add(self, first: int, count: int) -> None:
        self.lengths[first] = count
        self._first[first + count] = first
        insort(self._by_length, (count, first))

    def _remove(self, first: int, count: int) -> None:
        del self.lengths[first], self._first[first + count]
        del self._by_length[bisect_left(self._by_length, (count, first))]


def _slot_size(nbytes: int) -> int:
    """Round up to a multiple of 256, from 1 KiB on to one of four sizes in each octave."""
    units = (nbytes + 255) >> 8
    spare = max(units.bit_length() - 3, 0)
    return (-(-units >> spare) << spare) << 8
