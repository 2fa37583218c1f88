"""The page-locked memory of the user. A range that one device registers is page-locked for all, as with the vendors.

The device that registered a range undoes it: with ``host_unregister``, at the latest when it closes. Devices reach a range that
was registered as mapped. For a strict device it then has a *window*: as many addresses, which neither side can read, that stand
for the range. Changes are made under a lock; questions read a table that never changes, and take none.
"""

from __future__ import annotations

import mmap
from dataclasses import dataclass

from devmem.toolkit.ranges import RangeTable

from ...spi.sizes import exact_size
from ...toolkit.locks import Rank, lock
from .arena import address_of
from .error_codes import host_error


@dataclass(slots=True, eq=False)
class Window:
    """The addresses of a range for devices; the range is ``shift`` bytes further."""

    start: int
    stop: int
    shift: int = 0
    mapping: mmap.mmap | None = None


@dataclass(slots=True, eq=False)
class PageLock:
    """Whole pages, and the object that had them locked."""

    start: int
    stop: int
    owner: object
    window: Window | None = None


class PageLockTable:
    """The page-locked ranges of this process, and the windows of those that devices reach."""

    def __init__(self) -> None:
        self.locks = RangeTable[PageLock]()
        self.windows = RangeTable[Window]()
        self._changing = lock("host page locks", Rank.WITHIN_DRIVER)

    def add(self, owner: object, ptr: int, nbytes: int, mapped: bool, hidden: bool) -> None:
        """Lock a range of whole pages; ``hidden``: if it is mapped, devices reach it at addresses that the host cannot."""
        if ptr <= 0 or nbytes <= 0 or ptr % mmap.PAGESIZE or nbytes % mmap.PAGESIZE:
            raise host_error("host_register", "INVALID_VALUE", f"{exact_size(nbytes)} at {ptr:#x} are not whole pages")
        window = None
        if mapped:
            window = _reserve(ptr, nbytes) if hidden else Window(ptr, ptr + nbytes)
        with self._changing:
            if not self.locks.add(PageLock(ptr, ptr + nbytes, owner, window)):
                why = f"{exact_size(nbytes)} at {ptr:#x} overlap a registered range"
                raise host_error("host_register", "HOST_MEMORY_ALREADY_REGISTERED", why)
            if window is not None:
                self.windows.add(window)

    def find(self, owner: object, ptr: int, nbytes: int) -> PageLock:
        """Return the lock of exactly this range, by this owner."""
        found = self.locks.containing(ptr, ptr + nbytes)
        if found is None or (found.start, found.stop) != (ptr, ptr + nbytes):
            why = f"{exact_size(nbytes)} at {ptr:#x} are not a range that was registered"
        elif found.owner is not owner:
            why = f"{exact_size(nbytes)} at {ptr:#x} were registered by another device"
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

    def device_pointer(self, host: int) -> int:
        """Return the devices' address of a page-locked byte; 0 if they do not reach it."""
        lock = self.locks.containing(host, host + 1)
        return host - lock.window.shift if lock is not None and lock.window is not None else 0

    def block_around(self, ptr: int) -> tuple[int, int, int] | None:
        """Return (start, bytes, shift to where they can be touched) of the range that a device's address lies in."""
        window = self.windows.containing(ptr, ptr + 1)
        return (window.start, window.stop - window.start, window.shift) if window is not None else None

    def _remove(self, lock: PageLock) -> None:
        """Remove a lock, and first its window: no window is reached, or stays, whose range is not locked."""
        if lock.window is not None:
            self.windows.discard(lock.window)  # which unmaps it
        self.locks.discard(lock)


def _reserve(host: int, nbytes: int) -> Window:
    mapping = mmap.mmap(-1, nbytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS, prot=0)
    start = address_of(mapping)
    return Window(start, start + nbytes, host - start, mapping)


page_locks = PageLockTable()
