"""The base class of the conformance suites, and the fixture that their tests take: one open driver and its resources.

`DriverFixture` records each allocation, stream and event that a test creates through it and releases them at the end.
A fixture is used on the thread of the test; `DriverFixture.run_in_thread` makes calls on other threads.
"""

from __future__ import annotations

import ctypes
import faulthandler
import sys
import threading
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import numpy as np
import pytest
from numpy.typing import NDArray

from devmem.spi.driver import Backend, Driver
from devmem.spi.types import LEGACY_STREAM, PER_THREAD_STREAM, Capability, CopyKind, MemoryKind

from .plugin import STANDARD_ERROR
from .stream_hold import StreamHold, entered

Bytes = NDArray[np.uint8]

#: Seconds after which a call counts as one that never returns.
RETURN_TIMEOUT = 60.0
#: Threads of the tests that call a driver from several at once.
THREADS = 8


#: Every kind of stream: created non-blocking, created blocking, and the two default streams.
STREAM_KINDS = ("created", "blocking", "legacy", "per-thread")


class ConformanceSuite:
    """The hooks that a subclass overrides, and the pytest fixture of every test."""

    #: True for a driver that promises an error for wrong calls: unknown handles, bad addresses, double frees. Vendors
    #: leave much of that undefined; those tests run for strict drivers only.
    strict = False
    #: Seconds for which a test watches that something does not happen. No test of a correct driver depends on the value.
    grace = 0.05
    #: The device under test.
    ordinal = 0
    #: Seconds after which a test counts as stuck: the process then ends, with the stacks of all threads on standard error.
    stuck_after = 300.0
    #: Exceptions from ``strict`` for handles and addresses, for drivers that abort the process on some wrong calls.
    #: None: as ``strict`` says.
    checks_handles: bool | None = None
    checks_addresses: bool | None = None

    def make_backend(self) -> Backend:
        """The backend under test."""
        raise NotImplementedError("a subclass of the conformance suite supplies make_backend()")

    def peek(self, driver: Driver, ptr: int, nbytes: int) -> bytes | None:
        """Read device memory without the driver under test. None (the default): the tests read it by a copy."""
        return None

    def current(self) -> object:
        """Ask the vendor's library which device is current on this thread. NotImplemented (the default): not possible."""
        return NotImplemented

    def kernel(self, driver: Driver) -> tuple[bytes, str] | None:
        """Code for ``launch``: an image and the name of its function, which `DriverTests` describes. None: there is none."""
        return None

    @contextmanager
    def foreign_stream(self, driver: Driver) -> Iterator[tuple[object, Callable[[], object]] | None]:
        """A stream of another library, and that library's wait for it; see `DriverTests`. None: there is none."""
        yield None

    @contextmanager
    def opened(self) -> Iterator[DriverFixture]:
        """A fixture with a newly opened driver, whose device is current on this thread."""
        backend = self.make_backend()
        reason = backend.unavailable()
        if reason is not None:
            pytest.skip(reason)
        fixture = DriverFixture(self, backend, self.wrap(backend.open(self.ordinal)))
        try:
            with entered(fixture.driver):
                try:
                    yield fixture
                finally:
                    fixture.release_all()
        finally:
            fixture.driver.close()

    def wrap(self, driver: Driver) -> Driver:
        """Return the driver that the tests use in place of this one, a `FaultyDriver` for example."""
        return driver

    @pytest.fixture(autouse=True)
    def watchdog(self, request: pytest.FixtureRequest) -> Iterator[None]:
        """End the process with all stacks if the test is stuck, even where a call of the driver keeps the GIL."""
        faulthandler.dump_traceback_later(self.stuck_after, exit=True, file=request.config.stash.get(STANDARD_ERROR, 2))
        yield
        faulthandler.cancel_dump_traceback_later()

    @pytest.fixture
    def fixture(self) -> Iterator[DriverFixture]:
        with self.opened() as fixture:
            yield fixture


