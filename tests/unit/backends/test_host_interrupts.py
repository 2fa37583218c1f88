"""An interrupt, a signal's handler or a finalizer at any point of the host backend: nothing hangs, no address is used twice."""

from __future__ import annotations

import ctypes
import gc
import itertools
import sys
import threading
from pathlib import Path
from types import CodeType
from typing import Any

import pytest

from devmem.backends.host import arena, stream_engine
from devmem.backends.host.hooks import HostBackend
from devmem.backends.host.page_locks import page_locks
from devmem.spi.types import LEGACY_STREAM, Box, CopyKind, MemoryKind
from devmem.toolkit import ranges

HOST = Path(stream_engine.__file__).parent
FILES = {str(path) for path in HOST.glob("*.py")} | {ranges.__file__}
N = 4096
SMALL, LARGE = 8192, 12288


@pytest.fixture
def driver(monkeypatch):
    monkeypatch.setattr(stream_engine, "SMALL", SMALL)
    backend = HostBackend()
    backend.configure({"strict": True, "devices": 1})
    driver = backend.open(0)
    yield driver
    driver.close()


def watched(code: CodeType) -> bool:
    """Whether it is the host backend's."""
    return code.co_filename in FILES


class World:
    """Memory of each kind, and streams: one at rest, one that is held, so that jobs come after one that has not run."""

    def __init__(self, driver: Any) -> None:
        driver.enter()
        self.driver = driver
        self.stream, self.busy = driver.stream_create(0, True), driver.stream_create(0, False)
        self.event = driver.event_create(False)
        self.here = driver.alloc(LARGE, self.stream)
        self.there = driver.alloc(LARGE, self.stream)
        self.pinned = driver.alloc(N, self.stream, MemoryKind.PINNED)
        self.host = ctypes.create_string_buffer(LARGE)
        self.address = ctypes.addressof(self.host)
        self.pages = ctypes.create_string_buffer(3 * 4096)
        self.page = -(-ctypes.addressof(self.pages) // 4096) * 4096

    def behind_a_hold(self, work: Any) -> None:
        """Do something on a stream that is held; by the end it is not."""
        held = self.driver.hold(self.busy)
        try:
            work()
        finally:
            self.driver.release(held)

    def check(self) -> None:
        """Everything comes to rest, and does what it did before."""
        driver = self.driver
        driver.synchronize()
        for stream in (self.stream, self.busy, LEGACY_STREAM):
            driver.fill(self.here, 7, 1, LARGE, stream)
            driver.copy(self.there, self.here, LARGE, CopyKind.D2D, stream, blocking=False)
            driver.copy(self.address, self.there, LARGE, CopyKind.D2H, stream, blocking=True)
            assert self.host.raw == b"\7" * LARGE
            driver.fill(self.there, 0, 1, LARGE, stream)
            driver.synchronize()
        driver.event_record(self.event, self.busy)
        driver.event_synchronize(self.event)
        driver.free(driver.alloc(N, self.stream), N, self.stream)
        driver.synchronize()


def upload(world: World) -> None:
    world.driver.copy(world.here, world.address, N, CopyKind.H2D, world.stream, blocking=True)


def large_download(world: World) -> None:
    world.driver.copy(world.address, world.here, LARGE, CopyKind.D2H, world.stream, blocking=True)


def enqueue(world: World) -> None:
    world.driver.copy(world.here, world.pinned, N, CopyKind.H2D, world.stream, blocking=False)
    world.driver.stream_synchronize(world.stream)


def rows(world: World) -> None:
    box = Box(world.here, 64, 8, world.address, 32, 8, 32, 8, 1)
    world.driver.copy_strided(box, CopyKind.H2D, world.busy, blocking=True)


def fill(world: World) -> None:
    world.driver.fill(world.there, 3, 1, LARGE, LEGACY_STREAM)


def behind_a_hold(world: World) -> None:
    def work() -> None:
        world.driver.fill(world.there, 3, 1, N, world.busy)
        world.driver.event_record(world.event, world.busy)
        world.driver.stream_wait(world.stream, world.event)
        world.driver.copy(world.there, world.address, N, CopyKind.H2D, LEGACY_STREAM, blocking=False)

    world.behind_a_hold(work)


def allocate(world: World) -> None:
    for nbytes in (N, 3 << 20, 64 << 20):
        world.driver.free(world.driver.alloc(nbytes, world.stream), nbytes, world.stream)


def stream_ordered(world: World) -> None:
    ptr = world.driver.alloc_async(N, world.stream)
    world.driver.free_async(ptr, N, world.stream)


def streams(world: World) -> None:
    made = world.driver.stream_create(0, False)
    world.driver.copy(world.here, world.pinned, N, CopyKind.H2D, made, blocking=False)
    world.driver.stream_destroy(made)


def events(world: World) -> None:
    made = world.driver.event_create(True)
    world.driver.event_record(made, world.stream)
    world.driver.event_destroy(made)


def register(world: World) -> None:
    world.driver.host_register(world.page, 4096, True)
    world.driver.host_unregister(world.page, 4096)


def synchronize(world: World) -> None:
    world.driver.synchronize()


VERBS = [
    upload,
    large_download,
    enqueue,
    rows,
    fill,
    behind_a_hold,
    allocate,
    stream_ordered,
    streams,
    events,
    register,
    synchronize,
]
HANDLERS = [enqueue, large_download, behind_a_hold, allocate]


@pytest.mark.parametrize("verb", VERBS)
def test_nothing_hangs_and_no_address_is_used_twice_behind_an_interrupt(driver, verb, at_point):
    world = World(driver)
    verb(world)
    kept, chunks = set(driver._space.device.live), sum(driver._space.device._chunks)
    for point in range(1, 3000):
        with at_point(point, watched) as at:
            verb(world)
        for held, latch in list(
            driver._engine._holds.items()
        ):  # the caller of hold() was interrupted before it had the handle
            if not latch.done:
                driver.release(held)
        for ptr in (
            driver._space.device.live.keys() - kept
        ):  # the caller was interrupted before it had it, or as it gave it back
            driver.free(ptr, driver._space.device.live[ptr], world.stream)
        world.check()
        reached = {lock.window for lock in page_locks.locks.ranges} - {None}
        assert reached >= set(page_locks.windows.ranges), at.where  # devices reach nothing that is not locked
        for lock in page_locks.locks.overlapping(world.page, world.page + 1):
            driver.host_unregister(lock.start, lock.stop - lock.start)
        if at.left > 0:
            break
    assert point > 3
    for space in (driver._space.device, driver._space.host):
        check_slots(space, at.where)
    verb(world)
    assert (
        sum(driver._space.device._chunks) <= chunks + 500
    )  # a slab or two of 64 MiB stay taken until the device is closed


def check_slots(space: Any, where: str) -> None:
    """No slot is free twice, or free and in use."""
    free = [slot for slab in set(space._slabs.values()) for slot in slab.free]
    assert len(set(free)) == len(free), where
    assert not (space.live.keys() | space.ending.keys()) & set(free), where


def test_an_allocation_that_is_interrupted_takes_a_slot_at_most(at_point):
    space = arena.Arena(8 << 20, hidden=False)
    space.allocate(1000)
    for point in range(1, 200):
        used = space.used
        with at_point(point, lambda code: code.co_filename == arena.__file__) as at:
            space.allocate(1000)
        assert space.used - used in (0, 1024), at.where
        check_slots(space, at.where)
        if at.left > 0:
            break
    assert point > 3
    space.mapping.unmap()


def test_no_address_is_taken_twice_where_a_handler_frees_and_raises(at_point):
    """What it has allocated and ended is neither live nor free: the interrupted allocation must not take it for its own."""
    space = arena.Arena(8 << 20, hidden=False)

    def handler() -> None:
        sys.settrace(None)
        space.invalidate(space.allocate(1000), 1000)
        raise KeyboardInterrupt

    for point in range(1, 200):
        with at_point(point, lambda code: code.co_filename == arena.__file__, handler) as at:
            space.allocate(1000)
        for ptr, end in list(space.ending.items()):
            space.recycle(ptr, end)
        check_slots(space, at.where)
        if at.left > 0:
            break
    assert point > 3
    space.mapping.unmap()


@pytest.mark.parametrize(
    ("verb", "inner"),
    # To free memory waits for all streams: that never ends while the interrupted code holds one.
    [each for each in itertools.product(VERBS, HANDLERS) if each != (behind_a_hold, allocate)],
)
def test_a_handler_may_call_at_any_point(driver, verb, inner, at_point):
    world, called = World(driver), []
    other = World(driver)

    def handler() -> None:
        sys.settrace(None)
        inner(other)
        called.append(True)

    for point in range(1, 3000):
        with at_point(point, watched, handler) as at:
            verb(world)
        world.check()
        other.check()
        if at.left > 0:
            break
    assert len(called) == point - 1 > 3
    driver.synchronize()


def test_a_finalizer_may_copy_at_any_point(driver, at_point):
    """As the garbage collector runs it: from within whatever makes an object."""
    world, other, ran = World(driver), World(driver), []

    class Cycle:
        def __init__(self) -> None:
            self.itself = self

        def __del__(self) -> None:
            enqueue(other)
            ran.append(True)

    def collect() -> None:
        Cycle()
        gc.collect(0)

    for point in range(1, 300):
        with at_point(point, watched, collect) as at:
            enqueue(world)
        world.check()
        if at.left > 0:
            break
    assert len(ran) == point - 1


def test_an_interrupt_does_not_end_the_main_thread(driver, at_point):
    """Before Python 3.13 one in ``threading.main_thread().is_alive()`` does; then callers ran the jobs of streams."""
    world = World(driver)
    number, left = 0, 0
    held = driver.hold(world.busy)
    while left <= 0:
        number += 1
        with at_point(number, lambda code: watched(code) or code.co_filename == threading.__file__) as point:
            driver.stream_query(world.busy)
        left = point.left
        assert threading.main_thread().is_alive(), point.where
    driver.release(held)
    assert number > 3
