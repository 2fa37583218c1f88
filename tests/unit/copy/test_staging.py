"""The parts of staging, each over a driver that can be held and made to fail."""

from __future__ import annotations

import gc
import math
import sys
import threading
import weakref
from collections import deque
from collections.abc import Iterator
from functools import partial
from queue import SimpleQueue
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from waits import blocked, patience, together

import devmem as dm
from devmem._core.base.layout import span
from devmem._core.bulk.files.disk import OpenFile
from devmem._core.copy.staging import growing_ring
from devmem._core.copy.staging import ring as ring_module
from devmem._core.copy.staging import workers as workers_module
from devmem._core.copy.staging.blocks import block_offset, block_shape, blocks
from devmem._core.copy.staging.download import Download
from devmem._core.copy.staging.upload import upload
from devmem._core.copy.staging.workers import CopyWorkers
from devmem.backends.host.hooks import HostBackend
from devmem.spi.errors import BackendError, OutOfMemory
from devmem.spi.types import MemoryKind
from devmem.testing import FaultyBackend, hold

SLOT, SLOTS = 256, 3

# -- blocks ------------------------------------------------------------------------------------------------------------

SHAPES = st.lists(st.integers(0, 7), max_size=4).map(tuple)


@given(SHAPES, st.integers(1, 9), st.integers(1, 300))
def test_blocks_are_the_array_in_order(shape, itemsize, limit):
    numbers = np.arange(math.prod(shape)).reshape(shape)
    found = []
    for block in blocks(shape, itemsize, limit):
        part = numbers[block]
        assert part.size * itemsize <= max(limit, itemsize)
        assert block_shape(shape, block) == np.shape(part)
        if part.size:
            assert block_offset(numbers.strides, block) == part.flat[0] * numbers.itemsize
        found += np.ravel(part).tolist()
    assert found == list(range(numbers.size))


@given(st.data())
def test_blocks_of_elements_that_lie_apart(data):
    """Every element is in one block, and none reaches over more bytes than the limit, gaps among them."""
    shape = data.draw(st.lists(st.integers(1, 6), min_size=1, max_size=4).map(tuple))
    itemsize, limit = data.draw(st.integers(1, 9)), data.draw(st.integers(1, 300))
    strides, reach = [], itemsize
    for length in reversed(shape):
        strides.insert(0, data.draw(st.sampled_from([reach, reach + 1, 3 * reach])))
        reach += (length - 1) * strides[0]
    numbers, seen = np.arange(math.prod(shape)).reshape(shape), []
    for block in blocks(shape, itemsize, limit, tuple(strides)):
        low, high = span(block_shape(shape, block), tuple(strides), itemsize)
        assert low == 0
        assert high <= max(limit, itemsize)
        seen += np.ravel(numbers[block]).tolist()
    assert seen == list(range(numbers.size))


def test_blocks_are_of_much_the_same_size():
    sizes = [numbers[0].stop - numbers[0].start for numbers in blocks((101,), 1, 25)]
    assert len(sizes) == 5
    assert max(sizes) - min(sizes) <= 1


@pytest.mark.parametrize("length", [64, 65, 129, 1000, 4096, 99_999])
@pytest.mark.parametrize("limit", [64, 100, 2500, 4096])
def test_runs_of_bytes_are_cut_at_cache_lines(length, limit):
    ends = [part[0].stop for part in blocks((length,), 1, limit) if part[0].stop is not None]
    assert all(end % 64 == 0 for end in ends[:-1])
    assert all(0 < part[0].stop - part[0].start <= limit for part in blocks((length,), 1, limit) if part[0].stop)


# -- the workers ----------------------------------------------------------------------------------------------------------


@pytest.fixture
def small_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(workers_module, "PART", 16)


@pytest.fixture
def workers(small_parts: None) -> Iterator[CopyWorkers]:
    made = CopyWorkers(4)
    yield made
    made.close()


@given(st.data())
def test_a_crew_copies_any_layout(data):
    shape = tuple(data.draw(st.lists(st.integers(1, 9), min_size=1, max_size=3)))
    axes = data.draw(st.permutations(range(len(shape))))
    turned = [shape[axis] for axis in axes]
    source = np.arange(math.prod(shape), dtype="u1").reshape(turned).transpose(np.argsort(axes))
    flips = tuple(slice(None, None, data.draw(st.sampled_from([1, -1]))) for _ in shape)
    source = source[flips]
    room = np.full((*shape[:-1], 2 * shape[-1]), 99, "u1")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(workers_module, "PART", 16)
        SHARED.copy(room[..., ::2], source)
    assert np.array_equal(room[..., ::2], source)
    assert np.all(room[..., 1::2] == 99)


