"""Allocating, freeing, and the free bytes that the device reports."""

from __future__ import annotations

import itertools
from collections.abc import Callable

import numpy as np
import pytest

from devmem.spi.errors import BackendError, OutOfMemory
from devmem.spi.types import LEGACY_STREAM, PER_THREAD_STREAM, AllocFlags, CopyKind, MemoryKind

from .driver_fixture import ConformanceSuite, DriverFixture, address, pattern, same, view

#: More bytes than any address space holds.
TOO_LARGE = 1 << 60

HOST_KINDS = (MemoryKind.PINNED, MemoryKind.MAPPED, MemoryKind.MANAGED)


class MemoryChecks(ConformanceSuite):
    @pytest.mark.parametrize("kind", list(MemoryKind))
    def test_alloc_is_aligned(self, fixture: DriverFixture, kind: MemoryKind) -> None:
        fixture.need_kind(kind)
        for nbytes in (1, 3, 255, 256, 257, 4095, 4097, 65_537, 1 << 20, (3 << 20) + 1):
            ptr = fixture.alloc(nbytes, kind)
            assert isinstance(ptr, int)
            assert ptr > 0 and ptr % fixture.driver.info.alignment == 0, f"{ptr:#x} for {nbytes} bytes"

    @pytest.mark.parametrize("kind", list(MemoryKind))
    def test_zero_bytes_have_no_address(self, fixture: DriverFixture, kind: MemoryKind) -> None:
        fixture.need_kind(kind)
        before, _ = fixture.driver.memory_info()
        assert fixture.driver.alloc(0, LEGACY_STREAM, kind) == 0
        fixture.driver.free(0, 0, LEGACY_STREAM, kind)
        assert fixture.driver.memory_info()[0] == before or not self.strict

    @pytest.mark.parametrize("kind", list(MemoryKind))
    def test_alloc_gives_distinct_memory(self, fixture: DriverFixture, kind: MemoryKind) -> None:
        fixture.need_kind(kind)
        sizes = [1 + 397 * n for n in range(64)]
        blocks = sorted((fixture.alloc(nbytes, kind), nbytes) for nbytes in sizes)
        for (ptr, nbytes), (later, _) in itertools.pairwise(blocks):
            assert ptr + nbytes <= later, f"{nbytes} bytes at {ptr:#x} reach into {later:#x}"

    def test_alloc_keeps_blocks_apart(self, fixture: DriverFixture) -> None:
        written = [(fixture.alloc(1 + 397 * n), pattern(1 + 397 * n, seed=n)) for n in range(48)]
        for ptr, data in written:
            fixture.write(ptr, data)
        for ptr, data in written:
            assert same(fixture.read(ptr, data.size), data)

    def test_alloc_is_usable_to_its_last_byte(self, fixture: DriverFixture) -> None:
        for nbytes in (1, 1000, 4096, 65_537, 2 << 20):
            data = pattern(nbytes)
            ptr = fixture.alloc(nbytes)
            fixture.write(ptr + nbytes - 1, data[-1:])
            assert same(fixture.read(ptr + nbytes - 1, 1), data[-1:])

    @pytest.mark.parametrize("which", ["created", "legacy", "per-thread"])
    def test_alloc_is_usable_at_once_on_every_stream(self, fixture: DriverFixture, which: str) -> None:
        stream = fixture.stream_of_kind(which)
        data = pattern(10_000)
        ptr = fixture.alloc(data.size, stream=stream)
        for user in (fixture.stream(), fixture.stream(non_blocking=False), LEGACY_STREAM, PER_THREAD_STREAM):
            back = np.zeros_like(data)
            fixture.driver.copy(ptr, address(data), data.size, CopyKind.H2D, user, blocking=True)
            fixture.driver.copy(address(back), ptr, data.size, CopyKind.D2H, user, blocking=True)
            assert same(back, data)

    def test_alloc_does_not_need_earlier_work_on_its_stream(self, fixture: DriverFixture) -> None:
        stream, data = fixture.stream(), pattern(10_000)
        # The driver may wait for the device; when it returns, the memory must be usable.
        with fixture.hold(stream, patience=1.0, tolerant=True):
            ptr = fixture.alloc(data.size, stream=stream)
            fixture.write(ptr, data)
            assert same(fixture.read(ptr, data.size), data)

    @pytest.mark.parametrize("kind", list(MemoryKind))
    def test_alloc_ignores_flags_that_mean_nothing(self, fixture: DriverFixture, kind: MemoryKind) -> None:
        fixture.need_kind(kind)
        for flags in (*AllocFlags, AllocFlags.PORTABLE | AllocFlags.WRITE_COMBINED):
            ptr = fixture.driver.alloc(1000, LEGACY_STREAM, kind, flags)
            fixture.driver.free(ptr, 1000, LEGACY_STREAM, kind)

    @pytest.mark.parametrize("kind", HOST_KINDS)
    def test_host_kinds_are_memory_of_the_host(self, fixture: DriverFixture, kind: MemoryKind) -> None:
        fixture.need_kind(kind)
        data, other = pattern(70_001), pattern(70_001, 1)
        host = view(fixture.alloc(data.size, kind), data.size)
        host[:] = data
        assert same(host, data)
        ptr = fixture.alloc(data.size)
        direction = CopyKind.D2D if kind is MemoryKind.MANAGED else CopyKind.H2D
        fixture.driver.copy(ptr, address(host), data.size, direction, LEGACY_STREAM, blocking=True)
        assert same(fixture.read(ptr, data.size), data)
        fixture.write(ptr, other)
        direction = CopyKind.D2D if kind is MemoryKind.MANAGED else CopyKind.D2H
        fixture.driver.copy(address(host), ptr, data.size, direction, LEGACY_STREAM, blocking=True)
        assert same(host, other)

    @pytest.mark.parametrize("kind", list(MemoryKind))
    def test_out_of_memory_hands_nothing_out(self, fixture: DriverFixture, kind: MemoryKind) -> None:
        fixture.need_kind(kind)
        before, total = fixture.driver.memory_info()
        for _ in range(3):
            with pytest.raises(OutOfMemory) as caught:
                fixture.driver.alloc(TOO_LARGE, LEGACY_STREAM, kind)
            check_error(caught.value, fixture)
        after, _ = fixture.driver.memory_info()
        assert after == before if self.strict else after > before - total // 4
        data = pattern(1000)
        assert same(fixture.read(fixture.alloc_with(data), data.size), data), "the device is usable afterwards"

    def test_an_error_is_not_raised_again_by_later_calls(self, fixture: DriverFixture) -> None:
        driver, stream, event, ptr = fixture.driver, fixture.stream(), fixture.event(), fixture.alloc(1000)
        later: dict[str, Callable[[], object]] = {
            "memory_info": driver.memory_info,
            "fill": lambda: driver.fill(ptr, 1, 1, 1000, stream),
            "event_record": lambda: driver.event_record(event, stream),
            "stream_query": lambda: driver.stream_query(stream),
            "event_synchronize": lambda: driver.event_synchronize(event),
            "synchronize": driver.synchronize,
            "alloc": lambda: fixture.alloc(1000),
        }
        for name, call in later.items():
            with pytest.raises(OutOfMemory):
                driver.alloc(TOO_LARGE, LEGACY_STREAM)
            try:
                call()
            except BackendError as error:
                pytest.fail(f"{name} raised the error of an earlier alloc: {error}")

    def test_more_than_the_device_has_is_out_of_memory(self, fixture: DriverFixture) -> None:
        with pytest.raises(OutOfMemory):
            fixture.driver.alloc(fixture.driver.memory_info()[1] + (1 << 20), LEGACY_STREAM)

    @pytest.mark.parametrize("kind", list(MemoryKind))
    def test_free_and_alloc_again(self, fixture: DriverFixture, kind: MemoryKind) -> None:
        fixture.need_kind(kind)
        for turn in range(200):
            nbytes = 1 + 1013 * turn
            ptr = fixture.driver.alloc(nbytes, LEGACY_STREAM, kind)
            fixture.driver.free(ptr, nbytes, LEGACY_STREAM, kind)

    def test_free_in_any_order(self, fixture: DriverFixture) -> None:
        data = {fixture.alloc(5000): pattern(5000, seed=n) for n in range(30)}
        for ptr, expected in data.items():
            fixture.write(ptr, expected)
        order = list(data)
        for ptr in order[::2]:
            fixture.free(ptr)
        for ptr in order[1::2]:
            assert same(fixture.read(ptr, 5000), data[ptr])

    def test_free_leaves_work_on_other_memory_alone(self, fixture: DriverFixture) -> None:
        """All work on the freed block is done; other work may be pending, and `free` may wait for it."""
        data = pattern(100_000)
        stream, ptr, other = fixture.stream(), fixture.alloc_with(data), fixture.alloc(100_000)
        back = fixture.pinned(data.size)
        back[:] = 0
        nbytes, kind = fixture.forget(other)
        with fixture.hold(stream) as hold:
            fixture.driver.copy(address(back), ptr, data.size, CopyKind.D2H, stream, blocking=False)
            freeing = fixture.run_in_thread(lambda: fixture.driver.free(other, nbytes, LEGACY_STREAM, kind))
            freeing.done.wait(self.grace)
            hold.release()
            freeing.finish()
            fixture.driver.stream_synchronize(stream)
        assert same(back, data)

    def test_memory_info_is_plausible(self, fixture: DriverFixture) -> None:
        fixture.alloc(1 << 20)  # not all of it is free
        free, total = fixture.driver.memory_info()
        assert isinstance(free, int) and isinstance(total, int)
        assert 0 < free <= total
        if self.strict:
            assert total == fixture.driver.info.total_bytes

    def test_memory_info_follows_allocations(self, fixture: DriverFixture) -> None:
        free, _ = fixture.driver.memory_info()
        nbytes = max(1 << 20, min(64 << 20, free // 4))
        # Other programs may use the same device: one of a few attempts must show the change.
        fell = rose = False
        for _ in range(1 if self.strict else 5):
            before, _ = fixture.driver.memory_info()
            ptr = fixture.alloc(nbytes)
            during, _ = fixture.driver.memory_info()
            fixture.free(ptr)
            after, _ = fixture.driver.memory_info()
            fell, rose = fell or during <= before - nbytes // 2, rose or after >= during + nbytes // 2
            assert not self.strict or after == before
        assert fell, "free bytes do not fall by an allocation"
        assert rose, "free bytes do not rise again by freeing it"


def check_error(error: BackendError, fixture: DriverFixture) -> None:
    """An error of a driver names the backend, the call, and the vendor's code and its name."""
    assert error.backend == fixture.driver.info.backend
    assert error.call and isinstance(error.call, str)
    assert error.name and isinstance(error.name, str)
    assert isinstance(error.code, int) and error.code != 0
    assert str(error)
