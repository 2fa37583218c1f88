"""What the conformance tests stand on: one open driver, things made on it and given back, threads, latches."""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import numpy as np
import pytest
from numpy.typing import NDArray

from devmem.spi.driver import Backend, Driver
from devmem.spi.types import LEGACY_STREAM, Capability, CopyKind, MemoryKind

from .stream_hold import Latch, entered

Bytes = NDArray[np.uint8]

#: Seconds after which a call that should have returned never will.
PATIENCE = 60.0


class Harness:
    """The hooks that a subclass fills in, and the fixture that every test takes."""

    #: True where wrong calls are promised to fail cleanly: unknown handles, bad addresses, double frees. Vendors leave
    #: much of that undefined, so the tests of it run for strict drivers only.
    strict = False
    #: Seconds for which a test looks at what must not happen; a sound driver never makes a test depend on it.
    grace = 0.05
    #: The device under test.
    ordinal = 0
    #: Narrower than ``strict``, for drivers that refuse most wrong calls but abort the process on some. None: as strict.
    checks_handles: bool | None = None
    checks_addresses: bool | None = None

    def make_backend(self) -> Backend:
        """The backend under test."""
        raise NotImplementedError("a subclass of the conformance suite supplies make_backend()")

    def peek(self, driver: Driver, ptr: int, nbytes: int) -> bytes | None:
        """Device memory seen by a side door that is not the driver under test; None (the default): read it by a copy."""
        return None

    def current(self) -> object:
        """What the vendor says is current on this thread, by a side door; NotImplemented: there is none."""
        return NotImplemented

    @contextmanager
    def opened(self) -> Iterator[Rig]:
        """A rig over a freshly opened driver, entered on this thread."""
        backend = self.make_backend()
        reason = backend.unavailable()
        if reason is not None:
            pytest.skip(reason)
        rig = Rig(self, backend, self.wrap(backend.open(self.ordinal)))
        try:
            with entered(rig.driver):
                try:
                    yield rig
                finally:
                    rig.give_back()
        finally:
            rig.driver.close()

    def wrap(self, driver: Driver) -> Driver:
        """Stand something between the tests and the driver."""
        return driver

    @pytest.fixture
    def rig(self) -> Iterator[Rig]:
        with self.opened() as rig:
            yield rig


