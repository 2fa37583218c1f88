"""numba-cuda and cuda.core themselves, on a CUDA device: each with devmem's memory, and devmem with theirs.

Runs where these packages and a CUDA driver are, be it an emulated one: ``devmem emulate cuda -- pytest`` this file. Each script
has a process of its own, as both libraries choose their allocator once.
"""

from __future__ import annotations

import importlib.util
import os
import re
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

import devmem as dm

PRELUDE = """
import contextvars, gc, threading
import numpy as np
import devmem as dm
from devmem.testing import hold
dm.select_device("cuda")
def books():
    info = dm.memory_info()
    return info.live + info.host.live, info.pending + info.host.pending
def gone():
    gc.collect()
    dm.trim()
    return books()
def beside(latch, address, allocate, where, waits):
    # Allocate while a stream is held that is still to write to a dropped block. Where no stream is known, it may wait.
    gc.collect()
    found = []
    run = contextvars.copy_context().run
    allocating = threading.Thread(target=lambda: found.append(run(allocate)))
    allocating.start()
    allocating.join(0.3 if waits else None)
    early = [each for each in found if where(each) == address]
    latch.release()
    allocating.join()
    assert not early, "memory was given out while a stream was still to write to it"
    return found[0]
def arrays_beside_a_held_stream(waits):
    one, other = dm.stream(non_blocking=True), dm.stream(non_blocking=True)
    with hold(one) as latch:
        block = dm.device_array(100_000, stream=one)
        block.fill(1.0, stream=one)
        address = block.ptr
        del block
        second = beside(latch, address, lambda: dm.device_array(100_000, stream=other), lambda each: each.ptr, waits)
    second.fill(2.0, stream=other)
    assert (second.copy_to_host(stream=other) == 2.0).all()
    del second
    dm.synchronize()
    gone()
"""

#: The code of the page on sharing an allocator, by the libraries that it is for.
PAGE = (Path(__file__).parents[3] / "docs" / "how-to" / "share-an-allocator.md").read_text(encoding="utf-8")
PARTS = [part for block in re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL) for part in block.split("\n\nfrom ")]

#: What was dropped goes back to its resource at the next allocation.
AT_ONCE = {"MAX_PENDING_DEALLOCS_COUNT": "0"}


@pytest.fixture
def run(python: Callable[..., subprocess.CompletedProcess[str]]) -> Callable[..., str]:
    """Run a script on a CUDA device with some packages, or skip with the reason; what it prints."""

    def run(script: str, *packages: str, **settings: str) -> str:
        for package in packages:
            if not installed(package):
                assert package not in os.environ.get("JUDGES", "").split(), f"{package} is not installed"
                pytest.skip(f"{package} is not installed")
        status = next(each for each in dm.backends() if each.name == "cuda")
        if not status.usable:
            assert "JUDGES" not in os.environ, status.reason
            pytest.skip(f"no CUDA device: {status.reason}")
        done = python(PRELUDE + script, **settings)
        assert done.returncode == 0, done.stderr
        return done.stdout

    return run


def installed(package: str) -> bool:
    """Whether a package is there, without importing it; of one inside another, the outer one may be missing too."""
    try:
        return importlib.util.find_spec(package) is not None
    except ModuleNotFoundError:
        return False


NUMBA_MEMORY = """
import os
os.environ["NUMBA_CUDA_MEMORY_MANAGER"] = "devmem.adapters.numba"
from numba import cuda
start = books()
d = cuda.to_device(np.arange(1000.0))
assert type(cuda.current_context().memory_manager).__module__ == "devmem.adapters.numba"
assert books() == (start[0] + 8000, 0)
assert (d.copy_to_host() == np.arange(1000.0)).all()
view = d[10:20]
del d
gc.collect()
assert books() == (start[0] + 8000, 0), "a view keeps the block"
assert view.copy_to_host().tolist() == list(range(10, 20))
del view
gc.collect()
assert books() == (start[0], 8000), "it waits in devmem's queue"
assert gone() == start
"""


def test_numba_allocates_from_the_stack(run: Callable[..., str]) -> None:
    run(NUMBA_MEMORY, "numba_cuda")


