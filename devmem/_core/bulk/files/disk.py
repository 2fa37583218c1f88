"""Files that are read and written at positions, and new files that appear whole or not at all."""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import partial
from io import FileIO
from itertools import count
from pathlib import Path
from typing import Any

import numpy.typing as npt

from ....spi.errors import LayoutError
from ....toolkit.locks import Rank, lock
from ...copy.staging.workers import CopyWorkers

#: Bytes that a file can have, and more than a system can be asked for.
MAX_BYTES = (1 << 63) - 1
#: What tells a file from another one, and from itself before it was written.
Version = tuple[int, ...]

_numbers = count()


class OpenFile:
    """An open file, whose errors name the path that the user gave."""

    def __init__(self, raw: FileIO, path: str) -> None:
        self.raw = raw
        self.path = path
        self._seeking = lock("position in a file", Rank.LEAF)

    def size(self) -> int:
        """Bytes of the file; of what is no regular file nothing is known, and it counts as large as can be."""
        found = os.fstat(self.raw.fileno())
        return found.st_size if stat.S_ISREG(found.st_mode) else MAX_BYTES

    def link(self) -> str | None:
        """A path of the file that is open, also where another has taken its place; None where the system has no such path."""
        found = f"/dev/fd/{self.raw.fileno()}"
        return found if Path(found).exists() else None

    def check_holds(self, start: int, nbytes: int) -> None:
        """Raise LayoutError unless so many bytes can be behind an offset."""
        size = self.size()
        if size < start + nbytes:
            raise self.too_short(start, max(size - start, 0), nbytes)

    def read(self, host: npt.NDArray[Any], offset: int, workers: CopyWorkers) -> None:
        """Fill contiguous host memory from an offset on; on several threads, where it is large."""
        view = host.data
        reads = [partial(self._read, view[low:high], offset + low) for low, high in workers.split(host.nbytes)]
        with naming(self.path):
            if len(reads) > 1:
                workers.run([*reads])
            else:
                self._read(view, offset)

    def read_whole(self, host: npt.NDArray[Any], offset: int) -> None:
        """Fill contiguous host memory from an offset on, on this thread."""
        with naming(self.path):
            self._read(host.data, offset)

    def write(self, data: npt.NDArray[Any] | bytes, offset: int) -> None:
        """Write contiguous host memory to an offset. On one thread: the system lets only one at a time write to a file."""
        view = memoryview(data) if isinstance(data, bytes) else data.data
        with naming(self.path):
            while view.nbytes:
                done = self._write_some(view, offset)
                view, offset = view[done:], offset + done

    def reserve(self, nbytes: int) -> None:
        """Make a new file so long, and have room for it on the disk: writing to a mapped file cannot report a full disk."""
        with naming(self.path):
            if hasattr(os, "posix_fallocate"):
                os.posix_fallocate(self.raw.fileno(), 0, nbytes)
            else:
                os.truncate(self.raw.fileno(), nbytes)

    def version(self) -> Version:
        """Return the version of the open file: a file that replaced it, or that was written since, has another one."""
        found = os.fstat(self.raw.fileno())
        written = (found.st_size, found.st_mtime_ns) if stat.S_ISREG(found.st_mode) else ()
        return found.st_dev, found.st_ino, *written

    def check_version(self, version: Version) -> None:
        """Raise LayoutError unless this is the file that had the version."""
        if self.version() != version:
            raise LayoutError(
                f"{self.path}: the file was replaced or written after its header was read, so its arrays may lie elsewhere: "
                f"load it again"
            )

    def too_short(self, start: int, found: int, expected: int) -> LayoutError:
        """The error of a file that ends too early."""
        return LayoutError(
            f"{self.path}: {found} bytes found from offset {start} on, {expected} expected: the file is cut short, or its "
            f"elements have another dtype or shape"
        )

    # -- below ---------------------------------------------------------------------------------------------------------

    def _read(self, view: memoryview, offset: int) -> None:
        done = 0
        while done < view.nbytes:
            more = self._read_some(view[done:], offset + done)
            if not more:
                raise self.too_short(offset, done, view.nbytes)
            done += more

    def _read_some(self, view: memoryview, offset: int) -> int:
        if hasattr(os, "preadv"):
            return os.preadv(self.raw.fileno(), [view], offset)
        with self._seeking:
            self.raw.seek(offset)
            return self.raw.readinto(view) or 0

    def _write_some(self, view: memoryview, offset: int) -> int:
        if hasattr(os, "pwrite"):
            return os.pwrite(self.raw.fileno(), view, offset)
        with self._seeking:
            self.raw.seek(offset)
            return self.raw.write(view) or 0


@contextmanager
def open_file(path: str) -> Iterator[OpenFile]:
    """A file to be read."""
    with naming(path), FileIO(path) as raw:
        if not raw.seekable():
            what = "no file that can be read from any place, but a pipe, say: write what comes to one"
            raise OSError(errno.ESPIPE, what, path)
        yield OpenFile(raw, path)


@contextmanager
def replacing(path: str) -> Iterator[tuple[OpenFile, Path]]:
    """A new temporary file and its path: it replaces the file of this path at the end of the block, and is gone after an error.

    Links are followed, and permissions are kept. A reader sees the old file or the new one, never a part.
    """
    with naming(path):
        target = Path(path).resolve()
        mode = _mode_of(target, path)
        temporary = target.with_name(f".devmem-{os.getpid()}-{next(_numbers)}.tmp")
        raw = FileIO(temporary, "xb+")
        try:
            with raw:
                if mode is not None:
                    temporary.chmod(mode | stat.S_IWUSR)  # it may be opened again, to be written
                yield OpenFile(raw, path), temporary
            if mode is not None:
                temporary.chmod(mode)
            temporary.replace(target)
        except BaseException:
            with suppress(OSError):
                temporary.unlink()
            raise


@contextmanager
def naming(path: str) -> Iterator[None]:
    """Let errors of the system name this path."""
    try:
        yield
    except OSError as error:
        if error.errno is None or error.filename == path:
            raise
        raise OSError(error.errno, error.strerror, path) from error


def _mode_of(target: Path, path: str) -> int | None:
    """The permissions of the file that is there already, if one is."""
    try:
        found = target.stat().st_mode
    except FileNotFoundError:
        return None
    if stat.S_ISDIR(found):
        raise IsADirectoryError(errno.EISDIR, "a file cannot replace a folder", path)
    if not stat.S_ISREG(found):
        raise OSError(errno.EINVAL, "no regular file, which cannot be replaced: save to a new one", path)
    return stat.S_IMODE(found)
