"""Counts of a stack's bytes: now, at most, in all, and by line of the program."""

from __future__ import annotations

import sys
from collections import Counter
from dataclasses import dataclass
from types import FrameType

from ...spi.errors import DevmemError, GuardError
from ...spi.memory import MemoryResource
from ...spi.sizes import exact_size
from ..base.interrupts import CannotWait
from ..base.shown import Report
from .adaptor import Adaptor, taken_of

#: The name of the file, the line, the name of the function.
Site = tuple[str, int, str]


@dataclass(frozen=True, slots=True)
class Snapshot(Report):
    """Counts of a `Statistics`, at one moment or over one scope. Of a scope, *current* and *peak* are above what was in use
    when it began, so *current* is negative where more was given back than taken.

    Examples
    --------
    >>> with dm.use_memory(dm.memory.Statistics()) as counts:
    ...     d = dm.zeros(1000)
    >>> print(counts.snapshot())
    Snapshot(current_bytes=7.8 KiB (8,000 bytes), peak_bytes=7.8 KiB (8,000 bytes), ...
    """

    current_bytes: int
    peak_bytes: int
    total_bytes: int
    current_count: int
    peak_count: int
    total_count: int


@dataclass(frozen=True, slots=True)
class Owner:
    """The blocks that one line of a program holds.

    Examples
    --------
    >>> with dm.use_memory(dm.memory.Statistics(owners=True)) as counts:
    ...     d = dm.zeros(1000)
    >>> print(counts.owners()[0])
    7.8 KiB (8,000 bytes) in 1 blocks from ...
    """

    file: str
    line: int
    function: str
    nbytes: int
    count: int

    def __str__(self) -> str:
        return f"{exact_size(self.nbytes)} in {self.count} blocks from {self.file}:{self.line} ({self.function})"


class Statistics(Adaptor):
    """Count what passes: bytes and blocks in use now, at most, and in all. Only what succeeds is counted.

    Parameters
    ----------
    upstream : MemoryResource, optional
        What is watched.
    owners : bool
        Also remember which line of the program asked for each block: see `owners`. The message of an OutOfMemory then
        names the largest. Costs about a microsecond for each block.

    Examples
    --------
    >>> with dm.use_memory(dm.memory.Statistics(dm.memory.PoolMemory())) as counts:
    ...     d = dm.zeros(3)
    ...     d.free()
    >>> counts.current_bytes, counts.peak_bytes, counts.total_count
    (0, 24, 1)
    """

    def __init__(self, upstream: MemoryResource | None = None, *, owners: bool = False) -> None:
        super().__init__(upstream)
        self._sites: dict[int, tuple[int, Site]] | None = {} if owners else None
        self._start_anew()

    def _start_anew(self) -> None:
        self.current_bytes = self.current_count = 0
        self.total_bytes = self.total_count = 0
        self._scopes = [_Scope(Snapshot(0, 0, 0, 0, 0, 0), 0, 0)]
        self._sites = None if self._sites is None else {}

    @property
    def peak_bytes(self) -> int:
        """The most bytes that were in use at a time."""
        return max(scope.peak_bytes for scope in self._scopes)

    @property
    def peak_count(self) -> int:
        """The most blocks that were in use at a time."""
        return max(scope.peak_count for scope in self._scopes)

    @property
    def counts_owners(self) -> bool:
        """Whether it remembers the line that asked for each block."""
        return self._sites is not None

    def snapshot(self) -> Snapshot:
        """All counts at one moment."""
        with self._lock:
            nbytes = self.current_bytes, self.peak_bytes, self.total_bytes
            return Snapshot(*nbytes, self.current_count, self.peak_count, self.total_count)

    def push(self) -> None:
        """Begin a scope. It counts what every thread does until its `pop`; scopes nest."""
        with self._lock:
            self._scopes.append(_Scope(self.snapshot(), self.current_bytes, self.current_count))

    def pop(self) -> Snapshot:
        """End the innermost scope: what happened since its `push`. DevmemError if none is open."""
        with self._lock:
            if len(self._scopes) == 1:
                raise DevmemError("pop() ends a scope that push() began, and none is open")
            scope, outer = self._scopes.pop(), self._scopes[-1]
            began, now = scope.began, self.snapshot()
            outer.peak_bytes = max(outer.peak_bytes, scope.peak_bytes)
            outer.peak_count = max(outer.peak_count, scope.peak_count)
            return Snapshot(
                now.current_bytes - began.current_bytes,
                scope.peak_bytes - began.current_bytes,
                now.total_bytes - began.total_bytes,
                now.current_count - began.current_count,
                scope.peak_count - began.current_count,
                now.total_count - began.total_count,
            )

    def owners(self, most: int = 10) -> list[Owner]:
        """Return the program's lines that hold the most bytes, largest first; none unless it was made with ``owners=True``."""
        with self._lock:
            sites = list(self._sites.values()) if self._sites else []
        nbytes: Counter[Site] = Counter()
        for size, site in sites:
            nbytes[site] += size
        counts = Counter(site for _, site in sites)
        return [Owner(*site, size, counts[site]) for site, size in nbytes.most_common(most)]

    def site_of(self, ptr: int) -> Site | None:
        """(file, line, function) that asked for a block; None if it is not in use, or without ``owners=True``."""
        found = (self._sites or {}).get(ptr)
        return found[1] if found is not None else None

    def allocate(self, nbytes: int, stream: int) -> int:
        """Allocate, and count it."""
        if not nbytes:
            return 0
        site = calling_frames(1)[0] if self._sites is not None else None
        ptr = self._allocate(nbytes, stream)
        with self._lock:
            self.total_bytes += nbytes
            self.total_count += 1
            self.current_bytes = now = self.current_bytes + nbytes
            self.current_count = count = self.current_count + 1
            scope = self._scopes[-1]  # the outer scopes are updated when this one ends
            if now > scope.peak_bytes:  # twice as fast as max()
                scope.peak_bytes = now
            if count > scope.peak_count:
                scope.peak_count = count
            if site is not None and self._sites is not None:
                self._sites[ptr] = nbytes, site
        return ptr

    def deallocate(self, ptr: int, nbytes: int, stream: int) -> None:
        """Count it, then deallocate: it counts as given back also where the upstream raises, but not what a `Guard` refuses."""
        if not ptr:
            return
        with self._lock:
            self.current_bytes -= nbytes
            self.current_count -= 1
            if self._sites is not None:
                self._sites.pop(ptr, None)
        try:
            self._deallocate(ptr, nbytes, stream)
        except (GuardError, CannotWait) as error:
            taken = taken_of(error, nbytes)
            with self._lock:
                self.current_bytes += nbytes - taken
                self.current_count += not taken
            raise


@dataclass(slots=True)
class _Scope:
    """The counts when a scope began, and the peaks since, counted from the very beginning."""

    began: Snapshot
    peak_bytes: int
    peak_count: int


def calling_frames(most: int) -> tuple[Site, ...]:
    """The lines outside devmem that led here, innermost first: at least one, and at most ``most``."""
    frame: FrameType | None = sys._getframe(1)
    while (
        frame is not None
        and frame.f_globals.get("__name__", "").partition(".")[0] == "devmem"
        and frame.f_back is not None
    ):
        frame = frame.f_back
    found: list[Site] = []
    while frame is not None and len(found) < most:
        found.append((frame.f_code.co_filename, frame.f_lineno, frame.f_code.co_name))
        frame = frame.f_back
    return tuple(found)
