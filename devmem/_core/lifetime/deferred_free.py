"""The deferred free queue: what was dropped, and when it is given back.

A finalizer runs wherever the collector runs, on any thread, in the middle of any call. So it takes no lock and calls no
driver: it appends what was dropped (memory, a stream, an event, a loaded kernel) to `DeviceHandle.dropped`, which is
atomic. The queue looks at it at safe points: in verbs that allocate or copy, on the caller's thread, with the device
entered. Then it frees everything, if there are more items or bytes than the limits of the settings, or memory ran out;
never inside ``defer_cleanup()``, and never while a graph is captured on a stream of devmem's. A call that waits for no stream
(``with queue.without_waiting():``) frees nothing while something is pending whose release may wait; the wait for its copy does.

What could not be given back stays in the queue, if it was not given back in part: a leak is preferred to an address in use twice.
No lock is held across a call of the driver.
"""

# Decision: docs/adr/0001-dropped-memory-waits-in-one-queue.md
from __future__ import annotations

import warnings
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from operator import attrgetter
from threading import get_ident

from ...spi.errors import DevmemError, DevmemWarning
from ..base.config import settings
from ..base.device_handle import DeviceHandle, Droppable
from ..base.hot_state import QueueState
from ..base.scopes import deferral
from ..ordering.completions import CompletionTracker, leaked
from ..ordering.stream import Stream
from ..ordering.stream_table import StreamTable

_nbytes: Callable[[object], int] = attrgetter("nbytes")
#: So much that was dropped is looked at again at each safe point; more is counted, together and once.
FEW = 10


