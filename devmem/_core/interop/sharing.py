"""Answers to processes that open this one's shared memory: whether a block still lives, and its pool's descriptor.

A handle travels by any way, and may be old or forged. So the process that opens it asks the one that made it, over a Unix socket
with a name of its own (Linux), before any memory is mapped. The answer is yes only for a block that is live, and for just what
was written into its handle. Where the memory is a pool's, or virtual, its file descriptor comes with the answer. Only processes
of the same user are answered, and believed.

Linux finds such a socket in its own network namespace only. So the name tells the namespace, and a process in another one
(another container, say) does not ask: it opens plain memory with what the driver checks alone, and refuses memory of a pool.

The socket and its thread are made when the first handle is; the thread is a daemon that touches no device. A forked child has
neither: it has shared nothing.
"""

# Requests have one form, and the answering side keeps no state of them: a process that is killed leaves nothing here.
from __future__ import annotations

import atexit
import gc
import os
import secrets
import socket
import struct
import sys
import time
from contextlib import suppress
from functools import partial
from hashlib import blake2b
from pathlib import Path
from threading import Thread
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary, WeakSet, ref

from ...spi.errors import ClosedError, DevmemError, LayoutError
from ...toolkit.locks import Rank
from ...toolkit.threads import run_apart
from ..base.outer_lock import OuterLock

if TYPE_CHECKING:
    from ..base.device_handle import DeviceHandle
    from ..lifetime.allocation import Allocation
    from ..memory.direct import VirtualMemory

#: Whether the system has sockets whose names are not files, and tells whose process is at the other end.
CAN_ASK = sys.platform == "linux"
#: How the names of sockets begin; the number of the network namespace follows.
PREFIX = "devmem-"
KEY_BYTES, DIGEST_BYTES = 16, 32
GONE, LIVE, DIFFERS = b"\0", b"\1", b"\2"
#: Seconds that one side waits for the other.
PATIENCE = 30.0
#: Seconds for a request, which a peer sends in one piece: the next one waits behind it.
REQUEST = 1.0
_CREDENTIALS = struct.Struct("3i")
_NUMBER = struct.Struct("i")


class Descriptor(int):
    """A file descriptor that is closed with its last holder."""

    __slots__ = ()

    __del__ = property(partial(partial, os.close))


class _Shared:
    """A block that handles were made of."""

    def __init__(self, allocation: Allocation, key: bytes, digest: bytes, descriptors: list[Descriptor]) -> None:
        self.allocation = ref(allocation, lambda _: _shared.pop(key, None))
        self.key, self.digest, self.descriptors = key, digest, descriptors


_shared: dict[bytes, _Shared] = {}
_keys: WeakKeyDictionary[Allocation, _Shared] = WeakKeyDictionary()
_descriptors: WeakKeyDictionary[DeviceHandle, Descriptor] = WeakKeyDictionary()
#: Resources that have descriptors of their blocks.
_sources: WeakSet[VirtualMemory] = WeakSet()
#: Taken on threads of `run_apart` only.
_starting = OuterLock("start of sharing", Rank.DEVICE, "the first IPC handle, which another thread makes,")
_listener: socket.socket | None = None


def digest_of(*fields: object) -> bytes:
    """A few bytes for what a handle says of the driver's allocation."""
    return blake2b(repr(fields).encode(), digest_size=DIGEST_BYTES).digest()


def offer(allocation: Allocation, digest: bytes, descriptors: list[Descriptor]) -> tuple[str, bytes]:
    """Answer for a block as long as it lives, with its descriptor if there is one; returns where, and by which key.

    The same block has one key. What empties ``descriptors`` closes them.

    DevmemError where the system gives no socket, or no thread, to answer with.
    """
    if not CAN_ASK:
        return "", b""
    shared = _keys.get(allocation)
    if shared is None or shared.digest != digest:
        shared = _Shared(allocation, secrets.token_bytes(KEY_BYTES), digest, descriptors)
        _shared[shared.key] = shared
        _keys[allocation] = shared
    return _address(), shared.key


def pool_descriptor(handle: DeviceHandle) -> Descriptor:
    """The descriptor of a device's own pool, made once; the device is entered."""
    descriptor = _descriptors.get(handle)
    if descriptor is None:
        descriptor = _descriptors[handle] = Descriptor(handle.driver.pool_descriptor())
    return descriptor


def virtual_descriptor(driver: Any, source: VirtualMemory, base: int) -> list[Descriptor]:
    """The descriptor of a block of virtual memory, made once; in a list that is emptied when the block is freed."""
    _sources.add(source)
    held = source.exported.setdefault(base, [])
    if not held:
        held.append(Descriptor(driver.virtual_share(base)))
    return held


def is_own(owner: str, process: int) -> bool:
    """Whether this process made a handle. Processes of two containers may have the same number, and never one socket."""
    return (_listener is not None and owner == _address()) if owner else process == os.getpid()


def is_elsewhere(owner: str) -> bool:
    """Whether the socket is in another network namespace, from where it cannot be connected to."""
    network, here = owner.removeprefix(PREFIX).partition("-")[0], _network()
    return network.isdigit() and here not in ("", network)


