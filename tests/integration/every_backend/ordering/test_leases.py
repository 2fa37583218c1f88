"""A stream's handle stays valid as long as housekeeping on another thread may name it."""

from __future__ import annotations

from collections import deque
from types import SimpleNamespace

import numpy as np
import pytest
from waits import together

import devmem as dm
from devmem._core.base.device_handle import CurrentDevice
from devmem._core.device.device import current_open_device
from devmem._core.ordering.leases import HandleLeases, OwnedHandle
from devmem.spi.types import LEGACY_STREAM

pytestmark = pytest.mark.usefixtures("tidy")


def elsewhere(action):
    """Run an action on another thread, to its end."""
    together(action)


def once(monkeypatch, driver, verb, action):
    """Run an action right before the driver's next call of a verb, when its arguments have been chosen."""
    original = getattr(driver, verb)

    def call(*arguments, **keywords):
        monkeypatch.setattr(driver, verb, original)
        action()
        return original(*arguments, **keywords)

    monkeypatch.setattr(driver, verb, call)


def is_in_use(handle):
    """Whether a stream of the current device, not one that is kept for the next use, has the handle."""
    owned = dm.current_device().opened().streams._handles.get(handle)
    return owned is not None and not owned.leaving


def on(stream):
    array = dm.to_device(np.arange(1000), stream=stream)
    stream.synchronize()
    return array


def test_a_stream_is_not_named_from_when_it_is_given_up(monkeypatch):
    """The collector takes a stream together with an array in a cycle: what is left of the array names the stream still."""
    opened, stream, named = dm.current_device().opened(), dm.stream(), []
    array = on(stream)
    tell = opened.streams.on_destroy

    def between(
        handle,
    ):  # no lease was held as the handle was given up; one that begins now finds the handle in the table
        tell(handle)
        with opened.streams.leases.hold():
            named.append((array.allocation.home.order_handle(), stream.closed))

    monkeypatch.setattr(opened.streams, "on_destroy", between)
    with dm.current_device(), CurrentDevice(opened.handle):
        stream.owned.release(set())
    monkeypatch.undo()
    assert named == [(LEGACY_STREAM, True)]


@pytest.mark.parametrize("end", ["closed", "dropped"])
def test_a_stream_that_ends_while_all_streams_are_asked_for_captures(need, monkeypatch, end):
    need("capture")
    opened = dm.current_device().opened()
    streams = [dm.stream()]
    handle = streams[0].handle

    def close():
        if end == "closed":
            streams.pop().close()
        else:
            streams.clear()
            dm.trim()

    once(monkeypatch, opened.handle.driver, "capturing", lambda: elsewhere(close))
    with dm.current_device().entered():
        assert not opened.streams.any_capturing()
    dm.trim()
    assert not is_in_use(handle)


@pytest.mark.parametrize("last_use", ["home", "another"])
def test_a_stream_that_ends_while_a_block_is_given_back_behind_it(monkeypatch, last_use):
    opened = dm.current_device().opened()
    home, other = dm.stream(), dm.stream()
    array = on(home)
    array.copy_to_host(stream=other)
    other.synchronize()
    ending = home if last_use == "home" else other
    handle = ending.handle
    verb = "event_record" if opened.memory.stacks.heap.ordered else "stream_synchronize"
    once(monkeypatch, opened.handle.driver, verb, lambda: elsewhere(ending.close))
    array.free()
    assert ending.closed
    assert not is_in_use(handle)
    (other if last_use == "home" else home).close()


def test_a_block_that_comes_back_to_a_pool_on_a_stream_that_was_just_closed():
    """The pool is told of the end when no lease can name the stream any more, or it would keep the handle of a destroyed one."""
    pool, opened = dm.memory.PoolMemory(), dm.current_device().opened()
    stream, leases = dm.stream(), opened.streams.leases
    with dm.use_memory(pool), dm.current_device().entered():
        handle = stream.handle
        ptr = pool.allocate(1000, handle)
        with leases.hold():
            stream.close()
            pool.deallocate(ptr, 1000, handle)
        assert not is_in_use(handle)
        assert handle not in pool._lists.by_stream


def test_a_lease_that_an_interrupt_left_behind_keeps_nothing():
    opened = dm.current_device().opened()
    opened.streams.leases.hold().__enter__()  # and dropped at once
    stream = dm.stream()
    handle = stream.handle
    stream.close()
    assert not is_in_use(handle)


def owned(handle, destroyed):
    """A handle whose end is noted."""
    driver = SimpleNamespace(destroy=destroyed.append)
    made = OwnedHandle(handle, table := {}, SimpleNamespace(driver=driver), "destroy", lambda dropped: True)
    table[handle] = made
    return made


def test_a_handle_waits_for_each_lease_that_was_there_before():
    leases, destroyed = HandleLeases(), []
    for handle in range(3):
        with leases.hold():
            pass
        with leases.hold():
            leases.hold()  # never entered
            leases.destroy(owned(handle, destroyed))
            assert handle not in destroyed
        assert handle in destroyed


def test_a_lease_that_ends_just_as_a_handle_is_given_up_keeps_nothing():
    leases, destroyed = HandleLeases(), []
    lease = leases.hold()

    class GivenUp(deque):
        def append(self, entry):
            lease.__exit__(None, None, None)
            super().append(entry)

    leases.given_up = GivenUp()
    with lease:
        leases.destroy(owned(5, destroyed))
        assert destroyed == [5]


def test_streams_that_come_and_go_in_several_threads():
    host = np.arange(1000)

    def work():
        for _ in range(60):
            stream = dm.stream()
            array = dm.to_device(host, stream=stream)
            stream.synchronize()
            del array, stream

    together(*[work] * 4)


def test_a_stream_that_is_being_destroyed_is_found_by_no_lease_that_begins(device, monkeypatch):
    """Another thread may begin one at any time, here as the memory stacks are told of the stream's end."""
    stream, streams, found = dm.stream(), current_open_device().streams, []
    with dm.use_memory("pool"):
        kept = dm.zeros(3)
        dm.device_array(3, stream=stream).free()  # the stack keeps a block by the stream: it has to be told
    tell = streams.on_destroy

    def look(handle):
        found.append(handle in streams.idle())
        tell(handle)

    monkeypatch.setattr(streams, "on_destroy", look)
    stream.close()
    assert found == [False]
    kept.free()
