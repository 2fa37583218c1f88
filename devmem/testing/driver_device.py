"""Opening, entering and closing a device; what it says of itself; many threads at once."""

from __future__ import annotations

import dataclasses
import itertools

import numpy as np
import pytest

from devmem.spi import SPI_VERSION
from devmem.spi.driver import PROTOCOLS
from devmem.spi.errors import DevmemError
from devmem.spi.types import LEGACY_STREAM, PER_THREAD_STREAM, Capability, CopyKind, MemoryKind

from .driver_fixture import Harness, Rig, address, pattern, same
from .stream_hold import entered

THREADS = 8


class DeviceChecks(Harness):
    # -- the backend ---------------------------------------------------------------------------------------------------

    def test_backend_names_itself(self, rig: Rig) -> None:
        assert rig.backend.name and isinstance(rig.backend.name, str)
        assert rig.backend.name == rig.backend.name.strip().lower()
        assert 1 <= rig.backend.spi_version <= SPI_VERSION

    def test_backend_counts_its_devices(self, rig: Rig) -> None:
        assert rig.backend.unavailable() is None
        assert rig.backend.device_count() > self.ordinal

    def test_backend_refuses_a_device_it_does_not_have(self, rig: Rig) -> None:
        rig.need_strict()
        with pytest.raises(DevmemError):
            rig.backend.open(rig.backend.device_count())

    def test_open_again_gives_a_fresh_driver(self) -> None:
        data = pattern(10_000)
        seen = []
        for _ in range(3):
            with self.opened() as rig:
                seen.append(rig.driver)
                assert same(rig.read(rig.device(data), data.size), data)
        assert len({id(driver) for driver in seen}) == len(seen)

    def test_close_drops_what_was_not_freed(self) -> None:
        with self.opened() as rig:
            rig.need_strict()
            before, _ = rig.driver.memory_info()
            rig.driver.stream_create(0, True)
            rig.driver.event_create(True)
            rig.driver.alloc(1 << 20, LEGACY_STREAM)
        with self.opened() as rig:
            assert rig.driver.memory_info()[0] == before

    # -- what the device says of itself --------------------------------------------------------------------------------

    def test_info_is_complete(self, rig: Rig) -> None:
        info = rig.driver.info
        assert info.backend == rig.backend.name
        assert info.ordinal == self.ordinal
        assert info.name and info.uuid
        assert info.total_bytes > 0 and info.warp_size >= 1
        assert MemoryKind.DEVICE in info.memory_kinds
        assert all(isinstance(kind, MemoryKind) for kind in info.memory_kinds)
        assert all(isinstance(value, str | int | float | bool) for value in info.facts.values())

    def test_info_is_fixed(self, rig: Rig) -> None:
        info = rig.driver.info
        rig.alloc(1 << 20)
        assert rig.driver.info == info
        with pytest.raises(dataclasses.FrozenInstanceError):
            info.name = "other"  # type: ignore[misc]

    def test_stream_priorities_are_least_then_greatest(self, rig: Rig) -> None:
        least, greatest = rig.driver.info.stream_priorities
        assert least >= greatest, "smaller numbers run first"

    def test_devices_are_told_apart(self, rig: Rig) -> None:
        other = rig.neighbour()
        assert other.driver.info.uuid != rig.driver.info.uuid
        assert other.driver.info.ordinal != rig.driver.info.ordinal

    @pytest.mark.parametrize("capability", list(Capability))
    def test_declared_capability_has_its_methods(self, rig: Rig, capability: Capability) -> None:
        rig.need(capability)
        assert isinstance(rig.driver, PROTOCOLS[capability]), f"{capability} needs {PROTOCOLS[capability].__name__}"

    def test_capabilities_imply_their_memory(self, rig: Rig) -> None:
        info = rig.driver.info
        assert (MemoryKind.MAPPED in info.memory_kinds) <= (Capability.MAPPED in info.capabilities), (
            "mapped memory is of no use to the device without device_pointer()"
        )
        assert (Capability.MANAGED in info.capabilities) <= (MemoryKind.MANAGED in info.memory_kinds)

    # -- enter and exit ------------------------------------------------------------------------------------------------

    def test_enter_nests(self, rig: Rig) -> None:
        data = pattern(1000)
        outer = rig.driver.enter()
        inner = rig.driver.enter()
        ptr = rig.device(data)
        rig.driver.exit(inner)
        assert same(rig.read(ptr, data.size), data)
        rig.driver.exit(outer)
        assert same(rig.read(ptr, data.size), data)

    def test_exit_restores_the_device_that_was_current(self, rig: Rig) -> None:
        other = rig.neighbour()
        mine, theirs = pattern(5000, 1), pattern(5000, 2)
        with entered(other.driver):
            there = other.device(theirs)
            with entered(rig.driver):
                here = rig.device(mine)
            assert same(other.read(there, theirs.size), theirs)
        again = rig.device(mine)
        assert same(rig.read(here, mine.size), mine)
        assert same(rig.read(again, mine.size), mine)

    def test_allocation_comes_from_the_entered_device(self, rig: Rig) -> None:
        rig.need_strict()
        other = rig.neighbour()
        nbytes = 1 << 20
        with entered(other.driver):
            before = other.driver.memory_info()[0]
            with entered(rig.driver):
                rig.alloc(nbytes)
            assert other.driver.memory_info()[0] == before
            other.alloc(nbytes)
            assert other.driver.memory_info()[0] <= before - nbytes

    def test_exit_restores_by_the_side_door(self, rig: Rig) -> None:
        current = self.current()
        if current is NotImplemented:
            pytest.skip("no side door to what is current")
        with entered(rig.driver):
            assert self.current() == current
            if rig.backend.device_count() > 1:
                with entered(rig.neighbour().driver):
                    assert self.current() != current
                assert self.current() == current
        assert self.current() == current

    def test_exit_after_an_error(self, rig: Rig) -> None:
        with pytest.raises(ZeroDivisionError), entered(rig.driver):
            raise ZeroDivisionError
        assert rig.driver.stream_query(rig.stream())

    def test_enter_is_per_thread(self, rig: Rig) -> None:
        data = pattern(1000)
        ptr = rig.device(data)
        rig.start(lambda: same(rig.read(ptr, data.size), data)).finish()
        assert same(rig.read(ptr, data.size), data)

    # -- threads -------------------------------------------------------------------------------------------------------

    def test_threads_with_their_own_streams(self, rig: Rig) -> None:
        driver = rig.driver

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

        rig.together(THREADS, work)

    @pytest.mark.parametrize("shared", ["created", "legacy", "per-thread"])
    def test_threads_on_one_stream(self, rig: Rig, shared: str) -> None:
        driver = rig.driver
        stream = {"created": rig.side, "legacy": LEGACY_STREAM, "per-thread": PER_THREAD_STREAM}[shared]
        blocks = [rig.alloc(50_000) for _ in range(THREADS)]

        def work(number: int) -> None:
            ptr = blocks[number]
            for turn in range(20):
                data = pattern(50_000 - turn, seed=100 * number + turn)
                back = np.zeros_like(data)
                driver.copy(ptr, address(data), data.size, CopyKind.H2D, stream, blocking=False)
                driver.copy(address(back), ptr, data.size, CopyKind.D2H, stream, blocking=True)
                assert same(back, data)

        rig.together(THREADS, work)

    def test_threads_never_share_memory(self, rig: Rig) -> None:
        driver = rig.driver
        found: list[list[int]] = [[] for _ in range(THREADS)]

        def work(number: int) -> None:
            for _ in range(25):
                found[number].append(driver.alloc(4096, LEGACY_STREAM))

        rig.together(THREADS, work)
        everything = sorted(rig.adopt(ptr, 4096) for mine in found for ptr in mine)
        assert all(later - ptr >= 4096 for ptr, later in itertools.pairwise(everything))

    @pytest.mark.parametrize("how", ["stream", "event", "device", "copy"])
    def test_waiting_releases_the_gil(self, rig: Rig, how: str) -> None:
        """Were it kept, this thread could not let the stream go: a hang here is a failure."""
        driver, stream, event = rig.driver, rig.stream(), rig.event()
        source, back = rig.pinned(1000), np.zeros(1000, np.uint8)
        source[:] = pattern(1000)
        ptr = rig.alloc(1000)
        wait = {
            "stream": lambda: driver.stream_synchronize(stream),
            "event": lambda: driver.event_synchronize(event),
            "device": driver.synchronize,
            "copy": lambda: driver.copy(address(back), ptr, 1000, CopyKind.D2H, stream, blocking=True),
        }[how]
        with rig.hold(stream) as latch:
            driver.copy(ptr, address(source), 1000, CopyKind.H2D, stream, blocking=False)
            driver.event_record(event, stream)
            waiting = rig.start(wait)
            assert not waiting.done.wait(self.grace), "returned while the stream was held"
            latch.release()
            waiting.finish()
        assert same(rig.read(ptr, 1000), source)
