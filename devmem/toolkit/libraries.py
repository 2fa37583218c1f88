"""Finding a vendor's shared library, so that a process never gets a second copy of it.

A vendor's library keeps its table of addresses to itself: memory of one copy is unknown to another copy, which may then touch
device memory with the CPU. So a library that is in the process already, because PyTorch or CuPy brought it, is the one to use.
Else the first candidate file that exists is loaded, and at last the loader's own search path is tried.
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from .mappings import mappings


class LibraryMissing(LookupError):
    """There is no such library, or it cannot be loaded; the text is a whole sentence."""


@dataclass(frozen=True)
class Library:
    """A loaded library: its file, how it was found, and the loader's handle."""

    path: str
    how: str
    handle: ctypes.CDLL

    def exports(self, name: str) -> bool:
        """Whether the library has a function."""
        return hasattr(self.handle, name)


def find(
    name: str, candidates: Iterable[tuple[str, str]], loader_names: Sequence[str], searched: dict[str, None]
) -> Library | None:
    """The library in the process whose file name begins with ``name``, else the first candidate that exists, else the loader's.

    ``candidates`` are paths, and how each was found; their folders are put into ``searched``, for a message. Raises
    `LibraryMissing` where the file that was found cannot be loaded.
    """
    for path in mapped(name):
        return _load(path, "loaded already in this process")
    for path, how in candidates:
        searched[str(Path(path).parent)] = None
        if Path(path).exists():
            return _load(path, how)
    for file in loader_names:
        try:
            handle = ctypes.CDLL(file)
        except OSError:
            continue
        # By its full path from here on, so that every program part that loads it gets the same file.
        return Library(next(mapped(name), file), "the loader's search path", handle)
    return None


def mapped(name: str) -> Iterator[str]:
    """The files in this process whose names begin with ``name``, each file once, in the order of their addresses."""
    seen = set()
    for fields in mappings():
        # Device and inode follow the permissions: one file may have several names.
        if len(fields) == 6 and fields[5].rpartition("/")[2].startswith(name) and (fields[3], fields[4]) not in seen:
            seen.add((fields[3], fields[4]))
            yield fields[5]


def _load(path: str, how: str) -> Library:
    try:
        return Library(path, how, ctypes.CDLL(path))
    except OSError as error:
        raise LibraryMissing(f"the library {path} ({how}) cannot be loaded: {' '.join(str(error).split())}") from None
