"""A table of address ranges, for code that has to know which pages are locked, or whose memory an address is.

Any thread may ask and change. A change, which costs a copy of the table, takes a lock and replaces the table; a question costs a
bisection, takes no lock, and meets the table as it was before a change or as it is after it.
"""

from __future__ import annotations

import threading
from bisect import bisect_left, bisect_right
from typing import Generic, Protocol, TypeVar


class AddressRange(Protocol):
    """The addresses from ``start`` up to ``stop``, as in a `range`. Both are fixed while it is in a table."""

    @property
    def start(self) -> int: ...

    @property
    def stop(self) -> int: ...


R = TypeVar("R", bound=AddressRange)


class RangeTable(Generic[R]):
    """Disjoint ranges; those of the moment, sorted by address, are in ``ranges``."""

    def __init__(self) -> None:
        self.ranges: list[R] = []
        self._table: tuple[list[int], list[R]] = [], self.ranges  # the starts, for bisection, and the ranges
        self._changing = threading.Lock()

    def add(self, added: R) -> bool:
        """Take a range in, unless it has an address of another one; whether it was taken."""
        with self._changing:
            if self.overlapping(added.start, added.stop):
                return False
            starts, ranges = self._table[0].copy(), self._table[1].copy()
            at = bisect_left(starts, added.start)
            starts.insert(at, added.start)
            ranges.insert(at, added)
            self._table, self.ranges = (starts, ranges), ranges
            return True

    def remove(self, start: int) -> None:
        """Forget the range that starts there, if there is one."""
        with self._changing:
            kept = [each for each in self.ranges if each.start != start]
            self._table, self.ranges = ([each.start for each in kept], kept), kept

    def containing(self, low: int, high: int) -> R | None:
        """Return the range that holds all addresses from ``low`` up to ``high``."""
        starts, ranges = self._table
        at = bisect_right(starts, low)
        return ranges[at - 1] if at and high <= ranges[at - 1].stop else None

    def overlapping(self, low: int, high: int) -> list[R]:
        """Return the ranges with addresses from ``low`` up to ``high``, in order."""
        starts, ranges = self._table
        first = bisect_right(starts, low)
        if first and ranges[first - 1].stop > low:
            first -= 1
        return ranges[first : bisect_left(starts, high)]
