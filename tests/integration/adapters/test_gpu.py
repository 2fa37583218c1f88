"""RMM, CuPy and PyTorch themselves, on a GPU: each with devmem's memory, and devmem with theirs.

NVIDIA's CUDA runtime, which is inside RMM and CuPy for CUDA, does not run over an emulated driver, so without a GPU they are
skipped, with the reason. PyTorch and CuPy for ROCm are linked with the runtime of their surroundings, and ``nox -s judges`` gives
them the emulated one: there everything but kernels works. JUDGES names libraries that must not be skipped. Each script has a
process of its own, as these libraries choose their allocator once.
"""

from __future__ import annotations

import importlib.util
import os
import subprocess
from collections.abc import Callable

import pytest

#: To import PyTorch takes half a minute where others want the processors too.
pytestmark = pytest.mark.timeout(300)

PRELUDE = """
import gc, sys
import numpy as np
import devmem as dm
from devmem.testing import hold
status = next(each for each in dm.backends() if each.name == "BACKEND")
if not status.usable:
    print("skip: no device:", status.reason)
    sys.exit()
dm.select_device("BACKEND")
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
    one, other = dm.stream(non_blocking=True), dm.stream(non_blocking=True)
    with hold(one):
        block = dm.device_array(host.shape, stream=one)
        block.fill(1.0, stream=one)
        address = block.ptr
        del block
        second = dm.device_array(host.shape, stream=other)
        assert second.ptr != address, "memory was given out while a stream was still to write to it"
    del second
    dm.synchronize()
    assert gone() == start
    assert not resource._blocks
"""
RMM = "import rmm; rmm.mr.CudaMemoryResource().deallocate(rmm.mr.CudaMemoryResource().allocate(256), 256)"
CUPY = "import cupy; cupy.zeros(3)"
CUPY_STREAM_ORDERED = "import cupy; cupy.cuda.malloc_async(512)"
CUPY_KERNELS = "import cupy; cupy.zeros(3) + 1"
TORCH = "import torch; torch.empty(3, device='cuda')"
#: PyTorch's allocator cannot be changed once it has been used.
TORCH_UNUSED = "import torch; assert torch.cuda.is_available(), 'PyTorch sees no device'"
TORCH_KERNELS = (
    TORCH_UNUSED
    + "; torch.cuda.get_device_name().startswith('devmem emulated') and sys.exit(print('skip: no kernels'))"
)

#: What a judge may lack: kernels over an emulated driver, and what CuPy has not for ROCm.
LACKS = "no kernels", "libhiprtc", "HIP does not support memory_async"

#: Why a library does not work here, once it is known.
cannot: dict[str, str] = {}


@pytest.fixture
def run(devmem_backend: str, python: Callable[..., subprocess.CompletedProcess[str]]) -> Callable[[str, str], None]:
    """Run a script where a library works on a device of the backend under test, or of CUDA, or skip with the reason."""
    prelude = PRELUDE.replace("BACKEND", devmem_backend.replace("host", "cuda"))

    def run(probe: str, script: str) -> None:
        if probe in cannot:
            pytest.skip(cannot[probe])
        package = probe.split(";")[0].removeprefix("import ")
        if importlib.util.find_spec(package) is None:
            assert package not in os.environ.get("JUDGES", ""), f"{package} is not installed"
            pytest.skip(f"{package} is not installed")
        done = python(prelude.replace("PROBE", probe) + script, patience=140)
        if done.stdout.startswith("skip: "):
            lacks = any(each in done.stdout for each in LACKS)
            assert package not in os.environ.get("JUDGES", "") or lacks, done.stdout
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
    ("probe", "made"),
    [
        (CUPY, "cupy.cuda.MemoryPool()"),
        (CUPY_STREAM_ORDERED, "cupy.cuda.MemoryAsyncPool()"),
        (CUPY, "cupy.cuda.memory._malloc"),
        (CUPY, "None"),
    ],
)
def test_memory_from_cupy(run: Callable[[str, str], None], probe: str, made: str) -> None:
    script = f"""
from devmem.adapters.cupy import CuPyMemory
resource = CuPyMemory({made})
with dm.use_memory(resource):
    works(resource)
resource.trim(0)
"""
    run(probe, script)


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
        b = cupy.empty_like(a)
        b.data.copy_from_device_async(a.data, a.nbytes)
        stream.synchronize()
        assert (cupy.asnumpy(b) == host).all()
        view = b[10:20]
        del a, b
        assert (cupy.asnumpy(view) == host[10:20]).all()
        del view
del stream
one, other = cupy.cuda.Stream(non_blocking=True), cupy.cuda.Stream(non_blocking=True)
with hold(dm.external_stream(one.ptr)):
    with one:
        block = cupy.empty(host.shape)
        block.data.memset_async(0, block.nbytes, one)
    address = block.data.ptr
    del block
    with other:
        second = cupy.empty(host.shape)
    assert second.data.ptr != address, "memory was given out while a stream was still to write to it"
