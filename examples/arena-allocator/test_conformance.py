"""devmem's conformance suite, and tests of what is specific to the arena."""

from __future__ import annotations

import devmem as dm
import pytest
from devmem.backends.host.hooks import HostBackend
from devmem.memory import DriverMemory, MemoryResource
from devmem.spi.driver import Backend, Driver
from devmem.testing import MemoryResourceTests

from devmem_arena import Arena, make


class TestArena(MemoryResourceTests):
    def make_backend(self) -> Backend:
        backend = HostBackend()
        backend.configure({"strict": True, "devices": 1})
        return backend

    def make_resource(self, driver: Driver) -> MemoryResource:
        return Arena(DriverMemory())

    def make_adaptor(self, upstream: MemoryResource) -> MemoryResource:
        return Arena(upstream, chunk_bytes=1 << 20)


def test_small_blocks_share_a_chunk() -> None:
    counting = dm.memory.Statistics()
    with dm.use_memory(Arena(counting, chunk_bytes=1 << 20)):
        arrays = [dm.zeros(10) for _ in range(100)]
        assert counting.current_count == 1
        assert len({each.ptr for each in arrays}) == 100
        for each in arrays:
            each.free()
    dm.trim()
    assert counting.current_count == 0


@pytest.mark.parametrize(("text", "nbytes"), [("", 32 << 20), ("64MiB", 64 << 20), ("4096", 4096)])
def test_chunk_size_is_parsed(text: str, nbytes: int) -> None:
    assert make(text).chunk_bytes == nbytes


@pytest.mark.parametrize("text", ["many", "0", "-1MiB", "1.5GiB"])
def test_invalid_sizes_are_refused(text: str) -> None:
    with pytest.raises(dm.ConfigError, match=f"arena:{text}: give the size"):
        make(text)
