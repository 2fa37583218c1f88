"""`prefetch`: items in order, a bounded number of them ahead of the caller, and an end that leaves nothing behind."""

from __future__ import annotations

import asyncio
import gc
import os
import subprocess
import sys
import threading
import weakref
from contextlib import suppress
from pathlib import Path
from types import MappingProxyType

import numpy as np
import pytest
from waits import patience

import devmem as dm
from devmem._core.arrays import creation
from devmem._core.base.polling import until
from devmem._core.pool import free_lists
from devmem.testing import hold

pytestmark = pytest.mark.usefixtures("tidy")

PATIENCE = patience()


def batches(count, nbytes=1000):
    for number in range(count):
        yield np.full(nbytes, number, np.uint8)


def is_over(thread):
    thread.join(PATIENCE)
    return not thread.is_alive()


@pytest.mark.parametrize("depth", [1, 2, 7])
@pytest.mark.parametrize("nbytes", [1, 100_000, 20 << 20])
def test_items_come_in_order(depth, nbytes):
    count = 4 if nbytes > 1 << 20 else 12
    found = [batch.copy_to_host() for batch in dm.prefetch(batches(count, nbytes), depth)]
    assert len(found) == count
    for number, host in enumerate(found):
        assert host.shape == (nbytes,)
        assert (host == number).all()


def test_trees_of_arrays_come_as_they_are():
    def samples():
        for number in range(3):
            yield {"x": np.full((2, 3), number, "f4"), "y": [np.arange(number), (np.array(number), 7)]}

    for number, sample in enumerate(dm.prefetch(samples())):
        assert np.array_equal(sample["x"].numpy(), np.full((2, 3), number, "f4"))
        assert np.array_equal(sample["y"][0].numpy(), np.arange(number))
        assert [leaf.item() for leaf in sample["y"][1]] == [number, 7]


def test_records_and_arrays_of_the_device_come_through():
    array = dm.to_device(np.arange(3))
    record = np.array([(1, 2.0)], [("a", "i4"), ("b", "f8")])[0]
    [(same, made)] = dm.prefetch([(array, record)])
    assert same is array
    assert array.stream is None
    assert isinstance(made, dm.DeviceRecord)
    assert made["b"] == 2.0


def test_no_more_are_ahead_than_asked_for():
    taken = []

    def source():
        for number in range(10):
            taken.append(number)
            yield np.array([number])

    with dm.prefetch(source(), 3) as ahead:
        assert until(lambda: len(taken) == 3, PATIENCE)
        assert ahead._loader.places.empty()
        for handed in range(1, 4):
            next(ahead)
            assert until(lambda handed=handed: len(taken) == 3 + handed, PATIENCE)
            assert ahead._loader.places.empty()
    assert len(taken) == 6


def test_the_host_waits_for_no_stream(need):
    need("hold")
    stream = dm.Stream()
    ahead = dm.prefetch(batches(6), 2, stream=stream)
    with hold(stream):
        found = list(ahead)
        assert [batch.stream for batch in found] == [stream] * 6
    assert [batch.copy_to_host()[0] for batch in found] == list(range(6))


def test_the_callers_stream_waits_for_the_copies(need, need_kind):
    need("hold")
    need_kind("pinned")
    source = dm.pinned_array(1000, "u1")
    source[...] = 5
    stream = dm.Stream()
    asked = threading.Event()

    def one():
        asked.wait(PATIENCE)
        yield source

    ahead = dm.prefetch(one(), stream=stream)
    with hold(ahead._loader.stream):
        asked.set()
        batch = next(ahead)
        out = dm.pinned_array(1000, "u1")
        batch.copy_to_host(out, stream)
        assert not stream.query()
    stream.synchronize()
    assert (out == 5).all()
    ahead.close()


def test_any_other_stream_waits_at_its_first_use(need, need_kind):
    need("hold")
    need_kind("pinned")
    source = dm.pinned_array(1000, "u1")
    source[...] = 6
    asked = threading.Event()

    def one():
        asked.wait(PATIENCE)
        yield source

    ahead, other = dm.prefetch(one()), dm.Stream(non_blocking=True)
    with hold(ahead._loader.stream):
        asked.set()
        batch = next(ahead)
        out = dm.pinned_array(1000, "u1")
        batch.copy_to_host(out, other)
        assert not other.query()
    other.synchronize()
    assert (out == 6).all()
    ahead.close()


def test_it_uses_the_stack_that_was_chosen_where_it_was_made():
    stack = dm.memory.Statistics(dm.memory.DriverMemory())
    with dm.use_memory(stack):
        list(dm.prefetch(batches(3)))
    assert stack.total_count == 3


