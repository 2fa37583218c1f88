"""The conformance suite of a memory resource: subclass it, supply the resource, run pytest."""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import pytest

from devmem.spi.driver import Driver
from devmem.spi.errors import OutOfMemory
from devmem.spi.memory import MemoryResource, SupportsBind, SupportsForgetStream, SupportsTrim
from devmem.spi.types import LEGACY_STREAM, CopyKind, MemoryKind

from .driver_fixture import STREAM_KINDS, Bytes, ConformanceSuite, DriverFixture, address, flip, pattern, same
from .driver_memory import TOO_LARGE
from .fault_injection import FaultyDriver, every_failure

SIZES = (1, 2, 255, 256, 257, 1000, 4096, 65_537, 1 << 20, (2 << 20) + 1)
THREADS = 8


class Upstream:
    """A resource that allocates each block from the driver, and records wrong calls of the adaptor above it."""

    def __init__(self) -> None:
        self.bound = 0
        self.live: dict[int, int] = {}
        self.mistakes: list[str] = []
        self.full = False
        self._driver: Driver | None = None
        self._lock = threading.RLock()

    def bind(self, driver: Driver) -> None:
        self.bound += 1
        self._driver = driver

    def allocate(self, nbytes: int, stream: int) -> int:
        if nbytes < 1:
            self.mistakes.append(f"allocate({nbytes})")
            return 0
        if self.full:
            raise OutOfMemory("the upstream resource is full")
        assert self._driver is not None, "allocate() before bind()"
        ptr = self._driver.alloc(nbytes, stream)
        with self._lock:
            self.live[ptr] = nbytes
        return ptr

    def deallocate(self, ptr: int, nbytes: int, stream: int) -> None:
        with self._lock:
            known = self.live.pop(ptr, None)
        if known != nbytes:
            self.mistakes.append(f"deallocate({ptr:#x}, {nbytes}) of a block of {known} bytes")
        assert self._driver is not None
        self._driver.free(ptr, nbytes, stream)


