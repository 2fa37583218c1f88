"""What is checked before another process's memory is opened: with its owner, in the handle, and with the driver."""

from __future__ import annotations

import dataclasses
import gc
import os
import pickle
import random
import secrets
import shutil
import socket
import subprocess
import threading
import warnings
from pathlib import Path

import numpy as np
import pytest
from two_processes import THERE, data, of_both
from waits import patience

import devmem as dm
from devmem._core.interop import sharing

pytestmark = pytest.mark.usefixtures("tidy", "shared")


@of_both
def test_a_handle_that_lies(there):
    array = dm.to_device(data())
    handle = array.get_ipc_handle()
    lies = [
        dataclasses.replace(handle, nbytes=10**9, shape=(10**8,), strides=(4,)),
        dataclasses.replace(handle, nbytes=10**9),
    ]
    wide = dataclasses.replace(handle, shape=(10**12,), strides=(0,))
    there(
        """
handle, lies, wide = given
raises(dm.LayoutError, "has 4000000000000 bytes and reaches over 4", lambda: dm.open_ipc_array(wide))
info = dm.current_device().info
for each in lies:
    raises(dm.LayoutError, "but not as the handle says", lambda: dm.open_ipc_array(each))
for changes, kind in [
    ({"raw": b"short"}, Exception), ({"raw": bytes(64)}, dm.LayoutError), ({"offset": 10**9}, dm.LayoutError),
    ({"key": bytes(16)}, dm.ClosedError), ({"owner": "devmem-none"}, dm.ClosedError),
    ({"pooled": not handle.pooled}, dm.LayoutError), ({"virtual": not handle.virtual}, dm.LayoutError),
    ({"offset": -8}, dm.LayoutError), ({"uuid": "another"}, dm.UnsupportedError), ({"backend": "none"}, dm.UnsupportedError),
]:
    raises(kind, "", lambda: dm.open_ipc_array(dataclasses.replace(handle, **changes)))
for what in (None, 3, b"handle", handle.raw):
    raises(TypeError, "get_ipc_handle", lambda: dm.open_ipc_array(what))
assert live() == 0
assert dm.open_ipc_array(handle).shape == (4, 6)
""",
        (handle, lies, wide),
    )


@of_both
def test_forged_bytes_of_the_driver_open_memory_that_is_there_or_nothing(there):
    """Of a handle whose owner is not asked: the end of what is opened is touched, which may be further than there is memory."""
    handle = dataclasses.replace(dm.to_device(data()).get_ipc_handle(), owner="", key=b"")
    there(
        """
for at in range(0, len(given.raw), 8):
    for value in (0, 1 << 33, 1 << 62, (1 << 64) - 4096):
        raw = given.raw[:at] + value.to_bytes(8, "little") + given.raw[at + 8 :]
        for nbytes in (given.nbytes, 1 << 33):
            forged = dataclasses.replace(given, raw=raw, nbytes=nbytes, offset=nbytes - 8, shape=(2,), strides=(4,))
            try:
                dm.open_ipc_array(forged).copy_to_host()
            except dm.DevmemError:
                pass
""",
        handle,
    )


def test_the_same_process_is_refused():
    array = dm.to_device(data())
    with pytest.raises(dm.UnsupportedError, match="made in this process: use the array itself"):
        dm.open_ipc_array(array.get_ipc_handle())


@of_both
def test_processes_that_are_killed_leave_nothing(python_starts, shared):
    """Sixteen, each at another moment, in the middle of copies; the memory is whole for those that come after."""
    array = dm.to_device(np.zeros(1 << 20, "u1"))
    handle = array.get_ipc_handle()
    draw, before = random.Random(3), dm.memory_info().live
    script = """
seen = dm.open_ipc_array(given)
print("open", flush=True)
host = np.full(1 << 20, 5, "u1")
while True:
    seen.copy_to_device(host)
    seen.copy_to_host(host)
"""
    for _ in range(4 if shared == "driver" else 1):
        started = [python_starts(THERE.format(given=pickle.dumps(handle).hex()) + script) for _ in range(4)]
        for each in started:
            assert each.stdout.readline() == "open\n", each.stderr.read()
        for each in draw.sample(started, 4):
            assert set(np.unique(array.copy_to_host())) <= {0, 5}
            each.kill()
            each.wait()
    assert (array.copy_to_host() == 5).all()
    assert dm.memory_info().live == before


@of_both
def test_the_owner_is_killed(python_starts):
    """What was opened stays readable where the system keeps it, or is refused; nothing crashes, nothing is left."""
    owner = python_starts(
        """
import pickle, sys
import numpy as np
import devmem as dm
with dm.use_memory(dm.memory.DriverMemory()):
    array = dm.to_device(np.arange(1000.0))
print(pickle.dumps(array.get_ipc_handle()).hex(), flush=True)
sys.stdin.read()
"""
    )
    handle = pickle.loads(bytes.fromhex(owner.stdout.readline()))
    seen = dm.open_ipc_array(handle)
    assert seen[7] == 7
    owner.kill()
    owner.wait()
    assert seen.copy_to_host().shape == (1000,)
    seen.free()
    with pytest.raises(dm.ClosedError, match=f"the process {owner.pid} that shares this memory has ended"):
        dm.open_ipc_array(handle)


@of_both
def test_memory_that_was_freed_is_not_opened(there):
    """What lies at its address may be another array's by then."""
    array, other = dm.to_device(data()), dm.to_device(data())
    handles = array.get_ipc_handle(), other.get_ipc_handle()
    array.free()
    del other
    gc.collect()
    dm.trim()
    there(
        """
for each in given:
    raises(dm.ClosedError, "has freed this memory, or never shared it", lambda: dm.open_ipc_array(each))
assert live() == 0
""",
        handles,
    )


