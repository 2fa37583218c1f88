"""What CuPy for ROCm does over the emulated HIP runtime, a verb at a time: a script that prints what became of each."""

import ctypes

import cupy
import numpy as np
import pytest
from verbs import child, report, verb  # beside this script

import devmem as dm
from devmem.testing.emulator import control

host = np.arange(1 << 14, dtype="i4")


def same(array, other=host):
    assert (cupy.asnumpy(array) == other).all()


@verb("allocate without initialising")
def _():
    assert cupy.empty((2, 3)).shape == (2, 3)


@verb("copy from and to the host, on the device")
def _():
    there = cupy.asarray(host)
    other = cupy.empty_like(there)
    other.data.copy_from_device(there.data, there.nbytes)
    same(other)


@verb("page-locked memory, asynchronous copies on a held stream")
def _():
    raw = cupy.cuda.alloc_pinned_memory(host.nbytes)
    source = np.frombuffer(raw, "i4", host.size)
    source[:] = host
    stream, there = cupy.cuda.Stream(non_blocking=True), cupy.empty(host.shape, "i4")
    with control("roc").hold(stream.ptr):
        there.set(source, stream=stream)
        assert not stream.done
    stream.synchronize()
    same(there)


@verb("streams and events")
def _():
    one, other = cupy.cuda.Stream(non_blocking=True), cupy.cuda.Stream(non_blocking=True)
    event = cupy.cuda.Event()
    with control("roc").hold(one.ptr):
        event.record(one)
        other.wait_event(event)
        assert not event.done and not other.done
    other.synchronize()
    assert event.done


@verb("caching allocator")
def _():
    pool = cupy.get_default_memory_pool()
    first = cupy.empty(1 << 20, "u1")
    address = first.data.ptr
    del first
    assert cupy.empty(1 << 20, "u1").data.ptr == address
    pool.free_all_blocks()
    assert pool.free_bytes() == 0


@verb("stream-ordered allocation")
def _():
    with pytest.raises(RuntimeError, match="HIP does not support memory_async"):
        cupy.cuda.malloc_async(1 << 20)
    return "refused: CuPy has none for ROCm"


@verb("running out of memory")
def _():
    with pytest.raises(cupy.cuda.memory.OutOfMemoryError):
        cupy.empty(1 << 40, "u1")


@verb("filling with bytes")
def _():
    there = cupy.empty(16, "u1")
    there.data.memset(7, 16)
    same(there, np.full(16, 7, "u1"))


@verb("exchange by DLPack, both ways")
def _():
    ours = dm.to_device(host)
    theirs = cupy.from_dlpack(ours)
    assert theirs.data.ptr == ours.ptr
    assert dm.from_dlpack(theirs).ptr == ours.ptr
    same(theirs)


@verb("devmem's arrays in CuPy's memory")
def _():
    from devmem.adapters.cupy import CuPyMemory

    pool = cupy.cuda.MemoryPool()
    with dm.use_memory(CuPyMemory(pool)):
        ours = dm.to_device(host)
        assert pool.used_bytes() >= host.nbytes
        assert (ours.copy_to_host() == host).all()
        ours.free()


@verb("CuPy's memory from devmem's stack")
def _():
    from devmem.adapters import cupy as adapter

    before = dm.memory_info().live
    with cupy.cuda.using_allocator(adapter.allocator().malloc):
        there = cupy.asarray(host)
        assert dm.memory_info().live >= before + host.nbytes
        same(there)


@verb("copies between devices")
def _():
    there = cupy.asarray(host)
    cupy.cuda.Device(0).synchronize()  # the upload is asynchronous, and no stream of device 1 waits for it
    with cupy.cuda.Device(1):
        other = cupy.empty(host.shape, "i4")
        other.data.copy_from_device(there.data, there.nbytes)
        same(other)


@verb("memory of another process")
def _():
    there = cupy.cuda.alloc(host.nbytes)
    there.copy_from_host(host.ctypes.data_as(ctypes.c_void_p), host.nbytes)
    handle = cupy.cuda.runtime.ipcGetMemHandle(there.mem.ptr)
    code = """
import sys, cupy, numpy as np
memory = cupy.cuda.runtime.ipcOpenMemHandle(eval(sys.argv[1]))
seen = np.empty(1 << 14, "i4")
cupy.cuda.runtime.memcpy(seen.ctypes.data, memory, seen.nbytes, 2)
assert (seen == np.arange(1 << 14)).all()
"""
    done = child(code, repr(handle))
    assert done.returncode == 0, done.stderr


@verb("a kernel")
def _():
    with pytest.raises(RuntimeError, match="libhiprtc"):
        cupy.zeros(4) + 1
    return "refused: there is no compiler for kernels"


if __name__ == "__main__":
    report(f"CuPy {cupy.__version__} for ROCm")
