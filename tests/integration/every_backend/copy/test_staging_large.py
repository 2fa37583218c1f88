"""Twenty gibibytes each way through a ring of 64 MiB, in bounded memory.

In a process of its own, whose memory is measured. The device's side of each copy is left out, which without a GPU takes longer
than all else: a driver stands before the backend's that counts the bytes of its copies, and looks at, or puts, the words at both
ends of each. Slots, events, streams and page-locked memory are the backend's, and all bytes pass through the slots.
"""

from __future__ import annotations

import json

import pytest

SCRIPT = """
import json, resource, sys
import numpy as np
import devmem as dm
from devmem.spi.types import CopyKind, MemoryKind

MIB, GIB = 1 << 20, 1 << 30
ARRAY, TOTAL = 256 * MIB, 20 * GIB

class Counting:
    def __init__(self, driver):
        self.driver = driver
        self.moved = dict.fromkeys(CopyKind, 0)
        self.largest = self.wrong = self.pinned = self.most_pinned = 0
        self.base = 0

    def __getattr__(self, name):
        return getattr(self.driver, name)

    def copy(self, dst, src, nbytes, kind, stream, *, blocking):
        if nbytes > MIB // 2:
            self.moved[kind] += nbytes
            self.largest = max(self.largest, nbytes)
            there, here = (dst, src) if kind is CopyKind.H2D else (src, dst)
            for at in (0, nbytes - 8):
                word, expected = words(here + at), (there + at - self.base) // 8
                if kind is CopyKind.H2D:
                    self.wrong += int(word[0]) != expected
                else:
                    word[0] = expected
        return not blocking and kind is not CopyKind.D2D

    def alloc(self, nbytes, stream, kind=MemoryKind.DEVICE, *more):
        if kind is MemoryKind.PINNED:
            self.pinned += nbytes
            self.most_pinned = max(self.most_pinned, self.pinned)
        return self.driver.alloc(nbytes, stream, kind, *more)

    def free(self, ptr, nbytes, stream, kind=MemoryKind.DEVICE):
        if kind is MemoryKind.PINNED:
            self.pinned -= nbytes
        self.driver.free(ptr, nbytes, stream, kind)

class Words:
    def __init__(self, ptr):
        self.__array_interface__ = {"shape": (1,), "typestr": "<u8", "data": (ptr, False), "version": 3}

def words(ptr):
    return np.asarray(Words(ptr))

def resident():
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss >> 10

context = dm.current_device().opened()
counting = context.handle.driver = Counting(context.handle.driver)
source = np.arange(ARRAY // 8, dtype="<u8")
back = np.zeros_like(source)
array = dm.device_array(source.shape, "<u8")
counting.base = array.ptr
stream = dm.stream()
array.copy_to_device(source, stream=stream)   # every page that there will be is there now
array.copy_to_host(back)
stream.synchronize()
dm.transfer_stats(reset=True)
counting.moved = dict.fromkeys(CopyKind, 0)
before = resident()
for _ in range(TOTAL // ARRAY):
    array.copy_to_device(source, stream=stream)
for _ in range(TOTAL // ARRAY):
    back[:: MIB // 8] = 0
    array.copy_to_host(back)
    ends = back[:: counting.largest // 8]
    counting.wrong += int(np.count_nonzero(ends != np.arange(0, back.size, counting.largest // 8)))
stream.synchronize()
json.dump({
    "moved": {kind.name: nbytes for kind, nbytes in counting.moved.items()},
    "wrong": counting.wrong,
    "largest": counting.largest,
    "pinned": counting.most_pinned,
    "grown MiB": resident() - before,
    "stats": dm.transfer_stats(),
}, sys.stdout)
"""

MIB, GIB = 1 << 20, 1 << 30


@pytest.mark.exhaustive  # it is work, of eight seconds on an idle machine
@pytest.mark.timeout(300)
def test_twenty_gibibytes_each_way(python, need_kind):
    need_kind("pinned")
    ring = {"STAGING_SLOTS": "4", "STAGING_SLOT_BYTES": str(16 * MIB), "STAGING_THRESHOLD": str(MIB)}
    done = python(SCRIPT, patience=130, **ring)
    assert (done.returncode, done.stderr) == (0, "")
    found = json.loads(done.stdout)
    assert found["moved"] == {"H2D": 20 * GIB, "D2H": 20 * GIB, "D2D": 0}
    assert found["wrong"] == 0
    assert found["largest"] == 16 * MIB
    assert found["pinned"] <= 64 * MIB
    assert found["grown MiB"] <= 80, "more than the ring was kept"
    copies = {path: (numbers["copies"], numbers["bytes"]) for path, numbers in found["stats"].items()}
    assert copies == {"h2d staged": (80, 20 * GIB), "d2h staged": (80, 20 * GIB)}
