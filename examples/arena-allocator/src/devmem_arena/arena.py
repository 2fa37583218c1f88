"""An arena allocator.

Blocks are allocated from the front of a current chunk, and never reused one by one. If a block does not fit, a new chunk is
allocated from the upstream and becomes the current one. A chunk is freed when its last block is freed; an empty current chunk is
kept and used again from the front. All methods may be called from any thread.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass

from devmem.memory import MemoryResource

CHUNK_BYTES = 32 << 20
#: devmem requires this alignment of every address, in bytes.
ALIGNMENT = 256


@dataclass
class Chunk:
    """Memory of the upstream: the first ``used`` bytes are allocated, in ``live`` blocks that are not yet freed."""

    start: int
    nbytes: int
    used: int = 0
    live: int = 0


class Arena:
    """An arena over another memory resource.

    A lock protects the state. It is not held during calls of the upstream, because those may be slow. ``stream_ordered`` is not
    set, so devmem frees a block only after every stream has completed its work on it, and an empty chunk may be freed or reused
    at once.
    """

    def __init__(self, upstream: MemoryResource, chunk_bytes: int = CHUNK_BYTES) -> None:
        self.upstream = upstream
        self.chunk_bytes = chunk_bytes
        self._lock = threading.Lock()
        self._current: Chunk | None = None
        self._chunk_of: dict[int, Chunk] = {}

    def __repr__(self) -> str:
        return f"Arena({self.upstream!r}, chunk_bytes={self.chunk_bytes})"

    def bind(self, driver: object) -> None:
        """Forward the device's driver. devmem calls this once, before the first allocation."""
        bind = getattr(self.upstream, "bind", None)
        if bind is not None:
            bind(driver)

    def allocate(self, nbytes: int, stream: int) -> int:
        """Allocate from the current chunk, or from a new one.

        An exception of the upstream is passed on with the state unchanged; devmem handles a MemoryError.
        """
        if not nbytes:
            return 0
        need = -(-nbytes // ALIGNMENT) * ALIGNMENT
        with self._lock:
            if self._current is not None and self._current.used + need <= self._current.nbytes:
                return self._carve(self._current, need)
        size = max(need, self.chunk_bytes)
        fresh = Chunk(self.upstream.allocate(size, stream), size)
        with self._lock:
            ptr = self._carve(fresh, need)
            empty = self._replace_current(fresh)
        self._free(empty, stream)
        return ptr

    def deallocate(self, ptr: int, nbytes: int, stream: int) -> None:
        """Free a block, and its chunk with the last block, unless it is the current chunk."""
        if not ptr:
            return
        with self._lock:
            chunk = self._chunk_of.pop(ptr)  # before the upstream may reuse the address
            chunk.live -= 1
            empty = None
            if not chunk.live and chunk is self._current:
                chunk.used = 0
            elif not chunk.live:
                empty = chunk
        self._free(empty, stream)

    @property
    def cached_bytes(self) -> int:
        """Size of the current chunk while it is empty."""
        chunk = self._current
        return chunk.nbytes if chunk is not None and not chunk.live else 0

    def trim(self, keep_bytes: int) -> None:
        """Free the current chunk if it is empty and larger than ``keep_bytes``. devmem calls this when memory runs out."""
        with self._lock:
            chunk, empty = self._current, None
            if chunk is not None and not chunk.live and chunk.nbytes > keep_bytes:
                self._current, empty = None, chunk
        self._free(empty, 1)  # 1: the legacy default stream

    def _carve(self, chunk: Chunk, need: int) -> int:
        ptr = chunk.start + chunk.used
        chunk.used += need
        chunk.live += 1
        self._chunk_of[ptr] = chunk
        return ptr

    def _replace_current(self, fresh: Chunk) -> Chunk | None:
        """Make a chunk the current one; return the previous one if it is empty."""
        before, self._current = self._current, fresh
        return before if before is not None and not before.live else None

    def _free(self, chunk: Chunk | None, stream: int) -> None:
        if chunk is not None:
            self.upstream.deallocate(chunk.start, chunk.nbytes, stream)