@of_both
def test_a_block_has_one_key():
    """Handles of one block leave one entry, which goes with the block."""
    before = len(sharing._shared)
    array = dm.to_device(data())
    assert array.get_ipc_handle() == array.get_ipc_handle()
    assert array[1:].get_ipc_handle().key == array.get_ipc_handle().key
    assert len(sharing._shared) == before + 1
    del array
    gc.collect()
    dm.trim()
    assert len(sharing._shared) == before


def test_the_socket_survives_any_request(there):
    array = dm.to_device(data())
    handle = array.get_ipc_handle()
    if not handle.owner:
        pytest.skip("this system has no sockets that tell who asks")
    for request in (b"", b"short", bytes(47), bytes(48), bytes(1000)):
        with socket.socket(socket.AF_UNIX) as connection:
            connection.connect("\0" + handle.owner)
            connection.sendall(request)
            connection.shutdown(socket.SHUT_WR)
            connection.settimeout(30)
            try:
                assert connection.recv(10) == (b"\0" if len(request) >= 48 else b"")
            except ConnectionResetError:
                assert len(request) > 48, "it closed with bytes unread"
    there("assert dm.open_ipc_array(given)[1, 1] == 7", handle)


@of_both
def test_an_answer_is_not_believed_without_what_has_to_come_with_it(there, shared):
    """A process of the same user that answers falsely: nothing, no, no descriptor, one of something else, nonsense."""
    array = dm.to_device(data())
    handle = array.get_ipc_handle()
    if not handle.owner:
        pytest.skip("this system has no sockets that tell who asks")
    answers = [b"", b"\0", b"\2", b"\xff", None, *([b"\1"] if handle.by_file else [])]
    with socket.socket(socket.AF_UNIX) as listener, Path(os.devnull).open() as unrelated:
        listener.bind("\0devmem-test-" + secrets.token_hex(8))
        listener.listen()

        def serve():
            for answer in answers:
                connection, _ = listener.accept()
                with connection:
                    connection.recv(48)
                    if answer is None:
                        socket.send_fds(connection, [b"\1"], [unrelated.fileno()])
                    else:
                        connection.sendall(answer)

        thread = threading.Thread(target=serve)
        thread.start()
        there(
            """
handle, times = given
dm.memory_info()
before = len(os.listdir("/proc/self/fd"))
for _ in range(times):
    raises((dm.DevmemError, dm.LayoutError), "", lambda: dm.open_ipc_array(handle))
assert live() == 0 and len(os.listdir("/proc/self/fd")) == before
""",
            (dataclasses.replace(handle, owner=listener.getsockname().decode()[1:]), len(answers)),
        )
        thread.join(patience())


ELSEWHERE = """
if given.by_file:
    raises(dm.UnsupportedError, "is in another network namespace", lambda: dm.open_ipc_array(given))
else:
    assert dm.open_ipc_array(given)[1, 1] == 7
dm.trim()
assert live() == 0
"""


@of_both
def test_an_owner_in_another_network_namespace_is_not_asked(there):
    """Two containers: nothing answers, under a name that the other namespace may give to another socket."""
    array = dm.to_device(data())
    handle = array.get_ipc_handle()
    if not handle.owner:
        pytest.skip("this system has no sockets that tell who asks")
    there(ELSEWHERE, dataclasses.replace(handle, owner="devmem-1-1-gone"))


@of_both
def test_a_process_in_another_network_namespace(python_starts):
    """A real one, for which the test has to be root: in a user namespace (--map-root-user) it could not see our files."""
    inside = ["unshare", "--net"]
    if not shutil.which(inside[0]) or subprocess.call([*inside, "true"], stderr=subprocess.DEVNULL):
        pytest.skip("this system or user can make no network namespace (unshare --net)")
    array = dm.to_device(data())
    process = python_starts(THERE.format(given=pickle.dumps(array.get_ipc_handle()).hex()) + ELSEWHERE, inside)
    _, errors = process.communicate()
    assert process.returncode == 0, errors


def test_a_process_of_another_container_may_have_the_same_number(there):
    array = dm.to_device(data())
    there(
        "assert dm.open_ipc_array(dataclasses.replace(given, process=os.getpid()))[1, 1] == 7",
        array.get_ipc_handle(),
    )


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system does not fork")
def test_a_forked_child_does_not_answer_for_its_parent(there):
    """The child has the parent's socket until it ends; the parent goes on answering."""
    array = dm.to_device(data())
    handle = array.get_ipc_handle()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        child = os.fork()
    if not child:
        os._exit(0 if not sharing._shared and sharing._listener is None else 1)
    assert os.waitpid(child, 0)[1] == 0
    there("assert dm.open_ipc_array(given)[1, 1] == 7", handle)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("dtype", np.dtype("O")),
        ("dtype", "f8"),
        ("shape", (-5,)),
        ("shape", (1.5,)),
        ("shape", [3]),
        ("shape", (1,) * 65),
        ("strides", (8, 8)),
        ("strides", (1 << 80,)),
        ("nbytes", float("nan")),
        ("nbytes", -1),
        ("offset", -8),
        ("offset", 1.0),
        ("raw", "text"),
        ("uuid", None),
        ("process", "1"),
    ],
)
def test_a_forged_handle_is_refused_before_the_driver_is_asked(name, value, recorded):
    with dm.use_memory(dm.memory.DriverMemory()):
        array = dm.to_device(np.arange(3.0))
    handle = array.get_ipc_handle()
    forged = dataclasses.replace(handle, **{"process": handle.process + 1, name: value})
    with recorded.during() as seen, pytest.raises(dm.LayoutError, match=r"was damaged on its way|reaches over"):
        dm.open_ipc_array(forged)
    assert not [call for call in seen if call.method == "ipc_open"]
