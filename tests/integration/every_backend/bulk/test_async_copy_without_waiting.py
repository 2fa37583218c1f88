"""`copy_async` never waits for its stream, whatever the memory, the size, the layout and the direction.

Each copy is made on a stream that is held until the call has returned: a call that waits would never return. What arrives is
what the source held at the call.
"""

from __future__ import annotations

import contextlib
import json
import mmap
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from waits import blocked, patience

import devmem as dm
from devmem._core.copy.staging.growing_ring import SMALLEST
from devmem._core.lifetime.deferred_free import DeferredFreeQueue

pytestmark = pytest.mark.usefixtures("tidy")

SIZES = [1, SMALLEST, SMALLEST + 1, (6 << 20) + 5]
#: Indices into an array of this shape, as what is left of it has the size that a test wants: few wide rows, and many narrow ones.
LAYOUTS = {
    "one run": np.s_[:],
    "reversed": np.s_[::-1],
    "wide rows": np.s_[::2],
    "columns": np.s_[:, ::30],
    "narrow rows": np.s_[:, 5:7],
    "turned": np.s_[...],
    "far apart": np.s_[::100, ::900],
}
SHAPE = (301, 1000)


def numbers(nbytes, seed=0):
    return np.random.default_rng(seed).integers(0, 256, nbytes, np.uint8)


MAKE = {
    "page-locked": ("pinned", dm.pinned_array),
    "mapped": ("mapped", dm.mapped_array),
    "managed": ("managed", dm.managed_array),
}


