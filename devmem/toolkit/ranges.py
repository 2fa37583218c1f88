"""A table of address ranges, for code that has to know which pages are locked, or whose memory an address is.

Any thread may ask and change, and none takes a lock. A change copies the table, and replaces it if it is the same still. A
question costs a bisection, and meets the table as it was before a change or as it is after it.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable
from typing import Generic, Protocol, TypeVar


class AddressRange(Protocol):
    """The addresses from ``start`` up to ``stop``, as in a `range`. Both are fixed while it is in a table."""

    @property
    def start(self) -> int: ...

    @property
    def stop(self) -> int: ...


R = TypeVar("R", bound=AddressRange)


class RangeTable(Generic[R]):
    """Disjoint ranges; those of the moment, sorted by address, are in ``ranges``.

    ``table`` has them with their starts, for bisection. It is replaced at each change, and tells by its identity whether there
    was one.
    """

    def __init__(self) -> None:
        self.table: tuple[list[int], list[R]] = [], []

    @property
    def ranges(self) -> list[R]:
        """The ranges, by address."""
        return self.table[1]

    def add(self, added: R) -> bool:
        """Take a range in, unless it has an address of another one; whether it was taken."""
        while True:
            table = self.table
            if self.overlapping(added.start, added.stop):
                return False
            starts, ranges = list(table[0]), list(table[1])
            at = bisect_left(starts, added.start)
            starts.insert(at, added.start)
            ranges.insert(at, added)
            if self.table is table:
                self.table = starts, ranges
                return True

    def remove(self, start: int) -> None:
        """Forget the range that starts there, if there is one."""
        self._keep(lambda each: each.start != start)

    def discard(self, added: R) -> None:
        """Forget this very range, if it was taken in."""
        self._keep(lambda each: each is not added)

    def _keep(self, stays: Callable[[R], bool]) -> None:
        while True:
            table = self.table
            kept = [each for each in table[1] if stays(each)]
            changed = [each.start for each in kept], kept
            if self.table is table:
                self.table = changed
                return

    def containing(self, low: int, high: int) -> R | None:
        """Return the range that holds all addresses from ``low`` up to ``high``."""
        starts, ranges = self.table
        at = bisect_right(starts, low)
        return ranges[at - 1] if at and high <= ranges[at - 1].stop else None

    def overlapping(self, low: int, high: int) -> list[R]:
        """Return the ranges with addresses from ``low`` up to ``high``, in order."""
        starts, ranges = self.table
        first = bisect_right(starts, low)
        if first and ranges[first - 1].stop > low:
            first -= 1
        return ranges[first : bisect_left(starts, high)]


def merged(ranges: Iterable[tuple[int, int]]) -> list[tuple[int, int]]:
    """Disjoint ranges with the same addresses, each from its start to its stop, of some that begin at an address and have a size.

    >>> merged([(100, 8), (20, 4), (104, 8), (112, 4)])
    [(20, 24), (100, 112), (112, 116)]
    """
    found: list[tuple[int, int]] = []
    for start, nbytes in sorted(ranges):
        if found and start < found[-1][1]:
            found[-1] = found[-1][0], max(found[-1][1], start + nbytes)
        else:
            found.append((start, start + nbytes))
    return found
