"""Archives of .npy files, as ``numpy.savez`` makes them."""

from __future__ import annotations

import zipfile
from collections.abc import Mapping
from io import BufferedReader
from typing import Any

import numpy as np
import numpy.typing as npt
from numpy.lib import format

from ....spi.errors import LayoutError
from ....spi.sizes import exact_size
from ...base.layout import check_size
from . import npy
from .disk import OpenFile
from .npy import Elements

#: Where a member's own header says how long its name and its extra field are, and where the header ends.
_LENGTHS, _HEADER = 26, 30
#: No byte of what is deflated stands for more bytes.
DEFLATED = 1032


def read_index(file: OpenFile, reader: BufferedReader) -> dict[str, Elements | None]:
    """Return the place of each array's elements in an archive, by the array's name; None for a compressed array."""
    with _errors(file.path), zipfile.ZipFile(reader) as archive:
        members = {
            info.filename.removesuffix(".npy"): info
            for info in archive.infolist()
            if info.filename.endswith(".npy") and not info.flag_bits & 1
        }
    found: dict[str, Elements | None] = {}
    for name, info in members.items():
        found[name] = None
        if info.compress_type == zipfile.ZIP_STORED:
            reader.seek(info.header_offset + _LENGTHS)
            lengths = reader.read(4)
            reader.seek(
                info.header_offset
                + _HEADER
                + int.from_bytes(lengths[:2], "little")
                + int.from_bytes(lengths[2:], "little")
            )
            found[name] = npy.read_header(reader, f"{file.path}, {name}.npy")
    return found


def read_compressed(path: str, name: str) -> npt.NDArray[Any]:
    """An array of an archive that is compressed, in host memory.

    LayoutError if its header asks for more than the archive can hold, before memory is allocated.
    """
    with _errors(path), zipfile.ZipFile(path) as archive, archive.open(f"{name}.npy") as member:
        elements = npy.read_header(member, f"{path}, {name}.npy")
        nbytes, info = check_size(elements.shape, elements.dtype.itemsize), archive.getinfo(f"{name}.npy")
        held = info.file_size
        if info.compress_type == zipfile.ZIP_DEFLATED:
            held = min(held, DEFLATED * info.compress_size)
        if nbytes > held - elements.start:
            raise LayoutError(
                f"{path}, {name}.npy: its header asks for {exact_size(nbytes)}, and the archive has no more than "
                f"{exact_size(max(held - elements.start, 0))} for it"
            )
        member.seek(0)
        try:
            return format.read_array(member, allow_pickle=False)
        except ValueError as error:
            raise LayoutError(f"{path}, {name}.npy: {error}") from None


def write(file: OpenFile, arrays: Mapping[str, Any]) -> None:
    """Write device arrays to an archive, one after another, uncompressed."""
    with zipfile.ZipFile(file.raw, "w") as archive:
        for name, array in arrays.items():
            with archive.open(f"{name}.npy", "w", force_zip64=True) as member:
                format.write_array(member, np.asanyarray(array.copy_to_host()), allow_pickle=False)


class _errors:
    """LayoutError for what is wrong with an archive."""

    def __init__(self, path: str) -> None:
        self._path = path

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: object, error: BaseException | None, at: object) -> None:
        if isinstance(error, (zipfile.BadZipFile, zipfile.LargeZipFile, NotImplementedError, EOFError, KeyError)):
            raise LayoutError(f"{self._path}: this .npz archive cannot be read: {error}") from error