SHARED = CopyWorkers(3)


def test_runs_of_bytes_are_copied_whole(workers):
    for size in (1, 15, 16, 4096, 4097, 3 * 4096 + 5):
        source = np.random.default_rng(size).integers(0, 256, size, np.uint8)
        there = np.zeros_like(source)
        workers.copy(there, source)
        assert np.array_equal(there, source)


def test_one_thread_is_the_callers():
    workers, before = CopyWorkers(1), set(threading.enumerate())
    workers.copy(np.zeros(10 << 20, "u1"), np.zeros(10 << 20, "u1"))
    assert set(threading.enumerate()) <= before


def test_the_caller_copies_the_parts_that_no_worker_takes(small_parts, monkeypatch):
    workers = CopyWorkers(4)
    monkeypatch.setattr(workers, "_start", lambda closes: None)  # all of them are busy elsewhere, and stay so
    source, there = np.arange(400), np.zeros(400, int)
    workers.copy(there, source)
    assert np.array_equal(there, source)


def test_where_no_thread_is_to_be_had_the_caller_does_it(small_parts, monkeypatch):
    workers = CopyWorkers(4)

    def refuse(thread):
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", refuse)
    source, there = np.arange(400), np.zeros(400, int)
    workers.copy(there, source)
    assert np.array_equal(there, source)


@pytest.mark.parametrize("where", [0, 1, 3])
def test_errors_come_out_when_all_are_done(workers, monkeypatch, where):
    sound, lock, count = workers_module.copy_elements, threading.Lock(), [0]

    def copy(dst, src):
        with lock:
            at, count[0] = count[0], count[0] + 1
        if at == where:
            raise MemoryError("no")
        sound(dst, src)

    monkeypatch.setattr(workers_module, "copy_elements", copy)
    with pytest.raises(MemoryError, match="no"):
        workers.copy(np.zeros(400, int), np.arange(400))
    assert count[0] >= 4
    monkeypatch.undo()
    there = np.zeros(400, int)
    workers.copy(there, np.arange(400))
    assert np.array_equal(there, np.arange(400))


@pytest.mark.own_thread
def test_an_interrupt_waits_for_the_others():
    """At each line that the caller comes by: no slot may be given away while a thread still writes to it."""
    caller, workers, left, interrupted = threading.current_thread(), CopyWorkers(3), 0, 0

    def interrupt(frame, event, arg):
        nonlocal left
        if event == "line":
            left -= 1
            if left == 0:
                raise KeyboardInterrupt
        return interrupt

    def trace(frame, event, arg):
        return interrupt if frame.f_code.co_filename == workers_module.__file__ else None

    try:
        workers.run([lambda: None] * 3)  # its threads are there
        before = sys.gettrace()
        for line in range(1, 1000):
            left, begun, ended = line, [], []
            at_work, go_on = threading.Event(), threading.Event()

            def step(begun=begun, ended=ended, at_work=at_work, go_on=go_on):
                begun.append(True)
                if threading.current_thread() is caller:
                    at_work.wait(patience())
                else:
                    at_work.set()
                    go_on.wait(patience())
                ended.append(True)

            timer = threading.Timer(0.02, go_on.set)
            timer.start()
            sys.settrace(trace)
            try:
                workers.run([step] * 4)
            except KeyboardInterrupt:
                interrupted += 1
            finally:
                sys.settrace(before)
            found = len(begun)
            assert found == len(ended), f"after line {line}, it went on while others were at work"
            timer.join(patience())
            assert len(begun) == found, f"after line {line}, a step was begun when it had gone on"
            if left > 0:
                break
    finally:
        workers.close()
    assert interrupted > 20


def test_parked_threads_keep_nothing_alive(workers):
    class Mine(np.ndarray):
        pass

    source, there = np.arange(400).view(Mine), np.zeros(400, int).view(Mine)
    workers.copy(there, source)
    gone = weakref.ref(source), weakref.ref(there)
    del source, there
    # A thread that has told its result lets go of the arrays next: the next part that it does comes after.
    for _ in range(50):
        workers.copy(np.zeros(400, int), np.arange(400))
        gc.collect()
        if not any(each() is not None for each in gone):
            return
    pytest.fail("a parked thread holds an array")


