"""Eight threads use one device at once, and each checks every byte of its own: so often, and not for so long.

What takes turns by luck under a GIL runs at the same time without one (``nox -s free_threaded``).
"""

from __future__ import annotations

from functools import partial

import numpy as np
import pytest
from waits import together

import devmem as dm

pytestmark = pytest.mark.usefixtures("tidy")

THREADS, ROUNDS = 8, 15


def on_threads(device, work):
    """Call it with the number of each of eight threads, on which the device is current."""

    def one(number):
        with device:
            work(number)

    together(*(partial(one, number) for number in range(THREADS)))


def content(number, round):
    return np.random.default_rng((number, round)).integers(0, 1 << 30, 1000, np.int32)


def pinned(values):
    made = dm.pinned_array_like(values)
    made[...] = values
    return made


def test_streams_copies_batches_and_events_of_their_own(device, need_kind):
    need_kind("pinned")
    common = dm.to_device(content(THREADS, 0))
    dm.synchronize()

    def work(number):
        stream = dm.stream(non_blocking=bool(number % 2))
        for round in range(ROUNDS):
            values = content(number, round)
            array = dm.to_device(pinned(values), stream=stream)  # the source is dropped while it is read
            copy, out = dm.device_array(values.shape, values.dtype, stream=stream), pinned(np.zeros_like(values))
            copy.copy_to_device(array, stream=stream)
            event = stream.record()
            many = dm.to_device_many([values[:10], values[:100], values], stream)
            back = dm.to_host_many(many, stream)
            copy.copy_to_host(out, stream=stream)
            event.synchronize()
            if round % 3 == 0:
                array.free()
            else:
                ring = [array, event]
                ring.append(ring)  # for the collector, on whichever thread
                del ring
            del array, event
            stream.synchronize()
            assert np.array_equal(out, values)
            assert all(np.array_equal(found, values[: found.size]) for found in back)
            assert np.array_equal(common[round::7].copy_to_host(), content(THREADS, 0)[round::7])
            if round % 5 == 0:
                dm.trim()
            assert dm.memory_info().pending >= 0
        stream.close()

    on_threads(device, work)


def test_locked_memory_and_streams_in_cycles(device, need):
    need("host_register")
    memory = np.zeros((THREADS, 10_000), np.int32)

    def work(number):
        for round in range(ROUNDS):
            values = content(number, round)
            with dm.register(memory[number]):  # shares its first and last page with those of others
                memory[number, :1000] = values
                stream = dm.stream()
                array = dm.to_device(memory[number], stream=stream)
                holder = {"stream": stream, "array": array, "event": stream.record()}
                holder["me"] = holder
                stream.synchronize()
            assert np.array_equal(array[:1000].copy_to_host(), values)

    on_threads(device, work)


def test_plans_of_their_own(device, need, need_kind):
    need("graphs")
    need_kind("pinned")

    def work(number):
        stream, array = dm.stream(non_blocking=True), dm.zeros(1000, np.int32)
        source, out = pinned(content(number, 0)), pinned(np.zeros(1000, np.int32))
        dm.synchronize()
        with dm.capture(stream) as plan:
            array.copy_to_device(source, stream=stream)
            array.copy_to_host(out, stream=stream)
        for round in range(ROUNDS):
            source[...] = values = content(number, round)
            plan.replay()
            stream.synchronize()
            assert np.array_equal(out, values)
        plan.close()

    on_threads(device, work)
