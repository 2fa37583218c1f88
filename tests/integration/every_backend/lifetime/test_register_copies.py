"""Copies of memory that shares its pages with memory which another thread registers, or lets go, at that very moment."""

from __future__ import annotations

import mmap
import threading
from contextlib import contextmanager

import numpy as np
import pytest
from waits import patience

import devmem as dm
from devmem._core.arrays import creation
from devmem._core.base.polling import until

PAGE = mmap.PAGESIZE
#: Seconds after which a thread hangs; and for which one is given the chance to go on where it must not.
HANG, CHANCE = patience(), 0.1

copying = pytest.mark.parametrize("way", ["to_device", "copy_to_device", "copy_to_host", "gathered"])


@pytest.fixture
def driver(recorded, need):
    need("host_register")
    device = dm.current_device()
    device.opened()
    return recorded.drivers[device.ordinal]


@pytest.fixture
def memory():
    """Three pages; `mine` begins in the middle of the first and ends in the middle of the last."""
    return np.frombuffer(mmap.mmap(-1, 3 * PAGE), "u1")


def mine_of(memory):
    return memory[PAGE // 2 : -PAGE // 2]


def copier(way, mine):
    """A copy between host and device that can be made again, and what it is to bring about."""
    want = np.random.default_rng(5).integers(0, 256, mine.shape, np.uint8)
    array = dm.zeros(mine.shape, "u1")
    if way == "copy_to_host":
        array.copy_to_device(want)
        return lambda: array.copy_to_host(mine), lambda: np.array_equal(mine, want)
    mine[...] = want
    if way == "copy_to_device":
        return lambda: array.copy_to_device(mine), lambda: np.array_equal(array.copy_to_host(), want)
    made = []
    source = mine[::-1] if way == "gathered" else mine
    wanted = source.copy()
    return lambda: made.append(dm.to_device(source)), lambda: np.array_equal(made[-1].copy_to_host(), wanted)


class Stopped:
    """A driver's method that waits, at its first call, until it is told to go on."""

    def __init__(self, driver, method):
        self.sound = getattr(driver, method)
        self.there, self.go_on = threading.Event(), threading.Event()

    def __call__(self, *arguments, **options):
        if not self.there.is_set():
            self.there.set()
            assert self.go_on.wait(HANG)
        return self.sound(*arguments, **options)


@contextmanager
def stopped(driver, method):
    stop = Stopped(driver, method)
    setattr(driver, method, stop)
    try:
        yield stop
    finally:
        stop.go_on.set()
        setattr(driver, method, stop.sound)


class Thread(threading.Thread):
    """Does something, on the same device; what it raises is raised by `finish`."""

    def __init__(self, work):
        super().__init__()
        self.work, self.error, self.device = work, None, dm.current_device()
        self.start()

    def run(self):
        try:
            with self.device:
                self.work()
        except BaseException as error:
            self.error = error

    def waits(self):
        self.join(CHANCE)
        return self.is_alive()

    def finish(self):
        self.join(HANG)
        assert not self.is_alive()
        if self.error is not None:
            raise self.error


# -- memory that is locked after a copy looked, and before the driver does ---------------------------------------------


@copying
def test_a_copy_that_is_refused_is_made_again_in_pieces(driver, recorded, memory, way):
    """As CUDA refuses one that lies half in locked memory."""
    mine, neighbour = mine_of(memory), memory[2 * PAGE :]
    copy, arrived = copier(way, mine)
    sound, blocks = driver.copy, []

    def refusing(dst, src, nbytes, *more, **options):
        if not blocks:
            locking = Thread(lambda: blocks.append(dm.register(neighbour)))
            locking.finish()
            if way != "gathered":
                raise dm.BackendError("half of it is locked")
        return sound(dst, src, nbytes, *more, **options)

    driver.copy = refusing
    try:
        with recorded.during() as seen:
            copy()
    finally:
        driver.copy = sound
    whole = mine.nbytes
    sizes = [call.args[2] for call in seen if call.method == "copy"]
    assert sizes == ([whole] if way == "gathered" else [whole - PAGE // 2, PAGE // 2])
    blocks[0].close()
    assert arrived()
    assert driver.registered() == {}


@copying
def test_a_copy_that_is_refused_for_another_reason_is_made_once(driver, recorded, memory, way):
    copy, arrived = copier(way, mine_of(memory))
    with recorded.during() as seen:
        driver.fail_at(1, "copy")
        with pytest.raises(dm.BackendError, match="injected failure of copy"):
            copy()
    assert len([call for call in seen if call.method == "copy"]) == 1
    copy()
    assert arrived()


@pytest.mark.parametrize("others", [False, True])
def test_memory_whose_pages_are_locked_as_it_is_copied_has_been_read(driver, recorded, memory, others):
    """The driver takes it for page-locked, and may read it after the call, when its owner changes it."""
    mine, stream = mine_of(memory), dm.stream()
    blocks = [dm.register(np.frombuffer(mmap.mmap(-1, PAGE), "u1"))] if others else []
    sound = driver.copy

    def copied(*arguments, **options):
        driver.copy = sound
        if not others:
            blocks.append(dm.register(memory[2 * PAGE :]))
        return sound(*arguments, **options)

    locks = dm.current_device().opened().page_locks
    driver.copy = copied

    def shares(low, high):
        del locks.shares
        blocks.append(dm.register(memory[2 * PAGE :]))
        return False  # it was not, when it was asked

    if others:
        locks.shares = shares
    with recorded.during() as seen:
        array = dm.to_device(mine, stream=stream)
    last = [call for call in seen if call.method in ("copy", "stream_synchronize")][-1]
    assert last.method == "stream_synchronize" or last.keywords["blocking"]
    assert np.array_equal(array.copy_to_host(), mine)
    for each in blocks:
        each.close()


# -- memory that is locked or unlocked while a copy runs ---------------------------------------------------------------


@copying
@pytest.mark.parametrize("how", ["register", "deregister"])
def test_pages_are_neither_locked_nor_unlocked_under_a_copy(driver, recorded, memory, way, how):
    mine, neighbour, far = mine_of(memory), memory[2 * PAGE :], np.frombuffer(mmap.mmap(-1, PAGE), "u1")
    copy, arrived = copier(way, mine)
    block = dm.register(far if how == "register" else neighbour)
    verb = f"host_{'un' * (how == 'deregister')}register"
    others = len(recorded.named(verb))
    with stopped(driver, "copy") as stop:
        first = Thread(copy)
        assert stop.there.wait(HANG)
        blocks = []
        work = block.close if how == "deregister" else lambda: blocks.append(dm.register(neighbour))
        second = Thread(work)
        # What is gathered first is copied from a buffer of its own, on pages of its own; its source is read by then.
        assert second.waits(), "it went on under a copy of these pages"
        assert len(recorded.named(verb)) == others
        with dm.pinned(np.frombuffer(mmap.mmap(-1, PAGE), "u1")):
            pass  # no other caller is held up
        others = len(recorded.named(verb))
        stop.go_on.set()
        first.finish()
        second.finish()
    assert len(recorded.named(verb)) == others + 1
    for each in [block, *blocks]:
        each.close()
    assert arrived()
    assert driver.registered() == {}


@pytest.mark.races("the driver that checks took the methods before the test replaces them")
@pytest.mark.parametrize("method", ["host_register", "host_unregister"])
def test_a_copy_waits_while_a_driver_is_busy_with_its_pages(driver, recorded, memory, method):
    mine, neighbour = mine_of(memory), memory[2 * PAGE :]
    copy, arrived = copier("to_device", mine)
    held = [dm.register(neighbour)] if method == "host_unregister" else []
    with stopped(driver, method) as stop:
        first = Thread(held[0].close if held else lambda: held.append(dm.register(neighbour)))
        assert stop.there.wait(HANG)
        before = len(recorded.named("copy"))
        second = Thread(copy)
        assert second.waits(), "it went on while its pages were being locked or unlocked"
        assert len(recorded.named("copy")) == before
        dm.to_device(np.frombuffer(mmap.mmap(-1, PAGE), "u1"))  # other memory is copied at once
        stop.go_on.set()
        first.finish()
        second.finish()
    for each in held:
        each.close()
    assert arrived()
    assert driver.registered() == {}


def test_a_copy_enqueued_while_it_was_waited_for_is_waited_for_too(driver, recorded, memory, need_kind):
    """Between the wait for what runs already and the unlocking another thread may enqueue more."""
    need_kind("pinned")
    neighbour = memory[2 * PAGE :]
    stream = dm.stream(non_blocking=True)
    array, room = dm.zeros(PAGE, "u1"), dm.pinned_array(PAGE, "u1")  # any copy may touch the pages
    block = dm.register(neighbour)
    registry = dm.current_device().opened().page_locks
    sound, calls = registry._wait_for_copies_of_devices, []

    def settle(entered):
        sound(entered)
        if not calls:
            array.copy_to_host(room, stream=stream)
        calls.append([call.method for call in recorded.log])

    registry._wait_for_copies_of_devices = settle
    try:
        with recorded.during() as seen:
            block.close()
    finally:
        del registry._wait_for_copies_of_devices
    methods = [call.method for call in seen]
    assert "event_record" in methods, "nothing was left running"
    assert methods.index("event_record") < methods.index("event_synchronize") < methods.index("host_unregister")


def test_what_cannot_be_waited_for_stays_locked(driver, recorded, memory):
    neighbour = memory[2 * PAGE :]
    block = dm.register(neighbour)
    registry = dm.current_device().opened().page_locks
    sound, calls = registry._wait_for_copies_of_devices, []

    def settle(entered):
        calls.append(entered)
        if len(calls) == 2:
            raise dm.BackendError("the wait failed")
        sound(entered)

    registry._wait_for_copies_of_devices = settle
    try:
        with pytest.raises(dm.BackendError, match="the wait failed"):
            block.close()
    finally:
        del registry._wait_for_copies_of_devices
    assert sum(driver.registered().values()) == PAGE, "unlocked although copies may be running"
    assert np.array_equal(dm.to_device(memory).copy_to_host(), memory)  # still cut there
    with dm.pinned(neighbour):
        pass
    assert driver.registered() == {}


def test_a_finalizer_does_not_wait_for_its_own_thread(driver, memory):
    """The collector may run it in the middle of a copy, or of a registration, of the same pages."""
    mine, neighbour = mine_of(memory), memory[2 * PAGE :]
    copy, arrived = copier("to_device", mine)
    block = dm.register(neighbour)
    sound = driver.copy

    def collecting(*arguments, **options):
        driver.copy = sound
        block.close()
        return sound(*arguments, **options)

    driver.copy = collecting
    copy()
    assert arrived()
    assert driver.registered() == {}


# -- a handler, or a finalizer, that would wait for another thread ----------------------------------------------------------


def test_a_handler_copies_pages_of_the_interrupted_copy_that_another_thread_unlocks(driver, memory):
    """The other thread waits for the copy that the handler came into, which cannot go on before the handler ends."""
    mine, neighbour = mine_of(memory), memory[2 * PAGE :]
    copy, arrived = copier("to_device", mine)
    block, sound, others = dm.register(neighbour), driver.copy, []
    locks = dm.current_device().opened().page_locks

    def interrupted(*arguments, **options):
        driver.copy = sound
        others.append(Thread(block.close))
        assert until(lambda: any(each.busy for each in locks.segments), HANG)
        copy()
        with pytest.raises(RuntimeError, match="which another thread has locked or unlocked"):
            dm.register(neighbour)
        return sound(*arguments, **options)

    driver.copy = interrupted
    copy()
    others[0].finish()
    assert arrived()
    assert driver.registered() == {}


def test_a_handler_leaves_pages_locked_that_another_thread_copies(driver, memory, at_point):
    """The next that unlocks pages unlocks them."""
    mine, neighbour = mine_of(memory), memory[2 * PAGE :]
    copy, arrived = copier("to_device", mine)
    block = dm.register(neighbour)
    with stopped(driver, "copy") as stop:
        other = Thread(copy)
        assert stop.there.wait(HANG)
        with at_point(3, lambda code: code.co_filename == creation.__file__, block.close):
            dm.device_array(PAGE, "u1")
        assert block.closed
        assert len(driver.registered()) == 1
        stop.go_on.set()
        other.finish()
    with dm.pinned(np.frombuffer(mmap.mmap(-1, PAGE), "u1")):
        pass
    assert driver.registered() == {}
    assert arrived()
