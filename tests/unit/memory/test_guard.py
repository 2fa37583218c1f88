"""What a Guard finds, each with the line of the program that owned the memory."""

from __future__ import annotations

import dataclasses
import re
import sys
from collections.abc import Callable, Iterator

import numpy as np
import pytest
from interrupts import AtPoint
from waits import together

import devmem as dm
from devmem.backends.host.hooks import HostBackend
from devmem.memory import DriverMemory, Guard, Limit, PinnedMemory, Scrub, Statistics, StreamOrderedMemory
from devmem.spi.driver import Driver
from devmem.spi.errors import BackendError
from devmem.spi.sizes import exact_size
from devmem.spi.types import LEGACY_STREAM, Capability, CopyKind, DeviceInfo
from devmem.testing import FaultyDriver

BOTTOMS = {"driver": DriverMemory, "stream_ordered": StreamOrderedMemory}


@pytest.fixture(params=BOTTOMS)
def guard(request: pytest.FixtureRequest, driver: FaultyDriver) -> Iterator[Guard]:
    found = Guard(BOTTOMS[request.param]())
    found.bind(driver)
    yield found
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("warnings.warn", lambda *_, **__: None)
        found.trim(0)
    driver.synchronize()
    assert driver.blocks() == {}


def owner(guard: Guard, nbytes: int = 1000) -> int:
    return guard.allocate(nbytes, LEGACY_STREAM)  # this is the owner's line


def killer(guard: Guard, ptr: int, nbytes: int = 1000) -> None:
    guard.deallocate(ptr, nbytes, LEGACY_STREAM)  # this is where it was freed


def poke(driver: Driver, ptr: int, value: int = 7) -> None:
    driver.fill(ptr, value, 1, 1, LEGACY_STREAM)


OWNER = r"(?s:.*allocated at.*in owner\n\s+return guard.allocate\(nbytes, LEGACY_STREAM\)  # this is the owner's line)"
FREED = r"(?s:.*freed at.*in killer\n.*# this is where it was freed)"


@pytest.mark.parametrize("beyond", [0, 1, 17, 255])
@pytest.mark.parametrize("nbytes", [1, 1000, 1024])
def test_an_overrun_is_reported_with_its_owner(guard: Guard, driver: Driver, nbytes: int, beyond: int) -> None:
    ptr = owner(guard, nbytes)
    poke(driver, ptr + nbytes + beyond)
    size = re.escape(exact_size(nbytes))
    expected = (
        rf"overrun: the byte {beyond} behind the end of the block of {size} at {ptr:#x} was overwritten with 0x07"
    )
    with pytest.raises(dm.GuardError, match=expected + OWNER):
        guard.check()
    with pytest.raises(dm.GuardError, match=expected + OWNER + FREED):
        killer(guard, ptr, nbytes)
    assert len(guard.reports) == 2
    assert guard.cached_bytes == nbytes + 512  # given back all the same


@pytest.mark.parametrize("before", [1, 256])
def test_an_underrun_is_reported_with_its_owner(guard: Guard, driver: Driver, before: int) -> None:
    ptr = owner(guard)
    poke(driver, ptr - before)
    with pytest.raises(dm.GuardError, match=rf"underrun: the byte {before} before the block of 1000 bytes" + OWNER):
        killer(guard, ptr)
    [report] = guard.reports
    assert report.startswith("underrun")


def test_writes_within_are_none_of_its_business(guard: Guard, driver: Driver) -> None:
    ptr = owner(guard)
    driver.fill(ptr, 0x11, 1, 1000, LEGACY_STREAM)
    guard.check()
    killer(guard, ptr)
    guard.check()
    assert guard.reports == []


def test_it_waits_only_where_any_stream_may_use_the_memory(guard: Guard, driver: FaultyDriver) -> None:
    before = driver.calls["stream_synchronize"]
    ptr = owner(guard)
    assert driver.calls["stream_synchronize"] - before == (type(guard.upstream) is DriverMemory)
    killer(guard, ptr)


def test_a_double_free_is_reported_with_both_lines(guard: Guard, driver: Driver) -> None:
    ptr = owner(guard)
    killer(guard, ptr)
    with pytest.raises(dm.GuardError, match=r"double free: the block of 1000 bytes at" + OWNER + FREED):
        killer(guard, ptr)
    guard.trim(0)  # it has left the quarantine, and is still known
    with pytest.raises(dm.GuardError, match=r"double free" + OWNER + FREED):
        killer(guard, ptr)


