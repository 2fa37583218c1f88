"""The conformance suites find faults: each wrong driver, backend or resource has one, and one named test must fail on it."""

from __future__ import annotations

import dataclasses
import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from inspect import signature
from pathlib import Path
from typing import Any

import pytest
import wrong_drivers
from waits import patience, together

from devmem.backends.host.hooks import HostBackend
from devmem.spi.driver import Backend, Driver
from devmem.spi.errors import BackendError, ConfigError
from devmem.spi.memory import MemoryResource
from devmem.spi.types import DeviceInfo, MemoryKind
from devmem.testing import DriverTests, FaultyDriver, MemoryResourceTests

BROKEN: list[tuple[type, str, dict[str, Any]]] = wrong_drivers.BROKEN

#: What a failing test raises. Another error would be a fault of the test.
FAILURES = (AssertionError, pytest.fail.Exception)


class Suite(DriverTests):
    """`DriverTests`, called directly; pytest does not collect a class of this name."""

    strict = True

    def __init__(self, wrapper: Callable[[Driver], Driver]) -> None:
        self.wrapper = wrapper
        if wrapper is not FaultyDriver:
            self.grace = 0.5  # on a busy machine a fault may take a moment to show

    def make_backend(self) -> Backend:
        backend = HostBackend()
        backend.configure({"strict": True, "devices": 2})
        return backend

    def kernel(self, driver: Driver) -> tuple[bytes, str]:
        code: tuple[bytes, str] = wrong_drivers.Launches.code
        return code

    @contextmanager
    def foreign_stream(self, driver: Driver) -> Iterator[tuple[object, Callable[[], object]]]:
        theirs = wrong_drivers.TheirStream(driver)
        yield theirs, theirs.wait

    def wrap(self, driver: Driver) -> Driver:
        token = driver.enter()  # `spoil` may call the driver
        try:
            return self.wrapper(driver)
        finally:
            driver.exit(token)


#: Seconds after which a hold expires: faulty drivers wait where they must not. On a busy machine the shortest may be too short.
PATIENCE = 0.2, 0.8, 3.2, 12.8


