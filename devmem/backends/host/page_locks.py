"""Which memory of the user's is page-locked. A range that one device registers is page-locked for all, as with the vendors.

The device that registered a range undoes it: with ``host_unregister``, at the latest when it closes. A strict device needs an
address of its own for mapped memory. So the first request for one reserves a *window*: as many addresses, which neither side
can read, standing for the range. Changes are made under a lock; questions read a table that never changes, and take none.
"""

from __future__ import annotations

import mmap
import threading
from dataclasses import dataclass

from devmem.toolkit.ranges import RangeTable

from .error_codes import host_error
from .mapping import reserve_addresses


@dataclass(slots=True, eq=False)
class Window:
    """Reserved addresses that stand for a page-locked range on strict devices; ``shift`` leads from them to the range."""

    start: int
    end: int
    shift: int
    mapping: mmap.mmap


@dataclass(slots=True, eq=False)
class PageLock:
    """Whole pages, the object that had them locked, and whether devices may have an address of them."""

    start: int
    end: int
    owner: object
    mapped: bool
    window: Window | None = None


class PageLockTable:
    """The page-locked ranges of this process, and the windows of those that have one."""

    def __init__(self) -> None:
        self.locks = RangeTable[PageLock]()
        self.windows = RangeTable[Window]()
        self._changing = threading.Lock()

    def add(self, owner: object, ptr: int, nbytes: int, mapped: bool) -> None:
        """Lock a range of whole pages."""
        if ptr <= 0 or nbytes <= 0 or ptr % mmap.PAGESIZE or nbytes % mmap.PAGESIZE:
            raise host_error("host_register", "INVALID_VALUE", f"{nbytes} bytes at {ptr:#x} are not whole pages")
        with self._changing:
            if self.locks.overlapping(ptr, ptr + nbytes):
                why = f"{nbytes} bytes at {ptr:#x} overlap a registered range"
                raise host_error("host_register", "HOST_MEMORY_ALREADY_REGISTERED", why)
            self.locks = self.locks.with_range(PageLock(ptr, ptr + nbytes, owner, mapped))

    def find(self, owner: object, ptr: int, nbytes: int) -> PageLock:
        """Return the lock of exactly this range, by this owner."""
        found = self.locks.containing(ptr, ptr + nbytes)
        if found is None or (found.start, found.end) != (ptr, ptr + nbytes):
            why = f"{nbytes} bytes at {ptr:#x} are not a range that was registered"
        elif found.owner is not owner:
            why = f"{nbytes} bytes at {ptr:#x} were registered by another device"
        else:
            return found
        raise host_error("host_unregister", "HOST_MEMORY_NOT_REGISTERED", why)

    def remove(self, owner: object, ptr: int, nbytes: int) -> None:
        """Unlock exactly this range."""
        with self._changing:
            self._remove(self.find(owner, ptr, nbytes))

    def remove_all(self, owner: object) -> None:
        """Unlock all that an owner has locked."""
        with self._changing:
            for each in [each for each in self.locks.ranges if each.owner is owner]:
                self._remove(each)

    def device_pointer(self, host: int, strict: bool) -> int:
        """Return a device's address of a page-locked byte; 0 if it has none."""
        with self._changing:
            lock = self.locks.containing(host, host + 1)
            if lock is None or not lock.mapped:
                return 0
            if not strict:
                return host
            if lock.window is None:
                mapping, start = reserve_addresses(lock.end - lock.start)
                lock.window = Window(start, start + lock.end - lock.start, lock.start - start, mapping)
                self.windows = self.windows.with_range(lock.window)
            return host - lock.window.shift

    def block_around(self, ptr: int, strict: bool) -> tuple[int, int, int] | None:
        """Return (start, bytes, shift to where they can be touched) of the range that holds a device's address."""
        if strict:
            window = self.windows.containing(ptr, ptr + 1)
            return (window.start, window.end - window.start, window.shift) if window is not None else None
        lock = self.locks.containing(ptr, ptr + 1)
        return (lock.start, lock.end - lock.start, 0) if lock is not None and lock.mapped else None

    def _remove(self, lock: PageLock) -> None:
        self.locks = self.locks.without(lock)
        if lock.window is not None:
            self.windows = self.windows.without(lock.window)
            lock.window.mapping.close()


page_locks = PageLockTable()
