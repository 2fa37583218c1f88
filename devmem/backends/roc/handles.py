"""What the driver knows of its own, because the runtime must never be asked about anything that is gone."""

from __future__ import annotations

import threading
from bisect import bisect_left, insort
from collections.abc import Callable
from typing import NoReturn

from ...spi.types import LEGACY_STREAM, PER_THREAD_STREAM

#: Destroyed streams that are remembered; a program that makes streams by the million must not fill its memory with them.
REMEMBERED = 1024


class Streams(dict[int, int]):
    """The runtime's handle for each of ours: they are the same but for the legacy stream, which older ones know as 0 only.

    From ROCm 7 on the runtime looks into whatever handle it is given: one that was destroyed crashes the process.
    """

    def __init__(self, refuse: Callable[[int], NoReturn]) -> None:
        super().__init__({LEGACY_STREAM: 0, PER_THREAD_STREAM: PER_THREAD_STREAM})
        #: Those destroyed last, in order: of older ones the addresses are in use again.
        self.gone: dict[int, None] = {}
        self.lock = threading.Lock()
        self.refuse = refuse

    def __missing__(self, stream: int) -> int:
        """One that we did not make: somebody vouches for it, unless it was ours once."""
        if stream in self.gone:
            self.refuse(stream)
        return stream

    def add(self, stream: int) -> int:
        """Take a new stream, which may lie where an old one lay."""
        with self.lock:
            self[stream] = stream
            self.gone.pop(stream, None)
        return stream

    def take(self, stream: int) -> int:
        """A stream that is about to go."""
        with self.lock:
            if stream not in self or stream in (LEGACY_STREAM, PER_THREAD_STREAM):
                self.refuse(stream)
            self.gone[stream] = None  # first: who looks it up meanwhile finds it here or there
            if len(self.gone) > REMEMBERED:
                del self.gone[next(iter(self.gone))]
            return self.pop(stream)


class Ranges:
    """Disjoint ranges of addresses, by where they start; safe to use from several threads."""

    def __init__(self) -> None:
        self.starts: list[int] = []
        self.ends: dict[int, int] = {}
        self.lock = threading.Lock()

    def __contains__(self, start: int) -> bool:
        return start in self.ends

    def add(self, start: int, nbytes: int) -> bool:
        """Take a range, unless it has a byte of another; whether it was taken."""
        with self.lock:
            at = bisect_left(self.starts, start + nbytes) - 1
            if at >= 0 and self.ends[self.starts[at]] > start:
                return False
            insort(self.starts, start)
            self.ends[start] = start + nbytes
            return True

    def remove(self, start: int) -> None:
        """Forget the range that starts there."""
        with self.lock:
            if self.ends.pop(start, None) is not None:
                del self.starts[bisect_left(self.starts, start)]


#: Host memory that is page-locked, by any device: HIP locks it for the whole process, and for all devices.
page_locked = Ranges()
