"""The code of the page on other processes runs: IPC between two processes here, the engines in ``nox -s engines``."""

from __future__ import annotations

import importlib.util
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from waits import patience

from .test_pages import ROOT, run_page

BLOCKS = [
    block.text
    for block in run_page.blocks((ROOT / "docs" / "how-to" / "exchange-with-engines.md").read_text(encoding="utf-8"))
]
#: What the page says of the names in its code.
HEAD = """
import numpy as np
import devmem as dm
host = np.arange(6.0)
d, e, stream = dm.to_device(host), dm.zeros(6), dm.stream()
"""
#: A page's two halves, each in a process of its own; PAIR makes what connects them.
TWO_PROCESSES = """
import multiprocessing, socket
HEAD
def other(connection):
    names = {"dm": dm, "connection": connection}
    exec(OTHER, names)
    assert (names["e"].copy_to_host() == host).all()

if __name__ == "__main__":
    connection, theirs = PAIR
    process = multiprocessing.get_context("spawn").Process(target=other, args=(theirs,))
    process.start()
    exec(ONE)
    process.join()
    assert process.exitcode == 0
"""


def block(word: str) -> str:
    """The block with a word."""
    [found] = [text for text in BLOCKS if word in text]
    return found


def run(tmp_path: Path, program: str, *launcher: str, backend: str = "host") -> None:
    script = tmp_path / "program.py"
    script.write_text(program, encoding="utf-8")
    settings = {"DEVMEM_BACKEND": backend, "DEVMEM_HOST_STRICT": "0", "PYTHONPATH": str(ROOT)}
    settings |= {"RAY_USAGE_STATS_ENABLED": "0", "DASK_DISTRIBUTED__WORKER__DAEMON": "True"}
    command = [*launcher, sys.executable, str(script)]
    done = subprocess.run(
        command, env=os.environ | settings, capture_output=True, text=True, cwd=tmp_path, timeout=patience(280)
    )
    assert done.returncode == 0, done.stdout + done.stderr


def needs(module: str) -> None:
    if importlib.util.find_spec(module) is None:
        refuse = pytest.fail if "ENGINES" in os.environ else pytest.skip
        refuse(f"{module} is not installed: nox -s engines")


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="memory of the host is shared on Linux")
@pytest.mark.parametrize(
    ("word", "pair"), [("open_ipc_array", "multiprocessing.Pipe()"), ("receive_ipc_array", "socket.socketpair()")]
)
def test_an_array_goes_to_another_process(word, pair, tmp_path):
    one, other = block(word).split("# in the other process\n")
    program = TWO_PROCESSES.replace("HEAD", HEAD).replace("ONE", repr(one)).replace("OTHER", repr(other))
    run(tmp_path, program.replace("PAIR", pair))


@pytest.mark.timeout(300)
def test_mpi(tmp_path):
    needs("mpi4py")
    beside = str(Path(sys.executable).parent)
    mpiexec = shutil.which("mpiexec", path=os.pathsep.join([beside, os.environ.get("PATH", "")]))
    assert mpiexec, "mpiexec is not installed"
    begin = "from mpi4py import MPI\nright = left = 1 - MPI.COMM_WORLD.rank\nd.fill(MPI.COMM_WORLD.rank)\n"
    check = "\nassert (e.copy_to_host() == left).all()\ne.fill(7)\n"
    program = HEAD + begin + block("names stream -1") + check + block("pinned=True") + check
    run(tmp_path, program, mpiexec, "-n", "2")


@pytest.mark.timeout(300)
def test_dask(tmp_path):
    needs("distributed")
    own = "def double(x):\n    return dm.to_device(2 * x.copy_to_host())\n"
    check = "assert (twice.copy_to_host() == 2 * host).all()\n"
    submit = f"twice = client.submit(double, client.scatter(d)).result(); {check}"
    program = HEAD + own + block("LocalCluster") + f"\n        {check}" + block("device_limit").replace("...", submit)
    run(tmp_path, program)


@pytest.mark.timeout(300)
def test_ray(tmp_path):
    needs("ray")
    actors = """
@ray.remote(enable_tensor_transport=True)
class Consumer:
    def use(self, array):
        return array.copy_to_host()

ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False, object_store_memory=80 << 20)
producer, consumer = Producer.remote(), Consumer.remote()
assert (ray.get("""
    begin, last = block("devmem.adapters.ray").split("consumer.use")
    call, _, _ = last.partition("  #")
    run(tmp_path, "import ray\n" + HEAD + begin + actors + "consumer.use" + call + ") == host).all()\n")


@pytest.mark.timeout(300)
def test_nccl(tmp_path):
    """Over the emulated driver: nccl4py's own code, with a communicator of no library, and up to the call of it."""
    needs("nccl")
    begin = """
import types
import cuda.core
import nccl.core.communicator as module

calls, ranks, rank, unique_id = [], 1, 0, b""
module._nccl_bindings = types.SimpleNamespace(all_reduce=lambda *call: calls.append(call), Comm=module._nccl_bindings.Comm)

def init(ranks, rank, unique_id):
    communicator = module.Communicator(1)
    communicator._device, communicator._rank = cuda.core.Device(0), rank
    return communicator

module.Communicator.init = init
"""
    check = """
[call] = calls
assert call[:3] == (d.ptr, e.ptr, d.size) and call[-1] == stream.handle, call
"""
    program = HEAD + begin + block("Communicator") + check
    run(tmp_path, program, sys.executable, "-m", "devmem.cli", "emulate", "cuda", "--", backend="cuda")
