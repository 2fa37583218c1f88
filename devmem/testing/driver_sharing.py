"""Optional: host memory that the device reaches, managed memory, other devices, other processes."""

from __future__ import annotations

import mmap
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import pytest

from devmem.spi.driver import (
    SupportsHostRegister,
    SupportsIpc,
    SupportsManaged,
    SupportsMapped,
    SupportsPeer,
)
from devmem.spi.errors import BackendError
from devmem.spi.types import Capability, CopyKind, MemoryKind

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


class PeerAndIpcChecks(ConformanceSuite):
    """Copies between devices, and handles for other processes."""

    def test_can_access_answers_for_every_device(self, fixture: DriverFixture) -> None:
        fixture.need(Capability.PEER)
        assert isinstance(fixture.driver, SupportsPeer)
        assert all(isinstance(fixture.driver.can_access(n), bool) for n in range(fixture.backend.device_count()))

    @pytest.mark.parametrize("outwards", [True, False])
    @pytest.mark.parametrize("blocking", [True, False])
    def test_copy_peer(self, fixture: DriverFixture, outwards: bool, blocking: bool) -> None:
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
        fixture.driver.copy_peer(
            dst[0] + 100, dst[1], src[0] + 3, src[1], 60_000, fixture.unheld_stream, blocking=blocking
        )
        fixture.driver.stream_synchronize(fixture.unheld_stream)
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


def whole_pages(pages: int) -> Bytes:
    """Page-aligned host memory that is not registered."""
    return np.frombuffer(mmap.mmap(-1, pages * mmap.PAGESIZE), np.uint8)
