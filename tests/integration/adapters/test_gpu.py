"""RMM, CuPy and PyTorch themselves, on a GPU: each with devmem's memory, and devmem with theirs.

Their CUDA runtime does not run over an emulated driver, so without a GPU every test here is skipped, with the reason. Each script
has a process of its own, as these libraries choose their allocator once.
"""

from __future__ import annotations

import importlib.util
import subprocess
from collections.abc import Callable

import pytest

PRELUDE = """
import gc, sys
import numpy as np
import devmem as dm
status = next(each for each in dm.backends() if each.name == "cuda")
if not status.usable:
    print("skip: no CUDA device:", status.reason)
    sys.exit()
dm.select_device("cuda")
try:
    PROBE
except Exception as error:
    print(f"skip: {type(error).__name__}: {error}")
    sys.exit()
host = np.arange(1_000_000.0)
def gone():
    gc.collect()
    dm.trim()
    return dm.memory_info()[2:4]
def works(resource, *streams):
    start = gone()
    for stream in (0, dm.stream(), dm.stream(non_blocking=True), dm.per_thread_default_stream(), *streams):
        arrays = [dm.to_device(host + i, stream=stream) for i in range(5)]
        dm.synchronize()
        for i, each in enumerate(arrays):
            assert (each.copy_to_host(stream=0) == host + i).all()
            each.free()
    try:
        dm.device_array(1 << 60, "u1")
    except dm.OutOfMemory as error:
        assert type(resource).__name__ in str(error), error
    else:
        raise AssertionError("an exbibyte was allocated")
    assert gone() == start
    assert not resource._held
"""
RMM = "import rmm; rmm.mr.CudaMemoryResource().deallocate(rmm.mr.CudaMemoryResource().allocate(256), 256)"
CUPY = "import cupy; cupy.zeros(3)"
TORCH = "import torch; torch.zeros(3, device='cuda')"
#: PyTorch's allocator cannot be changed once it has been used.
TORCH_UNUSED = "import torch; assert torch.cuda.is_available(), 'PyTorch sees no device'"

#: Why a library does not work here, once it is known.
cannot: dict[str, str] = {}


@pytest.fixture
def run(python: Callable[..., subprocess.CompletedProcess[str]]) -> Callable[[str, str], None]:
    """Run a script where a library works on a CUDA device, or skip with the reason."""

    def run(probe: str, script: str) -> None:
        if probe in cannot:
            pytest.skip(cannot[probe])
        package = probe.split(";")[0].removeprefix("import ")
        if importlib.util.find_spec(package) is None:
            pytest.skip(f"{package} is not installed")
        done = python(PRELUDE.replace("PROBE", probe) + script)
        if done.stdout.startswith("skip: "):
            cannot[probe] = done.stdout.removeprefix("skip: ").strip()
            pytest.skip(cannot[probe])
        assert done.returncode == 0, done.stderr

    return run


@pytest.mark.parametrize(
    ("made", "ordered"),
    [
        ("rmm.mr.CudaMemoryResource()", False),
        ("rmm.mr.CudaAsyncMemoryResource()", True),
        ("rmm.mr.PoolMemoryResource(rmm.mr.CudaMemoryResource(), initial_pool_size=1 << 28)", True),
        ("rmm.mr.StatisticsResourceAdaptor(rmm.mr.CudaAsyncMemoryResource())", True),
    ],
)
def test_rmm_serves_the_arrays_of_devmem(run: Callable[[str, str], None], made: str, ordered: bool) -> None:
    script = f"""
from devmem.adapters.rmm import RMMMemory
resource = RMMMemory({made})
assert resource.stream_ordered is {ordered}
with dm.use_memory(resource):
    works(resource)
with dm.use_memory("rmm") as resource:
    works(resource)
"""
    run(RMM, script)


