"""Declarations of ``dlpack.h`` of DLPack 1.x: managed tensors, and element types with NumPy's dtypes for them."""

from __future__ import annotations

import ctypes
from functools import lru_cache
from typing import Any

import numpy as np

_TENSOR = [
    ("data", ctypes.c_size_t),
    ("device_type", ctypes.c_int32),
    ("device_id", ctypes.c_int32),
    ("ndim", ctypes.c_int32),
    ("code", ctypes.c_uint8),
    ("bits", ctypes.c_uint8),
    ("lanes", ctypes.c_uint16),
    ("shape", ctypes.c_size_t),
    ("strides", ctypes.c_size_t),
    ("byte_offset", ctypes.c_uint64),
]


class DLManagedTensor(ctypes.Structure):
    """The tensor of an unversioned capsule, from before DLPack 1.0."""

    _fields_ = [*_TENSOR, ("manager_ctx", ctypes.c_size_t), ("deleter", ctypes.c_size_t)]
    flags = 0


class DLManagedTensorVersioned(ctypes.Structure):
    """The tensor of a versioned capsule."""

    _fields_ = [
        ("major", ctypes.c_uint32),
        ("minor", ctypes.c_uint32),
        ("manager_ctx", ctypes.c_size_t),
        ("deleter", ctypes.c_size_t),
        ("flags", ctypes.c_uint64),
        *_TENSOR,
    ]


_INT, _UINT, _FLOAT, _BFLOAT, _COMPLEX, _BOOL = 0, 1, 2, 4, 5, 6
_CODES = {"i": _INT, "u": _UINT, "f": _FLOAT, "c": _COMPLEX, "b": _BOOL}
KINDS = {code: kind for kind, code in _CODES.items()}
_WIDTHS = {_INT: (8, 16, 32, 64), _UINT: (8, 16, 32, 64), _FLOAT: (16, 32, 64), _COMPLEX: (64, 128), _BOOL: (8,)}
#: NumPy's own types, with DLPack's (code, bits).
NAMED_TYPES = {
    np.dtype(f"{KINDS[code]}{bits // 8}"): (code, bits) for code, widths in _WIDTHS.items() for bits in widths
}
#: Types that NumPy has only where ml_dtypes is installed, by (code, bits).
_EXTENSIONS = {
    (_BFLOAT, 16): "bfloat16",
    (7, 8): "float8_e3m4",
    (8, 8): "float8_e4m3",
    (9, 8): "float8_e4m3b11fnuz",
    (10, 8): "float8_e4m3fn",
    (11, 8): "float8_e4m3fnuz",
    (12, 8): "float8_e5m2",
    (13, 8): "float8_e5m2fnuz",
    (14, 8): "float8_e8m0fnu",
}
_EXTENSION_CODES = {name: pair for pair, name in _EXTENSIONS.items()}


@lru_cache(maxsize=256)
def dtype_code(dtype: np.dtype[Any]) -> tuple[int, int]:
    """DLPack's (code, bits) of a dtype.

    Raises
    ------
    BufferError
        DLPack has none: records, dates, text, long doubles, non-native byte order.
    """
    if dtype.isnative:
        # Types that other libraries have registered may say that they are of NumPy's kinds.
        code = _CODES.get(dtype.kind) if dtype.isbuiltin == 1 else None
        if code is not None and 8 * dtype.itemsize in _WIDTHS[code]:
            return code, 8 * dtype.itemsize
        if dtype.name in _EXTENSION_CODES and dtype.fields is None and dtype.subdtype is None:
            return _EXTENSION_CODES[dtype.name]
    raise BufferError(
        f"DLPack has no type for dtype {dtype}: exchange it as bytes, array.view('u1'), or copy it through the host"
    )


def has_type(dtype: np.dtype[Any]) -> bool:
    """Whether DLPack has a type for the elements of a dtype."""
    try:
        dtype_code(dtype)
    except BufferError:
        return False
    return True


def dtype_of(code: int, bits: int, lanes: int) -> np.dtype[Any]:
    """The dtype of DLPack's type.

    Raises
    ------
    BufferError
        NumPy has none: vectors, parts of bytes, unknown type codes.
    """
    if lanes != 1:
        raise BufferError(f"the capsule holds vectors of {lanes} lanes as elements: give an array of single elements")
    if (code, bits) in _EXTENSIONS:
        return _extension(_EXTENSIONS[code, bits])
    if bits not in _WIDTHS.get(code, ()):
        raise BufferError(
            f"the capsule holds elements of DLPack type code {code} and {bits} bits, which NumPy has no dtype for"
        )
    return np.dtype(f"{KINDS[code]}{bits // 8}")


def _extension(name: str) -> np.dtype[Any]:
    try:
        import ml_dtypes
    except ImportError:
        raise BufferError(f"the capsule holds elements of type {name}: pip install ml_dtypes") from None
    found = getattr(ml_dtypes, name, None)
    if found is None:
        raise BufferError(
            f"the capsule holds elements of type {name}, which this ml_dtypes has not got: update ml_dtypes"
        )
    dtype: np.dtype[Any] = np.dtype(found)
    return dtype
