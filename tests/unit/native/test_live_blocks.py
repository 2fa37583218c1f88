"""Live blocks, which the compiled core keeps: none is lost, and each is given back once; and copies that are made again."""

from __future__ import annotations

import random

import numpy as np
import pytest
from table_driver import TableBackend

import devmem as dm
from devmem import _native
from devmem._core.base.hot_state import BlocksByPlace
from devmem._core.device.device import current_open_device
from devmem._core.memory.heap import Block

compiled = pytest.mark.skipif(_native.core is None, reason=_native.why)
HOST = np.arange(16.0)


@pytest.fixture(params=["compiled", "in Python"])
def make(request):
    """What makes a table."""
    if request.param == "in Python":
        return BlocksByPlace
    if _native.core is None:
        pytest.skip(_native.why)
    return _native.core.LiveBlocks


@pytest.fixture
def backend():
    made = TableBackend("live-blocks")
    dm.register_backend(made)
    try:
        with dm.use_backend(made.name):
            yield made
    finally:
        dm.unregister_backend(made.name)


def entered(table, ptr, nbytes):
    """The place of a new block."""
    block = Block(ptr, nbytes, 0)
    table.enter(block)
    return block.place


def test_an_interrupt_while_a_device_is_closed_leaves_no_block_of_the_core_s(backend):
    arrays = [dm.to_device(HOST) for _ in range(3)]
    addresses = {array.ptr for array in arrays}
    heap, freed = current_open_device().memory.stacks.heap, []

    def interrupted(ptr, nbytes, stream):
        backend.driver.free_async(ptr, nbytes, stream)
        freed.append(ptr)
        if len(freed) == 1:
            raise KeyboardInterrupt

    heap.deallocate = interrupted
    with pytest.raises(KeyboardInterrupt):
        dm.close()
    assert len(freed) == len(addresses) and set(freed) == addresses
    assert backend.driver.memory == {}


@pytest.mark.parametrize("seed", range(4))
def test_a_block_stays_at_its_place_until_it_is_taken_out(make, seed):
    chance, table, expected = random.Random(seed), make(), {}
    addresses = [(1 << 40) + 512 * at for at in range(40)] + [chance.randrange(1, 1 << 64) for _ in range(40)]
    for growing in (0.7, 0.3, 0.6, 0.1):
        for _ in range(4000):
            ptr = chance.choice(addresses)  # each many times: a handle that is opened twice may have one address
            place = chance.choice(list(expected)) if expected else 0
            if chance.random() < growing:
                nbytes = chance.randrange(1 << 50)
                made = entered(table, ptr, nbytes)
                assert made not in expected
                expected[made] = ptr, nbytes
            else:
                right = place in expected and expected[place][0]
                assert not table.take(place, right + 1)
                assert table.take(place, right) == (expected.pop(place, None) is not None)
                assert not table.take(place, right)
            assert (len(table), table.nbytes) == (len(expected), sum(nbytes for _, nbytes in expected.values()))
        assert sorted(table.blocks()) == sorted((ptr, nbytes, place) for place, (ptr, nbytes) in expected.items())
    place = next(iter(expected), 0)
    table.clear()
    assert (len(table), table.nbytes, table.blocks(), table.take(place, addresses[0])) == (0, 0, [], False)
    place = entered(table, addresses[0], 1)
    assert table.blocks() == [(addresses[0], 1, place)]


def test_a_free_place_is_no_block(make):
    table = make()
    places = [entered(table, 512 * at, 0) for at in range(1, 30)]
    assert table.take(places[3], 512 * 4)
    assert not table.take(places[3], 0)
    assert not table.take(max(places) + 1, 0)
    assert len(table) == 28


@compiled
def test_places_are_used_again():
    """A program that goes on for ever needs as many as it has blocks at a time; and none is kept when all are gone."""
    table = _native.core.LiveBlocks()
    for round in range(3):
        places = {entered(table, 4096, 1) for _ in range(1000)}
        assert places == set(range(1000))
        for place in places if round else reversed(range(1000)):
            assert table.take(place, 4096)


@compiled
@pytest.mark.parametrize(
    "given", [0, 4096, None, "x", (4096, 1), Block(0, 1, 0)], ids=lambda given: type(given).__name__
)
def test_what_is_no_block_or_has_no_address_is_refused(given):
    table = _native.core.LiveBlocks()
    place = entered(table, 1, 2)
    with pytest.raises((ValueError, TypeError)):
        table.enter(given)
    assert table.blocks() == [(1, 2, place)]


@compiled
@pytest.mark.parametrize("place", [-1, 1 << 64, "x", None, 1.5], ids=repr)
def test_what_is_no_place_is_refused(place):
    table = _native.core.LiveBlocks()
    entered(table, 1, 2)
    with pytest.raises((TypeError, OverflowError)):
        table.take(place, 1)
    assert not table.take(1 << 32, 1)  # not cut to the place 0
    assert len(table) == 1


def strided():
    """An array whose block the driver's own method gives."""
    return dm.to_device(HOST.reshape(4, 4)[:, ::2])


def freed():
    strided().free()


def dropped():
    strided()
    for _ in range(100):  # until the core frees what was dropped
        dm.to_device(HOST)


@pytest.mark.parametrize("end", [freed, dropped])
def test_the_driver_forgets_what_the_core_frees(backend, end):
    """It keeps what its own methods gave, and would free it once more when it is closed."""
    array = strided()
    assert array.ptr in backend.driver.table_blocks
    end()
    assert set(backend.driver.table_blocks) <= set(backend.driver.memory)
    array.free()
    dm.trim()
    assert backend.driver.table_blocks == {}


@pytest.mark.skipif(_native.core is None, reason=_native.why)
def test_without_memory_for_its_number_a_block_is_freed_all_the_same(backend):
    _testcapi = pytest.importorskip("_testcapi")
    kept, array = strided(), dm.to_device(HOST)
    block, ptr = array.allocation, array.ptr
    assert kept.ptr in backend.driver.table_blocks  # the core looks for the other one there
    _testcapi.set_nomemory(0, 1)
    try:
        done = _native.core.free(block)
    finally:
        _testcapi.remove_mem_hooks()
    assert (done, block.freed) == (True, True)
    assert ptr not in backend.driver.memory


def test_a_copy_is_made_again_where_memory_was_locked_and_unlocked_meanwhile(backend):
    dm.to_device(HOST)
    locks, sound, refused = current_open_device().page_locks, backend.driver.saw, []

    def saw(name, *details):
        if name == "copy_up" and not refused:
            refused.append(name)
            locks._replace_segments([])  # another thread has locked and unlocked memory
            return 1
        return sound(name, *details)

    backend.driver.saw = saw
    assert dm.to_device(HOST).copy_to_host().tolist() == HOST.tolist()
    assert refused
