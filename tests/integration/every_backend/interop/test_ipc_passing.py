"""Arrays that are passed over a Unix socket of the program's own: what arrives, what is refused, and what is left open."""

from __future__ import annotations

import dataclasses
import gc
import json
import os
import pickle
import socket
import struct
import subprocess
import sys
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest
from two_processes import THERE, data, of_both
from waits import patience, together

import devmem as dm
from devmem._core.interop import passing, sharing

pytestmark = [
    pytest.mark.usefixtures("tidy", "shared"),
    pytest.mark.skipif(sys.platform != "linux", reason="arrays are passed on Linux"),
]

CHILD = """
import os, socket, sys
connection = socket.socket(fileno=int(sys.argv[1]))
"""


def open_files():
    """How many files this process has open."""
    return len([*Path("/proc/self/fd").iterdir()])


@pytest.fixture
def peer(device):
    """Start a script whose ``connection`` is the other end of a socket; returns this one and the process."""
    started, ends = [], []

    def start(script, given=None, imports=True):
        mine, other = socket.socketpair()
        ends.append(mine)
        mine.settimeout(60)
        with other:
            begin = THERE.format(given=pickle.dumps(given).hex()) if imports else ""
            text = begin + CHILD + script
            started.append(
                subprocess.Popen(
                    [sys.executable, "-c", text, str(other.fileno())],
                    env=os.environ | {"DEVMEM_BACKEND": device.backend},
                    pass_fds=[other.fileno()],
                    stderr=subprocess.PIPE,
                    text=True,
                )
            )
        return mine, started[-1]

    yield start
    for each in ends:
        each.close()
    for each in started:
        each.kill()
        each.wait()
        each.stderr.close()


def ended(process):
    _, errors = process.communicate(timeout=patience(140))
    assert process.returncode == 0, errors


ARRAYS = {
    "C": lambda: dm.to_device(data()),
    "strided": lambda: dm.to_device(data())[::-1, ::-2],
    "0-d": lambda: dm.to_device(data())[1:2, 2:3].reshape(()),
    "records": lambda: dm.zeros((2, 3), [("a", "i1"), ("b", [("x", "<f8", (2,)), ("y", "M8[s]")])]),
    "padded": lambda: dm.zeros(3, np.dtype({"names": ["a", "b"], "formats": ["i1", "f8"], "offsets": [0, 8]})),
    "bfloat16": lambda: dm.to_device(data().astype(ml_dtypes.bfloat16)),
    "bytes": lambda: dm.zeros(3, "V5"),
    "foreign byte order": lambda: dm.to_device(data().astype(">i4")),
}


@of_both
def test_both_processes_see_the_memory(peer):
    connection, process = peer(
        """
import ml_dtypes
for name, expected in given:
    seen = dm.receive_ipc_array(connection)
    assert (seen.shape, seen.dtype, seen.copy_to_host().tobytes()) == expected, name
    seen.view("u1").fill(1) if name == "C" else None
    seen.free()
assert live() == 0
connection.sendall(b"ok")
""",
        [(name, (a.shape, a.dtype, a.copy_to_host().tobytes())) for name, a in ((n, m()) for n, m in ARRAYS.items())],
    )
    arrays = [make() for make in ARRAYS.values()]
    for array in arrays:
        dm.send_ipc_array(connection, array)
    assert connection.recv(2) == b"ok"
    ended(process)
    assert (arrays[0].copy_to_host().view("u1") == 1).all()


@of_both
def test_it_arrives_from_where_nothing_can_be_asked(peer, monkeypatch):
    """A process in another network namespace: its socket cannot be reached, its pool's descriptor came with the message."""
    sharing._end()  # the next socket is another
    monkeypatch.setattr(sharing, "_network", lambda: "1")
    try:
        connection, process = peer("assert dm.receive_ipc_array(connection)[1, 1] == 7; assert live() == 0")
        array = dm.to_device(data())
        assert array.get_ipc_handle().owner.startswith(f"{sharing.PREFIX}1-")
        dm.send_ipc_array(connection, array)
        ended(process)
    finally:
        sharing._end()  # its name has the other namespace


@of_both
def test_the_sender_waits_until_it_is_open(peer):
    connection, process = peer(
        """
connection.sendall(b"?")
assert connection.recv(1) == b"!"
assert dm.receive_ipc_array(connection)[1, 1] == 7
"""
    )
    array = dm.to_device(data())
    assert connection.recv(1) == b"?"
    connection.sendall(b"!")
    together(lambda: dm.send_ipc_array(connection, array), lambda: ended(process), limit=140)


