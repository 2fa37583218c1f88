"""Live blocks, which the compiled core keeps: none is lost, and each is given back once; and copies that are made again."""

from __future__ import annotations

import random

import numpy as np
import pytest
from table_driver import TableBackend

import devmem as dm
from devmem import _native
from devmem._core.device.device import current_open_device

compiled = pytest.mark.skipif(_native.core is None, reason=_native.why)
HOST = np.arange(16.0)


@pytest.fixture
def backend():
    made = TableBackend("live-blocks")
    dm.register_backend(made)
    try:
        with dm.use_backend(made.name):
            yield made
    finally:
        dm.unregister_backend(made.name)


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


@compiled
@pytest.mark.parametrize("seed", range(4))
def test_the_table_does_what_a_dict_does(seed):
    chance, table, expected = random.Random(seed), _native.core.LiveBlocks(), {}
    near = [(1 << 40) + 512 * at for at in range(3000)]  # as drivers give them, and in each other's places
    far = [chance.randrange(1, 1 << 64) for _ in range(1000)]
    for growing in (0.7, 0.3, 0.6, 0.1):
        for _ in range(4000):
            ptr = chance.choice(near if chance.random() < 0.7 else far)
            if chance.random() < growing:
                table[ptr] = expected[ptr] = chance.randrange(1 << 62)
            else:
                assert table.pop(ptr, None) == expected.pop(ptr, None)
            assert (len(table), ptr in table) == (len(expected), ptr in expected)
        assert sorted(table.items()) == sorted(expected.items())
    table.clear()
    assert (len(table), table.items(), table.pop(near[0], "none"), near[0] in table) == (0, [], "none", False)
    table[near[0]] = 1
    assert table.items() == [(near[0], 1)]


@compiled
@pytest.mark.parametrize("ptr", [0, -1, 1 << 64, "x", None, 1.5], ids=repr)
def test_what_is_no_address_is_in_no_table(ptr):
    table = _native.core.LiveBlocks()
    table[1] = 2
    with pytest.raises((ValueError, TypeError, OverflowError)):
        table[ptr] = 3
    assert ptr not in table
    assert table.pop(ptr, "none") == "none"
    assert table.items() == [(1, 2)]


@compiled
@pytest.mark.parametrize("nbytes", [-1, 1 << 64, "x", None], ids=repr)
def test_bytes_are_whole_numbers(nbytes):
    table = _native.core.LiveBlocks()
    with pytest.raises((TypeError, OverflowError)):
        table[1] = nbytes
    with pytest.raises(ValueError, match="taken out by pop"):
        del table[1]
    with pytest.raises(TypeError, match="an address and a default"):
        table.pop(1)
    assert len(table) == 0


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
