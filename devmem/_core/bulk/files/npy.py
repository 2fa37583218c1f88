"""The header of a .npy file."""

from __future__ import annotations

import io
import re
import reprlib
import struct
from typing import IO, Any, NamedTuple

import numpy as np
from numpy.lib import format

from ....spi.errors import LayoutError
from ...base.arguments import integers_of
from ...base.layout import Shape, check_size, opaque

MAGIC = b"\x93NUMPY"
#: The most bytes that a header of the third version may have, as NumPy has it for the others: it is read as a Python literal.
MAX_HEADER = 10_000
_TORCH = "a PyTorch file: from_dlpack() takes the tensors of torch.load(path, map_location='cpu'), load() a .safetensors file"
#: What other files begin with, and what they are: a zip archive's first entry follows at once, with its name.
_OTHERS = {
    rb"PAR1": "a Parquet file: read it with pyarrow, see docs/how-to/load-data.md",
    rb"ARROW1": "an Arrow file: read it with pyarrow, see docs/how-to/load-data.md",
    rb"\x89HDF\r\n": "an HDF5 file: read it with h5py, to_device(h5py.File(path)[name][...])",
    rb"PK.{28,300}/data\.pkl": _TORCH,
    rb"\x80\x02\x8a\nl\xfc": _TORCH,  # before version 1.6: a pickled number
    rb"PK": "a zip archive, as numpy.savez makes them: give it a name that ends in .npz",
}


class Elements(NamedTuple):
    """Elements in a file: their dtype and shape, whether they are in Fortran order, and the offset of the first."""

    dtype: np.dtype[Any]
    shape: Shape
    fortran: bool
    start: int


def read_header(file: IO[bytes], path: str) -> Elements:
    """Read the header of a .npy file of any version, from where the file stands.

    Raises
    ------
    LayoutError
        It is no .npy file, its header is broken, or its elements are Python objects.
    """
    at = file.tell()
    begin = file.read(512)
    if not begin:
        raise LayoutError(f"{path}: nothing is there{f' from offset {at} on' if at else ', the file is empty'}")
    if not begin.startswith(MAGIC):
        found = next((what for pattern, what in _OTHERS.items() if re.match(pattern, begin, re.DOTALL)), None)
        other = f"no .npy file (it begins with {begin[: len(MAGIC)]!r}): of a raw file say dtype= and shape="
        raise LayoutError(f"{path}: {found or other}")
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
        lengths = integers_of(shape, "a shape is made of integers")
        if dtype.subdtype is not None or any(length < 0 for length in lengths):
            raise ValueError(f"no array has the dtype {dtype} and the shape {lengths}")
        check_size(lengths, dtype.itemsize)
        elements = Elements(dtype, lengths, bool(fortran), file.tell())
    except OSError:
        raise
    except Exception as error:  # the header is Python text, and its readers raise all kinds of errors for broken text
        raise LayoutError(f"{path}: the header of this .npy file cannot be read: {error}") from error
    if dtype.hasobject:
        raise LayoutError(f"{path}: its dtype {dtype} holds Python objects, which mean nothing on a device")
    return elements


def make_header(dtype: np.dtype[Any], shape: Shape, fortran: bool) -> bytes:
    """The header of a file, of the lowest version that can hold it: what ``numpy.save`` writes."""
    try:
        descr = format.dtype_to_descr(opaque(dtype))
    except ValueError as error:
        raise LayoutError(
            f"a .npy file cannot say the dtype {dtype}: {error}; save its bytes, array.view('V{dtype.itemsize}')"
        ) from None
    facts: dict[str, object] = {"descr": descr, "fortran_order": fortran, "shape": shape}
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


def _read_version_3(file: IO[bytes]) -> tuple[Shape, bool, np.dtype[Any]]:
    import ast  # only for files whose fields have names beyond Latin letters

    (length,) = struct.unpack("<I", file.read(4))
    if length > MAX_HEADER:
        raise ValueError(f"it has {length} bytes, more than {MAX_HEADER}")
    facts = ast.literal_eval(file.read(length).decode("utf-8"))
    if not isinstance(facts, dict) or facts.keys() != {"descr", "fortran_order", "shape"}:
        raise ValueError(f"it says {reprlib.repr(facts)}, not descr, fortran_order and shape")
    if not isinstance(facts["shape"], tuple) or not isinstance(facts["fortran_order"], bool):
        raise ValueError(f"it says {reprlib.repr(facts)}, where the shape is a tuple and fortran_order True or False")
    return facts["shape"], facts["fortran_order"], format.descr_to_dtype(facts["descr"])


def _make_version_3(facts: dict[str, object]) -> bytes:
    text = repr(facts).encode("utf-8")
    before = len(MAGIC) + 2 + 4
    padding = -(before + len(text) + 1) % format.ARRAY_ALIGN
    return MAGIC + bytes((3, 0)) + struct.pack("<I", len(text) + padding + 1) + text + b" " * padding + b"\n"
