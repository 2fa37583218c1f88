"""What numba-cuda does over the emulated CUDA driver, a verb at a time: a script that prints what became of each."""

import gc
import pickle
import threading

import numba_cuda
import numpy as np
import pytest
from numba import cuda
from numba.cuda.cudadrv.driver import CudaAPIError
from verbs import child, report, verb  # beside this script

import devmem as dm
from devmem.testing import hold
from devmem.testing.emulator import control

host = np.arange(1 << 14, dtype="i4")


def same(array, other=host):
    assert (array.copy_to_host() == other).all()


def runs(code):
    done = child(code)
    assert done.returncode == 0, done.stderr


@verb("allocate, copy from and to the host")
def _():
    there = cuda.device_array(host.shape, "i4")
    there.copy_to_device(host)
    same(there)
    same(there[10:20], host[10:20])


@verb("page-locked memory, asynchronous copies on a held stream")
def _():
    source, stream = cuda.pinned_array(host.shape, "i4"), cuda.stream()
    source[:] = host
    there = cuda.device_array(host.shape, "i4")
    with control("cuda").hold(int(stream.handle)):
        there.copy_to_device(source, stream=stream)
        with pytest.raises(CudaAPIError, match="NOT_READY"):
            cuda.cudadrv.driver.driver.cuStreamQuery(stream.handle)
    stream.synchronize()
    same(there)


@verb("mapped and managed memory")
def _():
    mapped, managed = cuda.mapped_array(host.shape, "i4"), cuda.managed_array(host.shape, "i4")
    mapped[:], managed[:] = host, host
    assert (mapped == managed).all()


@verb("registration of the host's memory")
def _():
    with cuda.pinned(host):
        same(cuda.to_device(host))


@verb("streams and events")
def _():
    one, other, event = cuda.stream(), cuda.stream(), cuda.event()
    with control("cuda").hold(int(one.handle)):
        event.record(one)
        event.wait(other)
        assert not event.query()
    other.synchronize()
    assert event.query()


@verb("frees wait in Numba's queue")
def _():
    queue = cuda.current_context().memory_manager.deallocations
    gc.collect()
    queue.clear()
    with cuda.defer_cleanup():
        for _ in range(30):
            cuda.device_array(1 << 20, "u1")
        gc.collect()
        assert len(queue) == 30
        full = cuda.current_context().get_memory_info().free
    queue.clear()
    assert len(queue) == 0
    assert cuda.current_context().get_memory_info().free >= full + (30 << 20)


@verb("running out of memory")
def _():
    with pytest.raises(CudaAPIError, match="OUT_OF_MEMORY"):
        cuda.device_array(1 << 40, "u1")


@verb("exchange by the CUDA Array Interface, both ways")
def _():
    ours = dm.to_device(host)
    theirs = cuda.as_cuda_array(ours)
    assert theirs.device_ctypes_pointer.value == ours.ptr
    same(theirs)
    back = cuda.to_device(host)
    assert dm.as_device_array(back).ptr == back.device_ctypes_pointer.value


@verb("exchange with a stream that is held, both ways")
def _():
    page, stream = dm.pinned_array(host.shape, "i4"), dm.stream(non_blocking=True)
    page[:] = host
    with hold(stream, patience=60) as latch:
        ours = dm.to_device(page, stream=stream)
        taken = []
        # Numba waits for the stream as it imports.
        taking = threading.Thread(target=lambda: taken.append(cuda.as_cuda_array(ours)))
        taking.start()
        taking.join(0.2)
        assert not taken
        latch.release()
        taking.join()
    same(taken[0])
    theirs, one = (
        cuda.device_array(host.shape, "i4", stream=(made := cuda.stream())),
        dm.external_stream(int(made.handle)),
    )
    pinned = cuda.pinned_array(host.shape, "i4")
    pinned[:] = host
    with hold(one) as latch:
        theirs.copy_to_device(pinned, stream=made)
        mine = dm.as_device_array(theirs)
        back = mine.copy(stream=one)
        latch.release()
    assert (back.copy_to_host() == host).all()


@verb("devmem's arrays in Numba's memory")
def _():
    from devmem.adapters import emm

    device, _ = emm.resources(cuda.current_context().memory_manager)
    with dm.use_memory(device):
        ours = dm.to_device(host)
        assert (ours.copy_to_host() == host).all()
        ours.free()


@verb("Numba's memory from devmem's stack")
def _():
    runs("""
import numpy as np, devmem as dm
from devmem.adapters import numba
numba.use()
from numba import cuda
before, there = dm.memory_info().live, cuda.to_device(np.arange(1000))
assert dm.memory_info().live == before + 8000
assert there.copy_to_host().tolist() == list(range(1000))
""")


@verb("copies between devices")
def _():
    with cuda.gpus[1]:
        there = cuda.device_array(host.shape, "i4")
        there.copy_to_device(host)
        same(there)


@verb("memory of another process")
def _():
    with pytest.raises(AttributeError, match="'reserved'"):
        pickle.dumps(cuda.to_device(host).get_ipc_handle())
    return "refused: numba-cuda cannot pickle a handle of cuda-bindings 13"


@verb("a kernel")
def _():
    with pytest.raises(Exception, match="libnvrtc"):
        cuda.jit("void(int32[:])")(lambda a: None)
    return "refused: there is no compiler for kernels"


if __name__ == "__main__":
    report(f"numba-cuda {numba_cuda.__version__}")
