"""Arrays that are passed to another process over a Unix socket of the program's own.

One message goes each way. The sender's has the fields of a handle as JSON, so that nothing of it is run, and the file descriptor
of a pool, or of virtual memory, where it is opened by one. The receiver checks the fields as `open_ipc_array` does, opens it and
answers with one byte, for which the sender waits: so the array lives while it is opened, also where the processes are in two
network namespaces (two containers), and the sender's own socket cannot be asked.
"""

from __future__ import annotations

import json
import socket
import struct
from contextlib import suppress
from dataclasses import fields
from typing import TYPE_CHECKING, Any

import numpy as np

from ...spi.errors import ClosedError, DevmemError, LayoutError, UnsupportedError
from .ipc import IpcHandle, handle_of, opened
from .sharing import CAN_ASK, descriptor_of, is_of_this_user, receive_with_descriptor

if TYPE_CHECKING:
    from ..base.array_view import ArrayView
    from ..lifetime.allocation import Allocation

#: How a message begins: what it is, and the bytes of its text.
_HEAD = struct.Struct("!4sI")
_MAGIC = b"dmIP"
#: Bytes of the longest text: nothing more is read of a peer.
LONGEST = 1 << 16
OPENED, FAILED = b"\1", b"\0"


def send(connection: socket.socket, view: ArrayView[Any], allocation: Allocation) -> None:
    """Pass an array's memory to the process at the other end, and wait until that has opened it."""
    _check(connection)
    handle = handle_of(view, allocation)
    text = _text(handle)
    descriptor = descriptor_of(handle.key) if handle.by_file else None
    message = _HEAD.pack(_MAGIC, len(text)) + text
    try:
        sent = socket.send_fds(connection, [message], [] if descriptor is None else [descriptor])
        connection.sendall(message[sent:])
        answer = connection.recv(1)
    except OSError as error:
        raise ClosedError(f"the connection failed while an array was sent ({error}): make a new one") from error
    if answer == FAILED:
        raise DevmemError("the other process could not open the array: what it raised says why")
    if answer != OPENED:
        raise ClosedError("the connection ended before the other process had opened the array")


def receive(connection: socket.socket) -> tuple[Any, ...]:
    """Open the memory that the process at the other end passes, as what a device array is made of."""
    _check(connection)
    answer = FAILED
    try:
        try:
            head, descriptor = receive_with_descriptor(connection, _HEAD.size)
            magic, nbytes = _HEAD.unpack(head + _rest(connection, _HEAD.size - len(head)))
            if magic != _MAGIC or nbytes > LONGEST:
                raise LayoutError(f"this is no array that was sent: it begins with {head!r}")
            text = _rest(connection, nbytes)
        except OSError as error:
            raise ClosedError(f"the connection failed before an array had come ({error})") from error
        made = opened(_handle(text), None, None, None, descriptor)
        answer = OPENED
        return made
    finally:
        with suppress(OSError):  # the sender is gone, which ends nothing that was opened
            connection.sendall(answer)


def _rest(connection: socket.socket, nbytes: int) -> bytes:
    """Receive so many bytes more."""
    parts = []
    while nbytes:
        part = connection.recv(nbytes)
        if not part:
            raise ConnectionError("it was closed")
        parts.append(part)
        nbytes -= len(part)
    return b"".join(parts)


def _check(connection: object) -> None:
    if not CAN_ASK:
        raise UnsupportedError(
            "arrays are passed by file descriptors over Unix sockets, which are Linux's here: send copies"
        )
    if not isinstance(connection, socket.socket):
        raise TypeError(f"arrays are passed over a socket.socket, not a {type(connection).__name__}")
    if connection.family is not socket.AF_UNIX or connection.type is not socket.SOCK_STREAM:
        raise UnsupportedError("arrays are passed over a Unix socket for streams (socket.AF_UNIX, socket.SOCK_STREAM)")
    try:
        is_own = is_of_this_user(connection)
    except OSError as error:
        raise ClosedError(f"this socket is connected to no process ({error})") from error
    if not is_own:
        raise ClosedError(
            "the process at the other end of this socket is another user's: arrays are passed to one's own only"
        )


def _text(handle: IpcHandle) -> bytes:
    """The fields of a handle."""
    told = {each.name: getattr(handle, each.name) for each in fields(handle)}
    told["raw"], told["key"] = handle.raw.hex(), handle.key.hex()
    told["dtype"] = _described(handle.dtype)
    return json.dumps(told).encode()


def _handle(text: bytes) -> IpcHandle:
    """The handle with these fields, which `opened` checks."""
    try:
        told = json.loads(text)
        told["raw"], told["key"] = bytes.fromhex(told["raw"]), bytes.fromhex(told["key"])
        told["shape"], told["strides"] = tuple(told["shape"]), tuple(told["strides"])
        told["dtype"] = _dtype(told["dtype"])
        return IpcHandle(**told)
    except (ValueError, TypeError, LookupError, AttributeError, OverflowError, RecursionError) as error:
        raise LayoutError(f"this is no array that was sent, or it was damaged on its way: {error}") from error


def _described(dtype: np.dtype[Any]) -> Any:
    """A dtype as JSON; by its name where it is another library's, as ml_dtypes' bfloat16."""
    for described in (np.lib.format.dtype_to_descr(dtype), dtype.name):
        with suppress(ValueError, TypeError):
            if _dtype(json.loads(json.dumps(described))) == dtype:
                return described
    raise UnsupportedError(f"the dtype {dtype} cannot be told in a message: send bytes, array.view('u1')")


def _dtype(described: Any) -> np.dtype[Any]:
    if isinstance(described, str):
        return np.dtype(described)
    return np.lib.format.descr_to_dtype([_field(each) for each in described])


def _field(described: list[Any]) -> tuple[Any, ...]:
    """A field, as NumPy's files describe it, with tuples where JSON has lists."""
    name, kind, *shape = described
    kind = [_field(each) for each in kind] if isinstance(kind, list) else kind
    return (name, kind, *(tuple(each) for each in shape))
