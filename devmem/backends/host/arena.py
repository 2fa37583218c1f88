"""An allocator of blocks in one range of addresses.

The range consists of chunks of 1 MiB. A block of up to half a chunk is a slot of a *slab*: one chunk, cut into slots of equal
size. A larger block is a slab of its own: a run of chunks with one slot. A dict leads from each chunk in use to its slab, so
operations cost the same with ten live blocks as with a million. One mapping serves all of them: a process has at most 65,530.

A block ends in two steps. After `invalidate` no address in it is found, but its bytes stay taken; after `recycle` they can
become another block. Between the two the owner waits for the work that uses the block. What `invalidate` returns names this end:
`recycle` does nothing for an end that is over, so an interrupted owner may leave the block to any later one.

Any thread may call any method. A reentrant lock guards what is free. A stream's thread, for which a caller that has the lock may
wait, takes none: `recycle_later` leaves the block to the next caller. A signal's handler, or a finalizer that the garbage
collector runs, may come behind a call and call the arena again. So slots and chunks are taken before they are given out, and are
free only when all else has been done: an interrupt may leave some taken until the arena is unmapped, and none free twice.
"""

from __future__ import annotations

import ctypes
import mmap
import os
import re
import sys
from collections import deque
from contextlib import suppress

import numpy as np

from devmem.spi.sizes import exact_size

from ...toolkit.locks import Rank, lock
from .error_codes import host_error

CHUNK = 1 << 20
SLAB_LIMIT = CHUNK // 2  # larger blocks are slabs of their own
#: Free chunks keep their pages, which are costly to make anew, up to so many bytes of them.
KEPT_PAGES = 256 * CHUNK
#: What the system tells of a file that holds device memory.
FILE_NAME = "devmem-host"
#: In how many pieces at least the pages of an arena that is free are given back.
PIECES = 8
_NORESERVE = getattr(mmap, "MAP_NORESERVE", 0x4000 if sys.platform == "linux" else 0)