@pytest.fixture
def sound(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Run a test with what has no fault: it passes. The patience with which it does is then kept for what has one."""
    from devmem.testing.driver_fixture import DriverFixture
    from devmem.testing.stream_hold import StreamHold

    seconds = PATIENCE[0]

    def hold(self: DriverFixture, stream: int, *, patience: float = 0.0, tolerant: bool = False) -> StreamHold:
        return StreamHold(self.driver, stream, patience=seconds, tolerant=tolerant)

    def sound(suite: Any, test: str, arguments: dict[str, Any]) -> None:
        nonlocal seconds
        for seconds in PATIENCE:
            try:
                run(suite, test, arguments)
                return
            except FAILURES:
                if seconds == PATIENCE[-1]:
                    raise

    monkeypatch.setattr(DriverFixture, "hold", hold)
    return sound


def failures(broken: type) -> tuple[type[BaseException], ...]:
    """What the test may raise: some faults show as an error of the driver below."""
    return (*FAILURES, BackendError) if getattr(broken, "raises", False) else FAILURES


def run(suite: Any, test: str, arguments: dict[str, Any]) -> None:
    method = getattr(suite, test)
    try:
        if "fixture" not in signature(method).parameters:
            method(**arguments)
            return
        with suite.opened() as fixture:
            method(fixture, **arguments)
    except pytest.skip.Exception as skipped:
        raise RuntimeError(f"{test} was skipped") from skipped


#: Of each room the gate takes the first few, and the wide run all: many of them wait for what must not come.
IN_THE_GATE = 3
CASES = [
    pytest.param(*case, id=f"{case[0].__name__}-{case[1]}", marks=[] if at < IN_THE_GATE else pytest.mark.exhaustive)
    for room in wrong_drivers.ROOMS
    for at, case in enumerate(room.BROKEN)
]


@pytest.mark.parametrize(("broken", "test", "arguments"), CASES)
def test_a_broken_driver_fails_where_a_sound_one_does_not(
    broken: type[Any], test: str, arguments: dict[str, Any], sound: Callable[..., None]
) -> None:
    sound(Suite(broken.sound_driver), test, arguments)
    with pytest.raises(failures(broken)):
        run(Suite(broken), test, arguments)


#: Mistakes in the order of work, and for each a test that needs no page-locked memory.
OF_ORDER = {
    "EventsAreAlwaysDone": "test_captures_what_was_enqueued",
    "FreesAsyncAtOnce": "test_freed_memory_reaches_no_other_stream_early",
    "FreesAsyncWaits": "test_alloc_async_and_free_async_do_not_wait",
    "IgnoresStreams": "test_stream_waits_for_another",
    "RunsBackwards": "test_work_runs_in_order",
    "SynchronizeIsNothing": "test_device_synchronize_waits_for_a_held_stream",
}


@pytest.mark.parametrize("name", OF_ORDER)
def test_order_is_tested_without_page_locked_memory(name: str, sound: Callable[..., None]) -> None:
    """A driver that declares HOLD alone is asked for order as well."""
    [(broken, test, arguments)] = [case for case in BROKEN if (case[0].__name__, case[1]) == (name, OF_ORDER[name])]

    def without_pinned(base: Any) -> Any:
        class WithoutPinned(base):  # type: ignore[misc]
            @property
            def info(self) -> DeviceInfo:
                info: DeviceInfo = super().info
                return dataclasses.replace(info, memory_kinds=info.memory_kinds - {MemoryKind.PINNED})

        return WithoutPinned

    sound(Suite(without_pinned(broken.sound_driver)), test, arguments)
    with pytest.raises(FAILURES):
        run(Suite(without_pinned(broken)), test, arguments)


def test_there_are_many_wrong_drivers() -> None:
    """And each fails on its own: a class twice in the list is found by several tests."""
    assert len({broken for broken, _, _ in BROKEN}) > 100
    assert len(BROKEN) + len(OF_ORDER) + len(STUCK_DRIVERS) + len(WRONG_BACKENDS) + len(BROKEN_RESOURCES) > 190


@pytest.mark.parametrize("room", wrong_drivers.ROOMS, ids=lambda room: room.__name__)
def test_a_mistake_stands_in_the_file_of_the_test_that_finds_it(room: Any) -> None:
    tests_of_room = f"devmem.testing.driver_{room.__name__.rpartition('.')[2]}"
    assert {getattr(DriverTests, test).__module__ for _, test, _ in room.BROKEN} == {tests_of_room}


STUCK = f"""
import os
import sys
sys.path.append({str(Path(wrong_drivers.__file__).parents[1])!r})
import wrong_drivers
from devmem.backends.host.hooks import HostBackend
from devmem.testing import DriverTests

class TestStuck(DriverTests):
    stuck_after = 3.0

    def make_backend(self):
        return HostBackend()

    def wrap(self, driver):
        return getattr(wrong_drivers, os.environ["DRIVER"])(driver)
"""

#: A driver that is stuck, the test in which it is, and the method.
STUCK_DRIVERS = [
    ("WaitsWithTheGil", "test_waiting_releases_the_gil[stream]", "stream_synchronize"),
    ("WaitsWithTheGil", "test_waiting_releases_the_gil[event]", "event_synchronize"),
    ("WaitsWithTheGil", "test_waiting_releases_the_gil[device]", "synchronize"),
    ("WaitsWithTheGil", "test_waiting_releases_the_gil[copy]", "copy"),
    ("NeverCloses", "test_info_is_fixed", "close"),
]


@pytest.fixture(scope="module")
def stuck(tmp_path_factory: pytest.TempPathFactory) -> dict[str, subprocess.CompletedProcess[str]]:
    """What became of each stuck driver: all of them wait side by side."""
    folder = tmp_path_factory.mktemp("stuck")
    (folder / "test_stuck.py").write_text(STUCK)

    def ran(driver: str, test: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "pytest", "-q", "-p", "no:randomly", "-p", "no:cacheprovider"]
        return subprocess.run(
            [*command, f"test_stuck.py::TestStuck::{test}"],
            cwd=folder,
            env={**os.environ, "DRIVER": driver},
            capture_output=True,
            text=True,
            timeout=patience(140),
        )

    found = together(*(partial(ran, driver, test) for driver, test, _ in STUCK_DRIVERS), limit=140)
    return {method: each for (_, _, method), each in zip(STUCK_DRIVERS, found, strict=True)}


@pytest.mark.parametrize(("driver", "method"), [(each[0], each[2]) for each in STUCK_DRIVERS])
def test_a_stuck_driver_is_reported_with_its_stack(
    stuck: dict[str, subprocess.CompletedProcess[str]], driver: str, method: str
) -> None:
    """With the GIL kept, no thread of Python runs any more: the watchdog of the suite writes the stacks, and ends the process."""
    ran = stuck[method]
    assert ran.returncode == 1, ran.stdout
    assert "Timeout" in ran.stderr
    assert re.search(rf'wrong_drivers/\w+.py", line \d+ in {method}$', ran.stderr, re.MULTILINE), ran.stderr
    assert driver == "NeverCloses" or "in test_waiting_releases_the_gil" in ran.stderr


# -- backends ----------------------------------------------------------------------------------------------------------


class CountsTooManyDevices(HostBackend):
    def device_count(self) -> int:
        return super().device_count() + 1


class CountsNoDevice(HostBackend):
    def device_count(self) -> int:
        return 0


class OpensOneForAll(HostBackend):
    def open(self, ordinal: int) -> Driver:
        return super().open(0)


class NamesItselfOtherwise(HostBackend):
    name = "Host "


class SaysWhyItCannotBeUsed(HostBackend):
    asked = 0

    def unavailable(self) -> str | None:
        self.asked += 1
        return "no device" if self.asked > 1 else None


class NamesASettingInUpperCase(HostBackend):
    options: Mapping[str, str] = {**HostBackend.options, "FAST": "0 | 1: skip the checks"}


class SaysNothingOfASetting(HostBackend):
    options: Mapping[str, Any] = {**HostBackend.options, "fast": None}


class WantsItsSettings(HostBackend):
    def configure(self, options: Mapping[str, object]) -> None:
        super().configure({"strict": options["strict"], "devices": options["devices"]})


class TakesSettingsThatItLacks(HostBackend):
    def configure(self, options: Mapping[str, object]) -> None:
        super().configure({name: value for name, value in options.items() if name in self.options})


class TakesSettingsOfAnyType(HostBackend):
    def configure(self, options: Mapping[str, object]) -> None:
        devices = options.get("devices", 2)
        super().configure({**options, "strict": bool(options.get("strict", True)), "devices": int(devices == 2) + 1})


class KeepsWhatItRefuses(HostBackend):
    def configure(self, options: Mapping[str, object]) -> None:
        try:
            super().configure(options)
        except ConfigError:
            self._devices += 1
            raise


class RefusesAndIsUnavailable(HostBackend):
    refused = False

    def configure(self, options: Mapping[str, object]) -> None:
        self.refused = True
        super().configure(options)
        self.refused = False

    def unavailable(self) -> str | None:
        return "a setting was wrong" if self.refused else None


WRONG_BACKENDS: list[tuple[type[HostBackend], str, dict[str, Any]]] = [
    (CountsTooManyDevices, "test_every_device_that_is_counted_opens", {}),
    (CountsNoDevice, "test_backend_counts_its_devices", {}),
    (OpensOneForAll, "test_devices_are_told_apart", {}),
    (OpensOneForAll, "test_backend_refuses_a_device_it_does_not_have", {}),
    (NamesItselfOtherwise, "test_backend_names_itself", {}),
    (NamesASettingInUpperCase, "test_settings_have_names_in_lower_case_and_say_what_they_mean", {}),
    (SaysNothingOfASetting, "test_settings_have_names_in_lower_case_and_say_what_they_mean", {}),
    (SaysWhyItCannotBeUsed, "test_backend_counts_its_devices", {}),
    (TakesSettingsThatItLacks, "test_a_setting_of_unknown_name_or_wrong_type_is_refused", {"wrong": "name"}),
    (TakesSettingsOfAnyType, "test_a_setting_of_unknown_name_or_wrong_type_is_refused", {"wrong": "type"}),
    (KeepsWhatItRefuses, "test_a_setting_of_unknown_name_or_wrong_type_is_refused", {"wrong": "name"}),
    (RefusesAndIsUnavailable, "test_a_setting_of_unknown_name_or_wrong_type_is_refused", {"wrong": "type"}),
]


class BackendSuite(DriverTests):
    strict = True

    def __init__(self, backend: type[HostBackend]) -> None:
        self.backend = backend

    def make_backend(self) -> Backend:
        backend = self.backend()
        backend.configure({"strict": True, "devices": 2})
        return backend


@pytest.mark.parametrize(
    ("broken", "test", "arguments"), [pytest.param(*case, id=case[0].__name__) for case in WRONG_BACKENDS]
)
def test_a_broken_backend_fails_where_a_sound_one_does_not(
    broken: type[HostBackend], test: str, arguments: dict[str, Any]
) -> None:
    run(BackendSuite(HostBackend), test, arguments)
    with pytest.raises(FAILURES):
        run(BackendSuite(broken), test, arguments)


def test_a_backend_that_wants_its_settings_fails() -> None:
    BackendSuite(HostBackend).test_backend_can_be_used_with_nothing_set()
    with pytest.raises(FAILURES):
        BackendSuite(WantsItsSettings).test_backend_can_be_used_with_nothing_set()


# -- resources ---------------------------------------------------------------------------------------------------------


class Sound:
    """A correct resource that caches freed blocks by stream. Each subclass adds one fault."""

    stream_ordered = True

    def __init__(self) -> None:
        self.driver: Any = None
        self.kept: dict[tuple[int, int], list[int]] = {}

    def bind(self, driver: Driver) -> None:
        self.driver = driver

    def allocate(self, nbytes: int, stream: int) -> int:
        if nbytes == 0:
            return 0
        kept = self.kept.get((nbytes, stream))
        return kept.pop() if kept else self.driver.alloc(nbytes, stream)

    def deallocate(self, ptr: int, nbytes: int, stream: int) -> None:
        if ptr:
            self.kept.setdefault((nbytes, stream), []).append(ptr)

    @property
    def cached_bytes(self) -> int:
        return sum(nbytes * len(kept) for (nbytes, _), kept in self.kept.items())

    def trim(self, keep_bytes: int) -> None:
        self.driver.synchronize()
        for (nbytes, stream), kept in self.kept.items():
            while kept:
                self.driver.free(kept.pop(), nbytes, stream)
        self.kept = {}


class ForgetsStreams(Sound):
    def allocate(self, nbytes: int, stream: int) -> int:
        return super().allocate(nbytes, 0) if self.kept.get((nbytes, 0)) else super().allocate(nbytes, stream)

    def deallocate(self, ptr: int, nbytes: int, stream: int) -> None:
        super().deallocate(ptr, nbytes, 0)


class Waits(Sound):
    def deallocate(self, ptr: int, nbytes: int, stream: int) -> None:
        self.driver.stream_synchronize(stream)
        super().deallocate(ptr, nbytes, stream)


class NeverTrims(Sound):
    def trim(self, keep_bytes: int) -> None:
        pass


class Leaks(Sound):
    def deallocate(self, ptr: int, nbytes: int, stream: int) -> None:
        pass


class SharesBlocks(Sound):
    last, count = 0, 0

    def allocate(self, nbytes: int, stream: int) -> int:
        self.count += 1
        if self.count % 10:
            self.last = super().allocate(nbytes, stream)
        return self.last


class MisalignsBlocks(Sound):
    def allocate(self, nbytes: int, stream: int) -> int:
        return super().allocate(nbytes + 8, stream) + 8

    def deallocate(self, ptr: int, nbytes: int, stream: int) -> None:
        super().deallocate(ptr - 8, nbytes + 8, stream)


class TakesZero(Sound):
    def allocate(self, nbytes: int, stream: int) -> int:
        return super().allocate(max(nbytes, 1), stream)


class WrongSize(Sound):
    raises = True

    def trim(self, keep_bytes: int) -> None:
        self.driver.synchronize()
        for (nbytes, stream), kept in self.kept.items():
            for ptr in kept:
                self.driver.free(ptr, nbytes + 1, stream)
        self.kept = {}


class LosesWhatFailed(Sound):
    def allocate(self, nbytes: int, stream: int) -> int:
        ptr = super().allocate(nbytes, stream)
        if ptr:
            self.driver.fill(ptr, 0, 1, nbytes, stream)  # if this fails, the block is lost
        return ptr


BROKEN_RESOURCES: list[tuple[type[Sound], str, dict[str, Any]]] = [
    (ForgetsStreams, "test_stream_ordered_memory_reaches_no_other_stream_early", {"other": "created"}),
    (Waits, "test_stream_ordered_deallocate_does_not_wait", {}),
    (NeverTrims, "test_trim", {}),
    (Leaks, "test_deallocate_then_allocate", {}),
    (SharesBlocks, "test_live_blocks_never_overlap", {}),
    (MisalignsBlocks, "test_blocks_are_aligned_and_go_back_in_their_size", {"nbytes": 1000}),
    (TakesZero, "test_zero_bytes_are_address_zero", {}),
    (WrongSize, "test_blocks_are_aligned_and_go_back_in_their_size", {"nbytes": 1000}),
    (LosesWhatFailed, "test_every_failure_of_the_driver", {"repeat": False}),
]


class ResourceSuite(MemoryResourceTests):
    def __init__(self, resource: Callable[[], MemoryResource]) -> None:
        self.resource = resource

    def make_backend(self) -> Backend:
        backend = HostBackend()
        backend.configure({"strict": True})
        return backend

    def make_resource(self, driver: Driver) -> MemoryResource:
        return self.resource()


@pytest.mark.parametrize(
    ("broken", "test", "arguments"), [pytest.param(*case, id=case[0].__name__) for case in BROKEN_RESOURCES]
)
def test_a_broken_resource_fails_where_a_sound_one_does_not(
    broken: type[Sound], test: str, arguments: dict[str, Any], sound: Callable[..., None]
) -> None:
    sound(ResourceSuite(Sound), test, arguments)
    with pytest.raises(failures(broken)):
        run(ResourceSuite(broken), test, arguments)


# -- the suites as classes ---------------------------------------------------------------------------------------------


def test_the_base_class_is_not_collected() -> None:
    assert not DriverTests.__name__.startswith("Test")
    assert not MemoryResourceTests.__name__.startswith("Test")


@pytest.mark.parametrize("suite", [DriverTests, MemoryResourceTests])
def test_no_test_hides_another(suite: type) -> None:
    names = [name for base in suite.__mro__ for name in vars(base) if name.startswith("test_")]
    assert len(names) == len(set(names)), [name for name in names if names.count(name) > 1]


def test_hooks_must_be_filled_in() -> None:
    with pytest.raises(NotImplementedError, match="make_backend"):
        DriverTests().make_backend()
    with pytest.raises(NotImplementedError, match="make_resource"):
        MemoryResourceTests().make_resource(None)  # type: ignore[arg-type]