def test_a_free_inside_a_block_is_reported(guard: Guard, driver: Driver) -> None:
    ptr = owner(guard)
    with pytest.raises(
        dm.GuardError, match=rf"foreign free: {ptr + 8:#x} .* is no block, but \+8 bytes from the block" + OWNER
    ):
        guard.deallocate(ptr + 8, 1000, LEGACY_STREAM)
    with pytest.raises(dm.GuardError, match=r"foreign free: 0x7b .* was never handed out by this Guard"):
        guard.deallocate(123, 1000, LEGACY_STREAM)
    killer(guard, ptr)


def test_a_free_of_the_wrong_size_is_reported(guard: Guard) -> None:
    ptr = owner(guard)
    with pytest.raises(dm.GuardError, match=r"999 bytes were given back at .* where the block of 1000 bytes"):
        killer(guard, ptr, 999)
    assert guard.cached_bytes > 0


def test_what_it_refuses_is_not_counted_as_given_back(guard: Guard, driver: Driver) -> None:
    """Whatever stands above reckons with what is out, not with what was said."""
    stack = Limit(Statistics(guard, owners=True), 5000)
    stack.bind(driver)
    counting = stack.upstream
    ptr, other = stack.allocate(1000, LEGACY_STREAM), stack.allocate(300, LEGACY_STREAM)
    stack.deallocate(ptr, 1000, LEGACY_STREAM)
    for wrong in (ptr, other + 8, 123):
        with pytest.raises(dm.GuardError, match="free"):
            stack.deallocate(wrong, 1000, LEGACY_STREAM)
        assert (stack.current_bytes, counting.current_bytes, counting.current_count) == (300, 300, 1)
        assert [(each.nbytes, each.count) for each in counting.owners()] == [(300, 1)]
    with pytest.raises(dm.GuardError, match="299 bytes were given back"):
        stack.deallocate(other, 299, LEGACY_STREAM)
    assert (stack.current_bytes, counting.current_bytes, counting.current_count) == (0, 0, 0)
    damaged = stack.allocate(100, LEGACY_STREAM)
    poke(driver, damaged + 100)
    with pytest.raises(dm.GuardError, match="overrun"):
        stack.deallocate(damaged, 100, LEGACY_STREAM)
    assert (stack.current_bytes, counting.current_bytes, counting.current_count) == (0, 0, 0)


@pytest.mark.parametrize("at", [-256, 0, 999, 1255])
def test_a_write_after_free_is_reported_with_its_owner(guard: Guard, driver: Driver, at: int) -> None:
    ptr = owner(guard)
    killer(guard, ptr)
    poke(driver, ptr + at)
    expected = rf"use after free: the byte {at} of the block of 1000 bytes at {ptr:#x} was overwritten with 0x07"
    with pytest.raises(dm.GuardError, match=expected + OWNER + FREED):
        guard.check()
    with pytest.warns(dm.DevmemWarning, match=expected + OWNER + FREED):
        guard.trim(0)
    assert guard.cached_bytes == 0
    assert len(guard.reports) == 2


def test_use_after_free_is_found_when_the_block_is_pushed_out(driver: FaultyDriver) -> None:
    guard = Guard(DriverMemory(), quarantine_bytes=4096)
    guard.bind(driver)
    blocks = [owner(guard) for _ in range(4)]
    killer(guard, blocks[0])
    poke(driver, blocks[0])
    killer(guard, blocks[1])
    with pytest.warns(dm.DevmemWarning, match="use after free") as seen:
        killer(guard, blocks[2])
    assert len(seen) == 1
    killer(guard, blocks[3])
    guard.trim(0)
    assert driver.blocks() == {}


def test_what_is_freed_is_poisoned_and_what_is_fresh_is_not_zero(guard: Guard, driver: Driver) -> None:
    ptr = owner(guard)
    seen = np.zeros(1000, np.uint8)
    driver.copy(int(seen.ctypes.data), ptr, 1000, CopyKind.D2H, LEGACY_STREAM, blocking=True)
    assert set(seen.tolist()) == {0xFA}
    killer(guard, ptr)
    driver.copy(int(seen.ctypes.data), ptr, 1000, CopyKind.D2H, LEGACY_STREAM, blocking=True)
    assert set(seen.tolist()) == {0xDD}


