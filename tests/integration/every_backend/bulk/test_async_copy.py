"""`copy_async`: a copy under way, who owns its sides meanwhile, and where its errors come out."""

from __future__ import annotations

import asyncio
import gc
import weakref

import interrupts
import numpy as np
import pytest
from waits import patience, together

import devmem as dm
from devmem.errors import BackendError, ClosedError, LayoutError

DATA = np.random.default_rng(4).integers(0, 100, (8, 9, 10)).astype("i4")
SLOT = 512

pytestmark = pytest.mark.usefixtures("tidy")


@pytest.fixture(params=["direct", "staged"])
def way(request, with_settings, need_kind):
    """Both ways that pageable memory may go."""
    if request.param == "staged":
        need_kind("pinned")
        with_settings(STAGING_THRESHOLD="100", STAGING_SLOT_BYTES=str(SLOT), STAGING_SLOTS="8", STAGING_THREADS="2")
    else:
        with_settings(STAGING_SLOTS="0")
    return request.param


@pytest.fixture(params=["unnamed", "named", "current"])
def stream(request, way):
    """What the call is given."""
    if request.param == "unnamed":
        yield 0
        return
    made = dm.stream()
    if request.param == "current":
        with made:
            yield 0
    else:
        yield made
    made.synchronize()


def pageable(data=DATA):
    return data.copy()


def pinned(data=DATA):
    made = dm.pinned_array_like(data)
    made[...] = data
    return made


memory = pytest.mark.parametrize("memory", [pageable, pinned])


def room_for(way):
    """Where a download need not wait for its stream: the driver may, for what goes directly to pageable memory."""
    return (pageable if way == "staged" else pinned)(np.zeros_like(DATA))


# -- all directions ----------------------------------------------------------------------------------------------------


@memory
def test_an_upload_gives_a_new_array(memory, stream):
    array = dm.copy_async(memory(), stream=stream).result()
    assert isinstance(array, dm.DeviceNDArray)
    assert array.stream is None or array.stream is stream
    assert np.array_equal(array.copy_to_host(), DATA)


@memory
def test_an_upload_into_an_array_gives_that_array(memory, stream):
    array = dm.zeros(DATA.shape, "i4")
    source = memory()
    under_way = dm.copy_async(source, array, stream=stream)
    assert under_way.result() is array
    assert np.array_equal(array.copy_to_host(), DATA)


def test_a_download_gives_an_ndarray_of_the_callers(stream):
    array = dm.to_device(DATA)
    back = dm.copy_async(array, stream=stream).result()
    assert isinstance(back, np.ndarray)
    assert np.array_equal(back, DATA)
    back[...] = 0  # it is the caller's


@memory
def test_a_download_into_an_array_gives_that_array(memory, stream):
    array, room = dm.to_device(DATA), memory(np.zeros_like(DATA))
    assert dm.copy_async(array, room, stream=stream).result() is room
    assert np.array_equal(room, DATA)


def test_a_copy_within_the_device_gives_its_destination(stream):
    array, other = dm.to_device(DATA), dm.zeros(DATA.shape, "i4")
    assert dm.copy_async(array, other, stream=stream).result() is other
    assert np.array_equal(other.copy_to_host(), DATA)


def test_to_another_device(way, second):
    with dm.device(second):
        other = dm.zeros(DATA.shape, "i4")
    assert dm.copy_async(dm.to_device(DATA), other).result() is other
    assert np.array_equal(other.copy_to_host(), DATA)
    made = dm.copy_async(pageable(), device=second).result()
    assert made.device == second
    assert np.array_equal(made.copy_to_host(), DATA)


@pytest.mark.parametrize(
    "layout", [lambda a: a.transpose(2, 0, 1), lambda a: a[::2, :, ::-3], lambda a: a[:0], lambda a: a[1, 2, 3:4]]
)
def test_every_layout_is_copied(way, layout):
    assert np.array_equal(dm.copy_async(layout(DATA)).result().copy_to_host(), layout(DATA))
    array = layout(dm.to_device(DATA))
    assert np.array_equal(dm.copy_async(array).result(), layout(DATA))
    room = np.full((*array.shape, 2), -1, "i4")
    dm.copy_async(array, room[..., 0]).wait()
    assert np.array_equal(room[..., 0], layout(DATA))
    assert np.all(room[..., 1] == -1)


