"""Optional: functions of Python as work of a stream."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Sequence

import numpy as np
import pytest

from devmem.spi.driver import SupportsHostFunction, SupportsStreamOrdered
from devmem.spi.errors import BackendError, DevmemWarning
from devmem.spi.types import LEGACY_STREAM, Capability, CopyKind

from .driver_fixture import PATIENCE, Harness, Rig, address, flip, pattern, same, view
from .driver_optional import streams
from .stream_hold import entered


class HostFunctionChecks(Harness):
    def launcher(self, rig: Rig) -> SupportsHostFunction:
        rig.need(Capability.HOST_FUNCTION)
        assert isinstance(rig.driver, SupportsHostFunction)
        return rig.driver

    @pytest.mark.parametrize("which", ["created", "blocking", "legacy", "per-thread"])
    def test_execute_reaches_device_memory(self, rig: Rig, which: str) -> None:
        driver, stream = self.launcher(rig), streams(rig)[which]
        data = pattern(1000)
        source, target = rig.device(data), rig.device(flip(data))

        def double(places: Sequence[int]) -> None:
            view(places[1], 999)[...] = flip(view(places[0], 999), 0x55)

        driver.launch_host_function(double, [(source, 999), (target + 1, 999)], stream)
        rig.driver.stream_synchronize(stream)
        assert same(rig.read(target, 1000)[1:], flip(data[:999], 0x55))
        assert rig.read(target, 1)[0] == flip(data)[0]

    def test_execute_is_ordered_on_its_stream(self, rig: Rig) -> None:
        driver, stream = self.launcher(rig), rig.stream()
        data, back = rig.pinned(5000), rig.pinned(5000)
        data[:], back[:] = pattern(5000), 0
        ptr = rig.alloc(5000)

        def invert(places: Sequence[int]) -> None:
            there = view(places[0], 5000)
            there[...] = flip(there)

        with rig.hold(stream) as latch:
            rig.driver.copy(ptr, address(data), 5000, CopyKind.H2D, stream, blocking=False)
            driver.launch_host_function(invert, [(ptr, 5000)], stream)
            rig.driver.copy(address(back), ptr, 5000, CopyKind.D2H, stream, blocking=False)
            assert not latch.expired, "launch_host_function waited"
            assert not back.any()
            latch.release()
            rig.driver.stream_synchronize(stream)
        assert same(back, flip(data))

    def test_execute_waits_behind_a_held_stream(self, rig: Rig) -> None:
        driver, stream, other = self.launcher(rig), rig.stream(), rig.stream()
        ran: list[int] = []
        with rig.hold(stream):
            driver.launch_host_function(lambda places: ran.append(1), [], stream)
            driver.launch_host_function(lambda places: ran.append(2), [], other)
            rig.driver.stream_synchronize(other)
            assert rig.waiting(stream)
            assert ran == [2]
        rig.driver.stream_synchronize(stream)
        assert ran == [2, 1]

    def test_execute_does_not_hold_up_the_caller(self, rig: Rig) -> None:
        driver, stream = self.launcher(rig), rig.stream()
        begun, go = threading.Event(), threading.Event()
        where: list[int] = []

        def run(places: Sequence[int]) -> None:
            where.append(threading.get_ident())
            begun.set()
            assert go.wait(PATIENCE)

        driver.launch_host_function(run, [], stream)
        try:
            assert begun.wait(PATIENCE)
            assert where != [threading.get_ident()]
            assert not rig.driver.stream_query(stream)
        finally:
            go.set()
        rig.driver.stream_synchronize(stream)
        assert rig.driver.stream_query(stream)

    @pytest.mark.parametrize("how", ["stream", "event", "device", "copy", "host_function"])
    def test_what_a_function_raises_is_told_once(self, rig: Rig, how: str) -> None:
        driver, stream, other = self.launcher(rig), rig.stream(), rig.stream()
        event, data = rig.event(), pattern(100)
        ptr, back = rig.alloc(100), np.zeros(100, np.uint8)
        later: list[int] = []
        driver.launch_host_function(broken, [(ptr, 100)], stream)
        driver.launch_host_function(lambda places: later.append(1), [(ptr, 100)], stream)
        rig.driver.event_record(event, stream)
        while not rig.driver.stream_query(stream):  # asking tells nothing
            pass
        assert later == [1], "work behind it runs"
        rig.driver.stream_synchronize(other)
        telling: dict[str, Callable[[], object]] = {
            "stream": lambda: rig.driver.stream_synchronize(stream),
            "event": lambda: rig.driver.event_synchronize(event),
            "device": lambda: rig.driver.synchronize(),
            "copy": lambda: rig.driver.copy(address(back), ptr, 100, CopyKind.D2H, stream, blocking=True),
            "host_function": lambda: driver.launch_host_function(lambda places: later.append(2), [], stream),
        }
        with pytest.raises(Mistake, match="of mine"):
            telling[how]()
        for tell in telling.values():
            tell()
        rig.driver.stream_synchronize(stream)
        assert later == [1, 2], "what told of it enqueued nothing"
        rig.write(ptr, data)
        assert same(rig.read(ptr, 100), data)

    def test_what_a_held_function_raises_is_told_by_those_behind_it(self, rig: Rig) -> None:
        driver, stream = self.launcher(rig), rig.stream()
        before = rig.event()
        ptr, back = rig.alloc(100), np.zeros(100, np.uint8)
        with rig.hold(stream) as latch:
            rig.driver.event_record(before, stream)
            driver.launch_host_function(broken, [], stream)
            copier = rig.start(lambda: rig.driver.copy(address(back), ptr, 100, CopyKind.D2H, stream, blocking=True))
            latch.release()
        rig.driver.event_synchronize(before)
        with pytest.raises(Mistake):
            copier.finish()
        rig.driver.stream_synchronize(stream)

    @pytest.mark.parametrize("how", ["copy", "event", "host_function"])
    def test_who_waits_for_the_legacy_stream_waits_for_the_blocking_ones(self, rig: Rig, how: str) -> None:
        driver, blocking, apart = self.launcher(rig), rig.stream(non_blocking=False), rig.stream()
        event, ptr, back = rig.event(), rig.alloc(100), np.zeros(100, np.uint8)
        driver.launch_host_function(broken, [], apart)
        driver.launch_host_function(broken, [], blocking)
        if how == "event":
            rig.driver.event_record(event, LEGACY_STREAM)
        if how == "host_function":
            while not rig.driver.stream_query(blocking):
                pass
        telling: dict[str, Callable[[], object]] = {
            "copy": lambda: rig.driver.copy(address(back), ptr, 100, CopyKind.D2H, LEGACY_STREAM, blocking=True),
            "event": lambda: rig.driver.event_synchronize(event),
            "host_function": lambda: driver.launch_host_function(lambda places: None, [], LEGACY_STREAM),
        }
        with pytest.raises(Mistake):
            telling[how]()
        telling[how]()
        rig.driver.stream_synchronize(blocking)
        with pytest.raises(Mistake):
            rig.driver.stream_synchronize(apart)

    @pytest.mark.parametrize("how", ["stream", "event", "device", "copy"])
    def test_an_interrupted_wait_ends_what_it_waits_for(self, rig: Rig, how: str) -> None:
        driver, stream, event = self.launcher(rig), rig.stream(), rig.event()
        ptr, back = rig.alloc(100), np.zeros(100, np.uint8)
        running, queued, later = Endless(), Endless(), list[int]()
        driver.launch_host_function(running, [], stream)
        driver.launch_host_function(queued, [(ptr, 100)], stream)
        rig.driver.event_record(event, stream)
        waits: dict[str, Callable[[], object]] = {
            "stream": lambda: rig.driver.stream_synchronize(stream),
            "event": lambda: rig.driver.event_synchronize(event),
            "device": lambda: rig.driver.synchronize(),
            "copy": lambda: rig.driver.copy(address(back), ptr, 100, CopyKind.D2H, stream, blocking=True),
        }
        try:
            assert running.begun.wait(PATIENCE)
            error = interrupted(waits[how], running.ended)
            assert error.__notes__ == ["it went round and round"]
            rig.driver.stream_synchronize(stream)  # they raise nothing
            assert queued.ended.is_set()
            assert not queued.begun.is_set()
            driver.launch_host_function(lambda places: later.append(1), [], stream)
            rig.driver.stream_synchronize(stream)
            assert later == [1]
        finally:
            running.ended.set()
            queued.ended.set()

    def test_a_function_cannot_enter_the_device(self, rig: Rig) -> None:
        driver, stream = self.launcher(rig), rig.stream()
        refused: list[BaseException] = []

        def run(places: Sequence[int]) -> None:
            try:
                rig.driver.enter()
            except BackendError as error:
                refused.append(error.with_traceback(None))

        driver.launch_host_function(run, [], stream)
        rig.driver.stream_synchronize(stream)
        assert len(refused) == 1

    def test_giving_back_tells_nothing(self, rig: Rig) -> None:
        driver, stream = self.launcher(rig), rig.stream()
        ptr = rig.alloc(5000)
        driver.launch_host_function(broken, [(ptr, 5000)], stream)
        rig.free(ptr)
        with pytest.raises(Mistake):
            rig.driver.stream_synchronize(stream)

    def test_a_destroyed_streams_failure_is_told_by_the_device(self, rig: Rig) -> None:
        driver, stream = self.launcher(rig), rig.stream()
        driver.launch_host_function(broken, [], stream)
        rig.destroy_stream(stream)
        with pytest.raises(Mistake):
            rig.driver.synchronize()
        rig.driver.synchronize()

    def test_what_nobody_was_told_is_a_warning_at_close(self, rig: Rig) -> None:
        rig.need(Capability.HOST_FUNCTION)
        driver = rig.backend.open(self.ordinal)
        assert isinstance(driver, SupportsHostFunction)
        with entered(driver):
            driver.launch_host_function(broken, [], LEGACY_STREAM)
            driver.launch_host_function(broken, [], LEGACY_STREAM)
            with pytest.raises(Mistake):
                driver.synchronize()
        with pytest.warns(DevmemWarning, match="of mine") as told:
            driver.close()
        assert len(told) == 1

    def test_execute_checks_its_ranges(self, rig: Rig) -> None:
        rig.need_strict(self.checks_addresses)
        driver, stream = self.launcher(rig), rig.stream()
        ptr = rig.alloc(1000)
        ran: list[int] = []
        for wrong in [(ptr, 1001), (ptr + 1, 1000), (ptr, 0), (ptr, -1), (address(pattern(10)), 10)]:
            with pytest.raises(BackendError):
                driver.launch_host_function(lambda places: ran.append(1), [(ptr, 1000), wrong], stream)
        rig.driver.stream_synchronize(stream)
        assert ran == []

    def test_freed_in_stream_order_behind_a_function(self, rig: Rig) -> None:
        rig.need(Capability.STREAM_ORDERED)
        driver, stream, data = self.launcher(rig), rig.stream(), pattern(3000)
        memory, out = rig.driver, np.zeros(3000, np.uint8)
        assert isinstance(memory, SupportsStreamOrdered)
        ptr = memory.alloc_async(3000, stream)
        memory.copy(ptr, address(data), 3000, CopyKind.H2D, stream, blocking=True)

        def read(places: Sequence[int]) -> None:
            out[...] = view(places[0], 3000)

        with rig.hold(stream):
            driver.launch_host_function(read, [(ptr, 3000)], stream)
            memory.free_async(ptr, 3000, stream)
        rig.driver.stream_synchronize(stream)
        assert same(out, data)


class Mistake(Exception):
    """What a test's function raises."""


def broken(places: Sequence[int]) -> None:
    """Fail."""
    raise Mistake("of mine")


class Endless:
    """A function that runs until it is told to end, and not at all if it was told before."""

    def __init__(self) -> None:
        self.begun, self.ended = threading.Event(), threading.Event()

    def __call__(self, places: Sequence[int]) -> None:
        if not self.ended.is_set():
            self.begun.set()
            self.ended.wait(PATIENCE)

    def interrupt(self) -> str:
        """Let it end."""
        self.ended.set()
        return "it went round and round" if self.begun.is_set() else ""


class Interrupt(BaseException):
    """What a test's signal handler raises."""


def interrupted(wait: Callable[[], object], ended: threading.Event) -> BaseException:
    """Interrupt a call that waits, with a signal; what came out of it when it had ended what it waited for.

    A signal may come before the call waits, or just before the interpreter does, where the next one only is noticed: so they
    come again and again.
    """
    if not hasattr(signal, "pthread_kill") or threading.current_thread() is not threading.main_thread():
        pytest.skip("no signals reach this thread")
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
        helper.join(PATIENCE)
        signal.signal(signal.SIGINT, before)
    assert error is not None, "nothing interrupted it"
    return error