def ask(owner: str, key: bytes, digest: bytes, process: int) -> Descriptor | None:
    """Ask the process that made a handle whether its memory is there; returns the pool's descriptor, if it is a pool's.

    A handle that other code made of the driver's own bytes (numba's) names no owner, and an owner in another network namespace
    cannot be asked: what the driver checks has to do for them.

    Raises
    ------
    ClosedError
        The memory was freed, or the process has ended, is another user's, or cannot be reached.
    LayoutError
        The handle says something else than was written into it.
    """
    if not CAN_ASK or not owner or is_elsewhere(owner):
        return None
    try:
        with socket.socket(socket.AF_UNIX) as connection:
            connection.settimeout(PATIENCE)
            connection.connect("\0" + owner)
            if not is_of_this_user(connection):
                raise PermissionError(1, "it belongs to another user")
            connection.sendall(key + digest)
            # So that the other side does not wait for the rest of a forged key that is too short.
            connection.shutdown(socket.SHUT_WR)
            answer, descriptor = receive_with_descriptor(connection, 1)
    except (OSError, ValueError) as error:
        raise ClosedError(
            f"the process {process} that shares this memory has ended, or cannot be reached ({error}): keep it running until "
            f"the handle is opened"
        ) from error
    if answer == DIFFERS:
        raise LayoutError(
            f"the process {process} shares this memory, but not as the handle says: it was not made by get_ipc_handle(), or was "
            f"damaged on its way"
        )
    if answer != LIVE:
        raise ClosedError(
            f"the process {process} has freed this memory, or never shared it: keep the array there until the handle is opened"
        )
    return descriptor


def receive_with_descriptor(connection: socket.socket, nbytes: int) -> tuple[bytes, Descriptor | None]:
    """Up to so many bytes, and the file descriptor that came with them."""
    # recvmsg, because recv_fds() of Python 3.11 ignores its flags, and the descriptor would be inheritable.
    data, parts, _, _ = connection.recvmsg(nbytes, socket.CMSG_LEN(_NUMBER.size), socket.MSG_CMSG_CLOEXEC)
    descriptors = [Descriptor(number) for _, _, part in parts for (number,) in _NUMBER.iter_unpack(part)]
    return data, descriptors[0] if descriptors else None


def descriptor_of(key: bytes) -> Descriptor | None:
    """Return the descriptor that goes with the answer for a shared block, if one does."""
    shared = _shared.get(key)
    return None if shared is None else next(iter(shared.descriptors), None)


def _address() -> str:
    """The name of this process's socket, which is made if there is none."""
    while (listener := _listener) is None:
        try:
            run_apart(_start)
        except (OSError, RuntimeError) as error:
            raise DevmemError(
                f"this process cannot answer for the memory that it shares: the system gives it no socket, or no thread, for it "
                f"({error}); close files and end threads, or raise the limits ('ulimit -n', 'ulimit -u')"
            ) from error
    return bytes(listener.getsockname()).decode()[1:]


def _network() -> str:
    """A number for this process's network namespace, on this machine; empty where it is not known."""
    try:
        machine = Path("/proc/sys/kernel/random/boot_id").read_text().strip().replace("-", "")
        return str(int(machine, 16) ^ Path("/proc/self/ns/net").stat().st_ino)
    except (OSError, ValueError):
        return ""


def _start() -> None:
    """Make the socket and its thread, on a thread where no interrupt comes between the two."""
    global _listener
    with _starting:
        if _listener is None:
            listener = socket.socket(socket.AF_UNIX)
            try:
                listener.bind(f"\0{PREFIX}{_network()}-{os.getpid()}-{secrets.token_hex(8)}")
                listener.listen(socket.SOMAXCONN)
                Thread(target=_serve, args=(listener,), name="devmem-sharing", daemon=True).start()
            except BaseException:
                listener.close()
                raise
            _listener = listener


def _serve(listener: socket.socket) -> None:
    while True:
        try:
            connection, _ = listener.accept()
        except OSError:
            if _listener is not listener:
                listener.close()
                return
            time.sleep(0.1)  # the process has no file descriptor left, perhaps
            continue
        with connection, suppress(OSError):
            connection.settimeout(REQUEST)
            if is_of_this_user(connection):
                _answer(connection)


def _answer(connection: socket.socket) -> None:
    request = b""
    while len(request) < KEY_BYTES + DIGEST_BYTES:
        part = connection.recv(KEY_BYTES + DIGEST_BYTES - len(request))
        if not part:
            return
        request += part
    shared = _shared.get(request[:KEY_BYTES])
    allocation = None if shared is None else shared.allocation()
    if (
        shared is None
        or allocation is None
        or allocation.freed
        or gc.is_finalized(allocation)
        or allocation.device_handle.dead
    ):
        connection.sendall(GONE)
    elif shared.digest != request[KEY_BYTES:]:
        connection.sendall(DIFFERS)
    else:
        socket.send_fds(connection, [LIVE], list(shared.descriptors))


def is_of_this_user(connection: socket.socket) -> bool:
    """Whether the process at the other end of a Unix socket is of this process's user."""
    found = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    return bool(_CREDENTIALS.unpack(found)[1] == os.geteuid())


def _end() -> None:
    """Stop answering."""
    global _listener
    listener, _listener = _listener, None
    if listener is not None:
        with suppress(OSError):
            listener.shutdown(socket.SHUT_RDWR)


def _forget() -> None:
    """Let go of the parent's socket and descriptors, in a forked child: the parent goes on answering."""
    global _listener
    listener, _listener = _listener, None
    if listener is not None:
        listener.close()
    _shared.clear()
    _keys.clear()
    _descriptors.clear()
    for source in _sources:
        source.exported.clear()


atexit.register(_end)
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget)

__all__ = [
    "CAN_ASK",
    "Descriptor",
    "ask",
    "descriptor_of",
    "digest_of",
    "is_elsewhere",
    "is_of_this_user",
    "is_own",
    "offer",
    "pool_descriptor",
    "receive_with_descriptor",
    "virtual_descriptor",
]
