"""Page-locked host memory that is kept for reuse, within a limit."""

from __future__ import annotations

import threading
import time
from collections import OrderedDict, deque
from collections.abc import Iterator
from contextlib import nullcontext
from dataclasses import dataclass

from ....spi.driver import Driver
from ....spi.errors import ConfigError, DevmemError, LayoutError, OutOfMemory
from ....spi.memory import MemoryResource
from ....spi.types import LEGACY_STREAM, PER_THREAD_STREAM, Capability
from ....toolkit.deferred_errors import FirstError
from ..adaptor import Adaptor
from ..direct import PinnedMemory
from ..host_limits import host_bytes
from ..numa import check_node, on_node
from ..size_text import bytes_of, check_size
from .size_bins import rounded

#: What the driver locks is whole pages.
PAGE = 4096
#: The part of the machine's memory that may be page-locked, unless told otherwise.
SHARE = 0.5


@dataclass(frozen=True, slots=True)
class PinnedReport:
    """What a pool of pinned memory holds and has done. Sizes are in bytes."""

    max_bytes: int  #: the limit
    reserved_bytes: int  #: taken from the upstream and not given back
    peak_reserved_bytes: int  #: the most that ever was
    live_bytes: int  #: handed out, rounded up to pages and size classes
    cached_bytes: int  #: held for reuse
    waiting_bytes: int  #: of those, what a stream may still use
    hits: int  #: requests that were served from what is cached
    misses: int  #: requests that had to go to the upstream
    given_back: int  #: blocks that went back to the upstream
    driver_seconds: float  #: time in the upstream's two verbs: locking pages and unlocking them


