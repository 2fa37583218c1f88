"""The header of a .npy file."""

from __future__ import annotations

import io
import operator
import struct
from typing import Any, BinaryIO, NamedTuple

import numpy as np
from numpy.lib import format

from ....spi.errors import LayoutError
from ...base.layout import Shape

MAGIC = b"\x93NUMPY"
#: The most bytes that a header of the third version may have, as NumPy has it for the others: it is read as a Python literal.
MAX_HEADER = 10_000


class Elements(NamedTuple):
    """Elements in a file: their dtype and shape, whether they are in Fortran order, and the offset of the first."""

    dtype: np.dtype[Any]
    shape: Shape
    fortran: bool
    start: int


def read_header(file: BinaryIO, path: str) -> Elements:
    """Read the header of a .npy file of any version, from where the file stands.

    Raises
    ------
    LayoutError
        It is no .npy file, its header is broken, or its elements are Python objects.
    """
    at = file.tell()
    begin = file.read(len(MAGIC))
    if not begin:
        raise LayoutError(f"{path}: nothing is there{f' from offset {at} on' if at else ', the file is empty'}")
    if begin != MAGIC:
        raise LayoutError(
            f"{path}: a zip archive, as numpy.savez makes them: take the arrays out with numpy.load() first"
            if begin.startswith(b"PK")
            else f"{path}: no .npy file (it begins with {begin!r}): of a raw file say dtype= and shape="
        )
    file.seek(at)
    try:
        version = format.read_magic(file)
        if version == (1, 0):
            shape, fortran, dtype = format.read_array_header_1_0(file)
        elif version == (2, 0):
            shape, fortran, dtype = format.read_array_header_2_0(file)
        elif version == (3, 0):
            shape, fortran, dtype = _read_version_3(file)
        else:
            raise ValueError(f"version {version[0]}.{version[1]} is not known, only 1.0 to 3.0")
        if dtype.subdtype is not None or any(length < 0 for length in shape):
            raise ValueError(f"no array has the dtype {dtype} and the shape {shape}")
        elements = Elements(dtype, tuple(map(operator.index, shape)), bool(fortran), file.tell())
    except OSError:
        raise
    except Exception as error:  # the header is Python text, and its readers raise all kinds of errors for broken text
        raise LayoutError(f"{path}: the header of this .npy file cannot be read: {error}") from error
    if dtype.hasobject:
        raise LayoutError(f"{path}: its dtype {dtype} holds Python objects, which mean nothing on a device")
    return elements


def make_header(dtype: np.dtype[Any], shape: Shape, fortran: bool) -> bytes:
    """The header of a file, of the lowest version that can hold it: what ``numpy.save`` writes."""
    facts: dict[str, object] = {"descr": format.dtype_to_descr(dtype), "fortran_order": fortran, "shape": shape}
    file = io.BytesIO()
    try:
        format.write_array_header_1_0(file, facts)
    except UnicodeEncodeError:  # names of fields
        return _make_version_3(facts)
    except ValueError:  # too long
        file = io.BytesIO()
        format.write_array_header_2_0(file, facts)
    return file.getvalue()


# -- the third version, for which NumPy has no public functions ----------------------------------------------------------


def _read_version_3(file: BinaryIO) -> tuple[Shape, bool, np.dtype[Any]]:
    import ast  # only for files whose fields have names beyond Latin letters

    (length,) = struct.unpack("<I", file.read(4))
    if length > MAX_HEADER:
        raise ValueError(f"it has {length} bytes, more than {MAX_HEADER}")
    facts = ast.literal_eval(file.read(length).decode("utf-8"))
    return facts["shape"], facts["fortran_order"], format.descr_to_dtype(facts["descr"])


def _make_version_3(facts: dict[str, object]) -> bytes:
    text = repr(facts).encode("utf-8")
    before = len(MAGIC) + 2 + 4
    padding = -(before + len(text) + 1) % format.ARRAY_ALIGN
    return MAGIC + bytes((3, 0)) + struct.pack("<I", len(text) + padding + 1) + text + b" " * padding + b"\n"
