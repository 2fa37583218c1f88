"""Floating-point results that are rounded once, and the bits of integers."""

from __future__ import annotations

import math
from fractions import Fraction
from typing import Any

import numpy as np


def fma(a: Any, b: Any, c: Any) -> Any:
    """``a * b + c``, rounded once, in the widest type of the three."""
    kind = np.result_type(*(np.float64 if isinstance(each, int | float) else each for each in (a, b, c))).type
    kind = np.float32 if kind is np.float32 else np.float64
    if not all(map(math.isfinite, (a, b, c))):
        return kind(a) * kind(b) + kind(c)
    exact = Fraction(float(a)) * Fraction(float(b)) + Fraction(float(c))
    if not exact:
        return kind(a) * kind(b) + kind(c)  # which knows the sign of zero
    return rounded(exact, kind)


def rounded(exact: Fraction, kind: Any) -> Any:
    """The nearest number of a floating type."""
    try:
        near = float(exact)
    except OverflowError:
        return kind(math.copysign(math.inf, exact))
    with np.errstate(all="ignore"):
        if kind is np.float32 and Fraction(near) != exact:
            # Rounded twice, a number may come to lie in the middle first, and go the wrong way from there.
            middle = (_value(np.float32(near)) + _value(_beyond(near))) / 2
            if middle == Fraction(near):
                near = math.nextafter(near, math.inf if exact > middle else -math.inf)
        return kind(near)


def _value(number: Any) -> Fraction:
    """A float32 as a fraction; infinity as the power of two that it begins at."""
    return Fraction(float(number)) if np.isfinite(number) else Fraction(math.copysign(2.0**128, number))


def _beyond(near: float) -> Any:
    """The neighbour of the nearest float32 on the other side of a number."""
    found = np.float32(near)
    # As Python compares: NumPy would round the number first.
    return np.nextafter(found, np.float32(math.inf if near > float(found) else -math.inf))


def larger(x: Any, y: Any) -> Any:
    """The larger of two floats, of which nan is none; +0.0 is larger than -0.0."""
    return x + y if x == y == 0 else np.fmax(x, y)


def smaller(x: Any, y: Any) -> Any:
    """The smaller of two floats, likewise."""
    return -larger(-x, -y)


def bits_of(value: Any, width: int) -> int:
    """An integer of ``width`` bits as an unsigned one."""
    return int(value) & (1 << width) - 1


def brev(value: Any, width: int) -> int:
    """The bits in reverse."""
    return int(f"{bits_of(value, width):0{width}b}"[::-1], 2)


def clz(value: Any, width: int) -> int:
    """Count the highest bits that are 0."""
    return width - bits_of(value, width).bit_length()


def ffs(value: Any, width: int) -> int:
    """The place of the lowest bit that is 1, counted from 1; 0 if there is none."""
    found = bits_of(value, width)
    return (found & -found).bit_length()


def popc(value: Any, width: int) -> int:
    """Count the bits that are 1."""
    return bits_of(value, width).bit_count()
