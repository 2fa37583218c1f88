"""Random schedules of copies, fills, events and stream-ordered memory under delays end as the same calls one by one."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from devmem.testing import emulator

ROOT = Path(emulator.__file__).parents[3]
SEEDS = 40

# Every buffer has one owner stream at a time; an event is recorded and waited for whenever it changes hands. What the
# program may rely on is then the order of the calls, and a NumPy array beside each buffer is the model of it.
PROGRAM = """
import ctypes, random, sys
import numpy as np
from devmem.testing import emulator
driver = ctypes.CDLL(emulator.load("cuda"))
control = emulator.control("cuda")
u64, size = ctypes.c_uint64, ctypes.c_size_t
N = 3000

def ok(code):
    assert code == 0, code

def out(call, *arguments):
    value = u64()
    ok(call(ctypes.byref(value), *arguments))
    return value.value

class Buffer:
    def __init__(self, kind, stream):
        self.kind, self.owner, self.model = kind, stream, np.zeros(N, np.uint8)
        if kind == "pinned":
            self.at = out(driver.cuMemHostAlloc, size(N), 0)
        elif kind == "pool":
            self.at = out(driver.cuMemAllocAsync, size(N), u64(stream))
        else:
            self.at = out(driver.cuMemAlloc_v2, size(N))
        ok(driver.cuMemsetD8Async(u64(self.at), 0, size(N), u64(stream)))
    def use_on(self, stream, event):
        if self.owner != stream:
            ok(driver.cuEventRecord(u64(event), u64(self.owner)))
            ok(driver.cuStreamWaitEvent(u64(stream), u64(event), 0))
            self.owner = stream
    def free(self):
        if self.kind == "pool":
            ok(driver.cuMemFreeAsync(u64(self.at), u64(self.owner)))
        else:
            ok(driver.cuStreamSynchronize(u64(self.owner)))
            ok((driver.cuMemFreeHost if self.kind == "pinned" else driver.cuMemFree_v2)(u64(self.at)))

def check(buffer):
    back = np.zeros(N, np.uint8)
    ok(driver.cuMemcpyAsync(u64(back.ctypes.data), u64(buffer.at), size(N), u64(buffer.owner)))
    assert (back == buffer.model).all()

def schedule(seed):
    rng = random.Random(seed)
    control.delay(0, jitter=rng.choice([0, 20, 200]), seed=seed)
    streams = [out(driver.cuStreamCreate, rng.randrange(2)) for _ in range(4)] + [1, 2]
    event = out(driver.cuEventCreate, 2)
    buffers = [Buffer(rng.choice(["pinned", "pool", "plain"]), rng.choice(streams)) for _ in range(6)]
    for _ in range(80):
        stream, one, two = rng.choice(streams), *rng.sample(buffers, 2)
        first, count = rng.randrange(N // 2), rng.randrange(1, N // 2)
        cut, what = slice(first, first + count), rng.random()
        one.use_on(stream, event)
        if what < 0.35:
            two.use_on(stream, event)
            ok(driver.cuMemcpyAsync(u64(one.at + first), u64(two.at + first), size(count), u64(stream)))
            one.model[cut] = two.model[cut]
        elif what < 0.55:
            value = rng.randrange(256)
            ok(driver.cuMemsetD8Async(u64(one.at + first), value, size(count), u64(stream)))
            one.model[cut] = value
        elif what < 0.75:
            source = np.frombuffer(rng.randbytes(count), np.uint8).copy()
            ok(driver.cuMemcpyAsync(u64(one.at + first), u64(source.ctypes.data), size(count), u64(stream)))
            one.model[cut] = source
            source[:] = 0
        elif what < 0.9:
            one.free()
            buffers[buffers.index(one)] = Buffer(rng.choice(["pinned", "pool", "plain"]), rng.choice(streams))
        else:
            check(one)
    for buffer in buffers:
        check(buffer)
        buffer.free()
    for stream in streams[:4]:
        ok(driver.cuStreamDestroy_v2(u64(stream)))
    ok(driver.cuEventDestroy_v2(u64(event)))
    ok(driver.cuCtxSynchronize())
    assert control.live() == (0, 0), control.live()

ok(driver.cuInit(0))
ok(driver.cuCtxSetCurrent(u64(out(driver.cuDevicePrimaryCtxRetain, 0))))
for seed in range(int(sys.argv[1])):
    try:
        schedule(seed)
    except AssertionError:
        print("seed", seed, file=sys.stderr)
        raise
"""


def test_the_order_of_calls_is_kept_whatever_the_delays():
    try:
        emulator.library("cuda")
    except emulator.BuildError as error:
        pytest.skip(str(error))
    command = [sys.executable, "-c", PROGRAM, str(SEEDS)]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False, timeout=55)
    assert done.returncode == 0, done.stdout + done.stderr
