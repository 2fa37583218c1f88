"""Device memory of another process: what a handle says, and what it is checked against before anything is mapped.

The memory of a device lies in a file that has no name. A handle tells which process has it open, under which number, which file
it is, and where in it the block is. Another process of the same user opens the file through that process. It maps nothing
unless that is the file, a file of a host device, and as long as the handle says. Pages are shared whole, with what else is in
them: a handle is to be given to processes that are trusted.
"""

from __future__ import annotations

import mmap
import os
import struct
from pathlib import Path

from ...spi.sizes import exact_size
from .arena import FILE_NAME, Arena, address_of, map_file
from .error_codes import host_error

_HANDLE = struct.Struct("<8sIiQQQQ16x")  # as long as those of CUDA and HIP
_MAGIC = b"devmem 1"


class SharedBlock:
    """A block of another process, at ``ptr`` here, which can be touched ``shift`` bytes further."""

    __slots__ = ("_maps", "nbytes", "ptr", "shift")

    def __init__(self, file: int, offset: int, nbytes: int, hidden: bool) -> None:
        before = offset % mmap.ALLOCATIONGRANULARITY
        self._maps = map_file(file, offset - before, nbytes + before, hidden)
        self.nbytes = nbytes
        self.ptr = address_of(self._maps[-1]) + before
        self.shift = address_of(self._maps[0]) + before - self.ptr

    def close(self) -> None:
        """Unmap it. No thread may be using it."""
        for each in self._maps:
            each.close()


def handle_of(arena: Arena, ptr: int) -> bytes:
    """Return what another process opens a live block with."""
    nbytes = arena.live.get(ptr)
    if nbytes is None:
        raise host_error("ipc_export", "INVALID_VALUE", f"{ptr:#x} is not the start of a live block of device memory")
    file = arena.mapping.file
    found = os.fstat(file)
    return _HANDLE.pack(_MAGIC, os.getpid(), file, found.st_dev, found.st_ino, ptr - arena.base, nbytes)


def open_handle(handle: bytes, hidden: bool) -> SharedBlock:
    """Map a block of another process; raise unless all that its handle says is so."""
    if len(handle) != _HANDLE.size or not handle.startswith(_MAGIC):
        raise host_error("ipc_open", "INVALID_HANDLE", f"{len(handle)} bytes that ipc_export has not made")
    _, process, number, device, inode, offset, nbytes = _HANDLE.unpack(handle)
    path = f"/proc/{process}/fd/{number}"
    try:
        # Asked first: opening another kind of file might wait.
        kind = str(Path(path).readlink())
        file = os.open(path, os.O_RDWR) if kind.startswith(f"/memfd:{FILE_NAME} ") else -1
    except OSError as error:
        why = f"process {process} has ended, has closed its device, or cannot be looked into ({error.strerror})"
        raise host_error("ipc_open", "INVALID_HANDLE", why) from error
    if file < 0:
        raise host_error("ipc_open", "INVALID_HANDLE", f"file {number} of process {process} is no device memory")
    try:
        found = os.fstat(file)
        if (found.st_dev, found.st_ino) != (device, inode):
            raise host_error(
                "ipc_open", "INVALID_HANDLE", f"process {process} has closed the device that it was made on"
            )
        if not 0 < nbytes <= found.st_size - offset or offset % 256:
            raise host_error("ipc_open", "INVALID_HANDLE", f"{exact_size(nbytes)} from {offset} on, of {found.st_size}")
        return SharedBlock(file, offset, nbytes, hidden)
    except (OSError, ValueError, OverflowError) as error:
        raise host_error("ipc_open", "OPERATING_SYSTEM", f"cannot map {exact_size(nbytes)}: {error}") from error
    finally:
        os.close(file)
