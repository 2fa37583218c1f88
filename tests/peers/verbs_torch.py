"""What PyTorch's CUDA build does over the emulated CUDA runtime, a verb at a time: a script that prints what became of each.

Nothing here needs a kernel but the last verb. A held stream tells what waits for what.
"""

import contextlib
import gc
import warnings

import pytest
import torch
from verbs import child, report, verb  # beside this script

import devmem as dm
from devmem.testing import hold
from devmem.testing.emulator import control

host = torch.arange(1 << 16, dtype=torch.int32)


def same(one, other=host):
    assert torch.equal(one.cpu(), other)


@contextlib.contextmanager
def held(stream):
    """PyTorch's stream, stopped."""
    with hold(dm.external_stream(stream)) as latch:
        yield latch


@verb("allocate without initialising")
def _():
    assert torch.empty(5, device="cuda").shape == (5,)


@verb("copy from and to the host, on the device")
def _():
    there = host.cuda()
    other = torch.empty_like(there)
    other.copy_(there)
    same(other)


@verb("page-locked memory, asynchronous copies on a held stream")
def _():
    source, back = host.pin_memory(), torch.empty_like(host).pin_memory()
    assert source.is_pinned() and not host.is_pinned()
    stream = torch.cuda.Stream()
    with held(stream) as latch, torch.cuda.stream(stream):
        there = torch.empty_like(host, device="cuda")
        there.copy_(source, non_blocking=True)
        back.copy_(there, non_blocking=True)
        assert not stream.query()
        latch.release()
    stream.synchronize()
    assert torch.equal(back, host)


@verb("streams and events")
def _():
    one, other = torch.cuda.Stream(), torch.cuda.Stream()
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    with held(one) as latch:
        start.record(one)
        end.record(one)
        other.wait_event(end)
        assert not end.query() and not other.query()
        latch.release()
    other.synchronize()
    assert end.query() and start.elapsed_time(end) >= 0


@verb("caching allocator")
def _():
    first = torch.empty(1 << 20, device="cuda")
    address = first.data_ptr()
    del first
    assert torch.empty(1 << 20, device="cuda").data_ptr() == address
    torch.cuda.empty_cache()
    assert torch.cuda.memory_reserved() == torch.cuda.memory_allocated() == 0


@verb("memory of a stream is reused when the stream has passed")
def _():
    stream = torch.cuda.Stream()
    block = torch.empty(1 << 20, device="cuda")
    address = block.data_ptr()
    with held(stream) as latch:
        block.record_stream(stream)
        del block
        others = [torch.empty(1 << 20, device="cuda")]
        assert others[0].data_ptr() != address
        latch.release()
    stream.synchronize()
    others.append(torch.empty(1 << 20, device="cuda"))
    assert others[1].data_ptr() == address


@verb("running out of memory")
def _():
    kept = []
    try:
        while True:
            kept.append(torch.empty(1 << 30, dtype=torch.uint8, device="cuda"))
    except torch.OutOfMemoryError:
        assert 6 <= len(kept) <= 8  # of 8 GiB, some of which is cached
    kept.clear()
    torch.cuda.empty_cache()


@verb("running out of memory, injected")
def _():
    torch.cuda.empty_cache()
    control("cuda").fail("cudaMalloc", 1, 2)  # once: the allocator frees what it caches, and tries again
    assert torch.empty(1 << 24, device="cuda").shape == (1 << 24,)
    torch.cuda.empty_cache()
    control("cuda").fail("cudaMalloc", 1, 2, repeat=True)
    try:
        with pytest.raises(torch.OutOfMemoryError):
            torch.empty(1 << 24, device="cuda")
    finally:
        control("cuda").reset()
    same(host.cuda())
    torch.cuda.empty_cache()


@verb("memory pools")
def _():
    before = torch.cuda.memory_reserved()
    pool = torch.cuda.MemPool()
    with torch.cuda.use_mem_pool(pool):
        block = torch.empty(1 << 22, device="cuda")
    assert torch.cuda.memory_reserved() > before
    del block, pool
    torch.cuda.empty_cache()
    gc.collect()
    assert torch.cuda.memory_reserved() == before


@verb("exchange by DLPack, both ways")
def _():
    ours = dm.to_device(host.numpy())
    theirs = torch.from_dlpack(ours)
    assert theirs.data_ptr() == ours.ptr
    again = dm.from_dlpack(theirs)
    assert again.ptr == ours.ptr
    del ours, again
    gc.collect()
    same(theirs)


class Interface:
    """A tensor that speaks the CUDA Array Interface only."""

    def __init__(self, tensor):
        self.tensor = tensor
        self.__cuda_array_interface__ = tensor.__cuda_array_interface__