@of_both
def test_sixteen_that_are_killed_leave_nothing(peer):
    """In the middle of copies, and before they have taken what was sent."""
    array = dm.to_device(np.zeros(1 << 20, "u1"))
    before = dm.memory_info().live, open_files()
    script = """
seen = dm.receive_ipc_array(connection)
while True:
    seen.fill(5)
    seen.copy_to_host()
"""
    for number in range(16):
        opens = bool(number % 2)
        connection, process = peer(script if opens else "connection.recv(3); os.kill(os.getpid(), 9)", imports=opens)
        if opens:
            dm.send_ipc_array(connection, array)
            process.kill()
        else:
            with pytest.raises(dm.ClosedError, match=r"ended before|connection failed"):
                dm.send_ipc_array(connection, array)
        process.communicate()
        connection.close()
    assert set(np.unique(array.copy_to_host())) <= {0, 5}
    array.fill(5)
    assert (array.copy_to_host() == 5).all()
    assert dm.memory_info().live == before[0]
    assert open_files() <= before[1] + 2  # the answering socket, and the pool's descriptor


def test_the_same_process_is_refused_at_both_ends():
    one, other = socket.socketpair()
    array = dm.to_device(data())

    def send():
        with pytest.raises(dm.DevmemError, match="the other process could not open the array"):
            dm.send_ipc_array(one, array)

    def receive():
        with pytest.raises(dm.UnsupportedError, match="made in this process"):
            dm.receive_ipc_array(other)

    with one, other:
        together(send, receive)


def message(**changes):
    """What is sent of an array, with other fields: as the message, without a descriptor."""
    handle = dm.to_device(data()).get_ipc_handle()
    told = json.loads(passing._text(dataclasses.replace(handle, owner=handle.owner + "x")))
    text = json.dumps({**told, **changes}).encode()
    return struct.pack("!4sI", b"dmIP", len(text)) + text


FORGED = {
    "nothing": lambda: b"",
    "cut short": lambda: message()[:-5],
    "something else": lambda: b"GET / HTTP/1.1\r\n\r\n",
    "too long": lambda: struct.pack("!4sI", b"dmIP", 1 << 30),
    "no JSON": lambda: struct.pack("!4sI", b"dmIP", 4) + b"\xff{}[",
    "a list": lambda: struct.pack("!4sI", b"dmIP", 2) + b"[]",
    "nested": lambda: struct.pack("!4sI", b"dmIP", 60_000) + b"[" * 60_000,
    "another field": lambda: message(more=1),
    "objects": lambda: message(dtype="|O"),
    "a large dtype": lambda: message(dtype="V1000000000"),
    "a dtype that is a number": lambda: message(dtype=7),
    "fields of a dtype that are none": lambda: message(dtype=["ab", {"a": 1}]),
    "a negative shape": lambda: message(shape=[-4, 6]),
    "more than there is": lambda: message(shape=[4000, 6]),
    "offset": lambda: message(offset=1 << 40),
    "raw": lambda: message(raw="zz"),
    "a pool's without a descriptor": lambda: message(pooled=True),
    "virtual memory without a descriptor": lambda: message(virtual=True),
    "a fabric handle cut short": lambda: message(virtual=True, raw="00"),
    "a pool's and virtual": lambda: message(virtual=True, pooled=True),
    "an owner that is none": lambda: message(owner="devmem-none"),
}


@pytest.mark.parametrize("name", FORGED)
def test_forged_messages_are_refused_before_the_driver_is_asked(name, recorded):
    text = FORGED[name]()
    one, other = socket.socketpair()
    with one, other:
        one.settimeout(60)
        one.sendall(text)
        one.shutdown(socket.SHUT_WR)
        gc.collect()  # files of earlier tests' garbage
        before = open_files()
        with recorded.during() as seen, pytest.raises((dm.LayoutError, dm.ClosedError, dm.UnsupportedError)):
            dm.receive_ipc_array(other)
        assert one.recv(1) == passing.FAILED
        assert open_files() == before
    assert not [call for call in seen if call.method in ("ipc_open", "pool_open", "virtual_open")]


def test_other_connections_are_refused():
    array = dm.to_device(data())
    with socket.socket() as internet, socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as datagrams:
        for connection in (internet, datagrams):
            with pytest.raises(dm.UnsupportedError, match="Unix socket for streams"):
                dm.send_ipc_array(connection, array)
            with pytest.raises(dm.UnsupportedError, match="Unix socket for streams"):
                dm.receive_ipc_array(connection)
    with pytest.raises(TypeError, match=r"over a socket.socket, not a int"):
        dm.receive_ipc_array(3)
    one, other = socket.socketpair()
    with other, one, pytest.raises(TypeError, match="a device array is sent, not a list"):
        dm.send_ipc_array(one, [1])


def test_a_connection_of_another_user_is_refused(monkeypatch):
    monkeypatch.setattr(passing, "is_of_this_user", lambda connection: False)
    one, other = socket.socketpair()
    with one, other:
        for call in (lambda: dm.send_ipc_array(one, dm.to_device(data())), lambda: dm.receive_ipc_array(other)):
            with pytest.raises(dm.ClosedError, match="another user's"):
                call()
