"""Requests of other processes for shared memory: whatever they send, the next right one is answered."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import suppress

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import devmem as dm
from devmem._core.interop import sharing

KEY, DIGEST = b"k", b"d"


@pytest.fixture(scope="module")
def offered() -> Iterator[tuple[str, bytes, bytes]]:
    """Where this process answers for an array, by which key, and the digest of its handle."""
    if not sharing.CAN_ASK:
        pytest.skip("the system has no such sockets")
    array, digest = dm.to_device(np.arange(5)), sharing.digest_of("an array")
    owner, key = sharing.offer(array.allocation, digest, [])
    yield owner, key, digest
    del array


def answer(owner: str, *parts: bytes) -> bytes:
    """What the process says to a request that comes in parts and ends."""
    with socket.socket(socket.AF_UNIX) as connection:
        connection.settimeout(60)
        connection.connect("\0" + owner)
        with suppress(BrokenPipeError, ConnectionResetError):  # it has read enough
            for part in parts:
                connection.sendall(part)
            connection.shutdown(socket.SHUT_WR)
        with suppress(ConnectionResetError):
            return connection.recv(10)
        return b""


@given(st.lists(st.lists(st.sampled_from([KEY, DIGEST]) | st.binary(max_size=60), max_size=4), min_size=1, max_size=4))
def test_any_request_is_answered_and_the_next_one_too(
    offered: tuple[str, bytes, bytes], requests: list[list[bytes]]
) -> None:
    owner, key, digest = offered
    for parts in requests:
        sent = [{KEY: key, DIGEST: digest}.get(part, part) for part in parts]
        request = b"".join(sent)[: len(key) + len(digest)]
        if len(request) < len(key) + len(digest):
            expected = b""
        elif not request.startswith(key):
            expected = sharing.GONE
        else:
            expected = sharing.LIVE if request == key + digest else sharing.DIFFERS
        # What is sent beyond a request may reach the process after it has closed the connection, and takes its answer along.
        assert answer(owner, *sent) in (expected, b"" if len(b"".join(sent)) > len(request) else expected)
    assert answer(owner, key, digest) == sharing.LIVE


@given(
    st.text(max_size=8) | st.builds("devmem-{}-{}".format, st.integers(0, 2**70), st.text(max_size=3)),
    st.binary(max_size=70),
)
def test_any_owner_is_asked_or_told(owner: str, key: bytes) -> None:
    try:
        assert sharing.ask(owner, key, bytes(32), 7) is None
    except (dm.ClosedError, dm.LayoutError) as error:
        assert "the process 7" in str(error)  # noqa: PT017
    else:
        assert not owner or sharing.is_elsewhere(owner) or not sharing.CAN_ASK
