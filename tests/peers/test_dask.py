"""distributed moves device arrays as bytes: what is registered, what is sent, and two processes of a cluster."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from waits import patience

import devmem as dm

from .conftest import load

libraries = load("libraries")
RECORDS = np.zeros((2, 3), [("a", "i1"), ("b", "f8", (2,)), ("c", "M8[s]")])
RECORDS["a"], RECORDS["b"] = np.arange(6).reshape(2, 3), 0.5
HOST = np.arange(120.0).reshape(4, 5, 6)
ARRAYS = {
    "C": lambda: dm.to_device(HOST),
    "F": lambda: dm.to_device(HOST.T),
    "axes in another order": lambda: dm.to_device(HOST.transpose(1, 0, 2)),
    "strided": lambda: dm.to_device(HOST)[::2, :, 1::2],
    "negative strides": lambda: dm.to_device(HOST)[::-1, ::-2],
    "a slice": lambda: dm.to_device(HOST)[1:3],
    "axes of length one": lambda: dm.to_device(HOST)[:, None, 1:2].T,
    "0-d": lambda: dm.to_device(HOST)[0, 0, 1:2].reshape(()),
    "empty": lambda: dm.to_device(HOST)[:, :0].T,
    "records": lambda: dm.to_device(RECORDS),
    "a field": lambda: dm.to_device(RECORDS)["b"],
    "dates": lambda: dm.to_device(HOST.astype("M8[s]")),
    "foreign byte order": lambda: dm.to_device(HOST.astype(">i4")),
    "text": lambda: dm.to_device(np.array(["ab", "c"])),
}


@pytest.fixture(autouse=True)
def distributed(installed, devmem_backend):
    """distributed, which devmem is registered with."""
    there = importlib.util.find_spec("distributed") is not None
    installed("distributed", importlib.metadata.version("distributed") if there else None)
    from devmem.adapters import dask

    dask.register()


@pytest.fixture
def rmm(monkeypatch):
    """RMM is installed, as far as is asked: no test receives into its memory."""
    monkeypatch.setattr("devmem.adapters.dask._has_rmm", lambda: True)


def same(array, other):
    """Whether two arrays are the same in all that is sent, and lie in the same order of axes."""
    assert (other.shape, other.dtype, other.device) == (array.shape, array.dtype, array.device)
    assert other.copy_to_host().tobytes() == array.copy_to_host().tobytes()
    steps = [
        [step for count, step in zip(each.shape, each.strides, strict=True) if count > 1]
        for each in (array.copy(), other)
    ]
    assert steps[0] == steps[1] or not array.size
    return True


@pytest.mark.parametrize("families", [("dask",), ("cuda", "dask")], ids=" ".join)
@pytest.mark.parametrize("name", ARRAYS)
def test_arrays_arrive_by_every_family_of_serializers(name, families, rmm):
    from distributed.protocol import deserialize, serialize

    array = ARRAYS[name]()
    header, frames = serialize(array, serializers=families, on_error="raise")
    by_device = "cuda" in families and array.device.info.exchange.array_interface
    assert header["serializer"] == ("cuda" if by_device else "dask")
    assert sum(frame.nbytes for frame in frames) == array.nbytes
    assert same(array, deserialize(header, frames))


def test_through_distributeds_own_protocol():
    """Headers are packed by msgpack, and large frames cut."""
    import dask
    from distributed.protocol import dumps, loads, to_serialize

    arrays = [make() for make in ARRAYS.values()]
    with dask.config.set({"distributed.comm.shard": "100 B"}):
        sent = [bytes(frame) for frame in dumps({"x": [to_serialize(each) for each in arrays]})]
    assert all(map(same, arrays, loads(sent)["x"]))


def test_what_is_sent_is_the_memory_itself(rmm):
    """Family dask: one copy, to the host. Family cuda: none, of an array without gaps."""
    from distributed.protocol import deserialize, serialize

    array = dm.to_device(HOST).T
    _, [frame] = serialize(array, serializers=("dask",), on_error="raise")
    assert isinstance(frame, memoryview)
    if not array.device.info.exchange.array_interface:
        with pytest.raises(TypeError, match="Could not serialize"):
            serialize(array, serializers=("cuda",), on_error="raise")
        return
    header, [frame] = serialize(array, serializers=("cuda",), on_error="raise")
    assert frame.ptr == array.ptr
    there = deserialize(header, [libraries.Described(frame)])
    assert there.ptr == array.ptr
    assert same(array, there)


def test_without_rmm_nothing_is_sent_that_only_its_memory_could_receive(monkeypatch):
    """UCX asks for the family cuda first. What receives raises then, and distributed sends again for ever."""
    from distributed.protocol import deserialize, serialize

    monkeypatch.setattr("devmem.adapters.dask._has_rmm", lambda: False)
    array = dm.to_device(HOST)
    header, frames = serialize(array, serializers=("cuda", "dask"), on_error="raise")
    assert header["serializer"] == "dask"
    assert same(array, deserialize(header, frames))


def test_what_is_sent_from_a_device_is_ready(rmm):
    """Transports look at no stream, so there is nothing left to wait for."""
    from distributed.protocol import serialize

    array = dm.to_device(np.zeros(1000))
    if not array.device.info.exchange.array_interface:
        pytest.skip(f"{array.device} sends by the host")
    with dm.stream(non_blocking=True) as stream:
        array.fill(7.0, stream=stream)
        _, [frame] = serialize(array, serializers=("cuda",), on_error="raise")
        assert stream.query()
    assert frame.ptr == array.ptr


def test_a_read_only_array_arrives_as_one_of_its_own(open_memory):
    from distributed.protocol import deserialize, serialize

    place = libraries.PLACES.get(dm.current_device().info.exchange.device_type)
    if place is None:
        pytest.skip("there is no read-only memory of others")
    array = libraries.read_only(HOST, place)
    there = deserialize(*serialize(array, serializers=("dask",), on_error="raise"))
    assert there.flags["WRITEABLE"]
    assert same(array, there)


def test_the_transfer_guard_knows_the_copy(monkeypatch):
    from distributed.protocol import deserialize, serialize

    array = dm.to_device(HOST)
    monkeypatch.setenv("DEVMEM_TRANSFER_GUARD", "disallow")
    dm.close()
    try:
        array = dm.to_device(HOST)
        with pytest.raises(TypeError) as raised:
            serialize(array, serializers=("dask",), on_error="raise")
        assert isinstance(raised.value.__cause__, dm.TransferGuardError)
        # While it is sent: distributed would try again for ever.
        sent = serialize(array, serializers=("dask",), on_error="raise", context={"recipient": "a worker"})
        arrived = deserialize(*sent)
        assert "was not sent: implicit copy from device to host" in repr(arrived)
        assert not hasattr(arrived, "__cuda_array_interface__")
        again = deserialize(*serialize(arrived, on_error="raise"))
        for use in (lambda: again.copy_to_host(), lambda: again[0], lambda: np.asarray(again), lambda: len(again)):
            with pytest.raises(dm.TransferGuardError, match="implicit copy from device to host"):
                use()
    finally:
        monkeypatch.undo()
        dm.close()


def test_dask_knows_how_large_an_array_is():
    from dask.sizeof import sizeof

    from devmem.adapters import dask

    dask.register_sizeof(sizeof)
    assert sizeof(dm.to_device(HOST)[::2]) == HOST.nbytes // 2


def test_chunks_are_put_together_on_the_device():
    import dask
    import dask.array as da

    from devmem.adapters.dask import register_chunks

    register_chunks()
    chunks = [dask.delayed(dm.to_device)(HOST + number) for number in range(3)]
    whole = da.concatenate([da.from_delayed(each, HOST.shape, meta=dm.zeros((0, 0, 0))) for each in chunks])
    assert isinstance(whole._meta, dm.DeviceNDArray)
    wanted = np.concatenate([HOST + number for number in range(3)])
    with dask.config.set(scheduler="synchronous"):
        found = whole.compute()
        assert isinstance(found, dm.DeviceNDArray)
        assert (found.copy_to_host() == wanted).all()
        assert (whole[3:9, ::2].compute().copy_to_host() == wanted[3:9, ::2]).all()
        assert (whole.rechunk((12, 5, 6)).T.compute().copy_to_host() == wanted.T).all()
        doubled = whole.map_blocks(lambda chunk: dm.to_device(chunk.copy_to_host() * 2), meta=whole._meta)
        assert (doubled.compute().copy_to_host() == wanted * 2).all()
        with pytest.raises(TypeError, match=r"copy_to_host\(\) and NumPy"):
            (whole + 1).compute()


def test_the_store_of_a_worker_spills(tmp_path):
    from devmem.adapters.dask_cluster import worker_store

    blocks = {number: np.full(100_000, number, "u1") for number in range(8)}
    with worker_store(str(tmp_path), "250KB", "250KB") as data:
        for number, block in blocks.items():
            data["task", number] = dm.to_device(block)
        data["text"] = "x" * 10
        stats = data.stats()
        assert [stats[tier]["count"] for tier in ("device", "host", "disk")] == [2, 3, 4]
        assert data.fast
        assert data.evict() > 0
        while data.fast:
            data.evict()
        assert data.evict() == -1
        assert data.spilled_total == (data.stats()["disk"]["bytes"],) * 2
        assert all((data["task", number].copy_to_host() == block).all() for number, block in blocks.items())
    assert list((tmp_path / "devmem").iterdir()) == []


# -- in processes of their own -----------------------------------------------------------------------------------------

NOTHING_ELSE = """
import devmem, sys
assert "dask" not in sys.modules and "distributed" not in sys.modules
"""
DASK_ALONE = """
import dask.sizeof, sys
assert "distributed" not in sys.modules
"""
REGISTERED = """
import distributed.protocol
from distributed.protocol import serialize
import devmem as dm
assert serialize(dm.zeros(3))[0]["serializer"] == "dask"
assert not [each for each in sys.meta_path if getattr(each, "trigger", "") == "distributed.protocol.cuda"]
assert type(distributed.protocol.cuda.__loader__).__module__.startswith("_frozen_importlib")
"""


@pytest.mark.parametrize(
    "first", [NOTHING_ELSE, DASK_ALONE, "import sys"], ids=["devmem first", "dask first", "distributed first"]
)
def test_dask_finds_devmem_whichever_is_imported_first(first):
    if not [entry for entry in importlib.metadata.entry_points(group="dask.sizeof") if entry.name == "devmem"]:
        pytest.skip("devmem is not installed, or by an older pyproject.toml: no entry point")
    run(first + REGISTERED)


CLUSTER = """
import os
import numpy as np
import devmem as dm
from distributed import Client, LocalCluster