def test_numba_is_told_by_a_call(run: Callable[..., str]) -> None:
    script = """
from devmem.adapters import numba
numba.use()
from numba import cuda
counting = dm.memory.Statistics()
with dm.use_memory(counting):
    d = cuda.device_array(100)
    assert counting.current_bytes == 800
    d.copy_to_device(np.ones(100))
del d
gone()
assert counting.current_bytes == 0
"""
    run(script, "numba_cuda")


def test_numbas_host_memory_is_devmems(run: Callable[..., str]) -> None:
    script = """
from devmem.adapters import numba
numba.use()
from numba import cuda
start = books()
pinned, mapped = cuda.pinned_array(100), cuda.mapped_array(50)
assert books() == (start[0] + 1200, 0)
pinned[:] = 3
mapped[:] = 2
d = cuda.to_device(pinned, stream=cuda.stream())
cuda.synchronize()
assert d.copy_to_host().tolist() == [3.0] * 100
assert mapped.sum() == 100.0
del pinned, mapped, d
assert gone() == start
"""
    run(script, "numba_cuda")


def test_numba_runs_out_resets_and_defers(run: Callable[..., str]) -> None:
    script = """
from devmem.adapters import numba
numba.use()
from numba import cuda
kept = dm.to_device([1, 2, 3])
start = books()
try:
    cuda.device_array(1 << 60, "u1")
except MemoryError as error:
    assert "asked for" in str(error)
else:
    raise AssertionError
free, total = cuda.current_context().get_memory_info()
assert 0 < free <= total == dm.memory_info().total
with cuda.defer_cleanup():
    for _ in range(30):
        cuda.device_array(100)
    gc.collect()
    assert books() == (start[0], 30 * 800)
assert gone() == start
d = cuda.device_array(100)
cuda.current_context().reset()
assert books() == start
assert kept.tolist() == [1, 2, 3]
"""
    run(script, "numba_cuda")


def test_numbas_handles_for_other_processes(run: Callable[..., str]) -> None:
    script = """
from devmem.adapters import numba
numba.use()
from numba import cuda
with dm.use_memory("driver"):
    plain = cuda.device_array(10)
plain.get_ipc_handle()
d = cuda.device_array(10)
try:
    d.get_ipc_handle()
except dm.UnsupportedError as error:
    assert "use_memory(devmem.memory.DriverMemory())" in str(error)
    print("refused")
"""
    assert run(script, "numba_cuda") in ("refused\n", "")


def test_memory_from_numbas_own_manager(run: Callable[..., str]) -> None:
    script = """
from numba import cuda
from devmem.adapters import emm
device, pinned = emm.resources(cuda.current_context().memory_manager)
with dm.use_memory(device):
    d = dm.to_device(np.arange(100.0))
    assert d[10:].copy_to_host().tolist() == list(range(10, 100))
    assert device.get_ipc_handle(d.ptr) is not None
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
    run(script, "numba_cuda")


def test_numbas_manager_gives_no_memory_of_a_held_stream_out(run: Callable[..., str]) -> None:
    script = """
from numba import cuda
from devmem.adapters import emm
device, _ = emm.resources(cuda.current_context().memory_manager)
with dm.use_memory(device):
    arrays_beside_a_held_stream(waits=True)
assert len(device._blocks) == 0
"""
    run(script, "numba_cuda", **AT_ONCE)


def test_numba_is_given_no_memory_of_a_held_stream(run: Callable[..., str]) -> None:
    """Numba drops an array while its copy is pending. Its interface has no streams: the block waits for the device."""
    script = """
from devmem.adapters import numba
numba.use()
from numba import cuda
start = books()
page, back, one, other = cuda.pinned_array(100_000), cuda.pinned_array(100_000), cuda.stream(), cuda.stream()
page[:], back[:] = 1.0, 2.0
block = cuda.device_array(100_000)
def where(each):
    return each.device_ctypes_pointer.value
with hold(dm.external_stream(int(one.handle))) as latch:
    block.copy_to_device(page, stream=one)
    address = where(block)
    del block
    second = beside(latch, address, lambda: cuda.device_array(100_000), where, waits=True)
second.copy_to_device(back, stream=other)
second.copy_to_host(page, stream=other)
other.synchronize()
assert (page == 2.0).all()
del second, page, back
assert gone() == start
"""
    run(script, "numba_cuda", **AT_ONCE)


def test_memory_from_cuda_cores_device_resource(run: Callable[..., str]) -> None:
    script = """
