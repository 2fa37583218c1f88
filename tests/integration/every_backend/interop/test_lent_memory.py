"""Memory that another library was given stays there beyond the device that it came from, until that library lets go of it."""

from __future__ import annotations

import gc
import weakref
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

import devmem as dm
from devmem._core.device.open_device import closing_drivers
from devmem._core.lifetime import deferred_free
from devmem.memory import DriverMemory, PoolMemory, Statistics
from devmem.testing import hold

pytestmark = pytest.mark.usefixtures("tidy")

DATA = np.arange(1000.0)


@pytest.fixture
def left():
    """The devices that this test has left open. What other tests let leak is not its own."""
    before = closing_drivers.copy()
    return lambda: [each for each in closing_drivers if each not in before]


@pytest.fixture(autouse=True)
def addressable(with_settings):
    """The strict host backend hides its memory from everything but the device that it came from."""
    with_settings(HOST_STRICT="0")


def settle():
    """Let go of what was dropped, behind the streams that have used it."""
    gc.collect()
    dm.trim()
    dm.synchronize()
    dm.trim()


class Consumer:
    """Another library's array: a capsule that it took, and can hand on."""

    def __init__(self, array):
        self.device = array.__dlpack_device__()
        self.capsule = array.__dlpack__(max_version=(1, 0))

    def __dlpack_device__(self):
        return self.device

    def __dlpack__(self, **keywords):
        return self.capsule


@pytest.mark.parametrize("stack", [DriverMemory, PoolMemory])
@pytest.mark.parametrize("end", [dm.reset, dm.close])
def test_a_consumer_reads_it_after_the_device_was_closed(left, stack, end):
    with dm.use_memory(stack()):
        consumer = Consumer(dm.to_device(DATA))
        end()
    found = dm.from_dlpack(consumer)
    assert len(left()) == 1
    np.testing.assert_array_equal(found.copy_to_host(), DATA)
    del found, consumer
    settle()
    assert not left()


def test_an_array_interface_is_good_as_long_as_its_array_lives(left):
    if not dm.current_device().info.exchange.array_interface:
        pytest.skip("arrays have no __cuda_array_interface__ there")
    array = dm.to_device(DATA)
    interface = dict(array.__cuda_array_interface__)
    interface["stream"] = None
    dm.reset()

    lent = SimpleNamespace(__cuda_array_interface__=interface, owner=array)
    np.testing.assert_array_equal(dm.as_device_array(lent).copy_to_host(), DATA)
    assert not left()[0][0].memory.queue.dropped
    del array, lent
    settle()
    assert not left()


def test_numpy_reads_it(left):
    if dm.current_device().info.exchange.device_type != 1:
        pytest.skip("NumPy reads no memory of this device")
    array = dm.to_device(DATA)
    host = np.from_dlpack(array)
    dm.reset()
    assert host[3] == 3
    del array
    gc.collect()
    dm.reset()
    np.testing.assert_array_equal(host, DATA)
    del host
    gc.collect()
    dm.to_device(DATA)
    assert not left()


def test_host_memory_goes_back_to_its_pool_after_the_device_was_closed(left, need_kind):
    """Where blocks of a pool and others are dropped together, all of them, and what the driver keeps open with them."""
    need_kind("managed")
    files, counted = Path("/proc/self/fd"), set[int]()
    for _ in range(4):
        array = dm.to_device(DATA)
        kept = [dm.copy_async(array, pinned=True).result() for _ in range(3)] + [
            dm.pinned_array(3),
            dm.managed_array(3),
        ]
        dm.reset()
        np.testing.assert_array_equal(kept[0], DATA)
        assert len(left()) == 1
        kept.clear()
        settle()
        assert not left()
        if files.is_dir():
            counted.add(len(list(files.iterdir())))
    assert len(counted) <= 1


@pytest.mark.parametrize("error", [RuntimeError, KeyboardInterrupt])
def test_a_block_whose_return_fails_does_not_keep_the_others(left, need_kind, monkeypatch, error):
    need_kind("managed")
    first, second = dm.managed_array(3), dm.pinned_array(3)
    dm.reset()
    heap = next(each for each in left()[0][0].memory.stacks.all_heaps() if each.kind == "managed")
    deallocate = heap.deallocate

    def fail(*block):
        deallocate(*block)
        raise error

    monkeypatch.setattr(heap, "deallocate", fail)
    del first
    del second
    with pytest.raises(error):
        dm.trim()
    settle()
    assert not left()


