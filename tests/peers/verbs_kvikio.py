"""What KvikIO does over the emulated CUDA driver, in POSIX mode, a verb at a time: a script that prints what became of each."""

import tempfile
import threading
from pathlib import Path

import kvikio
import numpy as np
from cuda.bindings import driver as cu
from verbs import report, verb  # beside this script

import devmem as dm
from devmem import plugins
from devmem.testing import hold

folder = Path(tempfile.mkdtemp())
host = np.arange(1 << 20, dtype="i4")
host.tofile(folder / "host")


def ready(array):
    """The array, when it is: KvikIO has streams of its own, and does not ask which one the memory is ready on."""
    dm.synchronize()
    return array


def same(array, other=host):
    assert (array.copy_to_host() == other).all()


@verb("write device memory to a file")
def _():
    with kvikio.CuFile(folder / "written", "w") as file:
        assert file.write(ready(dm.to_device(host))) == host.nbytes
    assert (np.fromfile(folder / "written", "i4") == host).all()


@verb("read a file into device memory")
def _():
    there = ready(dm.device_array(host.shape, "i4"))
    with kvikio.CuFile(folder / "host", "r") as file:
        assert file.read(there) == host.nbytes
    same(there)


@verb("read and write a part, on KvikIO's threads")
def _():
    there = ready(dm.zeros(host.shape, "i4"))
    with kvikio.CuFile(folder / "host", "r") as file:
        assert file.pread(there, size=4000, file_offset=400).get() == 4000
    same(there[:1000], host[100:1100])
    with kvikio.CuFile(folder / "part", "w") as file:
        assert file.pwrite(there, size=4000, task_size=512).get() == 4000
    assert (np.fromfile(folder / "part", "i4") == host[100:1100]).all()


@verb("host memory")
def _():
    here = np.empty_like(host)
    with kvikio.CuFile(folder / "host", "r") as file:
        assert file.read(here) == host.nbytes
    assert (here == host).all()


@verb("read in the order of a stream")
def _():
    there, stream = ready(dm.zeros(host.shape, "i4")), dm.stream(non_blocking=True)
    _, context = cu.cuDevicePrimaryCtxRetain(0)
    read = []

    def work():
        cu.cuCtxSetCurrent(context)  # KvikIO's calls with a stream ask for a current context
        with kvikio.CuFile(folder / "host", "r") as file:
            read.append(file.raw_read_async(there, stream.handle).check_bytes_done())

    with hold(stream) as latch:
        there.fill(7, stream=stream)  # what comes before, and would come after if it did not wait for the stream
        reader = threading.Thread(target=work, daemon=True)
        reader.start()
        reader.join(0.3)
        assert not read, "it read before the stream came to it"
        latch.release()
        reader.join(100)
    stream.synchronize()
    cu.cuDevicePrimaryCtxRelease(0)
    assert read == [host.nbytes]
    same(there)


@verb("devmem's load and save through KvikIO")
def _():
    # Where there is no GPUDirect Storage, devmem uses its own slots: it is told that there is, and KvikIO works in POSIX mode.
    direct = plugins.registry.direct_files("cuda")
    assert "POSIX" in direct.unavailable() or "GPUDirect" in direct.unavailable()
    dm.save(dm.to_device(host), folder / "own.npy")
    direct._reason = None
    dm.transfer_stats(reset=True)
    dm.save(dm.to_device(host), folder / "a.npy")
    same(dm.load(folder / "a.npy"))
    found = dm.transfer_stats()
    assert found["d2h file direct"]["copies"] == found["h2d file direct"]["copies"] == 1, found
    assert (folder / "a.npy").read_bytes() == (folder / "own.npy").read_bytes()
    assert (np.load(folder / "a.npy") == host).all()


report(f"KvikIO {kvikio.__version__}, POSIX mode")
