"""Every adaptor against the published suite, alone and in stacks of three, over every resource that can be at the bottom."""

from __future__ import annotations

import os
from collections.abc import Callable
from itertools import permutations, product

import numpy as np
import pytest

from devmem import memory
from devmem.backends.host.hooks import HostBackend
from devmem.spi.driver import Backend, Driver
from devmem.spi.memory import MemoryResource, SupportsTrim
from devmem.spi.types import LEGACY_STREAM, CopyKind, MemoryKind
from devmem.testing import FaultyDriver, MemoryResourceTests, StreamHold, every_failure

Make = Callable[[MemoryResource | None], MemoryResource]

ADAPTORS: dict[str, Make] = {
    "Limit": lambda below: memory.Limit(below, "50%"),
    "Statistics": lambda below: memory.Statistics(below, owners=True),
    "Log": lambda below: memory.Log(below, os.devnull),
    "Guard": lambda below: memory.Guard(below, quarantine_bytes="1MiB"),
    "Scrub": lambda below: memory.Scrub(below, 0xC3),
    "FailNth": lambda below: memory.FailNth(below, 10**9),
    "FailIf": lambda below: memory.FailIf(below, lambda nbytes, stream: nbytes > 1 << 50),
    "OnOutOfMemory": lambda below: memory.OnOutOfMemory(below, lambda nbytes: False),
    "PoolMemory": lambda below: memory.PoolMemory(below),
}
#: Those that do more with a block than pass it on.
ACTIVE = ["Limit", "Guard", "Scrub", "PoolMemory"]
BOTTOMS: dict[str, Callable[[], MemoryResource]] = {
    "DriverMemory": memory.DriverMemory,
    "StreamOrderedMemory": memory.StreamOrderedMemory,
}


class OnHost(MemoryResourceTests):
    def make_backend(self) -> Backend:
        backend = HostBackend()
        backend.configure({"strict": True, "devices": 1})
        return backend


def suite(
    name: str, make: Callable[[], MemoryResource], adaptor: Make | None = None, *, exhaustive: bool = False
) -> None:
    """Put a class of tests into this module. The exhaustive ones are in the stacks of three below too, which ask less."""

    class Tests(OnHost):
        def make_resource(self, driver: Driver) -> MemoryResource:
            return make()

        def make_adaptor(self, upstream: MemoryResource) -> MemoryResource | None:
            return adaptor(upstream) if adaptor else None

    if exhaustive:
        pytest.mark.exhaustive(Tests)
    Tests.__name__ = Tests.__qualname__ = f"Test{name}"
    globals()[Tests.__name__] = Tests


for name, adaptor in ADAPTORS.items():
    for bottom, below in BOTTOMS.items():
        suite(f"{name}Over{bottom}", lambda adaptor=adaptor, below=below: adaptor(below()), adaptor)  # type: ignore[misc]
for outer, inner in permutations(ACTIVE, 2):
    for bottom, below in BOTTOMS.items():
        suite(
            f"{outer}Over{inner}Over{bottom}",
            lambda outer=outer, inner=inner, below=below: ADAPTORS[outer](ADAPTORS[inner](below())),  # type: ignore[misc]
            lambda upstream, outer=outer, inner=inner: ADAPTORS[outer](ADAPTORS[inner](upstream)),  # type: ignore[misc]
            exhaustive=True,
        )
suite("ManagedMemory", memory.ManagedMemory)
suite("PinnedMemory", memory.PinnedMemory)
suite("MappedMemory", memory.MappedMemory)
suite("Prefetch", memory.Prefetch, None)
suite("PrefetchOverStatistics", lambda: memory.Prefetch(memory.Statistics(memory.ManagedMemory())))
suite("PinnedPool", memory.PinnedPool, lambda below: memory.PinnedPool(below))
for name, adaptor in ADAPTORS.items():
    suite(f"{name}OverPinnedPool", lambda adaptor=adaptor: adaptor(memory.PinnedPool()))  # type: ignore[misc]
    suite(f"{name}OverPinnedMemory", lambda adaptor=adaptor: adaptor(memory.PinnedMemory()))  # type: ignore[misc]
