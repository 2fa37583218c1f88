"""An allocator of blocks in one range of addresses.

The range consists of chunks of 1 MiB. A block of up to half a chunk is a slot of a *slab*: one chunk, cut into slots of equal
size. A larger block is a slab of its own: a run of chunks with one slot. A dict leads from each chunk in use to its slab, so
operations cost the same with ten live blocks as with a million. One mapping serves all of them: a process has at most 65,530.

A block ends in two steps. After `invalidate` no address in it is found, but its bytes stay taken; after `recycle` they can
become another block. Between the two the owner waits for the work that uses the block. What `invalidate` returns names this end:
`recycle` does nothing for an end that is over, so an interrupted owner may leave the block to any later one.

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
from collections.abc import Callable
from contextlib import suppress
from functools import partial

import numpy as np

from devmem.spi.sizes import exact_size
from devmem.toolkit.host_functions import this_thread
from devmem.toolkit.one_step import consume, in_one_step, prepared

from ...toolkit.locks import Rank, lock
from .error_codes import host_error

CHUNK = 1 << 20
SLAB_LIMIT = CHUNK // 2  # larger blocks are slabs of their own
#: Free chunks keep their pages, which are costly to make anew, up to so many bytes of them.
KEPT_PAGES = 256 * CHUNK
#: What the system tells of a file that holds device memory.
FILE_NAME = "devmem-host"
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
        self._slabs: dict[int, _Slab] = {}  # by the index of each of its chunks
        #: By the size of a slot; the newest is filled first. All that have a free slot, and some that have none.
        self._with_room: dict[int, dict[_Slab, None]] = {}
        #: For each chunk 0 if it has no pages: it was never taken, or not since they were given back.
        self._touched = bytearray(len(self._chunks))
        self._kept = 0  # bytes of free chunks with pages
        self._empty: list[_Slab] = []  # which streams' threads have emptied
        self._lock = lock("arena", Rank.LEAF)

    def allocate(self, nbytes: int) -> int:
        """Return the address of a new block of ``nbytes``, a multiple of 256; raise `OutOfMemory`."""
        step = _slot_size(nbytes) if nbytes <= SLAB_LIMIT else -(-nbytes // CHUNK) * CHUNK
        slab, ptr = None, 0
        try:  # around the lock: an interrupt may come as it is given back
            with self._lock:
                while self._empty:
                    self._drop(self._empty.pop())
                while True:
                    slabs = self._with_room.get(step)
                    if slabs is None:
                        slabs = self._with_room.setdefault(step, {})
                    try:
                        slab = next(reversed(slabs)) if slabs else None
                    except RuntimeError:  # they have changed meanwhile
                        continue
                    if slab is None:
                        slab = self._new_slab(step, nbytes)
                    free = slab.free
                    if free:
                        # No call stands between these: the slot is taken and the block is live, or neither.
                        ptr = free[-1]
                        del free[-1]
                        self.live[ptr] = nbytes
                        return ptr
                    slabs.pop(slab, None)
        except BaseException:
            if ptr and slab is not None:
                in_one_step(
                    partial(self.live.pop, ptr, None),
                    partial(slab.free.append, ptr),
                    partial(self._with_room[slab.step].__setitem__, slab, None),
                )
            raise

    def invalidate(self, ptr: int, nbytes: int) -> object | None:
        """End the block: no call finds it from now on, its bytes stay taken. Return the end; None if there is no such block."""
        end = object()
        # No call stands between these: the block is live, or it is ending.
        if ptr in self.live and self.live[ptr] == nbytes:
            del self.live[ptr]
            self.ending[ptr] = end
            return end
        return None

    def recycle(self, ptr: int, end: object) -> None:
        """Make the bytes of an invalidated block available again, if that has not happened.

        The slot gets an int of its own: `knows` tells one block at it from the next.
        """
        slab = self._slabs.get((ptr - self.base) // CHUNK)
        if slab is None:
            return
        slabs, slot = self._with_room[slab.step], (slab.base + (ptr - slab.base),)
        # No call stands between the question and these: the block is ending, or its slot is free.
        if ptr not in self.ending or self.ending[ptr] is not end:
            return
        del self.ending[ptr]
        slab.free += slot
        slabs[slab] = None
        # One empty slab of each size stays, or allocating and freeing one small block would build a slab each time.
        if len(slab.free) == slab.slots and (len(slabs) > 1 or slab.step > SLAB_LIMIT):
            if this_thread.runs_host_function:
                self._empty.append(slab)
            else:
                with self._lock:
                    self._drop(slab)

    def knows(self, ptr: int) -> bool:
        """Return whether the block that was handed out under this very int is live, and no later one at its address."""
        return ptr in self.live and any(each is ptr for each in list(self.live))

    def discard(self) -> None:
        """Give the pages of all that is free back to the operating system, also those of the empty slabs that are kept."""
        with self._lock:
            for slab in [
                slab for each in list(self._with_room.values()) for slab in list(each) if len(slab.free) == slab.slots
            ]:
                self._drop(slab)
            if self._kept:
                self._kept = 0
                for run in re.finditer(rb"\0+", bytes(self._chunks)):
                    self._discard(run.start(), run.end())

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
                    self._kept = max(self._kept - self._touched.count(1, first, first + count) * CHUNK, 0)
                    self._touched[first : first + count] = taken
                    return slab
            for slab in () if dropped else [slab for each in list(self._with_room.values()) for slab in list(each)]:
                self._drop(slab)
        left = self.size - self.used
        why = f"asked for {exact_size(nbytes)}, {exact_size(left)} of {exact_size(self.size)} are free"
        raise host_error("alloc", "OUT_OF_MEMORY", why)

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
            consume(changes)
        except BaseException:
            if self._slabs.get(first) is slab:
                slabs[slab] = None
            raise
        if self._kept + count * CHUNK > KEPT_PAGES:
            self._discard(first, first + count)
        else:
            self._kept += count * CHUNK

    def _discard(self, first: int, end: int) -> None:
        """Give the pages of free chunks back to the operating system; nothing is made of them meanwhile: the lock is held."""
        free = bytes(end - first)
        discard = prepared(self.mapping.discarding(first * CHUNK, len(free) * CHUNK))
        with suppress(OSError, ValueError):  # it refuses: they stay resident
            if self._chunks[first:end] == free:
                consume(discard)
                self._touched[first:end] = free


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

    def discard(self, offset: int, nbytes: int) -> None:
        """Give pages back to the operating system. If it refuses, they stay resident and nothing else changes."""
        with suppress(OSError, ValueError):
            for discard in self.discarding(offset, nbytes):
                discard()

    def discarding(self, offset: int, nbytes: int) -> list[Callable[[], None]]:
        """The call that gives pages back to the operating system, where there is one; it may raise OSError or ValueError."""
        return [] if self._advice is None else [partial(self._maps[0].madvise, self._advice, offset, nbytes)]

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
