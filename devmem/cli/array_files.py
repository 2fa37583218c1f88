"""Arrays in files: ``.npy`` files and uncompressed members of ``.npz`` files are mapped, compressed members are read."""

from __future__ import annotations

import struct
import zipfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.lib import format as npy
from numpy.typing import NDArray

LOCAL_HEADER = struct.Struct("<26xHH")


class Unreadable(Exception):
    """A file, or a member of one, contains no array that can be moved; the message says why."""


@dataclass(frozen=True)
class Source:
    """A named array; ``load`` gives it and how it was loaded: ``mapped`` or ``read``."""

    name: str
    load: Callable[[], tuple[NDArray[Any], str]]


def sources(path: Path) -> Iterator[Source]:
    """The arrays of a file; its first bytes determine the format, not its name.

    Raises
    ------
    Unreadable
        The file is missing, or neither a .npy nor a .npz file.
    """
    try:
        with path.open("rb") as file:
            magic = file.read(6)
    except OSError as error:
        raise Unreadable(f"{path}: {error.strerror or error}") from error
    if magic == npy.MAGIC_PREFIX:
        yield Source(path.name, partial(_mapped_file, path))
    elif magic[:2] == b"PK":
        yield from _members(path)
    else:
        raise Unreadable(f"{path}: neither a .npy nor a .npz file")


def _mapped_file(path: Path) -> tuple[NDArray[Any], str]:
    try:
        # allow_pickle stays off even for the user's own files, as loading a pickle runs code.
        return np.load(path, mmap_mode="r", allow_pickle=False), "mapped"
    except (ValueError, OSError, EOFError) as error:
        raise Unreadable(f"{path}: {error}") from error


def _members(path: Path) -> Iterator[Source]:
    try:
        with zipfile.ZipFile(path) as archive:
            members = [member for member in archive.infolist() if member.filename.endswith(".npy")]
    except (zipfile.BadZipFile, OSError) as error:
        raise Unreadable(f"{path}: {error}") from error
    if not members:
        raise Unreadable(f"{path}: an archive without a single .npy member")
    for member in members:
        name = f"{path.name}:{member.filename.removesuffix('.npy')}"
        yield Source(name, partial(_member, path, member))


def _member(path: Path, member: zipfile.ZipInfo) -> tuple[NDArray[Any], str]:
    try:
        if member.compress_type == zipfile.ZIP_STORED and not member.flag_bits & 0x1:
            mapped = _mapped_member(path, member)
            if mapped is not None:
                return mapped, "mapped"
        with zipfile.ZipFile(path) as archive, archive.open(member) as file:
            return npy.read_array(file, allow_pickle=False), "read"
    # zlib.error derives from Exception alone; zipfile raises RuntimeError for a password, NotImplementedError for an
    # unknown compression method.
    except Exception as error:
        raise Unreadable(f"{path}: {member.filename}: {error}") from error


def _mapped_member(path: Path, member: zipfile.ZipInfo) -> NDArray[Any] | None:
    """Map the data of a member at its offset in the archive; ``None`` if numpy has no public reader for its header."""
    with path.open("rb") as file:
        # The local header's own lengths are needed: its extra field differs from the one in the directory.
        file.seek(member.header_offset)
        name_length, extra_length = LOCAL_HEADER.unpack(file.read(LOCAL_HEADER.size))
        start = member.header_offset + LOCAL_HEADER.size + name_length + extra_length
        file.seek(start)
        version = npy.read_magic(file)
        readers = {(1, 0): npy.read_array_header_1_0, (2, 0): npy.read_array_header_2_0}
        if version not in readers:
            return None
        shape, fortran, dtype = readers[version](file)
        offset = file.tell()
    if dtype.hasobject:
        raise ValueError(f"arrays of Python objects ({dtype}) cannot be moved")
    nbytes = dtype.itemsize * int(np.prod(shape, dtype=np.intp))
    if nbytes == 0:
        return np.ndarray(shape, dtype, order="F" if fortran else "C")  # numpy.empty makes "S1" of "S0"
    if offset + nbytes > start + member.file_size:
        raise ValueError("the member ends before its array does")
    return np.memmap(path, dtype, "r", offset, shape, order="F" if fortran else "C")
