"""Blocks of a pool that the compiled core hands out again and takes back: no driver is called for them."""

from __future__ import annotations

import gc
import weakref
from functools import partial

import numpy as np
import pytest
from table_driver import TableBackend
from waits import together

import devmem as dm
from devmem import _native
from devmem._core.device.device import current_open_device
from devmem._core.pool.size_bins import UNIT

pytestmark = pytest.mark.skipif(_native.core is None, reason=_native.why)
HOST = np.arange(16.0)


@pytest.fixture(params=[False, True], ids=["plain copies", "copies take the stream"])
def backend(request):
    made = TableBackend("pool-hits", copies_take_stream=request.param)
    dm.register_backend(made)
    try:
        with dm.use_backend(made.name):
            dm.use_memory(dm.memory.PoolMemory())
            dm.to_device(HOST).free()  # a miss, after which the pool has a list of that size
            called(made)
            yield made
    finally:
        dm.unregister_backend(made.name)


def called(backend):
    found = [call[0] for call in backend.driver.calls]
    backend.driver.calls.clear()
    return found


def live_blocks():
    return {ptr: nbytes for ptr, nbytes, _ in current_open_device().memory.stacks.heap.live.blocks()}


def compiled_copies():
    return sum(each[0] for each in current_open_device().statistics.compiled(False))


def pool():
    return current_open_device().memory.stacks.heap.resource


def test_an_upload_calls_the_driver_for_its_copy_alone(backend):
    before = compiled_copies()
    array = dm.to_device(HOST)
    assert called(backend) == ["get_current", "copy_up"]
    assert compiled_copies() == before + 1
    address = array.ptr
    assert array.copy_to_host().tolist() == HOST.tolist()
    called(backend)
    array.free()
    assert called(backend) == []
    assert dm.device_array(16).ptr == address  # what came back last goes out first
    assert called(backend) == []


def test_live_and_cached_bytes_are_those_of_python(backend):
    report = pool().report()
    array = dm.device_array(16)
    assert live_blocks() == {array.ptr: 128}
    assert pool().report().live_bytes == report.live_bytes + UNIT
    array.free()
    assert live_blocks() == {}
    assert pool().report() == report


def test_the_driver_keeps_the_chunk_whose_first_block_is_freed(backend):
    chunks = set(backend.driver.memory)
    dm.device_array(16).free()
    for _ in range(40):  # dropped, and drained by the core
        dm.device_array(16)
    assert chunks < set(backend.driver.memory)
    dm.trim()
    assert backend.driver.memory == {}


def test_dropped_blocks_go_back_to_the_pool(backend):
    dm.device_array(16)
    most = current_open_device().free_queue.max_count
    called(backend)
    addresses = {dm.device_array(16).ptr for _ in range(20 * most)}
    assert len(addresses) <= most + 2
    assert "free" not in called(backend)


def test_a_copy_that_fails_gives_its_block_back(backend):
    report = pool().report()
    backend.driver.fail("copy_up", 1, 5)
    with pytest.raises(dm.BackendError, match="copy_up failed with 5"):
        dm.to_device(HOST)
    assert pool().report() == report
    assert live_blocks() == {}


def test_a_device_that_cannot_be_entered_gives_the_block_back(backend):
    report = pool().report()
    backend.driver.fail("get_current", 1, 5)
    with pytest.raises(dm.BackendError, match="get_current failed with 5"):
        dm.to_device(HOST)
    assert pool().report() == report


def test_a_size_that_the_pool_has_forgotten_is_freed_by_python(backend):
    array = dm.device_array(16)
    for known in pool()._ready.values():
        known.clear()
    report = pool().report()
    array.free()
    assert pool().report().cached_bytes == report.cached_bytes + UNIT
    assert dm.device_array(16).ptr


def test_a_stream_that_the_pool_knows_tells_it_of_its_end(backend):
    stream = dm.stream()
    dm.to_device(HOST, stream=stream).free()
    handle = stream.handle
    assert handle in pool()._by_stream
    stream.close()
    assert handle not in pool()._by_stream


def test_streams_are_kept_with_any_number_of_stacks(backend):
    for stack in ("stream_ordered", "limit:1MiB,pool", "statistics"):
        dm.use_memory(stack)
        dm.to_device(HOST).free()
    for _ in range(2):
        dm.stream().close()
    called(backend)
    dm.stream().close()
    assert [call for call in called(backend) if call != "get_current"] == ["stream_query", "synchronize"]


@pytest.mark.parametrize(
    "when_dropped", [dm.trim, lambda: [dm.device_array(16) for _ in range(30)]], ids=["trim", "drop"]
)
def test_what_refers_weakly_to_a_dropped_block_may_do_anything(backend, when_dropped):
    seen = []

    def gone(_reference):
        seen.append(True)
        when_dropped()

    arrays = [dm.device_array(16) for _ in range(6)]
    references = [weakref.ref(array.allocation, gone) for array in arrays]
    del arrays[:]
    for _ in range(40):
        assert dm.to_device(HOST).copy_to_host().tolist() == HOST.tolist()
    assert len(seen) == len(references)
    dm.trim()
    assert backend.driver.memory == live_blocks() == {}


@pytest.mark.parametrize("table", [{}, [], None, np.zeros(3)], ids=["dict", "list", "none", "array"])
def test_an_attribute_of_another_s_resource_is_not_taken_for_devmem_s(backend, table):
    told = []

    class Telling(dm.memory.DriverMemory):
        _by_stream = by_stream = table

        def forget_stream(self, stream):
            told.append(stream)

    dm.use_memory(Telling())
    for _ in range(2):
        stream = dm.stream()
        handle = stream.handle
        stream.close()
    dm.trim()
    assert handle in told


def test_an_adaptor_above_is_asked(backend):
    statistics = dm.memory.Statistics(dm.memory.PoolMemory())
    with dm.use_memory(statistics):
        for _ in range(3):
            dm.device_array(16).free()
    assert statistics.total_count == 3


def test_threads_never_share_a_block(backend):
    """Each writes its own number into its arrays, and finds it there."""
    wrong = []

    def work(number):
        host = np.full(16, float(number))
        for _ in range(300):
            held = [dm.to_device(host) for _ in range(3)]
            wrong.extend(each for each in held if each.copy_to_host().tolist() != host.tolist())

    together(*(partial(work, number) for number in range(4)))
    gc.collect()
    assert wrong == []
    dm.trim()
    assert live_blocks() == {}
