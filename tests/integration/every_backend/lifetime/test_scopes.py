"""Scopes: each is for one block, and a second use of it says so instead of changing what holds afterwards."""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import gc
import re
import threading
import warnings
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from waits import patience

import devmem as dm
from devmem._core.ordering.stream import place
from devmem.compat import numba_cuda as cuda
from devmem.kernels import simulation
from devmem.toolkit.host_functions import this_thread

pytestmark = pytest.mark.usefixtures("tidy")

SCOPES = {
    "memory": lambda: dm.use_memory(dm.memory.Statistics()),
    "backend": lambda: dm.use_backend(dm.current_device().backend),
}


def in_force():
    return dm.current_device(), dm.current_device().opened().memory.stacks.current_heap()


@pytest.fixture(params=SCOPES.values(), ids=SCOPES)
def scope(request):
    return request.param


def test_a_scope_entered_twice_says_so_and_ends(scope):
    before = in_force()
    once = scope()
    with once, pytest.raises(dm.DevmemError, match="was entered before"):
        once.__enter__()
    assert in_force() == before


def test_a_scope_left_twice_says_so_and_changes_nothing(scope):
    once = scope()
    with once:
        pass
    before = in_force()
    with pytest.raises(dm.DevmemError, match="was left before"):
        once.__exit__(None, None, None)
    assert in_force() == before


@pytest.mark.own_thread  # the choice stays in its thread
def test_a_choice_from_now_on_is_taken_back_by_close(scope):
    before = in_force()
    outer, inner = scope(), scope()
    inner.close()
    inner.close()
    outer.close()
    assert in_force() == before
    with pytest.raises(dm.DevmemError, match="was entered before"):
        outer.__enter__()


def test_close_of_a_choice_leaves_the_same_stack_of_another_in_force():
    stack = dm.memory.Statistics()
    first, second = dm.use_memory(stack), dm.use_memory(stack)
    second.close()
    assert in_force()[1].resource is stack
    first.close()
    assert in_force()[1].resource is not stack


def test_nested_blocks_of_one_stack_may_be_used_again_after_their_end():
    stack, before = dm.memory.Statistics(), in_force()
    for times in range(1, 4):
        with dm.use_memory(stack), dm.use_memory(stack):
            dm.device_array(1000, np.uint8).free()
            with dm.use_memory("driver"), dm.use_memory(stack):
                dm.device_array(1000, np.uint8).free()
        assert in_force() == before
        dm.device_array(1000, np.uint8).free()
        assert stack.total_count == 2 * times
    assert stack.current_bytes == 0


def test_close_after_a_reset_takes_back_nothing(scope, device):
    once = scope()
    device.reset()
    before = in_force()
    once.close()
    assert in_force()[1] is before[1]


def test_close_ends_a_block_too(scope):
    before = in_force()
    once = scope()
    once.__enter__()
    once.close()
    assert in_force() == before


def test_scopes_show_what_they_choose(device):
    with (memory := dm.use_memory("limit:1MiB")), (backend := dm.use_backend(device.backend)):
        assert re.fullmatch(rf"<MemoryScope Limit\(.*\) for device memory of {device}>", repr(memory))
        assert repr(backend) == f"<Scope of {device.backend!r}>"


@pytest.mark.own_thread  # the choice stays in its thread
def test_a_scope_whose_end_was_interrupted_ends_on_any_thread(scope, in_thread):
    """The collector drops it, perhaps on a thread that must call no driver and has choices of its own."""
    dropped, counted = [scope()], dm.current_device().opened().handle
    before = counted.scopes
    dropped[0].__enter__()

    def drop():
        with this_thread.running_host_function(), warnings.catch_warnings(action="error"):
            here = in_force()
            dropped.clear()
            assert in_force() == here

    in_thread(drop)
    assert counted.scopes == before
    dm.close()  # which ends what holds in this thread


def test_cleanup_that_is_left_twice_says_so_and_is_not_deferred_for_ever():
    deferred = dm.defer_cleanup()
    with deferred, deferred:
        pass
    with pytest.raises(dm.DevmemError, match="left more often"):
        deferred.__exit__(None, None, None)
    array = dm.device_array(10)
    before = dm.memory_info().live
    array.free()
    assert dm.memory_info()[2:4] == (before - 80, 0)


def test_a_block_left_twice_does_not_end_another(scope):
    with dm.defer_cleanup():
        other = dm.defer_cleanup()
        with other:
            pass
        with pytest.raises(dm.DevmemError):
            other.__exit__(None, None, None)
        dm.device_array(10).free()
        assert dm.memory_info().pending == 80


