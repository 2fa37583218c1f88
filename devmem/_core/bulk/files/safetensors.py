"""The format of .safetensors files: eight bytes with the length of a JSON text, the text, and the arrays one behind the other.

https://huggingface.co/docs/safetensors: little-endian, in C order, each array at ``data_offsets`` behind the text.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Mapping
from io import BufferedReader
from pathlib import Path
from typing import Any

import numpy as np

from ....spi.errors import LayoutError
from ...base.arguments import integers_of
from ...base.layout import check_size
from .disk import OpenFile
from .npy import Elements

#: The most bytes that the text may have, as the format's own library has it.
MAX_TEXT = 100_000_000
DTYPES = {
    "BOOL": "?",
    "U8": "u1",
    "I8": "i1",
    "U16": "<u2",
    "I16": "<i2",
    "F16": "<f2",
    "U32": "<u4",
    "I32": "<i4",
    "F32": "<f4",
    "U64": "<u8",
    "I64": "<i8",
    "F64": "<f8",
    "C64": "<c8",
}
#: Types that NumPy does not have, by their names in ml_dtypes.
MORE_DTYPES = {
    "BF16": "bfloat16",
    "F8_E4M3": "float8_e4m3fn",
    "F8_E5M2": "float8_e5m2",
    "F8_E8M0": "float8_e8m0fnu",
}
_NAMES = {np.dtype(text): name for name, text in DTYPES.items()}
_METADATA = "__metadata__"


def read_index(file: OpenFile, reader: BufferedReader) -> tuple[dict[str, Elements], dict[str, str]]:
    """The arrays of a file by name, in the order in which they lie in it, and its metadata.

    Raises
    ------
    LayoutError
        It is no such file, or describes an impossible array; or a dtype needs a package that is missing.
    """
    size = file.size()
    begin = reader.read(8)
    (length,) = struct.unpack("<Q", begin) if len(begin) == 8 else (0,)
    start = 8 + length
    if not 2 <= length <= min(MAX_TEXT, size - 8):
        raise LayoutError(f"{file.path}: no .safetensors file, or cut short: its header has {length} of {size} bytes")
    try:
        header = _object(json.loads(reader.read(length)), "the header")
        metadata = _object(header.pop(_METADATA, {}), _METADATA)
        if not all(isinstance(text, str) for text in metadata.values()):
            raise ValueError(f"{_METADATA} holds what is no text")
        entries = {name: _elements(_object(entry, repr(name)), start, size) for name, entry in header.items()}
    except LayoutError as error:
        raise LayoutError(f"{file.path}: {error}") from None
    except Exception as error:  # the text may say anything
        raise LayoutError(f"{file.path}: the header of this .safetensors file cannot be read: {error}") from error
    return dict(sorted(entries.items(), key=lambda item: item[1].start)), metadata


def make_index(arrays: Mapping[str, Any], metadata: Mapping[str, str]) -> tuple[bytes, dict[str, int]]:
    """The header of a file for arrays, and the offset of each in the file; the largest elements come first, all aligned."""
    entries: dict[str, object] = {_METADATA: dict(metadata)} if metadata else {}
    offsets: dict[str, int] = {}
    end = 0
    for name in sorted(arrays, key=lambda name: (-arrays[name].dtype.itemsize, name)):
        array = arrays[name]
        offsets[name], end = end, end + array.nbytes
        entries[name] = {
            "dtype": _name_of(array.dtype, name),
            "shape": list(array.shape),
            "data_offsets": [offsets[name], end],
        }
    text = json.dumps(entries, separators=(",", ":"), ensure_ascii=False).encode()
    text += b" " * (-len(text) % 8)
    return struct.pack("<Q", len(text)) + text, {name: 8 + len(text) + at for name, at in offsets.items()}


def shards(path: str) -> dict[str, Path]:
    """The file of each array, of a model in several files, by its index (``model.safetensors.index.json``)."""
    try:
        weight_map = json.loads(Path(path).read_bytes())["weight_map"]
        found = {str(name): str(file) for name, file in weight_map.items()}
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise LayoutError(f"{path}: no index of .safetensors files, which has a weight_map: {error!r}") from error
    for file in found.values():
        if Path(file).name != file or file in ("", ".", ".."):
            raise LayoutError(f"{path}: it names {file!r}, which is no file beside it")
    return {name: Path(path).with_name(file) for name, file in found.items()}


def _object(found: object, what: str) -> dict[str, Any]:
    if isinstance(found, dict):
        return found
    raise ValueError(f"{what} is no object of JSON")


def _elements(entry: Mapping[str, object], start: int, size: int) -> Elements:
    dtype, shape = _dtype(entry["dtype"]), integers_of(entry["shape"], "a shape is made of integers")
    low, high = integers_of(entry["data_offsets"], "offsets are integers")
    if any(length < 0 for length in shape):
        raise ValueError(f"no array has the shape {shape}")
    nbytes = check_size(shape, dtype.itemsize)
    if not 0 <= low <= high <= size - start or high - low != nbytes:
        raise ValueError(f"data_offsets {[low, high]} in {size - start} bytes, for {nbytes} bytes of {dtype} {shape}")
    return Elements(dtype, shape, False, start + low)


def _dtype(name: object) -> np.dtype[Any]:
    if not isinstance(name, str):
        raise ValueError(f"the dtype {name!r} is no text")
    if name in DTYPES:
        return np.dtype(DTYPES[name])
    if name not in MORE_DTYPES:
        raise ValueError(f"the dtype {name!r} is not known")
    try:
        import ml_dtypes
    except ImportError:
        raise LayoutError(
            f"the dtype {name} needs the package ml_dtypes: pip install 'devmem-arrays[safetensors]'"
        ) from None
    found: np.dtype[Any] = np.dtype(getattr(ml_dtypes, MORE_DTYPES[name]))
    return found


def _name_of(dtype: np.dtype[Any], array: str) -> str:
    found = _NAMES.get(dtype) or next((name for name, text in MORE_DTYPES.items() if text == dtype.name), None)
    if found is None:
        known = ", ".join([*map(str, _NAMES), *MORE_DTYPES.values()])
        raise LayoutError(f"save(): .safetensors files have no dtype {dtype} ({array!r}), but {known}")
    return found