class MemoryResourceTests(ConformanceSuite):
    """The requirements of `devmem.spi.memory`, as tests.

    ::

        class TestMyPool(MemoryResourceTests):
            def make_backend(self):
                return HostBackend()

            def make_resource(self, driver):
                return MyPool()

    The suite binds the resource, as a device does. For a resource that allocates from another one, override
    ``make_adaptor(upstream)`` too: the suite then checks its calls to the upstream resource.
    """

    def make_resource(self, driver: Driver) -> MemoryResource:
        """A new resource, not bound yet, that allocates from the driver."""
        raise NotImplementedError("a subclass of MemoryResourceTests supplies make_resource(driver)")

    def make_adaptor(self, upstream: MemoryResource) -> MemoryResource | None:
        """A new resource, not bound yet, that allocates from ``upstream``; None (the default): it takes no upstream."""
        return None

    def wrap(self, driver: Driver) -> Driver:
        return FaultyDriver(driver)

    @contextmanager
    def bound(self, fixture: DriverFixture) -> Iterator[MemoryResource]:
        """A bound resource; at the end of the block it must have freed all its memory."""
        assert isinstance(fixture.driver, FaultyDriver)
        before = set(fixture.driver.blocks())
        resource = self.make_resource(fixture.driver)
        bind(resource, fixture.driver)
        yield resource
        fixture.driver.synchronize()
        if isinstance(resource, SupportsTrim):
            resource.trim(0)
            assert resource.cached_bytes == 0
        fixture.driver.synchronize()
        left = {
            ptr: block for ptr, block in fixture.driver.blocks().items() if ptr not in before and not fixture.owns(ptr)
        }
        assert not left, f"not freed: {left}"
        assert not fixture.driver.mistakes

    # -- allocate and deallocate ---------------------------------------------------------------------------------------

    @pytest.mark.parametrize("nbytes", SIZES)
    def test_blocks_are_aligned_and_go_back_in_their_size(self, fixture: DriverFixture, nbytes: int) -> None:
        with self.bound(fixture) as resource:
            for _ in range(3):
                ptr = resource.allocate(nbytes, LEGACY_STREAM)
                assert isinstance(ptr, int) and ptr > 0
                alignment = fixture.driver.info.alignment
                assert ptr % alignment == 0, f"{ptr:#x} is not aligned to {alignment}"
                resource.deallocate(ptr, nbytes, LEGACY_STREAM)

    @pytest.mark.parametrize("which", STREAM_KINDS)
    def test_memory_is_usable_on_its_stream(self, fixture: DriverFixture, which: str) -> None:
        stream = fixture.stream_of_kind(which)
        with self.bound(fixture) as resource:
            memory = Memory(fixture, resource)
            for nbytes in SIZES:
                ptr, data = resource.allocate(nbytes, stream), pattern(nbytes)
                assert same(memory.through(ptr, data, stream), data)
                resource.deallocate(ptr, nbytes, stream)

    def test_live_blocks_never_overlap(self, fixture: DriverFixture) -> None:
        with self.bound(fixture) as resource:
            live: dict[int, Bytes] = {}
            memory = Memory(fixture, resource)
            for turn in range(120):
                data = pattern(1 + (turn * 7919) % 20_000, seed=turn)
                ptr = resource.allocate(data.size, fixture.unheld_stream)
                for other, other_data in live.items():
                    assert ptr + data.size <= other or other + other_data.size <= ptr, "two live blocks overlap"
                memory.write(ptr, data)
                live[ptr] = data
                if turn % 3 == 2:
                    oldest = next(iter(live))
                    assert same(memory.read(oldest, live[oldest].size), live[oldest])
                    resource.deallocate(oldest, live.pop(oldest).size, fixture.unheld_stream)
            for ptr, data in live.items():
                assert same(memory.read(ptr, data.size), data)
                resource.deallocate(ptr, data.size, fixture.unheld_stream)

    def test_zero_bytes_are_address_zero(self, fixture: DriverFixture) -> None:
        with self.bound(fixture) as resource:
            assert resource.allocate(0, LEGACY_STREAM) == 0
            resource.deallocate(0, 0, LEGACY_STREAM)

    def test_deallocate_then_allocate(self, fixture: DriverFixture) -> None:
        with self.bound(fixture) as resource:
            for turn in range(300):
                nbytes = 1 + (turn * 104_729) % 100_000
                ptr = resource.allocate(nbytes, LEGACY_STREAM)
                resource.deallocate(ptr, nbytes, LEGACY_STREAM)

    def test_out_of_memory_leaves_it_usable(self, fixture: DriverFixture) -> None:
        with self.bound(fixture) as resource:
            data, memory = pattern(5000), Memory(fixture, resource)
            kept = resource.allocate(5000, fixture.unheld_stream)
            memory.write(kept, data)
            for _ in range(3):
                with pytest.raises(MemoryError):
                    resource.allocate(TOO_LARGE, fixture.unheld_stream)
            ptr = resource.allocate(5000, fixture.unheld_stream)
            assert same(memory.through(ptr, flip(data), fixture.unheld_stream), flip(data))
            assert same(memory.read(kept, 5000), data)
            resource.deallocate(ptr, 5000, fixture.unheld_stream)
            resource.deallocate(kept, 5000, fixture.unheld_stream)

    def test_failing_driver_leaves_it_usable(self, fixture: DriverFixture) -> None:
        """Errors of the driver pass through, and the resource is consistent afterwards."""
        assert isinstance(fixture.driver, FaultyDriver)
        with self.bound(fixture) as resource:
            for method in ("alloc", "alloc_async"):
                fixture.driver.fail_at(1, method, repeat=True)
                try:
                    ptr = resource.allocate(3 << 20, fixture.unheld_stream)
                except MemoryError:
                    assert fixture.driver.injected
                else:
                    resource.deallocate(ptr, 3 << 20, fixture.unheld_stream)
                finally:
                    fixture.driver.disarm()
                ptr = resource.allocate(3 << 20, fixture.unheld_stream)
                resource.deallocate(ptr, 3 << 20, fixture.unheld_stream)

    @pytest.mark.parametrize("repeat", [False, True], ids=["once", "from then on"])
    def test_every_failure_of_the_driver(self, fixture: DriverFixture, repeat: bool) -> None:
        """After a failure of any driver call no memory is lost, and the next allocation works."""
        assert isinstance(fixture.driver, FaultyDriver)
        with self.bound(fixture) as resource:
            side, driver = fixture.unheld_stream, fixture.driver
            before = set(driver.blocks())

            def call() -> None:
                first = resource.allocate(3000, side)
                try:
                    second = resource.allocate(70_000, LEGACY_STREAM)
                    resource.deallocate(second, 70_000, LEGACY_STREAM)
                finally:
                    resource.deallocate(first, 3000, side)
                if isinstance(resource, SupportsTrim):
                    resource.trim(0)

            def check() -> None:
                driver.synchronize()
                if isinstance(resource, SupportsTrim):
                    resource.trim(0)
                    assert resource.cached_bytes == 0
                assert set(driver.blocks()) <= before, "memory was lost"
                ptr = resource.allocate(3000, side)
                resource.deallocate(ptr, 3000, side)

            if not every_failure(call, driver, check=check, limit=200, repeat=repeat):
                pytest.skip("the resource makes no driver calls")

    def test_many_threads(self, fixture: DriverFixture) -> None:
        with self.bound(fixture) as resource:
            memory = Memory(fixture, resource)

            def work(number: int) -> None:
                stream = fixture.driver.stream_create(0, True)
                live: list[tuple[int, Bytes]] = []
                for turn in range(40):
                    data = pattern(1 + (turn * 7919 + number) % 30_000, seed=1000 * number + turn)
                    ptr = resource.allocate(data.size, stream)
                    memory.write(ptr, data, stream)
                    live.append((ptr, data))
                    if len(live) > 5:
                        release(turn % len(live), live, stream)
                while live:
                    release(0, live, stream)
                fixture.driver.stream_synchronize(stream)
                if isinstance(resource, SupportsForgetStream):
                    resource.forget_stream(stream)
                fixture.driver.stream_destroy(stream)

            def release(index: int, live: list[tuple[int, Bytes]], stream: int) -> None:
                ptr, data = live.pop(index)
                assert same(memory.read(ptr, data.size, stream), data), "another thread wrote into this block"
                resource.deallocate(ptr, data.size, stream)

            fixture.run_in_threads(THREADS, work)

    # -- caches --------------------------------------------------------------------------------------------------------

    def test_trim(self, fixture: DriverFixture) -> None:
        with self.bound(fixture) as resource:
            if not isinstance(resource, SupportsTrim):
                pytest.skip("the resource has no cache")
            assert resource.cached_bytes == 0
            data, memory = pattern(1 << 20), Memory(fixture, resource)
            kept = resource.allocate(data.size, fixture.unheld_stream)
            memory.write(kept, data)
            blocks = [resource.allocate(1 << 20, fixture.unheld_stream) for _ in range(8)]
            for ptr in blocks:
                resource.deallocate(ptr, 1 << 20, fixture.unheld_stream)
            fixture.driver.synchronize()
            cached = resource.cached_bytes
            assert cached >= 0
            for keep in (cached + 1, cached, cached // 2, 1, 0):
                resource.trim(keep)
                assert 0 <= resource.cached_bytes <= keep
            assert same(memory.read(kept, data.size), data), "trimming took memory that is in use"
            resource.deallocate(kept, data.size, fixture.unheld_stream)

    def test_trim_of_nothing(self, fixture: DriverFixture) -> None:
        with self.bound(fixture) as resource:
            if not isinstance(resource, SupportsTrim):
                pytest.skip("the resource has no cache")
            resource.trim(0)
            resource.trim(1 << 30)
            assert resource.cached_bytes == 0

    # -- stream order --------------------------------------------------------------------------------------------------

    def test_stream_ordered_deallocate_does_not_wait(self, fixture: DriverFixture) -> None:
        with self.bound(fixture) as resource:
            need_stream_ordered(resource)
            memory, data = Memory(fixture, resource), pattern(10_000)
            held, snapshot = fixture.stream(), memory.snapshot(data.size)
            ptr = resource.allocate(data.size, held)
            memory.write(ptr, data, held)
            with fixture.hold(held) as hold:
                snapshot.enqueue(ptr, held)
                resource.deallocate(ptr, data.size, held)
                assert not hold.expired, "deallocate waited for the stream"
                hold.release()
                fixture.driver.stream_synchronize(held)
            assert same(snapshot.contents(), data)

    @pytest.mark.parametrize("other", ["created", "legacy", "per-thread"])
    def test_stream_ordered_memory_reaches_no_other_stream_early(self, fixture: DriverFixture, other: str) -> None:
        with self.bound(fixture) as resource:
            need_stream_ordered(resource)
            memory, data = Memory(fixture, resource), pattern(100_000)
            held, snapshot = fixture.stream(), memory.snapshot(data.size)
            stream = fixture.stream_of_kind(other)
            ptr = resource.allocate(data.size, held)
            memory.write(ptr, data, held)
            # A resource may reuse the block at once and make the other stream wait; then the hold expires.
            with fixture.hold(held, patience=1.0, tolerant=True) as hold:
                snapshot.enqueue(ptr, held)
                resource.deallocate(ptr, data.size, held)
                blocks = [resource.allocate(data.size, stream) for _ in range(4)]
                for block in blocks:
                    memory.fill(block, 0xEE, data.size, stream)
                fixture.driver.stream_synchronize(stream)
                hold.release()
                fixture.driver.stream_synchronize(held)
            assert same(snapshot.contents(), data), "memory was reused before the work on its stream was complete"
            for block in blocks:
                resource.deallocate(block, data.size, stream)

    def test_stream_ordered_reuse_on_the_same_stream(self, fixture: DriverFixture) -> None:
        with self.bound(fixture) as resource:
            need_stream_ordered(resource)
            stream, memory = fixture.stream(), Memory(fixture, resource)
            snapshots = [memory.snapshot(10_000) for _ in range(20)]
            for value, snapshot in enumerate(snapshots):
                ptr = resource.allocate(10_000, stream)
                memory.fill(ptr, value, 10_000, stream)
                snapshot.enqueue(ptr, stream)
                resource.deallocate(ptr, 10_000, stream)
            fixture.driver.stream_synchronize(stream)
            for value, snapshot in enumerate(snapshots):
                assert same(snapshot.contents(), np.full(10_000, value, np.uint8))

    # -- an adaptor over another resource ------------------------------------------------------------------------------

    @contextmanager
    def stacked(self, fixture: DriverFixture) -> Iterator[tuple[MemoryResource, Upstream]]:
        upstream = Upstream()
        resource = self.make_adaptor(upstream)
        if resource is None:
            pytest.skip("the resource takes no upstream")
        bind(resource, fixture.driver)
        yield resource, upstream
        if isinstance(resource, SupportsTrim):
            resource.trim(0)
        assert not upstream.live, "not freed upstream"
        assert not upstream.mistakes

    def test_bind_reaches_the_upstream_once(self, fixture: DriverFixture) -> None:
        with self.stacked(fixture) as (resource, upstream):
            assert upstream.bound == 1
            resource.deallocate(resource.allocate(100, LEGACY_STREAM), 100, LEGACY_STREAM)
            assert upstream.bound == 1

    def test_everything_is_freed_upstream(self, fixture: DriverFixture) -> None:
        with self.stacked(fixture) as (resource, _):
            blocks = [(resource.allocate(nbytes, LEGACY_STREAM), nbytes) for nbytes in SIZES]
            for ptr, nbytes in reversed(blocks):
                resource.deallocate(ptr, nbytes, LEGACY_STREAM)

    def test_upstream_never_sees_zero_bytes(self, fixture: DriverFixture) -> None:
        with self.stacked(fixture) as (resource, upstream):
            assert resource.allocate(0, LEGACY_STREAM) == 0
            resource.deallocate(0, 0, LEGACY_STREAM)
            assert not upstream.mistakes

    def test_full_upstream(self, fixture: DriverFixture) -> None:
        with self.stacked(fixture) as (resource, upstream):
            upstream.full = True
            with pytest.raises(MemoryError):
                resource.allocate(5 << 20, LEGACY_STREAM)
            upstream.full = False
            ptr = resource.allocate(5 << 20, LEGACY_STREAM)
            resource.deallocate(ptr, 5 << 20, LEGACY_STREAM)


def bind(resource: MemoryResource, driver: Driver) -> None:
    assert isinstance(resource, MemoryResource), "a resource has allocate() and deallocate()"
    if isinstance(resource, SupportsBind):
        resource.bind(driver)


def need_stream_ordered(resource: MemoryResource) -> None:
    if not getattr(resource, "stream_ordered", False):
        pytest.skip("the resource does not promise stream order")


class Memory:
    """Reads and writes the memory of a resource: device memory by copies, host memory directly."""

    def __init__(self, fixture: DriverFixture, resource: MemoryResource) -> None:
        self.fixture = fixture
        self.host = MemoryKind(getattr(resource, "kind", MemoryKind.DEVICE)) in (MemoryKind.PINNED, MemoryKind.MAPPED)

    def write(self, ptr: int, data: Bytes, stream: int = 0) -> None:
        """Write bytes now; by default on the unheld stream of the fixture."""
        if self.host:
            ctypes.memmove(ptr, address(data), data.size)
        else:
            self.fixture.driver.copy(
                ptr, address(data), data.size, CopyKind.H2D, stream or self.fixture.unheld_stream, blocking=True
            )

    def read(self, ptr: int, nbytes: int, stream: int = 0) -> Bytes:
        """Read bytes now; by default on the unheld stream of the fixture."""
        if not self.host and not stream:
            return self.fixture.read(ptr, nbytes)
        back = np.full(nbytes, 0xA5, np.uint8)
        if self.host:
            ctypes.memmove(address(back), ptr, nbytes)
        else:
            self.fixture.driver.copy(address(back), ptr, nbytes, CopyKind.D2H, stream, blocking=True)
        return back

    def through(self, ptr: int, data: Bytes, stream: int) -> Bytes:
        """The bytes after a copy into the block and back on the stream."""
        if not self.host:
            self.fixture.driver.copy(ptr, address(data), data.size, CopyKind.H2D, stream, blocking=False)
            return self.read(ptr, data.size, stream)
        # For host memory: from the block to the device and back, so that the stream accesses the block.
        device_copy = self.fixture.alloc(data.size)
        self.write(ptr, data)
        self.fixture.driver.copy(device_copy, ptr, data.size, CopyKind.H2D, stream, blocking=True)
        self.write(ptr, flip(data))
        self.fixture.driver.copy(ptr, device_copy, data.size, CopyKind.D2H, stream, blocking=True)
        self.fixture.free(device_copy)
        return self.read(ptr, data.size)

    def fill(self, ptr: int, value: int, nbytes: int, stream: int) -> None:
        """Set all bytes: device memory on the stream, host memory now."""
        if self.host:
            ctypes.memset(ptr, value, nbytes)
        else:
            self.fixture.driver.fill(ptr, value, 1, nbytes, stream)

    def snapshot(self, nbytes: int) -> StreamSnapshot:
        """Memory for a copy of a block that is made on a stream."""
        return StreamSnapshot(self, nbytes)


class StreamSnapshot:
    """A copy of a block, enqueued on a stream, into memory that was allocated before."""

    def __init__(self, memory: Memory, nbytes: int) -> None:
        self._fixture, self._host = memory.fixture, memory.host
        self._nbytes = nbytes
        self._host_copy = np.zeros(0, np.uint8) if memory.host else memory.fixture.pinned(nbytes)
        self._device_copy = memory.fixture.alloc(nbytes) if memory.host else 0

    def enqueue(self, ptr: int, stream: int) -> None:
        """Enqueue the copy of the block."""
        to, kind = (self._device_copy, CopyKind.H2D) if self._host else (address(self._host_copy), CopyKind.D2H)
        self._fixture.driver.copy(to, ptr, self._nbytes, kind, stream, blocking=False)

    def contents(self) -> Bytes:
        """The bytes of the block when the stream reached the copy; the stream has been waited for."""
        return self._fixture.read(self._device_copy, self._nbytes) if self._host else self._host_copy
