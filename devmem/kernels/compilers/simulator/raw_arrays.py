"""The NumPy arrays behind the arrays that kernels see, and the shapes and dtypes that kernels pass."""

from __future__ import annotations

import math
import operator
from typing import Any

import numpy as np
import numpy.typing as npt

from ...._core.base.address import bytes_at
from ...._core.base.layout import span


def array_at(
    address: int, low: int, shape: tuple[int, ...], strides: tuple[int, ...], dtype: np.dtype[Any]
) -> npt.NDArray[Any]:
    """The array whose lowest byte is at ``address``; ``low``, zero or negative, is that byte's offset from the first element."""
    reach = span(shape, strides, dtype.itemsize)[1] - low
    return np.ndarray(shape, dtype, bytes_at(address, reach), -low, strides)


def poisoned(shape: tuple[int, ...], dtype: np.dtype[Any]) -> npt.NDArray[Any]:
    """An uninitialised array. Its values are NaN, -1 or the largest unsigned integer, as zeros would hide a missing write."""
    data = np.full(math.prod(shape) * dtype.itemsize, 0x01 if dtype.kind == "b" else 0xFF, np.uint8)
    return data.view(dtype).reshape(shape)


def shape_of(shape: Any) -> tuple[int, ...]:
    """The shape from an integer or a tuple of integers."""
    return tuple(map(operator.index, shape)) if isinstance(shape, tuple | list) else (operator.index(shape),)


def dtype_of(dtype: Any) -> np.dtype[Any]:
    """The dtype from a NumPy dtype, or from a compiler's type of the same name."""
    found: np.dtype[Any]
    try:
        found = np.dtype(dtype)
    except TypeError:
        found = np.dtype({"boolean": "bool"}.get(str(dtype), str(dtype)))
    if found.hasobject or not found.itemsize:
        raise TypeError(f"kernels have no arrays of {dtype!r}")
    return found