class DriverFixture:
    """One open driver, and the resources that a test created on it; `release_all` releases them."""

    def __init__(self, suite: ConformanceSuite, backend: Backend, driver: Driver) -> None:
        self.suite = suite
        self.backend = backend
        self.driver = driver
        self._blocks: dict[int, tuple[int, MemoryKind]] = {}
        self._streams: list[int] = []
        self._events: list[int] = []
        self._other_devices: list[DriverFixture] = []
        self._watchers: list[DeviceThread] = []
        self._unheld_stream = 0

    # -- capabilities --------------------------------------------------------------------------------------------------

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

    def other_device(self) -> DriverFixture:
        """A fixture on another device of the same backend; that device is not made current."""
        others = [n for n in range(self.backend.device_count()) if n != self.driver.info.ordinal]
        if not others:
            pytest.skip("the backend has one device only")
        fixture = DriverFixture(self.suite, self.backend, self.backend.open(others[0]))
        self._other_devices.append(fixture)
        return fixture

    # -- allocations, streams, events ----------------------------------------------------------------------------------

    def alloc(self, nbytes: int, kind: MemoryKind = MemoryKind.DEVICE, stream: int = LEGACY_STREAM) -> int:
        ptr = self.driver.alloc(nbytes, stream, kind)
        self._blocks[ptr] = (nbytes, kind)
        return ptr

    def free(self, ptr: int) -> None:
        nbytes, kind = self._blocks.pop(ptr)
        self.driver.free(ptr, nbytes, LEGACY_STREAM, kind)

    def free_at_end(self, ptr: int, nbytes: int, kind: MemoryKind = MemoryKind.DEVICE) -> int:
        """Free at the end what the test allocated without this fixture."""
        self._blocks[ptr] = (nbytes, kind)
        return ptr

    def owns(self, ptr: int) -> bool:
        """True for a live allocation that `release_all` will free."""
        return ptr in self._blocks

    def forget(self, ptr: int) -> tuple[int, MemoryKind]:
        """Leave an allocation for the test to free; return its size and kind."""
        return self._blocks.pop(ptr)

    def pinned(self, nbytes: int, kind: MemoryKind = MemoryKind.PINNED) -> Bytes:
        """Page-locked host memory from the driver, as an array."""
        self.need_kind(kind)
        return view(self.alloc(nbytes, kind), nbytes)

    def stream(self, priority: int = 0, *, non_blocking: bool = True) -> int:
        stream = self.driver.stream_create(priority, non_blocking)
        self._streams.append(stream)
        return stream

    def stream_of_kind(self, kind: str) -> int:
        """A stream of one of `STREAM_KINDS`."""
        if kind == "legacy":
            return LEGACY_STREAM
        return PER_THREAD_STREAM if kind == "per-thread" else self.stream(non_blocking=kind == "created")

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

    # -- reading and writing -------------------------------------------------------------------------------------------

    @property
    def unheld_stream(self) -> int:
        """A non-blocking stream that no test holds."""
        if not self._unheld_stream:
            self._unheld_stream = self.stream()
        return self._unheld_stream

    def write(self, ptr: int, data: Bytes) -> None:
        """Write to device memory now, while other streams are held."""
        self.driver.copy(ptr, address(data), data.size, CopyKind.H2D, self.unheld_stream, blocking=True)

    def read(self, ptr: int, nbytes: int) -> Bytes:
        """Read device memory now, while other streams are held."""
        self.driver.stream_synchronize(self.unheld_stream)
        seen = self.suite.peek(self.driver, ptr, nbytes)
        if seen is not None:
            return np.frombuffer(seen, np.uint8)
        data = np.full(nbytes, 0xA5, np.uint8)
        self.driver.copy(address(data), ptr, nbytes, CopyKind.D2H, self.unheld_stream, blocking=True)
        return data

    def alloc_with(self, data: Bytes) -> int:
        """Allocate device memory that holds these bytes."""
        ptr = self.alloc(data.size)
        self.write(ptr, data)
        return ptr

    # -- holds and threads ---------------------------------------------------------------------------------------------

    def hold(self, stream: int, *, patience: float = 10.0, tolerant: bool = False) -> StreamHold:
        self.need(Capability.HOLD)
        assert self.unheld_stream  # create it now: on some drivers, creating a stream waits for the held one
        return StreamHold(self.driver, stream, patience=patience, tolerant=tolerant)

    def stays_pending(self, stream: int) -> bool:
        """True if the work on the stream is not complete now and not complete after `grace` seconds."""
        event = self.event()
        self.driver.event_record(event, stream)
        watcher = self.run_in_thread(lambda: self.driver.event_synchronize(event))
        self._watchers.append(watcher)
        return not watcher.done.wait(self.suite.grace) and not self.driver.stream_query(stream)

    def run_in_thread(self, function: Callable[[], object]) -> DeviceThread:
        """Run a function on a new thread on which the device is current."""
        return DeviceThread(self.driver, function)

    def run_in_threads(self, count: int, function: Callable[[int], object]) -> None:
        """Run ``function(0)`` to ``function(count - 1)`` at once, each on a thread; raise the first error."""
        barrier = threading.Barrier(count)

        def one(number: int) -> None:
            barrier.wait(RETURN_TIMEOUT)
            function(number)

        workers = [self.run_in_thread(lambda number=number: one(number)) for number in range(count)]  # type: ignore[misc]
        for worker in workers:
            worker.finish()

    # -- release -------------------------------------------------------------------------------------------------------

    def release_all(self) -> None:
        for other in self._other_devices:
            with entered(other.driver):
                other.release_all()
            other.driver.close()
        self.driver.synchronize()
        for watcher in self._watchers:
            watcher.finish()
        for event in self._events:
            self.driver.event_destroy(event)
        for stream in self._streams:
            self.driver.stream_destroy(stream)
        for ptr, (nbytes, kind) in self._blocks.items():
            self.driver.free(ptr, nbytes, LEGACY_STREAM, kind)