def test_steps_are_taken_at_the_same_time():
    workers, together, met = CopyWorkers(3), threading.Barrier(3), []
    workers.run([lambda: met.append(together.wait(patience())) for _ in range(3)])
    assert sorted(met) == [0, 1, 2]
    with pytest.raises(OSError, match="disk"):
        workers.run([lambda: None, lambda: (_ for _ in ()).throw(OSError("disk")), lambda: None])
    workers.close()


def test_no_two_threads_have_one_name(monkeypatch):
    """Two callers start them at the same time."""
    made = []
    workers = CopyWorkers(4)

    class Running(deque):
        def extend(self, numbers):
            super().extend(numbers)
            if len(self) == 1:
                workers._start(workers._closes)  # the other caller

    monkeypatch.setattr(threading, "Thread", lambda name, **_: made.append(name) or SimpleNamespace(start=lambda: None))
    workers._running = Running()
    workers._start(workers._closes)
    assert len(made) == len(set(made)) == 3


def test_what_starts_threads_starts_none_after_the_close(monkeypatch):
    """An interrupted call has left it behind: it goes on beside the close."""
    started = []

    class Thread:
        def __init__(self, **_):
            pass

        def start(self):
            started.append(self)
            if len(started) == 1:
                workers.close()

    workers = CopyWorkers(3)
    monkeypatch.setattr(threading, "Thread", Thread)
    workers._start(workers._closes)
    assert len(started) == workers._jobs.qsize() == 1  # and this one is told to end
    workers._start(workers._closes)
    assert len(started) == 3


def test_after_an_interrupted_close_one_thread_is_missing_at_most(monkeypatch, at_point):
    monkeypatch.setattr(threading, "Thread", lambda **_: SimpleNamespace(start=lambda: None))
    for begun in (False, True):
        number, left = 0, 0
        while left <= 0:
            number, workers = number + 1, CopyWorkers(4)
            if begun:
                workers._start(workers._closes)
            with at_point(number, lambda code: code.co_filename == workers_module.__file__) as point:
                workers.close()
            left, running = point.left, 3 * begun - workers._jobs.qsize()
            workers._start(workers._closes)
            assert len(workers._running) >= 2, point.where
            assert running >= 0
        assert number > 2
        assert running == 0
        assert len(workers._running) == 3


def test_closing_lets_the_threads_end(small_parts):
    def mine():
        threads = {thread for thread in threading.enumerate() if thread.name.startswith("devmem-staging-")}
        return threads - before

    before = set(threading.enumerate())
    workers = CopyWorkers(3)
    workers.copy(np.zeros(400, int), np.arange(400))
    threads = mine()
    assert len(threads) == 2
    assert all(thread.daemon for thread in threads)
    workers.close()
    for thread in threads:
        thread.join(patience())
        assert not thread.is_alive()
    there = np.zeros(400, int)
    workers.copy(there, np.arange(400))  # others are started
    assert np.array_equal(there, np.arange(400))
    threads = mine()
    del workers
    for thread in threads:
        thread.join(patience())
        assert not thread.is_alive(), "a workers that was dropped lets its threads end too"


def test_several_callers_share_a_crew(workers):
    failures: SimpleQueue[str] = SimpleQueue()

    def work(seed):
        rng = np.random.default_rng(seed)
        for _ in range(30):
            source = rng.integers(0, 256, int(rng.integers(1, 3000)), np.uint8)
            there = np.zeros_like(source)
            workers.copy(there, source)
            if not np.array_equal(there, source):
                failures.put(f"{seed}")

    together(*(partial(work, seed) for seed in range(4)))
    assert failures.empty()


# -- the ring ----------------------------------------------------------------------------------------------------------


@pytest.fixture
def backend(monkeypatch: pytest.MonkeyPatch) -> Iterator[FaultyBackend]:
    """The strict host backend, which stages everything from 100 bytes on through three slots of 256 bytes.

    What copies in the background pass through is three more.
    """
    sizes = {"SLOTS": SLOTS, "SLOT_BYTES": SLOT, "THRESHOLD": 100, "LIMIT": SLOTS * SLOT}
    for name, value in {**sizes, "THREADS": 2}.items():
        monkeypatch.setenv(f"DEVMEM_STAGING_{name}", str(value))
    monkeypatch.setattr(growing_ring, "SMALLEST", SLOT)
    dm.close()
    made = FaultyBackend(HostBackend())
    made.configure({"strict": True, "devices": 1})
    dm.register_backend(made)
    try:
        with dm.use_backend("faulty"):
            yield made
    finally:
        made.disarm()
        dm.unregister_backend("faulty")
        monkeypatch.undo()
        dm.close()
    assert made.mistakes() == []