class Untrimmed(Statistics):
    """A stack that cannot give back what it keeps."""

    def trim(self, keep_bytes):
        raise RuntimeError("it keeps all")


def test_a_stack_that_fails_behind_the_close_keeps_no_device_from_opening(left, need_kind):
    """That it fails is told by the close, and again where more came back to it; the next opening can only warn of it."""
    need_kind("pinned")
    with dm.use_memory(Untrimmed(DriverMemory())):
        array, first, second = dm.to_device(DATA), dm.pinned_array(3), dm.pinned_array(3)
    with pytest.raises(RuntimeError, match="keeps all"):
        dm.reset()
    for _ in range(2):
        np.testing.assert_array_equal(dm.to_device(DATA).copy_to_host(), DATA)
        dm.reset()
    del array, first
    gc.collect()
    with pytest.warns(dm.DevmemWarning, match="keeps all"):
        dm.to_device(DATA)
    dm.reset()
    del second
    gc.collect()
    with pytest.raises(RuntimeError, match="keeps all"):
        dm.trim()
    assert not left()


@pytest.mark.parametrize("pooled", [False, True])
def test_blocks_behind_an_event_go_back_after_the_device_was_closed(left, need_kind, recorded, pooled):
    """Where the wait of the close has failed, they are left behind an event that the close destroys."""
    need_kind("pinned")
    kept = dm.pinned_array(3)
    with dm.use_memory(PoolMemory()):
        stream = dm.stream()
        array = dm.to_device(DATA, stream=stream)
        result = dm.copy_async(array, stream=stream, pinned=True).result()
        stream.synchronize()
        if pooled:
            array.free()
            del result
        else:
            kept, result = result, None
            del array
        gc.collect()
        recorded.fail_at(1, "synchronize", repeat=True)
        with pytest.raises(dm.BackendError):
            dm.reset()
        recorded.disarm()
    assert len(left()) == 1
    del kept
    settle()
    assert not left()
    assert recorded.live() == (0, 0, 0, 0)


def test_what_was_let_go_of_before_keeps_nothing(left):
    consumer = Consumer(dm.to_device(DATA))
    del consumer
    gc.collect()
    freed = dm.to_device(DATA)
    capsule = freed.__dlpack__()
    freed.free()
    dm.reset()
    assert not left()
    del capsule


@pytest.mark.parametrize("kind", ["mapped", "managed"])
def test_memory_that_the_host_sees_keeps_nothing_when_it_has_gone(left, need_kind, kind):
    """A device's view of it is no block of the heap that it was made for, which would never be told of its end."""
    need_kind(kind)
    array = getattr(dm, f"{kind}_array")(10)
    part = array[3:]
    capsule = part.__dlpack__(max_version=(1, 0))
    with suppress(AttributeError):  # not every device's arrays have one
        part.__cuda_array_interface__  # noqa: B018
    del array, part, capsule
    settle()
    dm.reset()
    assert not left()


def test_memory_of_another_library_that_was_handed_on_keeps_nothing(left):
    theirs = dm.from_dlpack(Consumer(dm.to_device(DATA)))
    capsule = theirs[10:].__dlpack__()
    with suppress(AttributeError):
        theirs.__cuda_array_interface__  # noqa: B018
    del theirs, capsule
    settle()
    dm.reset()
    assert not left()


class Owner:
    """What keeps the memory of yet another library alive."""


def test_an_interrupt_lets_go_of_no_memory_that_a_consumer_s_stream_may_use(need, at_point):
    """At each point where the owner of borrowed memory is kept until that stream has passed."""
    need("hold")
    queue, stream = dm.current_device().opened().memory.queue, dm.stream(non_blocking=True)
    number, left = 0, 0
    with dm.current_device().entered(), hold(stream) as latch:
        while left <= 0:
            number += 1
            owner = Owner()
            there = weakref.ref(owner)
            exported = deferred_free.ExportedForeign(queue, owner, stream)
            del exported, owner  # a finalizer queues it
            assert queue.foreign_releases
            with at_point(number, lambda code: code.co_filename == deferred_free.__file__) as at:
                queue.release_foreign()
            assert there(), at.where
            queue.release_foreign()
            assert there(), at.where
            assert not queue.foreign_releases
            left = at.left
        latch.release()
    stream.synchronize()
    settle()
    assert not there()
    assert number > 3
