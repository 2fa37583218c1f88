"""Page-locked host memory that is kept for reuse, within a limit.

To lock pages takes a driver up to milliseconds, so blocks are kept. The host writes to this memory, and the host is on no
stream: a block may be handed out again, to any stream, only when all work that used it has completed. So every block that
comes back gets an event behind the work of its stream, and is idle when that has completed. Blocks are whole chunks of the
upstream, never cut and never merged: a program uses few sizes, and each page that a cut would leave over is lost to the whole
machine.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial

from ....spi.errors import ConfigError
from ....spi.memory import MemoryResource
from ....spi.sizes import exact_size
from ....spi.types import PER_THREAD_STREAM
from ....toolkit.host_limits import host_bytes
from ....toolkit.numa import check_node, on_node
from ...base.shown import Report
from ...base.size_text import bytes_of
from ..direct import PinnedMemory
from .engine import Pool
from .free_lists import Effort
from .size_bins import Fit, cut_from, rounded
from .stream_cache import PendingChunk

#: What the driver locks is whole pages.
PAGE = 4096


@dataclass(frozen=True, slots=True)
class PinnedReport(Report):
    """The contents and history of a pool of pinned memory. Sizes are in bytes.

    Examples
    --------
    >>> with dm.use_memory(dm.memory.PinnedPool(), kind="pinned") as pool:
    ...     host = dm.pinned_array(3)
    >>> report = pool.report()
    >>> report.misses, report.live_bytes        # whole pages
    (1, 4096)
    """

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


class PinnedPool(Pool):
    """Keep page-locked host memory and hand it out again when no copy uses it any more.

    Blocks are kept whole, by exact size class: a request takes whole pages, and at most 1/64 more.

    Parameters
    ----------
    upstream : MemoryResource, optional
        Where blocks come from; the device's pinned memory by default.
    max_bytes : int or str, optional
        The most to hold, live and cached together, as bytes, ``"8GiB"`` or a share of the host's memory (``"25%"``). Half of
        the host's memory by default: no other program can use pages that are locked. What is cached goes back, the longest
        unused first, before OutOfMemory is raised.
    numa_node : int, optional
        The node on which new blocks come to lie (Linux). By default the driver's, which is the nearest to the device where the
        machine has several, the driver tells it, and the program has no policy of its own; ``devmem info`` shows it.

    Examples
    --------
    >>> with dm.use_memory(dm.memory.PinnedPool(max_bytes="1GiB"), kind="pinned"):
    ...     host = dm.pinned_array(3)
    """

    _shown = ("max_bytes", "numa_node")

    def __init__(
        self,
        upstream: MemoryResource | None = None,
        *,
        max_bytes: int | str | None = None,
        numa_node: int | None = None,
    ) -> None:
        super().__init__(PinnedMemory() if upstream is None else upstream, whole_blocks=True)
        self.max_bytes = self._limit = bytes_of("50%" if max_bytes is None else max_bytes, host_bytes())
        if self.max_bytes < PAGE:
            raise ConfigError(
                f"PinnedPool(max_bytes={max_bytes!r}): a pool needs at least one page, {exact_size(PAGE)}"
            )
        if numa_node is not None:
            check_node(numa_node)
        self.numa_node = numa_node
        self._hits = self._misses = self._given_back = 0
        self._seconds = 0.0

    def allocate(self, nbytes: int, stream: int) -> int:
        """Pinned memory that no stream uses.

        Raises
        ------
        OutOfMemory
            The upstream has no more, or ``max_bytes`` would be passed, after what is cached was given back.
        """
        return self._miss(nbytes, stream)

    def deallocate(self, ptr: int, nbytes: int, stream: int) -> None:
        """Take a block back, for any stream when this one has completed what is on it now. Does not wait.

        Raises BackendError if no event can be recorded; the block is kept even so, until the device was waited for.
        """
        if not ptr:
            return
        pending = PendingChunk(ptr, self._size(nbytes))
        self._lists.change(self._lists.add_pending, pending)
        # The thread's own default stream is another one in each thread.
        key = stream if stream != PER_THREAD_STREAM else -threading.get_ident()
        self._reuse.record(pending, key, stream)

    @property
    def stream_ordered(self) -> bool:
        """True: blocks may come back while copies still use them."""
        return True

    @property
    def largest_free_block(self) -> int:
        """Bytes of the largest block that is free and that no stream uses."""
        self._reuse.reclaim_completed()
        with self._lists.lock:
            return self._lists.idle.largest

    def report(self) -> PinnedReport:
        """Return the contents and the history of the pool."""
        lists = self._lists
        with lists.lock:
            return PinnedReport(
                max_bytes=self.max_bytes,
                reserved_bytes=lists.reserved,
                peak_reserved_bytes=lists.peak_reserved,
                live_bytes=lists.chunk_bytes - lists.cached,
                cached_bytes=lists.cached,
                waiting_bytes=lists.cached - lists.idle.nbytes,
                hits=self._hits,
                misses=self._misses,
                given_back=self._given_back,
                driver_seconds=self._seconds,
            )

    def _size(self, nbytes: int) -> int:
        """Whole pages, and at most 1/64 more."""
        return rounded((nbytes + PAGE - 1) & -PAGE) + PAGE - 1 & -PAGE

    def _find(self, nbytes: int, stream: int, effort: Effort) -> int:
        ptr = cut_from((self._lists.idle,), self._size(nbytes), Fit.EXACT)
        self._hits += bool(ptr)
        return ptr

    def _reclaim(self, nbytes: int, stream: int) -> int:
        self._reuse.reclaim_completed()
        return self._cut(nbytes, stream, Effort.FULL)

    def _plan(self, nbytes: int, stream: int) -> tuple[int, int]:
        size = self._size(nbytes)
        return size, self._lists.reserved + size - self._limit

    def _allocate_chunk(self, size: int, stream: int) -> int:
        allocate = partial(super()._allocate_chunk, size, stream)
        with self._timed():
            ptr = allocate() if self.numa_node is None else on_node(self.numa_node, allocate)
        with self._lists.lock:
            self._misses += 1
        return ptr

    def deallocate_chunk(self, ptr: int, size: int) -> None:
        with self._lists.lock:
            self._given_back += 1
        with self._timed():
            super().deallocate_chunk(ptr, size)

    @contextmanager
    def _timed(self) -> Iterator[None]:
        began = time.perf_counter()
        try:
            yield
        finally:
            with self._lists.lock:
                self._seconds += time.perf_counter() - began