def test_it_goes_where_it_is_told(second):
    assert [batch.device for batch in dm.prefetch(batches(2), device=second)] == [second, second]


# -- the end -----------------------------------------------------------------------------------------------------------


def test_an_error_comes_behind_the_items_before_it():
    def source():
        yield np.zeros(3)
        yield np.ones(3)
        raise KeyError("the file is gone")

    ahead = dm.prefetch(source())
    assert [next(ahead)[0], next(ahead)[0]] == [0, 1]
    with pytest.raises(KeyError, match="the file is gone"):
        next(ahead)
    with pytest.raises(StopIteration):
        next(ahead)
    assert is_over(ahead._loader.thread)


def test_what_cannot_be_uploaded_says_which_item_it_is():
    ahead = dm.prefetch([np.zeros(3), np.array([object()])])
    next(ahead)
    with pytest.raises(dm.LayoutError) as info:
        next(ahead)
    assert "devmem.prefetch: item 1" in " ".join(info.value.__notes__)


def test_a_loop_that_is_left_closes_the_iterable_and_drops_the_rest():
    closed = threading.Event()
    live = dm.memory_info().live

    def source():
        try:
            while True:
                yield np.zeros(1 << 16)
        finally:
            closed.set()

    for number, batch in enumerate(dm.prefetch(source(), 3)):
        if number == 2:
            del batch
            break
    assert closed.wait(PATIENCE)
    gc.collect()
    assert until(lambda: dm.memory_info().live == live, PATIENCE)


def test_a_body_that_raises_closes_it_too():
    ahead = dm.prefetch(batches(100))
    with pytest.raises(ZeroDivisionError), ahead:
        next(ahead)
        1 / 0  # noqa: B018
    assert not ahead._loader.thread.is_alive()
    with pytest.raises(StopIteration):
        next(ahead)
    ahead.close()


def test_an_error_of_the_iterables_end_is_told():
    class Source:
        def __iter__(self):
            return self

        def __next__(self):
            raise StopIteration

        def close(self):
            raise OSError("cannot be closed")

    with pytest.raises(OSError, match="cannot be closed"):
        next(dm.prefetch(Source()))


def test_it_keeps_nothing_alive_that_was_handed_over():
    host = np.zeros(1000)
    ahead = dm.prefetch(iter([host, np.zeros(3)]), 1)
    gone = weakref.ref(next(ahead).allocation)
    next(ahead)
    dm.trim()
    assert gone() is None
    ahead.close()


def test_a_reset_ends_it():
    ahead = dm.prefetch(batches(100), 1)
    next(ahead)
    ahead._opened.device.reset()
    with pytest.raises(dm.ClosedError):
        list(ahead)
    ahead.close()


@pytest.mark.parametrize("depth", [0, -1, 1 << 17, 1 << 70])
def test_a_depth_has_bounds(depth):
    with pytest.raises(dm.LayoutError, match="depth"):
        dm.prefetch([], depth)


def test_what_is_no_iterable_is_refused_at_the_call():
    with pytest.raises(TypeError, match="iterable"):
        dm.prefetch(7)


@pytest.mark.parametrize(
    "given", [{"x": np.arange(3)}, MappingProxyType({"x": np.arange(3)})], ids=lambda given: type(given).__name__
)
def test_one_batch_in_a_mapping_is_not_its_keys(given):
    with pytest.raises(
        TypeError, match=r"gives its keys: for one batch give \[batch\], for several batches.values\(\)"
    ):
        dm.prefetch(given)
    (batch,) = dm.prefetch([dict(given)])
    assert batch["x"].tolist() == [0, 1, 2]


@pytest.mark.parametrize("name", ["part-0.npy", b"part-0.npy", Path("part-0.npy")])
def test_the_name_of_a_file_is_not_uploaded_as_text(name):
    if not isinstance(name, Path):
        with pytest.raises(TypeError, match=r"part-0.*devmem.load\(path\)"):
            dm.prefetch(name)
    with dm.prefetch([np.arange(3), name]) as batches:
        assert next(batches).tolist() == [0, 1, 2]
        with pytest.raises(TypeError, match=r"part-0.*devmem.load\(path\)") as raised:
            next(batches)
        assert "item 1" in raised.value.__notes__[0]


# -- async for ---------------------------------------------------------------------------------------------------------


