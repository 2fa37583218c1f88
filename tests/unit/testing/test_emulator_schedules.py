"""Random schedules of copies, fills, events and stream-ordered memory, with delays, give the result of sequential calls."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from waits import patience

from devmem.testing import emulator

ROOT = Path(emulator.__file__).parents[3]
SEEDS = 40

# Each buffer has one owner stream at a time; when the owner changes, the new one waits for an event of the old one. The order
# of the calls then determines the contents; a NumPy array beside each buffer is the model.
PROGRAM = """
import ctypes, random, sys
import numpy as np
from devmem.testing import emulator
u64, size = ctypes.c_uint64, ctypes.c_size_t
N = 3000

def ok(code):
    assert code == 0, code

def out(call, *arguments):
    value = u64()
    ok(call(ctypes.byref(value), *arguments))
    return value.value

class Cuda:
    def __init__(self):
        self.driver = driver = ctypes.CDLL(emulator.load("cuda"))
        ok(driver.cuInit(0))
        ok(driver.cuCtxSetCurrent(u64(out(driver.cuDevicePrimaryCtxRetain, 0))))
        self.record, self.wait, self.synchronize = driver.cuEventRecord, driver.cuStreamWaitEvent, driver.cuStreamSynchronize
        self.fill, self.settle = driver.cuMemsetD8Async, driver.cuCtxSynchronize
        self.free = {"pinned": driver.cuMemFreeHost, "plain": driver.cuMemFree_v2}
        self.free_later = driver.cuMemFreeAsync
        self.drop_stream, self.drop_event = driver.cuStreamDestroy_v2, driver.cuEventDestroy_v2
        self.kinds = ["pinned", "pool", "plain"]
    def take(self, kind, stream):
        if kind == "pinned": return out(self.driver.cuMemHostAlloc, size(N), 0)
        if kind == "pool": return out(self.driver.cuMemAllocAsync, size(N), u64(stream))
        return out(self.driver.cuMemAlloc_v2, size(N))
    def copy(self, to, source, count, stream):
        return self.driver.cuMemcpyAsync(u64(to), u64(source), size(count), u64(stream))
    def stream(self, flags): return out(self.driver.cuStreamCreate, flags)
    def event(self): return out(self.driver.cuEventCreate, 2)

class Hip:
    def __init__(self):
        self.driver = driver = ctypes.CDLL(emulator.load("roc"))
        self.record, self.wait, self.synchronize = driver.hipEventRecord, driver.hipStreamWaitEvent, driver.hipStreamSynchronize
        self.fill, self.settle = driver.hipMemsetAsync, driver.hipDeviceSynchronize
        self.free = {"pinned": driver.hipHostFree, "coarse": driver.hipHostFree, "plain": driver.hipFree}
        self.free_later, self.drop_stream, self.drop_event = driver.hipFreeAsync, driver.hipStreamDestroy, driver.hipEventDestroy
        self.kinds = ["pinned", "coarse", "pool", "plain"]
    def take(self, kind, stream):
        flags = {"pinned": 0x40000000, "coarse": 0x80000000}.get(kind)
        if flags: return out(self.driver.hipHostMalloc, size(N), ctypes.c_uint(flags))
        if kind == "pool": return out(self.driver.hipMallocAsync, size(N), u64(stream))
        return out(self.driver.hipMalloc, size(N))
    def copy(self, to, source, count, stream):
        return self.driver.hipMemcpyAsync(u64(to), u64(source), size(count), 4, u64(stream))
    def stream(self, flags): return out(self.driver.hipStreamCreateWithFlags, flags)
    def event(self): return out(self.driver.hipEventCreateWithFlags, 2)

class Buffer:
    def __init__(self, kind, stream):
        self.kind, self.owner, self.model = kind, stream, np.zeros(N, np.uint8)
        self.at = api.take(kind, stream)
        ok(api.fill(u64(self.at), 0, size(N), u64(stream)))
    def use_on(self, stream, event):
        if self.owner != stream:
            ok(api.record(u64(event), u64(self.owner)))
            ok(api.wait(u64(stream), u64(event), 0))
            self.owner = stream
    def free(self):
        if self.kind == "pool":
            ok(api.free_later(u64(self.at), u64(self.owner)))
        else:
            ok(api.synchronize(u64(self.owner)))
            ok(api.free[self.kind](u64(self.at)))

def check(buffer):
    back = np.zeros(N, np.uint8)
    ok(api.copy(back.ctypes.data, buffer.at, N, buffer.owner))
    assert (back == buffer.model).all()

def schedule(seed):
    rng = random.Random(seed)
    control.delay(0, jitter=rng.choice([0, 20, 200]), seed=seed)
    streams = [api.stream(rng.randrange(2)) for _ in range(4)] + [1, 2]
    event = api.event()
    buffers = [Buffer(rng.choice(api.kinds), rng.choice(streams)) for _ in range(6)]
    for _ in range(80):
        stream, one, two = rng.choice(streams), *rng.sample(buffers, 2)
        first, count = rng.randrange(N // 2), rng.randrange(1, N // 2)
        cut, what = slice(first, first + count), rng.random()
        one.use_on(stream, event)
        if what < 0.35:
            two.use_on(stream, event)
            ok(api.copy(one.at + first, two.at + first, count, stream))
            one.model[cut] = two.model[cut]
        elif what < 0.55:
            value = rng.randrange(256)
            ok(api.fill(u64(one.at + first), value, size(count), u64(stream)))
            one.model[cut] = value
        elif what < 0.75:
            source = np.frombuffer(rng.randbytes(count), np.uint8).copy()
            ok(api.copy(one.at + first, source.ctypes.data, count, stream))
            one.model[cut] = source
            source[:] = 0
        elif what < 0.9:
            one.free()
            buffers[buffers.index(one)] = Buffer(rng.choice(api.kinds), rng.choice(streams))
        else:
            check(one)
    for buffer in buffers:
        check(buffer)
        buffer.free()
    for stream in streams[:4]:
        ok(api.drop_stream(u64(stream)))
    ok(api.drop_event(u64(event)))
    ok(api.settle())
    assert control.live() == (0, 0), control.live()

api = {"cuda": Cuda, "roc": Hip}[sys.argv[2]]()
control = emulator.control(sys.argv[2])
for seed in range(int(sys.argv[1])):
    try:
        schedule(seed)
    except AssertionError:
        print("seed", seed, file=sys.stderr)
        raise
"""


@pytest.mark.parametrize("backend", ["cuda", "roc"])
def test_delays_do_not_change_the_result(backend):
    try:
        emulator.library(backend)
    except emulator.BuildError as error:
        pytest.skip(str(error))
    command = [sys.executable, "-c", PROGRAM, str(SEEDS), backend]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False, timeout=patience(140))
    assert done.returncode == 0, done.stdout + done.stderr