@pytest.mark.parametrize("keep", ["1MiB", 1.5, None])
def test_trim_takes_a_whole_number_of_bytes(keep):
    with pytest.raises(TypeError, match="whole number of bytes"):
        dm.trim(keep)


# -- left in another order, thread, task or generator ------------------------------------------------------------------


def all_in_force():
    opened = dm.current_device().opened()
    return dm.current_device(), opened.streams.stream_of(0), opened.memory.stacks.current_heap(), simulation.current()


def stream_of(device):
    with device:
        return dm.stream()


#: A block of each kind, good for one use, that changes what is in force.
BLOCKS = {
    "device": lambda second: second,
    "selected device": dm.select_device,
    "stream": stream_of,
    "memory": lambda second: dm.use_memory(dm.memory.Statistics()),
    "simulator": lambda second: dm.simulator(wave_size=7),
}


@pytest.fixture(params=BLOCKS.values(), ids=BLOCKS)
def block(request, second):
    return lambda: request.param(second)


@contextlib.contextmanager
def every_kind(device):
    """Blocks of all kinds."""
    with device, dm.stream(), dm.use_memory(dm.memory.Statistics()), dm.simulator(wave_size=9):
        yield


def holds(block):
    with block():
        while True:
            yield


def test_a_generator_that_is_closed_in_another_thread_takes_back_its_own_choice(block, device, in_thread):
    before = all_in_force()
    generator = holds(block)
    next(generator)
    assert all_in_force() != before

    def close():
        with every_kind(device):
            here = all_in_force()
            generator.close()
            assert all_in_force() == here

    in_thread(close)
    assert all_in_force() == before


def test_a_generator_that_another_thread_collects_takes_back_its_own_choice(block, device, in_thread):
    before = all_in_force()
    generators = [holds(block)]
    next(generators[0])

    def collect():
        with every_kind(device):
            here = all_in_force()
            generators.clear()
            gc.collect()
            assert all_in_force() == here

    in_thread(collect)
    assert all_in_force() == before


def test_blocks_that_are_left_in_the_order_in_which_they_were_entered(block, device):
    before = all_in_force()
    first, last = holds(block), holds(lambda: device)
    next(first)
    next(last)
    first.close()
    assert dm.current_device() == device
    last.close()
    assert all_in_force() == before


def test_of_two_blocks_of_a_kind_the_first_is_left_first(block):
    before = all_in_force()
    first, last = holds(block), holds(block)
    next(first)
    next(last)
    inside = all_in_force()
    first.close()
    assert all_in_force() == inside
    last.close()
    assert all_in_force() == before


def test_a_block_of_one_thread_that_is_left_in_another(block, in_thread):
    before = all_in_force()
    entered = block()
    entered.__enter__()
    in_thread(lambda: entered.__exit__(None, None, None))
    assert all_in_force() == before


def test_a_block_of_one_task_that_is_left_in_another(block):
    before = all_in_force()

    async def main():
        entered = block()
        await asyncio.create_task(run(entered.__enter__))
        await asyncio.create_task(run(entered.__exit__, None, None, None))
        entered = block()
        entered.__enter__()
        await asyncio.create_task(run(entered.__exit__, None, None, None))  # which was begun inside
        return all_in_force()

    async def run(call, *arguments):
        call(*arguments)

    assert asyncio.run(main()) == before
    assert all_in_force() == before


def test_a_block_that_is_left_elsewhere_does_not_end_the_blocks_of_others(second, in_thread):
    """Of one device object; which of its blocks was left elsewhere shows when the others are left."""
    before = dm.current_device()
    generator = holds(lambda: second)
    entered, leave = threading.Event(), threading.Event()

    def work():
        with second:
            entered.set()
            leave.wait(patience())
            return dm.current_device()

    with ThreadPoolExecutor(1) as pool:
        worker = pool.submit(contextvars.Context().run, work)
        entered.wait(patience())
        next(generator)
        try:
            in_thread(generator.close)
        finally:
            leave.set()
        assert worker.result() == second
    assert dm.current_device() == before


def test_blocks_whose_context_is_gone_end_nothing(second):
    """A server may enter in one copied context after the other, and leave in others."""
    for _ in range(3):
        contextvars.copy_context().run(second.__enter__)
        gc.collect()
    with second:
        for _ in range(3):
            contextvars.Context().run(second.__exit__)
            assert dm.current_device() == second
    assert not place._left
    assert not [seat for seat in place._seats if seat[0] is second]