class DeviceThread(threading.Thread):
    """A thread on which the device is current; `finish` waits for it and raises its error."""

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
        self.join(RETURN_TIMEOUT)
        if self.is_alive():
            stack = "".join(traceback.format_stack(sys._current_frames()[self.ident]))  # type: ignore[index]
            pytest.fail(f"a call did not return within {RETURN_TIMEOUT} s:\n{stack}")
        error, self._error = self._error, None
        if error is not None:
            try:
                raise error
            finally:
                del error  # the error's traceback holds this frame, and the frame would hold the error


def address(data: Bytes) -> int:
    """The address of a host array."""
    return int(data.ctypes.data)


def view(ptr: int, nbytes: int) -> Bytes:
    """Host memory at an address, as an array that does not own it."""
    return np.frombuffer(memoryview((ctypes.c_ubyte * nbytes).from_address(ptr)).cast("B"), np.uint8)


def pattern(nbytes: int, seed: int = 0) -> Bytes:
    """Pseudo-random bytes."""
    return np.random.default_rng(seed).integers(0, 256, nbytes, dtype=np.uint8)


def flip(data: Bytes, mask: int = 0xFF) -> Bytes:
    """Bytes that differ from the given ones at every position."""
    return np.bitwise_xor(data, np.uint8(mask))


def same(got: Bytes, expected: Bytes) -> bool:
    """Compare, and fail with a short message that names the first difference."""
    if np.array_equal(got, expected):
        return True
    if got.shape != expected.shape:
        pytest.fail(f"got {got.shape} bytes, expected {expected.shape}")
    wrong = np.flatnonzero(got != expected)
    first = int(wrong[0])
    pytest.fail(
        f"{wrong.size} of {got.size} bytes differ, first at {first}: {got[first]:#x}, expected {expected[first]:#x}"
    )
