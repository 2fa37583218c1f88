"""The files of a store: private, whole or absent, and gone with the store.

Each store has a folder of its own, which only its user can read, and in it one file for each key that was moved to disk: arrays
first, each from an address that disks and devices like, then what else was in the value, pickled. A file gets its name when it is
complete. Which files there are, and what is in them, only the store knows; a file that a process left behind is never read.

A folder is removed when its store is closed or dropped, at the end of the interpreter, and, after a process that was killed, by
the next store in the same place: each store keeps a lock on its folder, which the system takes away when the process ends.
"""

from __future__ import annotations

import os
import pickle
import shutil
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from io import FileIO
from itertools import count
from pathlib import Path
from typing import Any
from weakref import finalize

import numpy as np
import numpy.typing as npt

from ....spi.errors import LayoutError
from ..files.disk import OpenFile, replacing

PREFIX, LOCK = "devmem-spill-", "lock"
#: Where the contents of a file begin at, each.
ALIGNMENT = 4096

HostArray = npt.NDArray[Any]


class StoredFile:
    """A complete file: where its arrays are, and the rest of the value.

    Attributes
    ----------
    path : str
    offsets : list of int
        Where each array begins.
    nbytes : int
        Of the file.
    """

    __slots__ = ("_buffers", "_pickled", "nbytes", "offsets", "path")

    def __init__(self, path: str) -> None:
        self.path = path
        self.offsets: list[int] = []
        self._pickled = (0, 0)
        self._buffers: list[tuple[int, int, bool]] = []
        self.nbytes = ALIGNMENT

    def value(self) -> Any:
        """Read and unpickle the value.

        Raises
        ------
        LayoutError
            The file was cut short.
        """
        with FileIO(self.path) as raw:
            buffers = [_read(raw, self.path, start, nbytes, written) for start, nbytes, written in self._buffers]
            return pickle.loads(_read(raw, self.path, *self._pickled, False), buffers=buffers)

    def remove(self) -> None:
        """Delete the file."""
        with suppress(OSError):
            Path(self.path).unlink()

    def write(self, arrays: Sequence[HostArray], pickled: bytes | None, buffers: Sequence[pickle.PickleBuffer]) -> None:
        """Write the file: arrays that are contiguous in their own order of axes, and the rest."""
        with replacing(self.path) as (file, temporary):
            temporary.chmod(0o600)
            self.offsets = [self._append(file, array.ravel("K").view(np.uint8).data) for array in arrays]
            for buffer in buffers:
                data = buffer.raw()
                self._buffers.append((self._append(file, data), data.nbytes, not data.readonly))
            if pickled is not None:
                self._pickled = self._append(file, memoryview(pickled)), len(pickled)

    def _append(self, file: OpenFile, data: memoryview) -> int:
        start = self.nbytes
        if data.nbytes:
            file.write(np.frombuffer(data, np.uint8), start)
        self.nbytes = -(-(start + data.nbytes) // ALIGNMENT) * ALIGNMENT
        return start


class Folder:
    """The folder of one store, inside the one that the user names."""

    def __init__(self, parent: str) -> None:
        Path(parent).mkdir(parents=True, exist_ok=True)
        with _locked(parent):
            _remove_left_behind(parent)
            self.path = tempfile.mkdtemp(prefix=PREFIX, dir=parent)
            lock = os.open(Path(self.path, LOCK), os.O_RDWR | os.O_CREAT, 0o600)
            _try_lock(lock)
        self._numbers = count()
        self.remove = finalize(self, _remove, self.path, lock, os.getpid())

    def new_file(self) -> StoredFile:
        """A file that is to be written."""
        return StoredFile(str(Path(self.path, str(next(self._numbers)))))


def _read(raw: FileIO, path: str, start: int, nbytes: int, writable: bool) -> memoryview:
    data = np.empty(nbytes, np.uint8).data
    raw.seek(start)
    done = 0
    while done < nbytes:
        more = raw.readinto(data[done:])
        if not more:
            raise LayoutError(f"{path}: {done} bytes found from offset {start} on, {nbytes} expected: it was cut short")
        done += more
    return data if writable else data.toreadonly()


def _remove(path: str, lock: int, process: int) -> None:
    if os.getpid() == process:  # the child of a fork has a copy of the store: the files are the parent's
        shutil.rmtree(path, ignore_errors=True)
    with suppress(OSError):
        os.close(lock)


def _remove_left_behind(parent: str) -> None:
    """Remove the folders of processes that have ended."""
    for path in Path(parent).glob(f"{PREFIX}*"):
        with suppress(OSError):  # of another user, say; or it is being removed
            lock = os.open(path / LOCK, os.O_RDWR)
            try:
                if _try_lock(lock):
                    shutil.rmtree(path, ignore_errors=True)
            finally:
                os.close(lock)


@contextmanager
def _locked(parent: str) -> Iterator[None]:
    """Let one process at a time make or remove folders here."""
    try:
        import fcntl
    except ImportError:
        yield
        return
    here = os.open(parent, os.O_RDONLY)
    try:
        with suppress(OSError):  # a file system without locks
            fcntl.flock(here, fcntl.LOCK_EX)
        yield
    finally:
        os.close(here)


def _try_lock(fd: int) -> bool:
    """Lock a file until this process ends; False where that cannot be, or another process has it."""
    try:
        import fcntl

        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except (ImportError, OSError):
        return False
    return True
