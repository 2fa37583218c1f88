"""Files read and written at positions, and new ones that are there whole or not at all."""

from __future__ import annotations

import errno
import os
import stat
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import partial
from io import FileIO
from itertools import count
from pathlib import Path
from typing import Any

import numpy.typing as npt

from ....spi.errors import LayoutError
from ...copy.staging.workers import CopyWorkers

#: Bytes that a file can have, and more than a system can be asked for.
MOST = (1 << 63) - 1

_numbers = count()


class Disk:
    """A file, open, whose errors name it."""

    def __init__(self, raw: FileIO, path: str) -> None:
        self.raw = raw
        #: As the user gave it.
        self.path = path
        self._seeking = threading.Lock()

    def size(self) -> int:
        """Bytes of the file; as many as a file can have, of what is no regular file, as nothing is known of that."""
        found = os.fstat(self.raw.fileno())
        return found.st_size if stat.S_ISREG(found.st_mode) else MOST

    def check_holds(self, start: int, nbytes: int) -> None:
        """Raise LayoutError unless so many bytes can be behind an offset."""
        size = self.size()
        if size < start + nbytes:
            raise self._too_short(start, max(size - start, 0), nbytes)

    def read(self, room: npt.NDArray[Any], offset: int, workers: CopyWorkers) -> None:
        """Fill contiguous host memory from an offset on; several threads at once, where it is large."""
        nbytes, view = room.nbytes, room.data
        reads = [partial(self._read, view[low:high], offset + low) for low, high in workers.split(nbytes)]
        with telling(self.path):
            if len(reads) > 1:
                workers.run([*reads])
            else:
                self._read(view, offset)

    def write(self, data: npt.NDArray[Any] | bytes, offset: int) -> None:
        """Write contiguous host memory to an offset. By one thread: the system lets only one at a time write to a file."""
        view = memoryview(data) if isinstance(data, bytes) else data.data
        with telling(self.path):
            while view.nbytes:
                done = self._write_some(view, offset)
                view, offset = view[done:], offset + done

    def reserve(self, nbytes: int) -> None:
        """Make a new file so long, and have room for it on the disk: where it is mapped, nobody could be told that it is full."""
        with telling(self.path):
            if hasattr(os, "posix_fallocate"):
                os.posix_fallocate(self.raw.fileno(), 0, nbytes)
            else:
                os.truncate(self.raw.fileno(), nbytes)

    # -- below ---------------------------------------------------------------------------------------------------------

    def _read(self, view: memoryview, offset: int) -> None:
        done = 0
        while done < view.nbytes:
            more = self._read_some(view[done:], offset + done)
            if not more:
                raise self._too_short(offset, done, view.nbytes)
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

    def _too_short(self, start: int, found: int, expected: int) -> LayoutError:
        return LayoutError(
            f"{self.path}: {found} bytes found from offset {start} on, {expected} expected: the file is cut short, or its "
            f"elements are others than was said"
        )


@contextmanager
def open_disk(path: str) -> Iterator[Disk]:
    """A file to be read."""
    with telling(path), FileIO(path) as raw:
        if not raw.seekable():
            raise OSError(
                errno.ESPIPE, "no file that can be read from any place, but a pipe, say: write what comes to one", path
            )
        yield Disk(raw, path)


@contextmanager
def replacing(path: str) -> Iterator[tuple[Disk, Path]]:
    """A new file and where it is meanwhile: beside the one that it takes the place of at the end of the block, or not at all.

    Links are followed, and what was there lends its permissions. A reader sees the old file or the new one, never a part.
    """
    with telling(path):
        target = Path(path).resolve()
        mode = _mode_of(target, path)
        beside = target.with_name(f".devmem-{os.getpid()}-{next(_numbers)}.tmp")
        raw = FileIO(beside, "xb+")
        try:
            with raw:
                if mode is not None:
                    beside.chmod(mode)
                yield Disk(raw, path), beside
            beside.replace(target)
        except BaseException:
            with suppress(OSError):
                beside.unlink()
            raise


@contextmanager
def telling(path: str) -> Iterator[None]:
    """Errors of the system name the user's file, whatever they happened to."""
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
        raise IsADirectoryError(errno.EISDIR, "a file cannot take the place of a folder", path)
    if not stat.S_ISREG(found):
        raise OSError(errno.EINVAL, "no regular file, whose place another could take: save to a new one", path)
    return stat.S_IMODE(found)
