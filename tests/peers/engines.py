"""Programs that move arrays by an engine. Each prints ``exact`` at its end, or ``refused:`` and why; all else is a failure."""

from __future__ import annotations

from typing import NamedTuple


class Engine(NamedTuple):
    """What is run, with how many ranks of MPI (0: none), the distributions whose versions the page tells, and settings."""

    program: str
    versions: tuple[str, ...]
    ranks: int = 0
    settings: tuple[tuple[str, str], ...] = ()


HEAD = """
import os
import numpy as np
import devmem as dm

HOST = np.arange(120.0).reshape(4, 5, 6)
RECORDS = np.zeros((2, 3), [("a", "i1"), ("b", "f8", (2,))])
ARRAYS = {"C": HOST, "F": HOST.T, "strided": HOST[::2, :, 1::2], "records": RECORDS, "empty": np.zeros((0, 3)),
          "0-d": np.full((), 4.0)}

def made(name):
    return dm.to_device(ARRAYS[name])

def described(array):
    assert isinstance(array, dm.DeviceNDArray), type(array)
    return os.getpid(), array.shape, array.dtype, array.copy_to_host().tobytes()

def check(name, found):
    wanted = ARRAYS[name]
    assert tuple(found[1:]) == (wanted.shape, wanted.dtype, wanted.tobytes()), name
"""

DASK = (
    HEAD
    + """
import sys
from distributed import Client
from devmem.adapters.dask_cluster import local_cluster

if __name__ == "__main__":
    protocol = sys.argv[1]
    try:
        cluster = local_cluster([0, 0], dashboard_address=None, protocol=protocol)
    except Exception as error:
        while error.__cause__ is not None:
            error = error.__cause__
        print("refused:", type(error).__name__, str(error).splitlines()[0])
        raise SystemExit(0) from None
    with cluster, Client(cluster) as client:
        addresses = [cluster.scheduler_address, *client.scheduler_info()["workers"]]
        assert all(address.startswith(f"{protocol}://") for address in addresses), addresses
        one, other = client.scheduler_info()["workers"]
        for name in ARRAYS:
            array = client.submit(made, name, workers=[one])
            found = client.submit(described, array, workers=[other], pure=False).result()
            check(name, found)
            check(name, described(array.result()))
    print("exact")
"""
)

SPILLING = (
    HEAD
    + """
from distributed import Client, wait
from devmem.adapters.dask_cluster import local_cluster

def block(number):
    return dm.to_device(np.full(100_000, number, "u1"))

def joined(one, other):
    result = dm.device_array(200_000, "u1")
    result[:100_000], result[100_000:] = one, other
    return result.copy_to_host()

if __name__ == "__main__":
    limits = dict(device_limit="350KB", host_limit="350KB")
    with local_cluster([0], dashboard_address=None, **limits) as cluster, Client(cluster) as client:
        blocks = [client.submit(block, number) for number in range(12)]
        wait(blocks)
        [stats] = client.run(lambda dask_worker: dask_worker.data.stats()).values()
        assert stats["device"]["bytes"] <= 350_000 and stats["host"]["bytes"] <= 350_000 and stats["disk"]["count"] >= 6, stats
        pairs = client.gather([client.submit(joined, blocks[at - 1], blocks[at]) for at in range(12)])
        for at, pair in enumerate(pairs):
            assert pair.tolist() == [(at - 1) % 12] * 100_000 + [at] * 100_000
    print("exact")
"""
)