class Rig:
    """One driver and everything a test made on it; all is given back at the end, whatever happened."""

    def __init__(self, suite: Harness, backend: Backend, driver: Driver) -> None:
        self.suite = suite
        self.backend = backend
        self.driver = driver
        self._blocks: dict[int, tuple[int, MemoryKind]] = {}
        self._streams: list[int] = []
        self._events: list[int] = []
        self._neighbours: list[Rig] = []
        self._watchers: list[Worker] = []
        self._side = 0

    # -- what the device has -------------------------------------------------------------------------------------------

    def need(self, *capabilities: Capability) -> None:
        for capability in capabilities:
            if capability not in self.driver.info.capabilities:
                pytest.skip(f"device lacks {capability}")

    def need_kind(self, kind: MemoryKind) -> None:
        if kind not in self.driver.info.memory_kinds:
            pytest.skip(f"device lacks {kind} memory")

    def need_strict(self, narrower: bool | None = None) -> None:
        if not (self.suite.strict if narrower is None else narrower):
            pytest.skip("driver does not promise to refuse wrong calls")

    def neighbour(self) -> Rig:
        """Another device of the same backend, not entered."""
        others = [n for n in range(self.backend.device_count()) if n != self.driver.info.ordinal]
        if not others:
            pytest.skip("backend has one device only")
        rig = Rig(self.suite, self.backend, self.backend.open(others[0]))
        self._neighbours.append(rig)
        return rig

    # -- making things -------------------------------------------------------------------------------------------------

    def alloc(self, nbytes: int, kind: MemoryKind = MemoryKind.DEVICE, stream: int = LEGACY_STREAM) -> int:
        ptr = self.driver.alloc(nbytes, stream, kind)
        self._blocks[ptr] = (nbytes, kind)
        return ptr

    def free(self, ptr: int) -> None:
        nbytes, kind = self._blocks.pop(ptr)
        self.driver.free(ptr, nbytes, LEGACY_STREAM, kind)

    def adopt(self, ptr: int, nbytes: int, kind: MemoryKind = MemoryKind.DEVICE) -> int:
        """Give back at the end what the test allocated itself."""
        self._blocks[ptr] = (nbytes, kind)
        return ptr

    def owns(self, ptr: int) -> bool:
        """True for what `alloc` made and nobody freed."""
        return ptr in self._blocks

    def disown(self, ptr: int) -> tuple[int, MemoryKind]:
        """The test gives it back itself."""
        return self._blocks.pop(ptr)

    def pinned(self, nbytes: int, kind: MemoryKind = MemoryKind.PINNED) -> Bytes:
        """Host memory of the driver's own, as an array."""
        self.need_kind(kind)
        return view(self.alloc(nbytes, kind), nbytes)

    def stream(self, priority: int = 0, *, non_blocking: bool = True) -> int:
        stream = self.driver.stream_create(priority, non_blocking)
        self._streams.append(stream)
        return stream

    def destroy_stream(self, stream: int) -> None:
        self._streams.remove(stream)
        self.driver.stream_destroy(stream)

    def event(self, *, timing: bool = False) -> int:
        event = self.driver.event_create(timing)
        self._events.append(event)
        return event

    def destroy_event(self, event: int) -> None:
        self._events.remove(event)
        self.driver.event_destroy(event)

    # -- looking and touching ------------------------------------------------------------------------------------------

    @property
    def side(self) -> int:
        """A non-blocking stream that the tests never hold."""
        if not self._side:
            self._side = self.stream()
        return self._side

    def write(self, ptr: int, data: Bytes) -> None:
        """Put bytes on the device, at once, past every held stream."""
        self.driver.copy(ptr, address(data), data.size, CopyKind.H2D, self.side, blocking=True)

    def read(self, ptr: int, nbytes: int) -> Bytes:
        """Bytes of the device, at once, past every held stream."""
        self.driver.stream_synchronize(self.side)
        seen = self.suite.peek(self.driver, ptr, nbytes)
        if seen is not None:
            return np.frombuffer(seen, np.uint8)
        data = np.full(nbytes, 0xA5, np.uint8)
        self.driver.copy(address(data), ptr, nbytes, CopyKind.D2H, self.side, blocking=True)
        return data

    def device(self, data: Bytes) -> int:
        """New device memory with these bytes in it."""
        ptr = self.alloc(data.size)
        self.write(ptr, data)
        return ptr

    # -- time ----------------------------------------------------------------------------------------------------------

    def hold(self, stream: int, *, patience: float = 10.0, tolerant: bool = False) -> Latch:
        self.need(Capability.HOLD)
        # Whatever reads past the held stream must exist before: making a stream may wait on some drivers.
        assert self.side
        return Latch(self.driver, stream, patience=patience, tolerant=tolerant)

    def waiting(self, stream: int) -> bool:
        """True if what is enqueued on the stream is not done, and is not done a moment later either."""
        event = self.event()
        self.driver.event_record(event, stream)
        watcher = self.start(lambda: self.driver.event_synchronize(event))
        self._watchers.append(watcher)
        return not watcher.done.wait(self.suite.grace) and not self.driver.stream_query(stream)

    def start(self, function: Callable[[], object]) -> Worker:
        """Run it on a thread of its own, on which the device has been entered."""
        return Worker(self.driver, function)

    def together(self, count: int, function: Callable[[int], object]) -> None:
        """Run ``function(0..count-1)`` on as many threads at once, and raise what any of them raised."""
        barrier = threading.Barrier(count)

        def one(number: int) -> None:
            barrier.wait(PATIENCE)
            function(number)

        workers = [self.start(lambda number=number: one(number)) for number in range(count)]  # type: ignore[misc]
        for worker in workers:
            worker.finish()

    # -- the end -------------------------------------------------------------------------------------------------------

    def give_back(self) -> None:
        for neighbour in self._neighbours:
            with entered(neighbour.driver):
                neighbour.give_back()
            neighbour.driver.close()
        self.driver.synchronize()
        for watcher in self._watchers:
            watcher.finish()
        for event in self._events:
            self.driver.event_destroy(event)
        for stream in self._streams:
            self.driver.stream_destroy(stream)
        for ptr, (nbytes, kind) in self._blocks.items():
            self.driver.free(ptr, nbytes, LEGACY_STREAM, kind)


class Worker(threading.Thread):
    """A thread that has entered the device; `finish` raises what it raised."""

    def __init__(self, driver: Driver, function: Callable[[], object]) -> None:
        super().__init__(daemon=True)
        self.done = threading.Event()
        self._driver = driver
        self._function = function
        self._error: BaseException | None = None
        self.start()

    def run(self) -> None:
        try:
            with entered(self._driver):
                self._function()
        except BaseException as error:
            self._error = error
        finally:
            self.done.set()

    def finish(self) -> None:
        self.join(PATIENCE)
        assert not self.is_alive(), f"a call did not return within {PATIENCE} s"
        error, self._error = self._error, None
        if error is not None:
            try:
                raise error
            finally:
                del error  # or its traceback and this frame would keep each other


def address(data: Bytes) -> int:
    """The address of a host array."""
    return int(data.ctypes.data)


def view(ptr: int, nbytes: int) -> Bytes:
    """Host memory at an address, as an array that owns nothing."""
    return np.frombuffer(memoryview((ctypes.c_ubyte * nbytes).from_address(ptr)).cast("B"), np.uint8)


def pattern(nbytes: int, seed: int = 0) -> Bytes:
    """Bytes without a period."""
    return np.random.default_rng(seed).integers(0, 256, nbytes, dtype=np.uint8)


def flip(data: Bytes, mask: int = 0xFF) -> Bytes:
    """Bytes that differ everywhere."""
    return np.bitwise_xor(data, np.uint8(mask))


def same(got: Bytes, expected: Bytes) -> bool:
    """Equality with a message that does not print megabytes."""
    if np.array_equal(got, expected):
        return True
    if got.shape != expected.shape:
        pytest.fail(f"got {got.shape} bytes, expected {expected.shape}")
    wrong = np.flatnonzero(got != expected)
    first = int(wrong[0])
    pytest.fail(
        f"{wrong.size} of {got.size} bytes differ, first at {first}: {got[first]:#x}, expected {expected[first]:#x}"
    )
