"""Host memory that the user allocated and registered: of the whole process, as with the vendors."""

from __future__ import annotations

import mmap
import threading
from bisect import bisect_left, bisect_right

from .arena import reserve
from .error_codes import host_error


class Registry:
    """Disjoint ranges of whole pages, each with addresses for the devices once somebody asks for them.

    What one device registered is registered for all; only that device can undo it, and at its end it does. Questions are
    answered without a lock, from tables that are replaced and never changed.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._ranges = _Ranges()
        self._windows = _Ranges()  # reserved addresses that stand for a range on a device
        self._owners: dict[int, tuple[object, bool]] = {}  # start of a range -> whoever registered it; whether mapped
        self._host_of: dict[int, int] = {}  # start of a window -> start of its range
        self._window_of: dict[int, tuple[int, mmap.mmap]] = {}  # start of a range -> its window

    def add(self, owner: object, ptr: int, nbytes: int, mapped: bool) -> None:
        """Register a range; only with ``mapped`` it has addresses for the devices."""
        if ptr <= 0 or nbytes <= 0 or ptr % mmap.PAGESIZE or nbytes % mmap.PAGESIZE:
            raise host_error("host_register", "INVALID_VALUE", f"{nbytes} bytes at {ptr:#x} are not whole pages")
        with self._lock:
            if self._ranges.overlaps(ptr, nbytes):
                why = f"{nbytes} bytes at {ptr:#x} overlap a registered range"
                raise host_error("host_register", "HOST_MEMORY_ALREADY_REGISTERED", why)
            self._owners[ptr] = owner, mapped
            self._ranges = self._ranges.plus(ptr, nbytes)

    def check(self, owner: object, ptr: int, nbytes: int) -> None:
        """Raise unless exactly this range was registered, by this owner."""
        with self._lock:
            self._check(owner, ptr, nbytes)

    def remove(self, owner: object, ptr: int, nbytes: int) -> None:
        """Forget exactly this range."""
        with self._lock:
            self._check(owner, ptr, nbytes)
            self._drop(ptr)

    def remove_all(self, owner: object) -> None:
        """Forget what an owner that ends has registered."""
        with self._lock:
            for ptr in [ptr for ptr, (whose, _) in self._owners.items() if whose is owner]:
                self._drop(ptr)

    def contains(self, ptr: int, nbytes: int) -> bool:
        """Whether all the bytes lie in one registered range."""
        return self._ranges.find(ptr, nbytes) != 0

    def overlaps_window(self, ptr: int, nbytes: int) -> bool:
        """Whether any of the bytes is an address that was made up for a device."""
        return self._windows.overlaps(ptr, nbytes)

    def device_pointer(self, ptr: int, hidden: bool) -> int:
        """A device's address of a registered byte, another than the host's if ``hidden``; 0 if it is not mapped."""
        with self._lock:
            start = self._ranges.find(ptr, 1)
            if not start or not self._owners[start][1]:
                return 0
            if not hidden:
                return ptr
            if start not in self._window_of:
                nbytes = self._ranges.sizes[start]
                mapping, window = reserve(nbytes)
                self._host_of[window] = start
                self._window_of[start] = window, mapping
                self._windows = self._windows.plus(window, nbytes)
            return self._window_of[start][0] + ptr - start

    def resolve(self, ptr: int, nbytes: int) -> int:
        """The host's address of what a device calls ``ptr``; 0 unless all the bytes lie in one range."""
        window = self._windows.find(ptr, nbytes)
        host = self._host_of.get(window, 0) if window else 0
        return host + ptr - window if host else 0

    def block_around(self, ptr: int, hidden: bool) -> tuple[int, int] | None:
        """(first address, bytes) of the range that a device's address lies in, as `device_pointer` gives it; None if in none."""
        ranges = self._windows if hidden else self._ranges
        start = ranges.find(ptr, 1)
        return (start, ranges.sizes[start]) if start and (hidden or self._owners[start][1]) else None

    def _check(self, owner: object, ptr: int, nbytes: int) -> None:
        if self._ranges.sizes.get(ptr) != nbytes:
            why = f"{nbytes} bytes at {ptr:#x} are not a range that was registered"
            raise host_error("host_unregister", "HOST_MEMORY_NOT_REGISTERED", why)
        if self._owners[ptr][0] is not owner:
            why = f"{nbytes} bytes at {ptr:#x} were registered by another device"
            raise host_error("host_unregister", "HOST_MEMORY_NOT_REGISTERED", why)

    def _drop(self, ptr: int) -> None:
        self._ranges = self._ranges.minus(ptr)
        del self._owners[ptr]
        if ptr in self._window_of:
            window, mapping = self._window_of.pop(ptr)
            self._windows = self._windows.minus(window)
            del self._host_of[window]
            mapping.close()


class _Ranges:
    """Disjoint ranges of addresses, found by bisection; never changed."""

    def __init__(self, sizes: dict[int, int] | None = None) -> None:
        self.sizes = sizes or {}
        self.starts = sorted(self.sizes)

    def plus(self, start: int, nbytes: int) -> _Ranges:
        return _Ranges({**self.sizes, start: nbytes})

    def minus(self, start: int) -> _Ranges:
        return _Ranges({at: nbytes for at, nbytes in self.sizes.items() if at != start})

    def find(self, ptr: int, nbytes: int) -> int:
        """The start of the range that holds all the bytes, or 0."""
        at = bisect_right(self.starts, ptr)
        if not at:
            return 0
        start = self.starts[at - 1]
        return start if ptr + nbytes <= start + self.sizes[start] else 0

    def overlaps(self, ptr: int, nbytes: int) -> bool:
        at = bisect_left(self.starts, ptr + nbytes)
        return at > 0 and self.starts[at - 1] + self.sizes[self.starts[at - 1]] > ptr


#: What is registered in this process, through whichever device.
registered = Registry()
