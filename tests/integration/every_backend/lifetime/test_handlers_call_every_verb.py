"""A signal's handler calls each public verb in the middle of other calls of devmem's on the same thread.

The verbs are those of the table in tests/integration/failures, each on arrays of its own. What the handler comes into copies,
allocates from a pool, a stack and the host's memory, works on streams, and gives memory back. It comes at points that are drawn
among all those in devmem's own code at which Python may run one: ``INTERRUPT_POINTS=all`` goes through every one.
"""

from __future__ import annotations

import contextlib
import gc
import importlib.util
import os
import random
import sys
import threading
from pathlib import Path

import numpy as np
import pytest
from waits import patience

import devmem as dm
from devmem._core.device.open_device import closing_drivers
from devmem._core.lifetime import deferred_free, device_memory, recovery
from devmem._core.stacks import installed
from devmem.plugins import registry
from devmem.spi.types import Capability

_path = Path(__file__).parents[2] / "failures" / "test_driver_failures.py"
_spec = importlib.util.spec_from_file_location("devmem_tests_public_verbs", _path)
table = importlib.util.module_from_spec(_spec)
sys.modules[_spec.name] = table
_spec.loader.exec_module(table)

pytestmark = [
    pytest.mark.own_thread,
    pytest.mark.races("a handler may wait for a thread that waits for the check which the handler came into"),
]
POINTS = os.environ.get("INTERRUPT_POINTS", "4")
PACKAGE = Path(dm.__file__).parent
DATA = np.arange(4000, dtype=np.float32)
#: The fault injection and the emulators are no part of devmem.
ELSEWHERE = str(PACKAGE / "testing")
#: What ends the device: see the last test.
NOT_CALLED = table.BARE


def watched(code):
    return code.co_filename.startswith(str(PACKAGE)) and not code.co_filename.startswith(ELSEWHERE)


def is_of_the_memory(code):
    return code.co_filename in [each.__file__ for each in (deferred_free, device_memory, recovery, installed)]


@pytest.fixture
def backend(devmem_backend):
    """The backend under test, with books, under the name that the table's verbs know."""
    dm.close()
    made = table.Backend(registry.backend(devmem_backend).backend)
    dm.register_backend(made)
    try:
        with dm.use_backend("faulty"):
            if made.device_count() < 2:
                pytest.skip("the verbs of the table want two devices")
            yield made
    finally:
        dm.unregister_backend("faulty")
        dm.close()


class Outer:
    """What the handler comes into: something of most rooms."""

    def __init__(self):
        self.pool, self.pages, self.out = dm.memory.PoolMemory(), np.arange(8192, dtype=np.uint8), np.empty_like(DATA)
        self.pinned = dm.pinned_array(DATA.shape, DATA.dtype)
        self.pinned[...] = DATA

    def run(self):
        stream, event = dm.stream(), dm.event()
        array = dm.to_device(self.pinned, stream=stream)
        event.record(stream)
        array.copy_to_host(self.out, stream=stream)
        event.wait(0)
        stream.synchronize()
        assert np.array_equal(self.out, DATA)
        self.out.fill(0)
        with dm.use_memory(self.pool):
            first = dm.to_device(DATA)
            second = dm.device_array(3000, np.uint8, stream=stream)
            del second
            dm.device_array(3000, np.uint8).free()
        stream.close()
        registers = Capability.HOST_REGISTER in dm.current_device().info.capabilities
        with dm.pinned(self.pages) if registers else contextlib.nullcontext():
            first.copy_to_device(DATA[::-1])
        both = dm.to_host_many(dm.to_device_many([DATA, DATA[:10]]))
        assert np.array_equal(both[0], DATA)
        assert np.array_equal(dm.copy_async(first).result(), DATA[::-1])
        first.fill(3)
        assert (first[::2].copy_to_host() == 3).all()
        dm.memory_info()
        dm.trim()


@pytest.mark.parametrize("name", sorted(table.ENTRIES.keys() - NOT_CALLED))
def test_a_handler_may_call_it(name, backend, at_point):
    outer, called = Outer(), []
    outer.run()
    env = table.Env(backend, table.World(stream=True))
    try:
        table.ENTRIES[name](env)
    except dm.UnsupportedError as error:
        pytest.skip(str(error))

    def handler():
        sys.settrace(None)
        called.append(True)
        try:
            table.ENTRIES[name](env)
        except RuntimeError as error:  # it does not wait for a thread that may wait for the interrupted call
            if name != "prefetch" or "the next item of prefetch needs another thread" not in str(error):
                raise

    with at_point(1 << 40, watched) as counted:
        outer.run()
    env.check()
    count = (1 << 40) - counted.left
    # A run comes by more or fewer points, as handles and blocks are kept: by the first hundred in any case.
    drawn = (random.randint(1, 100), *random.sample(range(1, count + 1), int(POINTS) - 1)) if POINTS != "all" else ()
    for number in drawn or range(1, count + 1):
        with at_point(number, watched, handler) as point:
            outer.run()
        for thread in threading.enumerate():  # of a prefetch that was refused: no handler waits for it
            if thread.name == "devmem-prefetch":
                thread.join(patience())
        try:
            env.check()
            outer.run()
        except BaseException as error:
            error.add_note(f"the handler came at {point.where}")
            raise
    assert called


@pytest.mark.parametrize("end", [dm.reset, dm.close])
def test_a_handler_ends_no_device_that_a_call_is_inside_of(end, backend, at_point):
    """Between two calls it does, and the device is good again at once."""
    with at_point(1 << 40, watched) as counted:
        Outer().run()
    count, refused = (1 << 40) - counted.left, 0
    numbers = range(1, count + 1) if POINTS == "all" else random.sample(range(1, count + 1), 10 * int(POINTS))

    def handler():
        nonlocal refused
        sys.settrace(None)
        refused += 1
        with contextlib.suppress(dm.DevmemError):
            end()
            refused -= 1

    for number in numbers:
        outer = Outer()
        with at_point(number, watched, handler) as point, contextlib.suppress(dm.ClosedError):
            outer.run()
        del outer
        try:
            Outer().run()
            gc.collect()
            dm.trim()
            assert not backend.mistakes()
            assert dm.memory_info()[2:] == (0, 0, 0, (0, 0, 0))
        except BaseException as error:
            error.add_note(f"the handler came at {point.where}")
            raise
    assert refused


@pytest.mark.parametrize("end", [dm.reset, dm.close])
def test_a_handler_trims_while_its_thread_ends_the_device(end, backend, at_point):
    """The blocks that are pending are freed once, by one of the two, and the host's memory is kept."""
    number, left = 0, 0
    while left <= 0:
        number += 1
        kept = dm.pinned_array(8)
        dropped = [dm.device_array(1000, np.uint8) for _ in range(3)]
        dropped.append(dm.stream())
        del dropped
        before = closing_drivers.copy()  # what other tests let leak
        with at_point(number, is_of_the_memory, lambda: (sys.settrace(None), dm.trim())) as point:
            end()
        left = point.left
        try:
            assert len([each for each in closing_drivers if each not in before]) == 1
            kept[...] = 3
            del kept
            gc.collect()
            dm.trim()
            assert all(each in before for each in closing_drivers)
            assert not backend.mistakes()
        except BaseException as error:
            error.add_note(f"the handler came at {point.where}")
            raise
    assert number > 10
