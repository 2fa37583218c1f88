"""An allocator of blocks in one range of addresses.

The range consists of chunks of 1 MiB. A block of up to half a chunk is a slot of a *slab*: one chunk, cut into slots of equal
size. A larger block is a slab of its own: a run of chunks with one slot. A dict leads from each chunk in use to its slab, so
operations cost the same with ten live blocks as with a million. One mapping serves all of them: a process has at most 65,530.

A block ends in two steps. After `invalidate` no address in it is found, but its bytes stay taken; after `recycle` they can
become another block. Between the two the owner waits for the work that uses the block.

Any thread may call any method. `allocate` and `recycle` take a lock. A stream's thread, for which a caller that has the lock may
wait, takes none, and leaves chunks that become free to the next caller. A signal's handler, or a finalizer that the garbage
collector runs, may come between two lines and call the arena again. It finds it whole: a slab is listed before a slot of it is
free, and what must change together is changed as `devmem.toolkit.one_step` says.
"""

from __future__ import annotations

import ctypes
import mmap
import os
import re
import sys
import threading
from functools import partial

import numpy as np

from devmem.toolkit.host_functions import this_thread
from devmem.toolkit.one_step import consume, prepared

from .error_codes import host_error

CHUNK = 1 << 20
SLAB_LIMIT = CHUNK // 2  # larger blocks are slabs of their own
#: Freed slabs of so many bytes give their pages back to the system at once, all others when so many bytes have been freed.
DISCARD_AT_ONCE, DISCARD_TOGETHER = 32 * CHUNK, 256 * CHUNK
_NORESERVE = getattr(mmap, "MAP_NORESERVE", 0x4000 if sys.platform == "linux" else 0)


