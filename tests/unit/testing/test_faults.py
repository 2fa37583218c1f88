"""FaultyDriver, FaultyBackend, every_failure and StreamHold, over the strict host backend."""

from __future__ import annotations

import subprocess
import sys
import warnings
from collections.abc import Callable, Iterator

import pytest
from waits import patience, together

from devmem.backends.host.hooks import HostBackend
from devmem.spi.driver import PROTOCOLS, Configurable
from devmem.spi.errors import BackendError, ConfigError, DeviceLost, DevmemWarning, OutOfMemory, UnsupportedError
from devmem.spi.types import LEGACY_STREAM, MemoryKind
from devmem.testing import FaultyBackend, FaultyDriver, LiveCounts, StreamHold, every_failure, hold
from devmem.testing.stream_hold import entered

EMPTY = LiveCounts(0, 0, 0, 0)


@pytest.fixture
def backend() -> FaultyBackend:
    backend = FaultyBackend(HostBackend())
    backend.configure({"strict": True, "devices": 2})
    return backend


@pytest.fixture
def driver(backend: FaultyBackend) -> Iterator[FaultyDriver]:
    driver = backend.open(0)
    assert isinstance(driver, FaultyDriver)
    token = driver.enter()
    try:
        yield driver
    finally:
        driver.disarm()
        driver.exit(token)
        driver.close()


class TestLiveCounts:
    def test_counts_what_is_live(self, driver: FaultyDriver) -> None:
        assert driver.live() == EMPTY
        ptr, pinned = driver.alloc(1000, LEGACY_STREAM), driver.alloc(24, LEGACY_STREAM, MemoryKind.PINNED)
        stream, event = driver.stream_create(0, True), driver.event_create(False)
        assert driver.live() == (1024, 2, 1, 1)
        assert driver.blocks() == {ptr: (1000, MemoryKind.DEVICE), pinned: (24, MemoryKind.PINNED)}
        driver.free(ptr, 1000, LEGACY_STREAM)
        driver.free(pinned, 24, LEGACY_STREAM, MemoryKind.PINNED)
        driver.stream_destroy(stream)
        driver.event_destroy(event)
        assert driver.live() == EMPTY
        assert not driver.mistakes

    def test_counts_stream_ordered_memory(self, driver: FaultyDriver) -> None:
        ptr = driver.alloc_async(1000, LEGACY_STREAM)
        assert driver.live() == (1000, 1, 0, 0)
        driver.free_async(ptr, 1000, LEGACY_STREAM)
        assert driver.live() == EMPTY

    @pytest.mark.parametrize(
        ("nbytes", "kind", "said"),
        [(999, MemoryKind.DEVICE, "1000 bytes of device"), (1000, MemoryKind.PINNED, "1000 bytes of device")],
    )
    def test_notes_what_comes_back_wrongly(
        self, driver: FaultyDriver, nbytes: int, kind: MemoryKind, said: str
    ) -> None:
        ptr = driver.alloc(1000, LEGACY_STREAM)
        with pytest.raises(BackendError):
            driver.free(ptr, nbytes, LEGACY_STREAM, kind)
            raise BackendError("the inner driver need not notice")
        assert len(driver.mistakes) == 1
        assert said in driver.mistakes[0]

    def test_notes_double_frees(self, driver: FaultyDriver) -> None:
        ptr, event = driver.alloc(1000, LEGACY_STREAM), driver.event_create(False)
        driver.free(ptr, 1000, LEGACY_STREAM)
        driver.event_destroy(event)
        with pytest.raises(BackendError):
            driver.free(ptr, 1000, LEGACY_STREAM)
        with pytest.raises(BackendError):
            driver.event_destroy(event)
        assert len(driver.mistakes) == 2

    def test_closing_forgets_what_was_live(self, backend: FaultyBackend) -> None:
        driver = backend.open(1)
        with entered(driver):
            driver.alloc(1000, LEGACY_STREAM)
        assert backend.live() == (1000, 1, 0, 0)
        driver.close()
        assert backend.live() == EMPTY

    def test_threads_may_call_a_faulty_driver_at_once(self, driver: FaultyDriver) -> None:
        def work() -> None:
            with entered(driver):
                for _ in range(200):
                    driver.free(driver.alloc(100, LEGACY_STREAM), 100, LEGACY_STREAM)

        together(*[work] * 8)
        assert driver.calls["alloc"] == driver.calls["free"] == 1600
        assert driver.live() == EMPTY
        assert not driver.mistakes


