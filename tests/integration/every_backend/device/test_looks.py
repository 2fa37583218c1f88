"""What only asks changes nothing: not what is dropped, pending, cached or in flight, nor anything at the driver."""

from __future__ import annotations

import copy
from functools import partial

import pytest

import devmem as dm
from devmem.testing import hold

ASKS = {"enter", "exit", "memory_info", "pool_cached", "stream_query", "event_query", "capturing", "can_access"}


def looks(array, stream, event, pinned):
    return {
        "memory_info": dm.memory_info,
        "memory_info of the device": array.device.memory_info,
        "transfer_stats": dm.transfer_stats,
        "backends": dm.backends,
        "devices": dm.devices,
        "settings": dm.settings,
        "current device": dm.current_device,
        "info": lambda: array.device.info,
        "default stream": dm.default_stream,
        "is_device_array": lambda: dm.is_device_array(array),
        "event query": event.query,
        "stream query": stream.query,
        "repr": lambda: [repr(each) for each in (array, stream, event, pinned, array.device)],
        "facts": lambda: (array.shape, array.strides, array.dtype, array.nbytes, array.size, array.ndim, array.stream),
        "__dlpack_device__": array.__dlpack_device__,
        "__cuda_stream__": partial(getattr, stream, "__cuda_stream__", None),
        "reports": lambda: [getattr(heap.resource, "report", int)() for heap in opened(array).memory.stacks.heaps],
    }


def opened(array):
    return array.open_device


def state(device):
    queue, memory = device.free_queue, device.memory
    return (
        [id(each) for each in queue.dropped],
        [id(each) for each in queue.pending],
        queue.pending_bytes,
        [heap.live.blocks() for heap in memory.stacks.all_heaps()],
        {stream.handle: len(waiting) for stream, waiting in device.completions.in_flight.items()},
        list(device.streams._handles),
        list(device.completions.events.events),
        copy.copy(device.page_locks.segments),
        dm.memory_info(),
    )


@pytest.mark.parametrize("stack", ["driver", "statistics,pool"])
def test_looks_change_nothing(recorded, need, need_kind, stack):
    need("hold")
    need_kind("pinned")
    with dm.use_memory(stack):
        array, stream, event, pinned = dm.zeros(1000), dm.stream(), dm.event(), dm.pinned_array(1000)
        device = opened(array)
        dm.zeros(100).free()
        with hold(stream):
            array.copy_to_device(pinned, stream=stream)
            event.record(stream)
            dropped = [dm.device_array(100, stream=stream) for _ in range(5)]
            dropped.clear()
            before = state(device)
            assert len(before[0]) == 5
            for name, look in looks(array, stream, event, pinned).items():
                with recorded.during() as calls:
                    look()
                assert {call.method for call in calls} <= ASKS, name
                assert state(device) == before, name
