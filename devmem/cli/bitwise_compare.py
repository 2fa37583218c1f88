"""Compare two arrays bit for bit; ``==`` cannot tell NaN payloads or the sign of zero apart."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

#: Bytes compared at a time: mapped files are not read into memory whole, and temporaries fit the cache.
CHUNK = 4 << 20

#: Significant bytes of a long double: the x87 format pads ten bytes to twelve or sixteen.
LONG_DOUBLE_BYTES = 10 if np.finfo(np.longdouble).nmant == 63 else np.dtype(np.longdouble).itemsize


def first_difference(expected: NDArray[Any], actual: NDArray[Any]) -> str | None:
    """Describe the first difference of two arrays in a sentence; ``None`` if they are the same.

    Shape, dtype with its byte order, and every byte of every element are compared, except padding between the fields of a
    record, which no copy guarantees to keep.
    """
    if expected.shape != actual.shape:
        return f"the shape became {actual.shape}, not {expected.shape}"
    if expected.dtype != actual.dtype:
        return f"the dtype became {actual.dtype}, not {expected.dtype}"
    for field, left, right in _fields(np.asarray(expected), np.asarray(actual), ""):
        index = _first_index(left, right)
        if index is not None:
            place = f"{field}[{', '.join(map(str, index))}]" if index else field
            return f"{place or 'the element'} is {right[index].tobytes().hex()}, not {left[index].tobytes().hex()}"
    return None


Leaf = tuple[str, NDArray[Any], NDArray[Any]]


def _fields(left: NDArray[Any], right: NDArray[Any], name: str) -> Iterator[Leaf]:
    """The arrays themselves; for records, each innermost field with its name."""
    if left.dtype.names is None:
        yield name, left, right
        return
    for field in left.dtype.names:
        yield from _fields(left[field], right[field], f"{name}.{field}" if name else field)


def _first_index(left: NDArray[Any], right: NDArray[Any]) -> tuple[int, ...] | None:
    if left.size == 0 or left.dtype.itemsize == 0:
        return None
    if left.ndim == 0:
        return None if bool((_words(left) == _words(right)).all()) else ()
    # Several rows at a time along the first axis; the recursion splits rows longer than a chunk.
    row_bytes = left.dtype.itemsize * math.prod(left.shape[1:])
    if row_bytes > CHUNK and left.ndim > 1:
        for row in range(left.shape[0]):
            below = _first_index(left[row], right[row])
            if below is not None:
                return (row, *below)
        return None
    step = max(1, CHUNK // row_bytes)
    for start in range(0, left.shape[0], step):
        same = (_words(left[start : start + step]) == _words(right[start : start + step])).all(axis=-1)
        if not same.all():
            first = np.unravel_index(int(np.argmin(same)), same.shape)
            return (start + int(first[0]), *map(int, first[1:]))
    return None


def _words(array: NDArray[Any]) -> NDArray[np.unsignedinteger]:
    """The elements as unsigned integers along a new last axis, without a copy for any strides."""
    if array.dtype.char in "gG":
        parts = array[..., np.newaxis].view(np.uint8).reshape(*array.shape, -1, np.dtype(np.longdouble).itemsize)
        return parts[..., :LONG_DOUBLE_BYTES].reshape(*array.shape, -1)
    width = math.gcd(array.dtype.itemsize, 8)
    words: NDArray[np.unsignedinteger] = array[..., np.newaxis].view(f"u{width}")
    return words
