"""devmem's own memory resources, and one that caches, against the published suite."""

from __future__ import annotations

import threading

from devmem import memory
from devmem.backends.host.hooks import HostBackend
from devmem.spi.driver import Backend, Driver
from devmem.spi.memory import MemoryResource, SupportsBind
from devmem.testing import MemoryResourceTests


class OnHost(MemoryResourceTests):
    def make_backend(self) -> Backend:
        backend = HostBackend()
        backend.configure({"strict": True, "devices": 1})
        return backend


class TestDriverMemory(OnHost):
    def make_resource(self, driver: Driver) -> MemoryResource:
        return memory.DriverMemory()


class TestStreamOrderedMemory(OnHost):
    def make_resource(self, driver: Driver) -> MemoryResource:
        return memory.StreamOrderedMemory()


class Recycler:
    """The smallest resource with all the optional parts: blocks are kept for their stream, by exact size."""

    stream_ordered = True

    def __init__(self, upstream: MemoryResource) -> None:
        self._upstream = upstream
        self._lock = threading.Lock()
        self._kept: dict[tuple[int, int], list[int]] = {}
        self._driver: Driver | None = None

    def bind(self, driver: Driver) -> None:
        self._driver = driver
        if isinstance(self._upstream, SupportsBind):
            self._upstream.bind(driver)

    def allocate(self, nbytes: int, stream: int) -> int:
        if nbytes == 0:
            return 0
        with self._lock:
            kept = self._kept.get((nbytes, stream))
            if kept:
                return kept.pop()
        return self._upstream.allocate(nbytes, stream)

    def deallocate(self, ptr: int, nbytes: int, stream: int) -> None:
        if ptr:
            with self._lock:
                self._kept.setdefault((nbytes, stream), []).append(ptr)

    @property
    def cached_bytes(self) -> int:
        with self._lock:
            return sum(nbytes * len(kept) for (nbytes, _), kept in self._kept.items())

    def trim(self, keep_bytes: int) -> None:
        assert self._driver is not None
        self._driver.synchronize()  # before anything is taken out: it may fail
        with self._lock:
            kept = [(*key, ptr) for key, blocks in self._kept.items() for ptr in blocks]
            self._kept = {}
        for at, (nbytes, stream, ptr) in enumerate(kept):
            try:
                self._upstream.deallocate(ptr, nbytes, stream)
            except BaseException:
                with self._lock:
                    for size, home, left in kept[at + 1 :]:
                        self._kept.setdefault((size, home), []).append(left)
                raise


class TestRecycler(OnHost):
    def make_resource(self, driver: Driver) -> MemoryResource:
        return Recycler(memory.DriverMemory())

    def make_adaptor(self, upstream: MemoryResource) -> MemoryResource | None:
        return Recycler(upstream)
