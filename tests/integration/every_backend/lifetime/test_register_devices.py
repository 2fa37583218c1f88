"""Registration with more than one device: memory is locked once for all devices of a backend, until the last of them lets go."""

from __future__ import annotations

import contextlib
import gc
import mmap
import threading
import weakref
from functools import partial

import numpy as np
import pytest
from waits import blocked, patience, together

import devmem as dm
from devmem._core.base.device_handle import ClosedEntry
from devmem.testing import hold

PAGE = mmap.PAGESIZE


@pytest.fixture
def pair(recorded, need):
    """Two devices behind drivers that write down what they are asked."""
    need("host_register")
    mine = [each for each in dm.devices() if each.backend == recorded.name]
    if len(mine) < 2:
        pytest.skip(f"{recorded.name} has one device only")
    for each in mine[:2]:
        each.opened()
    return mine[:2]


@pytest.fixture
def locked(recorded, pair):
    """Bytes that the drivers have locked now, by address."""
    return lambda: {at: size for driver in recorded.drivers.values() for at, size in driver.registered().items()}


def pages(count):
    """An array of whole pages, on a page of its own."""
    raw = np.zeros((count + 1) * PAGE, "u1")
    start = -raw.ctypes.data % PAGE
    return raw[start : start + count * PAGE]


def round_trip(device, array):
    want = np.random.default_rng(3).integers(0, 256, array.shape, np.uint8)
    array[...] = want
    with device:
        d = dm.to_device(array)
        array[...] = 0
        d.copy_to_host(array)
    np.testing.assert_array_equal(array, want)


def both_ways(*arguments):
    return pytest.mark.parametrize("forwards", [True, False], ids=["first-in-first-out", "last-in-first-out"])(
        *arguments
    )


# -- counting ----------------------------------------------------------------------------------------------------------


@both_ways
def test_the_same_array_on_two_devices_is_locked_once(pair, locked, recorded, forwards):
    a = pages(3)
    for device in pair:
        with device:
            dm.register(a)
    assert locked() == {a.ctypes.data: 3 * PAGE}
    assert len(recorded.named("host_register")) == 1
    for device in pair:
        round_trip(device, a)
    order = pair if forwards else pair[::-1]
    with order[0]:
        dm.deregister(a)
    assert locked() == {a.ctypes.data: 3 * PAGE}
    with order[1]:
        dm.deregister(a)
    assert locked() == {}
    assert len(recorded.named("host_unregister")) == 1


@both_ways
def test_overlapping_arrays_on_two_devices(pair, locked, forwards):
    raw = pages(6)
    with pair[0]:
        left = dm.register(raw[: 4 * PAGE])
    with pair[1]:
        right = dm.register(raw[2 * PAGE :])
    assert sum(locked().values()) == 6 * PAGE
    for device in pair:
        for array in (raw, raw[PAGE:-PAGE], raw[100:-100].reshape(-1, 8)[:, :5], raw[::3]):
            round_trip(device, array)
    first, last = (left, right) if forwards else (right, left)
    first.close()
    for device in pair:
        round_trip(device, raw)
    last.close()
    assert locked() == {}


def test_each_device_counts_what_was_registered_on_it(pair, locked):
    a = pages(1)
    with pair[0]:
        dm.register(a)
    with pair[1], pytest.raises(dm.DevmemError, match=f"not registered on {pair[1]}.*on the same device"):
        dm.deregister(a)
    assert sum(locked().values()) == PAGE
    with pair[0]:
        dm.deregister(a)
    assert locked() == {}


def test_copies_of_every_device_are_cut_at_page_locked_edges(pair, recorded):
    raw = pages(5)
    with pair[0]:
        block = dm.register(raw[PAGE : 3 * PAGE])
    with recorded.during() as seen:
        round_trip(pair[1], raw)
    sizes = [call.args[2] for call in seen if call.method == "copy"]
    assert sizes == [PAGE, 2 * PAGE, 2 * PAGE] * 2
    block.close()


def test_what_one_device_pinned_another_maps(pair, need, locked):
    need("mapped")
    a = pages(2)
    with pair[0]:
        dm.register(a)
    with pair[1], dm.mapped(a) as view:
        view.fill(7)
        assert dm.to_device(a).tolist() == [7] * a.size
    with pair[0]:
        dm.deregister(a)
    assert locked() == {}