def test_what_numpy_makes_an_array_of(way):
    assert dm.copy_async([1, 2, 3]).result().copy_to_host().tolist() == [1, 2, 3]
    assert dm.copy_async(2.5).result().copy_to_host() == 2.5


def test_later_work_comes_after(way, need, hold):
    need("hold")
    stream = dm.stream()
    array = dm.to_device(DATA)
    dm.synchronize()
    room = room_for(way)
    with hold(stream) as latch:
        under_way = dm.copy_async(array, room, stream=stream)
        array.fill(0, stream=stream)
        latch.release()
    assert np.array_equal(under_way.result(), DATA)


# -- waiting -----------------------------------------------------------------------------------------------------------


def test_it_returns_while_the_stream_is_held(way, need, hold):
    need("hold")
    stream = dm.stream()
    array, room, other = dm.to_device(DATA), pinned(np.zeros_like(DATA)), room_for(way)
    dm.synchronize()
    with hold(stream) as latch:
        for under_way in (dm.copy_async(array, room, stream=stream), dm.copy_async(array, other, stream=stream)):
            assert not under_way.done()
            assert under_way.wait(timeout=0) is False
            assert under_way.wait(timeout=0.01) is False
            with pytest.raises(TimeoutError, match="still under way"):
                under_way.result(timeout=0.01)
            assert "under way" in repr(under_way)
        latch.release()
        assert under_way.wait() is True
    assert under_way.done()
    assert under_way.wait(timeout=0) is True
    assert under_way.result() is under_way.result()
    assert np.array_equal(under_way.result(timeout=patience()), DATA)
    assert "done" in repr(under_way)
    dm.synchronize()
    assert np.array_equal(room, DATA)


def test_leaving_a_with_block_waits_for_the_copy(way):
    room = np.zeros_like(DATA)
    with dm.copy_async(dm.to_device(DATA), room) as under_way:
        assert isinstance(under_way, dm.Transfer)
    assert np.array_equal(room, DATA)
    with pytest.raises(ZeroDivisionError), dm.copy_async(dm.to_device(DATA), room):
        1 / 0  # noqa: B018


def test_a_transfer_can_be_awaited(way):
    async def main():
        array = await dm.copy_async(DATA)
        one, two = await asyncio.gather(back(array), back(array))
        return one, two

    async def back(array):
        return await dm.copy_async(array)

    for found in asyncio.run(main()):
        assert np.array_equal(found, DATA)


def test_tasks_are_made_of_it(way):
    """It is no coroutine, of which alone create_task() makes tasks: these do."""

    async def main():
        one = asyncio.ensure_future(dm.copy_async(DATA))
        async with asyncio.TaskGroup() as tasks:
            other = tasks.create_task(asyncio.wait_for(dm.copy_async(DATA), None))
        return await one, other.result()

    for found in asyncio.run(main()):
        assert np.array_equal(found.copy_to_host(), DATA)


def test_records_are_copied_both_ways(way):
    record = np.array([(7, 2.5)], [("a", "u1"), ("b", "f8")])[0]
    up = dm.copy_async(record).result()
    assert isinstance(up, dm.DeviceRecord)
    assert up["b"] == 2.5
    down = dm.copy_async(up).result()
    assert isinstance(down, np.void) and down == record


def test_other_tasks_run_meanwhile(way, need, hold):
    need("hold")
    stream, array, room = dm.stream(), dm.to_device(DATA), room_for(way)
    dm.synchronize()
    with hold(stream) as latch:

        async def release():
            for _ in range(10):
                await asyncio.sleep(0)
            latch.release()

        async def main():
            task = asyncio.create_task(release())
            found = await dm.copy_async(array, room, stream=stream)
            await task
            return found

        assert np.array_equal(asyncio.run(main()), DATA)


def test_two_threads_wait(way, need, hold, device):
    need("hold")
    backend, stream, array, room = device.backend, dm.stream(), dm.to_device(DATA), room_for(way)
    dm.synchronize()
    found = []

    def wait():
        with dm.use_backend(backend):
            found.append(under_way.result())
            found.append(under_way.result())

    with hold(stream) as latch:
        under_way = dm.copy_async(array, room, stream=stream)
        together(*[wait] * 4, latch.release)
    assert len(found) == 8
    assert all(each is found[0] for each in found)
    assert np.array_equal(found[0], DATA)


