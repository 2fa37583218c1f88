"""Optional: host memory that the device reaches, managed memory, other devices, other processes."""

from __future__ import annotations

import mmap
import os
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import pytest

from devmem.spi.driver import (
    SupportsHostRegister,
    SupportsIpc,
    SupportsManaged,
    SupportsManagedPlaces,
    SupportsMapped,
    SupportsPeer,
    SupportsPeerAccess,
    SupportsPeerEvents,
    SupportsPointerInfo,
    SupportsPoolIpc,
    SupportsStreamOrdered,
    SupportsVirtual,
)
from devmem.spi.errors import BackendError, LayoutError, UnsupportedError
from devmem.spi.types import Capability, CopyKind, MemoryKind, Place, PlaceKind

from .driver_fixture import Bytes, ConformanceSuite, DriverFixture, address, flip, pattern, same, view
from .driver_memory import check_error
from .stream_hold import entered


class HostMemoryChecks(ConformanceSuite):
    """Registered and mapped host memory."""

    @contextmanager
    def registered(self, fixture: DriverFixture, pages: int, *, mapped: bool = False) -> Iterator[Bytes]:
        fixture.need(Capability.HOST_REGISTER)
        assert isinstance(fixture.driver, SupportsHostRegister)
        host = whole_pages(pages)
        fixture.driver.host_register(address(host), host.size, mapped)
        try:
            yield host
        finally:
            fixture.driver.host_unregister(address(host), host.size)

    def test_registered_memory_keeps_its_bytes(self, fixture: DriverFixture) -> None:
        fixture.need(Capability.HOST_REGISTER)
        with self.registered(fixture, 5) as host:
            data = pattern(host.size)
            host[:] = data
            ptr = fixture.alloc_with(host)
            assert same(fixture.read(ptr, host.size), data)
            fixture.write(ptr, flip(data))
            fixture.driver.copy(address(host), ptr, host.size, CopyKind.D2H, fixture.unheld_stream, blocking=True)
            assert same(host, flip(data))
        assert same(host, flip(data))

    def test_registered_memory_is_pinned(self, fixture: DriverFixture) -> None:
        stream = fixture.stream()
        with self.registered(fixture, 3) as host:
            data = pattern(host.size - 100)
            part = host[50:-50]
            part[:] = flip(data, 0x55)
            ptr = fixture.alloc_with(data)
            with fixture.hold(stream) as hold:
                running = fixture.driver.copy(address(part), ptr, part.size, CopyKind.D2H, stream, blocking=False)
                assert running is True
                assert same(part, flip(data, 0x55))
                hold.release()
                fixture.driver.stream_synchronize(stream)
            assert same(part, data)

    def test_register_again_and_adjacent(self, fixture: DriverFixture) -> None:
        fixture.need(Capability.HOST_REGISTER)
        assert isinstance(fixture.driver, SupportsHostRegister)
        host = whole_pages(4)
        half, ptr = host.size // 2, address(host)
        for _ in range(20):
            fixture.driver.host_register(ptr, half, False)
            fixture.driver.host_register(ptr + half, half, False)
            fixture.driver.host_unregister(ptr, half)
            fixture.driver.host_register(ptr, half, False)
            fixture.driver.host_unregister(ptr + half, half)
            fixture.driver.host_unregister(ptr, half)
        data = pattern(host.size)
        host[:] = data
        assert same(fixture.read(fixture.alloc_with(host), host.size), data), (
            "the array is usable after host_unregister"
        )

    def test_register_twice_and_unregister_unknown(self, fixture: DriverFixture) -> None:
        fixture.need_strict()
        with self.registered(fixture, 2) as host:
            assert isinstance(fixture.driver, SupportsHostRegister)
            with pytest.raises(BackendError) as caught:
                fixture.driver.host_register(address(host), host.size, False)
            check_error(caught.value, fixture)
        with pytest.raises(BackendError) as caught:
            fixture.driver.host_unregister(address(host), host.size)
        check_error(caught.value, fixture)

    def test_registered_for_every_device(self, fixture: DriverFixture) -> None:
        """Memory that one device registered is page-locked for all devices, and no device can register it again."""
        fixture.need_strict()
        with self.registered(fixture, 2) as host:
            other = fixture.other_device()
            assert isinstance(other.driver, SupportsHostRegister)
            data = pattern(host.size)
            host[:] = flip(data, 0x55)
            with entered(other.driver):
                ptr, stream = other.alloc_with(data), other.stream()
                with pytest.raises(BackendError) as caught:
                    other.driver.host_register(address(host), host.size, False)
                check_error(caught.value, other)
                with other.hold(stream) as hold:
                    assert (
                        other.driver.copy(address(host), ptr, host.size, CopyKind.D2H, stream, blocking=False) is True
                    )
                    assert same(host, flip(data, 0x55))
                    hold.release()
                    other.driver.stream_synchronize(stream)
            assert same(host, data)

    def test_unregistering_keeps_work_enqueued_before(self, fixture: DriverFixture) -> None:
        fixture.need(Capability.HOST_REGISTER)
        assert isinstance(fixture.driver, SupportsHostRegister)
        driver, host, stream = fixture.driver, whole_pages(2), fixture.stream()
        data = pattern(host.size)
        host[:] = data
        ptr = fixture.alloc_with(flip(data))
        driver.host_register(address(host), host.size, False)
        fixture.driver.copy(ptr, address(host), host.size, CopyKind.H2D, stream, blocking=False)
        fixture.driver.stream_synchronize(stream)
        driver.host_unregister(address(host), host.size)
        assert same(fixture.read(ptr, host.size), data)

    # -- mapped --------------------------------------------------------------------------------------------------------

    @pytest.mark.parametrize("how", ["allocated", "registered"])
    def test_mapped_memory_has_an_address_for_the_device(self, fixture: DriverFixture, how: str) -> None:
        fixture.need(Capability.MAPPED)
        assert isinstance(fixture.driver, SupportsMapped)
        driver, data = fixture.driver, pattern(8192)
        with self.mapped(fixture, how) as host:
            host[:] = data
            seen = driver.device_pointer(address(host))
            assert isinstance(seen, int) and seen
            ptr = fixture.alloc(host.size)
            fixture.driver.copy(ptr, seen, host.size, CopyKind.D2D, fixture.unheld_stream, blocking=True)
            assert same(fixture.read(ptr, host.size), data), "the device reads what the host wrote"
            fixture.driver.fill(seen + 256, 0xBEEF, 2, 128, fixture.unheld_stream)
            fixture.driver.stream_synchronize(fixture.unheld_stream)
            data[256:512] = np.full(128, 0xBEEF, "=u2").view(np.uint8)
            assert same(host, data), "the host reads what the device wrote"

    @contextmanager
    def mapped(self, fixture: DriverFixture, how: str) -> Iterator[Bytes]:
        if how == "allocated":
            yield fixture.pinned(8192, MemoryKind.MAPPED)
        else:
            with self.registered(fixture, 8192 // mmap.PAGESIZE + 1, mapped=True) as host:
                yield host[:8192]


class ManagedChecks(ConformanceSuite):
    def test_managed_memory_has_one_address(self, fixture: DriverFixture) -> None:
        fixture.need_kind(MemoryKind.MANAGED)
        ptr, data = fixture.alloc(100_000, MemoryKind.MANAGED), pattern(100_000)
        host = view(ptr, 100_000)
        fixture.driver.synchronize()
        host[:] = data
        other = fixture.alloc(100_000)
        fixture.driver.copy(other, ptr, 100_000, CopyKind.D2D, fixture.unheld_stream, blocking=True)
        assert same(fixture.read(other, 100_000), data)
        fixture.driver.fill(ptr, 0x1234_5678, 4, 25_000, fixture.unheld_stream)
        fixture.driver.synchronize()
        assert same(host, np.full(25_000, 0x1234_5678, "=u4").view(np.uint8))

    def test_hints_do_not_change_bytes(self, fixture: DriverFixture) -> None:
        fixture.need(Capability.MANAGED)
        assert isinstance(fixture.driver, SupportsManaged)
        driver, ptr, data = fixture.driver, fixture.alloc(1 << 20, MemoryKind.MANAGED), pattern(1 << 20)
        host = view(ptr, 1 << 20)
        host[:] = data
        for to_host in (False, True):
            driver.prefetch(ptr, 1 << 20, to_host, fixture.unheld_stream)
            for advice in ("read_mostly", "preferred_location", "accessed_by"):
                driver.advise(ptr, 1 << 20, f"set_{advice}", to_host)
                driver.advise(ptr, 1 << 20, f"unset_{advice}", to_host)
        fixture.driver.synchronize()
        assert same(host, data)

    @pytest.mark.parametrize("kind", list(PlaceKind))
    def test_hints_for_places_do_not_change_bytes(self, fixture: DriverFixture, kind: PlaceKind) -> None:
        driver, stream, to = self.places(fixture), fixture.stream(), Place(kind)
        if kind is PlaceKind.DEVICE:
            to = Place(kind, fixture.driver.info.ordinal)
        ptr, data = fixture.alloc(1 << 20, MemoryKind.MANAGED), pattern(1 << 20)
        host = view(ptr, 1 << 20)
        host[:] = data
        try:
            driver.prefetch_to([ptr, ptr + 65_536], [65_536, 4096], to, stream, discard=False)
            driver.advise_for(ptr, 1 << 20, "set_preferred_location", to)
            driver.advise_for(ptr, 1 << 20, "unset_preferred_location", to)
        except UnsupportedError:
            assert kind is PlaceKind.NUMA_NODE
        fixture.driver.synchronize()
        assert same(host, data)

    @pytest.mark.parametrize("moved", [False, True])
    def test_discarded_memory_is_written_again_and_no_other_changes(self, fixture: DriverFixture, moved: bool) -> None:
        driver, stream = self.places(fixture), fixture.stream()
        ptr, data = fixture.alloc(1 << 20, MemoryKind.MANAGED), pattern(1 << 20)
        host = view(ptr, 1 << 20)
        host[:] = data
        try:
            if moved:
                driver.prefetch_to([ptr], [65_536], Place(PlaceKind.HOST), stream, discard=True)
            else:
                driver.discard([ptr], [65_536], stream)
        except UnsupportedError as lacking:
            pytest.skip(str(lacking))
        fixture.driver.fill(ptr, 7, 1, 65_536, stream)
        fixture.driver.stream_synchronize(stream)
        assert same(host[:65_536], np.full(65_536, 7, np.uint8))
        assert same(host[65_536:], data[65_536:])

    def places(self, fixture: DriverFixture) -> SupportsManagedPlaces:
        fixture.need(Capability.MANAGED_PLACES)
        assert isinstance(fixture.driver, SupportsManagedPlaces)
        return fixture.driver


class PeerAndIpcChecks(ConformanceSuite):
    """Copies between devices, and handles for other processes."""

    def test_can_access_answers_for_every_device(self, fixture: DriverFixture) -> None:
        fixture.need(Capability.PEER)
        assert isinstance(fixture.driver, SupportsPeer)
        assert all(isinstance(fixture.driver.can_access(n), bool) for n in range(fixture.backend.device_count()))

    @pytest.mark.parametrize("outwards", [True, False])
    @pytest.mark.parametrize("blocking", [True, False])
    def test_copy_peer_reaches_the_other_device(self, fixture: DriverFixture, outwards: bool, blocking: bool) -> None:
        fixture.need(Capability.PEER)
        other = fixture.other_device()
        assert isinstance(fixture.driver, SupportsPeer)
        here, there = fixture.driver.info.ordinal, other.driver.info.ordinal
        if not fixture.driver.can_access(there):
            pytest.skip(f"device {here} has no path to device {there}")
        own_data, other_data = pattern(70_000, 1), pattern(70_000, 2)
        ptr = fixture.alloc_with(own_data)
        with entered(other.driver):
            far = other.alloc_with(other_data)
        dst, src = ((far, there), (ptr, here)) if outwards else ((ptr, here), (far, there))
        stream = fixture.stream()  # no read of this test waits for it
        fixture.driver.copy_peer(dst[0] + 100, dst[1], src[0] + 3, src[1], 60_000, stream, blocking=blocking)
        if not blocking:
            fixture.driver.stream_synchronize(stream)
        if outwards:
            other_data[100:60_100] = own_data[3:60_003]
        else:
            own_data[100:60_100] = other_data[3:60_003]
        assert same(fixture.read(ptr, 70_000), own_data)
        with entered(other.driver):
            assert same(other.read(far, 70_000), other_data)

    def test_copy_peer_is_ordered_on_its_stream(self, fixture: DriverFixture) -> None:
        fixture.need(Capability.PEER)
        other, stream = fixture.other_device(), fixture.stream()
        assert isinstance(fixture.driver, SupportsPeer)
        here, there = fixture.driver.info.ordinal, other.driver.info.ordinal
        if not fixture.driver.can_access(there):
            pytest.skip(f"device {here} has no path to device {there}")
        ptr, data = fixture.alloc_with(pattern(1000)), pattern(1000, 1)
        with entered(other.driver):
            far = other.alloc_with(data)
        with fixture.hold(stream) as hold:
            fixture.driver.copy_peer(ptr, here, far, there, 1000, stream, blocking=False)
            assert fixture.stays_pending(stream)
            assert same(fixture.read(ptr, 1000), pattern(1000))
            hold.release()
            fixture.driver.stream_synchronize(stream)
        assert same(fixture.read(ptr, 1000), data)

    @pytest.mark.parametrize("outwards", [True, False])
    def test_blocking_copy_peer_waits_for_earlier_work(self, fixture: DriverFixture, outwards: bool) -> None:
        fixture.need(Capability.PEER)
        other, driver, stream = fixture.other_device(), fixture.driver, fixture.stream()
        assert isinstance(driver, SupportsPeer)
        here, there = driver.info.ordinal, other.driver.info.ordinal
        if not driver.can_access(there):
            pytest.skip(f"device {here} has no path to device {there}")
        data = pattern(1000)
        ptr = fixture.alloc_with(data if outwards else flip(data))
        with entered(other.driver):
            far = other.alloc_with(flip(data) if outwards else data)
        sides = (far, there, ptr, here) if outwards else (ptr, here, far, there)
        with fixture.hold(stream) as hold:
            copying = fixture.run_in_thread(lambda: driver.copy_peer(*sides, 1000, stream, blocking=True))
            assert not copying.done.wait(self.grace), "a blocking copy_peer returned while its stream was held"
            hold.release()
            copying.finish()
        if outwards:
            with entered(other.driver):
                assert same(other.read(far, 1000), data)
        else:
            assert same(fixture.read(ptr, 1000), data)

    def test_a_stream_waits_for_an_event_of_another_device(self, fixture: DriverFixture) -> None:
        """The host does not, and the event may be recorded again meanwhile."""
        fixture.need(Capability.PEER_EVENTS)
        other, driver = fixture.other_device(), fixture.driver
        assert isinstance(driver, SupportsPeerEvents)
        stream, ptr = fixture.stream(), fixture.alloc_with(pattern(1000))
        with entered(other.driver):
            far, event = other.stream(), other.event()
            hold = other.hold(far)
        with hold:
            with entered(other.driver):
                other.driver.event_record(event, far)
            driver.stream_wait_peer(stream, event, other.driver.info.ordinal)
            with entered(other.driver):
                other.driver.event_record(event, other.unheld_stream)
            driver.fill(ptr, 7, 1, 1000, stream)
            assert fixture.stays_pending(stream)
            assert same(fixture.read(ptr, 1000), pattern(1000))
            hold.release()
            driver.stream_synchronize(stream)
        assert same(fixture.read(ptr, 1000), np.full(1000, 7, np.uint8))

    def test_peer_access_is_switched_on_and_off(self, fixture: DriverFixture) -> None:
        """Either may be asked for twice, and a copy works after both."""
        fixture.need(Capability.PEER, Capability.PEER_ACCESS)
        other, driver = fixture.other_device(), fixture.driver
        assert isinstance(driver, SupportsPeer)
        assert isinstance(driver, SupportsPeerAccess)
        here, there = driver.info.ordinal, other.driver.info.ordinal
        if not driver.can_access(there):
            pytest.skip(f"device {here} has no path to device {there}")
        with entered(other.driver):
            far = other.alloc_with(pattern(1000, 1))
        for enabled in (True, True, False, False, True):
            driver.peer_access(there, enabled)
            ptr = fixture.alloc_with(pattern(1000))
            driver.copy_peer(ptr, here, far, there, 1000, fixture.unheld_stream, blocking=True)
            assert same(fixture.read(ptr, 1000), pattern(1000, 1)), f"after peer_access({there}, {enabled})"

    def test_ipc_handles_are_bytes(self, fixture: DriverFixture) -> None:
        """Opening a handle needs another process, which this suite does not start."""
        fixture.need(Capability.IPC)
        assert isinstance(fixture.driver, SupportsIpc)
        data = pattern(10_000)
        one, two = fixture.alloc_with(data), fixture.alloc_with(data)
        handles = [fixture.driver.ipc_export(ptr) for ptr in (one, two)]
        assert all(isinstance(handle, bytes) and handle for handle in handles)
        assert handles[0] != handles[1]
        assert same(fixture.read(one, 10_000), data)

    def test_the_descriptor_of_a_pool_is_the_callers(self, fixture: DriverFixture) -> None:
        """Opening needs another process. Each call makes a descriptor, which may be closed; blocks differ in their data."""
        fixture.need(Capability.POOL_IPC)
        driver, stream = fixture.driver, fixture.stream()
        assert isinstance(driver, SupportsPoolIpc)
        assert isinstance(driver, SupportsStreamOrdered)
        blocks = [driver.alloc_async(10_000, stream) for _ in range(2)]
        try:
            descriptors = [driver.pool_descriptor() for _ in range(2)]
            assert descriptors[0] != descriptors[1]
            for each in descriptors:
                os.fstat(each)
                os.close(each)
            data = [driver.pool_export(ptr) for ptr in blocks]
            assert all(isinstance(each, bytes) and each for each in data)
            assert data[0] != data[1]
            assert data[0] == driver.pool_export(blocks[0])
        finally:
            for ptr in blocks:
                driver.free_async(ptr, 10_000, stream)
        os.close(driver.pool_descriptor())

    def test_virtual_memory_is_there_as_long_as_it_is_mapped(self, fixture: DriverFixture) -> None:
        """It is opened by this process here: the same bytes at another address. Each descriptor may be closed."""
        fixture.need(Capability.VIRTUAL)
        driver, stream = fixture.driver, fixture.stream()
        assert isinstance(driver, SupportsVirtual)
        assert driver.virtual_alloc(0, stream) == 0
        ptr, data = driver.virtual_alloc(10_000, stream), pattern(10_000)
        try:
            found = driver.virtual_range(ptr + 9_999)
            assert found is not None and found[0] == ptr and found[1] >= 10_000
            fixture.write(ptr, data)
            descriptors = [driver.virtual_share(ptr) for _ in range(2)]
            assert all(isinstance(each, int) for each in descriptors) and descriptors[0] != descriptors[1]
            other = driver.virtual_open(descriptors[0], found[1])
            for each in descriptors:
                os.close(int(each))
        finally:
            driver.virtual_free(ptr, 10_000, stream)
        try:
            assert other != ptr
            assert same(fixture.read(other, 10_000), data)
        finally:
            driver.virtual_free(other, found[1], stream)
        assert driver.virtual_range(ptr) is None and driver.virtual_range(other) is None

    def test_virtual_memory_that_was_not_shared_is_not_opened(self, fixture: DriverFixture) -> None:
        """Neither another file, nor more bytes than there are, nor a fabric handle that is none; and nothing is left behind."""
        fixture.need(Capability.VIRTUAL)
        driver, stream = fixture.driver, fixture.stream()
        assert isinstance(driver, SupportsVirtual)
        ptr = driver.virtual_alloc(10_000, stream)
        found, descriptor = driver.virtual_range(ptr), int(driver.virtual_share(ptr))
        assert found is not None
        unrelated = os.open(os.devnull, os.O_RDWR)
        try:
            for given, nbytes in ((unrelated, found[1]), (descriptor, 2 * found[1]), (bytes(64), found[1])):
                with pytest.raises(BackendError) as caught:
                    driver.virtual_open(given, nbytes)
                check_error(caught.value, fixture)
            with pytest.raises(LayoutError, match="64 bytes"):
                driver.virtual_open(b"short", found[1])
            for wrong in (ptr + 512, 4096):
                with pytest.raises(BackendError):
                    driver.virtual_free(wrong, 10_000, stream)
        finally:
            os.close(unrelated)
            os.close(descriptor)
            driver.virtual_free(ptr, 10_000, stream)


class PointerChecks(ConformanceSuite):
    """Tests of the driver's knowledge of an address."""

    def test_pointer_range_is_the_allocation_around_an_address(self, fixture: DriverFixture) -> None:
        driver, ptr = self.knowing(fixture), fixture.alloc(10_000)
        for at in (0, 1, 9_999):
            found = driver.pointer_range(ptr + at)
            assert found is not None, f"{at} bytes into an allocation"
            start, nbytes = found
            assert start <= ptr and ptr + 10_000 <= start + nbytes
        assert found == driver.pointer_range(ptr), "every address of an allocation has one range"

    def test_pointer_device_is_the_one_that_allocated(self, fixture: DriverFixture) -> None:
        driver, ptr = self.knowing(fixture), fixture.alloc(10_000)
        assert driver.pointer_device(ptr) == driver.pointer_device(ptr + 9_999) == fixture.driver.info.ordinal

    def test_pageable_memory_is_no_devices(self, fixture: DriverFixture) -> None:
        host = pattern(10_000)
        assert self.knowing(fixture).pointer_device(address(host)) is None

    def test_freed_memory_is_in_no_allocation(self, fixture: DriverFixture) -> None:
        driver, ptr = self.knowing(fixture), fixture.alloc(8 << 20)
        fixture.free(ptr)
        assert driver.pointer_range(ptr + (7 << 20)) is None

    def knowing(self, fixture: DriverFixture) -> SupportsPointerInfo:
        fixture.need(Capability.POINTER_INFO)
        assert isinstance(fixture.driver, SupportsPointerInfo)
        return fixture.driver


def whole_pages(pages: int) -> Bytes:
    """Page-aligned host memory that is not registered."""
    return np.frombuffer(mmap.mmap(-1, pages * mmap.PAGESIZE), np.uint8)
