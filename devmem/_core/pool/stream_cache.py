"""Free blocks of one stream, and free blocks that wait for an event."""

from __future__ import annotations

import weakref
from contextlib import suppress
from dataclasses import dataclass
from itertools import compress

from ...spi.types import LEGACY_STREAM, PER_THREAD_STREAM
from .size_bins import SizeBins

#: How many requested sizes a stream remembers the class of: a bound on memory, not a matter of speed.
REMEMBERED = 4096


class StreamCache:
    """Blocks that came back on one stream, which that stream may use again at once."""

    __slots__ = ("__weakref__", "by_request", "free", "handle_valid", "lists", "stream", "thread")

    def __init__(self, stream: int, chunks: dict[int, int], thread: weakref.ReferenceType[Token] | None = None) -> None:
        self.stream = stream
        #: For a thread's own default stream, what dies with the thread.
        self.thread = thread
        #: The handle may be named at any time: blocks have come back on the stream, so `forget_stream` is called before it is
        #: destroyed; or it is a default stream. The handle of any other stream is good only during the call that passes it.
        self.handle_valid = stream in (LEGACY_STREAM, PER_THREAD_STREAM)
        #: The list of free blocks of each class, by its size; and by each size that was asked for.
        self.lists: dict[int, list[int]] = {}
        self.by_request: dict[int, list[int]] = {}
        self.free = SizeBins(chunks)

    @property
    def nbytes(self) -> int:
        """Bytes that are free here."""
        return self.free.nbytes + sum(size * len(self.lists[size]) for size in self._filled())

    @property
    def ended(self) -> bool:
        """Whether it belonged to a thread that has ended."""
        return self.thread is not None and self.thread() is None

    def list_for(self, nbytes: int, size: int) -> list[int]:
        """The list of a class, which requests of ``nbytes`` find by themselves from now on, without the lock."""
        found = self.lists.get(size)
        if found is None:
            found = self.lists[size] = []
        if len(self.by_request) >= REMEMBERED:
            self.by_request.clear()
        self.by_request[nbytes] = found
        return found

    def coalesce(self) -> bool:
        """Move the blocks out of the lists and merge them with their neighbours; False if there were none."""
        found = False
        for size in self._filled():
            free, blocks = self.free.of(size), self.lists[size]
            with suppress(IndexError):  # another thread, which takes no lock for it, has allocated the last one
                while blocks:
                    free.add(blocks.pop(), size)
                    found = True
        return found

    def _filled(self) -> list[int]:
        # All in C: a stream that lives long knows a thousand classes, and most lists are empty.
        return list(compress(self.lists, self.lists.values()))


@dataclass(eq=False, slots=True)
class PendingBlocks:
    """Free blocks that wait for an event: every stream may use them when it has completed, their own stream before that too."""

    #: The stream that may use them before, if there is one.
    cache: StreamCache | None
    free: SizeBins
    #: An event is, or is just being, recorded behind them. False: only a wait for the whole device frees them.
    recorded: bool = False


class Token:
    """Dies with its thread."""

    __slots__ = ("__weakref__",)