def test_mapped_on_two_devices_at_once(pair, need, locked):
    need("mapped")
    a = pages(2)
    with pair[0]:
        one = dm.mapped(a)
    with pair[1]:
        other = dm.mapped(a)
    with one as left, other as right:
        left[:PAGE] = 1
        right[PAGE:] = 2
        for device in pair:
            device.synchronize()
        assert a.tolist() == [1] * PAGE + [2] * PAGE
        one.close()
        right[:5] = 3
        pair[1].synchronize()
        assert a[:6].tolist() == [3] * 5 + [1]
    assert locked() == {}


# -- copies in flight --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("way", ["deregister", "reset"])
def test_letting_go_waits_for_copies_of_every_device(pair, need, locked, in_background, way):
    """Registered on the first device alone; the copy that is held back runs on the second."""
    need("hold")
    a = pages(1)
    with pair[0]:
        dm.register(a)
    with pair[1]:
        stream = dm.stream(non_blocking=True)
        d = dm.full(PAGE, 9, "u1")
    with hold(stream) as latch:
        d.copy_to_host(a, stream=stream)
        assert not stream.query()
        done = in_background((lambda: dm.deregister(a)) if way == "deregister" else pair[0].reset, pair[0])
        blocked(done, "the memory was let go while another device's copy was held back")
        latch.release()
        assert done.wait(patience())
    assert done.errors == []
    assert locked() == {}
    assert set(a.tolist()) == {9}


def test_deregister_touches_nothing_where_another_devices_copies_cannot_be_waited_for(pair, need, locked, recorded):
    need("hold")
    a = pages(1)
    with pair[0]:
        dm.register(a)
    with pair[1]:
        stream = dm.stream(non_blocking=True)
        d = dm.zeros(PAGE, "u1")
    with hold(stream) as latch, pair[0]:
        d.copy_to_host(a, stream=stream)
        recorded.drivers[pair[1].ordinal].fail_at(1, "event_synchronize")
        with pytest.raises(dm.BackendError, match="injected failure of event_synchronize"):
            dm.deregister(a)
        assert sum(locked().values()) == PAGE
        latch.release()
        dm.deregister(a)
    assert locked() == {}


# -- devices that are closed -------------------------------------------------------------------------------------------


def test_a_reset_of_the_device_that_locked_leaves_the_other_its_memory(pair, locked, recorded):
    a = pages(2)
    for device in pair:
        with device:
            dm.register(a)
    locker = recorded.drivers[pair[0].ordinal]
    pair[0].reset()
    assert locker.registered() == {a.ctypes.data: 2 * PAGE}
    round_trip(pair[1], a)
    round_trip(pair[0], a)  # opened afresh, beside the driver that is kept
    with pair[0], dm.pinned(a):
        assert recorded.drivers[pair[0].ordinal].registered() == {}
    closed = len(recorded.named("close"))
    with pair[1]:
        dm.deregister(a)
    assert locker.registered() == {}
    assert len(recorded.named("close")) == closed + 1, "the driver that was kept is closed with what kept it"
    with pair[1], dm.pinned(a):
        assert sum(locked().values()) == 2 * PAGE
    assert locked() == {}


def test_a_reset_of_the_other_device_takes_only_its_count(pair, locked):
    a = pages(2)
    for device in pair:
        with device:
            dm.register(a)
    pair[1].reset()
    assert sum(locked().values()) == 2 * PAGE
    with pair[1], pytest.raises(dm.DevmemError, match="not registered"):
        dm.deregister(a)
    with pair[0]:
        dm.deregister(a)
    assert locked() == {}


def test_a_mapped_view_keeps_its_address_when_the_device_that_locked_is_reset(pair, need):
    need("mapped")
    a = pages(1)
    with pair[0]:
        dm.register(a)
    with pair[1], dm.mapped(a) as view:
        pair[0].reset()
        view.fill(6)
        dm.synchronize()
        assert set(a.tolist()) == {6}
        with dm.mapped(a) as again:
            assert again.ptr == view.ptr


@both_ways
def test_close_all_devices_in_any_order(pair, locked, forwards, recorded):
    a = pages(1)
    for device in pair if forwards else pair[::-1]:
        with device:
            dm.register(a)
    dm.close()
    assert locked() == {}
    opened = {id(driver.inner) for driver in recorded.drivers.values()}
    assert len(recorded.named("close")) == len(opened)
    for device in pair:
        with device, dm.pinned(a):
            assert sum(locked().values()) == PAGE
    assert locked() == {}


