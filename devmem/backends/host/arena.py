"""An allocator of blocks in one range of addresses.

The range consists of chunks of 1 MiB. A block of up to half a chunk is a slot of a *slab*: one chunk, cut into slots of equal
size. A larger block is a slab of its own: a run of chunks with one slot. A dict leads from each chunk in use to its slab, so
operations cost the same with ten live blocks as with a million. One mapping serves all of them: a process has at most 65,530.

A block ends in two steps. After `invalidate` no address in it is found, but its bytes stay taken; after `recycle` they can
become another block. Between the two the owner waits for the work that uses the block.

Any thread may call any method. A lock is held around bookkeeping alone; it is not reentrant, because a finalizer that frees
memory from within a garbage collection is a bug of the caller. `resolve` and `block_around` take no lock.
"""

from __future__ import annotations

import ctypes
import mmap
import os
import re
import sys
import threading

import numpy as np

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
        self.used = 0  # bytes taken from the range, with what rounding up adds
        self.live: dict[int, int] = {}  # address of a block -> bytes, as asked for
        # For each chunk 0 if it is free. Searching bytes is fast, and joins neighbours by itself.
        self._chunks = bytearray(self.size // CHUNK)
        self._slabs: dict[int, _Slab] = {}  # by the index of each of its chunks
        self._with_room: dict[int, dict[_Slab, None]] = {}  # by the size of a slot; the newest is filled first
        self._freed = 0
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
            self.live[ptr] = nbytes
            self.used += step
            return ptr

    def invalidate(self, ptr: int, nbytes: int) -> bool:
        """End the block: no call finds it from now on, its bytes stay taken. False if there is no such block."""
        with self._lock:
            if self.live.get(ptr) != nbytes:
                return False
            del self.live[ptr]
            return True

    def recycle(self, ptr: int) -> None:
        """Make the bytes of an invalidated block available again."""
        with self._lock:
            slab = self._slabs[(ptr - self.base) // CHUNK]
            slabs = self._with_room[slab.step]
            slab.free.append(ptr)
            slabs[slab] = None
            self.used -= slab.step
            # One empty slab of each size stays, or allocating and freeing one small block would build a slab each time.
            if len(slab.free) == slab.slots and (len(slabs) > 1 or slab.step > SLAB_LIMIT):
                self._drop(slab)

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
        count, free = -(-step // CHUNK), self.size - self.used
        first = self._chunks.find(bytes(count)) if step <= free else -1
        if first < 0:
            for slab in [slab for slabs in self._with_room.values() for slab in slabs if len(slab.free) == slab.slots]:
                self._drop(slab)
            first = self._chunks.find(bytes(count)) if step <= free else -1
        if first < 0:
            raise host_error("alloc", "OUT_OF_MEMORY", f"asked for {nbytes} bytes, {free} of {self.size} are free")
        slab = _Slab(self.base + first * CHUNK, step)
        self._chunks[first : first + count] = b"\1" * count
        self._slabs.update(dict.fromkeys(range(first, first + count), slab))
        self._with_room.setdefault(step, {})[slab] = None
        return slab

    def _drop(self, slab: _Slab) -> None:
        """Make the chunks of an empty slab free."""
        first, count = (slab.base - self.base) // CHUNK, -(-slab.step // CHUNK)
        del self._with_room[slab.step][slab]
        for index in range(first, first + count):
            del self._slabs[index]
        self._chunks[first : first + count] = bytes(count)
        if slab.step >= DISCARD_AT_ONCE:
            self.mapping.discard(first * CHUNK, slab.step)
        else:
            self._freed += count * CHUNK
        if self._freed >= DISCARD_TOGETHER:
            self._freed = 0
            for run in re.finditer(rb"\0+", self._chunks):
                self.mapping.discard(run.start() * CHUNK, len(run[0]) * CHUNK)


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
