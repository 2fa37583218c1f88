"""What devmem promises a driver about `free`: no work that devmem has enqueued on the block is pending when it is called."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import devmem as dm
from devmem import plugins
from devmem.spi.driver import Driver
from devmem.spi.types import CopyKind, MemoryKind
from devmem.testing import FaultyBackend, FaultyDriver, hold

STACKS = ["driver", "pool,driver", "limit:1GiB,statistics,driver", "scrub,driver", "guard,driver", "scrub,pool,driver"]


class Watching(FaultyDriver):
    """Marks each piece of work by an event, and looks at those on a block when it is freed."""

    def __init__(self, inner: Driver, **options: Any) -> None:
        super().__init__(inner, **options)
        self.work: list[tuple[int, int, int]] = []  # first byte, end, event
        self.freed: list[int] = []
        self.early: list[int] = []

    def copy(self, dst: int, src: int, nbytes: int, kind: CopyKind, stream: int, *, blocking: bool) -> bool:
        running = super().copy(dst, src, nbytes, kind, stream, blocking=blocking)
        for ptr, host in ((dst, kind is CopyKind.D2H), (src, kind is CopyKind.H2D)):
            if not host and not blocking:  # what blocks has completed
                self.mark(ptr, nbytes, stream)
        return running

    def fill(self, dst: int, value: int, width: int, count: int, stream: int) -> None:
        super().fill(dst, value, width, count, stream)
        self.mark(dst, width * count, stream)

    def free(self, ptr: int, nbytes: int, stream: int, kind: MemoryKind = MemoryKind.DEVICE) -> None:
        if kind is MemoryKind.DEVICE:
            self.freed.append(ptr)
            on_it = [event for start, end, event in self.work if start < ptr + nbytes and ptr < end]
            self.early += [ptr for event in on_it if not self.inner.event_query(event)]
            self.work = [each for each in self.work if each[2] not in on_it]
        super().free(ptr, nbytes, stream, kind)

    def mark(self, ptr: int, nbytes: int, stream: int) -> None:
        event = self.inner.event_create(False)
        self.inner.event_record(event, stream)
        self.work.append((ptr, ptr + nbytes, event))


class WatchingBackend(FaultyBackend):
    def open(self, ordinal: int) -> Driver:
        self.drivers[ordinal] = Watching(self.inner.open(ordinal), backend=self.name, faults=self.faults)
        return self.drivers[ordinal]


@pytest.fixture
def watched(devmem_backend: str) -> Iterator[WatchingBackend]:
    found = plugins.registry.backend(devmem_backend)
    assert found is not None
    backend = WatchingBackend(found.backend, "watching")
    dm.close()
    dm.register_backend(backend)
    try:
        with dm.use_backend(backend.name):
            if not {"hold"} <= dm.current_device().info.capabilities:
                pytest.skip("the device cannot hold a stream")
            if "pinned" not in dm.current_device().info.memory_kinds:
                pytest.skip("the device has no page-locked memory")
            yield backend
    finally:
        dm.unregister_backend(backend.name)


@pytest.mark.races("one stream reads what another one writes")
@pytest.mark.parametrize("stack", STACKS)
@pytest.mark.parametrize("end", ["dropped", "freed", "on two streams", "closed"])
def test_nothing_is_pending_on_a_block_that_is_freed(watched: WatchingBackend, stack: str, end: str) -> None:
    source = dm.pinned_array(4096, np.uint8)
    back = dm.pinned_array(4096, np.uint8)
    source[...] = 7
    home, other = dm.stream(non_blocking=True), dm.stream(non_blocking=True)
    with dm.use_memory(stack):
        arrays = [dm.device_array(4096, np.uint8, stream=home) for _ in range(3)]
        driver: Any = watched.drivers[0]
        # What waits for the stream, as it must, finds it released after a while.
        with hold(other if end == "on two streams" else home, patience=0.2, tolerant=True):
            for array in arrays:
                array.copy_to_device(source, stream=home)
                array.copy_to_host(back, stream=other if end == "on two streams" else home)
            if end == "freed":
                for array in arrays:
                    array.free()
            del array, arrays
            gc.collect()
            dm.trim()
    if end == "closed":
        dm.current_device().reset()
    else:
        dm.trim()
    assert driver.freed, "nothing came back to the driver"
    assert driver.early == []
    del source, back