@pytest.mark.races("the driver that checks took the method before the test replaces it")
def test_a_lost_device_takes_its_locks_with_it(pair, recorded):
    a = pages(1)
    for device in pair:
        with device:
            dm.register(a)
    gone = dm.DeviceLost("gone", backend=recorded.name, call="enter", code=-1, name="LOST")
    driver = recorded.drivers[pair[0].ordinal]
    token = driver.inner.enter()
    driver.inner.host_unregister(a.ctypes.data, PAGE)  # what its end would do: this one only plays dead
    driver.inner.exit(token)
    driver.enter = lambda: (_ for _ in ()).throw(gone)
    unlocked = len(recorded.named("host_unregister"))
    pair[0].reset()
    assert recorded.named("close"), "a lost device is closed at once, or it could not be opened afresh"
    round_trip(pair[1], a)
    with pair[1]:
        dm.deregister(a)
    assert len(recorded.named("host_unregister")) == unlocked
    with pair[0], dm.pinned(a):
        round_trip(pair[0], a)


@pytest.mark.races("the driver that checks took the method before the test replaces it")
def test_a_lost_device_does_not_keep_another_from_deregistering(pair, recorded, locked, need):
    need("hold")
    a, b = pages(1), pages(1)
    with pair[1]:
        dm.register(a)
    with pair[0]:
        stream = dm.stream(non_blocking=True)
        d, block = dm.zeros(PAGE, "u1"), dm.register(b)
    gone = dm.DeviceLost("gone", backend=recorded.name, call="enter", code=-1, name="LOST")
    driver = recorded.drivers[pair[0].ordinal]
    enter = driver.enter
    with hold(stream):
        d.copy_to_host(b, stream=stream)
        driver.enter = lambda: (_ for _ in ()).throw(gone)
        try:
            with pair[1]:
                dm.deregister(a)
        finally:
            driver.enter = enter
    assert locked() == {b.ctypes.data: PAGE}
    block.close()


# -- failures half-way -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("nth", [1, 2])
def test_all_or_nothing_beside_another_devices_memory(pair, locked, recorded, nth):
    """The middle pages are another device's: they stay, whichever part of the rest fails."""
    raw = pages(6)
    with pair[0]:
        block = dm.register(raw[2 * PAGE : 4 * PAGE])
    before = locked()
    with pair[1]:
        driver = recorded.drivers[pair[1].ordinal]
        driver.fail_at(nth, "host_register")
        with pytest.raises(dm.BackendError, match="injected failure of host_register"):
            dm.register(raw)
        driver.disarm()
        assert locked() == before
        with dm.register(raw):
            assert sum(locked().values()) == 6 * PAGE
    assert locked() == before
    block.close()
    assert locked() == {}


@contextlib.contextmanager
def complaining(driver, method):
    """A method of one driver raises; those that give something back do so before."""
    sound = getattr(driver, method)

    def broken(*arguments):
        if method != "enter":
            sound(*arguments)
        raise dm.BackendError(f"{method} complains")

    setattr(driver, method, broken)
    try:
        yield
    finally:
        setattr(driver, method, sound)


@pytest.mark.parametrize("method", ["enter", "host_unregister", "exit"])
@pytest.mark.races("the driver that checks took the methods before the test replaces them")
def test_a_driver_that_complains_when_it_lets_go_has_let_go(pair, locked, recorded, method):
    """Locked through the first device, let go by the second: the first one's driver is entered for it."""
    a = pages(1)
    for device in pair:
        with device:
            dm.register(a)
    locker = recorded.drivers[pair[0].ordinal]
    with pair[0]:
        dm.deregister(a)
    with pair[1]:
        with complaining(locker, method), pytest.raises(dm.BackendError, match=f"{method} complains"):
            dm.deregister(a)
        with pytest.raises(dm.DevmemError, match="not registered"):
            dm.deregister(a)
    # A driver that could not be entered has not unlocked: then copies are cut there still, and it is asked again.
    assert locked() == ({a.ctypes.data: PAGE} if method == "enter" else {})
    round_trip(pair[1], a)
    with pair[1], dm.pinned(a):
        assert sum(locked().values()) == PAGE
    assert locked() == {}
    assert recorded.mistakes() == []


