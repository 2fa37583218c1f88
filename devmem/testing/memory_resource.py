"""The conformance suite of a memory resource: subclass, make the resource, run pytest."""

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
from devmem.spi.types import LEGACY_STREAM, PER_THREAD_STREAM, CopyKind, MemoryKind

from .driver_fixture import Bytes, Harness, Rig, address, flip, pattern, same
from .driver_memory import ABSURD
from .fault_injection import FaultyDriver
from .injection import every_failure

SIZES = (1, 2, 255, 256, 257, 1000, 4096, 65_537, 1 << 20, (2 << 20) + 1)
THREADS = 8


class Upstream:
    """The plainest resource, straight over the driver; it notes what an adaptor above it does wrong."""

    def __init__(self) -> None:
        self.bound = 0
        self.live: dict[int, int] = {}
        self.mistakes: list[str] = []
        self.full = False
        self._driver: Driver | None = None
        self._lock = threading.Lock()

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


class MemoryResourceTests(Harness):
    """Everything that `devmem.spi.memory` says, as tests.

    ::

        class TestMyPool(MemoryResourceTests):
            def make_backend(self):
                return HostBackend()

            def make_resource(self, driver):
                return MyPool()

    The suite binds the resource, as a device would. A resource that stands over another one also supplies
    ``make_adaptor(upstream)`` and is then watched from below as well.
    """

    def make_resource(self, driver: Driver) -> MemoryResource:
        """A fresh resource that gets its memory from the driver, not bound yet."""
        raise NotImplementedError("a subclass of MemoryResourceTests supplies make_resource(driver)")

    def make_adaptor(self, upstream: MemoryResource) -> MemoryResource | None:
        """A fresh resource over this one, not bound yet; None (the default): it does not stand over another."""
        return None

    def wrap(self, driver: Driver) -> Driver:
        return FaultyDriver(driver)

    @contextmanager
    def bound(self, rig: Rig) -> Iterator[MemoryResource]:
        """A resource in use; at the end everything must have gone back to the driver."""
        assert isinstance(rig.driver, FaultyDriver)
        before = set(rig.driver.blocks())
        resource = self.make_resource(rig.driver)
        bind(resource, rig.driver)
        yield resource
        rig.driver.synchronize()
        if isinstance(resource, SupportsTrim):
            resource.trim(0)
            assert resource.cached_bytes == 0
        rig.driver.synchronize()
        left = {ptr: block for ptr, block in rig.driver.blocks().items() if ptr not in before and not rig.owns(ptr)}
        assert not left, f"not given back to the driver: {left}"
        assert not rig.driver.mistakes

    # -- the two verbs -------------------------------------------------------------------------------------------------

    @pytest.mark.parametrize("nbytes", SIZES)
    def test_allocate_and_deallocate(self, rig: Rig, nbytes: int) -> None:
        with self.bound(rig) as resource:
            for _ in range(3):
                ptr = resource.allocate(nbytes, LEGACY_STREAM)
                assert isinstance(ptr, int) and ptr > 0
                assert ptr % 256 == 0, f"{ptr:#x} is not aligned to 256"
                resource.deallocate(ptr, nbytes, LEGACY_STREAM)

    @pytest.mark.parametrize("which", ["created", "blocking", "legacy", "per-thread"])
    def test_memory_is_usable_on_its_stream(self, rig: Rig, which: str) -> None:
        stream = {
            "created": rig.stream(),
            "blocking": rig.stream(non_blocking=False),
            "legacy": LEGACY_STREAM,
            "per-thread": PER_THREAD_STREAM,
        }[which]
        with self.bound(rig) as resource:
            memory = Memory(rig, resource)
            for nbytes in SIZES:
                ptr, data = resource.allocate(nbytes, stream), pattern(nbytes)
                assert same(memory.through(ptr, data, stream), data)
                resource.deallocate(ptr, nbytes, stream)

    def test_live_blocks_never_overlap(self, rig: Rig) -> None:
        with self.bound(rig) as resource:
            live: dict[int, Bytes] = {}
            memory = Memory(rig, resource)
            for turn in range(120):
                data = pattern(1 + (turn * 7919) % 20_000, seed=turn)
                ptr = resource.allocate(data.size, rig.side)
                for other, theirs in live.items():
                    assert ptr + data.size <= other or other + theirs.size <= ptr, "two live blocks overlap"
                memory.write(ptr, data)
                live[ptr] = data
                if turn % 3 == 2:
                    oldest = next(iter(live))
                    assert same(memory.read(oldest, live[oldest].size), live[oldest])
                    resource.deallocate(oldest, live.pop(oldest).size, rig.side)
            for ptr, data in live.items():
                assert same(memory.read(ptr, data.size), data)
                resource.deallocate(ptr, data.size, rig.side)

    def test_zero_bytes_are_address_zero(self, rig: Rig) -> None:
        with self.bound(rig) as resource:
            assert resource.allocate(0, LEGACY_STREAM) == 0
            resource.deallocate(0, 0, LEGACY_STREAM)

    def test_deallocate_then_allocate(self, rig: Rig) -> None:
        with self.bound(rig) as resource:
            for turn in range(300):
                nbytes = 1 + (turn * 104_729) % 100_000
                ptr = resource.allocate(nbytes, LEGACY_STREAM)
                resource.deallocate(ptr, nbytes, LEGACY_STREAM)

    def test_out_of_memory_leaves_it_usable(self, rig: Rig) -> None:
        with self.bound(rig) as resource:
            data, memory = pattern(5000), Memory(rig, resource)
            kept = resource.allocate(5000, rig.side)
            memory.write(kept, data)
            for _ in range(3):
                with pytest.raises(MemoryError):
                    resource.allocate(ABSURD, rig.side)
            ptr = resource.allocate(5000, rig.side)
            assert same(memory.through(ptr, flip(data), rig.side), flip(data))
            assert same(memory.read(kept, 5000), data)
            resource.deallocate(ptr, 5000, rig.side)
            resource.deallocate(kept, 5000, rig.side)

    def test_failing_driver_leaves_it_usable(self, rig: Rig) -> None:
        """The driver's own failures pass through, and nothing of the books is wrong afterwards."""
        assert isinstance(rig.driver, FaultyDriver)
        with self.bound(rig) as resource:
            for method in ("alloc", "alloc_async"):
                rig.driver.fail_at(1, method, repeat=True)
                try:
                    ptr = resource.allocate(3 << 20, rig.side)
                except MemoryError:
                    assert rig.driver.injected
                else:
                    resource.deallocate(ptr, 3 << 20, rig.side)
                finally:
                    rig.driver.disarm()
                ptr = resource.allocate(3 << 20, rig.side)
                resource.deallocate(ptr, 3 << 20, rig.side)

    @pytest.mark.parametrize("repeat", [False, True], ids=["once", "from then on"])
    def test_every_failure_of_the_driver(self, rig: Rig, repeat: bool) -> None:
        """Whichever call of the driver fails: nothing is lost, and the next allocation works."""
        assert isinstance(rig.driver, FaultyDriver)
        with self.bound(rig) as resource:
            side, driver = rig.side, rig.driver
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
                assert set(driver.blocks()) <= before, "lost"
                ptr = resource.allocate(3000, side)
                resource.deallocate(ptr, 3000, side)

            if not every_failure(call, driver, check=check, limit=200, repeat=repeat):
                pytest.skip("the resource asks the driver for nothing")

    def test_many_threads(self, rig: Rig) -> None:
        with self.bound(rig) as resource:
            memory = Memory(rig, resource)

            def work(number: int) -> None:
                stream = rig.driver.stream_create(0, True)
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
                rig.driver.stream_synchronize(stream)
                if isinstance(resource, SupportsForgetStream):
                    resource.forget_stream(stream)
                rig.driver.stream_destroy(stream)

            def release(index: int, live: list[tuple[int, Bytes]], stream: int) -> None:
                ptr, data = live.pop(index)
                assert same(memory.read(ptr, data.size, stream), data), "another thread wrote into this block"
                resource.deallocate(ptr, data.size, stream)

            rig.together(THREADS, work)

    # -- caches --------------------------------------------------------------------------------------------------------

    def test_trim(self, rig: Rig) -> None:
        with self.bound(rig) as resource:
            if not isinstance(resource, SupportsTrim):
                pytest.skip("the resource keeps nothing")
            assert resource.cached_bytes == 0
            data, memory = pattern(1 << 20), Memory(rig, resource)
            kept = resource.allocate(data.size, rig.side)
            memory.write(kept, data)
            blocks = [resource.allocate(1 << 20, rig.side) for _ in range(8)]
            for ptr in blocks:
                resource.deallocate(ptr, 1 << 20, rig.side)
            rig.driver.synchronize()
            cached = resource.cached_bytes
            assert cached >= 0
            for keep in (cached + 1, cached, cached // 2, 1, 0):
                resource.trim(keep)
                assert 0 <= resource.cached_bytes <= keep
            assert same(memory.read(kept, data.size), data), "trimming took memory that is in use"
            resource.deallocate(kept, data.size, rig.side)

    def test_trim_of_nothing(self, rig: Rig) -> None:
        with self.bound(rig) as resource:
            if not isinstance(resource, SupportsTrim):
                pytest.skip("the resource keeps nothing")
            resource.trim(0)
            resource.trim(1 << 30)
            assert resource.cached_bytes == 0

    # -- the promise of stream order -----------------------------------------------------------------------------------

    def test_stream_ordered_deallocate_does_not_wait(self, rig: Rig) -> None:
        with self.bound(rig) as resource:
            need_stream_ordered(resource)
            memory, data = Memory(rig, resource), pattern(10_000)
            held, spy = rig.stream(), memory.spy(data.size)
            ptr = resource.allocate(data.size, held)
            memory.write(ptr, data, held)
            with rig.hold(held) as latch:
                spy.look(ptr, held)
                resource.deallocate(ptr, data.size, held)
                assert not latch.expired, "deallocate waited for the stream"
                latch.release()
                rig.driver.stream_synchronize(held)
            assert same(spy.seen(), data)

    @pytest.mark.parametrize("other", ["created", "legacy", "per-thread"])
    def test_stream_ordered_memory_reaches_no_other_stream_early(self, rig: Rig, other: str) -> None:
        with self.bound(rig) as resource:
            need_stream_ordered(resource)
            memory, data = Memory(rig, resource), pattern(100_000)
            held, spy = rig.stream(), memory.spy(data.size)
            created = rig.stream()
            stream = {"created": created, "legacy": LEGACY_STREAM, "per-thread": PER_THREAD_STREAM}[other]
            ptr = resource.allocate(data.size, held)
            memory.write(ptr, data, held)
            # A resource may hand the block on and make the other stream wait: then the latch gives way.
            with rig.hold(held, patience=1.0, tolerant=True) as latch:
                spy.look(ptr, held)
                resource.deallocate(ptr, data.size, held)
                blocks = [resource.allocate(data.size, stream) for _ in range(4)]
                for block in blocks:
                    memory.fill(block, 0xEE, data.size, stream)
                rig.driver.stream_synchronize(stream)
                latch.release()
                rig.driver.stream_synchronize(held)
            assert same(spy.seen(), data), "memory was reused before its stream had passed"
            for block in blocks:
                resource.deallocate(block, data.size, stream)

    def test_stream_ordered_reuse_on_the_same_stream(self, rig: Rig) -> None:
        with self.bound(rig) as resource:
            need_stream_ordered(resource)
            stream, memory = rig.stream(), Memory(rig, resource)
            spies = [memory.spy(10_000) for _ in range(20)]
            for value, spy in enumerate(spies):
                ptr = resource.allocate(10_000, stream)
                memory.fill(ptr, value, 10_000, stream)
                spy.look(ptr, stream)
                resource.deallocate(ptr, 10_000, stream)
            rig.driver.stream_synchronize(stream)
            for value, spy in enumerate(spies):
                assert same(spy.seen(), np.full(10_000, value, np.uint8))

    # -- over another resource -----------------------------------------------------------------------------------------

    @contextmanager
    def stacked(self, rig: Rig) -> Iterator[tuple[MemoryResource, Upstream]]:
        upstream = Upstream()
        resource = self.make_adaptor(upstream)
        if resource is None:
            pytest.skip("the resource does not stand over another")
        bind(resource, rig.driver)
        yield resource, upstream
        if isinstance(resource, SupportsTrim):
            resource.trim(0)
        assert not upstream.live, "not given back upstream"
        assert not upstream.mistakes

    def test_bind_reaches_the_upstream_once(self, rig: Rig) -> None:
        with self.stacked(rig) as (resource, upstream):
            assert upstream.bound == 1
            resource.deallocate(resource.allocate(100, LEGACY_STREAM), 100, LEGACY_STREAM)
            assert upstream.bound == 1

    def test_upstream_gets_back_what_it_gave(self, rig: Rig) -> None:
        with self.stacked(rig) as (resource, _):
            blocks = [(resource.allocate(nbytes, LEGACY_STREAM), nbytes) for nbytes in SIZES]
            for ptr, nbytes in reversed(blocks):
                resource.deallocate(ptr, nbytes, LEGACY_STREAM)

    def test_upstream_never_sees_zero_bytes(self, rig: Rig) -> None:
        with self.stacked(rig) as (resource, upstream):
            assert resource.allocate(0, LEGACY_STREAM) == 0
            resource.deallocate(0, 0, LEGACY_STREAM)
            assert not upstream.mistakes

    def test_full_upstream(self, rig: Rig) -> None:
        with self.stacked(rig) as (resource, upstream):
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
    """How to get at the memory of a resource: device memory by copies, memory whose address is the host's directly."""

    def __init__(self, rig: Rig, resource: MemoryResource) -> None:
        self.rig = rig
        self.host = MemoryKind(getattr(resource, "kind", MemoryKind.DEVICE)) in (MemoryKind.PINNED, MemoryKind.MAPPED)

    def write(self, ptr: int, data: Bytes, stream: int = 0) -> None:
        """Put bytes there, at once; on the rig's own stream if none is named."""
        if self.host:
            ctypes.memmove(ptr, address(data), data.size)
        else:
            self.rig.driver.copy(ptr, address(data), data.size, CopyKind.H2D, stream or self.rig.side, blocking=True)

    def read(self, ptr: int, nbytes: int, stream: int = 0) -> Bytes:
        """What is there, at once; on the rig's own stream if none is named."""
        if not self.host and not stream:
            return self.rig.read(ptr, nbytes)
        back = np.full(nbytes, 0xA5, np.uint8)
        if self.host:
            ctypes.memmove(address(back), ptr, nbytes)
        else:
            self.rig.driver.copy(address(back), ptr, nbytes, CopyKind.D2H, stream, blocking=True)
        return back

    def through(self, ptr: int, data: Bytes, stream: int) -> Bytes:
        """The bytes after a trip there and back on the stream."""
        if not self.host:
            self.rig.driver.copy(ptr, address(data), data.size, CopyKind.H2D, stream, blocking=False)
            return self.read(ptr, data.size, stream)
        # Of host memory it is the device that makes the trip: from the block to the device, and back into the block.
        aside = self.rig.alloc(data.size)
        self.write(ptr, data)
        self.rig.driver.copy(aside, ptr, data.size, CopyKind.H2D, stream, blocking=True)
        self.write(ptr, flip(data))
        self.rig.driver.copy(ptr, aside, data.size, CopyKind.D2H, stream, blocking=True)
        self.rig.free(aside)
        return self.read(ptr, data.size)

    def fill(self, ptr: int, value: int, nbytes: int, stream: int) -> None:
        """Set all bytes: on the stream, or, as the host is on none, at once."""
        if self.host:
            ctypes.memset(ptr, value, nbytes)
        else:
            self.rig.driver.fill(ptr, value, 1, nbytes, stream)

    def spy(self, nbytes: int) -> Spy:
        """Somewhere for a stream to put what it sees in a block."""
        return Spy(self, nbytes)


class Spy:
    """A copy of a block that a stream makes in its own time, with room that was made before."""

    def __init__(self, memory: Memory, nbytes: int) -> None:
        self._rig, self._host = memory.rig, memory.host
        self._nbytes = nbytes
        self._back = np.zeros(0, np.uint8) if memory.host else memory.rig.pinned(nbytes)
        self._aside = memory.rig.alloc(nbytes) if memory.host else 0

    def look(self, ptr: int, stream: int) -> None:
        """Enqueue the copy."""
        to, kind = (self._aside, CopyKind.H2D) if self._host else (address(self._back), CopyKind.D2H)
        self._rig.driver.copy(to, ptr, self._nbytes, kind, stream, blocking=False)

    def seen(self) -> Bytes:
        """What the stream saw; it has passed."""
        return self._rig.read(self._aside, self._nbytes) if self._host else self._back
