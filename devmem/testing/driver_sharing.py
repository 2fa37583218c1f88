"""Optional: memory that others see too, the host, another device, another process; and the small ones."""

from __future__ import annotations

import mmap
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import pytest

from devmem.spi.driver import (
    SupportsCapture,
    SupportsHostRegister,
    SupportsIpc,
    SupportsManaged,
    SupportsMapped,
    SupportsPeer,
)
from devmem.spi.errors import BackendError
from devmem.spi.types import Capability, CopyKind, MemoryKind

from .driver_fixture import Bytes, Harness, Rig, address, flip, pattern, same, view
from .driver_memory import described
from .driver_optional import streams
from .stream_hold import entered


class HostMemoryChecks(Harness):
    """Registered and mapped host memory."""

    @contextmanager
    def registered(self, rig: Rig, pages: int, *, mapped: bool = False) -> Iterator[Bytes]:
        rig.need(Capability.HOST_REGISTER)
        assert isinstance(rig.driver, SupportsHostRegister)
        host = whole_pages(pages)
        rig.driver.host_register(address(host), host.size, mapped)
        try:
            yield host
        finally:
            rig.driver.host_unregister(address(host), host.size)

    def test_registered_memory_keeps_its_bytes(self, rig: Rig) -> None:
        rig.need(Capability.HOST_REGISTER)
        with self.registered(rig, 5) as host:
            data = pattern(host.size)
            host[:] = data
            ptr = rig.device(host)
            assert same(rig.read(ptr, host.size), data)
            rig.write(ptr, flip(data))
            rig.driver.copy(address(host), ptr, host.size, CopyKind.D2H, rig.side, blocking=True)
            assert same(host, flip(data))
        assert same(host, flip(data))

    def test_registered_memory_is_pinned(self, rig: Rig) -> None:
        stream = rig.stream()
        with self.registered(rig, 3) as host:
            data = pattern(host.size - 100)
            part = host[50:-50]
            part[:] = flip(data, 0x55)
            ptr = rig.device(data)
            with rig.hold(stream) as latch:
                running = rig.driver.copy(address(part), ptr, part.size, CopyKind.D2H, stream, blocking=False)
                assert running is True
                assert same(part, flip(data, 0x55))
                latch.release()
                rig.driver.stream_synchronize(stream)
            assert same(part, data)

    def test_register_again_and_beside(self, rig: Rig) -> None:
        rig.need(Capability.HOST_REGISTER)
        assert isinstance(rig.driver, SupportsHostRegister)
        host = whole_pages(4)
        half, ptr = host.size // 2, address(host)
        for _ in range(20):
            rig.driver.host_register(ptr, half, False)
            rig.driver.host_register(ptr + half, half, False)
            rig.driver.host_unregister(ptr, half)
            rig.driver.host_register(ptr, half, False)
            rig.driver.host_unregister(ptr + half, half)
            rig.driver.host_unregister(ptr, half)
        data = pattern(host.size)
        host[:] = data
        assert same(rig.read(rig.device(host), host.size), data), "an ordinary array again"

    def test_register_twice_and_unregister_unknown(self, rig: Rig) -> None:
        rig.need_strict()
        with self.registered(rig, 2) as host:
            assert isinstance(rig.driver, SupportsHostRegister)
            with pytest.raises(BackendError) as caught:
                rig.driver.host_register(address(host), host.size, False)
            described(caught.value, rig)
        with pytest.raises(BackendError) as caught:
            rig.driver.host_unregister(address(host), host.size)
        described(caught.value, rig)

    def test_registered_for_every_device(self, rig: Rig) -> None:
        """What one device has locked is pinned for the others too, and nobody can lock it again."""
        rig.need_strict()
        with self.registered(rig, 2) as host:
            other = rig.neighbour()
            assert isinstance(other.driver, SupportsHostRegister)
            data = pattern(host.size)
            host[:] = flip(data, 0x55)
            with entered(other.driver):
                ptr, stream = other.device(data), other.stream()
                with pytest.raises(BackendError) as caught:
                    other.driver.host_register(address(host), host.size, False)
                described(caught.value, other)
                with other.hold(stream) as latch:
                    assert (
                        other.driver.copy(address(host), ptr, host.size, CopyKind.D2H, stream, blocking=False) is True
                    )
                    assert same(host, flip(data, 0x55))
                    latch.release()
                    other.driver.stream_synchronize(stream)
            assert same(host, data)

    def test_unregistering_keeps_work_enqueued_before(self, rig: Rig) -> None:
        rig.need(Capability.HOST_REGISTER)
        assert isinstance(rig.driver, SupportsHostRegister)
        driver, host, stream = rig.driver, whole_pages(2), rig.stream()
        data = pattern(host.size)
        host[:] = data
        ptr = rig.device(flip(data))
        driver.host_register(address(host), host.size, False)
        rig.driver.copy(ptr, address(host), host.size, CopyKind.H2D, stream, blocking=False)
        rig.driver.stream_synchronize(stream)
        driver.host_unregister(address(host), host.size)
        assert same(rig.read(ptr, host.size), data)

    # -- mapped --------------------------------------------------------------------------------------------------------

    @pytest.mark.parametrize("how", ["allocated", "registered"])
    def test_mapped_memory_has_an_address_for_the_device(self, rig: Rig, how: str) -> None:
        rig.need(Capability.MAPPED)
        assert isinstance(rig.driver, SupportsMapped)
        driver, data = rig.driver, pattern(8192)
        with self.mapped(rig, how) as host:
            host[:] = data
            seen = driver.device_pointer(address(host))
            assert isinstance(seen, int) and seen
            ptr = rig.alloc(host.size)
            rig.driver.copy(ptr, seen, host.size, CopyKind.D2D, rig.side, blocking=True)
            assert same(rig.read(ptr, host.size), data), "the device reads what the host wrote"
            rig.driver.fill(seen + 256, 0xBEEF, 2, 128, rig.side)
            rig.driver.stream_synchronize(rig.side)
            data[256:512] = np.full(128, 0xBEEF, "=u2").view(np.uint8)
            assert same(host, data), "the host reads what the device wrote"

    @contextmanager
    def mapped(self, rig: Rig, how: str) -> Iterator[Bytes]:
        if how == "allocated":
            yield rig.pinned(8192, MemoryKind.MAPPED)
        else:
            with self.registered(rig, 8192 // mmap.PAGESIZE + 1, mapped=True) as host:
                yield host[:8192]


class ManagedChecks(Harness):
    def test_managed_memory_has_one_address(self, rig: Rig) -> None:
        rig.need_kind(MemoryKind.MANAGED)
        ptr, data = rig.alloc(100_000, MemoryKind.MANAGED), pattern(100_000)
        host = view(ptr, 100_000)
        rig.driver.synchronize()
        host[:] = data
        other = rig.alloc(100_000)
        rig.driver.copy(other, ptr, 100_000, CopyKind.D2D, rig.side, blocking=True)
        assert same(rig.read(other, 100_000), data)
        rig.driver.fill(ptr, 0x1234_5678, 4, 25_000, rig.side)
        rig.driver.synchronize()
        assert same(host, np.full(25_000, 0x1234_5678, "=u4").view(np.uint8))

    def test_hints_do_not_change_bytes(self, rig: Rig) -> None:
        rig.need(Capability.MANAGED)
        assert isinstance(rig.driver, SupportsManaged)
        driver, ptr, data = rig.driver, rig.alloc(1 << 20, MemoryKind.MANAGED), pattern(1 << 20)
        host = view(ptr, 1 << 20)
        host[:] = data
        for to_host in (False, True):
            driver.prefetch(ptr, 1 << 20, to_host, rig.side)
            for advice in ("read_mostly", "preferred_location", "accessed_by"):
                driver.advise(ptr, 1 << 20, f"set_{advice}", to_host)
                driver.advise(ptr, 1 << 20, f"unset_{advice}", to_host)
        rig.driver.synchronize()
        assert same(host, data)


class NeighbourChecks(Harness):
    """Other devices and other processes."""

    def test_can_access_answers_for_every_device(self, rig: Rig) -> None:
        rig.need(Capability.PEER)
        assert isinstance(rig.driver, SupportsPeer)
        assert all(isinstance(rig.driver.can_access(n), bool) for n in range(rig.backend.device_count()))

    @pytest.mark.parametrize("outwards", [True, False])
    @pytest.mark.parametrize("blocking", [True, False])
    def test_copy_peer(self, rig: Rig, outwards: bool, blocking: bool) -> None:
        rig.need(Capability.PEER)
        other = rig.neighbour()
        assert isinstance(rig.driver, SupportsPeer)
        here, there = rig.driver.info.ordinal, other.driver.info.ordinal
        if not rig.driver.can_access(there):
            pytest.skip(f"device {here} has no path to device {there}")
        mine, theirs = pattern(70_000, 1), pattern(70_000, 2)
        ptr = rig.device(mine)
        with entered(other.driver):
            far = other.device(theirs)
        dst, src = ((far, there), (ptr, here)) if outwards else ((ptr, here), (far, there))
        rig.driver.copy_peer(dst[0] + 100, dst[1], src[0] + 3, src[1], 60_000, rig.side, blocking=blocking)
        rig.driver.stream_synchronize(rig.side)
        if outwards:
            theirs[100:60_100] = mine[3:60_003]
        else:
            mine[100:60_100] = theirs[3:60_003]
        assert same(rig.read(ptr, 70_000), mine)
        with entered(other.driver):
            assert same(other.read(far, 70_000), theirs)

    def test_copy_peer_is_ordered_on_its_stream(self, rig: Rig) -> None:
        rig.need(Capability.PEER)
        other, stream = rig.neighbour(), rig.stream()
        assert isinstance(rig.driver, SupportsPeer)
        here, there = rig.driver.info.ordinal, other.driver.info.ordinal
        if not rig.driver.can_access(there):
            pytest.skip(f"device {here} has no path to device {there}")
        ptr, data = rig.device(pattern(1000)), pattern(1000, 1)
        with entered(other.driver):
            far = other.device(data)
        with rig.hold(stream) as latch:
            rig.driver.copy_peer(ptr, here, far, there, 1000, stream, blocking=False)
            assert rig.waiting(stream)
            assert same(rig.read(ptr, 1000), pattern(1000))
            latch.release()
            rig.driver.stream_synchronize(stream)
        assert same(rig.read(ptr, 1000), data)

    def test_ipc_handles_are_bytes(self, rig: Rig) -> None:
        """Opening needs another process, which a general suite cannot make for every vendor."""
        rig.need(Capability.IPC)
        assert isinstance(rig.driver, SupportsIpc)
        data = pattern(10_000)
        one, two = rig.device(data), rig.device(data)
        handles = [rig.driver.ipc_export(ptr) for ptr in (one, two)]
        assert all(isinstance(handle, bytes) and handle for handle in handles)
        assert handles[0] != handles[1]
        assert same(rig.read(one, 10_000), data)

    @pytest.mark.parametrize("which", ["created", "per-thread"])
    def test_streams_do_not_capture_by_themselves(self, rig: Rig, which: str) -> None:
        rig.need(Capability.CAPTURE)
        assert isinstance(rig.driver, SupportsCapture)
        assert rig.driver.capturing(streams(rig)[which]) is False


def whole_pages(pages: int) -> Bytes:
    """Page-aligned host memory that no driver has heard of."""
    return np.frombuffer(mmap.mmap(-1, pages * mmap.PAGESIZE), np.uint8)