del second
dm.synchronize()
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


def test_cupy_computes_in_memory_of_the_stack(run: Callable[[str, str], None]) -> None:
    script = """
from devmem.adapters import cupy as ours
cupy.cuda.set_allocator(ours.allocator().malloc)
assert (cupy.asnumpy(cupy.asarray(host) * 2 + 1) == host * 2 + 1).all()
"""
    run(CUPY_KERNELS, script)


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
        b = a.clone().cpu().numpy()
        assert (b == host).all()
        del a
def work():
    for n in range(1, 100):
        t = torch.full((n,), 7.0).cuda()
        assert t.tolist() == [7.0] * n
threads = [threading.Thread(target=work) for _ in range(4)]
[each.start() for each in threads]
[each.join() for each in threads]
gone()  # what the threads dropped, so that the queue is not full: then an allocation may wait
one, other, page = torch.cuda.Stream(), torch.cuda.Stream(), torch.zeros(1 << 20, dtype=torch.uint8).pin_memory()
with hold(dm.external_stream(one.cuda_stream)):
    with torch.cuda.stream(one):
        t = page.cuda(non_blocking=True)
    address = t.data_ptr()
    del t
    with torch.cuda.stream(other):
        second = torch.empty(1 << 20, dtype=torch.uint8, device="cuda")
    assert second.data_ptr() != address, "memory was given out while a stream was still to write to it"
del second
torch.cuda.synchronize()
gone()
assert counting.current_bytes == 0, counting.current_bytes
with warnings.catch_warnings():
    warnings.simplefilter("ignore", dm.DevmemWarning)
    try:
        torch.empty(1 << 60, dtype=torch.uint8, device="cuda")
    except torch.OutOfMemoryError as error:
        asked = "1048576.0 TiB (1,152,921,504,606,846,976 bytes)"
        assert f"PyTorch asked devmem for {asked} on cuda:0: out of memory" in str(error), error
    else:
        raise AssertionError
last = torch.empty(10, device="cuda")  # freed when the process ends
"""
    run(TORCH_UNUSED, script)


def test_pytorch_computes_in_memory_of_the_stack(run: Callable[[str, str], None]) -> None:
    script = """
from devmem.adapters import torch as ours
torch.cuda.memory.change_current_allocator(ours.pluggable_allocator())
x = torch.ones(1000, device="cuda", requires_grad=True)
(x * 2).sum().backward()
assert x.grad.tolist() == [2.0] * 1000
"""
    run(TORCH_KERNELS, script)


def test_pools_of_pytorch_go_with_their_stacks(run: Callable[[str, str], None]) -> None:
    """Each round takes an eighth of the device from a pool of its own, which nothing holds afterwards."""
    script = """
from devmem.adapters.torch import TorchMemory
eighth = dm.memory_info().total // 8
for _ in range(12):
    with dm.use_memory(TorchMemory(torch.cuda.MemPool())):
        a = dm.device_array(eighth, "u1")
    del a
"""
    run(TORCH, script)


@pytest.mark.parametrize("lazy", ["c.conj()", "c.conj().imag", "torch._neg_view(c.real)", "c.conj()[:1]"])
def test_lazy_elements_of_pytorch_are_refused(run: Callable[[str, str], None], lazy: str) -> None:
    script = f"""
c = torch.tensor([1 + 2j]).cuda()
for verb in (dm.to_device, dm.as_device_array, dm.from_dlpack, lambda x: dm.zeros(1, "c8").copy_to_device(x)):
    try:
        verb({lazy})
    except BufferError:
        pass
    else:
        raise AssertionError(verb)
assert dm.to_device(c).copy_to_host().tolist() == [1 + 2j]
"""
    run(TORCH, script)


@pytest.mark.parametrize("dtype", ["bfloat16", "float8_e4m3fn", "float8_e8m0fnu"])
def test_types_of_pytorch_without_ml_dtypes_are_refused_by_name(run: Callable[[str, str], None], dtype: str) -> None:
    script = f"""
sys.modules["ml_dtypes"] = None
try:
    dm.to_device(torch.empty(2, dtype=torch.{dtype}, device="cuda"))
except BufferError as error:
    assert "{dtype}: pip install ml_dtypes" in str(error), error
else:
    raise AssertionError
"""
    run(TORCH, script)


def test_a_tensor_of_pytorch_that_requires_gradients_is_refused(run: Callable[[str, str], None]) -> None:
    script = """
t = torch.empty(2, device="cuda", requires_grad=True)
assert dm.is_device_array(t)
try:
    dm.to_device(t)
except BufferError as error:
    assert "detach()" in str(error)
else:
    raise AssertionError
assert dm.to_device(t.detach()).shape == (2,)
"""
    run(TORCH, script)