def described(array):
    assert isinstance(array, dm.DeviceNDArray), type(array)
    return os.getpid(), array.shape, array.strides, array.dtype, array.copy_to_host().tobytes()

def twice(array):
    result = dm.device_array_like(array)
    result.copy_to_device(array.copy_to_host() * 2)
    return result

def count(dask_worker):
    # distributed falls back to pickle in silence.
    from distributed.protocol.serialize import dask_serialize
    from devmem.adapters import dask as ours
    dask_worker.sent_arrays = sent = []
    def frames(array):
        sent.append(array.shape)
        return ours.to_host_frames(array)
    dask_serialize.dispatch(dm.DeviceNDArray)  # what is registered lazily is, now
    dask_serialize.register(dm.DeviceNDArray, frames)

if __name__ == "__main__":
    host = np.arange(24.0).reshape(4, 6)
    options = dict(n_workers=2, threads_per_worker=1, processes=True, dashboard_address=None, memory_limit=0)
    with LocalCluster(**options) as cluster, Client(cluster) as client:
        one, other = client.scheduler_info()["workers"]
        client.run(count)
        for array in (dm.to_device(host), dm.to_device(host.T), dm.to_device(host)[::2, ::-1], dm.zeros((0, 3)),
                      dm.full((), 4.0), dm.zeros(3, [("a", "i1"), ("b", "f8")])):
            there = client.scatter(array, workers=[one], hash=False)
            at_one = client.submit(described, there, workers=[one], pure=False).result()
            at_other = client.submit(described, there, workers=[other], pure=False).result()
            packed = array.copy()
            assert at_one[1:] == at_other[1:] == (array.shape, packed.strides, array.dtype, array.copy_to_host().tobytes())
            assert len({os.getpid(), at_one[0], at_other[0]}) == 3
        made = client.submit(twice, client.scatter(dm.to_device(host.T), workers=[one], hash=False), workers=[other]).result()
        assert made.strides == dm.to_device(host.T).strides
        assert (made.copy_to_host() == host.T * 2).all()
        sent = client.run(lambda dask_worker: dask_worker.sent_arrays)
        assert len(sent[one]) >= 6 and sent[other], sent
    print("moved")
