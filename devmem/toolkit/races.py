"""Find races between streams: two accesses to the same bytes that no stream order, event or wait separates.

`race_checked_driver` tells it what is enqueued. Each stream has a vector clock: for every stream, how many of its operations
come before whatever is enqueued on this one next. Enqueuing adds one; an event keeps the clock of its stream; a stream that
waits for an event takes over what the event kept; the legacy stream and the blocking ones take over from each other. The host
has one clock for all its threads: what a wait or a query has shown to be complete comes before all that is enqueued later. Two
accesses race if one of them writes and the later one's clock does not have the earlier one.

What it says is true of the order that was asked for, not of the moments at which the work ran: a race is found however the timing
turns out, unless the host found the earlier work complete before it enqueued the later. It does not see what the program does to
page-locked memory itself, work that other libraries enqueue, which bytes of its arguments compiled code touches, and threads of
the host that do not wait for each other. Where the order is not known (streams of other libraries, memory of a captured graph),
it assumes that there is one: what it reports is a race.
"""

from __future__ import annotations

import os
import warnings
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import product
from typing import NamedTuple

from ..spi.errors import DevmemWarning
from ..spi.sizes import exact_size
from .locks import Rank, lock

#: By number of a stream, how many of its operations come before.
Clock = dict[int, int]

#: Accesses are looked up by pieces of the address space of so many bytes (as a power of two).
PIECE = 24
#: Accesses that are remembered in each piece, and rows of a strided access that are compared.
REMEMBERED, COMPARED_ROWS = 512, 4096
#: Reports that are kept.
KEPT = 1000


@dataclass(eq=False, slots=True)
class StreamClock:
    """The operations that precede the next operation of one stream."""

    number: int
    name: str
    blocking: bool
    clock: Clock = field(default_factory=dict)


class Access(NamedTuple):
    """One operation's access to bytes: rows of them, if they are not one run."""

    start: int
    end: int
    writes: bool
    what: str
    stream: str
    number: int
    turn: int  #: which operation of its stream it is
    site: str
    rows: (
        tuple[int, tuple[tuple[int, int], ...]] | None
    )  #: bytes of a row; (how many, how far apart) of slices and of rows

    def __str__(self) -> str:
        return f"{self.what} on the {self.stream} ({self.site})"

    def runs(self) -> list[tuple[int, int]]:
        """(first byte, byte behind the last) of every row, in order; none of too many."""
        if self.rows is None:
            return [(self.start, self.end)]
        width, axes = self.rows
        total = 1
        for count, _ in axes:
            total *= count
        if total > COMPARED_ROWS:
            return []
        starts = product(*(range(0, count * step, step) if step else [0] for count, step in axes))
        return sorted((self.start + sum(each), self.start + sum(each) + width) for each in starts)


class Race(NamedTuple):
    """Two accesses that nothing separates; ``second`` was enqueued later."""

    first: Access
    second: Access

    def __str__(self) -> str:
        low, high = max(self.first.start, self.second.start), min(self.first.end, self.second.end)
        return (
            f"race at {low:#x} ({exact_size(high - low)}): {self.second} is not ordered behind {self.first}: make the "
            f"{self.second.stream} wait for the {self.first.stream} between the two, stream.wait(other) or an event, or wait for "
            f"it on the host"
        )


class RaceDetector:
    """The clocks and accesses of all checked devices of the process."""

    def __init__(self) -> None:
        self.lock = lock("race detector", Rank.LEAF)
        self.host: Clock = {}
        self.reports: list[Race] = []
        self._numbers = 0
        self._pieces: defaultdict[int, list[Access]] = defaultdict(list)
        self._told: set[tuple[str, str, bool, bool]] = set()

    def stream(self, name: str, blocking: bool) -> StreamClock:
        """A clock for a stream of which nothing was enqueued yet."""
        with self.lock:
            self._numbers += 1
            return StreamClock(self._numbers, name, blocking)

    def enqueue(self, stream: StreamClock) -> int:
        """Count an operation; which one of its stream it is. The caller holds the lock, and has ordered the stream."""
        join(stream.clock, self.host)
        count = stream.clock[stream.number] = stream.clock.get(stream.number, 0) + 1
        return count

    def check(self, access: Access, clock: Clock, captured: Callable[[], bool] | None = None) -> bool:
        """Report the accesses that the clock does not have, and that this one meets. The caller holds the lock.

        ``captured`` is asked before a report, as it costs a call of the driver: whether the operation is in another library's
        graph, which may run at any time. Then nothing is reported, and the result is False.
        """
        for piece in pieces(access):
            known = self._pieces.get(piece)
            if known:
                known[:] = [each for each in known if self.host.get(each.number, 0) < each.turn]
                for each in known:
                    if (each.writes or access.writes) and clock.get(each.number, 0) < each.turn and meet(each, access):
                        if captured is not None and captured():
                            return False
                        self._report(Race(each, access))
                        break
        return True

    def remember(self, access: Access, clock: Clock) -> None:
        """Remember an access; what it covers, and what comes before it, need not be any more. The caller holds the lock."""
        for piece in pieces(access):
            known = self._pieces[piece]
            if access.rows is None:
                known[:] = [
                    each
                    for each in known
                    if not (
                        access.start <= each.start
                        and each.end <= access.end
                        and clock.get(each.number, 0) >= each.turn
                        and (access.writes or (not each.writes and each.number == access.number))
                    )
                ]
            known.append(access)
            del known[:-REMEMBERED]

    def forget(self, start: int, end: int, which: Callable[[Access], bool] = lambda access: True) -> None:
        """Forget accesses within a range."""
        with self.lock:
            for piece in range(start >> PIECE, (end - 1 >> PIECE) + 1):
                known = self._pieces.get(piece)
                if known:
                    known[:] = [each for each in known if each.end <= start or end <= each.start or not which(each)]

    def forget_stream(self, number: int, after: int = 0) -> None:
        """Forget the accesses of a stream, or those after one of its operations."""
        with self.lock:
            for known in self._pieces.values():
                known[:] = [each for each in known if each.number != number or each.turn <= after]

    def complete(self, clock: Clock) -> None:
        """Take note that the host found all of this complete."""
        with self.lock:
            join(self.host, clock)

    def _report(self, race: Race) -> None:
        key = race.first.site, race.second.site, race.first.writes, race.second.writes
        if key not in self._told:
            self._told.add(key)
            self.reports.append(race)
            del self.reports[:-KEPT]
            warnings.warn(str(race), DevmemWarning, stacklevel=6)


#: That of the process.
detector = RaceDetector()


def join(clock: Clock, other: Clock) -> None:
    """Let a clock take over what another one has."""
    for number, count in list(other.items()):
        if clock.get(number, 0) < count:
            clock[number] = count


def pieces(access: Access) -> range:
    """The pieces of the address space that an access touches."""
    return range(access.start >> PIECE, (access.end - 1 >> PIECE) + 1)


def meet(one: Access, other: Access) -> bool:
    """Whether two accesses have a byte in common, as far as their rows are compared."""
    if one.end <= other.start or other.end <= one.start:
        return False
    if one.rows is None and other.rows is None:
        return True
    runs, others = one.runs(), other.runs()
    at = 0
    for start, end in runs:
        while at < len(others) and others[at][1] <= start:
            at += 1
        if at < len(others) and others[at][0] < end:
            return True
    return False


def _after_fork_in_child() -> None:
    detector.reports.clear()  # the parent's


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork_in_child)
