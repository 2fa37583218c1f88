"""Opening and closing a device, making it current, its information, and calls from many threads."""

from __future__ import annotations

import dataclasses
import itertools

import numpy as np
import pytest

from devmem.spi import SPI_VERSION
from devmem.spi.driver import PROTOCOLS, Configurable, Driver
from devmem.spi.errors import ConfigError, DevmemError
from devmem.spi.types import LEGACY_STREAM, PER_THREAD_STREAM, Capability, CopyKind, DeviceInfo, MemoryKind, Option
from devmem.toolkit.driver_parts import lacking

from .driver_fixture import THREADS, ConformanceSuite, DriverFixture, address, pattern, same
from .stream_hold import entered


class DeviceChecks(ConformanceSuite):
    # -- the backend ---------------------------------------------------------------------------------------------------

    def test_backend_names_itself(self, fixture: DriverFixture) -> None:
        assert fixture.backend.name and isinstance(fixture.backend.name, str)
        assert fixture.backend.name == fixture.backend.name.strip().lower()
        assert 1 <= fixture.backend.spi_version <= SPI_VERSION

    def test_settings_have_names_in_lower_case_and_say_what_they_mean(self, fixture: DriverFixture) -> None:
        backend = fixture.backend
        if not isinstance(backend, Configurable):
            pytest.skip("the backend has no settings")
        for name, meaning in backend.options.items():
            assert isinstance(name, str) and isinstance(meaning, str | Option), f"options: {name!r}: {meaning!r}"
            assert name and name == name.strip().lower(), f"options has {name!r}: names are in lower case"

    def test_backend_can_be_used_with_nothing_set(self) -> None:
        """``configure`` is called with an empty mapping where nothing is set."""
        backend = self.make_backend()
        if not isinstance(backend, Configurable):
            pytest.skip("the backend has no settings")
        try:
            backend.configure({})
        except Exception as error:  # of any kind: a KeyError is the likeliest
            pytest.fail(f"configure({{}}) raised {error!r}")

    @pytest.mark.parametrize("wrong", ["name", "type"])
    def test_a_setting_of_unknown_name_or_wrong_type_is_refused(self, fixture: DriverFixture, wrong: str) -> None:
        """The backend raises ConfigError, and nothing has changed."""
        backend = fixture.backend
        if not isinstance(backend, Configurable):
            pytest.skip("the backend has no settings")
        before = backend.device_count()
        for name in ["no_such_setting"] if wrong == "name" else backend.options:
            with pytest.raises(ConfigError):
                backend.configure({name: "1" if wrong == "name" else object()})
            assert backend.unavailable() is None
            assert backend.device_count() == before

    def test_backend_counts_its_devices(self, fixture: DriverFixture) -> None:
        assert fixture.backend.unavailable() is None
        assert fixture.backend.device_count() > self.ordinal

    def test_every_device_that_is_counted_opens(self, fixture: DriverFixture) -> None:
        for ordinal in range(fixture.backend.device_count()):
            if ordinal != self.ordinal:
                try:
                    driver = fixture.backend.open(ordinal)
                except DevmemError as error:
                    pytest.fail(
                        f"device_count() is {fixture.backend.device_count()}, but open({ordinal}) raised: {error}"
                    )
                assert driver.info.ordinal == ordinal
                driver.close()

    def test_backend_refuses_a_device_it_does_not_have(self, fixture: DriverFixture) -> None:
        fixture.need_strict()
        with pytest.raises(DevmemError):
            fixture.backend.open(fixture.backend.device_count())

    def test_open_again_gives_a_fresh_driver(self) -> None:
        data = pattern(10_000)
        seen = []
        for _ in range(3):
            with self.opened() as fixture:
                seen.append(fixture.driver)
                assert same(fixture.read(fixture.alloc_with(data), data.size), data)
        assert len({id(driver) for driver in seen}) == len(seen)

    def test_close_drops_what_was_not_freed(self) -> None:
        with self.opened() as fixture:
            fixture.need_strict()
            before, _ = fixture.driver.memory_info()
            fixture.driver.stream_create(0, True)
            fixture.driver.event_create(True)
            fixture.driver.alloc(1 << 20, LEGACY_STREAM)
        with self.opened() as fixture:
            assert fixture.driver.memory_info()[0] == before

    # -- device information --------------------------------------------------------------------------------------------

    def test_info_is_complete(self, fixture: DriverFixture) -> None:
        info = fixture.driver.info
        assert isinstance(info, DeviceInfo)
        assert info.backend == fixture.backend.name, "info.backend must be the backend's name"
        assert info.ordinal == self.ordinal
        assert info.name and info.uuid
        assert info.total_bytes > 0 and info.warp_size >= 1
        assert info.alignment >= 64 and info.alignment & (info.alignment - 1) == 0
        assert MemoryKind.DEVICE in info.memory_kinds
        assert all(isinstance(kind, MemoryKind) for kind in info.memory_kinds)
        assert all(isinstance(value, str | int | float | bool) for value in info.facts.values())

    def test_info_is_fixed(self, fixture: DriverFixture) -> None:
        info = fixture.driver.info
        fixture.alloc(1 << 20)
        assert fixture.driver.info == info
        with pytest.raises(dataclasses.FrozenInstanceError):
            info.name = "other"  # type: ignore[misc]

    def test_stream_priorities_are_least_then_greatest(self, fixture: DriverFixture) -> None:
        least, greatest = fixture.driver.info.stream_priorities
        assert least >= greatest, "smaller numbers run first"

    def test_devices_are_told_apart(self, fixture: DriverFixture) -> None:
        other = fixture.other_device()
        assert other.driver.info.uuid != fixture.driver.info.uuid
        assert other.driver.info.ordinal != fixture.driver.info.ordinal

    def test_driver_has_every_method(self, fixture: DriverFixture) -> None:
        missing = lacking(fixture.driver, Driver)
        assert not missing, f"methods of devmem.spi.driver.Driver that the driver lacks: {', '.join(missing)}"

    def test_declared_capabilities_are_known(self, fixture: DriverFixture) -> None:
        unknown = fixture.driver.info.capabilities - set(Capability)
        assert not unknown, f"not in devmem.spi.types.Capability: {sorted(unknown)}"

    def test_numbers_of_default_streams_name_default_streams(self, fixture: DriverFixture) -> None:
        """In ``Exchange.streams``: numbers greater than 2 are handles, and no two default streams have one number."""
        streams = fixture.driver.info.exchange.streams
        for number, handle in (streams or {}).items():
            assert 0 <= number <= 2, f"{number} is no default stream's number"
            assert handle in (LEGACY_STREAM, PER_THREAD_STREAM), (
                f"{number} stands for {handle}, which is no default stream"
            )
        assert streams is None or len(set(streams.values())) == len(streams)

    @pytest.mark.parametrize("capability", list(Capability))
    def test_declared_capability_has_its_methods(self, fixture: DriverFixture, capability: Capability) -> None:
        fixture.need(capability)
        missing = lacking(fixture.driver, PROTOCOLS[capability])
        assert not missing, f"{capability} needs {', '.join(missing)} of {PROTOCOLS[capability].__name__}"

    def test_capabilities_imply_their_memory(self, fixture: DriverFixture) -> None:
        info = fixture.driver.info
        assert (MemoryKind.MAPPED in info.memory_kinds) <= (Capability.MAPPED in info.capabilities), (
            "mapped memory is of no use to the device without device_pointer()"
        )
        assert (Capability.POOL_CONTROL in info.capabilities) <= (Capability.STREAM_ORDERED in info.capabilities)
        assert (Capability.MANAGED in info.capabilities) <= (MemoryKind.MANAGED in info.memory_kinds)

    # -- enter and exit ------------------------------------------------------------------------------------------------

    def test_enter_nests(self, fixture: DriverFixture) -> None:
        data = pattern(1000)
        outer = fixture.driver.enter()
        inner = fixture.driver.enter()
        ptr = fixture.alloc_with(data)
        fixture.driver.exit(inner)
        assert same(fixture.read(ptr, data.size), data)
        fixture.driver.exit(outer)
        assert same(fixture.read(ptr, data.size), data)

    def test_exit_restores_the_device_that_was_current(self, fixture: DriverFixture) -> None:
        other = fixture.other_device()
        own_data, other_data = pattern(5000, 1), pattern(5000, 2)
        with entered(other.driver):
            there = other.alloc_with(other_data)
            with entered(fixture.driver):
                here = fixture.alloc_with(own_data)
            assert same(other.read(there, other_data.size), other_data)
        again = fixture.alloc_with(own_data)
        assert same(fixture.read(here, own_data.size), own_data)
        assert same(fixture.read(again, own_data.size), own_data)

    def test_allocation_comes_from_the_entered_device(self, fixture: DriverFixture) -> None:
        fixture.need_strict()
        other = fixture.other_device()
        nbytes = 1 << 20
        with entered(other.driver):
            before = other.driver.memory_info()[0]
            with entered(fixture.driver):
                fixture.alloc(nbytes)
            assert other.driver.memory_info()[0] == before
            other.alloc(nbytes)
            assert other.driver.memory_info()[0] <= before - nbytes

    def test_exit_restores_what_the_vendor_reports_as_current(self, fixture: DriverFixture) -> None:
        current = self.current()
        if current is NotImplemented:
            pytest.skip("the suite cannot ask the vendor what is current")
        with entered(fixture.driver):
            assert self.current() == current
            if fixture.backend.device_count() > 1:
                with entered(fixture.other_device().driver):
                    assert self.current() != current
                assert self.current() == current
        assert self.current() == current

    def test_exit_after_an_error(self, fixture: DriverFixture) -> None:
        with pytest.raises(ZeroDivisionError), entered(fixture.driver):
            raise ZeroDivisionError
        assert fixture.driver.stream_query(fixture.stream())

    def test_enter_is_per_thread(self, fixture: DriverFixture) -> None:
        data = pattern(1000)
        ptr = fixture.alloc_with(data)
        fixture.run_in_thread(lambda: same(fixture.read(ptr, data.size), data)).finish()
        assert same(fixture.read(ptr, data.size), data)

    # -- threads -------------------------------------------------------------------------------------------------------

    def test_threads_with_their_own_streams(self, fixture: DriverFixture) -> None:
        driver = fixture.driver

        def work(number: int) -> None:
            stream = driver.stream_create(0, True)
            event = driver.event_create(False)
            for turn in range(20):
                data = pattern(1 + 977 * (turn + number), seed=100 * number + turn)
                back = np.zeros_like(data)
                ptr = driver.alloc(data.size, stream)
                driver.copy(ptr, address(data), data.size, CopyKind.H2D, stream, blocking=False)
                driver.event_record(event, stream)
                driver.copy(address(back), ptr, data.size, CopyKind.D2H, stream, blocking=True)
                assert driver.event_query(event)
                driver.free(ptr, data.size, stream)
                assert same(back, data)
            driver.event_destroy(event)
            driver.stream_destroy(stream)

        fixture.run_in_threads(THREADS, work)

    @pytest.mark.parametrize("shared", ["created", "legacy", "per-thread"])
    def test_threads_on_one_stream(self, fixture: DriverFixture, shared: str) -> None:
        driver = fixture.driver
        stream = fixture.stream_of_kind(shared)
        blocks = [fixture.alloc(50_000) for _ in range(THREADS)]

        def work(number: int) -> None:
            ptr = blocks[number]
            for turn in range(20):
                data = pattern(50_000 - turn, seed=100 * number + turn)
                back = np.zeros_like(data)
                driver.copy(ptr, address(data), data.size, CopyKind.H2D, stream, blocking=False)
                driver.copy(address(back), ptr, data.size, CopyKind.D2H, stream, blocking=True)
                assert same(back, data)

        fixture.run_in_threads(THREADS, work)

    def test_threads_never_share_memory(self, fixture: DriverFixture) -> None:
        driver = fixture.driver
        found: list[list[int]] = [[] for _ in range(THREADS)]

        def work(number: int) -> None:
            for _ in range(25):
                found[number].append(driver.alloc(4096, LEGACY_STREAM))

        fixture.run_in_threads(THREADS, work)
        everything = sorted(fixture.free_at_end(ptr, 4096) for mine in found for ptr in mine)
        assert all(later - ptr >= 4096 for ptr, later in itertools.pairwise(everything))

    @pytest.mark.parametrize("how", ["stream", "event", "device", "copy"])
    def test_waiting_releases_the_gil(self, fixture: DriverFixture, how: str) -> None:
        """A wait that kept the GIL would hang the test, as this thread could not release the stream."""
        driver, stream, event = fixture.driver, fixture.stream(), fixture.event()
        source, back = fixture.pinned(1000), np.zeros(1000, np.uint8)
        source[:] = pattern(1000)
        ptr = fixture.alloc(1000)
        wait = {
            "stream": lambda: driver.stream_synchronize(stream),
            "event": lambda: driver.event_synchronize(event),
            "device": driver.synchronize,
            "copy": lambda: driver.copy(address(back), ptr, 1000, CopyKind.D2H, stream, blocking=True),
        }[how]
        with fixture.hold(stream) as hold:
            driver.copy(ptr, address(source), 1000, CopyKind.H2D, stream, blocking=False)
            driver.event_record(event, stream)
            waiting = fixture.run_in_thread(wait)
            assert not waiting.done.wait(self.grace), "returned while the stream was held"
            hold.release()
            waiting.finish()
        assert same(fixture.read(ptr, 1000), source)
