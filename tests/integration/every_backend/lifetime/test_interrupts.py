"""Ctrl-C at any point of any verb: afterwards the verb works, nothing is lost, and nothing is held for good."""

from __future__ import annotations

import functools
import gc
from pathlib import Path

import numpy as np
import pytest

import devmem as dm

DATA = np.arange(4000, dtype=np.float32).reshape(40, 100)
PACKAGE = Path(dm.__file__).parent
#: Backends have a test of their own, the fault injection is not part of devmem, and what a finalizer raises is told by Python and
#: goes no further: the block is then freed when its device is closed.
#: And whether an interrupt came before a resource's ``deallocate`` did anything, or behind all that it does, no caller can tell.
UNKNOWN = ("__del__", "deallocate")
ELSEWHERE = (PACKAGE / "backends", PACKAGE / "testing")


@functools.cache
def watched(code):
    path = Path(code.co_filename)
    return path.is_relative_to(PACKAGE) and not any(map(path.is_relative_to, ELSEWHERE)) and code.co_name not in UNKNOWN


class World:
    """What the verbs work on."""

    def __init__(self):
        self.stream = dm.stream()
        self.array, self.other = dm.to_device(DATA), dm.to_device(DATA)
        self.large = np.arange(3 << 20, dtype=np.uint8)
        self.large_array = dm.to_device(self.large)
        self.out, self.pages = np.empty_like(DATA), np.arange(8192, dtype=np.uint8)
        self.pool = dm.memory.PoolMemory()
        with dm.use_memory(self.pool):
            dm.device_array(3000, np.uint8)  # binds it
        self.pinned = dm.pinned_array(DATA.shape, DATA.dtype)


def deferred(world):
    with dm.defer_cleanup():
        dm.to_device(DATA)


def pinned(world):
    with dm.pinned(world.pages):
        pass


def with_event(world):
    event = dm.event()
    event.record(world.stream)
    event.wait(0)
    event.synchronize()


def on_a_stream(world):
    array = dm.to_device(world.pinned, stream=world.stream)
    array.copy_to_host(world.pinned, stream=world.stream)
    world.stream.synchronize()


def use_pool(pool):
    with dm.use_memory(pool):
        first, second = dm.device_array(3000, np.uint8), dm.device_array(5000, np.uint8)
        del first
        dm.device_array(3000, np.uint8).free()
        stream = dm.stream()
        dm.device_array(2 << 20, np.uint8, stream=stream)
        del second


def both_sides(world):
    array = dm.SmartArray(DATA)
    array.gpu()
    array.host()


VERBS = {
    "upload": lambda world: dm.to_device(DATA),
    "upload of F order": lambda world: dm.to_device(DATA.T),
    "upload into": lambda world: world.array.copy_to_device(DATA),
    "staged upload": lambda world: world.large_array.copy_to_device(world.large),
    "upload of columns": lambda world: world.array.__setitem__(np.s_[:, ::2], DATA[:, ::2]),
    "download": lambda world: world.array.copy_to_host(),
    "download into": lambda world: world.array.copy_to_host(world.out),
    "staged download": lambda world: world.large_array.copy_to_host(),
    "download of columns": lambda world: world.array[:, ::2].copy_to_host(),
    "on a stream": on_a_stream,
    "copy": lambda world: world.array.copy(),
    "copy of a view": lambda world: world.array.reshape(-1)[::3].copy(),
    "copy on the device": lambda world: world.array.copy_to_device(world.other),
    "fill": lambda world: world.array.fill(3),
    "setitem": lambda world: world.array.__setitem__(np.s_[3:9, ::2], 0),
    "view": lambda world: world.array[3:9].T,
    "device_array": lambda world: dm.device_array(1000, np.uint8),
    "free": lambda world: dm.device_array(1000, np.uint8).free(),
    "zeros": lambda world: dm.zeros(1000, np.uint8),
    "pinned_array": lambda world: dm.pinned_array(5000, np.uint8),
    "mapped_array": lambda world: dm.mapped_array(5000, np.uint8),
    "managed_array": lambda world: dm.managed_array(5000, np.uint8),
    "pinned": pinned,
    "stream": lambda world: dm.stream().synchronize(),
    "event": with_event,
    "to_device_many": lambda world: dm.to_device_many([DATA, DATA[:10]]),
    "to_host_many": lambda world: dm.to_host_many([world.array, world.other]),
    "copy_async": lambda world: dm.copy_async(world.array, stream=world.stream).wait(),
    "from_dlpack": lambda world: dm.from_dlpack(world.array),
    "SmartArray": both_sides,
    "defer_cleanup": deferred,
    "trim": lambda world: dm.trim(),
    "pool": lambda world: use_pool(world.pool),
    "memory_info": lambda world: dm.memory_info(),
    "synchronize": lambda world: dm.synchronize(),
}


def in_use(world):
    """Bytes that are live when everything that can go has gone, and blocks that the pool does not have."""
    gc.collect()
    dm.synchronize()
    dm.trim()
    return dm.memory_info().live, world.pool.report().live_bytes


@pytest.mark.parametrize("verb", VERBS.values(), ids=VERBS)
def test_nothing_is_lost(verb, at_point, still, in_thread):
    with dm.use_memory("driver"):
        look_at(verb, at_point)
    in_thread(lambda: dm.to_device(DATA).free())  # no lock is left locked


def look_at(verb, at_point):
    world = World()
    try:
        for _ in range(2):  # what is made only once is there
            verb(world)
    except dm.UnsupportedError as error:
        pytest.skip(str(error))
    before = in_use(world)
    for number in range(1, 5000):
        with at_point(number, watched) as point:
            verb(world)
        assert in_use(world) == before, point.where
        verb(world)
        if point.left > 0:
            break
    assert number > 10