def test_a_block_too_large_for_the_quarantine_goes_back_at_once(driver: FaultyDriver) -> None:
    guard = Guard(DriverMemory(), quarantine_bytes=1000)
    guard.bind(driver)
    killer(guard, owner(guard))
    assert driver.blocks() == {}
    assert guard.cached_bytes == 0


def test_host_memory_is_guarded_too(driver: FaultyDriver) -> None:
    import ctypes

    guard = Guard(PinnedMemory())
    guard.bind(driver)
    ptr = owner(guard)
    ctypes.memset(ptr + 1000, 7, 1)
    with pytest.raises(dm.GuardError, match="overrun" + OWNER):
        killer(guard, ptr)
    ctypes.memset(ptr, 7, 1)
    with pytest.raises(dm.GuardError, match="use after free" + OWNER):
        guard.check()
    with pytest.warns(dm.DevmemWarning, match="use after free"):
        guard.trim(0)
    assert driver.blocks() == {}


@pytest.mark.parametrize(("redzone", "rounded"), [(0, 0), (1, 256), (256, 256), ("1KiB", 1024), (1025, 1280)])
def test_the_width_of_red_zones(driver: FaultyDriver, redzone: int | str, rounded: int) -> None:
    guard = Guard(DriverMemory(), redzone=redzone)
    guard.bind(driver)
    ptr = owner(guard)
    assert ptr % 256 == 0
    assert [nbytes for nbytes, _ in driver.blocks().values()] == [1000 + 2 * rounded]
    if rounded:
        poke(driver, ptr + 1000 + rounded - 1)
        with pytest.raises(dm.GuardError, match=f"byte {rounded - 1} behind"):
            guard.check()


def test_a_driver_that_fails_while_it_looks_loses_nothing(driver: FaultyDriver) -> None:
    guard = Guard(DriverMemory())
    guard.bind(driver)
    ptr = owner(guard)
    driver.fail_at(1, "copy")
    with pytest.raises(BackendError, match="injected"):
        killer(guard, ptr)
    driver.disarm()
    assert driver.blocks() == {}
    guard.check()


def test_blocks_freed_by_other_threads_while_it_checks(driver: FaultyDriver) -> None:
    guard = Guard(DriverMemory(), quarantine_bytes="8KiB")
    guard.bind(driver)
    going = [True] * 3

    def churn() -> None:
        token = driver.enter()
        try:
            for _ in range(60):
                killer(guard, owner(guard))
        finally:
            driver.exit(token)
            going.pop()

    def check() -> None:
        while going:
            guard.check()

    together(check, *[churn] * 3)
    assert guard.reports == []
    guard.trim(0)
    assert driver.blocks() == {}


def test_a_large_block_freed_while_it_is_looked_at_stays_until_then(driver: FaultyDriver) -> None:
    guard = Guard(DriverMemory(), quarantine_bytes=0)
    guard.bind(driver)
    ptr, look = owner(guard), guard._access.first_other
    freed = []

    def as_another_thread_frees_it(*where: int) -> tuple[int, int] | None:
        if not freed:
            freed.append(ptr)
            killer(guard, ptr)
            assert len(driver.blocks()) == 1
        return look(*where)

    guard._access.first_other = as_another_thread_frees_it  # type: ignore[method-assign]
    guard.check()
    assert guard.reports == []
    killer(guard, owner(guard))  # what left has pushed it out
    assert driver.blocks() == {}


def test_a_check_that_fails_leaves_the_quarantine_free_to_go(driver: FaultyDriver) -> None:
    guard = Guard(DriverMemory())
    guard.bind(driver)
    killer(guard, owner(guard))
    for call in ("synchronize", "copy"):
        driver.fail_at(1, call, KeyboardInterrupt())
        with pytest.raises(KeyboardInterrupt):
            guard.check()
    driver.disarm()
    guard.trim(0)
    assert driver.blocks() == {}