@pytest.fixture
def context(backend: FaultyBackend) -> Any:
    return dm.current_device().opened()


def data(nbytes: int = 5 * SLOT + 17, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 256, nbytes, np.uint8)


def pinned_bytes(backend: FaultyBackend) -> int:
    blocks = backend.drivers[0].blocks().values()
    return sum(nbytes for nbytes, kind in blocks if kind is MemoryKind.PINNED)


def whole(context: Any) -> bool:
    """Every slot that was made can be taken."""
    return all(set(ring.free_slots()) == set(ring.made) for ring in (context.ring, context.growing_ring))


def round_trip(context: Any) -> None:
    sent = data(seed=9)
    assert np.array_equal(dm.to_device(sent).copy_to_host(), sent)
    assert whole(context)


@pytest.mark.parametrize(
    ("nbytes", "blocks"),
    [(1 << 20, 1), (4 << 20, 1), (10 << 20, 3), (16 << 20, 4), (40 << 20, 4), (64 << 20, 4), (1 << 30, 64)],
)
def test_a_copy_that_fits_into_a_few_slots_is_cut_into_several_blocks(nbytes, blocks):
    """Or the device would wait until the host has filled all of it, and the other way round."""
    ring = dm.current_device().opened().ring
    assert (ring.slot_bytes, ring.slot_limit) == (16 << 20, 4)
    limit = ring.block_bytes(nbytes)
    assert limit <= ring.slot_bytes
    assert -(-nbytes // limit) == blocks


def test_slots_are_made_when_they_are_needed_and_no_more(backend, context):
    assert pinned_bytes(backend) == 0
    dm.to_device(data(SLOT))
    assert pinned_bytes(backend) == SLOT
    stream = dm.stream()
    sent = data(20 * SLOT)
    array = dm.device_array(sent.shape, "u1")
    with hold(stream) as latch:
        timer = threading.Timer(0.2, latch.release)
        timer.start()
        array.copy_to_device(sent, stream=stream)
    stream.synchronize()
    assert pinned_bytes(backend) == SLOTS * SLOT
    assert np.array_equal(array.copy_to_host(), sent)
    assert pinned_bytes(backend) == SLOTS * SLOT
    assert whole(context)
    dm.trim()
    assert pinned_bytes(backend) == SLOTS * SLOT, "giving page-locked memory back may wait for the whole device"
    dm.close()
    assert pinned_bytes(backend) == 0


def test_a_slot_is_used_again_only_after_its_event(backend, context):
    stream = dm.stream()
    first, second = data(SLOTS * SLOT, 1), data(SLOTS * SLOT, 2)
    one, two = (dm.device_array(first.shape, "u1") for _ in range(2))
    with hold(stream) as latch:
        one.copy_to_device(first, stream=stream)  # the slots are full, and nothing of it has been copied yet
        keep = first.copy()
        first[...] = 0

        def more():
            with dm.use_backend("faulty"):
                two.copy_to_device(second, stream=stream)

        thread = threading.Thread(target=more)
        thread.start()
        blocked(thread, "a slot was used again before the device had read it")
        latch.release()
        thread.join(patience())
        assert not thread.is_alive()
    stream.synchronize()
    assert np.array_equal(one.copy_to_host(), keep)
    assert np.array_equal(two.copy_to_host(), second)


def test_a_copy_does_not_wait_for_another_stream(backend, context):
    held, other = dm.stream(non_blocking=True), dm.stream(non_blocking=True)
    sent, more = data(SLOTS * SLOT, 1), data(4 * SLOT, 2)
    one, two = dm.device_array(sent.shape, "u1"), dm.device_array(more.shape, "u1")
    dm.synchronize()
    with hold(held) as latch:
        one.copy_to_device(sent, stream=held)
        two.copy_to_device(more, stream=other)
        other.synchronize()
        assert np.array_equal(two.copy_to_host(stream=other), more)
        latch.release()
    held.synchronize()
    assert np.array_equal(one.copy_to_host(), sent)
    assert whole(context)
    assert len(context.ring.made) == SLOTS


def test_blocks_ofpageable_slot_memory_are_bounded_too(backend, context, monkeypatch):
    """They are on the caller's own stream, which may be waited for: of a driver that reads them later, as here."""
    held, other = dm.stream(non_blocking=True), dm.stream(non_blocking=True)
    sent, more = data(SLOTS * SLOT, 1), data(20 * SLOT, 2)
    one, two = dm.device_array(sent.shape, "u1"), dm.device_array(more.shape, "u1")
    dm.synchronize()
    sound, ordinary, in_flight = context.handle.driver, ring_module.pageable_slot, []

    class Late:
        def __getattr__(self, name):
            return getattr(sound, name)

        def copy(self, *args, **named):
            sound.copy(*args, **named)
            return not named["blocking"]

        def stream_synchronize(self, handle):
            if handle == other.handle:
                latch.release()
            sound.stream_synchronize(handle)

    def counted(nbytes):
        in_flight.append(sum(kept.nbytes for _, keep in context.completions.in_flight.get(other, ()) for kept in keep))
        return ordinary(nbytes)

    monkeypatch.setattr(ring_module, "pageable_slot", counted)
    with hold(held):
        one.copy_to_device(sent, stream=held)
        with hold(other) as latch:
            monkeypatch.setattr(context.handle, "driver", Late())
            two.copy_to_device(more, stream=other)
            monkeypatch.setattr(context.handle, "driver", sound)
    dm.synchronize()
    assert len(in_flight) == 20
    assert 0 < max(in_flight) < SLOTS * SLOT
    assert np.array_equal(two.copy_to_host(), more)
    assert np.array_equal(one.copy_to_host(), sent)


def test_a_finalizer_that_copies_while_a_slot_is_looked_for(backend, context, monkeypatch):
    """The collector may run it at any time, on the thread that is in the middle of a copy."""
    stream, sent, sound, nested = dm.stream(), data(), context.handle.driver, []
    array = dm.to_device(sent)

    class Collecting:
        def __getattr__(self, name):
            return getattr(sound, name)

        def event_query(self, event):
            if not nested:
                nested.append(True)
                nested.append(np.array_equal(array.copy_to_host(), sent))
            return sound.event_query(event)

    monkeypatch.setattr(context.handle, "driver", Collecting())
    assert np.array_equal(dm.to_device(sent, stream=stream).copy_to_host(), sent)
    monkeypatch.undo()
    assert nested == [True, True]
    round_trip(context)


def test_a_handler_that_trims_while_a_slot_is_looked_for(backend, context, monkeypatch):
    """The slots that the search has listed are the driver's again then, and none of them may be taken."""
    stream, sent, sound, nested = dm.stream(), data(), context.handle.driver, []
    array = dm.to_device(sent)

    class Trimming:
        def __getattr__(self, name):
            return getattr(sound, name)

        def event_query(self, event):
            if not nested:
                nested.append(True)
                sound.synchronize()
                context.ring.trim()
            return sound.event_query(event)

    monkeypatch.setattr(context.handle, "driver", Trimming())
    array.copy_to_device(sent[::-1].copy(), stream=stream)
    monkeypatch.undo()
    assert nested
    assert np.array_equal(array.copy_to_host(stream=stream), sent[::-1])
    round_trip(context)


@pytest.mark.parametrize("made", [0, 1, 2])
def test_page_locked_memory_runs_out(backend, context, made):
    stream, sent = dm.stream(), data()
    array = dm.device_array(sent.shape, "u1", stream=stream)

    def refuse(method):
        return OutOfMemory("no page-locked memory", backend="faulty", call=method, code=2, name="OUT")

    backend.fail_at(made + 1, "alloc", refuse, repeat=True)
    with hold(stream) as latch:
        timer = threading.Timer(0.2, latch.release)
        timer.start()
        array.copy_to_device(sent, stream=stream)
        timer.join(patience())
    stream.synchronize()
    backend.disarm()
    assert len(context.ring.made) == context.ring.slot_limit == made
    assert backend.injected == ["alloc"], "it is not tried again for each block"
    assert np.array_equal(array.copy_to_host(), sent)
    with dm.current_device().entered():
        context.ring.trim()
    round_trip(context)
    assert context.ring.slot_limit == SLOTS, "tried again when memory was given back"


@pytest.mark.parametrize("made", [0, 1])
def test_after_a_trim_more_slots_are_made(backend, context, made):
    backend.fail_at(made + 1, "alloc", lambda method: OutOfMemory("no page-locked memory", code=2), repeat=True)
    array = dm.device_array(5 * SLOT, "u1")
    array.copy_to_device(data(5 * SLOT))
    backend.disarm()
    round_trip(context)
    assert len(context.ring.made) == made
    dm.trim()
    round_trip(context)
    assert len(context.ring.made) == SLOTS


def test_memory_that_runs_out_takes_the_slots(backend, context):
    dm.use_memory(dm.memory.DriverMemory())
    round_trip(context)
    assert pinned_bytes(backend)
    backend.fail_at(1, "alloc")
    array = dm.device_array(100)
    assert backend.injected == ["alloc"]
    assert pinned_bytes(backend) == 0
    backend.disarm()
    array.free()
    round_trip(context)


def test_a_slot_whose_download_waits_is_emptied_by_the_next_copy_that_needs_it(backend, context):
    sent = data(SLOTS * SLOT)
    array = dm.to_device(sent)
    stream = dm.stream()
    back = np.zeros_like(sent)
    dm.synchronize()
    with hold(stream):  # or a block would be taken out on the way
        under_way = dm.copy_async(array, back, stream=stream)
    stream.synchronize()
    assert not back.any(), "the download was not waited for"
    other = data(3 * SLOT, 4)
    assert np.array_equal(dm.copy_async(other).result().copy_to_host(), other)
    assert np.array_equal(back[:SLOT], sent[:SLOT]), (
        "emptied on the way; the other slots too, unless the first was free again"
    )
    assert under_way.result() is back
    assert np.array_equal(back, sent)
    assert whole(context)


@pytest.mark.parametrize("who", ["waits", "another copy"])
def test_storing_that_is_interrupted_is_done_later(backend, context, monkeypatch, who):
    """By Ctrl-C, in a wait that may be repeated, or in a copy that only needs the slot: the download has not failed."""
    sent, stream = data(SLOTS * SLOT), dm.stream()
    array = dm.to_device(sent)
    with hold(stream):
        under_way = dm.copy_async(array, stream=stream)
    stream.synchronize()
    interrupted, sound = [], under_way._download._store

    def store(block, elements):
        if not interrupted:
            interrupted.append(True)
            raise KeyboardInterrupt
        sound(block, elements)

    monkeypatch.setattr(under_way._download, "_store", store)
    with pytest.raises(KeyboardInterrupt):
        under_way.wait() if who == "waits" else dm.copy_async(data())
    assert whole(context)
    assert np.array_equal(under_way.result(), sent)
    round_trip(context)


STAGING = {
    each.__code__.co_filename
    for each in (ring_module.Ring.take, growing_ring.GrowingRing.take, Download.finish, upload)
}


def is_staging(code: Any) -> bool:
    return code.co_filename in STAGING


@pytest.mark.own_thread
@pytest.mark.parametrize("what", ["to_device", "copy_to_host", "trim"])
def test_an_interrupt_keeps_no_slot_from_the_next_copy(backend, context, what, at_point):
    """At each point, wherever the slot is then: being made, taken, filled, put back. One may stay with the driver."""
    with context.device:  # current on this thread, too
        array, sent = dm.device_array(data().shape, "u1"), data()
        target, lost = np.zeros_like(sent), 0
        for line in range(1, 5000):
            array.copy_to_device(sent)
            assert array.open_device is context
            assert context.ring.made
            with context.device.entered():
                if what != "trim":
                    context.ring.trim()  # so that they are made again
                with at_point(line, is_staging) as interrupt:
                    if what == "to_device":
                        array.copy_to_device(sent)
                    elif what == "copy_to_host":
                        array.copy_to_host(target)
                    else:
                        context.ring.trim()
            assert whole(context), interrupt.where
            assert not context.ring._making, interrupt.where
            assert all(slot.holder is None for slot in context.ring.made), interrupt.where
            if what != "trim":
                before, lost = lost, pinned_bytes(backend) - len(context.ring.made) * SLOT
                assert lost - before in (0, SLOT), interrupt.where
            if interrupt.left > 0:
                break
        assert line > (15 if what == "trim" else 200)
        round_trip(context)


class Meanwhile(ring_module.Slot):
    """A slot whose holder is looked at while another thread makes a slot."""

    ring: Any = None

    @property
    def holder(self) -> Any:
        if self.ring is not None:
            self.ring.made[object()] = None  # never looked at: those that were there are enough
        return None

    @holder.setter
    def holder(self, lease: Any) -> None:
        pass

    @property
    def reader(self) -> None:
        _ = self.holder

    @reader.setter
    def reader(self, reader: Any) -> None:
        pass


@pytest.mark.parametrize("what", ["free slots", "close"])
def test_slots_are_made_while_the_ring_looks_at_them(backend, context, what):
    ring = ring_module.Ring(context.handle, context.completions, context.streams, context.statistics)
    slot = ring.made[Meanwhile(np.zeros(1, "u1"), 0, 0)] = None
    [slot] = ring.made
    slot.ring = ring
    if what == "free slots":
        assert ring.free_slots() == [slot]
    else:
        ring._destroy = lambda slots: None
        ring.close()
    assert len(ring.made) == 2


@pytest.mark.own_thread
def test_a_wait_that_is_interrupted_can_be_repeated(backend, context, at_point):
    """At each point: no block that a download waits for is lost with its slot."""
    sent = data(SLOTS * SLOT)
    array, stream = dm.to_device(sent), dm.stream()
    for line in range(1, 5000):
        with hold(stream):  # or a block would be taken out on the way
            under_way = dm.copy_async(array, stream=stream)
        stream.synchronize()
        with at_point(line, is_staging) as interrupt:
            under_way.wait()
        assert whole(context), interrupt.where
        assert np.array_equal(under_way.result(), sent), interrupt.where
        if interrupt.left > 0:
            break
    assert line > 60
    round_trip(context)


def test_a_download_stores_a_block_whose_storing_was_interrupted(backend, context, monkeypatch):
    """Another thread has the slot, is interrupted, and puts it back."""
    sent, stream = data(SLOTS * SLOT), dm.stream()
    array = dm.to_device(sent)
    with hold(stream):
        under_way = dm.copy_async(array, stream=stream)
    stream.synchronize()
    main, results, tried = threading.current_thread(), [], threading.Event()
    thread = threading.Thread(target=lambda: results.append(under_way.result()))
    sound_store, sound_claim, sound_back = (
        under_way._download._store,
        context.growing_ring.claim,
        context.growing_ring.give_back,
    )

    def store(block, elements):
        if threading.current_thread() is main and not thread.is_alive() and not results:
            thread.start()
            raise KeyboardInterrupt
        sound_store(block, elements)

    def claim(slot, lease, *turn):
        found = sound_claim(slot, lease, *turn)
        if threading.current_thread() is thread and not found:
            tried.set()
        return found

    def give_back(lease):
        if threading.current_thread() is main and thread.is_alive():
            assert tried.wait(patience()), "the other thread wants this slot, and waits for it"
        sound_back(lease)

    monkeypatch.setattr(under_way._download, "_store", store)
    monkeypatch.setattr(context.growing_ring, "claim", claim)
    monkeypatch.setattr(context.growing_ring, "give_back", give_back)
    with pytest.raises(KeyboardInterrupt):
        dm.copy_async(data())
    thread.join(patience())
    assert not thread.is_alive()
    assert np.array_equal(results[0], sent)
    round_trip(context)


def test_a_dropped_download_leaves_its_destination_alone(backend, context):
    sent = data(SLOTS * SLOT)
    array = dm.to_device(sent)
    stream, back = dm.stream(), np.zeros(SLOTS * SLOT, "u1")
    dm.synchronize()
    with hold(stream):
        under_way = dm.copy_async(array, back, stream=stream)
        del under_way
    stream.synchronize()
    gc.collect()
    round_trip(context)
    assert not back.any()


@pytest.mark.parametrize("how", ["stored", "waited for", "begun", "file"])
def test_a_download_that_failed_keeps_nothing_once_its_error_is_gone(backend, context, monkeypatch, tmp_path, how):
    """Without a collection: neither its destination nor the device array."""
    array, target = dm.to_device(data()), np.zeros_like(data())
    refs = [weakref.ref(array), weakref.ref(target)]

    def refuse(*_):
        raise OSError("the disk is full")

    if how == "stored":
        monkeypatch.setattr(workers_module, "copy_elements", refuse)
    elif how == "file":
        monkeypatch.setattr(OpenFile, "write", refuse)
    else:
        backend.fail_at(1, "event_synchronize" if how == "waited for" else "copy")

    def copy(array, target):
        with pytest.raises((OSError, BackendError)):
            if how == "file":
                dm.save(array, tmp_path / "a.npy")
            else:
                array.copy_to_host(target)

    gc.collect()
    gc.disable()
    try:
        copy(array, target)
        backend.disarm()
        del array, target
        assert all(each() is None for each in refs)
    finally:
        gc.enable()


class Mine:
    """Something that a caller has in a variable."""


@pytest.mark.parametrize("how", ["stored", "waited for"])
def test_a_download_that_another_copy_ended_keeps_nothing(backend, context, monkeypatch, how):
    """Without a collection: not those who needed its slot, while it waits to be told; nor its destination, when it is dropped."""
    array, stream, target = dm.to_device(data(SLOTS * SLOT)), dm.stream(), np.zeros(SLOTS * SLOT, "u1")
    dm.synchronize()
    with hold(stream):
        under_way = dm.copy_async(array, target, stream=stream)
    stream.synchronize()

    def refuse(*_):
        raise OSError("the disk is full")

    def need_a_slot(under_way):
        mine = Mine()
        if how == "stored":
            with monkeypatch.context() as patch:
                patch.setattr(under_way._download, "_store", refuse)
                dm.copy_async(data())
        else:
            backend.fail_at(1, "event_synchronize")
            with pytest.raises(BackendError):
                dm.copy_async(data())
            backend.disarm()
        assert under_way._download.failed
        return weakref.ref(mine)

    gc.collect()
    gc.disable()
    try:
        assert need_a_slot(under_way)() is None
        dropped = weakref.ref(target)
        del under_way, target
        dm.synchronize()
        dm.trim()
        assert dropped() is None
    finally:
        gc.enable()
    round_trip(context)


def test_closing_the_device_ends_a_download_that_was_not_waited_for(backend, context):
    array = dm.to_device(data(2 * SLOT))
    download = Download(context.ring, context.copies.submitter, lambda *_: None)
    with dm.current_device().entered():
        download.start(array, context.streams.default)
    dm.close()
    assert isinstance(download._error, dm.ClosedError)


@pytest.mark.parametrize(
    "method", ["copy", "event_record", "event_synchronize", "event_query", "event_create", "alloc"]
)
@pytest.mark.parametrize("direction", ["up", "down"])
def test_failures_in_the_middle(backend, context, method, direction):
    stream = dm.stream()
    sent = data()
    array = dm.to_device(sent)
    back = np.zeros_like(sent)
    dm.synchronize()
    error = BackendError("injected", backend="faulty", call=method, code=5, name="INJECTED")

    def copy():
        if direction == "up":
            array.copy_to_device(sent, stream=stream)
        else:
            array.copy_to_host(back, stream=stream)

    failures = 0
    for nth in range(1, 12):
        with dm.current_device().entered():
            context.ring.trim()
            context.completions.events.drop_spare()
        backend.fail_at(nth, method, error)
        failed = None
        try:
            copy()
            stream.synchronize()
        except BackendError as found:
            failed = found
        assert failed in (None, error)
        backend.disarm()
        if not backend.injected:
            break
        failures += failed is not None
        stream.synchronize()
        dm.trim()
        assert whole(context)
        assert pinned_bytes(backend) == len(context.ring.made) * SLOT
        copy()
        stream.synchronize()
        assert np.array_equal(array.copy_to_host(), sent)
        assert np.array_equal(array.copy_to_host(back), sent)
    assert nth > 1
    assert failures or method in ("event_synchronize", "event_query")


def test_after_a_failed_download_the_destination_is_not_written(backend, context):
    array = dm.to_device(data())
    back = np.zeros(array.size, "u1")
    backend.fail_at(3, "copy")
    with pytest.raises(BackendError) as kept:
        array.copy_to_host(back)
    backend.disarm()
    back[...] = 7  # the caller's again, although the error is kept, and with it every frame of the call
    round_trip(context)
    assert np.all(back == 7)
    del kept


def test_a_slot_whose_stream_cannot_be_waited_for_is_never_used_again(backend, context):
    stream = dm.stream()
    array = dm.device_array(2 * SLOT, "u1")
    sound = context.handle.driver
    backend.fail_at(1, "copy")

    class Broken:
        def __getattr__(self, name):
            return getattr(sound, name)

        def stream_synchronize(self, handle):
            raise BackendError("lost", backend="faulty", call="stream_synchronize", code=6, name="LOST")

    context.handle.driver = Broken()
    try:
        with pytest.raises(BackendError, match="injected"):
            array.copy_to_device(data(2 * SLOT), stream=stream)
    finally:
        context.handle.driver = sound
    backend.disarm()
    [held] = set(context.ring.made) - set(context.ring.free_slots())
    sent = data()
    assert np.array_equal(dm.to_device(sent).copy_to_host(), sent)
    assert len(context.ring.made) <= SLOTS
    assert held not in context.ring.free_slots()


def test_threads_never_make_one_slot_too_many(backend, context):
    """Each slot is counted from the moment on at which it is being made."""
    found: list[Any] = []

    def take():
        with dm.use_backend("faulty"), dm.current_device().entered():
            lease = context.ring.lease(context.streams.legacy)
            found.append((context.ring.take(lease, SLOT), lease))

    together(*[take] * 6)
    assert len(found) == 6
    assert len(context.ring.made) == sum(slot.in_ring for slot, _ in found) == SLOTS
    for _, lease in found:
        context.ring.release(lease)
    round_trip(context)
