"""NumPy's arrays below those that kernels see, and the shapes and dtypes that kernels ask for them with."""

from __future__ import annotations

import ctypes
import math
import operator
from typing import Any

import numpy as np
import numpy.typing as npt

# One type for views of any length: a ctypes array type for each length would cost more than a small launch.
_Anything = ctypes.c_char * (1 << 62)


def over(
    address: int, low: int, shape: tuple[int, ...], strides: tuple[int, ...], dtype: np.dtype[Any]
) -> npt.NDArray[Any]:
    """The array whose lowest byte lies at an address, ``low`` bytes (none, or a negative number) from its first element."""
    return np.ndarray(shape, dtype, memoryview(_Anything.from_address(address)), -low, strides)


def poisoned(shape: tuple[int, ...], dtype: np.dtype[Any]) -> npt.NDArray[Any]:
    """An array that nobody has written: no zeros, which would hide it, but NaN, -1, the greatest unsigned integer."""
    data = np.full(math.prod(shape) * dtype.itemsize, 0x01 if dtype.kind == "b" else 0xFF, np.uint8)
    return data.view(dtype).reshape(shape)


def shape_of(shape: Any) -> tuple[int, ...]:
    """A shape as kernels write it: an integer, or a tuple of them."""
    return tuple(map(operator.index, shape)) if isinstance(shape, tuple | list) else (operator.index(shape),)


def dtype_of(dtype: Any) -> np.dtype[Any]:
    """A dtype as kernels write it: NumPy's, or a type of a compiler, which is called the same."""
    found: np.dtype[Any]
    try:
        found = np.dtype(dtype)
    except TypeError:
        found = np.dtype({"boolean": "bool"}.get(str(dtype), str(dtype)))
    if found.hasobject or not found.itemsize:
        raise TypeError(f"kernels have no arrays of {dtype!r}")
    return found
