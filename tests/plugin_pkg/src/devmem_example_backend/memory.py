"""A memory resource: carve blocks off big slabs, and take a slab back when its last block is gone."""

from __future__ import annotations

import threading

from devmem.spi.driver import Driver

SLAB_BYTES = 8 << 20
ALIGNMENT = 256


class BumpMemory:
    """Bump allocator over the driver; larger requests than a slab get one of their own."""

    def __init__(self) -> None:
        self._driver: Driver | None = None
        self._lock = threading.Lock()
        self._slabs: dict[int, tuple[int, int]] = {}  # address: bytes, live blocks
        self._home: dict[int, int] = {}  # block: the slab it was carved off
        self._slab = self._used = 0

    def bind(self, driver: Driver) -> None:
        """Remember where slabs come from."""
        self._driver = driver

    def allocate(self, nbytes: int, stream: int) -> int:
        """Carve a block off the current slab."""
        if nbytes == 0:
            return 0
        assert self._driver is not None, "a resource is bound before its first allocation"
        need = -(-nbytes // ALIGNMENT) * ALIGNMENT
        with self._lock:
            if not self._slab or self._used + need > self._slabs[self._slab][0]:
                size = max(need, SLAB_BYTES)
                slab = self._driver.alloc(size, stream)  # raises with nothing changed
                self._slabs[slab] = (size, 0)
                self._slab, self._used = slab, 0
            ptr = self._slab + self._used
            size, live = self._slabs[self._slab]
            self._slabs[self._slab] = (size, live + 1)
            self._home[ptr] = self._slab
            self._used += need
            return ptr

    def deallocate(self, ptr: int, nbytes: int, stream: int) -> None:
        """Forget the block; the last one gives its slab back."""
        if ptr == 0:
            return
        assert self._driver is not None
        with self._lock:
            slab = self._home.pop(ptr)
            size, live = self._slabs[slab]
            self._slabs[slab] = (size, live - 1)
            if live > 1:
                return
            del self._slabs[slab]
            if slab == self._slab:
                self._slab = 0
        self._driver.free(slab, size, stream)