"""


@pytest.mark.timeout(300)
def test_two_processes_of_a_cluster(tmp_path):
    script = tmp_path / "cluster.py"
    script.write_text(CLUSTER)
    assert run(script, DEVMEM_BACKEND="host", DEVMEM_HOST_STRICT="1").endswith("moved\n")


SPILLING = """
import os, signal
import numpy as np
import devmem as dm
from distributed import Client, wait
from devmem.adapters.dask_cluster import local_cluster

def block(number):
    assert dm.current_device().id == int(os.environ["DEVMEM_DEVICE"])
    return dm.to_device(np.full(100_000, number, "u1"))

def joined(one, other):
    result = dm.device_array(200_000, "u1")
    result[:100_000], result[100_000:] = one, other
    return result

def host(array):
    return array.copy_to_host()

def where(dask_worker):
    assert dask_worker.transfer_outgoing_count_limit == dask_worker.state.transfer_incoming_count_limit == 2
    assert dask_worker.state.transfer_message_bytes_limit == 150_000
    return str(dm.current_device()), dask_worker.data.stats()

if __name__ == "__main__":
    # Each device has no more than a task, four transfers and its results need.
    limits = dict(device_limit="350KB", host_limit="350KB", memory="limit:3MB,statistics,pool",
                  config={"distributed.worker.transfer.message-bytes-limit": 150_000})
    with local_cluster(dashboard_address=None, **limits) as cluster, Client(cluster) as client:
        blocks = [client.submit(block, number) for number in range(24)]
        wait(blocks)
        found = client.run(where)
        assert sorted(device for device, _ in found.values()) == sorted(
            str(each) for each in dm.devices() if each.backend == dm.current_device().backend), found
        assert sum(stats["disk"]["count"] for _, stats in found.values()) >= 6, found
        assert all(stats["device"]["bytes"] <= 350_000 for _, stats in found.values()), found
        victim = next(iter(found))
        client.submit(lambda: os.kill(os.getpid(), signal.SIGKILL), workers=[victim], pure=False, retries=0)
        pairs = [client.submit(host, client.submit(joined, blocks[number - 1], blocks[number])) for number in range(24)]
        for number, pair in enumerate(client.gather(pairs)):
            assert pair.tolist() == [(number - 1) % 24] * 100_000 + [number] * 100_000
    print("spilled")
