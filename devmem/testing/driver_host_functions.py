"""Optional: Python functions as work on a stream (host functions)."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Sequence

import numpy as np
import pytest

from devmem.spi.driver import SupportsHostFunction, SupportsStreamOrdered
from devmem.spi.errors import BackendError, DevmemWarning
from devmem.spi.types import LEGACY_STREAM, Capability, CopyKind

from .driver_fixture import (
    RETURN_TIMEOUT,
    STREAM_KINDS,
    ConformanceSuite,
    DriverFixture,
    address,
    flip,
    pattern,
    same,
    view,
)
from .stream_hold import entered


class HostFunctionChecks(ConformanceSuite):
    def launcher(self, fixture: DriverFixture) -> SupportsHostFunction:
        fixture.need(Capability.HOST_FUNCTION)
        assert isinstance(fixture.driver, SupportsHostFunction)
        return fixture.driver

    @pytest.mark.parametrize("which", STREAM_KINDS)
    def test_launch_host_function_reaches_device_memory(self, fixture: DriverFixture, which: str) -> None:
        driver, stream = self.launcher(fixture), fixture.stream_of_kind(which)
        data = pattern(1000)
        source, target = fixture.alloc_with(data), fixture.alloc_with(flip(data))

        def double(places: Sequence[int]) -> None:
            view(places[1], 999)[...] = flip(view(places[0], 999), 0x55)

        driver.launch_host_function(double, [(source, 999), (target + 1, 999)], stream)
        fixture.driver.stream_synchronize(stream)
        assert same(fixture.read(target, 1000)[1:], flip(data[:999], 0x55))
        assert fixture.read(target, 1)[0] == flip(data)[0]

    def test_launch_host_function_is_ordered_on_its_stream(self, fixture: DriverFixture) -> None:
        driver, stream = self.launcher(fixture), fixture.stream()
        data, back = fixture.pinned(5000), fixture.pinned(5000)
        data[:], back[:] = pattern(5000), 0
        ptr = fixture.alloc(5000)

        def invert(places: Sequence[int]) -> None:
            there = view(places[0], 5000)
            there[...] = flip(there)

        with fixture.hold(stream) as hold:
            fixture.driver.copy(ptr, address(data), 5000, CopyKind.H2D, stream, blocking=False)
            driver.launch_host_function(invert, [(ptr, 5000)], stream)
            fixture.driver.copy(address(back), ptr, 5000, CopyKind.D2H, stream, blocking=False)
            assert not hold.expired, "launch_host_function waited"
            assert not back.any()
            hold.release()
            fixture.driver.stream_synchronize(stream)
        assert same(back, flip(data))

    def test_launch_host_function_waits_behind_a_held_stream(self, fixture: DriverFixture) -> None:
        driver, stream, other = self.launcher(fixture), fixture.stream(), fixture.stream()
        ran: list[int] = []
        with fixture.hold(stream):
            driver.launch_host_function(lambda places: ran.append(1), [], stream)
            driver.launch_host_function(lambda places: ran.append(2), [], other)
            fixture.driver.stream_synchronize(other)
            assert fixture.stays_pending(stream)
            assert ran == [2]
        fixture.driver.stream_synchronize(stream)
        assert ran == [2, 1]

    def test_launch_host_function_does_not_wait(self, fixture: DriverFixture) -> None:
        driver, stream = self.launcher(fixture), fixture.stream()
        begun, go = threading.Event(), threading.Event()
        where: list[int] = []

        def run(places: Sequence[int]) -> None:
            where.append(threading.get_ident())
            begun.set()
            assert go.wait(RETURN_TIMEOUT)

        driver.launch_host_function(run, [], stream)
        try:
            assert begun.wait(RETURN_TIMEOUT)
            assert where != [threading.get_ident()]
            assert not fixture.driver.stream_query(stream)
        finally:
            go.set()
        fixture.driver.stream_synchronize(stream)
        assert fixture.driver.stream_query(stream)

    @pytest.mark.parametrize("how", ["stream", "event", "device", "copy", "host_function"])
    def test_an_error_of_a_function_is_raised_once(self, fixture: DriverFixture, how: str) -> None:
        driver, stream, other = self.launcher(fixture), fixture.stream(), fixture.stream()
        event, data = fixture.event(), pattern(100)
        ptr, back = fixture.alloc(100), np.zeros(100, np.uint8)
        later: list[int] = []
        launched = threading.Event()
        driver.launch_host_function(broken_after(launched), [(ptr, 100)], stream)
        driver.launch_host_function(lambda places: later.append(1), [(ptr, 100)], stream)
        fixture.driver.event_record(event, stream)
        launched.set()
        while not fixture.driver.stream_query(stream):  # a query does not raise the error
            pass
        assert later == [1], "later work runs"
        fixture.driver.stream_synchronize(other)
        telling: dict[str, Callable[[], object]] = {
            "stream": lambda: fixture.driver.stream_synchronize(stream),
            "event": lambda: fixture.driver.event_synchronize(event),
            "device": lambda: fixture.driver.synchronize(),
            "copy": lambda: fixture.driver.copy(address(back), ptr, 100, CopyKind.D2H, stream, blocking=True),
            "host_function": lambda: driver.launch_host_function(lambda places: later.append(2), [], stream),
        }
        with pytest.raises(Mistake, match="of the test"):
            telling[how]()
        for tell in telling.values():
            tell()
        fixture.driver.stream_synchronize(stream)
        assert later == [1, 2], "the call that raised enqueued nothing"
        fixture.write(ptr, data)
        assert same(fixture.read(ptr, 100), data)

    def test_an_error_of_a_held_function_is_raised_by_later_calls(self, fixture: DriverFixture) -> None:
        driver, stream = self.launcher(fixture), fixture.stream()
        before = fixture.event()
        ptr, back = fixture.alloc(100), np.zeros(100, np.uint8)
        with fixture.hold(stream) as hold:
            fixture.driver.event_record(before, stream)
            driver.launch_host_function(broken, [], stream)
            copier = fixture.run_in_thread(
                lambda: fixture.driver.copy(address(back), ptr, 100, CopyKind.D2H, stream, blocking=True)
            )
            hold.release()
        fixture.driver.event_synchronize(before)
        with pytest.raises(Mistake):
            copier.finish()
        fixture.driver.stream_synchronize(stream)

    @pytest.mark.parametrize("how", ["copy", "event", "host_function"])
    def test_a_wait_for_the_legacy_stream_raises_errors_of_blocking_streams(
        self, fixture: DriverFixture, how: str
    ) -> None:
        driver, blocking, apart = self.launcher(fixture), fixture.stream(non_blocking=False), fixture.stream()
        event, ptr, back = fixture.event(), fixture.alloc(100), np.zeros(100, np.uint8)
        driver.launch_host_function(broken, [], apart)
        driver.launch_host_function(broken, [], blocking)
        if how == "event":
            fixture.driver.event_record(event, LEGACY_STREAM)
        if how == "host_function":
            while not fixture.driver.stream_query(blocking):
                pass
        telling: dict[str, Callable[[], object]] = {
            "copy": lambda: fixture.driver.copy(address(back), ptr, 100, CopyKind.D2H, LEGACY_STREAM, blocking=True),
            "event": lambda: fixture.driver.event_synchronize(event),
            "host_function": lambda: driver.launch_host_function(lambda places: None, [], LEGACY_STREAM),
        }
        with pytest.raises(Mistake):
            telling[how]()
        telling[how]()
        fixture.driver.stream_synchronize(blocking)
        with pytest.raises(Mistake):
            fixture.driver.stream_synchronize(apart)

    @pytest.mark.parametrize("how", ["stream", "event", "device", "copy"])
    def test_an_interrupted_wait_ends_what_it_waits_for(self, fixture: DriverFixture, how: str) -> None:
        driver, stream, event = self.launcher(fixture), fixture.stream(), fixture.event()
        ptr, back = fixture.alloc(100), np.zeros(100, np.uint8)
        running, queued, later = Endless(), Endless(), list[int]()
        driver.launch_host_function(running, [], stream)
        driver.launch_host_function(queued, [(ptr, 100)], stream)
        fixture.driver.event_record(event, stream)
        waits: dict[str, Callable[[], object]] = {
            "stream": lambda: fixture.driver.stream_synchronize(stream),
            "event": lambda: fixture.driver.event_synchronize(event),
            "device": lambda: fixture.driver.synchronize(),
            "copy": lambda: fixture.driver.copy(address(back), ptr, 100, CopyKind.D2H, stream, blocking=True),
        }
        try:
            assert running.begun.wait(RETURN_TIMEOUT)
            error = interrupted(waits[how], running.ended)
            assert error.__notes__ == ["the loop was running"]
            fixture.driver.stream_synchronize(stream)  # the interrupted functions raise nothing
            assert queued.ended.is_set()
            assert not queued.begun.is_set()
            driver.launch_host_function(lambda places: later.append(1), [], stream)
            fixture.driver.stream_synchronize(stream)
            assert later == [1]
        finally:
            running.ended.set()
            queued.ended.set()

    def test_a_function_cannot_enter_the_device(self, fixture: DriverFixture) -> None:
        driver, stream = self.launcher(fixture), fixture.stream()
        refused: list[BaseException] = []

        def run(places: Sequence[int]) -> None:
            try:
                fixture.driver.enter()
            except BackendError as error:
                refused.append(error.with_traceback(None))

        driver.launch_host_function(run, [], stream)
        fixture.driver.stream_synchronize(stream)
        assert len(refused) == 1

    def test_freeing_raises_no_error_of_a_function(self, fixture: DriverFixture) -> None:
        driver, stream = self.launcher(fixture), fixture.stream()
        ptr = fixture.alloc(5000)
        driver.launch_host_function(broken, [(ptr, 5000)], stream)
        fixture.free(ptr)
        with pytest.raises(Mistake):
            fixture.driver.stream_synchronize(stream)

    def test_an_error_of_a_destroyed_stream_is_raised_by_the_device(self, fixture: DriverFixture) -> None:
        driver, stream = self.launcher(fixture), fixture.stream()
        driver.launch_host_function(broken, [], stream)
        fixture.destroy_stream(stream)
        with pytest.raises(Mistake):
            fixture.driver.synchronize()
        fixture.driver.synchronize()

    def test_an_error_that_was_not_raised_is_a_warning_at_close(self, fixture: DriverFixture) -> None:
        fixture.need(Capability.HOST_FUNCTION)
        driver = fixture.backend.open(self.ordinal)
        assert isinstance(driver, SupportsHostFunction)
        with entered(driver):
            launched = threading.Event()
            driver.launch_host_function(broken_after(launched), [], LEGACY_STREAM)
            driver.launch_host_function(broken, [], LEGACY_STREAM)
            launched.set()
            with pytest.raises(Mistake):
                driver.synchronize()
        with pytest.warns(DevmemWarning, match="of the test") as told:
            driver.close()
        assert len(told) == 1

    def test_launch_host_function_checks_its_ranges(self, fixture: DriverFixture) -> None:
        fixture.need_strict(self.checks_addresses)
        driver, stream = self.launcher(fixture), fixture.stream()
        ptr = fixture.alloc(1000)
        ran: list[int] = []
        for wrong in [(ptr, 1001), (ptr + 1, 1000), (ptr, 0), (ptr, -1), (address(pattern(10)), 10)]:
            with pytest.raises(BackendError):
                driver.launch_host_function(lambda places: ran.append(1), [(ptr, 1000), wrong], stream)
        fixture.driver.stream_synchronize(stream)
        assert ran == []

    def test_freed_in_stream_order_behind_a_function(self, fixture: DriverFixture) -> None:
        fixture.need(Capability.STREAM_ORDERED)
        driver, stream, data = self.launcher(fixture), fixture.stream(), pattern(3000)
        memory, out = fixture.driver, np.zeros(3000, np.uint8)
        assert isinstance(memory, SupportsStreamOrdered)
        ptr = memory.alloc_async(3000, stream)
        memory.copy(ptr, address(data), 3000, CopyKind.H2D, stream, blocking=True)

        def read(places: Sequence[int]) -> None:
            out[...] = view(places[0], 3000)

        with fixture.hold(stream):
            driver.launch_host_function(read, [(ptr, 3000)], stream)
            memory.free_async(ptr, 3000, stream)
        fixture.driver.stream_synchronize(stream)
        assert same(out, data)


class Mistake(Exception):
    """Raised by a function under test."""


def broken(places: Sequence[int]) -> None:
    raise Mistake("of the test")


def broken_after(launched: threading.Event) -> Callable[[Sequence[int]], None]:
    """A function that raises once the next ones are launched: a launch raises the error of an earlier one that is over."""

    def wait_and_raise(places: Sequence[int]) -> None:
        assert launched.wait(RETURN_TIMEOUT)
        broken(places)

    return wait_and_raise


class Endless:
    """A function that runs until it is interrupted, and returns at once if it was interrupted before."""

    def __init__(self) -> None:
        self.begun, self.ended = threading.Event(), threading.Event()

    def __call__(self, places: Sequence[int]) -> None:
        if not self.ended.is_set():
            self.begun.set()
            self.ended.wait(RETURN_TIMEOUT)

    def interrupt(self) -> str:
        """End the function."""
        self.ended.set()
        return "the loop was running" if self.begun.is_set() else ""


class Interrupt(BaseException):
    """Raised by the signal handler of a test."""


def interrupted(wait: Callable[[], object], ended: threading.Event) -> BaseException:
    """Interrupt a waiting call with a signal until the function has ended; return the last error that came out of the call.

    The signal is sent again and again: one that arrives before the call waits does not interrupt it.
    """
    if not hasattr(signal, "pthread_kill") or threading.current_thread() is not threading.main_thread():
        pytest.skip("signals do not reach this thread")
    armed, over, here = [False], threading.Event(), threading.get_ident()

    def handler(*_: object) -> None:
        if armed[0]:
            armed[0] = False
            raise Interrupt

    def insist() -> None:
        while not over.wait(0.05):
            signal.pthread_kill(here, signal.SIGINT)

    before = signal.signal(signal.SIGINT, handler)
    helper = threading.Thread(target=insist, daemon=True)
    helper.start()
    error: BaseException | None = None
    try:
        while not ended.is_set():
            try:
                armed[0] = True
                wait()
            except Interrupt as found:
                error = found.with_traceback(None)
    finally:
        over.set()
        helper.join(RETURN_TIMEOUT)
        signal.signal(signal.SIGINT, before)
    assert error is not None, "no signal interrupted the call"
    return error