class DeferredFreeQueue(QueueState):
    """The queue of one open device.

    Attributes
    ----------
    pending : deque
        What was dropped and is not freed yet.
    pending_bytes : int
        Its bytes.
    foreign_releases : deque
        Owners of foreign memory whose consumer has let go of it; appended to by finalizers.
    """

    def __init__(self, handle: DeviceHandle, completions: CompletionTracker, streams: StreamTable) -> None:
        self.handle = handle
        self.completions = completions
        self.streams = streams
        self.dropped = handle.dropped
        self.pending: deque[Droppable] = deque()
        self.pending_bytes = 0
        self.foreign_releases: deque[ExportedForeign] = deque()
        self.max_count = settings().max_pending_deallocs_count
        self.max_bytes = int(settings().max_pending_deallocs_ratio * handle.info.total_bytes)
        self._lock = completions.events.lock
        #: Threads inside of a call that waits for no stream, by a key of each call's own.
        self._hurried: dict[object, int] = {}

    # -- safe points ---------------------------------------------------------------------------------------------------

    def free_if_due(self) -> None:
        """Count what was dropped, let go of what completed copies kept, and drain if too much is pending."""
        if self.foreign_releases:
            self.release_foreign()
        if self.completions.in_flight:
            self.completions.poll()
        if len(self.dropped) > FEW:
            self._count_dropped()
        count = len(self.pending) + len(self.dropped)
        if count > self.max_count or (count and self.waiting_bytes() > self.max_bytes):
            self._count_dropped()
            if get_ident() in list(self._hurried.values()) and any(item.may_wait for item in list(self.pending)):
                return
            self.drain()

    @contextmanager
    def without_waiting(self) -> Iterator[None]:
        """No safe point of this thread waits for a stream in the block; what would wait stays pending."""
        key = object()
        try:
            self._hurried[key] = get_ident()
            yield
        finally:
            self._hurried.pop(key, None)

    def drain(self) -> bool:
        """Free all that is pending, unless cleanup is deferred or a graph is captured. The device must be entered.

        The first failure is told as a DevmemWarning when the others are freed. What failed before it was given back stays.
        Returns whether something stays because it is still in use.
        """
        self._count_dropped()
        if not self.pending or self.is_held():
            return False
        batch: deque[Droppable] = deque()
        told, in_use = "", False
        failed: list[Droppable] = []
        waited: set[int] = set()
        try:
            with self._lock:
                batch, self.pending, self.pending_bytes = self.pending, batch, 0
            while batch:
                item = batch[0]  # it stays there until it is given back, or has failed
                try:
                    if item.release(waited):
                        batch.popleft()
                        continue
                    in_use = True
                except Exception as error:  # a plugin's resource may raise anything
                    told = told or "; ".join([str(error), *getattr(error, "__notes__", ())])
                failed.append(item)
                batch.popleft()
            self.put_back(item for item in failed if item.is_out())
        except BaseException:  # interrupted: queued in one step, as if dropped once more
            self.dropped.extend([*batch, *failed])
            raise
        if told:
            warnings.warn(f"while freeing dropped memory on {self.handle.device}: {told}", DevmemWarning, stacklevel=3)
        return in_use

    def release_now(self, item: Droppable) -> None:
        """Free one item at once, unless cleanup is deferred or a graph is captured; then it is pending like a dropped one.

        The device must be entered.
        """
        if self.is_held() or not item.release(set()):
            self.dropped.append(item)

    def put_back(self, items: Iterable[Droppable]) -> None:
        """Queue items."""
        with self._lock:
            for item in items:
                self.pending.append(item)
                self.pending_bytes += item.nbytes

    def is_held(self) -> bool:
        """Whether nothing may be freed now: inside ``defer_cleanup()``, or while a graph is captured."""
        return bool(deferral.depth) or self.streams.any_capturing()

    def release_foreign(self) -> None:
        """Let go of foreign memory behind the streams of its consumers."""
        while self.foreign_releases and not self.streams.any_capturing():
            told = None
            try:
                each = self.foreign_releases[0]  # an interrupt leaves it there, and its owner alive
                each.release()
            except IndexError:  # another thread took it
                return
            except DevmemError as error:  # the stream was waited for instead, or the owner is kept for good
                told = f"while letting go of memory on {self.handle.device}: {error}"
            with suppress(ValueError):  # another thread has let go of it, too
                self.foreign_releases.remove(each)
            if told:
                warnings.warn(told, DevmemWarning, stacklevel=4)

    def waiting_bytes(self) -> int:
        """Bytes that were dropped and are not freed yet. Nothing is moved: an allocation looks at `dropped` itself."""
        return self.pending_bytes + sum(map(_nbytes, list(self.dropped)))

    # -- the end -------------------------------------------------------------------------------------------------------

    def take_all(self) -> Iterator[Droppable]:
        """Everything that is pending, which the caller releases before it asks for the next; the device is closed, or closing."""
        self._count_dropped()
        self.foreign_releases.clear()
        while self.pending:
            yield (item := self.pending[0])  # an interrupt leaves it there
            nbytes = item.nbytes
            if self.pending and self.pending[0] is item:  # else a signal's handler has taken all that was pending
                self.pending_bytes -= nbytes
                self.pending.popleft()

    def leak_pending(self) -> None:
        """Never let go of foreign memory: nothing tells when its consumers are done."""
        leaked.append(self.foreign_releases.copy())

    def forget_after_fork(self) -> None:
        """In the child of a fork: forget everything, and free nothing."""
        # Kept referenced: copies of the parent's host buffers die with this process, not before.
        leaked.extend((list(self.dropped), self.pending, self.foreign_releases))
        self.dropped.clear()
        self.pending, self.foreign_releases = deque(), deque()

    def _count_dropped(self) -> None:
        with self._lock:
            # Before they are taken: what is dropped meanwhile is counted twice, never missed.
            self.handle.dropped_bytes = 0
            try:
                # Asked for, not looked at first: another thread may take the last one in between. No interrupt comes between
                # the iterator and the append.
                for item in iter(self.dropped.popleft, None):
                    self.pending.append(item)
                    self.pending_bytes += item.nbytes
            except IndexError:
                return


class ExportedForeign:
    """Borrowed memory that was handed on: its owner stays until the consumer has let go, and the stream that it named has passed.

    Of a foreign stream nothing is known by then: what is enqueued there at the export is all that is waited for.
    """

    __slots__ = ("owner", "queue", "stream")

    def __init__(self, queue: DeferredFreeQueue, owner: object, stream: Stream | None) -> None:
        self.queue = queue
        self.owner = owner
        self.stream = None if stream is None or stream.external else stream

    def __del__(self) -> None:
        # On any thread, whenever the consumer likes: as for blocks of ours, see `Allocation`.
        try:
            if self.stream is not None and not self.queue.handle.dead:
                self.queue.foreign_releases.append(self)
        except AttributeError:
            pass

    def release(self) -> None:
        """Keep the owner alive until the stream has completed what is on it now. The device is entered."""
        if self.stream is not None:
            with self.queue.streams.leases.hold():
                stream = self.stream.ordering_stream()
                if not self.queue.handle.driver.stream_query(stream.handle):
                    self.queue.completions.keep_until_complete(stream, self.owner)