class Arena:
    """A range of ``nbytes``, rounded up to whole chunks.

    Of a hidden `Mapping` the blocks have the hidden addresses, or with ``touchable`` the others. ``shift`` leads from the address
    of a block to where it can be touched.
    """

    def __init__(self, nbytes: int, hidden: bool, touchable: bool = False) -> None:
        self.mapping = mapping = Mapping(-(-nbytes // CHUNK) * CHUNK, hidden)
        self.size = mapping.size
        self.base, self.shift = (mapping.base + mapping.shift, 0) if touchable else (mapping.base, mapping.shift)
        self.end = self.base + self.size
        self.live: dict[int, int] = {}  # address of a block -> bytes, as asked for
        # For each chunk 0 if it is free. Searching bytes is fast, and joins neighbours by itself.
        self._chunks = bytearray(self.size // CHUNK)
        self._slabs: dict[int, _Slab] = {}  # by the index of each of its chunks
        #: By the size of a slot; the newest is filled first. All that have a free slot, and some that have none.
        self._with_room: dict[int, dict[_Slab, None]] = {}
        self._freed = 0
        self._empty: list[_Slab] = []  # which streams' threads have emptied
        self._lock = threading.RLock()

    def allocate(self, nbytes: int) -> int:
        """Return the address of a new block of ``nbytes``, a multiple of 256; raise `OutOfMemory`."""
        step = _slot_size(nbytes) if nbytes <= SLAB_LIMIT else -(-nbytes // CHUNK) * CHUNK
        with self._lock:
            while self._empty:
                self._drop(self._empty.pop())
            while True:
                slabs = self._with_room.setdefault(step, {})
                try:
                    slab = next(reversed(slabs)) if slabs else None
                except RuntimeError:  # they have changed meanwhile
                    continue
                if slab is None:
                    slab = self._new_slab(step, nbytes)
                last = ptr = 0
                try:
                    last = slab.free[-1]
                    ptr = slab.free.pop()
                    self.live[ptr] = nbytes
                    return ptr
                except IndexError:
                    if not slab.free:
                        slabs.pop(slab, None)
                except BaseException:
                    if ptr or (last not in slab.free and last not in self.live):
                        self.live.pop(ptr, None)
                        slab.free.append(ptr or last)
                    raise

    def invalidate(self, ptr: int, nbytes: int) -> bool:
        """End the block: no call finds it from now on, its bytes stay taken. False if there is no such block."""
        return self.live.get(ptr) == nbytes and self.live.pop(ptr, None) is not None

    def recycle(self, ptr: int) -> None:
        """Make the bytes of an invalidated block available again."""
        slab = self._slabs[(ptr - self.base) // CHUNK]
        slabs = self._with_room[slab.step]
        slabs[slab] = None
        slab.free.append(ptr)
        # One empty slab of each size stays, or allocating and freeing one small block would build a slab each time.
        if len(slab.free) == slab.slots and (len(slabs) > 1 or slab.step > SLAB_LIMIT):
            if this_thread.runs_host_function:
                self._empty.append(slab)
            else:
                with self._lock:
                    self._drop(slab)

    @property
    def used(self) -> int:
        """Bytes that are taken from the range, with what rounding up adds."""
        slabs = list(self._slabs.values())  # a finalizer may give memory back meanwhile
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

    def is_taken(self, ptr: int) -> bool:
        """Return whether a block was there that has ended, and was not recycled."""
        slab = self._slabs.get((ptr - self.base) // CHUNK)
        return slab is not None and ptr not in self.live and ptr not in slab.free

    def overlaps(self, ptr: int, nbytes: int) -> bool:
        """Return whether any of the bytes lies in the range, in a live block or not."""
        return ptr < self.end and ptr + nbytes > self.base

    def _new_slab(self, step: int, nbytes: int) -> _Slab:
        count = -(-step // CHUNK)
        fits = count <= len(self._chunks)
        free, taken, slabs = bytes(count * fits), b"\1" * (count * fits), self._with_room[step]
        for dropped in (False, True) if fits else ():
            while (first := self._chunks.find(free)) >= 0:
                slab = _Slab(self.base + first * CHUNK, step)
                changes = prepared(
                    [
                        partial(self._chunks.__setitem__, slice(first, first + count), taken),
                        partial(self._slabs.update, dict.fromkeys(range(first, first + count), slab)),
                        partial(slabs.__setitem__, slab, None),
                    ]
                )
                if self._chunks[first : first + count] == free:
                    consume(changes)
                    return slab
            for slab in () if dropped else [slab for each in list(self._with_room.values()) for slab in each.copy()]:
                self._drop(slab)
        left = self.size - self.used
        raise host_error("alloc", "OUT_OF_MEMORY", f"asked for {nbytes} bytes, {left} of {self.size} are free")

    def _drop(self, slab: _Slab) -> None:
        """Make the chunks of a slab free, if it is empty."""
        first, count, slabs = (slab.base - self.base) // CHUNK, -(-slab.step // CHUNK), self._with_room[slab.step]
        changes = prepared(
            [
                slab.free.clear,  # for an allocation that has chosen it, and that this call has interrupted
                *(partial(self._slabs.pop, index) for index in range(first, first + count)),
                partial(self._chunks.__setitem__, slice(first, first + count), bytes(count)),
            ]
        )
        listed = slab.free[slab.slots - 1 :] and slabs.pop(slab, slab) is None
        if not listed:  # it is in use again, or was dropped meanwhile
            return
        try:
            if slab.step >= DISCARD_AT_ONCE:
                self.mapping.discard(first * CHUNK, slab.step)
            else:
                self._freed += count * CHUNK
            consume(changes)
        except BaseException:
            if self._slabs.get(first) is slab:
                slabs[slab] = None
            raise
        if self._freed >= DISCARD_TOGETHER:
            self._freed = 0
            for run in re.finditer(rb"\0+", bytes(self._chunks)):
                self._discard(run.start(), run.end())

    def _discard(self, first: int, end: int) -> None:
        """Give the pages of free chunks back to the operating system; nothing is made of them meanwhile."""
        free, taken = bytes(end - first), b"\1" * (end - first)
        claim = prepared([partial(self._chunks.__setitem__, slice(first, end), taken)])
        if self._chunks[first:end] == free:
            consume(claim)
            try:
                self.mapping.discard(first * CHUNK, len(free) * CHUNK)
            finally:
                self._chunks[first:end] = free


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
    Linux has this; elsewhere, and if they are not hidden, ``shift`` is 0.
    """

    def __init__(self, nbytes: int, hidden: bool) -> None:
        self.size = nbytes
        try:
            if hidden and sys.platform == "linux":
                self._maps = _map_twice(nbytes)
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
            raise host_error("open", "OPERATING_SYSTEM", f"cannot map {nbytes} bytes: {error}") from error
        self.base = address_of(self._maps[-1])
        self.shift = address_of(self._maps[0]) - self.base
        self.end = self.base + self.size
        self._advice: int | None = getattr(mmap, advice, None)

    def discard(self, offset: int, nbytes: int) -> None:
        """Give pages back to the operating system. If it refuses, they stay resident and nothing else changes."""
        if self._advice is not None:
            try:
                self._maps[0].madvise(self._advice, offset, nbytes)
            except (OSError, ValueError):
                self._advice = None

    def unmap(self) -> None:
        """Unmap the bytes. No thread may be using them."""
        for each in self._maps:
            each.close()

    def keep(self) -> None:
        """Let the bytes be mapped until the process ends, beyond the interpreter: a leak instead of a dangling address."""
        for each in self._maps:
            ctypes.pythonapi.Py_IncRef(ctypes.py_object(each))


def _map_twice(nbytes: int) -> list[mmap.mmap]:
    """Return two mappings of the same memory: one that can be touched, and a hidden one."""
    file = os.memfd_create("devmem-host")
    try:
        os.ftruncate(file, nbytes)
        protections = mmap.PROT_READ | mmap.PROT_WRITE, 0
        return [mmap.mmap(file, nbytes, flags=mmap.MAP_SHARED | _NORESERVE, prot=prot) for prot in protections]
    finally:
        os.close(file)


def address_of(mapping: mmap.mmap) -> int:
    """Return where a mapping begins."""
    # By NumPy, because ctypes wants a writable buffer. The array goes at once: while it lives the mapping cannot be closed.
    return int(np.frombuffer(mapping, np.uint8).ctypes.data)