with dm.use_memory("cuda_core") as resource:
    assert resource.stream_ordered
    stream = dm.stream()
    for each in (0, stream, dm.per_thread_default_stream()):
        d = dm.to_device(np.arange(100.0), stream=each)
        assert d.copy_to_host(stream=0).tolist() == list(range(100))
        d.free()
    try:
        dm.device_array(1 << 60, "u1")
    except dm.OutOfMemory as error:
        assert "CudaCoreMemory" in str(error)
    else:
        raise AssertionError
gone()
assert len(resource._blocks) == 0
"""
    run(script, "cuda.core")


def test_cuda_core_gives_no_memory_of_a_held_stream_out(run: Callable[..., str]) -> None:
    script = """
with dm.use_memory("cuda_core") as resource:
    arrays_beside_a_held_stream(waits=False)
assert len(resource._blocks) == 0
"""
    run(script, "cuda.core", **AT_ONCE)


@pytest.mark.parametrize("closed", ["buffer.close(one)", "buffer.close()", "del buffer"])
def test_cuda_core_is_given_no_memory_of_a_held_stream(run: Callable[..., str], closed: str) -> None:
    script = """
from cuda.core import Device
from devmem.adapters import cuda_core
device = Device(0)
device.set_current()
resource = cuda_core.memory_resource()
start = books()
one, other = device.create_stream(), device.create_stream()
source, target = (resource.allocate(800_000, stream=other) for _ in range(2))
def where(each):
    return int(each.handle)
with hold(dm.external_stream(one)) as latch:
    buffer = resource.allocate(800_000, stream=one)
    buffer.copy_from(source, stream=one)
    address = where(buffer)
    CLOSED
    second = beside(latch, address, lambda: resource.allocate(800_000, stream=other), where, waits=False)
second.copy_to(target, stream=other)
other.sync()
one.sync()
for each in (source, target, second):
    each.close(other)
other.sync()
del each, source, target, second
assert gone() == start
assert len(resource.lent) == 0
"""
    run(script.replace("CLOSED", closed), "cuda.core", **AT_ONCE)


def test_cuda_core_allocates_from_the_stack(run: Callable[..., str]) -> None:
    script = """
from cuda.core import Device, LEGACY_DEFAULT_STREAM
from devmem.adapters import cuda_core
device = Device(0)
device.set_current()
resource = device.memory_resource = cuda_core.memory_resource()
start = books()
stream = device.create_stream()
buffer, other = device.allocate(1000, stream=stream), resource.allocate(500, stream=LEGACY_DEFAULT_STREAM)
assert books() == (start[0] + 1500, 0)
d = dm.to_device(np.arange(500, dtype="u1"))
other.copy_from(type(other).from_handle(d.ptr, 500, owner=d), stream=LEGACY_DEFAULT_STREAM)
dm.synchronize()
buffer.close()
stream.sync()
stream.close()  # the block that came back on it still waits
del other
del d
assert gone() == start
assert len(resource.lent) == 0
try:
    resource.allocate(1 << 60, stream=LEGACY_DEFAULT_STREAM)
except MemoryError:
    pass
else:
    raise AssertionError
"""
    run(script, "cuda.core")


@pytest.mark.parametrize(
    ("package", "word", "before", "after"),
    [
        (
            "cuda.core",
            "CudaCoreMemory",
            "import cuda.core\ncuda.core.Device(0).set_current()\nresource = cuda.core.Device(0).memory_resource",
            "d = dm.zeros(100)\nassert 'CudaCoreMemory' in str(dm.memory_summary())",
        ),
        (
            "cuda.core",
            "as for_cuda_core",
            "import cuda.core\ncuda.core.Device(0).set_current()",
            "device = cuda.core.Device(0)\nheld = device.allocate(1 << 20, stream=device.default_stream)\n"
            "assert dm.memory_info().live >= 1 << 20",
        ),
        (
            "numba_cuda",
            "emm.resources",
            "import numba.cuda",
            "d, p = dm.zeros(100), dm.pinned_array(100)\nassert len(device._blocks) == len(pinned._blocks) == 1",
        ),
    ],
    ids=["CudaCoreMemory", "cuda_core.memory_resource", "emm"],
)
def test_the_code_of_the_page_runs(run: Callable[..., str], package: str, word: str, before: str, after: str) -> None:
    [part] = [part for part in PARTS if word in part]
    run("\n".join([before, "from " + part.removeprefix("from "), after]), package)
