"""Which stream waits for which where the caller named none, on foreign streams, and through views that only borrow."""

from __future__ import annotations

import gc
from collections.abc import Iterator

import numpy as np
import pytest

import devmem as dm
from devmem.testing import hold

pytestmark = pytest.mark.usefixtures("tidy")


@pytest.fixture
def foreign(device: dm.Device) -> Iterator[dm.Stream]:
    """A stream that devmem did not make."""
    with device.entered() as driver:
        handle = driver.stream_create(0, True)
    yield dm.external_stream(handle)
    dm.synchronize()
    with device.entered() as driver:
        driver.stream_destroy(handle)
    device.opened().streams._external.pop(handle, None)


@pytest.mark.parametrize("current", ["non-blocking", "foreign"])
def test_memory_made_under_a_current_stream_is_there_for_all(device, foreign, current):
    stream = foreign if current == "foreign" else dm.stream(non_blocking=True)
    data = np.arange(1000.0)
    with stream:
        made = dm.device_array(1000)
        uploaded = dm.to_device(data)
    made.copy_to_device(data)
    np.testing.assert_array_equal(made.copy_to_host(), data)
    np.testing.assert_array_equal(uploaded.copy_to_host(), data)
    made.fill(3)
    other = dm.stream(non_blocking=True)
    np.testing.assert_array_equal(made.copy(stream=other).copy_to_host(), np.full(1000, 3.0))


def test_an_unnamed_allocation_waits_behind_what_its_memory_was_used_for(device, need):
    need("hold")
    stream = dm.stream(non_blocking=True)
    pinned = dm.pinned_array(1000)
    pinned[:] = 1
    with hold(stream) as latch:
        dm.to_device(pinned, stream=stream).free()  # its copy is still to come
        with stream:
            made = dm.device_array(1000)
        latch.release()
        made.fill(2)
    stream.synchronize()
    np.testing.assert_array_equal(made.copy_to_host(), np.full(1000, 2.0))


def put_on_its_default_stream(pinned):
    """On a thread: an upload that is held on the thread's own default stream; the stream, the array and the end of the hold."""
    stream = dm.per_thread_default_stream()
    held = hold(stream)
    latch = held.__enter__()
    return stream, dm.to_device(pinned, stream=stream), latch, held


@pytest.mark.parametrize("how", ["bound", "named", "current", "event", "query"])
def test_the_default_stream_of_another_thread_is_waited_for(in_thread, need, how):
    need("hold")
    pinned, out = dm.pinned_array(1000), dm.pinned_array(1000)
    pinned[:] = 7
    stream, array, latch, held = in_thread(lambda: put_on_its_default_stream(pinned))
    mine = dm.per_thread_default_stream()
    assert mine is not stream
    try:
        match how:
            case "bound":
                array.copy_to_host(out, stream=array.stream)
            case "named":
                array.copy_to_host(out, stream=stream)
            case "current":
                with stream:
                    event = dm.event()
                    event.record()
                    assert not event.query()
            case "event":
                assert not stream.record().query()
            case "query":
                assert not stream.query()
        assert not mine.query()
    finally:
        latch.release()
        held.__exit__(None, None, None)
    stream.synchronize()
    assert how not in ("bound", "named") or (out == 7).all()


@pytest.mark.parametrize("verb", ["copy", "overlapping assignment", "upload"])
def test_memory_used_on_a_foreign_stream_is_not_given_away_early(device, need, foreign, verb):
    need("hold")
    data = np.arange(4096.0)
    source, pinned = dm.to_device(data), dm.pinned_array(4096)
    pinned[:] = data
    with hold(foreign) as latch:
        if verb == "copy":
            source.copy(stream=foreign)
        elif verb == "upload":
            dm.to_device(pinned, stream=foreign)
        else:
            with foreign:
                source.bind(foreign)[1:].copy_to_device(source[:-1], stream=foreign)
        gc.collect()
        if "stream_ordered" in device.info.capabilities and not device.info.default_memory:
            dm.trim()  # where memory is given back to the driver otherwise, that waits for the whole device
        others = [dm.full(4096, 9.0, stream=dm.stream(non_blocking=True)) for _ in range(4)]
        latch.release()
    foreign.synchronize()
    dm.synchronize()
    for other in others:
        np.testing.assert_array_equal(other.copy_to_host(), np.full(4096, 9.0))


@pytest.mark.parametrize("kind", ["mapped", "managed"])
def test_freeing_a_view_leaves_the_host_array_its_memory(device, need_kind, kind):
    need_kind(kind)
    make = dm.mapped_array if kind == "mapped" else dm.managed_array
    array = make(64)
    array[:] = 7
    view = dm.as_device_array(array)
    view.free()
    with pytest.raises(dm.ClosedError):
        view.copy_to_host()
    with dm.as_device_array(array) as again:
        np.testing.assert_array_equal(again.copy_to_host(), np.full(64, 7.0))
    other = make(64)
    other[:] = 1
    np.testing.assert_array_equal(array, np.full(64, 7.0))


def test_a_scope_of_memory_inside_another_loses_nothing(device):
    class Upstream:
        """A resource of its own for each scope."""

        def __init__(self):
            self.inner = dm.memory.DriverMemory()
            self.out = 0

        def bind(self, driver):
            self.inner.bind(driver)

        def allocate(self, nbytes, stream):
            self.out += 1
            return self.inner.allocate(nbytes, stream)

        def deallocate(self, ptr, nbytes, stream):
            self.out -= 1
            self.inner.deallocate(ptr, nbytes, stream)

    outer, inner = Upstream(), Upstream()
    before = dm.memory_info().live
    with dm.use_memory(outer):
        with dm.use_memory(inner):
            pass
        array = dm.device_array(100, "u1")
        assert dm.memory_info().live == before + 100
    assert outer.out == 1
    array.free()
    assert (outer.out, inner.out) == (0, 0)
    assert dm.memory_info().live == before


def test_a_layout_cannot_be_set(device):
    array = dm.device_array((3, 4))
    for name, value in {"shape": (4, 3), "strides": (8, 8), "dtype": np.dtype("f4")}.items():
        with pytest.raises(AttributeError):
            setattr(array, name, value)
    assert (array.shape, array.dtype) == ((3, 4), np.dtype("f8"))


def test_a_resource_that_raises_what_it_likes_is_a_warning_and_no_more(device):
    class Rude:
        def __init__(self):
            self.inner = dm.memory.DriverMemory()
            self.rude = False

        def bind(self, driver):
            self.inner.bind(driver)

        def allocate(self, nbytes, stream):
            return self.inner.allocate(nbytes, stream)

        def deallocate(self, ptr, nbytes, stream):
            self.inner.deallocate(ptr, nbytes, stream)
            if self.rude:
                raise KeyError("boom")

    rude = Rude()
    with dm.use_memory(rude):
        array = dm.device_array(10)
    rude.rude = True
    del array
    with pytest.warns(dm.DevmemWarning, match="boom"):
        dm.trim()
    rude.rude = False
    np.testing.assert_array_equal(dm.to_device([1, 2]).copy_to_host(), [1, 2])
