"""Blocks of one stream are used again by another, and by the host: when an event behind their last use has completed.

An event is recorded on the stream on which blocks came back, behind all that is on it; when it has completed, the blocks are
idle. `PoolMemory` records one when another stream finds no block of its own, `PinnedPool` one for each block that comes back.
Where no event can be had, because the driver refuses or the stream captures a graph, blocks wait until the whole device has
completed.

The handle of a stream is named only while it is valid: in the call that passes it, or until `forget`. `forget` waits while
another thread records events, and refuses a handler that came into that, so a handle is never used after its stream was
destroyed. No lock of the free lists is held meanwhile.
"""

from __future__ import annotations

from contextlib import suppress

from ...spi.driver import Driver
from ...spi.errors import BackendError, ClosedError
from ...spi.types import LEGACY_STREAM, Capability
from ...toolkit.locks import Rank
from ..base.interrupts import CannotWait
from ..base.outer_lock import OuterLock
from ..ordering.completions import CompletionQueue, EventPool
from .free_lists import FreeLists
from .stream_cache import PendingBlocks, StreamCache

#: A stream is asked if its free blocks make up one part in so many of the request. With 1 the trace `serving` reserves 1.15 of
#: what is live, if all streams are asked 1.17, with 2 1.12.
WORTH_ASKING = 2


class CrossStreamReuse:
    """Records events behind free blocks, and makes blocks idle whose events have completed."""

    def __init__(self, lists: FreeLists, driver: Driver) -> None:
        self.lists = lists
        self.driver = driver
        self.events = EventPool.of(self)
        self.queue: CompletionQueue[StreamCache | int, PendingBlocks] = CompletionQueue(self.events)
        self._captures = Capability.CAPTURE in driver.info.capabilities
        self._recording = OuterLock(
            "streams of a pool", Rank.DRIVER, "a pool, of which another thread asks the streams,"
        )
        #: Whether streams are named that the lists know, by the thread that has that lock.
        self._naming = False

    def reclaim_completed(self) -> None:
        """Make blocks idle whose events have completed. Of a closed device there are none: its blocks wait for the device."""
        if self.queue.waiting:
            try:
                completed = self.queue.completed()
            except ClosedError:
                self.queue.forget()
                return
            if completed:
                self.lists.change(self.lists.complete, completed)

    def reclaim(self, stream: int, size: int = 0) -> None:
        """On a miss, reclaim blocks of other streams whose work has completed.

        Streams with few free bytes in comparison to the request are not asked, and the stream itself only where its blocks may
        merge with others. Without a size all are asked, because only idle chunks can go back.
        A finalizer that came into a change of the lists reclaims nothing: its block comes from the upstream.
        """
        if self.lists.is_changing():
            return
        self.reclaim_completed()
        lists = self.lists
        made: list[PendingBlocks] | None = None
        with suppress(CannotWait), self._recording:  # a handler that would have to wait reclaims nothing more
            made = lists.ask(self._worth_asking, stream, size)
            naming, self._naming = self._naming, True
            try:
                for pending in made or ():
                    found = pending.cache
                    if (
                        found is not None
                    ):  # else another thread has waited for the device, or a handler has ended the stream
                        self.record_if_possible(pending, found, self._handle(found))
            finally:
                self._naming = naming
                if made:
                    lists.change(lists.undo_pending, made)
        if made:
            self.reclaim_completed()

    def _worth_asking(self, stream: int, size: int) -> list[PendingBlocks]:
        """Let the free blocks of streams that have enough of them wait for events."""
        lists = self.lists
        caches, own = lists.caches(), lists.cache_of(stream)
        waiting = {each.cache for each in lists.pending}
        merges = not size or lists.idle.nbytes or any(each.free.nbytes for each in caches if each is not own)
        made: list[PendingBlocks] = []
        for cache in caches:
            asked = cache.handle_valid and cache not in waiting and (merges or cache is not own)
            if asked and cache.nbytes >= size // WORTH_ASKING and (pending := lists.make_pending(cache)):
                made.append(pending)
        return made

    def record(self, pending: PendingBlocks, key: StreamCache | int, handle: int) -> None:
        """Record an event behind blocks, unless the stream captures a graph; ``key`` tells streams with one handle apart.

        Of a device that was closed there are no events: blocks that the host had beyond that wait for the device.
        """
        if not self.capturing(handle):
            pending.recorded = True
            try:
                self.queue.add(key, handle, pending)
            except BaseException as error:
                pending.recorded = False
                if not isinstance(error, ClosedError):
                    raise

    def record_if_possible(self, pending: PendingBlocks, key: StreamCache | int, handle: int) -> None:
        """Record an event; if the driver refuses, the blocks wait for the device, or until the stream is asked again."""
        with suppress(BackendError):
            self.record(pending, key, handle)

    def forget(self, stream: int) -> None:
        """Record an event behind the blocks of a stream that is about to be destroyed, and do not name it again.

        Raises
        ------
        CannotWait
            This is a handler, and another thread may be naming it, or the interrupted call: the stream has to stay for now.
        """
        with self._recording:
            with self.lists.lock:
                if self._naming or self.lists.changing:
                    raise CannotWait(
                        f"a pool cannot forget the stream {stream:#x} inside a call that uses it: in a signal's handler or a "
                        f"finalizer, forget and destroy it behind the interrupted call"
                    )
                pending = self.lists.change(self.lists.forget_stream, stream)
            if pending is not None:
                self.record_if_possible(pending, stream, stream)

    def wait_for_device(self) -> None:
        """Make all blocks idle that are free by now, after the whole device has completed."""
        lists = self.lists
        waiting = lists.ask(self._all_waiting)
        if waiting is None:
            return
        made, pending = waiting
        try:
            # The whole device: then no handle has to be named that might not be valid any more.
            self.driver.synchronize()
        except BaseException:
            lists.change(lists.undo_pending, made)
            raise
        lists.change(lists.complete, pending)
        self.reclaim_completed()

    def _all_waiting(self) -> tuple[list[PendingBlocks], list[PendingBlocks]]:
        """Let all free blocks of streams wait: those, and all that wait then."""
        made = [each for each in map(self.lists.make_pending, self.lists.caches()) if each is not None]
        return made, list(self.lists.pending)

    def capturing(self, stream: int) -> bool:
        """Whether work on the stream is recorded into a graph, where no call of the pool may be."""
        return self._captures and bool(self.driver.capturing(stream))  # type: ignore[attr-defined]

    def any_capturing(self) -> bool:
        """Whether a stream that can be asked captures a graph: then nothing may be waited for."""
        if not self._captures:
            return False
        try:
            with self._recording:  # so that no handle is forgotten meanwhile
                with self.lists.lock:
                    caches = list(self.lists.by_stream.values())
                naming, self._naming = self._naming, True
                try:
                    # The legacy stream first: it cannot be asked where some other is capturing, and that is the answer.
                    return self.capturing(LEGACY_STREAM) or any(
                        self.capturing(each.stream) for each in caches if each.handle_valid
                    )
                finally:
                    self._naming = naming
        except CannotWait:  # nor for the device
            return True

    def _handle(self, cache: StreamCache) -> int:
        if cache.thread is None or cache is getattr(self.lists.thread, "cache", None):
            return cache.stream
        # Another thread's default stream has no handle here, but the legacy stream waits for it.
        return LEGACY_STREAM
