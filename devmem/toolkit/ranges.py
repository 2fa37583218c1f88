"""A table of address ranges, for code that has to know which pages are locked, or whose memory an address is.

A table never changes: `with_range` and `without` return another one. So code that changes "the table of the process" does it
under a lock, by replacing one reference; code that only asks needs no lock, and tells by the table's identity whether anything
has changed since it asked before. A question costs a bisection, a change a copy of the table.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable
from operator import attrgetter
from typing import Generic, Protocol, TypeVar


class AddressRange(Protocol):
    """The addresses from ``start`` up to ``end``, which is not one of them. Both are fixed while it is in a table."""

    start: int
    end: int


R = TypeVar("R", bound=AddressRange)


class RangeTable(Generic[R]):
    """Disjoint ranges, sorted by address."""

    __slots__ = ("_starts", "ranges")

    def __init__(self, ranges: Iterable[R] = ()) -> None:
        self.ranges = sorted(ranges, key=attrgetter("start"))
        self._starts = [each.start for each in self.ranges]

    def with_range(self, added: R) -> RangeTable[R]:
        """Return a table with one range more, which overlaps none."""
        return RangeTable([*self.ranges, added])

    def without(self, removed: R) -> RangeTable[R]:
        """Return a table that lacks a range."""
        return RangeTable(each for each in self.ranges if each is not removed)

    def containing(self, low: int, high: int) -> R | None:
        """Return the range that holds all addresses from ``low`` up to ``high``."""
        at = bisect_right(self._starts, low)
        return self.ranges[at - 1] if at and high <= self.ranges[at - 1].end else None

    def overlapping(self, low: int, high: int) -> list[R]:
        """Return the ranges with addresses from ``low`` up to ``high``, in order."""
        first = bisect_right(self._starts, low)
        if first and self.ranges[first - 1].end > low:
            first -= 1
        return self.ranges[first : bisect_left(self._starts, high)]

    def covers(self, low: int, high: int) -> bool:
        """Return whether every address from ``low`` up to ``high`` lies in some range."""
        for each in self.overlapping(low, high):
            if each.start > low:
                return False
            low = each.end
        return low >= high

    def edges(self, low: int, high: int) -> list[int]:
        """Return where between ``low`` and ``high``, neither included, a range begins or ends."""
        found = {edge for each in self.overlapping(low, high) for edge in (each.start, each.end)}
        return sorted(edge for edge in found if low < edge < high)