def test_rmm_allocates_from_the_stack(run: Callable[[str, str], None]) -> None:
    script = """
from devmem.adapters import rmm as ours
from rmm.pylibrmm.stream import Stream
counting = dm.memory.Statistics()
dm.use_memory(counting)
rmm.mr.set_current_device_resource(ours.callback_resource())
for stream in ({}, {"stream": Stream()}):
    buffer = rmm.DeviceBuffer.to_device(host.tobytes(), **stream)
    assert counting.current_bytes >= host.nbytes
    assert np.frombuffer(buffer.tobytes(), "f8").tolist() == host.tolist()
    del buffer
    gone()
    assert counting.current_bytes == 0
try:
    rmm.DeviceBuffer(size=1 << 60)
except MemoryError:
    pass
else:
    raise AssertionError
"""
    run(RMM, script)


@pytest.mark.parametrize(
    "made", ["cupy.cuda.MemoryPool()", "cupy.cuda.MemoryAsyncPool()", "cupy.cuda.memory._malloc", "None"]
)
def test_memory_from_cupy(run: Callable[[str, str], None], made: str) -> None:
    script = f"""
from devmem.adapters.cupy import CuPyMemory
resource = CuPyMemory({made})
with dm.use_memory(resource):
    works(resource)
resource.trim(0)
"""
    run(CUPY, script)


def test_cupy_allocates_from_the_stack(run: Callable[[str, str], None]) -> None:
    script = """
from devmem.adapters import cupy as ours
counting = dm.memory.Statistics()
dm.use_memory(counting)
cupy.cuda.set_allocator(ours.allocator().malloc)
for stream in (cupy.cuda.Stream.null, cupy.cuda.Stream(non_blocking=True)):
    with stream:
        a = cupy.asarray(host)
        assert counting.current_bytes >= host.nbytes
        b = a * 2 + 1
        stream.synchronize()
        assert (cupy.asnumpy(b) == host * 2 + 1).all()
        view = b[10:20]
        del a, b
        assert (cupy.asnumpy(view) == (host * 2 + 1)[10:20]).all()
        del view
del stream
gone()
assert counting.current_bytes == 0
try:
    cupy.empty(1 << 60, "u1")
except MemoryError:
    pass
else:
    raise AssertionError
"""
    run(CUPY, script)


@pytest.mark.parametrize("made", ["TorchMemory()", "TorchMemory(torch.cuda.MemPool())"])
def test_memory_from_pytorch(run: Callable[[str, str], None], made: str) -> None:
    script = f"""
from devmem.adapters.torch import TorchMemory
resource = {made}
with dm.use_memory(resource):
    works(resource)
    before = torch.cuda.memory_allocated()
    d = dm.to_device(host)
    assert torch.cuda.memory_allocated() >= before + host.nbytes
    d.free()
    gone()
    assert torch.cuda.memory_allocated() == before
"""
    run(TORCH, script)


def test_pytorch_allocates_from_the_stack(run: Callable[[str, str], None]) -> None:
    script = """
import threading, warnings
from devmem.adapters import torch as ours
counting = dm.memory.Statistics()
dm.use_memory(counting)
torch.cuda.memory.change_current_allocator(ours.pluggable_allocator())
side = torch.cuda.Stream()
for stream in (torch.cuda.current_stream(), side):
    with torch.cuda.stream(stream):
        a = torch.from_numpy(host).cuda()
        assert counting.current_bytes >= host.nbytes
        b = (a * 2 + 1).cpu().numpy()
        assert (b == host * 2 + 1).all()
        del a
x = torch.ones(1000, device="cuda", requires_grad=True)
(x * 2).sum().backward()
assert x.grad.tolist() == [2.0] * 1000
del x
def work():
    for n in range(1, 100):
        t = torch.full((n,), 7.0, device="cuda")
        assert t.sum().item() == 7.0 * n
threads = [threading.Thread(target=work) for _ in range(4)]
[each.start() for each in threads]
[each.join() for each in threads]
gone()
assert counting.current_bytes == 0, counting.current_bytes
with warnings.catch_warnings():
    warnings.simplefilter("ignore", dm.DevmemWarning)
    try:
        torch.empty(1 << 60, dtype=torch.uint8, device="cuda")
    except (MemoryError, RuntimeError):
        pass
    else:
        raise AssertionError
last = torch.ones(10, device="cuda")  # freed when the process ends
"""
    run(TORCH_UNUSED, script)
