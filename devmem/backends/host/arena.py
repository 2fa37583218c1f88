"""One address range of a device and the allocator that hands out pieces of it."""

from __future__ import annotations

import ctypes
import mmap
import os
import sys
import threading
from bisect import bisect_left, insort

import numpy as np

from .error_codes import host_error

CHUNK = 1 << 20  # what slabs and large blocks are made of
ALIGNMENT = 256
SLAB_LIMIT = CHUNK // 2  # larger blocks take whole chunks
PUNCH = 32 * CHUNK  # a freed block of this size gives its pages back at once,
STALE = 256 * CHUNK  # smaller ones when so much has been freed since the last time

_CHUNK_SHIFT = 20
_NORESERVE = getattr(mmap, "MAP_NORESERVE", 0x4000 if sys.platform == "linux" else 0)

# Mappings that somebody may still read when their device has been closed. Never unmapped: a leak, not a dangling address.
_kept: list[mmap.mmap] = []


class Arena:
    """A range of addresses, sub-allocated.

    Everything costs the same with ten live blocks as with a million: blocks of up to half a chunk live in slabs of
    equal slots, larger ones take runs of chunks, and both are found through a dict of chunks. One mapping serves all
    blocks, because a mapping per block runs out at 65,530.

    Parameters
    ----------
    nbytes : int
        The size of the range, rounded up to whole chunks. It is sparse: only what is written takes memory.
    hidden : bool
        Give out addresses that cannot be read or written, where the platform allows. Code that is entitled to touch
        the bytes adds `shift` to an address.
    """

    def __init__(self, nbytes: int, hidden: bool) -> None:
        self.size = -(-nbytes // CHUNK) * CHUNK
        self.hidden = hidden and sys.platform == "linux"
        self._map()
        self.end = self.base + self.size
        self.host_shift = 0  # what the owner adds to an address before showing it to the host
        self.used = 0  # bytes taken from the range, slots counted whole
        self.asked = 0  # bytes in live blocks, as asked for
        self.live: dict[int, int] = {}  # address of a block -> bytes asked for
        self._chunks: dict[int, _Slab] = {}  # index of a chunk -> what occupies it
        self._open: dict[int, dict[_Slab, None]] = {}  # slot size -> slabs with room; the newest is filled first
        self._runs = _Runs(self.size >> _CHUNK_SHIFT)
        self._stale = 0
        # Around bookkeeping only. Not reentrant: a finalizer that frees from within the collector is a bug worth a hang.
        self._lock = threading.Lock()

    def allocate(self, nbytes: int) -> int:
        """Return the address of a new block of ``nbytes``; raise `OutOfMemory`."""
        with self._lock:
            if nbytes <= SLAB_LIMIT:
                step = _slot_size(nbytes)
                slabs = self._open.get(step)
                slab = next(reversed(slabs)) if slabs else self._new_slab(step, nbytes)
                ptr = slab.free.pop()
                if not slab.free:
                    del self._open[step][slab]
            else:
                slab = self._new_run(nbytes)
                ptr, step = slab.base, slab.step
            slab.used += 1
            self.live[ptr] = nbytes
            self.asked += nbytes
            self.used += step
            return ptr

    def retire(self, ptr: int, nbytes: int) -> bool:
        """Forget the block, so that no new call can name it; False unless it is one. Its bytes stay taken."""
        with self._lock:
            if self.live.get(ptr) != nbytes:
                return False
            del self.live[ptr]
            self.asked -= nbytes
            return True

    def recycle(self, ptr: int) -> None:
        """Make the bytes of a retired block available again."""
        slab = self._chunks[(ptr - self.base) >> _CHUNK_SHIFT]
        if slab.step >= PUNCH:
            self._punch(slab.base, slab.step)  # before anyone else can have written to it, hence outside the lock
        with self._lock:
            self.used -= slab.step
            slab.used -= 1
            if slab.step > SLAB_LIMIT:
                self._drop(slab)
                return
            slabs = self._open[slab.step]
            slab.free.append(ptr)
            slabs[slab] = None
            # One empty slab of each size is kept, or allocating and freeing one block would build a slab each time.
            if not slab.used and len(slabs) > 1:
                del slabs[slab]
                self._drop(slab)

    def resolve(self, ptr: int, nbytes: int) -> int:
        """Return where the bytes at ``ptr`` can be touched; 0 unless all of them lie in one live block."""
        size = self.live.get(ptr)
        if size is None:
            slab = self._chunks.get((ptr - self.base) >> _CHUNK_SHIFT)
            if slab is None:
                return 0
            offset = (ptr - slab.base) % slab.step
            size = self.live.get(ptr - offset, 0) - offset
        return ptr + self.shift if nbytes <= size else 0

    def block_around(self, ptr: int) -> tuple[int, int] | None:
        """(first address, bytes) of the live block that an address lies in."""
        slab = self._chunks.get((ptr - self.base) >> _CHUNK_SHIFT)
        if slab is None:
            return None
        base = ptr - (ptr - slab.base) % slab.step
        size = self.live.get(base, 0)
        return (base, size) if ptr < base + size else None

    def overlaps(self, ptr: int, nbytes: int) -> bool:
        """Whether any of the bytes lies in the range, live or not."""
        return ptr < self.end and ptr + nbytes > self.base

    def close(self, keep: bool) -> None:
        """Unmap; with ``keep`` leave everything mapped for good."""
        if keep:
            _kept.extend(self._maps)
            return
        for mapping in self._maps:
            mapping.close()

    def pin_mappings(self) -> None:
        """Make the mappings outlive the interpreter, for a worker that is still copying when it goes."""
        for mapping in self._maps:
            ctypes.pythonapi.Py_IncRef(ctypes.py_object(mapping))

    # -- inside the lock ---------------------------------------------------------------------------------------------

    def _new_slab(self, step: int, nbytes: int) -> _Slab:
        slab = self._take(CHUNK, nbytes, step)
        slab.free = list(range(slab.base + (CHUNK // step - 1) * step, slab.base - 1, -step))
        self._open.setdefault(step, {})[slab] = None
        return slab

    def _new_run(self, nbytes: int) -> _Slab:
        span = -(-nbytes // CHUNK) * CHUNK
        return self._take(span, nbytes, span)

    def _take(self, span: int, nbytes: int, step: int) -> _Slab:
        count = span >> _CHUNK_SHIFT
        first = self._runs.take(count)
        if first is None:
            self._drop_empty_slabs()
            first = self._runs.take(count)
        if first is None:
            free = self.size - self.used
            raise host_error("alloc", "OUT_OF_MEMORY", f"asked for {nbytes} bytes, {free} of {self.size} are free")
        slab = _Slab(self.base + (first << _CHUNK_SHIFT), step, span)
        self._chunks.update(dict.fromkeys(range(first, first + count), slab))
        return slab

    def _drop(self, slab: _Slab) -> None:
        first, count = (slab.base - self.base) >> _CHUNK_SHIFT, slab.span >> _CHUNK_SHIFT
        for index in range(first, first + count):
            del self._chunks[index]
        self._runs.give(first, count)
        if slab.step < PUNCH:
            self._stale += slab.span
            if self._stale >= STALE:
                self._stale = 0
                for start, length in self._runs.starts.items():
                    self._punch(self.base + (start << _CHUNK_SHIFT), length << _CHUNK_SHIFT)

    def _drop_empty_slabs(self) -> None:
        for slabs in self._open.values():
            for slab in [slab for slab in slabs if not slab.used]:
                del slabs[slab]
                self._drop(slab)

    # -- the mappings ------------------------------------------------------------------------------------------------

    def _map(self) -> None:
        """Map the range: twice over one file when hidden (addresses that fault, and their alias), else once."""
        self._maps: list[mmap.mmap] = []
        self._advice: int | None = None
        try:
            if self.hidden:
                self._map_twice()
            else:
                self._map_once()
        except OSError as error:
            why = f"cannot map {self.size} bytes: {error}"
            raise host_error("open", "OPERATING_SYSTEM", why) from error

    def _map_twice(self) -> None:
        file = os.memfd_create("devmem-host")
        try:
            os.ftruncate(file, self.size)
            flags = mmap.MAP_SHARED | _NORESERVE
            window = mmap.mmap(file, self.size, flags=flags, prot=0)
            alias = mmap.mmap(file, self.size, flags=flags, prot=mmap.PROT_READ | mmap.PROT_WRITE)
        finally:
            os.close(file)
        self.base = _address(window)
        self.shift = _address(alias) - self.base
        self._maps = [alias, window]
        self._advice = getattr(mmap, "MADV_REMOVE", None)

    def _map_once(self) -> None:
        if sys.platform == "win32":
            # Every mapped page is charged against the page file there, so the range cannot be sparse.
            self.size = min(self.size, 1 << 32)
            self._maps = [mmap.mmap(-1, self.size)]
        else:
            flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | _NORESERVE
            self._maps = [mmap.mmap(-1, self.size, flags=flags)]
        self.base = _address(self._maps[0])
        self.shift = 0
        self._advice = getattr(mmap, "MADV_DONTNEED", None) if sys.platform == "linux" else None

    def _punch(self, ptr: int, nbytes: int) -> None:
        """Give the pages back to the system. Only thrift: a refusal changes nothing that anyone relies on."""
        if self._advice is not None:
            try:
                self._maps[0].madvise(self._advice, ptr - self.base, nbytes)
            except (OSError, ValueError):
                self._advice = None


class _Slab:
    """Chunks cut into slots of equal size; a large block is a slab of one slot."""

    __slots__ = ("base", "free", "span", "step", "used")

    def __init__(self, base: int, step: int, span: int) -> None:
        self.base = base
        self.step = step
        self.span = span
        self.free: list[int] = []
        self.used = 0


class _Runs:
    """Free chunks, neighbours always joined; the smallest run that fits is taken."""

    def __init__(self, count: int) -> None:
        self.starts: dict[int, int] = {}  # first chunk -> length
        self._ends: dict[int, int] = {}  # chunk after the last -> first chunk
        self._bins: dict[int, dict[int, None]] = {}  # length -> first chunks
        self._lengths: list[int] = []  # the lengths there are, sorted
        self._add(0, count)

    def take(self, count: int) -> int | None:
        at = bisect_left(self._lengths, count)
        if at == len(self._lengths):
            return None
        length = self._lengths[at]
        first = next(iter(self._bins[length]))
        self._remove(first, length)
        if length > count:
            self._add(first + count, length - count)
        return first

    def give(self, first: int, count: int) -> None:
        before = self._ends.get(first)
        if before is not None:
            self._remove(before, first - before)
            count += first - before
            first = before
        after = self.starts.get(first + count)
        if after is not None:
            self._remove(first + count, after)
            count += after
        self._add(first, count)

    def _add(self, first: int, count: int) -> None:
        self.starts[first] = count
        self._ends[first + count] = first
        if count not in self._bins:
            self._bins[count] = {}
            insort(self._lengths, count)
        self._bins[count][first] = None

    def _remove(self, first: int, count: int) -> None:
        del self.starts[first], self._ends[first + count], self._bins[count][first]
        if not self._bins[count]:
            del self._bins[count]
            del self._lengths[bisect_left(self._lengths, count)]


def reserve(nbytes: int) -> tuple[mmap.mmap, int]:
    """Return a mapping that can be neither read nor written, and its address."""
    mapping = mmap.mmap(-1, nbytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | _NORESERVE, prot=0)
    return mapping, _address(mapping)


def _slot_size(nbytes: int) -> int:
    """Round up to a multiple of 256, from 1 KiB on to one of four sizes in each octave."""
    units = (nbytes + 255) >> 8
    spare = max(units.bit_length() - 3, 0)
    return (-(-units >> spare) << spare) << 8


def _address(mapping: mmap.mmap) -> int:
    # Through NumPy, since ctypes wants a writable buffer. The array is dropped: it would forbid to unmap.
    return int(np.frombuffer(mapping, np.uint8).ctypes.data)