@verb("exchange by the CUDA Array Interface, both ways")
def _():
    ours = dm.to_device(host.numpy())
    theirs = torch.as_tensor(ours, device="cuda")
    assert theirs.data_ptr() == ours.ptr
    del ours
    gc.collect()
    same(theirs)
    there = host.cuda()
    again = dm.as_device_array(Interface(there))
    assert again.ptr == there.data_ptr()
    del there
    gc.collect()
    assert (again.copy_to_host() == host.numpy()).all()


@verb("exchange with a stream that is held, both ways")
def _():
    ours, filling = dm.device_array(host.shape, "i4"), dm.stream(non_blocking=True)
    locked = dm.pinned_array(host.shape, "i4")
    locked[:] = host.numpy()
    with hold(filling) as latch:
        ours.copy_to_device(locked, stream=filling)
        result = torch.from_dlpack(ours).clone()
        latch.release()
    same(result)
    source, theirs = host.pin_memory(), torch.empty_like(host, device="cuda")
    stream, reading = torch.cuda.Stream(), dm.stream(non_blocking=True)
    with held(stream) as latch, torch.cuda.stream(stream):
        theirs.copy_(source, non_blocking=True)
        copy = dm.from_dlpack(theirs).copy(stream=reading)
        assert not reading.query()
        latch.release()
    reading.synchronize()
    assert (copy.copy_to_host() == host.numpy()).all()


@verb("devmem's arrays in PyTorch's memory")
def _():
    before = torch.cuda.memory_allocated()
    with dm.use_memory("torch"):
        ours = dm.to_device(host.numpy())
        assert torch.cuda.memory_allocated() > before
        assert (ours.copy_to_host() == host.numpy()).all()


@verb("copies between devices")
def _():
    assert torch.cuda.can_device_access_peer(0, 1)
    there = host.to("cuda:0").to("cuda:1")
    back = torch.empty_like(host, device="cuda:0")
    back.copy_(there)
    same(back)


@verb("memory and events of another process")
def _():
    there, event, stream = host.cuda(), torch.cuda.Event(interprocess=True), torch.cuda.Stream()
    handle = there.untyped_storage()._share_cuda_()
    with control("cuda").hold(stream.cuda_stream):  # longer than a latch may be
        event.record(stream)
        code = """
import sys, torch
memory, event = eval(sys.argv[1]), eval(sys.argv[2])
torch.cuda.init()
storage = torch.UntypedStorage._new_shared_cuda(*memory)
theirs = torch.empty(0, dtype=torch.int32, device="cuda").set_(storage, 0, (1 << 16,), (1,))
assert torch.equal(theirs.cpu(), torch.arange(1 << 16, dtype=torch.int32))
assert not torch.cuda.Event.from_ipc_handle(0, event).query()
"""
        done = child(code, repr(handle), repr(event.ipc_handle()))
    assert done.returncode == 0, done.stderr


@verb("capture to a graph, which is empty")
def _():
    graph = torch.cuda.CUDAGraph()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        with torch.cuda.graph(graph):
            pass
    graph.replay()
    torch.cuda.synchronize()


@verb("PyTorch's memory from devmem's stack")
def _():
    code = """
import torch, warnings, devmem as dm
from devmem.adapters.torch import pluggable_allocator
warnings.simplefilter("ignore")
torch.cuda.memory.change_current_allocator(pluggable_allocator())
dm.use_memory("limit:1MiB")
before = dm.memory_info().live
there = torch.arange(1000).cuda()
assert dm.memory_info().live >= before + 8000 and torch.equal(there.cpu(), torch.arange(1000))
try:
    torch.empty(1 << 21, device="cuda")
except torch.OutOfMemoryError as error:
    assert "the limit is 1.0 MiB (1,048,576 bytes)" in str(error)
else:
    raise AssertionError("the limit was not kept")
"""
    done = child(code)
    assert done.returncode == 0, done.stderr


@verb("a kernel")
def _():
    with pytest.raises(RuntimeError, match="operation not supported"):
        torch.zeros(4, device="cuda")
    return "refused: kernels cannot run"


@verb("a kernel, where launches are skipped on request")
def _():
    code = """
import os
os.environ["DEVMEM_EMULATOR_LAUNCHES"] = "skip"
import torch
there = torch.zeros(4, device="cuda") + 1
torch.cuda.synchronize()
assert there.shape == (4,)
"""
    done = child(code)
    assert done.returncode == 0, done.stderr
    return "runs, and computes nothing"


@verb("a library that is missing (cuBLAS)")
def _():
    code = "import torch; torch.empty(4, 4, device='cuda') @ torch.empty(4, 4, device='cuda')"
    done = child(code)
    assert done.returncode == -6 and "devmem stand-in: cublas" in done.stderr, done.stderr
    return "refused: the stand-in ends the process"


if __name__ == "__main__":
    report(f"PyTorch {torch.__version__}")