class Arena:
    """A range of ``nbytes``, rounded up to whole chunks.

    Of a hidden `Mapping` the blocks have the hidden addresses, or with ``touchable`` the others. ``shift`` leads from the address
    of a block to where it can be touched.
    """

    def __init__(self, nbytes: int, hidden: bool, touchable: bool = False) -> None:
        self.mapping = mapping = Mapping(-(-nbytes // CHUNK) * CHUNK, hidden, shared=not touchable)
        self.size = mapping.size
        self.base, self.shift = (mapping.base + mapping.shift, 0) if touchable else (mapping.base, mapping.shift)
        self.end = self.base + self.size
        self.live: dict[int, int] = {}  # address of a block -> bytes, as asked for
        self.ending: dict[int, object] = {}  # address of a block that is neither live nor recycled -> its end
        # For each chunk 0 if it is free. Searching bytes is fast, and joins neighbours by itself.
        self._chunks = bytearray(self.size // CHUNK)
        self._slabs: dict[int, _Slab] = {}  # by the index of each of its chunks; those of free chunks have no slots
        #: By the size of a slot; the newest is filled first. All that have a free slot, and some that have none.
        self._with_room: dict[int, dict[_Slab, None]] = {}
        #: For each chunk 0 if it has no pages: it was never taken, or not since they were given back.
        self._touched = bytearray(len(self._chunks))
        self._kept = 0  # bytes of free chunks with pages
        self._passed: deque[tuple[int, object]] = deque()  # blocks that can be recycled, and their ends
        self._lock = lock("arena", Rank.LEAF)

    def allocate(self, nbytes: int) -> int:
        """Return the address of a new block of ``nbytes``, a multiple of 256; raise `OutOfMemory`."""
        step = _slot_size(nbytes) if nbytes <= SLAB_LIMIT else -(-nbytes // CHUNK) * CHUNK
        with self._lock:
            self._recycle_passed()
            slabs = self._with_room.get(step)
            if slabs is None:
                slabs = self._with_room.setdefault(step, {})
            while True:
                try:
                    slab = next(reversed(slabs), None)
                except RuntimeError:  # a handler has changed them
                    continue
                if slab is None:
                    slab = self._new_slab(step, nbytes)
                if slab.free:
                    ptr = slab.free.pop()
                    self.live[ptr] = nbytes
                    return ptr
                slabs.pop(slab, None)

    def invalidate(self, ptr: int, nbytes: int) -> object | None:
        """End the block: no call finds it from now on, its bytes stay taken. Return the end; None if there is no such block."""
        end = object()
        with self._lock:
            if ptr in self.live and self.live[ptr] == nbytes:
                self.ending[ptr] = end
                del self.live[ptr]
                return end
        return None

    def recycle(self, ptr: int, end: object) -> None:
        """Make the bytes of an invalidated block available again, if that has not happened.

        The slot gets an int of its own: `knows` tells one block at it from the next.
        """
        with self._lock:
            slab = self._slabs.get((ptr - self.base) // CHUNK)
            if slab is None:
                return
            slabs = self._with_room[slab.step]
            if ptr not in self.ending or self.ending[ptr] is not end:
                return
            del self.ending[ptr]
            slabs[slab] = None
            slab.free.append(slab.base + (ptr - slab.base))
            # One empty slab of each size stays, or allocating and freeing one small block would build a slab each time.
            if len(slab.free) == slab.slots and (len(slabs) > 1 or slab.step > SLAB_LIMIT):
                self._drop(slab)

    def recycle_later(self, ptr: int, end: object) -> None:
        """Let the next caller do it: takes no lock."""
        self._passed.append((ptr, end))

    def _recycle_passed(self) -> None:
        while self._passed:
            try:
                passed = self._passed.popleft()
            except IndexError:  # a handler has come between
                return
            self.recycle(*passed)

    def knows(self, ptr: int) -> bool:
        """Return whether the block that was handed out under this very int is live, and no later one at its address."""
        return ptr in self.live and any(each is ptr for each in list(self.live))

    def discard(self) -> None:
        """Give the pages of all that is free back to the operating system, also those of the empty slabs that are kept."""
        with self._lock:
            self._recycle_passed()
            self._drop_empty()
            if self._kept:
                self._kept = 0
                # In pieces, which are taken meanwhile: a handler that comes here allocates from the others.
                for run in re.finditer(rb"\0{1,%d}" % (len(self._chunks) // PIECES + 1), bytes(self._chunks)):
                    first, end = run.span()
                    free, taken = bytes(end - first), b"\1" * (end - first)
                    if self._chunks[first:end] == free:
                        self._chunks[first:end] = taken  # meanwhile
                        try:
                            self._discard(first, end)
                        finally:
                            self._chunks[first:end] = free

    @property
    def used(self) -> int:
        """Bytes that are taken from the range, with what rounding up adds."""
        with self._lock:
            self._recycle_passed()
            slabs = list(self._slabs.values())
        return sum(slab.step * (slab.slots - len(slab.free)) for slab in set(slabs))

    def resolve(self, ptr: int, nbytes: int) -> int:
        """Return where the bytes at ``ptr`` can be touched; 0 unless all of them lie in one live block."""
        size = self.live.get(ptr)
        if size is None:
            start, size = self.block_around(ptr) or (ptr, 0)
            size -= ptr - start
        return ptr + self.shift if nbytes <= size else 0

    def block_around(self, ptr: int) -> tuple[int, int] | None:
        """Return (address, bytes) of the live block that an address lies in."""
        slab = self._slabs.get((ptr - self.base) // CHUNK)
        if slab is None:
            return None
        start = ptr - (ptr - slab.base) % slab.step
        size = self.live.get(start, 0)
        return (start, size) if ptr < start + size else None

    def overlaps(self, ptr: int, nbytes: int) -> bool:
        """Return whether any of the bytes lies in the range, in a live block or not."""
        return ptr < self.end and ptr + nbytes > self.base

    def _new_slab(self, step: int, nbytes: int) -> _Slab:
        """Make a slab of free chunks, or raise `OutOfMemory`."""
        count = -(-step // CHUNK)
        fits = count <= len(self._chunks)
        free, taken = bytes(count * fits), b"\1" * (count * fits)
        for dropped in (False, True) if fits else ():
            while (first := self._chunks.find(free)) >= 0:
                slab = _Slab(self.base + first * CHUNK, step)
                chunks = dict.fromkeys(range(first, first + count), slab)
                if self._chunks[first : first + count] != free:  # a handler has come between
                    continue
                self._chunks[first : first + count] = taken
                self._slabs |= chunks
                self._with_room[step][slab] = None
                self._kept = max(self._kept - self._touched.count(1, first, first + count) * CHUNK, 0)
                self._touched[first : first + count] = taken
                return slab
            if not dropped:
                self._drop_empty()
        left = self.size - self.used
        why = f"asked for {exact_size(nbytes)}, {exact_size(left)} of {exact_size(self.size)} are free"
        raise host_error("alloc", "OUT_OF_MEMORY", why)

    def _drop_empty(self) -> None:
        for slab in [slab for each in list(self._with_room.values()) for slab in list(each)]:
            self._drop(slab)

    def _drop(self, slab: _Slab) -> None:
        """Make the chunks of a slab free, if it is empty."""
        first, count, slabs = (slab.base - self.base) // CHUNK, -(-slab.step // CHUNK), self._with_room[slab.step]
        free = bytes(count)
        # None is left for an allocation that has chosen the slab, and that this call has interrupted.
        slots, slab.free = slab.free, []
        if not slots or len(slots) < slab.slots:  # it is in use, or was dropped meanwhile
            slab.free += slots
            return
        slab.slots = 0  # `_slabs` has it until another one is made of the chunks
        if slab in slabs:
            del slabs[slab]
        try:
            if self._kept + count * CHUNK > KEPT_PAGES:
                self._discard(first, first + count)
            else:
                self._kept += count * CHUNK
        finally:
            self._chunks[first : first + count] = free  # last: another slab can be made of them

    def _discard(self, first: int, end: int) -> None:
        """Give the pages of chunks that are not in use back to the operating system."""
        if self.mapping.discard(first * CHUNK, (end - first) * CHUNK):
            self._touched[first:end] = bytes(end - first)


class _Slab:
    """Chunks cut into slots of ``step`` bytes."""

    __slots__ = ("base", "free", "slots", "step")

    def __init__(self, base: int, step: int) -> None:
        self.base = base
        self.step = step
        self.slots = max(CHUNK // step, 1)
        self.free = [base + step * slot for slot in reversed(range(self.slots))]  # the lowest is taken first


def _slot_size(nbytes: int) -> int:
    """Round up to a multiple of 256, from 1 KiB on to one of four sizes in each octave."""
    units = (nbytes + 255) >> 8
    spare = max(units.bit_length() - 3, 0)
    return (-(-units >> spare) << spare) << 8


class Mapping:
    """Sparse memory: ``size`` bytes at ``base``, which can be touched ``shift`` bytes further.

    If they are hidden, one file is mapped twice: at ``base`` no access is allowed, ``shift`` bytes further every access is. Only
    Linux has this; elsewhere, and if they are not hidden, ``shift`` is 0. If they are ``shared``, other processes can map the
    ``file``, where there is one: on Linux.
    """

    def __init__(self, nbytes: int, hidden: bool, shared: bool = False) -> None:
        self.size = nbytes
        self.file = -1
        try:
            if (hidden or shared) and sys.platform == "linux":
                self.file = os.memfd_create(FILE_NAME)
                os.ftruncate(self.file, nbytes)
                self._maps = map_file(self.file, 0, nbytes, hidden)
                advice = "MADV_REMOVE"
            elif sys.platform == "win32":
                # Every mapped page is charged against the page file there, so the range cannot be sparse.
                self.size = min(nbytes, 1 << 32)
                self._maps = [mmap.mmap(-1, self.size)]
                advice = ""
            else:
                self._maps = [mmap.mmap(-1, nbytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | _NORESERVE)]
                advice = "MADV_DONTNEED" if sys.platform == "linux" else ""
        except OSError as error:
            self._close_file()
            raise host_error("open", "OPERATING_SYSTEM", f"cannot map {exact_size(nbytes)}: {error}") from error
        if not shared:
            self._close_file()
        self.base = address_of(self._maps[-1])
        self.shift = address_of(self._maps[0]) - self.base
        self.end = self.base + self.size
        self._advice: int | None = getattr(mmap, advice, None)

    def _close_file(self) -> None:
        file, self.file = self.file, -1
        if file >= 0:
            os.close(file)

    def discard(self, offset: int, nbytes: int) -> bool:
        """Give pages back to the operating system. False where it refuses: they stay resident and nothing else changes."""
        with suppress(OSError, ValueError):
            if self._advice is not None:
                self._maps[0].madvise(self._advice, offset, nbytes)
            return True
        return False

    def unmap(self) -> None:
        """Unmap the bytes. No thread may be using them."""
        self._close_file()
        for each in self._maps:
            each.close()

    def keep(self) -> None:
        """Let the bytes be mapped until the process ends, beyond the interpreter: a leak instead of a dangling address."""
        for each in self._maps:
            ctypes.pythonapi.Py_IncRef(ctypes.py_object(each))


def map_file(file: int, offset: int, nbytes: int, hidden: bool) -> list[mmap.mmap]:
    """Return a mapping of part of a file that can be touched, and, ``hidden``, another one that cannot."""
    protections = (mmap.PROT_READ | mmap.PROT_WRITE, 0)[: 2 if hidden else 1]
    flags = mmap.MAP_SHARED | _NORESERVE
    return [mmap.mmap(file, nbytes, flags=flags, prot=prot, offset=offset) for prot in protections]


def address_of(mapping: mmap.mmap) -> int:
    """Return where a mapping begins."""
    # By NumPy, because ctypes wants a writable buffer. The array goes at once: while it lives the mapping cannot be closed.
    return int(np.frombuffer(mapping, np.uint8).ctypes.data)