"""


@pytest.mark.timeout(300)
def test_a_cluster_spills_and_survives_a_killed_worker(tmp_path, devmem_backend):
    script = tmp_path / "spilling.py"
    script.write_text(SPILLING)
    assert run(script, DEVMEM_BACKEND=devmem_backend, DEVMEM_HOST_STRICT="1").endswith("spilled\n")


DISTURBED = """
import faulthandler, gc, os, signal, sys, time
from pathlib import Path
import numpy as np
import devmem as dm
from distributed import Client, Event, wait
from devmem.adapters.dask_cluster import local_cluster

def block(number):
    faulthandler.dump_traceback_later(float(sys.argv[2]))  # where a worker stands, too
    return dm.to_device(np.full(100_000, number, "u1"))

def first(name):
    try:
        Path(sys.argv[1], str(name)).touch(exist_ok=False)
    except FileExistsError:
        return False
    return True

def retried(number, array):
    kept = dm.device_array_like(array)
    kept.copy_to_device(array)
    if first(number):
        raise OSError("the first time")
    return kept

def interrupting(array, process):
    if first("interrupt"):
        os.kill(process, signal.SIGINT)
        while not Event("caught").wait(timeout=30):  # Python drops an interrupt that comes into a finalizer
            os.kill(process, signal.SIGINT)
    Event("caught").wait()
    return array