def test_damage_is_told_also_where_the_block_cannot_go_back(driver: FaultyDriver) -> None:
    guard = Guard(DriverMemory(), quarantine_bytes=0)
    guard.bind(driver)
    ptr = owner(guard)
    poke(driver, ptr + 1000)
    driver.fail_at(1, "free")
    with pytest.raises(dm.GuardError, match="overrun") as caught:
        killer(guard, ptr)
    assert isinstance(caught.value.__cause__, BackendError)
    ptr = owner(guard)
    poke(driver, ptr + 1000)
    driver.fail_at(1, "free", KeyboardInterrupt())
    with pytest.raises(KeyboardInterrupt):
        killer(guard, ptr)
    assert len(guard.reports) == 2


# -- through arrays ----------------------------------------------------------------------------------------------------


@pytest.fixture
def guarded() -> Iterator[Guard]:
    with dm.use_backend("host"):
        guard = Guard(DriverMemory())
        dm.trim()
        with dm.use_memory(guard):
            yield guard
            dm.trim()


def overrun(array: dm.DeviceNDArray) -> None:
    device = array.device
    with device.entered():
        device.driver().fill(array.ptr + array.nbytes, 1, 1, 1, LEGACY_STREAM)


def test_an_explicit_free_raises(guarded: Guard) -> None:
    array = dm.to_device(np.arange(10))
    overrun(array)
    with pytest.raises(dm.GuardError, match=r"(?s)overrun.*in test_an_explicit_free_raises\n\s+array = dm.to_device"):
        array.free()
    array.free()  # it has been given back
    assert dm.memory_info().live == 0
    assert len(guarded.reports) == 1


def test_a_dropped_array_warns(guarded: Guard) -> None:
    array = dm.to_device(np.arange(10))
    overrun(array)
    del array
    with pytest.warns(dm.DevmemWarning, match=r"(?s)overrun.*in test_a_dropped_array_warns\n\s+array = dm.to_device"):
        dm.trim()
    assert len(guarded.reports) == 1
    dm.trim()
    assert dm.memory_info()[2:] == (0, 0, 0, (0, 0, 0))


def test_check_needs_no_device_to_be_entered(guarded: Guard) -> None:
    array = dm.to_device(np.arange(10))
    guarded.check()
    overrun(array)
    with pytest.raises(dm.GuardError, match="overrun"):
        guarded.check()
    with pytest.raises(dm.GuardError):
        array.free()


def test_the_quarantine_is_cached_memory(guarded: Guard) -> None:
    before = dm.memory_info().cached
    dm.to_device(np.arange(100)).free()
    assert dm.memory_info().cached == before + 800 + 512
    dm.trim()
    assert dm.memory_info().cached == before


def test_copies_on_streams_are_seen(guarded: Guard) -> None:
    stream = dm.stream()
    host = np.arange(1000.0)
    arrays = [dm.to_device(host, stream=stream) for _ in range(20)]
    for array in arrays:
        assert array.copy_to_host(stream=stream) is not None
    stream.synchronize()
    for array in arrays:
        array.free()
    guarded.check()
    assert guarded.reports == []


# -- while a graph is captured -------------------------------------------------------------------------------------------


class Capturing(FaultyDriver):
    """A driver on one of whose streams a graph is captured, one that the legacy stream waits for; keeps what it is asked."""

    def __init__(self, inner: Driver) -> None:
        super().__init__(inner)
        self.captured: int | None = None
        self.asked: list[str] = []
        self.capturing = lambda stream: self.captured is not None and stream in (self.captured, LEGACY_STREAM)

    @property
    def info(self) -> DeviceInfo:
        info = super().info
        return dataclasses.replace(info, capabilities=info.capabilities | {Capability.CAPTURE})

    def _call(self, method: str, *args: object, **keywords: object) -> object:
        self.asked.append(method)
        return super()._call(method, *args, **keywords)


@pytest.fixture
def capturing() -> Iterator[Capturing]:
    backend = HostBackend()
    backend.configure({"strict": True, "devices": 1})
    opened = Capturing(backend.open(0))
    token = opened.enter()
    yield opened
    assert opened.blocks() == {}
    opened.exit(token)
    opened.close()


