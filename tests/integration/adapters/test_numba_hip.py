"""numba-hip's own driver and arrays with devmem's memory, and devmem with its manager's, over the emulated HIP runtime.

numba-hip cannot be imported without ROCm's compiler, which its package itself loads. Its driver can: the package's own code is
left out.
"""

from __future__ import annotations

import importlib.util
import os
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

PRELUDE = """
import gc, sys, threading, types
import numba, numpy as np
import devmem as dm
from devmem.testing import hold
hip = sys.modules["numba.hip"] = numba.hip = types.ModuleType("numba.hip")
hip.__path__ = [numba.__path__[0] + "/hip"]
from numba.hip.hipdrv import driver, devices
from numba.hip.hipdrv.devicearray import DeviceNDArray
assert driver.driver.is_available
def array(count):
    return DeviceNDArray((count,), (8,), np.dtype("f8"))
def books():
    info = dm.memory_info()
    return info.live + info.host.live, info.pending + info.host.pending
def gone():
    gc.collect()
    dm.trim()
    return books()
start = books()
"""
OURS = """
from devmem.adapters import numba_hip
numba_hip.use()
context = devices.get_context()
assert type(context.memory_manager) is numba_hip.manager()
"""


@pytest.fixture
def run(devmem_backend: str, python: Callable[..., subprocess.CompletedProcess[str]]) -> Callable[..., None]:
    """Run a script where numba-hip is installed and HIP is under test."""

    def run(script: str, **settings: str) -> None:
        if devmem_backend != "roc" or not installed():
            assert "numba_hip" not in os.environ.get("JUDGES", ""), (
                "numba-hip is not installed, or HIP is not under test"
            )
            pytest.skip("numba-hip is not installed, or HIP is not under test")
        done = python(PRELUDE + script, **settings)
        assert done.returncode == 0, done.stderr

    return run


def installed() -> bool:
    """Whether numba-hip is there, without importing it."""
    numba = importlib.util.find_spec("numba")
    return numba is not None and any((Path(each) / "hip").is_dir() for each in numba.submodule_search_locations or ())


def test_numba_hip_allocates_from_the_stack(run: Callable[..., None]) -> None:
    script = """
counting = dm.memory.Statistics()
with dm.use_memory(counting):
    d = array(1000)
    assert counting.current_bytes == 8000
d.copy_to_device(np.arange(1000.0))
assert (d.copy_to_host() == np.arange(1000.0)).all()
view = d[10:20]
del d
gc.collect()
assert books() == (start[0] + 8000, 0), "a view keeps the block"
assert view.copy_to_host().tolist() == list(range(10, 20))
del view
gc.collect()
assert books() == (start[0], 8000), "it waits in devmem's queue"
assert gone() == start and counting.current_bytes == 0
try:
    array(1 << 57)
except MemoryError as error:
    assert "asked for" in str(error)
else:
    raise AssertionError
assert context.get_memory_info() == (dm.memory_info().free, dm.memory_info().total)
with context.defer_cleanup():
    for _ in range(30):
        array(100)
    gc.collect()
    assert books() == (start[0], 30 * 800)
assert gone() == start
d = array(100)
context.reset()
assert books() == start
"""
    run(OURS + script)


def test_numba_hips_host_memory_is_devmems(run: Callable[..., None]) -> None:
    script = """
pinned, mapped = context.memhostalloc(800), context.memhostalloc(400, mapped=True)
assert books() == (start[0] + 1200, 0)
np.ndarray(100, "f8", buffer=pinned)[:] = 3
d = array(100)
driver.host_to_device(d, pinned, 800, context.create_stream())
context.synchronize()
assert d.copy_to_host().tolist() == [3.0] * 100
del pinned, mapped, d
assert gone() == start
"""
    run(OURS + script)


def test_numba_hip_is_given_no_memory_of_a_held_stream(run: Callable[..., None]) -> None:
    """numba-hip drops an array while its copy is pending. Its interface has no streams: the block waits for the device."""
    script = """
page, one = context.memhostalloc(800_000), context.create_stream()
block = array(100_000)
def where(each):
    return int(each.device_ctypes_pointer)
with hold(dm.external_stream(int(one.handle))) as latch:
    driver.host_to_device(block, page, 800_000, one)
    address, found = where(block), []
    del block
    gc.collect()
    allocating = threading.Thread(target=lambda: found.append(array(100_000)))
    allocating.start()
    allocating.join(0.3)
    early = [each for each in found if where(each) == address]
    latch.release()
    allocating.join()
assert not early, "memory was given out while a stream was still to write to it"
context.synchronize()
del page, found
assert gone() == start
"""
    run(OURS + script, MAX_PENDING_DEALLOCS_COUNT="0")


def test_memory_from_numba_hips_own_manager(run: Callable[..., None]) -> None:
    script = """
from devmem.adapters import emm
device, pinned = emm.resources(devices.get_context().memory_manager)
with dm.use_memory(device):
    d = dm.to_device(np.arange(100.0))
    assert d[10:].copy_to_host().tolist() == list(range(10, 100))
    try:
        dm.device_array(1 << 60, "u1")
    except dm.OutOfMemory as error:
        assert "EMMMemory" in str(error)
    else:
        raise AssertionError
    d.free()
assert len(device._blocks) == 0
with dm.use_memory(pinned, kind="pinned"):
    p = dm.pinned_array(100)
    p[:] = 5
    assert len(pinned._blocks) == 1
    assert dm.to_device(p).copy_to_host().tolist() == [5.0] * 100
del p
gone()
assert len(pinned._blocks) == 0
"""
    run(script)