# -- both sides live ---------------------------------------------------------------------------------------------------


def memory_of(array):
    """A weak reference to what owns the memory of a page-locked array."""
    while isinstance(array, np.ndarray):
        array = array.base
    return weakref.ref(array.allocation)


def test_an_upload_keeps_its_dropped_source(way, need, hold):
    """Only the copy refers to its sides; the memory is not given to others while it runs."""
    need("hold")
    stream = dm.stream()
    target = dm.zeros(DATA.shape, "i4")
    source = pinned()
    gone = memory_of(source)
    dm.synchronize()
    with hold(stream) as latch:
        dm.copy_async(source, target, stream=stream)
        dm.copy_async(pageable(), stream=stream)
        del source
        gc.collect()
        assert gone() is not None, "the device still reads it"
        latch.release()
    stream.synchronize()
    dm.trim()
    gc.collect()
    assert gone() is None
    assert np.array_equal(target.copy_to_host(), DATA)


def test_a_download_keeps_its_dropped_destination(way, need, hold):
    need("hold")
    stream = dm.stream()
    array, room, other = dm.to_device(DATA), pinned(np.zeros_like(DATA)), room_for(way)
    gone = memory_of(room)
    dm.synchronize()
    with hold(stream) as latch:
        dm.copy_async(array, room, stream=stream)
        dm.copy_async(array, other, stream=stream)
        del array, room, other
        gc.collect()
        assert gone() is not None, "the device still writes there"
        latch.release()
    stream.synchronize()
    dm.trim()
    gc.collect()
    assert gone() is None
    assert np.array_equal(dm.to_device(DATA).copy_to_host(), DATA)


def test_a_transfer_owns_its_sides(way, need, hold):
    need("hold")
    stream = dm.stream()
    source = pageable()
    gone = weakref.ref(source)
    dm.synchronize()
    with hold(stream) as latch:
        under_way = dm.copy_async(source, stream=stream)
        del source
        assert gone() is not None
        latch.release()
    array = under_way.result()
    stream.synchronize()
    gc.collect()
    assert gone() is None, "when it is complete, the source is let go of"
    del under_way
    assert np.array_equal(array.copy_to_host(), DATA)


def test_copies_run_while_cleanup_is_deferred(way):
    with dm.defer_cleanup():
        array = dm.copy_async(DATA).result()
        dm.copy_async(array)
        back = dm.copy_async(array)
        del array
        assert np.array_equal(back.result(), DATA)


# -- errors ------------------------------------------------------------------------------------------------------------


def test_wrong_arguments_are_told_by_the_call(way):
    array = dm.to_device(DATA)
    with pytest.raises(TypeError, match=r"numpy\.copyto"):
        dm.copy_async(DATA, DATA.copy())
    with pytest.raises(LayoutError):
        dm.copy_async(DATA, array[1:])
    with pytest.raises(LayoutError, match=r"^copy_async: .* dtype"):
        dm.copy_async(array, np.zeros(DATA.shape, "f8"))
    with pytest.raises(LayoutError, match=r"^copy_async: .* shape"):
        dm.copy_async(array, np.zeros(3, DATA.dtype))
    with pytest.raises(LayoutError, match=r"^copy_async: .* read-only"):
        dm.copy_async(array, np.broadcast_to(np.int32(0), DATA.shape))
    with pytest.raises(TypeError, match=r"^copy_async: .* not a list"):
        dm.copy_async(array, [1, 2])
    with pytest.raises(TypeError):
        dm.copy_async(array, stream="fast")
    with pytest.raises(TypeError):
        dm.copy_async(DATA, DATA)
    freed = dm.to_device(DATA)
    freed.free()
    for arguments in ((freed,), (DATA, freed), (array, freed)):
        with pytest.raises(ClosedError):
            dm.copy_async(*arguments)


def test_another_device_than_the_array_is_on(way, second):
    array = dm.to_device(DATA)
    with pytest.raises(
        LayoutError, match=r"to_device\(array, stream, device=.*\) copies it there, and without device= .* host"
    ):
        dm.copy_async(array, device=second)
    with pytest.raises(LayoutError, match="leave it out"):
        dm.copy_async(DATA, array, device=second)