def test_async_for_lets_other_tasks_run():
    go, ticks = threading.Event(), []

    def source():
        yield np.array([0])
        go.wait(PATIENCE)  # until another task has run
        yield np.array([1])

    async def tick():
        await asyncio.sleep(0)
        ticks.append(True)
        go.set()

    async def main():
        other, found = None, []
        async for batch in dm.prefetch(source(), 1):
            found.append(int(batch[0]))
            other = other or asyncio.ensure_future(tick())
        await other
        return found

    assert asyncio.run(main()) == [0, 1]
    assert ticks == [True]


def test_several_tasks_share_one():
    async def take(ahead, found):
        async for batch in ahead:
            found.append(int(batch[0]))
            await asyncio.sleep(0)

    async def main():
        found, ahead = [], dm.prefetch((np.array([n]) for n in range(50)), 2)
        await asyncio.gather(*(take(ahead, found) for _ in range(5)))
        return found

    assert sorted(asyncio.run(main())) == list(range(50))


def test_a_cancelled_wait_loses_no_item():
    go = threading.Event()

    def source():
        go.wait(PATIENCE)
        yield np.array([3])

    async def main():
        ahead = dm.prefetch(source())
        with pytest.raises(asyncio.TimeoutError):
            await asyncio.wait_for(ahead.__anext__(), 0.01)
        go.set()
        return [int(batch[0]) async for batch in ahead]

    assert asyncio.run(main()) == [3]


def test_an_error_comes_to_async_for():
    def source():
        yield np.zeros(1)
        raise OSError("gone")

    async def main():
        return [batch async for batch in dm.prefetch(source())]

    with pytest.raises(OSError, match="gone"):
        asyncio.run(main())


def test_the_interpreter_ends_while_one_is_under_way(device):
    program = """
import numpy as np, devmem as dm
def forever():
    while True:
        yield np.zeros(1 << 20)
ahead = dm.prefetch(forever(), 2)
next(ahead)
print("left")
"""
    run = subprocess.run(
        [sys.executable, "-W", "error", "-c", program],
        capture_output=True,
        text=True,
        env={**os.environ, "DEVMEM_BACKEND": device.backend},
        timeout=patience(),
    )
    assert (run.returncode, run.stdout, run.stderr) == (0, "left\n", "")


# -- handlers and finalizers ------------------------------------------------------------------------------------------------


def test_a_handler_waits_for_no_thread_that_may_want_what_its_own_thread_holds(at_point):
    """At each point at which the pool's lock is held, which the upload takes too: it raises, and the item comes afterwards."""
    number, left = 0, 0
    while left <= 0:
        number, gate, answers = number + 1, threading.Event(), []

        def source(gate=gate):
            assert gate.wait(PATIENCE)
            yield np.arange(3000)

        with dm.use_memory(dm.memory.PoolMemory()):
            items = dm.prefetch(source())

            def handler(gate=gate, items=items, answers=answers):
                gate.set()
                with suppress(RuntimeError):
                    answers.append(next(items))

            with at_point(number, lambda code: code.co_filename == free_lists.__file__, handler) as point:
                dm.device_array(3000)
            left = point.left
            gate.set()
            item = answers[0] if answers else next(items)
            assert np.array_equal(item.copy_to_host(), np.arange(3000)), point.where
            items.close()
    assert number > 5


def test_a_handler_takes_an_item_that_is_ready_and_closes_without_waiting(at_point):
    gate, answers = threading.Event(), []

    def source():
        yield np.arange(3)
        assert gate.wait(PATIENCE)

    items = dm.prefetch(source())
    assert until(lambda: not items._loader.ready.empty(), PATIENCE)

    def handler():
        answers.append(next(items))
        items.close()
        assert not items._loader.ready.qsize()

    with at_point(3, lambda code: code.co_filename == creation.__file__, handler):
        dm.zeros(3)
    assert np.array_equal(answers[0].copy_to_host(), np.arange(3))
    thread = items._loader.thread
    assert thread.is_alive()
    gate.set()
    assert is_over(thread)
    assert list(items) == []


def test_the_iterable_cannot_ask_for_its_own_items():
    made = []

    def source():
        yield 1
        made[0].close()
        with pytest.raises(RuntimeError, match="on the thread that makes it"):
            next(made[0])

    made.append(dm.prefetch(source()))
    thread = made[0]._loader.thread
    assert is_over(thread)
    made[0].close()


def test_the_iterable_may_be_another_prefetch():
    outer = dm.prefetch(batch.copy_to_host() + 1 for batch in dm.prefetch(batches(3)))
    assert [int(batch[0]) for batch in outer] == [1, 2, 3]
