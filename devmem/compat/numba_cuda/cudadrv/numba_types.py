"""Numba's types for device arrays and records; numba is imported when its compiler looks them up."""

from __future__ import annotations

from typing import Any


def numba_array(array: Any) -> Any:
    """The type of a device array: layout C or F if it is contiguous, else A."""
    from numba.cuda import types
    from numba.cuda.np import numpy_support

    flags = array.flags
    repeated = 0 in array.strides and array.size
    layout = "A" if repeated else "C" if flags["C_CONTIGUOUS"] else "F" if flags["F_CONTIGUOUS"] else "A"
    return types.Array(numpy_support.from_dtype(array.dtype), array.ndim, layout)


def numba_record(record: Any) -> Any:
    """The type of a device record."""
    from numba.cuda.np import numpy_support

    return numpy_support.from_dtype(record.dtype)