class Failing:
    """A driver that fails whenever it is asked about an event."""

    def __init__(self, driver, *methods):
        self.driver, self.methods, self.asked = driver, methods, 0

    def __getattr__(self, name):
        if name not in self.methods:
            return getattr(self.driver, name)
        return self.fail

    def fail(self, *arguments, **options):
        self.asked += 1
        raise BackendError("the device failed", backend="x", call="event", code=700, name="FAILED")


@pytest.mark.parametrize("how", ["wait", "timeout", "result", "with", "await"])
def test_what_the_driver_says_later_is_told_each_time(way, device, monkeypatch, how):
    context = device.opened()
    array = dm.to_device(DATA)
    under_way = dm.copy_async(array)
    dm.synchronize()
    with monkeypatch.context() as patch:
        failing = Failing(context.handle.driver, "event_query", "event_synchronize")
        patch.setattr(context.handle, "driver", failing)

        async def wait():
            await under_way

        def enter():
            with under_way:
                pass

        calls = {
            "wait": under_way.wait,
            "timeout": lambda: under_way.wait(timeout=5),
            "result": under_way.result,
            "with": enter,
            "await": lambda: asyncio.run(wait()),
        }
        with pytest.raises(BackendError, match="the device failed"):
            calls[how]()
        asked = failing.asked
        assert under_way.done()
        for call in calls.values():
            with pytest.raises(BackendError, match="the device failed"):
                call()
        assert failing.asked == asked, "a copy that has failed is not asked about again"
        assert "failed" in repr(under_way)
        with pytest.raises(ZeroDivisionError), under_way:
            1 / 0  # noqa: B018
    gc.collect()
    assert np.array_equal(array.copy_to_host(), DATA)


def test_nothing_could_be_enqueued(way, device, monkeypatch):
    context, array, room = device.opened(), dm.to_device(DATA), np.full_like(DATA, -1)
    with monkeypatch.context() as patch:
        patch.setattr(context.handle, "driver", Failing(context.handle.driver, "copy"))
        with pytest.raises(BackendError):
            dm.copy_async(array, room)
        with pytest.raises(BackendError):
            dm.copy_async(DATA)
    assert np.all(room == -1)
    assert np.array_equal(dm.copy_async(array, room).result(), DATA)


def test_the_device_was_closed(way):
    array = dm.to_device(DATA)
    under_way, done = dm.copy_async(array), dm.copy_async(array)
    done.wait()
    dm.close()
    for _ in range(2):
        with pytest.raises(ClosedError):
            under_way.result()
    assert np.array_equal(done.result(), DATA)
    with pytest.raises(ClosedError):
        dm.copy_async(array)


@pytest.mark.parametrize(
    ("timeout", "error", "words"),
    [
        ("x", TypeError, "timeout='x' is no number of seconds"),
        ([1], TypeError, "no number of seconds"),
        (True, TypeError, "no number of seconds"),
        (float("nan"), ValueError, "would never be over"),
    ],
)
@pytest.mark.parametrize("verb", ["wait", "result"])
def test_a_timeout_that_is_no_number_of_seconds_is_refused(verb, timeout, error, words):
    copy = dm.copy_async(DATA)
    for _ in range(2):  # under way, maybe; then complete
        with pytest.raises(error, match=words):
            getattr(copy, verb)(timeout=timeout)
        assert copy.wait() is True
    assert copy.wait(timeout=np.float32(1)) is True


@pytest.mark.parametrize("verb", ["wait", "result", "done"])
def test_an_exception_of_a_handler_ends_the_wait_and_not_the_copy(verb, at_point):
    """It may derive from Exception, as the TimeoutError of an alarm does."""
    source, number, left = dm.to_device(np.arange(1000)), 0, 0
    while left <= 0:
        number += 1
        transfer = dm.copy_async(source)
        with at_point(number, lambda code: "devmem" in code.co_filename, interrupts.alarm) as point:
            getattr(transfer, verb)()
        left = point.left
        if "failed" in repr(transfer):  # as the elements were stored: it may be an error of that
            assert "async_copy.py" not in point.where, point.where
            assert "/ordering/" not in point.where, point.where
            for _ in range(2):
                with pytest.raises(TimeoutError):
                    transfer.result()
        else:
            assert transfer.result().tolist() == list(range(1000)), point.where
