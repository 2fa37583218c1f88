"""Whose the free blocks of a pool are: a stream's, and then an event's."""

from __future__ import annotations

import threading
import weakref
from itertools import compress
from typing import NamedTuple

from ....spi.types import LEGACY_STREAM, PER_THREAD_STREAM
from .size_bins import FreeSet, Shelf

#: How many requested sizes a stream remembers the class of.
REMEMBERED = 4096


class Home:
    """What came back on one stream, and is that stream's to use again at once.

    Attributes
    ----------
    trusted : bool
        Blocks have come back on it, or it is a default stream. Of another it is not known how long its handle is good.
    lost : bool
        No event could be recorded on it: what it has is for others only when the whole device has passed.
    """

    __slots__ = ("__weakref__", "free", "lost", "ready", "stacks", "stream", "thread", "trusted")

    def __init__(self, stream: int, chunks: dict[int, int], thread: weakref.ReferenceType[Token] | None = None) -> None:
        self.stream = stream
        self.thread = thread
        self.trusted = stream in (LEGACY_STREAM, PER_THREAD_STREAM)
        self.lost = False
        self.ready: dict[int, list[int]] = {}
        self.stacks: dict[int, list[int]] = {}
        self.free = Shelf(chunks)

    def stack(self, nbytes: int, size: int) -> list[int]:
        """The blocks of a class, which requests of so many bytes come to from now on without the books."""
        found = self.stacks.get(size)
        if found is None:
            found = self.stacks[size] = []
        if len(self.ready) >= REMEMBERED:
            self.ready.clear()
        self.ready[nbytes] = found
        return found

    def gather(self) -> bool:
        """Merge what lies ready, class by class, with its neighbours; False if there is nothing."""
        found = False
        for size in self._filled():
            free, stack = self.free.of(size), self.stacks[size]
            while stack:
                try:
                    ptr = stack.pop()
                except IndexError:  # another thread had it first: hits do not ask
                    break
                free.add(ptr, size)
                found = True
        return found

    def cached(self) -> int:
        """Bytes that are free here."""
        return self.free.nbytes + sum(size * len(self.stacks[size]) for size in self._filled())

    def _filled(self) -> list[int]:
        # All in C: a stream that lives long knows a thousand classes, and most have nothing.
        return list(compress(self.stacks, self.stacks.values()))


class Fence:
    """Free blocks behind an event: its stream may use them before, everyone else when it has passed.

    Attributes
    ----------
    event : int
        The event's handle; 0 while it is being recorded, and where there is none: then the whole device is waited for.
    recording : Lock or None
        Held while the event is being recorded.
    asked : bool
        Somebody is asking the event.
    """

    __slots__ = ("asked", "event", "free", "home", "recording")

    def __init__(self, home: Home, free: Shelf, *, recording: bool = False) -> None:
        self.home: Home | None = home
        self.free = free
        self.event = 0
        self.asked = False
        self.recording: threading.Lock | None = None
        if recording:
            self.recording = threading.Lock()
            self.recording.acquire()

    def pass_to(self, free: Shelf) -> None:
        """Let go of the blocks; the event, if it has one, is still to be destroyed."""
        free.absorb(self.free)
        self.home = None

    def recorded(self) -> None:
        """Let those go on who wait for the recording."""
        assert self.recording is not None
        lock, self.recording = self.recording, None
        lock.release()


class Chunk(NamedTuple):
    """What came from the upstream, and where it was free."""

    start: int
    size: int
    free: FreeSet


class Token:
    """Dies with its thread."""

    __slots__ = ("__weakref__",)
