"""Allocating, freeing, and what the device says is left."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from devmem.spi.errors import BackendError, OutOfMemory
from devmem.spi.types import LEGACY_STREAM, PER_THREAD_STREAM, AllocFlags, CopyKind, MemoryKind

from .driver_fixture import Harness, Rig, address, pattern, same, view

#: More than any address space holds.
ABSURD = 1 << 60

HOST_KINDS = (MemoryKind.PINNED, MemoryKind.MAPPED, MemoryKind.MANAGED)


class MemoryChecks(Harness):
    @pytest.mark.parametrize("kind", list(MemoryKind))
    def test_alloc_is_aligned(self, rig: Rig, kind: MemoryKind) -> None:
        rig.need_kind(kind)
        for nbytes in (1, 3, 255, 256, 257, 4095, 4097, 65_537, 1 << 20, (3 << 20) + 1):
            ptr = rig.alloc(nbytes, kind)
            assert isinstance(ptr, int)
            assert ptr > 0 and ptr % 256 == 0, f"{ptr:#x} for {nbytes} bytes"

    @pytest.mark.parametrize("kind", list(MemoryKind))
    def test_alloc_gives_distinct_memory(self, rig: Rig, kind: MemoryKind) -> None:
        rig.need_kind(kind)
        sizes = [1 + 397 * n for n in range(64)]
        blocks = sorted((rig.alloc(nbytes, kind), nbytes) for nbytes in sizes)
        for (ptr, nbytes), (later, _) in itertools.pairwise(blocks):
            assert ptr + nbytes <= later, f"{nbytes} bytes at {ptr:#x} reach into {later:#x}"

    def test_alloc_keeps_blocks_apart(self, rig: Rig) -> None:
        written = [(rig.alloc(1 + 397 * n), pattern(1 + 397 * n, seed=n)) for n in range(48)]
        for ptr, data in written:
            rig.write(ptr, data)
        for ptr, data in written:
            assert same(rig.read(ptr, data.size), data)

    def test_alloc_is_usable_to_its_last_byte(self, rig: Rig) -> None:
        for nbytes in (1, 1000, 4096, 65_537, 2 << 20):
            data = pattern(nbytes)
            ptr = rig.alloc(nbytes)
            rig.write(ptr + nbytes - 1, data[-1:])
            assert same(rig.read(ptr + nbytes - 1, 1), data[-1:])

    @pytest.mark.parametrize("home", ["created", "legacy", "per-thread"])
    def test_alloc_is_usable_at_once_from_every_stream(self, rig: Rig, home: str) -> None:
        created = rig.stream()
        stream = {"created": created, "legacy": LEGACY_STREAM, "per-thread": PER_THREAD_STREAM}[home]
        data = pattern(10_000)
        ptr = rig.alloc(data.size, stream=stream)
        for user in (rig.stream(), rig.stream(non_blocking=False), LEGACY_STREAM, PER_THREAD_STREAM):
            back = np.zeros_like(data)
            rig.driver.copy(ptr, address(data), data.size, CopyKind.H2D, user, blocking=True)
            rig.driver.copy(address(back), ptr, data.size, CopyKind.D2H, user, blocking=True)
            assert same(back, data)

    def test_alloc_does_not_need_its_stream_to_pass(self, rig: Rig) -> None:
        stream, data = rig.stream(), pattern(10_000)
        with rig.hold(stream, patience=1.0, tolerant=True):  # it may wait, for the device; it must be usable then
            ptr = rig.alloc(data.size, stream=stream)
            rig.write(ptr, data)
            assert same(rig.read(ptr, data.size), data)

    @pytest.mark.parametrize("kind", list(MemoryKind))
    def test_alloc_ignores_flags_that_mean_nothing(self, rig: Rig, kind: MemoryKind) -> None:
        rig.need_kind(kind)
        for flags in (*AllocFlags, AllocFlags.PORTABLE | AllocFlags.WRITE_COMBINED):
            ptr = rig.driver.alloc(1000, LEGACY_STREAM, kind, flags)
            rig.driver.free(ptr, 1000, LEGACY_STREAM, kind)

    @pytest.mark.parametrize("kind", HOST_KINDS)
    def test_host_kinds_are_memory_of_the_host(self, rig: Rig, kind: MemoryKind) -> None:
        rig.need_kind(kind)
        data, other = pattern(70_001), pattern(70_001, 1)
        host = view(rig.alloc(data.size, kind), data.size)
        host[:] = data
        assert same(host, data)
        ptr = rig.alloc(data.size)
        direction = CopyKind.D2D if kind is MemoryKind.MANAGED else CopyKind.H2D
        rig.driver.copy(ptr, address(host), data.size, direction, LEGACY_STREAM, blocking=True)
        assert same(rig.read(ptr, data.size), data)
        rig.write(ptr, other)
        direction = CopyKind.D2D if kind is MemoryKind.MANAGED else CopyKind.D2H
        rig.driver.copy(address(host), ptr, data.size, direction, LEGACY_STREAM, blocking=True)
        assert same(host, other)

    @pytest.mark.parametrize("kind", list(MemoryKind))
    def test_out_of_memory_hands_nothing_out(self, rig: Rig, kind: MemoryKind) -> None:
        rig.need_kind(kind)
        before, total = rig.driver.memory_info()
        for _ in range(3):
            with pytest.raises(OutOfMemory) as caught:
                rig.driver.alloc(ABSURD, LEGACY_STREAM, kind)
            described(caught.value, rig)
        after, _ = rig.driver.memory_info()
        assert after == before if self.strict else after > before - total // 4
        data = pattern(1000)
        assert same(rig.read(rig.device(data), data.size), data), "the device is usable afterwards"

    def test_more_than_the_device_has_is_out_of_memory(self, rig: Rig) -> None:
        with pytest.raises(OutOfMemory):
            rig.driver.alloc(rig.driver.memory_info()[1] + (1 << 20), LEGACY_STREAM)

    @pytest.mark.parametrize("kind", list(MemoryKind))
    def test_free_and_alloc_again(self, rig: Rig, kind: MemoryKind) -> None:
        rig.need_kind(kind)
        for turn in range(200):
            nbytes = 1 + 1013 * turn
            ptr = rig.driver.alloc(nbytes, LEGACY_STREAM, kind)
            rig.driver.free(ptr, nbytes, LEGACY_STREAM, kind)

    def test_free_in_any_order(self, rig: Rig) -> None:
        data = {rig.alloc(5000): pattern(5000, seed=n) for n in range(30)}
        for ptr, expected in data.items():
            rig.write(ptr, expected)
        order = list(data)
        for ptr in order[::2]:
            rig.free(ptr)
        for ptr in order[1::2]:
            assert same(rig.read(ptr, 5000), data[ptr])

    def test_free_leaves_work_enqueued_before_valid(self, rig: Rig) -> None:
        data = pattern(100_000)
        stream, ptr = rig.stream(), rig.device(data)
        back = rig.pinned(data.size)
        back[:] = 0
        nbytes, kind = rig.disown(ptr)
        with rig.hold(stream) as latch:
            rig.driver.copy(address(back), ptr, nbytes, CopyKind.D2H, stream, blocking=False)
            freeing = rig.start(lambda: rig.driver.free(ptr, nbytes, LEGACY_STREAM, kind))
            freeing.done.wait(self.grace)  # it may wait for the device, or not
            latch.release()
            freeing.finish()
            rig.driver.stream_synchronize(stream)
        assert same(back, data)

    def test_memory_info_is_plausible(self, rig: Rig) -> None:
        free, total = rig.driver.memory_info()
        assert isinstance(free, int) and isinstance(total, int)
        assert 0 < free <= total
        if self.strict:
            assert total == rig.driver.info.total_bytes

    def test_memory_info_follows_allocations(self, rig: Rig) -> None:
        free, _ = rig.driver.memory_info()
        nbytes = min(64 << 20, free // 4)
        # Other programs may use the same device: what has been seen once in a few turns is good enough.
        fell = rose = False
        for _ in range(1 if self.strict else 5):
            before, _ = rig.driver.memory_info()
            ptr = rig.alloc(nbytes)
            during, _ = rig.driver.memory_info()
            rig.free(ptr)
            after, _ = rig.driver.memory_info()
            fell, rose = fell or during <= before - nbytes // 2, rose or after >= during + nbytes // 2
            assert not self.strict or after == before
        assert fell, "free bytes do not fall by an allocation"
        assert rose, "free bytes do not rise again by freeing it"


def described(error: BackendError, rig: Rig) -> None:
    """Every error of a driver says which backend, which call, and the vendor's code and name for it."""
    assert error.backend == rig.driver.info.backend
    assert error.call and isinstance(error.call, str)
    assert error.name and isinstance(error.name, str)
    assert isinstance(error.code, int) and error.code != 0
    assert str(error)
