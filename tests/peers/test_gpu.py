"""CuPy, PyTorch, JAX and numba on a GPU: arrays there and back without a copy, and in order with their streams.

`scripts/gpu-check` runs it on a GPU. PyTorch and CuPy for ROCm need none: ``nox -s judges`` runs them over the emulated runtimes,
where no kernel runs, so nothing here is computed on the device. Elsewhere a test is skipped, with the reason; JUDGES names the
libraries for which it must not be. Each script has a process of its own.
"""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from waits import patience

ROOT = Path(__file__).parents[2]

#: To import PyTorch takes half a minute where others want the processors too.
pytestmark = pytest.mark.timeout(300)

#: Of each library: what must work, how it takes and makes arrays and copies them to the host, and a stream of its own, on which
#: it begins to make one.
LIBRARIES = {
    "cupy": """
import cupy
cupy.empty(3).fill(0)
take, make = cupy.from_dlpack, cupy.asarray
def fetch(a):  # the bytes as they are: a strided copy would be a kernel
    reach = [(n - 1) * step for n, step in zip(a.shape, a.strides)]
    low = a.data.ptr + sum(each for each in reach if each < 0)
    raw = np.zeros(a.itemsize + sum(map(abs, reach)) if a.size else 0, "u1")
    cupy.cuda.runtime.memcpy(raw.ctypes.data, low, raw.nbytes, 2)
    return np.ndarray(a.shape, a.dtype, raw, a.data.ptr - low if a.size else 0, a.strides)
def duplicate(a):
    made = cupy.empty_like(a)
    made.data.copy_from_device_async(a.data, a.nbytes)
    return made
def begin(host):
    made = cupy.empty(host.shape, host.dtype)
    made.set(host, stream=own)
    return made
own = cupy.cuda.Stream(non_blocking=True)
use = lambda: own
wait, handle = own.synchronize, own
del layouts["negative strides"]  # its capsules have them as unsigned numbers divided by the size of an element, which is refused
""",
    "torch": """
import torch
torch.empty(3, device="cuda")
take, make = torch.from_dlpack, lambda host: torch.from_numpy(host.copy()).cuda()
def fetch(t):  # the bytes as they are: a strided copy would be a kernel
    raw = t.untyped_storage().cpu()
    return torch.empty(0, dtype=t.dtype).set_(raw, t.storage_offset(), t.size(), t.stride()).numpy()
duplicate = torch.clone
begin = lambda host: torch.empty(host.shape, dtype=torch.float64, device="cuda").copy_(torch.from_numpy(host), non_blocking=True)
own = torch.cuda.Stream()
use = lambda: torch.cuda.stream(own)
wait, handle = own.synchronize, own
del layouts["negative strides"]  # it has none
""",
    "jax": """
import os
os.environ["XLA_PYTHON_CLIENT_PREALLOCATE"] = "false"
import jax
jax.config.update("jax_enable_x64", True)
there = jax.devices("gpu")[0]
take, fetch = jax.dlpack.from_dlpack, np.asarray
make = lambda host: jax.block_until_ready(jax.device_put(host, there))
use, wait, handle = contextlib.nullcontext, jax.effects_barrier, None
copied = {"0-d"}  # memory at odd addresses
for name in ("strided", "negative strides"):
    del layouts[name]  # it takes arrays without gaps only
""",
    "numba.cuda": """
from numba import cuda
cuda.to_device(np.zeros(3))
own = cuda.stream()
take, make, fetch = cuda.as_cuda_array, cuda.to_device, lambda a: a.copy_to_host()
def begin(host):
    made = cuda.device_array(host.shape, host.dtype, stream=own)
    made.copy_to_device(host, stream=own)
    return made
use, wait, handle = contextlib.nullcontext, own.synchronize, own
del layouts["negative strides"]  # it does not copy them to the host
""",
}

PRELUDE = """
import contextlib, gc, sys
import numpy as np
import devmem as dm
from devmem.testing import hold
backend = next(each for each in dm.backends() if each.name == BACKEND)
if not backend.usable:
    print("skip: no device:", backend.reason)
    sys.exit()
layouts = {
    "C": lambda x: x,
    "F": lambda x: x.T,
    "strided": lambda x: x[::2, 1::2],
    "negative strides": lambda x: x[::-1, ::-2],
    "0-d": lambda x: x[1:2, 2:3].reshape(()),
    "empty": lambda x: x[:0],
}
copied = set()
duplicate = lambda x: x.copy()
try:
    LIBRARY
except Exception as error:
    print(f"skip: {type(error).__name__}: {error}")
    sys.exit()
dm.select_device(BACKEND)
host = np.arange(24.0).reshape(4, 6)
def same(one, other):
    assert one.shape == other.shape and one.dtype == other.dtype and (one == other).all(), (one, other)
"""