class TestShape:
    def test_has_the_capabilities_of_the_inner_driver(self, driver: FaultyDriver) -> None:
        assert driver.info.capabilities == driver.inner.info.capabilities
        for protocol in PROTOCOLS.values():
            assert isinstance(driver, protocol) == isinstance(driver.inner, protocol)

    def test_is_named_after_its_backend(self, driver: FaultyDriver) -> None:
        assert driver.info.backend == "faulty"
        assert driver.inner.info.backend == "host"
        assert FaultyDriver(driver.inner).info == driver.inner.info

    def test_backend_is_configurable(self, backend: FaultyBackend) -> None:
        assert isinstance(backend, Configurable)
        assert backend.unavailable() is None
        assert backend.device_count() == 2

    def test_lacks_what_the_inner_driver_lacks(self, driver: FaultyDriver) -> None:
        with pytest.raises(AttributeError):
            driver.launch  # noqa: B018


class TestFailing:
    def test_the_nth_call_of_any_method(self, driver: FaultyDriver) -> None:
        driver.fail_at(3)
        ptr = driver.alloc(100, LEGACY_STREAM)
        driver.memory_info()
        with pytest.raises(BackendError) as caught:
            driver.fill(ptr, 0, 1, 100, LEGACY_STREAM)
        driver.fill(ptr, 0, 1, 100, LEGACY_STREAM)
        error = caught.value
        assert (error.backend, error.call, error.code, error.name) == ("faulty", "fill", -1, "INJECTED")
        assert not isinstance(error, OutOfMemory)
        assert driver.injected == ["fill"]

    def test_the_nth_call_of_one_method(self, driver: FaultyDriver) -> None:
        driver.fail_at(2, "alloc")
        driver.memory_info()
        driver.alloc(100, LEGACY_STREAM)
        driver.memory_info()
        with pytest.raises(OutOfMemory):
            driver.alloc(100, LEGACY_STREAM)
        driver.alloc(100, LEGACY_STREAM)
        assert driver.live().blocks == 2

    def test_repeat_and_disarm(self, driver: FaultyDriver) -> None:
        driver.fail_at(2, "event_create", repeat=True)
        driver.event_create(False)
        for _ in range(3):
            with pytest.raises(BackendError):
                driver.event_create(False)
        driver.disarm()
        driver.event_create(False)
        assert driver.injected == ["event_create"] * 3
        assert driver.live().events == 2

    def test_any_error_can_be_raised(self, driver: FaultyDriver) -> None:
        driver.fail_at(1, error=DeviceLost("gone"))
        with pytest.raises(DeviceLost, match="gone"):
            driver.synchronize()
        driver.fail_at(1, error=lambda method: KeyError(method))
        with pytest.raises(KeyError, match="synchronize"):
            driver.synchronize()

    def test_counts_start_at_one(self, driver: FaultyDriver) -> None:
        with pytest.raises(ValueError, match="from 1"):
            driver.fail_at(0)

    def test_failed_calls_do_not_reach_the_driver(self, driver: FaultyDriver) -> None:
        free, _ = driver.memory_info()
        driver.fail_at(1, "alloc")
        with pytest.raises(OutOfMemory):
            driver.alloc(1000, LEGACY_STREAM)
        assert driver.memory_info()[0] == free
        assert driver.live() == EMPTY

    def test_what_gives_back_has_given_back(self, driver: FaultyDriver) -> None:
        free, _ = driver.memory_info()
        ptr, pool = driver.alloc(1000, LEGACY_STREAM), driver.alloc_async(1000, LEGACY_STREAM)
        stream, event = driver.stream_create(0, True), driver.event_create(False)
        calls: dict[str, Callable[[], object]] = {
            "free": lambda: driver.free(ptr, 1000, LEGACY_STREAM),
            "free_async": lambda: driver.free_async(pool, 1000, LEGACY_STREAM),
            "stream_destroy": lambda: driver.stream_destroy(stream),
            "event_destroy": lambda: driver.event_destroy(event),
        }
        for method, call in calls.items():
            driver.fail_at(1, method)
            with pytest.raises(BackendError, match=method):
                call()
        driver.disarm()
        driver.synchronize()
        assert driver.live() == EMPTY
        assert driver.memory_info()[0] == free
        for call in calls.values():
            with pytest.raises(BackendError):
                call()  # the inner driver does not know it any more

    def test_exit_restores_and_then_fails(self, driver: FaultyDriver) -> None:
        token = driver.enter()
        driver.fail_at(1, "exit")
        with pytest.raises(BackendError):
            driver.exit(token)
        driver.memory_info()  # the outer one is still entered

    def test_opening_can_be_made_to_fail(self, backend: FaultyBackend) -> None:
        backend.fail_at(1, "open")
        with pytest.raises(BackendError):
            backend.open(0)
        assert backend.drivers == {}

    def test_one_plan_for_all_devices(self, backend: FaultyBackend) -> None:
        one, two = backend.open(0), backend.open(1)
        backend.fail_at(2, "memory_info")
        with entered(one):
            one.memory_info()
        with entered(two), pytest.raises(BackendError):
            two.memory_info()
        assert backend.injected == ["memory_info"]
        assert backend.calls["memory_info"] == 2
        assert backend.mistakes() == []
        one.close()
        two.close()