class PinnedPool(Adaptor):
    """Keep page-locked host memory and hand it out again once no copy uses it any more.

    Locking pages takes a driver up to milliseconds. A block that comes back gets an event behind the work of its stream, and is
    handed out again when that has passed: the host, which is on no stream, may then write to it. Blocks are kept whole, by exact
    size class (pages, and at most 1/64 more), so no request takes a multiple of what it asked for.

    Parameters
    ----------
    upstream : MemoryResource, optional
        Where blocks come from; the device's pinned memory by default.
    max_bytes : int or str, optional
        The most to hold, live and cached together, as bytes, ``"8GiB"`` or a share of the host's memory (``"25%"``). Half of the
        host's memory by default: pages that are locked are gone for everyone else. What is cached goes back, the longest unused
        first, before OutOfMemory is raised.
    numa_node : int, optional
        The node on which new blocks come to lie (Linux).
    """

    def __init__(
        self,
        upstream: MemoryResource | None = None,
        *,
        max_bytes: int | str | None = None,
        numa_node: int | None = None,
    ) -> None:
        super().__init__(PinnedMemory() if upstream is None else upstream)
        self.max_bytes = (
            int(SHARE * host_bytes()) if max_bytes is None else bytes_of(check_size(max_bytes), host_bytes())
        )
        if self.max_bytes < PAGE:
            raise ConfigError(f"PinnedPool(max_bytes={max_bytes!r}): a pool needs at least one page, {PAGE} bytes")
        if numa_node is not None:
            check_node(numa_node)
        self.numa_node = numa_node
        self._lock = threading.RLock()
        #: Free blocks by class; the class that was used last comes last, and within a class the block that was.
        self._ready: OrderedDict[int, deque[int]] = OrderedDict()
        #: Blocks that a stream may still use, by stream, in its order: (event, address, size).
        self._waiting: dict[int, deque[tuple[int, int, int]]] = {}
        #: Blocks of which no event tells: the whole device has to pass.
        self._untold: list[tuple[int, int]] = []
        self._cached = self._reserved = self._peak = 0
        self._hits = self._misses = self._given_back = 0
        self._seconds = 0.0

    def _facts(self) -> dict[str, object]:
        node = {} if self.numa_node is None else {"numa_node": self.numa_node}
        return {"max_bytes": self.max_bytes, **node}

    # -- the two verbs -------------------------------------------------------------------------------------------------

    def allocate(self, nbytes: int, stream: int) -> int:
        """Pinned memory that nobody uses.

        Raises
        ------
        OutOfMemory
            The upstream has no more, or ``max_bytes`` would be passed, after what is cached was given back.
        """
        if nbytes <= 0:
            if nbytes == 0:
                return 0
            raise LayoutError(f"{self!r} cannot allocate {nbytes} bytes")
        size = class_size(nbytes)
        ptr = self._take(size)
        if not ptr:
            self._poll()
            ptr = self._take(size)
        return ptr or self._fetch(size, stream)

    def deallocate(self, ptr: int, nbytes: int, stream: int) -> None:
        """Take a block back, for anyone when the stream has passed what is on it now. Does not wait.

        Raises BackendError if no event can be recorded; the block is kept even so, until the device was waited for.
        """
        if not ptr:
            return
        size = class_size(nbytes)
        # The thread's own default stream is another one in each thread.
        key = stream if stream != PER_THREAD_STREAM else -threading.get_ident()
        with self._lock:
            self._cached += size
        event = 0
        try:
            if not self._capturing(stream):
                event = self._event_behind(stream)
        finally:
            with self._lock:
                if event:
                    self._waiting.setdefault(key, deque()).append((event, ptr, size))
                else:
                    self._untold.append((ptr, size))

    @property
    def stream_ordered(self) -> bool:
        """True: blocks may come back while copies still use them."""
        return True

    # -- what is kept --------------------------------------------------------------------------------------------------

    @property
    def cached_bytes(self) -> int:
        """Bytes held for reuse, here and in the upstream; also those that a stream has yet to pass."""
        return self._cached + super().cached_bytes

    @property
    def shared_cache(self) -> object:
        """The pool: its cache is its own."""
        return self

    @property
    def largest_free_block(self) -> int:
        """Bytes of the largest block that is free and that no stream uses."""
        self._poll()
        with self._lock:
            return max((size for size, blocks in self._ready.items() if blocks), default=0)

    def report(self) -> PinnedReport:
        """What the pool holds, and what it has done so far."""
        with self._lock:
            ready = sum(size * len(blocks) for size, blocks in self._ready.items())
            return PinnedReport(
                max_bytes=self.max_bytes,
                reserved_bytes=self._reserved,
                peak_reserved_bytes=self._peak,
                live_bytes=self._reserved - self._cached,
                cached_bytes=self._cached,
                waiting_bytes=max(0, self._cached - ready),
                hits=self._hits,
                misses=self._misses,
                given_back=self._given_back,
                driver_seconds=self._seconds,
            )

    def trim(self, keep_bytes: int) -> None:
        """Give free blocks back until at most ``keep_bytes`` are kept; waits for the device where copies still use them."""
        self._poll()
        self._release(self._cached - keep_bytes)
        if (self._cached > keep_bytes or (keep_bytes == 0 and self._waiting)) and not self._capturing(LEGACY_STREAM):
            self._wait_for_all()
            self._release(self._cached - keep_bytes)
        super().trim(max(0, keep_bytes - self._cached))

    # -- what is free --------------------------------------------------------------------------------------------------

    def _take(self, size: int) -> int:
        with self._lock:
            blocks = self._ready.get(size)
            if not blocks:
                return 0
            ptr = blocks.pop()
            self._ready.move_to_end(size)
            self._cached -= size
            self._hits += 1
            return ptr

    def _put(self, ptr: int, size: int) -> None:
        self._ready.setdefault(size, deque()).append(ptr)

    def _event_behind(self, stream: int) -> int:
        driver = self._device()
        event = driver.event_create(False)
        try:
            driver.event_record(event, stream)
        except BaseException:
            driver.event_destroy(event)
            raise
        return event

    def _poll(self) -> None:
        """Free what streams have passed."""
        for stream in list(self._waiting):
            # Events of one stream pass in order: the first that has not ends the search there, and holds up no other stream.
            while self._first_passed(stream):
                pass

    def _first_passed(self, stream: int) -> bool:
        """Free the block that has waited longest for a stream, if that has passed."""
        with self._lock:
            queue = self._waiting.get(stream)
            if not queue:
                self._waiting.pop(stream, None)
                return False
            # Taken out while it is asked: the lock is not held across a call of the driver.
            event, ptr, size = queue.popleft()
        passed = False
        try:
            passed = self._device().event_query(event)
        finally:
            with self._lock:
                if passed:
                    self._put(ptr, size)
                else:
                    self._waiting.setdefault(stream, deque()).appendleft((event, ptr, size))
        if passed:
            self._device().event_destroy(event)
        return passed

    def _wait_for_all(self) -> None:
        """Free all that has come back by now, after the device has passed it."""
        with self._lock:
            untold, self._untold = self._untold, []
        try:
            self._device().synchronize()
        except BaseException:
            with self._lock:
                self._untold += untold
            raise
        with self._lock:
            for ptr, size in untold:
                self._put(ptr, size)
        self._poll()

    # -- the upstream --------------------------------------------------------------------------------------------------

    def _fetch(self, size: int, stream: int) -> int:
        """A new block; where that cannot be had, after everything that is cached was given back."""
        with self._lock:
            over = self._reserved + size - self.max_bytes
        self._release(over)
        try:
            return self._from_upstream(size, stream)
        except MemoryError:
            if not self._cached or self._capturing(LEGACY_STREAM):
                raise
        self._wait_for_all()
        ptr = self._take(size)
        if ptr:
            return ptr
        self._release(self._cached)
        return self._from_upstream(size, stream)

    def _from_upstream(self, size: int, stream: int) -> int:
        with self._lock:
            if self._reserved + size > self.max_bytes:
                raise OutOfMemory(
                    f"{self!r} is at its limit: {size} bytes more on top of {self._reserved} that it holds, of which "
                    f"{self._cached} are cached and in use by streams; raise max_bytes, or free something"
                )
            self._reserved += size
            self._peak = max(self._peak, self._reserved)
        ptr = 0
        began = time.perf_counter()
        try:
            with nullcontext() if self.numa_node is None else on_node(self.numa_node):
                ptr = self._allocate(size, stream)
        finally:
            with self._lock:
                self._seconds += time.perf_counter() - began
                if ptr:
                    self._misses += 1
                else:
                    self._reserved -= size
        return ptr

    def _release(self, nbytes: int) -> None:
        """Give free blocks back until they make up so many bytes, those of the class that was used longest ago first."""
        with FirstError() as first:
            for ptr, size in self._unused(nbytes):
                began = time.perf_counter()
                try:
                    self._deallocate(ptr, size, LEGACY_STREAM)
                except Exception as error:  # given back nevertheless, and the others are still to be
                    first.put(error)
                finally:
                    with self._lock:
                        self._seconds += time.perf_counter() - began
                        self._reserved -= size
                        self._given_back += 1

    def _unused(self, nbytes: int) -> Iterator[tuple[int, int]]:
        """Blocks to give back, each out of the books before it is."""
        while nbytes > 0:
            with self._lock:
                size = next((size for size, blocks in self._ready.items() if blocks), 0)
                if not size:
                    return
                ptr = self._ready[size].popleft()
                if not self._ready[size]:
                    del self._ready[size]
                self._cached -= size
            nbytes -= size
            yield ptr, size

    # -- the device ----------------------------------------------------------------------------------------------------

    def _device(self) -> Driver:
        if self.driver is None:
            raise DevmemError(f"{self!r} is not bound to a device yet: install it with devmem.use_memory()")
        return self.driver

    def _capturing(self, stream: int) -> bool:
        driver = self._device()
        if Capability.CAPTURE not in driver.info.capabilities:
            return False
        return bool(driver.capturing(stream))  # type: ignore[attr-defined]  # the capability promises it, checked at opening


def class_size(nbytes: int) -> int:
    """The bytes of the block that serves a request: whole pages, and at most 1/64 more."""
    return rounded((nbytes + PAGE - 1) & -PAGE) + PAGE - 1 & -PAGE
