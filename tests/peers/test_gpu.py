"""CuPy, PyTorch, JAX and numba on a GPU: arrays there and back without a copy, and in order with their streams.

`scripts/gpu-check` runs it. Their runtimes do not run over an emulated driver, so without a GPU every test is skipped, with the
reason. Each script has a process of its own.
"""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]

#: Of each library: what must work, how it takes and makes arrays and copies them to the host, and a stream of its own.
LIBRARIES = {
    "cupy": """
import cupy
cupy.zeros(3)
take, make, fetch = cupy.from_dlpack, cupy.asarray, cupy.asnumpy
own = cupy.cuda.Stream(non_blocking=True)
use = lambda: own
wait, handle = own.synchronize, own
""",
    "torch": """
import torch
torch.zeros(3, device="cuda")
take, make, fetch = torch.from_dlpack, lambda host: torch.from_numpy(host.copy()).cuda(), lambda t: t.cpu().numpy()
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


@pytest.fixture
def run(devmem_backend: str) -> Callable[[str, str], None]:
    """Run a script on a device with a library that works there, or skip with the reason."""

    def run(library: str, script: str) -> None:
        if importlib.util.find_spec(library.partition(".")[0]) is None:
            pytest.skip(f"{library} is not installed")
        setup = LIBRARIES[library].strip().replace("\n", "\n    ")
        prelude = PRELUDE.replace("LIBRARY", setup).replace("BACKEND", repr(devmem_backend))
        path = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
        done = subprocess.run(
            [sys.executable, "-c", prelude + script],
            env=os.environ | {"PYTHONPATH": path, "DEVMEM_BACKEND": devmem_backend},
            capture_output=True,
            text=True,
            timeout=55,
            check=False,
        )
        if done.stdout.startswith("skip: "):
            pytest.skip(done.stdout.removeprefix("skip: ").strip())
        assert done.returncode == 0, done.stderr

    return run


@pytest.mark.parametrize("library", LIBRARIES)
def test_arrays_go_there_and_back_without_a_copy(run, library):
    run(library, BACK_AND_FORTH)


@pytest.mark.parametrize("library", ["cupy", "torch", "jax"])
def test_a_consumer_that_names_its_stream_sees_what_was_under_way(run, library):
    run(library, "work = lambda x: x * 2 + 1\n" + IN_ORDER)


def test_numba_waits_for_what_was_under_way(run):
    """The host waits there: as_cuda_array() does, for the stream that the array names."""
    script = """
big = np.arange(1 << 20, dtype="f8")
filling = dm.stream(non_blocking=True)
for _ in range(5):
    ours = dm.zeros(big.shape, big.dtype)
    ours.copy_to_device(big, stream=filling)
    theirs = take(ours)
    assert filling.query()
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
