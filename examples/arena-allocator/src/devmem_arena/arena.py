"""The allocator: carve blocks off big chunks, and give a chunk back when its last block is gone."""

from __future__ import annotations

import threading
from dataclasses import dataclass

from devmem.memory import MemoryResource

CHUNK_BYTES = 32 << 20
#: What devmem asks of every address.
ALIGNMENT = 256


@dataclass
class Chunk:
    """Memory of the upstream, used from the front."""

    start: int
    nbytes: int
    used: int = 0
    live: int = 0


class Arena:
    """A memory resource over another one.

    devmem calls it from any thread, so the books are under a lock; but the lock is never held while the upstream is asked,
    because that may take long. It says nothing of ``stream_ordered``, so each block comes back when every stream has passed it,
    and a chunk that is empty may go back, or be used again from the front, at once.
    """

    def __init__(self, upstream: MemoryResource, chunk_bytes: int = CHUNK_BYTES) -> None:
        self.upstream = upstream
        self.chunk_bytes = chunk_bytes
        self._lock = threading.Lock()
        self._current: Chunk | None = None
        self._home: dict[int, Chunk] = {}

    def __repr__(self) -> str:
        return f"Arena({self.upstream!r}, chunk_bytes={self.chunk_bytes})"

    def bind(self, driver: object) -> None:
        """Pass the device on. devmem calls this once, before the first allocation."""
        bind = getattr(self.upstream, "bind", None)
        if bind is not None:
            bind(driver)

    def allocate(self, nbytes: int, stream: int) -> int:
        """The next free bytes of the current chunk, or the first ones of a new chunk.

        What the upstream raises is passed on: nothing has changed then, and devmem knows what to do about a MemoryError.
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
            empty = self._retired(fresh)
        self._give_back(empty, stream)
        return ptr

    def deallocate(self, ptr: int, nbytes: int, stream: int) -> None:
        """Forget the block. The last one of a chunk gives it back, unless blocks are still carved off it."""
        if not ptr:
            return
        with self._lock:
            chunk = self._home.pop(ptr)  # before anything goes upstream, or the address could be out twice
            chunk.live -= 1
            empty = None
            if not chunk.live and chunk is self._current:
                chunk.used = 0
            elif not chunk.live:
                empty = chunk
        self._give_back(empty, stream)

    @property
    def cached_bytes(self) -> int:
        """Bytes that the arena holds although no block is in them: the current chunk, while it is empty."""
        chunk = self._current
        return chunk.nbytes if chunk is not None and not chunk.live else 0

    def trim(self, keep_bytes: int) -> None:
        """Give the current chunk back if it is empty, and more than may be kept. devmem calls this when memory runs out."""
        with self._lock:
            chunk, empty = self._current, None
            if chunk is not None and not chunk.live and chunk.nbytes > keep_bytes:
                self._current, empty = None, chunk
        self._give_back(empty, 1)  # 1: the legacy default stream

    def _carve(self, chunk: Chunk, need: int) -> int:
        ptr = chunk.start + chunk.used
        chunk.used += need
        chunk.live += 1
        self._home[ptr] = chunk
        return ptr

    def _retired(self, fresh: Chunk) -> Chunk | None:
        """Make a chunk the current one; what was current before, if nothing is in it any more."""
        before, self._current = self._current, fresh
        return before if before is not None and not before.live else None

    def _give_back(self, chunk: Chunk | None, stream: int) -> None:
        if chunk is not None:
            self.upstream.deallocate(chunk.start, chunk.nbytes, stream)