BACK_AND_FORTH = """
for name, layout in layouts.items():
    ours = layout(dm.to_device(host))
    theirs = take(ours)
    same(fetch(theirs), layout(host))
    again = dm.as_device_array(theirs)
    assert name in copied or again.ptr == ours.ptr, f"{name}: copied on the way"
    same(again.copy_to_host(), layout(host))
    del ours
    gc.collect()
    same(fetch(theirs), layout(host))
    made = make(host)
    view = dm.as_device_array(made)
    del made
    gc.collect()
    same(layout(view).copy_to_host(), layout(host))
for dtype in ("b1", "i1", "i4", "i8", "u1", "f2", "f4", "c8", "c16"):
    elements = np.arange(6).astype(dtype)
    same(fetch(take(dm.to_device(elements))), elements)
    same(dm.as_device_array(make(elements)).copy_to_host(), elements)
del theirs, again, view
gc.collect()
dm.synchronize()
dm.trim()
assert dm.memory_info()[2:4] == (0, 0), dm.memory_info()
"""

#: Theirs waits for ours: the stream that fills the array is held while it is handed over.
IN_ORDER = """
big = np.arange(1 << 20, dtype="f8")
if "hold" not in dm.current_device().info.capabilities:
    print("skip: no stream can be held")
    sys.exit()
locked = dm.pinned_array(big.shape, big.dtype)
locked[:] = big
filling = dm.stream(non_blocking=True)
for _ in range(5):
    ours = dm.zeros(big.shape, big.dtype)
    dm.synchronize()
    with use():
        with hold(filling) as latch:
            ours.copy_to_device(locked, stream=filling)
            theirs = take(ours)
            result = work(theirs)
            latch.release()
        wait()
    same(fetch(result), work(big))
if handle is not None:
    stream = dm.external_stream(handle)
    ours = dm.to_device(big, stream=stream)
    wait()
    same(ours.copy_to_host(), big)
"""

#: Ours waits for theirs: the stream that fills the array is held while it is handed over, and reads a page-locked source.
THEIRS_IN_ORDER = """
big = np.arange(1 << 20, dtype="f8")
if "hold" not in dm.current_device().info.capabilities:
    print("skip: no stream can be held")
    sys.exit()
locked = dm.pinned_array(big.shape, big.dtype)
theirs, ours = dm.external_stream(handle), dm.stream(non_blocking=True)
for turn in range(5):
    locked[:] = big + turn
    with use(), hold(theirs):
        copy = dm.as_device_array(begin(locked)).copy(stream=ours)
        assert not ours.query()
    ours.synchronize()
    same(copy.copy_to_host(stream=0), big + turn)
"""


@pytest.fixture
def run(devmem_backend: str) -> Callable[[str, str], None]:
    """Run a script on a device with a library that works there, or skip with the reason."""

    def run(library: str, script: str) -> None:
        if importlib.util.find_spec(library.partition(".")[0]) is None:
            assert library not in os.environ.get("JUDGES", ""), f"{library} is not installed"
            pytest.skip(f"{library} is not installed")
        setup = LIBRARIES[library].strip().replace("\n", "\n    ")
        prelude = PRELUDE.replace("LIBRARY", setup).replace("BACKEND", repr(devmem_backend))
        path = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
        done = subprocess.run(
            [sys.executable, "-c", prelude + script],
            env=os.environ | {"PYTHONPATH": path, "DEVMEM_BACKEND": devmem_backend},
            capture_output=True,
            text=True,
            timeout=patience(140),
            check=False,
        )
        if done.stdout.startswith("skip: "):
            assert library not in os.environ.get("JUDGES", ""), done.stdout
            pytest.skip(done.stdout.removeprefix("skip: ").strip())
        assert done.returncode == 0, done.stderr

    return run


@pytest.mark.parametrize("library", LIBRARIES)
def test_arrays_go_there_and_back_without_a_copy(run, library):
    run(library, BACK_AND_FORTH)


@pytest.mark.parametrize("library", ["cupy", "torch", "jax"])
def test_a_consumer_that_names_its_stream_sees_what_was_under_way(run, library):
    run(library, "work = lambda x: x.copy() if isinstance(x, np.ndarray) else duplicate(x)\n" + IN_ORDER)


@pytest.mark.parametrize("library", ["cupy", "torch", "numba.cuda"])
def test_what_a_producer_still_writes_is_waited_for(run, library):
    run(library, THEIRS_IN_ORDER)


def test_numba_waits_for_what_was_under_way(run):
    """The host waits there: as_cuda_array() does, for the stream that the array names, which another thread lets go of."""
    script = """
import threading
big = np.arange(1 << 20, dtype="f8")
if "hold" not in dm.current_device().info.capabilities:
    print("skip: no stream can be held")
    sys.exit()
locked = dm.pinned_array(big.shape, big.dtype)
locked[:] = big
filling = dm.stream(non_blocking=True)
for _ in range(3):
    ours = dm.zeros(big.shape, big.dtype)
    dm.synchronize()
    with hold(filling, patience=60) as latch:
        ours.copy_to_device(locked, stream=filling)
        assert not filling.query()
        threading.Timer(0.3, latch.release).start()
        theirs = take(ours)
        assert filling.query(), "it did not wait"
    there = cuda.device_array(big.shape, big.dtype)
    there.copy_to_device(theirs, stream=own)
    wait()
    same(fetch(there), big)
stream = dm.external_stream(handle)
ours = dm.to_device(big, stream=stream)
wait()
same(ours.copy_to_host(), big)
"""
    run("numba.cuda", script)