RAY = (
    HEAD
    + """
import threading
import ray
import ray.experimental
import devmem.adapters.ray as adapter

adapter.register()

@ray.remote(enable_tensor_transport=True)
class Actor:
    def __init__(self):
        # Ray makes an actor's manager of arrays at its first use, without a lock. Two threads that make one meet here: each would
        # have its own, and `described` would look for the array in another one than where it arrived.
        make, two = ray.experimental.RDTManager, threading.Barrier(2)
        def slowly():
            try:
                two.wait(1)
            except threading.BrokenBarrierError:
                pass
            return make()
        ray.experimental.RDTManager = slowly

    @ray.method(tensor_transport="devmem")
    def array(self, name, stack):
        with dm.use_memory(stack):
            return made(name)

    @ray.method(tensor_transport="devmem")
    def tree(self):
        return {"a": made("C"), "b": [dm.zeros(3), 7]}

    def described(self, array):
        return described(array)

    def of_tree(self, tree):
        return bool((tree["a"].copy_to_host() == HOST).all()) and tree["b"][1] == 7 and isinstance(tree["b"][0], dm.DeviceNDArray)

    def live(self):
        import gc
        gc.collect()
        dm.trim()
        return os.getpid(), dm.memory_info().live

if __name__ == "__main__":
    ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False, object_store_memory=80 << 20)
    one, other = Actor.remote(), Actor.remote()
    there = ray.get(other.live.remote())[0]
    for stack in ["pool"] + ["stream_ordered"] * ("stream_ordered" in dm.current_device().info.capabilities):
        for name in ARRAYS:
            found = ray.get(other.described.remote(one.array.remote(name, stack)))
            assert found[0] == there != os.getpid()
            check(name, found)
    assert ray.get(other.of_tree.remote(one.tree.remote()))
    check("C", described(ray.get(one.array.remote("C", "pool"))))
    assert ray.get([one.live.remote(), other.live.remote()])[1][1] == 0
    ray.shutdown()
    print("exact")
"""
)

MPI = (
    HEAD
    + """
from mpi4py import MPI

comm = MPI.COMM_WORLD
right, left = (comm.rank + 1) % comm.size, (comm.rank - 1) % comm.size
assert comm.size == 4
#: Whether MPI, which is not built for devices here, can read the memory.
direct = dm.current_device().info.exchange.device_type == 1

def sent(array):
    "What MPI is given to send: the array, or a page-locked copy of it."
    return array if direct else array.copy_to_host(pinned=True)

def receive(call, into):
    "Let MPI write to an array, or to page-locked memory that is then copied to it."
    buffer = into if direct else dm.pinned_array(into.shape, into.dtype)
    call(buffer)
    if not direct:
        into.copy_to_device(buffer)

for dtype in ("i1", "i4", "f4", "f8", "c16"):
    host = (np.arange(24).reshape(4, 6) + comm.rank).astype(dtype)
    out, into = dm.to_device(host), dm.device_array((4, 6), dtype)
    receive(lambda buffer: comm.Sendrecv(sent(out), right, recvbuf=buffer, source=left), into)
    assert into.copy_to_host().tobytes() == (np.arange(24).reshape(4, 6) + left).astype(dtype).tobytes()
total = dm.device_array((4, 6), "f8")
receive(lambda buffer: comm.Allreduce(sent(dm.to_device(HOST[0, :4, :].copy() + 0 * HOST[0, :4, :])), buffer), total)
assert (total.copy_to_host() == 4 * HOST[0, :4, :]).all()
gathered = dm.device_array((4, 3), "i8")
receive(lambda buffer: comm.Allgather(sent(dm.full(3, comm.rank, dtype="i8")), buffer), gathered)
assert gathered.copy_to_host().tolist() == [[rank] * 3 for rank in range(4)]
comm.Barrier()
if comm.rank == 0:
    print("exact" if direct else "exact, through page-locked copies")
"""
)

NCCL = (
    HEAD
    + """
from nccl.core.buffer import NcclBuffer

array = dm.to_device(HOST.astype("f4"))
try:
    seen = NcclBuffer(array)
except (BufferError, TypeError) as error:
    print("refused:", type(error).__name__, error)
else:
    assert (seen.ptr, seen.count) == (array.ptr, array.size)
    assert NcclBuffer(array[2:]).ptr == array[2:].ptr
    print("exact, the memory itself")
"""
)

ENGINES = {
    "Dask over TCP": Engine(DASK, ("distributed",)),
    "Dask over UCXX": Engine(DASK, ("distributed", "ucxx-cu13"), settings=(("UCX_TLS", "tcp"),)),
    "Dask, spilling": Engine(SPILLING, ("distributed",)),
    "Ray, devmem's transport": Engine(RAY, ("ray",)),
    "mpi4py, 4 ranks": Engine(MPI, ("mpi4py", "mpich"), 4, (("DEVMEM_HOST_STRICT", "0"),)),
    "nccl4py's view": Engine(NCCL, ("nccl4py",)),
}
