"""mpi4py sends our arrays and receives into them: two ranks on the host backend, and what it does not wait for."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from waits import patience

import devmem as dm
from devmem.testing import hold

RANKS = """
import numpy as np
import devmem as dm
from mpi4py import MPI

comm = MPI.COMM_WORLD
assert comm.size == 2, comm.size
mine, theirs = comm.rank, 1 - comm.rank

def host(rank, dtype="f8", shape=(4, 6)):
    return (np.arange(np.prod(shape)).reshape(shape) + 100 * rank).astype(dtype)

# There and back, in each type that MPI has one for, and in both orders of axes.
for dtype in ("i1", "i2", "i4", "i8", "u1", "u2", "u4", "u8", "f4", "f8", "c8", "c16"):
    for order in "CF":
        out = dm.to_device(np.asarray(host(mine, dtype), order=order))
        into = dm.device_array(out.shape, out.dtype, order=order)
        comm.Sendrecv(out, theirs, recvbuf=into, source=theirs)
        assert (into.copy_to_host() == host(theirs, dtype)).all(), (dtype, order)

# Parts without gaps, one element, none, records as bytes, memory that the driver locked.
whole = dm.zeros((4, 6))
comm.Sendrecv(dm.to_device(host(mine))[1:3], theirs, recvbuf=whole[2:4], source=theirs)
assert (whole.copy_to_host()[2:4] == host(theirs)[1:3]).all() and not whole.copy_to_host()[:2].any()
one = dm.device_array((), "f8")
comm.Sendrecv(dm.full((), mine + 5.0), theirs, recvbuf=one, source=theirs)
assert one.item() == theirs + 5.0
comm.Sendrecv(dm.zeros((0, 3)), theirs, recvbuf=dm.zeros((0, 3)), source=theirs)
records = np.array([(mine, 0.5), (2, 0.25)], [("a", "i1"), ("b", "f8")])
into = dm.zeros(2, records.dtype)
comm.Sendrecv([dm.to_device(records).view("u1"), MPI.BYTE], theirs, recvbuf=[into.view("u1"), MPI.BYTE], source=theirs)
assert into.copy_to_host().tolist() == [(theirs, 0.5), (2, 0.25)]
locked, there = dm.pinned_array(5), dm.pinned_array(5)
locked[:] = mine
comm.Sendrecv(locked, theirs, recvbuf=there, source=theirs)
assert there.tolist() == [float(theirs)] * 5

# Collectives, without blocking, in place.
total = dm.device_array((4, 6), "f8")
comm.Allreduce(dm.to_device(host(mine)), total)
assert (total.copy_to_host() == host(0) + host(1)).all()
shared = dm.to_device(host(mine))
comm.Ibcast(shared, root=0).Wait()
assert (shared.copy_to_host() == host(0)).all()
comm.Allreduce(MPI.IN_PLACE, shared)
assert (shared.copy_to_host() == 2 * host(0)).all()

# What is refused is refused before anything is sent.
for bad in (dm.to_device(host(mine))[::2], dm.to_device(host(mine))[:, ::-1], dm.zeros(3, "M8[s]")):
    try:
        comm.Send(bad, theirs)
    except (BufferError, ValueError, TypeError):
        pass
    else:
        raise AssertionError(bad)
comm.Barrier()
print(f"rank {mine} is done\\n", end="")
"""


@pytest.fixture(autouse=True)
def mpi(installed):
    """mpi4py, where there is an MPI that it can load."""
    there = importlib.util.find_spec("mpi4py") is not None
    installed("mpi4py", importlib.metadata.version("mpi4py") if there else None)
    return pytest.importorskip("mpi4py.MPI", exc_type=ImportError)


@pytest.mark.timeout(300)
def test_two_ranks_exchange_arrays(installed):
    beside = str(Path(sys.executable).parent)
    launcher = shutil.which("mpiexec", path=os.pathsep.join([beside, os.environ.get("PATH", "")]))
    installed("mpiexec", launcher)
    settings = {"DEVMEM_BACKEND": "host", "DEVMEM_HOST_STRICT": "0"}
    done = subprocess.run(
        [launcher, "-n", "2", sys.executable, "-c", RANKS],
        env=os.environ | settings,
        capture_output=True,
        text=True,
        timeout=patience(),
        check=False,
    )
    assert done.returncode == 0, done.stderr
    # Both write to one stream: lines may be mixed.
    assert "rank 0 is done" in done.stdout
    assert "rank 1 is done" in done.stdout


def test_memory_of_a_device_is_given_at_once(mpi, devmem_backend, monkeypatch):
    """It asks for no order, stream=-1, so no stream waits: neither for the work that fills the array, nor later."""
    monkeypatch.setenv("DEVMEM_HOST_STRICT", "1")
    dm.close()
    if "hold" not in dm.current_device().info.capabilities:
        pytest.skip("no stream can be held")
    stream = dm.stream()
    array = dm.zeros(1000)
    with hold(stream):
        array.fill(1.0, stream=stream)
        seen = mpi.memory(array)
        assert (seen.address, seen.nbytes) == (array.ptr, array.nbytes)
        assert not stream.query()
    stream.synchronize()
    assert array.copy_to_host().all()
    monkeypatch.undo()
    dm.close()


def test_memory_of_the_host_is_given_ready(mpi, open_memory):
    """There it names no stream, and the host is made to wait."""
    if dm.current_device().info.exchange.device_type != 1:
        pytest.skip("the device's memory is not the host's")
    stream = dm.stream()
    for value in range(100):
        array = dm.zeros(1000)
        array.fill(value, stream=stream)
        assert mpi.memory(array)[-8:].cast("d").tolist() == [value]


def test_there_is_no_buffer_that_would_be_taken_for_the_hosts(mpi, devmem_backend):
    """It tries the buffer protocol first, and believes that what has one is host memory."""
    array = dm.zeros(10)
    with pytest.raises(TypeError):
        memoryview(array)
    assert mpi.memory(array).address == array.ptr