suite("GuardOverScrubOverPinnedMemory", lambda: memory.Guard(memory.Scrub(memory.PinnedMemory())))


@pytest.mark.parametrize("names", list(product(ADAPTORS, ADAPTORS, BOTTOMS)), ids="-".join)
def test_a_stack_of_three_keeps_the_contract(names: tuple[str, str, str]) -> None:
    """All of them, shortly: sizes, nothing, too much, order of streams, every failure of the driver, and all comes back."""
    outer, inner, bottom = names
    backend = HostBackend()
    backend.configure({"strict": True, "devices": 1})
    driver = FaultyDriver(backend.open(0))
    token = driver.enter()
    try:
        stack: MemoryResource = ADAPTORS[outer](ADAPTORS[inner](BOTTOMS[bottom]()))
        stack.bind(driver)  # type: ignore[attr-defined]
        stream = driver.stream_create(0, True)
        assert stack.allocate(0, stream) == 0
        stack.deallocate(0, 0, stream)
        live = [(stack.allocate(n, s), n, s) for n in (1, 256, 5000, 1 << 20) for s in (LEGACY_STREAM, stream)]
        assert all(ptr > 0 and ptr % 256 == 0 for ptr, _, _ in live)
        assert all(a + n <= b for (a, n, _), (b, _, _) in zip(sorted(live), sorted(live)[1:], strict=False))
        with pytest.raises(MemoryError):
            stack.allocate(1 << 52, stream)
        for ptr, n, s in live:
            driver.fill(ptr, 1, 1, n, s)
            if not stack.stream_ordered:  # type: ignore[attr-defined]
                driver.stream_synchronize(s)
            stack.deallocate(ptr, n, s)

        def call() -> None:
            stack.deallocate(stack.allocate(4000, stream), 4000, stream)

        def check() -> None:
            driver.synchronize()
            assert isinstance(stack, SupportsTrim)
            stack.trim(0)
            assert stack.cached_bytes == 0
            assert driver.blocks() == {}
            assert driver.mistakes == []

        every_failure(call, driver, check=check, limit=100)
        assert type(stack).__name__ == outer
        assert repr(stack).startswith(f"{outer}({inner}({bottom}(")
        driver.stream_destroy(stream)
    finally:
        driver.exit(token)
        driver.close()


def test_scrubbing_keeps_the_order_of_streams() -> None:
    """The fill comes behind the work on the block, waits for nothing, and is there before the next tenant's work."""
    backend = HostBackend()
    backend.configure({"strict": True, "devices": 1})
    driver = backend.open(0)
    token = driver.enter()
    try:
        stack = memory.Scrub(memory.PoolMemory(), 0x5A)
        stack.bind(driver)
        assert stack.stream_ordered
        stream = driver.stream_create(0, True)
        host, seen = driver.alloc(4096, stream, MemoryKind.PINNED), np.zeros(4096, np.uint8)
        ptr = stack.allocate(4096, stream)
        with StreamHold(driver, stream) as latch:
            driver.fill(ptr, 7, 1, 4096, stream)
            driver.copy(host, ptr, 4096, CopyKind.D2H, stream, blocking=False)
            stack.deallocate(ptr, 4096, stream)
            assert not latch.expired
        again = stack.allocate(4096, stream)
        assert again == ptr, "the pool's next tenant gets the block"
        driver.copy(int(seen.ctypes.data), again, 4096, CopyKind.D2H, stream, blocking=True)
        assert set(seen.tolist()) == {0x5A}
        stack.deallocate(again, 4096, stream)
        driver.stream_synchronize(stream)
        stack.trim(0)
        driver.free(host, 4096, stream, MemoryKind.PINNED)
        driver.stream_destroy(stream)
    finally:
        driver.exit(token)
        driver.close()