@contextlib.contextmanager
def room_of(memory, shape, tmp_path, need_kind, need):
    """Host memory of a kind."""
    if memory in MAKE:
        kind, make = MAKE[memory]
        need_kind(kind)
        yield make(shape, "u1")
    elif memory == "registered":
        need("host_register")
        array = np.zeros(shape, np.uint8)
        with dm.pinned(array):
            yield array
    elif memory == "registered in part":
        need("host_register")
        array = np.zeros(shape, np.uint8)
        with dm.pinned(array.reshape(-1)[: array.size // 2]):
            yield array
    elif memory == "mapped file":
        yield np.memmap(tmp_path / "memory", np.uint8, "w+", shape=shape)
    else:
        yield np.zeros(shape, np.uint8)


MEMORIES = ["pageable", "page-locked", "registered", "registered in part", "mapped file", "mapped", "managed"]
memories = pytest.mark.parametrize("memory", MEMORIES)


@pytest.fixture
def stream(need, need_kind):
    need("hold")
    need_kind("pinned")
    return dm.stream(non_blocking=True)


@memories
@pytest.mark.parametrize("nbytes", SIZES)
def test_of_any_size(stream, hold, tmp_path, need_kind, need, memory, nbytes):
    data = numbers(nbytes)
    one, two = dm.zeros(nbytes, "u1"), dm.to_device(data)
    with room_of(memory, nbytes, tmp_path, need_kind, need) as source, room_of("pageable", nbytes, *[None] * 3) as room:
        source[...] = data
        dm.synchronize()
        with hold(stream) as latch:
            up, made = dm.copy_async(source, one, stream=stream), dm.copy_async(data, stream=stream)
            down, new = dm.copy_async(two, room, stream=stream), dm.copy_async(two, stream=stream)
            assert not any(each.done() for each in (up, made, down, new))
            latch.release()
        assert np.array_equal(down.result(), data)
        assert np.array_equal(new.result(), data)
        for each in (up, made):
            assert np.array_equal(each.result().copy_to_host(), data)
        assert np.array_equal(room, data)


@memories
def test_to_memory_of_any_kind(stream, hold, tmp_path, need_kind, need, memory):
    data = numbers(3 << 20)
    array = dm.to_device(data)
    with room_of(memory, data.shape, tmp_path, need_kind, need) as room:
        dm.synchronize()
        with hold(stream) as latch:
            down = dm.copy_async(array, room, stream=stream)
            assert not down.done()
            latch.release()
        assert down.result() is room
        assert np.array_equal(room, data)


@pytest.mark.parametrize("memory", ["pageable", "page-locked"])
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("side", ["both", "the host's", "the device's"])
def test_of_any_layout(stream, hold, tmp_path, need_kind, need, memory, layout, side):
    key, data = LAYOUTS[layout], numbers(SHAPE[0] * SHAPE[1]).reshape(SHAPE)

    def laid_out(array, here):
        if not here:
            return array
        return array.transpose() if layout == "turned" else array[key]

    wanted = laid_out(data, True)
    packed = np.ascontiguousarray(wanted)
    shape = SHAPE if side != "the device's" else packed.shape
    with room_of(memory, shape, tmp_path, need_kind, need) as there:
        host = laid_out(there, side != "the device's")
        device = laid_out(dm.zeros(SHAPE if side != "the host's" else packed.shape, "u1"), side != "the host's")
        other = laid_out(dm.zeros(SHAPE if side != "the host's" else packed.shape, "u1"), side != "the host's")
        other.copy_to_device(packed)
        host[...] = packed
        dm.synchronize()
        with hold(stream) as latch:
            up = dm.copy_async(host, device, stream=stream)
            if memory == "pageable":
                host[...] = 0  # it has been read
            down = dm.copy_async(other, stream=stream)
            assert not (up.done() or down.done())
            latch.release()
        assert np.array_equal(up.result().copy_to_host(), packed)
        assert np.array_equal(down.result(), packed)
        before = there.copy()
        host[...] = 0
        with hold(stream) as latch:
            down = dm.copy_async(other, host, stream=stream)
            assert not down.done()
            latch.release()
        assert np.array_equal(down.result(), packed)
        laid_out(before, side != "the device's")[...] = packed
        assert np.array_equal(there, before), "no byte between the elements was touched"


@pytest.mark.timeout(240)  # a mapped file is written to a disk that others may use too
@pytest.mark.parametrize(
    "memory",
    ["pageable", *(pytest.param(each, marks=pytest.mark.exhaustive) for each in MEMORIES if each != "pageable")],
)
@pytest.mark.parametrize("direction", ["up", "down"])
def test_of_256_mib(stream, hold, tmp_path, need_kind, need, memory, direction):
    """As large as the promise is made for: half of DEVMEM_STAGING_LIMIT."""
    data = np.arange(32 << 20, dtype="u8").view("u1")
    array = dm.zeros(data.size, "u1") if direction == "up" else dm.to_device(data)
    with room_of(memory, data.shape, tmp_path, need_kind, need) as room:
        if direction == "up":
            room[...] = data
        dm.synchronize()
        with hold(stream) as latch:
            copy = (
                dm.copy_async(room, array, stream=stream)
                if direction == "up"
                else dm.copy_async(array, room, stream=stream)
            )
            if direction == "up" and memory in ("pageable", "mapped file"):
                room[...] = 0  # it has been read
            assert not copy.done()
            latch.release()
        copy.wait()
        assert np.array_equal(array.copy_to_host() if direction == "up" else room, data)
    dm.trim()


@pytest.mark.parametrize("kind", ["up", "new on the device", "down", "pinned", "on the device"])
def test_plain_memory_that_was_dropped_is_freed_by_the_wait(stream, hold, kind):
    """To free it may wait for every stream, so the call leaves it alone, however much it is."""
    data = numbers(4096)
    opened = dm.current_device().opened()
    with dm.use_memory("driver"):
        array, other = dm.to_device(data), dm.zeros(4096, "u1")
        dropped = [dm.zeros(4096, "u1") for _ in range(opened.free_queue.max_count + 5)]
        dm.synchronize()
        with hold(stream) as latch:
            for each in dropped:
                each.fill(1, stream=stream)
            dropped.clear()
            del each
            if kind == "up":
                copy = dm.copy_async(data, other, stream=stream)
            elif kind == "new on the device":
                copy = dm.copy_async(data, stream=stream)
            elif kind == "on the device":
                copy = dm.copy_async(array, other, stream=stream)
            else:
                copy = dm.copy_async(array, stream=stream, pinned=kind == "pinned")
            assert not copy.done()
            assert dm.memory_info().pending > 10 * 4096
            latch.release()
        result = copy.result()
        assert dm.memory_info().pending == 0
    assert np.array_equal(result.copy_to_host() if isinstance(result, dm.DeviceNDArray) else result, data)


def test_within_the_device(stream, hold):
    data = numbers(SHAPE[0] * SHAPE[1]).reshape(SHAPE)
    source, target = dm.to_device(data), dm.zeros(SHAPE, "u1")
    dm.synchronize()
    with hold(stream) as latch:
        moved = dm.copy_async(source[::7, ::9], target[::7, ::9], stream=stream)
        assert not moved.done()
        latch.release()
    moved.wait()
    assert np.array_equal(target[::7, ::9].copy_to_host(), data[::7, ::9])


def test_a_pageable_source_may_change_when_the_call_has_returned(stream, hold):
    for nbytes in (1, 1000, 3 << 20):
        data, target = numbers(nbytes), dm.zeros(nbytes, "u1")
        source = data.copy()
        dm.synchronize()
        with hold(stream) as latch:
            up = dm.copy_async(source, target, stream=stream)
            source[...] = 0
            latch.release()
        assert np.array_equal(up.result().copy_to_host(), data)


@pytest.mark.parametrize("verb", ["to_device", "copy_to_device", "assignment", "batch", "copy_async", "upload of rows"])
@pytest.mark.parametrize(
    ("nbytes", "registered"),
    [
        *((nbytes, "nothing") for nbytes in (8, 4096, 3 << 20)),
        (1000, "a neighbour"),  # on the same page, which is locked as a whole
        *((nbytes, "its first half") for nbytes in (1000, 3 << 20)),
    ],
)
def test_a_pageable_source_has_been_read_when_any_verb_returns(stream, hold, verb, nbytes, registered, need, request):
    """The stream is held when the source is overwritten; a verb that waits for it finds it released after a while."""
    data, room = numbers(nbytes), np.zeros(nbytes + 2 * mmap.PAGESIZE, "u1")
    start = -room.ctypes.data % mmap.PAGESIZE + 100
    source, target = room[start : start + nbytes], dm.zeros(nbytes, "u1")
    source[:] = data
    if registered != "nothing":
        need("host_register")
        lock = dm.pinned(room[start - 100 : start] if registered == "a neighbour" else source[: nbytes // 2])
        request.addfinalizer(lock.close)
    dm.synchronize()
    with hold(stream, patience=0.2, tolerant=True) as latch:
        if verb == "to_device":
            target = dm.to_device(source, stream=stream)
        elif verb == "copy_to_device":
            target.copy_to_device(source, stream=stream)
        elif verb == "assignment":
            with stream:
                target.bind(stream)[...] = source
        elif verb == "batch":
            target, _ = dm.to_device_many([source, source], stream)
        elif verb == "copy_async":
            copy = dm.copy_async(source, target, stream=stream)
        else:
            wide = np.repeat(source, 2)
            target.copy_to_device(wide[::2], stream=stream)
            wide[...] = 0
        source[...] = 0
        if verb == "copy_async":
            assert not copy.done()
        latch.release()
    stream.synchronize()
    assert np.array_equal(target.copy_to_host(), data)


def test_pageable_memory_is_written_by_who_waits_or_asks(stream, hold):
    data = numbers(3 << 20)
    array, event = dm.to_device(data), dm.event()
    dm.synchronize()
    for ask in ("done", "wait", "nothing"):
        room = np.zeros_like(data)
        down = dm.copy_async(array, room, stream=stream)
        event.record(stream)
        event.synchronize()
        stream.synchronize()
        dm.copy_async(array, stream=stream).wait()  # another copy needs slots, and leaves it alone
        assert not room.any()
        if ask == "done":
            assert down.done()
        elif ask == "wait":
            down.wait()
        del down
        assert np.array_equal(room, data) if ask != "nothing" else not room.any()


def test_beyond_the_limit_a_call_waits_for_the_oldest_copy_and_the_trace_says_so(
    need, need_kind, hold, with_settings, tmp_path, in_background
):
    need("hold")
    need_kind("pinned")
    with_settings(STAGING_LIMIT=str(4 * SMALLEST), TRACE=str(tmp_path / "trace.json"))
    stream = dm.stream(non_blocking=True)
    targets = [dm.zeros(1000, "u1") for _ in range(6)]
    dm.synchronize()
    with hold(stream) as latch:
        first = [dm.copy_async(numbers(1000, at), targets[at], stream=stream) for at in range(4)]
        rest = in_background(
            lambda: [dm.copy_async(numbers(1000, at), targets[at], stream=stream).wait() for at in (4, 5)]
        )
        blocked(rest)
        latch.release()
        assert rest.wait(patience())
    assert rest.errors == []
    for each in first:
        each.wait()
    for at, target in enumerate(targets):
        assert np.array_equal(target.copy_to_host(), numbers(1000, at))
    dm.close()
    events = json.loads((tmp_path / "trace.json").read_text() + "]")
    assert any("DEVMEM_STAGING_LIMIT bytes are in flight" in event["name"] for event in events)


def test_many_small_copies_and_then_a_large_one_stay_within_the_limit(need_kind, with_settings):
    """Idle slots of other sizes make room."""
    need_kind("pinned")
    limit = 32 * SMALLEST
    with_settings(STAGING_LIMIT=str(limit))
    stream, data = dm.stream(), numbers(1 << 20)
    array = dm.to_device(data)
    opened = dm.current_device().opened()
    for nbytes in (100, 1 << 20, 70_000, 200_000, 1 << 20, 1):
        for _ in range(40):
            back = dm.copy_async(array[:nbytes], stream=stream)
        assert np.array_equal(back.result(), data[:nbytes])
        assert sum(slot.nbytes for slot in opened.growing_ring.made) <= limit
    del back
    dm.synchronize()
    dm.trim()
    assert not opened.growing_ring.made


def test_the_benchmark_is_within_its_limits(stream, devmem_backend):
    """Every memory, direction and small size, and other devices: what `benchmarks/copy_async.py` judges."""
    script = Path(__file__).parents[4] / "benchmarks" / "copy_async.py"
    command = [sys.executable, str(script), "--quick", "--backend", devmem_backend]
    for _ in range(3):  # other load of the machine only adds time
        done = subprocess.run(command, capture_output=True, text=True, timeout=patience(140), check=False)
        if done.returncode == 0:
            return
    pytest.fail(f"three times:\n{done.stdout}{done.stderr}")


def test_without_a_limit_or_page_locked_memory_copies_arrive_too(with_settings):
    with_settings(STAGING_LIMIT="0")
    data = numbers(3 << 20)
    array = dm.copy_async(data).result()
    assert np.array_equal(dm.copy_async(array).result(), data)
    assert not dm.current_device().opened().growing_ring.made


def test_an_interrupted_call_leaves_its_thread_able_to_wait(at_point):
    """Otherwise this thread would free nothing any more whose release may wait."""
    queue, code = dm.current_device().opened().memory.queue, DeferredFreeQueue.without_waiting.__wrapped__.__code__
    number, left = 0, 0
    while left <= 0:
        number += 1
        with at_point(number, code.__eq__) as at, queue.without_waiting():
            pass
        assert not queue._hurried, at.where
        left = at.left
    assert number > 2
