"""Numbers that become integers of a type, by the rules of compiled code.

===========================  ==================================================  =============================================
from                         to an integer type of ``n`` bits                    by
===========================  ==================================================  =============================================
an integer                   its lowest ``n`` bits                               LLVM: ``trunc``, ``sext``, ``zext``
a float                      truncated, then the nearest number of the type      PTX ISA: ``cvt.rzi`` clamps
a float, to 8 bits           the lowest 8 bits of the conversion to 16           NVPTX has no registers of 8 bits
a float16, to 8 bits         as to any other type                                numba-cuda: ``cvt.rni.s8.f16``
nan                          0; the sign bit alone of 64 bits, and of float64    PTX ISA: ``cvt``, on NaN
a float, by ``round``        the nearest integer, halves to even, then clamped   libdevice: ``__nv_llrint``, ``cvt.rni.s64``
a float16                    likewise                                            numba-cuda: ``cvt.rni`` from ``f16``
===========================  ==================================================  =============================================

Everything that converts goes through here: elements and fields that are assigned, operands of atomic operations, ``np.int32(x)``,
``int(x)``, ``round(x)``, elements of vectors, arguments of libdevice and its conversions.
"""

# Rules: https://docs.nvidia.com/cuda/parallel-thread-execution, "Data Movement and Conversion Instructions: cvt"
from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import Any

import numpy as np

#: The narrowest registers that floats are converted to.
_LEAST_BITS = 16
_INT64 = np.dtype(np.int64)


def wrapped(value: int, dtype: np.dtype[Any]) -> int:
    """The integer of a type whose bits are the lowest ones of a value."""
    bits = dtype.itemsize * 8
    value &= (1 << bits) - 1
    return value - (1 << bits) if dtype.kind == "i" and value >> (bits - 1) else value


def to_integer(value: Any, dtype: np.dtype[Any] = _INT64, rounding: Callable[[float], int | float] = math.trunc) -> int:
    """A float as an integer of a type."""
    half = isinstance(value, np.float16)
    width, low, high = _register(dtype, 8 if half else _LEAST_BITS)
    if value != value:
        single = half or isinstance(value, np.float32)
        return wrapped(0 if single and width < 64 else 1 << (width - 1), dtype)
    if half:
        rounding = round
    return wrapped(int(rounding(min(max(float(value), low), high))), dtype)


@functools.cache
def _register(dtype: np.dtype[Any], least_bits: int) -> tuple[int, int, int]:
    """(bits, least value, greatest value) of what a float becomes before it is stored."""
    width = max(dtype.itemsize * 8, least_bits)
    return (width, 0, (1 << width) - 1) if dtype.kind == "u" else (width, -(1 << (width - 1)), (1 << (width - 1)) - 1)


def stored(value: Any, dtype: np.dtype[Any]) -> Any:
    """The number that an element of a type holds once the value is assigned to it; other values unchanged."""
    if dtype.kind in "iu":
        if isinstance(value, float | np.floating):
            return dtype.type(to_integer(value, dtype))
        # A constant of a kernel has at most 64 bits: NumPy refuses larger ones.
        if isinstance(value, np.integer) or (isinstance(value, int) and -(1 << 63) <= value < 1 << 64):
            return dtype.type(wrapped(int(value), dtype))
    return value