def left(dask_worker):
    gc.collect()
    dm.trim()
    found = dm.memory_info().live, list(dask_worker.data)
    return found if any(found) else None

if __name__ == "__main__":
    faulthandler.dump_traceback_later(float(sys.argv[2]))
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell has what it starts behind it ignore interrupts
    limits = dict(device_limit="350KB", host_limit="350KB", memory="statistics,pool")
    with local_cluster([0, 0], dashboard_address=None, **limits) as cluster, Client(cluster) as client:
        blocks = [client.submit(block, number) for number in range(12)]
        again = [client.submit(retried, number, each, retries=1) for number, each in enumerate(blocks)]
        wait(again)
        try:
            client.submit(interrupting, again[5], os.getpid(), key="interrupting").result()
        except KeyboardInterrupt:
            Event("caught").set()
        # By another name: a task that is asked for again while the worker lets go of it is Dask's affair.
        assert (client.submit(interrupting, again[5], os.getpid(), key="after").result().copy_to_host() == 5).all()
        for number, array in enumerate(client.gather(again)):
            assert (array.copy_to_host() == number).all()
        del blocks, again, array
        end = time.monotonic() + float(sys.argv[2]) / 2
        while any((found := client.run(left)).values()):  # until Dask has let go of the results
            assert time.monotonic() < end, found
    print("nothing left")
"""


@pytest.mark.timeout(300)
def test_retried_tasks_and_an_interrupt_leave_nothing(tmp_path, devmem_backend):
    script = tmp_path / "disturbed.py"
    script.write_text(DISTURBED)
    arguments = str(tmp_path), str(patience(240))  # so many seconds until it says where it stands
    assert run(script, *arguments, DEVMEM_BACKEND=devmem_backend, DEVMEM_HOST_STRICT="1").endswith("nothing left\n")


REFUSED = """
import devmem as dm
from distributed import Client
from devmem.adapters.dask_cluster import local_cluster

def total(array):
    return float(array.copy_to_host().sum())

if __name__ == "__main__":
    guarded = {"DEVMEM_TRANSFER_GUARD": "disallow"}
    with local_cluster([0, 0], dashboard_address=None, env=guarded) as cluster, Client(cluster) as client:
        one, other = client.scheduler_info()["workers"]
        array = client.submit(dm.zeros, 5, workers=[one])
        assert client.submit(total, array, workers=[one]).result() == 0
        for use in (client.submit(total, array, workers=[other], pure=False).result, lambda: total(array.result())):
            try:
                use()
            except dm.TransferGuardError as error:
                assert "implicit copy from device to host" in str(error)
            else:
                raise AssertionError(use)
    print("refused")
"""


@pytest.mark.timeout(300)
def test_a_refusal_of_the_guard_arrives_as_the_guards_error(tmp_path):
    script = tmp_path / "refused.py"
    script.write_text(REFUSED)
    assert run(script, DEVMEM_BACKEND="host").endswith("refused\n")


def run(script: str | Path, *arguments: str, **variables: str) -> str:
    """What a process of its own prints."""
    command = [str(script), *arguments] if isinstance(script, Path) else ["-c", script]
    environment = os.environ | {"DASK_DISTRIBUTED__WORKER__DAEMON": "True"} | variables
    with subprocess.Popen(
        [sys.executable, *command], env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as done:
        try:
            said, wrong = done.communicate(timeout=patience(280))
        except subprocess.TimeoutExpired:
            done.kill()
            raise AssertionError(f"it did not end:\n{done.communicate()[1]}") from None
    assert done.returncode == 0, wrong
    return said