def test_an_end_without_a_beginning_ends_nothing(second):
    before = dm.current_device()
    second.__exit__()
    dm.stream().__exit__(None, None, None)
    with second:
        assert dm.current_device() == second
    assert dm.current_device() == before


def test_a_task_keeps_the_device_and_the_stream_in_which_it_was_begun(second):
    async def main():
        with stream_of(second) as stream:
            task = asyncio.create_task(work())
        return stream, await task

    async def work():
        return all_in_force()[1], dm.zeros(3).device

    stream, found = asyncio.run(main())
    assert found == (stream, second)


# -- from now on -------------------------------------------------------------------------------------------------------

#: Choices from now on that other libraries keep per thread; each is called with a device.
CHOICES = {
    "select_device": dm.select_device,
    "simulator": lambda device: dm.simulator(wave_size=7),
    "drop-in": lambda device: cuda.select_device(device.ordinal),
}


@pytest.fixture(params=[True, False], ids=["in a block", "in no block"])
def around(request, in_thread):
    """Call something in a thread of its own, where no choice was made, or a block is around the call."""

    def call(what):
        if request.param:
            return in_thread(what)
        with ThreadPoolExecutor(1) as pool:
            return pool.submit(contextvars.Context().run, what).result()

    return call


@pytest.fixture(params=CHOICES.values(), ids=CHOICES)
def choose(request, second):
    yield lambda: request.param(second)
    dm.close()  # the drop-in has installed memory of its own


def test_a_choice_from_now_on_outlives_the_task_that_makes_it(choose, around, with_settings, devmem_backend):
    with_settings(BACKEND=devmem_backend)

    async def start():
        choose()
        return all_in_force()

    async def nothing():
        return all_in_force()

    def program():
        before = all_in_force()
        chosen = asyncio.run(start())
        assert chosen != before
        assert asyncio.run(nothing()) == all_in_force() == chosen
        assert dm.zeros(3).device == cuda.to_device(np.arange(3)).device == chosen[0]

    around(program)


def test_a_choice_from_now_on_stays_on_the_worker_that_makes_it(choose, around, with_settings, devmem_backend):
    with_settings(BACKEND=devmem_backend)

    async def main():
        asyncio.get_running_loop().set_default_executor(ThreadPoolExecutor(1))
        before = all_in_force()
        await asyncio.to_thread(choose)
        chosen = await asyncio.to_thread(all_in_force)
        assert await asyncio.to_thread(lambda: dm.zeros(3).device) == chosen[0]
        assert chosen != before
        assert all_in_force() == before

    around(lambda: asyncio.run(main()))


def test_a_choice_from_now_on_ends_with_the_block_around_it(choose, device):
    before = all_in_force()
    with device, dm.simulator(wave_size=9):
        choose()
        assert all_in_force() != before
    assert all_in_force() == before


def test_a_choice_is_taken_back_by_itself_alone(second, device):
    before = dm.current_device()
    with device:
        first = dm.select_device(second)
        dm.select_device(device)
        with first:
            assert dm.current_device() == second
        assert dm.current_device() == device
    assert dm.current_device() == before


@pytest.mark.parametrize(
    "choices",
    [
        lambda devices: [dm.select_device(each) for each in devices],
        lambda devices: [dm.simulator(wave_size=size) for size in (7, 9, 11)],
        lambda devices: [dm.use_backend(dm.current_device().backend), *map(dm.select_device, devices)],
    ],
    ids=["select_device", "simulator", "use_backend"],
)
def test_choices_that_end_out_of_order_bring_none_back(choices, second, device, around):
    def program():
        before = all_in_force()
        first, *others = choices([second, device, second])
        with first:
            for each in others:
                with each:
                    pass
        assert all_in_force() == before

    around(program)


# -- streams and their devices -----------------------------------------------------------------------------------------


def test_in_a_stream_its_device_is_current(second):
    before = dm.current_device()
    with stream_of(second) as stream:
        assert dm.current_device() == second
        array = dm.zeros(3)
        assert array.device == dm.to_device(np.arange(3)).device == dm.stream().device == second
        assert array.allocation.home is stream
    assert dm.current_device() == before


def test_each_device_has_its_own_current_stream(device, second):
    with stream_of(device) as here, stream_of(second) as there:
        assert dm.zeros(3).allocation.home is there
        with device:
            assert dm.zeros(3).allocation.home is here
        here.close()
        assert dm.zeros(3).allocation.home is there


def test_in_a_device_within_a_stream_of_another_the_default_stream_orders(device, second):
    with stream_of(second), device:
        array = dm.zeros(3)
        assert array.device == device
        assert array.allocation.home == dm.default_stream()