class TestEveryFailure:
    def good(self, driver: FaultyDriver) -> None:
        """Makes three driver calls; a failure of any of them leaks nothing."""
        ptr = driver.alloc(100, LEGACY_STREAM)
        try:
            driver.fill(ptr, 0, 1, 100, LEGACY_STREAM)
        finally:
            driver.free(ptr, 100, LEGACY_STREAM)

    def test_fails_each_call_once(self, driver: FaultyDriver) -> None:
        seen = []

        def check() -> None:
            seen.append(driver.injected)
            assert driver.live() == EMPTY

        assert every_failure(lambda: self.good(driver), driver, check=check) == 3
        assert seen == [["alloc"], ["fill"], ["free"], []]

    def test_the_loop_finds_a_leak(self, driver: FaultyDriver) -> None:
        def leaky() -> None:
            ptr = driver.alloc(100, LEGACY_STREAM)
            driver.fill(ptr, 0, 1, 100, LEGACY_STREAM)
            driver.free(ptr, 100, LEGACY_STREAM)

        def check() -> None:
            assert driver.live() == EMPTY

        with pytest.raises(AssertionError) as caught:
            every_failure(leaky, driver, check=check)
        assert "fill" in caught.value.__notes__[0]
        assert "run 2" in caught.value.__notes__[0]

    def test_other_errors_are_failures_of_the_test(self, driver: FaultyDriver) -> None:
        def clumsy() -> None:
            try:
                self.good(driver)
            except BackendError as error:
                raise KeyError("lost") from error

        with pytest.raises(KeyError) as caught:
            every_failure(clumsy, driver, check=lambda: None)
        assert "run 1, in which alloc failed" in caught.value.__notes__[0]

    def test_errors_that_were_not_injected_are_failures_of_the_test(self, driver: FaultyDriver) -> None:
        def broken() -> None:
            raise BackendError("of its own")

        with pytest.raises(BackendError, match="of its own"):
            every_failure(broken, driver, check=lambda: None)

    def test_handled_failures_and_warnings_pass(self, driver: FaultyDriver) -> None:
        def careful() -> None:
            try:
                driver.memory_info()
            except BackendError:
                warnings.warn("could not ask", DevmemWarning, stacklevel=1)

        assert every_failure(careful, driver, check=lambda: None) == 1

    def test_the_loop_gives_up_after_its_limit(self, driver: FaultyDriver) -> None:
        with pytest.raises(AssertionError, match="2 runs"):
            every_failure(lambda: self.good(driver), driver, check=lambda: None, limit=2)

    def test_is_disarmed_afterwards(self, driver: FaultyDriver) -> None:
        def fatal() -> None:
            driver.memory_info()

        with pytest.raises(ZeroDivisionError):
            every_failure(fatal, driver, check=lambda: 1 // 0)
        driver.memory_info()


class TestStreamHold:
    def test_holds_until_released(self, driver: FaultyDriver) -> None:
        stream, ptr = driver.stream_create(0, True), driver.alloc(100, LEGACY_STREAM)
        with StreamHold(driver, stream) as held:
            driver.fill(ptr, 0, 1, 100, stream)
            assert not driver.stream_query(stream)
            held.release()
            held.release()
            driver.stream_synchronize(stream)
        assert not held.expired

    def test_expires_when_a_call_waits_for_it(self, driver: FaultyDriver) -> None:
        stream, ptr = driver.stream_create(0, True), driver.alloc(100, LEGACY_STREAM)
        waited = pytest.raises(AssertionError, match=r"waited for the held stream(?s:.*)test_faults")
        with waited, StreamHold(driver, stream, patience=0.01):
            driver.fill(ptr, 0, 1, 100, stream)
            driver.stream_synchronize(stream)
        with StreamHold(driver, stream, patience=0.01, tolerant=True) as held:
            driver.fill(ptr, 0, 1, 100, stream)
            driver.stream_synchronize(stream)
        assert held.expired

    def test_does_not_hide_an_error(self, driver: FaultyDriver) -> None:
        stream, ptr = driver.stream_create(0, True), driver.alloc(100, LEGACY_STREAM)
        with pytest.raises(ZeroDivisionError), StreamHold(driver, stream, patience=0.01):
            driver.fill(ptr, 0, 1, 100, stream)
            driver.stream_synchronize(stream)
            raise ZeroDivisionError
        driver.stream_synchronize(stream)

    def test_hold_takes_what_has_a_device_and_a_handle(self, driver: FaultyDriver) -> None:
        class Device:
            def driver(self) -> FaultyDriver:
                return driver

        class Stream:
            device = Device()
            handle = driver.stream_create(0, True)

        with hold(Stream()):
            driver.event_record(driver.event_create(False), Stream.handle)
            assert not driver.stream_query(Stream.handle)

    def test_needs_the_capability(self) -> None:
        class Plain:
            info = HostBackend().open(0).info

        with pytest.raises(UnsupportedError, match="hold"):
            StreamHold(Plain(), 5)  # type: ignore[arg-type]


def test_importing_the_package_does_not_import_pytest() -> None:
    code = "import sys, devmem.testing as t; assert 'pytest' not in sys.modules; assert 'DriverTests' in dir(t)"
    subprocess.run([sys.executable, "-c", code], check=True, timeout=patience(140))


def test_unknown_names_are_attribute_errors() -> None:
    import devmem.testing

    with pytest.raises(AttributeError, match="Nothing"):
        devmem.testing.Nothing  # noqa: B018
    assert all(hasattr(devmem.testing, name) for name in devmem.testing.__all__)


def test_a_backend_without_settings_takes_none() -> None:
    class Plain:
        name, spi_version, open, device_count = "plain", 2, HostBackend.open, HostBackend.device_count

        def unavailable(self) -> None:
            return None

    backend = FaultyBackend(Plain())  # type: ignore[arg-type]
    backend.configure({})
    with pytest.raises(ConfigError, match="'faulty' has no setting 'fast'; it has: none"):
        backend.configure({"fast": "1"})
