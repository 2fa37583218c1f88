"""What Ray's transport tells a receiver of arrays, and what that makes of it; Ray itself is not needed."""

from __future__ import annotations

import dataclasses
import pickle

import numpy as np
import pytest

import devmem as dm
from devmem.adapters.ray import received, sent

HOST = np.arange(120.0).reshape(4, 5, 6)
ARRAYS = {"C": HOST, "F": HOST.T, "strided": HOST[::2, ::-1, 1::2], "empty": HOST[:0], "dates": HOST.astype("M8[s]")}

THERE = """
import pickle
import numpy as np
import devmem as dm
from devmem.adapters.ray import received
told, wanted = pickle.loads(bytes.fromhex({given!r}))
found = received(told)
buffers = [dm.device_array_like(each) for each in found]
again = received(told, buffers)
assert all(one is other for one, other in zip(again, buffers, strict=True))
for one, other, host in zip(found, again, wanted, strict=True):
    assert one.copy_to_host().tobytes() == other.copy_to_host().tobytes() == host.tobytes()
    assert (one.shape, one.dtype) == (host.shape, host.dtype)
del found, again, buffers, one, other
dm.trim()
assert dm.memory_info().live == 0
"""


@pytest.mark.parametrize("stack", ["pool", "driver", "stream_ordered"])
def test_arrays_arrive_in_another_process(stack, python, need, device):
    if stack == "stream_ordered":
        need("stream_ordered")
    with dm.use_memory(stack):
        arrays = [dm.to_device(host) for host in ARRAYS.values()]
        told = sent(arrays)
        shares = "ipc" in device.info.capabilities
        if stack != "stream_ordered":
            assert [isinstance(each, dm.IpcHandle) for each in told.handles] == [
                shares and each.size > 0 for each in arrays
            ]
        done = python(THERE.format(given=pickle.dumps((told, list(ARRAYS.values()))).hex()))
        assert done.returncode == 0, done.stderr


def test_memory_of_another_machine_is_refused(need):
    need("ipc")
    with dm.use_memory("driver"):
        told = dataclasses.replace(sent([dm.zeros(3)]), node="elsewhere")
        with pytest.raises(dm.UnsupportedError, match="in memory of the machine 'elsewhere'"):
            received(told)
    host = dataclasses.replace(sent([dm.zeros(0)]), node="elsewhere")
    assert received(host)[0].shape == (0,)
