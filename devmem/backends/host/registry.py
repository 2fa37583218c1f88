"""Host memory that the user allocated and registered."""

from __future__ import annotations

import mmap
from bisect import bisect_left, bisect_right, insort

from .arena import reserve
from .faults import fault


class Registry:
    """Disjoint ranges of whole pages, each with addresses for the device once somebody asks for them."""

    def __init__(self, hidden: bool) -> None:
        self._hidden = hidden
        self._ranges = _Ranges()
        self._windows = _Ranges()  # reserved addresses that stand for a range on the device
        self._host_of: dict[int, int] = {}  # start of a window -> start of its range
        self._window_of: dict[int, tuple[int, mmap.mmap]] = {}  # start of a range -> its window

    def add(self, ptr: int, nbytes: int) -> None:
        """Register a range."""
        if ptr <= 0 or nbytes <= 0 or ptr % mmap.PAGESIZE or nbytes % mmap.PAGESIZE:
            raise fault("host_register", "INVALID_VALUE", f"{nbytes} bytes at {ptr:#x} are not whole pages")
        if self._ranges.overlaps(ptr, nbytes):
            why = f"{nbytes} bytes at {ptr:#x} overlap a registered range"
            raise fault("host_register", "HOST_MEMORY_ALREADY_REGISTERED", why)
        self._ranges.add(ptr, nbytes)

    def check(self, ptr: int, nbytes: int) -> None:
        """Raise unless exactly this range was registered."""
        if self._ranges.sizes.get(ptr) != nbytes:
            why = f"{nbytes} bytes at {ptr:#x} are not a range that was registered"
            raise fault("host_unregister", "HOST_MEMORY_NOT_REGISTERED", why)

    def remove(self, ptr: int, nbytes: int) -> None:
        """Forget exactly this range."""
        self.check(ptr, nbytes)
        self._ranges.remove(ptr)
        if ptr in self._window_of:
            window, mapping = self._window_of.pop(ptr)
            self._windows.remove(window)
            del self._host_of[window]
            mapping.close()

    def contains(self, ptr: int, nbytes: int) -> bool:
        """Whether all the bytes lie in one registered range."""
        return self._ranges.find(ptr, nbytes) != 0

    def overlaps_window(self, ptr: int, nbytes: int) -> bool:
        """Whether any of the bytes is an address that was made up for the device."""
        return self._windows.overlaps(ptr, nbytes)

    def device_pointer(self, ptr: int) -> int:
        """The device's address of a registered byte; 0 if it is not registered."""
        start = self._ranges.find(ptr, 1)
        if not start or not self._hidden:
            return ptr if start else 0
        if start not in self._window_of:
            nbytes = self._ranges.sizes[start]
            mapping, window = reserve(nbytes)
            self._windows.add(window, nbytes)
            self._host_of[window] = start
            self._window_of[start] = window, mapping
        return self._window_of[start][0] + ptr - start

    def resolve(self, ptr: int, nbytes: int) -> int:
        """The host's address of what the device calls ``ptr``; 0 unless all the bytes lie in one range."""
        window = self._windows.find(ptr, nbytes)
        return self._host_of[window] + ptr - window if window else 0


class _Ranges:
    """Disjoint ranges of addresses, found by bisection."""

    def __init__(self) -> None:
        self.starts: list[int] = []
        self.sizes: dict[int, int] = {}

    def add(self, start: int, nbytes: int) -> None:
        self.sizes[start] = nbytes
        insort(self.starts, start)

    def remove(self, start: int) -> None:
        del self.starts[bisect_left(self.starts, start)]
        del self.sizes[start]

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
