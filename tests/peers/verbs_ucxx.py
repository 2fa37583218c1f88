"""What UCXX does over the emulated CUDA driver, by UCX's cuda_copy, a verb at a time: a script that prints what became of each.

UCX reads its settings when it is loaded, so each verb is a pair of processes: this script again, which serves, and its client.
"""

import asyncio
import importlib.metadata
import os
import re
import subprocess
import sys
import tempfile
from contextlib import nullcontext
from pathlib import Path

import numpy as np
from cuda.bindings import driver as cu
from verbs import report, verb  # beside this script

import devmem as dm
from devmem.testing import hold

#: Settings of UCX, and the lanes that it may then take. Only endpoints without error handling get shared memory.
TCP, SHARED = "tcp,cuda_copy", "sm,cuda_copy"
LANES = {TCP: {"tcp"}, SHARED: {"sysv", "posix", "cma", "xpmem"}}
SHARES = os.environ.get("UCX_TLS") == SHARED


def written(host, late):
    """A device array with these elements; ``late``: a held stream writes them, and is released and waited for."""
    if not late:
        return dm.to_device(host)
    there, locked, stream = dm.zeros(host.shape, host.dtype), dm.pinned_array(host.shape, host.dtype), dm.stream()
    locked[...] = host
    dm.synchronize()
    with hold(stream) as latch:
        there.copy_to_device(locked, stream=stream)
        assert not stream.query()
        latch.release()
        stream.synchronize()
    return there


async def by_address(address):
    """The endpoint of another process whose worker has the address."""
    import ucxx

    return await ucxx.create_endpoint_from_worker_address(
        ucxx.get_ucx_address_from_buffer(bytearray.fromhex(address)), endpoint_error_handling=False
    )


async def serve(count, late):
    """Send an array to the client, and get it back with one added to each element.

    ``late``: a stream of devmem's is held meanwhile, which must hold up no message.
    """
    import ucxx

    accepted = asyncio.get_running_loop().create_future()

    async def accept(endpoint):
        accepted.set_result(endpoint)

    listener = None if SHARES else ucxx.create_listener(accept)
    where = bytes(ucxx.get_worker_address()).hex() if SHARES else str(listener.port)
    command = [sys.executable, __file__, "client", str(count), where]
    client = await asyncio.create_subprocess_exec(*command, stdout=subprocess.PIPE)
    endpoint = await by_address((await client.stdout.readline()).decode()) if SHARES else await accepted
    host = np.arange(count, dtype="i4")
    there, back, other = written(host, late), dm.device_array(count, "i4"), dm.stream(non_blocking=True)
    dm.synchronize()  # UCX has a stream of its own, and does not ask which one the memory is ready on
    with hold(other, patience=30) if late else nullcontext():
        await endpoint.send(there, tag=1, force_tag=True)
        await ucxx.recv(back, tag=2)
        assert not late or not other.query(), "the stream was not held"
    await endpoint.send(np.zeros(1), tag=3, force_tag=True)
    assert (back.copy_to_host() == host + 1).all()
    assert await client.wait() == 0
    if listener:
        listener.close()


async def call(count, where):
    """Be the client of `serve`, whose port or address is told."""
    import ucxx

    if SHARES:
        print(bytes(ucxx.get_worker_address()).hex(), flush=True)
    endpoint = await (by_address(where) if SHARES else ucxx.create_endpoint("127.0.0.1", int(where)))
    got = dm.zeros(count, "i4")
    dm.synchronize()
    await ucxx.recv(got, tag=1)
    more = dm.to_device(got.copy_to_host() + 1)
    dm.synchronize()
    await endpoint.send(more, tag=2, force_tag=True)
    await ucxx.recv(np.zeros(1), tag=3)  # until then the other side may still read


def both(transports, count, late=False):
    """Run the two processes, and look into UCX's log for the lanes that they took."""
    command = [sys.executable, __file__, "serve", str(count), str(int(late))]
    with tempfile.TemporaryDirectory() as folder:
        log = {"UCX_LOG_LEVEL": "info", "UCX_LOG_FILE": f"{folder}/%p"}
        environment = {**os.environ, **log, "UCX_TLS": transports, "UCX_WARN_UNUSED_ENV_VARS": "n"}
        done = subprocess.run(command, capture_output=True, text=True, timeout=140, env=environment, check=False)
        logs = [path.read_text() for path in Path(folder).iterdir()]
    assert done.returncode == 0, done.stderr[-2000:]
    # A line says "intra-node cfg#1 tag(sysv/memory cma/memory) am(...) ...": what the messages of an endpoint go by.
    lanes = [set(re.findall(r"(\w+)/", tag)) for text in logs for tag in re.findall(r"cfg#\d+.* tag\((.*?)\)", text)]
    assert len(lanes) >= 2 and all(each and each <= LANES[transports] for each in lanes), lanes


@verb("device memory by TCP, 4 B")
def _():
    both(TCP, 1)


@verb("device memory by TCP, 4 MiB")
def _():
    both(TCP, 1 << 20)


@verb("device memory by shared memory, 4 B")
def _():
    both(SHARED, 1)


@verb("device memory by shared memory, 4 MiB")
def _():
    both(SHARED, 1 << 20)


@verb("device memory that a held stream has written, while another stream is held, by TCP")
def _():
    both(TCP, 1 << 20, late=True)


@verb("device memory that a held stream has written, while another stream is held, by shared memory")
def _():
    both(SHARED, 1 << 20, late=True)


if len(sys.argv) > 1:
    cu.cuInit(0)
    cu.cuCtxSetCurrent(cu.cuDevicePrimaryCtxRetain(0)[1])  # UCX allocates its buffers in the context that is current
    role, count, more = sys.argv[1:]
    talk = serve(int(count), more == "1") if role == "serve" else call(int(count), more)
    asyncio.run(asyncio.wait_for(talk, 80))
else:
    report(f"UCXX {importlib.metadata.version('ucxx-cu13')} with UCX {importlib.metadata.version('libucx-cu13')}")