@pytest.mark.parametrize("below", BOTTOMS.values(), ids=BOTTOMS)
def test_nothing_is_enqueued_or_waited_for_in_a_capture(capturing: Capturing, below: type) -> None:
    guard = Guard(below())
    stack = Limit(Statistics(guard), 5000)
    stack.bind(capturing)
    stream, other = capturing.stream_create(0, True), capturing.stream_create(0, True)
    ptr, kept = stack.allocate(100, stream), stack.allocate(200, stream)
    stack.deallocate(kept, 200, stream)
    capturing.captured = stream
    capturing.asked.clear()
    with pytest.raises(dm.UnsupportedError, match="cannot allocate 100 bytes for a stream that is capturing a graph"):
        stack.allocate(100, stream)
    with pytest.raises(dm.GuardError, match=r"the block of 100 bytes at .* capturing a graph"):
        stack.deallocate(ptr, 100, stream)
    with pytest.raises(dm.GuardError, match="double free"):
        stack.deallocate(kept, 200, stream)
    with pytest.raises(dm.UnsupportedError, match="while a graph is captured"):
        guard.check()
    stack.trim(0)
    assert guard.cached_bytes >= 200 + 512, "what cannot be looked at stays"
    assert set(capturing.asked) <= {"pool_trim", "pool_cached"}, "only the upstream was asked to trim"
    assert stack.current_bytes == 100
    stack.deallocate(stack.allocate(50, other), 50, other)  # another stream goes on
    capturing.captured = None
    guard.check()
    stack.deallocate(ptr, 100, stream)
    stack.trim(0)
    assert stack.current_bytes == 0
    assert [text.split(":")[0] for text in guard.reports] == ["double free"]
    for handle in (stream, other):
        capturing.stream_destroy(handle)


def test_what_comes_back_in_a_capture_is_wiped_when_it_has_ended(capturing: Capturing) -> None:
    """A fill that is captured is none until the graph runs: the next tenant would read what was there."""
    stack = Scrub(StreamOrderedMemory(), 0x5A)
    stack.bind(capturing)
    stream = capturing.stream_create(0, True)
    ptr = stack.allocate(100, stream)
    capturing.captured = stream
    capturing.asked.clear()
    stack.deallocate(ptr, 100, stream)
    stack.trim(0)
    assert set(capturing.asked) <= {"pool_trim", "pool_cached"}
    assert stack.withheld == [(ptr, 100)]
    capturing.captured = None
    stack.trim(0)
    assert stack.withheld == []
    assert "fill" in capturing.asked
    capturing.stream_destroy(stream)


def test_arrays_of_a_captured_stream_are_looked_at_when_the_capture_has_ended(
    guarded: Guard, monkeypatch: pytest.MonkeyPatch
) -> None:
    context, stream = dm.current_device().opened(), dm.stream()
    first, second = dm.to_device(np.arange(10)), dm.to_device(np.arange(10), stream=stream)
    stream.synchronize()
    overrun(second)
    with monkeypatch.context() as patch:
        patch.setattr(context.handle, "capabilities", context.handle.capabilities | {Capability.CAPTURE})
        patch.setattr(
            type(context.handle.driver), "capturing", lambda _, handle: handle == stream.handle, raising=False
        )
        del first
        second.free()  # in the queue, as the capture has it
        dm.trim()
        assert guarded.reports == []
        assert dm.memory_info().pending == 160
    with pytest.warns(dm.DevmemWarning, match="overrun"):
        dm.trim()
    dm.trim()  # what came behind it in the queue
    assert dm.memory_info()[2:] == (0, 0, 0, (0, 0, 0))
    stream.close()


def test_the_report_is_short(guarded: Guard) -> None:
    array = dm.to_device(np.arange(10))
    overrun(array)
    with pytest.raises(dm.GuardError) as caught:
        array.free()
    text = str(caught.value)
    assert re.search(r"devmem.(_core|api)", text) is None  # the program's lines, not ours
    assert text.count("File ") < 40


def test_an_interrupted_trim_keeps_the_block_in_hand_at_most(
    driver: FaultyDriver, at_point: Callable[..., AtPoint]
) -> None:
    guard, file = Guard(DriverMemory()), sys.modules[Guard.__module__].__file__
    guard.bind(driver)
    point = left = lost = 0
    while left <= 0:
        point += 1
        for ptr in [owner(guard) for _ in range(3)]:
            killer(guard, ptr)
        with at_point(point, lambda code: code.co_filename == file) as at:
            guard.trim(0)
        left = at.left
        guard.trim(0)
        before, lost = lost, len(driver.blocks())
        assert lost - before in (0, 1), at.where
    assert point > 20