@pytest.mark.races("the driver that checks took the methods before the test replaces them")
def test_what_could_not_be_unlocked_is_unlocked_at_the_devices_end(pair, locked, recorded):
    a = pages(1)
    for device in pair:
        with device:
            dm.register(a)
    locker = recorded.drivers[pair[0].ordinal]
    with pair[0]:
        dm.deregister(a)
    with pair[1], complaining(locker, "enter"), pytest.raises(dm.BackendError, match="enter complains"):
        dm.deregister(a)
    there = weakref.ref(a)
    del a
    gc.collect()
    assert there() is not None, "its pages are locked"
    before = len(recorded.named("host_unregister"))
    pair[0].reset()
    assert len(recorded.named("host_unregister")) == before + 1
    gc.collect()
    assert there() is None


# -- threads -----------------------------------------------------------------------------------------------------------


def test_threads_on_two_devices_lock_and_unlock_overlapping_memory(pair, locked, recorded):
    """What a thread has registered itself stays locked, in the same pieces, however others come and go around it."""
    raw = pages(12)

    def work(seed):
        chance = np.random.default_rng(seed)
        device = pair[seed % 2]
        mine = np.zeros(8, "u1")  # shares its page with whatever else is on the heap
        for _ in range(40):
            low, high = sorted(chance.integers(0, raw.size, 2))
            part = raw[low : high + 1]
            with device, dm.pinned(part, mine):
                d, own = dm.to_device(part), dm.to_device(mine)
                d.copy_to_host()
                own.copy_to_host(mine)

    together(*(partial(work, seed) for seed in range(4)))
    assert locked() == {}
    assert recorded.mistakes() == []


@pytest.mark.races("the driver that checks took the methods before the test replaces them")
def test_a_thread_waits_for_pages_that_a_driver_is_busy_with(pair, locked, recorded):
    """While one thread's driver locks, the registry itself is free, and who wants the same pages gets them locked."""
    a, b = pages(1), pages(1)
    entered, leave = threading.Event(), threading.Event()
    driver = recorded.drivers[pair[0].ordinal]
    register = driver.host_register

    def slow(*arguments):
        entered.set()
        assert leave.wait(patience())
        register(*arguments)

    driver.host_register = slow
    done = []

    def run(device, array):
        with device:
            dm.register(array)
        done.append(device)

    first = threading.Thread(target=run, args=(pair[0], a))
    first.start()
    assert entered.wait(patience())
    with pair[1], dm.pinned(b):
        assert list(locked()) == [b.ctypes.data]
    second = threading.Thread(target=run, args=(pair[1], a))
    second.start()
    second.join(0.1)
    assert done == [], "the second device was told that its memory is locked before it was"
    leave.set()
    first.join(patience())
    second.join(patience())
    assert sorted(map(str, done)) == sorted(map(str, pair))
    assert len(recorded.named("host_register")) == 2
    for device in pair:
        with device:
            dm.deregister(a)
    assert locked() == {}


@pytest.mark.races("the driver that checks took the methods before the test replaces them")
def test_registering_while_the_device_is_reset_leaves_nothing_locked(pair, locked, recorded):
    a = pages(1)
    entered, leave = threading.Event(), threading.Event()
    driver = recorded.drivers[pair[0].ordinal]
    register = driver.host_register

    def slow(*arguments):
        entered.set()
        assert leave.wait(patience())
        register(*arguments)

    driver.host_register = slow
    errors = []

    def run():
        try:
            with pair[0]:
                dm.register(a)
        except dm.DevmemError as error:
            errors.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    assert entered.wait(patience())
    handle = pair[0].opened().handle
    resetting = threading.Thread(target=pair[0].reset)
    resetting.start()
    while type(handle.entry) is not ClosedEntry:
        assert resetting.is_alive()
    leave.set()
    thread.join(patience())
    resetting.join(patience())
    assert not resetting.is_alive()
    assert errors == []  # the call had begun before, and what it locked ended with the device
    assert driver.registered() == {}
    with pair[0], dm.pinned(a):
        assert sum(locked().values()) == PAGE


# -- lifetime ----------------------------------------------------------------------------------------------------------


def test_memory_stays_while_its_pages_are_locked_for_a_neighbour(pair, locked):
    """Two arrays that share a page are locked together; the one that is let go first must not be freed under the lock."""
    whole = mmap.mmap(-1, 2 * PAGE)
    a, b = np.frombuffer(whole, "u1", PAGE + 10), np.frombuffer(whole, "u1", 50, PAGE + 20)
    with pair[0]:
        dm.register(a, b)
        dm.deregister(a)
        there = weakref.ref(a)
        del a
        gc.collect()
        assert there() is not None
        assert sum(locked().values()) == 2 * PAGE
        dm.deregister(b)
    gc.collect()
    assert there() is None
    assert locked() == {}
