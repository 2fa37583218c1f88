"""Functions of whole arrays that numba compiles into kernels: each is a loop over the elements, in C order, as compiled."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from .numbers import numpy_number


def _sum(array: Any) -> Any:
    total = array.dtype.type(0) if array.dtype.kind in "fc" else 0
    for each in array.flat:
        total = each + total
    return total


def _prod(array: Any) -> Any:
    total = array.dtype.type(1) if array.dtype.kind in "fc" else 1
    for each in array.flat:
        total = each * total
    return total


def _mean(array: Any) -> Any:
    total = array.dtype.type(0) if array.dtype.kind in "fc" else 0.0
    for each in array.flat:
        total = each + total
    return np.true_divide(total, array.size)


def _var(array: Any) -> Any:
    mean, total = _mean(array), 0.0
    for each in array.flat:
        difference = each - mean
        total += (difference * np.conj(difference)).real
    return np.true_divide(total, array.size)


def _std(array: Any) -> Any:
    return _var(array) ** 0.5


def _any(array: Any) -> bool:
    return any(bool(each) for each in array.flat)


def _all(array: Any) -> bool:
    return all(bool(each) for each in array.flat)


def _extreme_at(better: Callable[[Any, Any], bool]) -> Callable[[Any], int]:
    def at(array: Any) -> int:
        if not array.size:
            raise ValueError("an empty array has no least and no greatest element")
        found, value = 0, array.flat[0]
        for place, each in enumerate(array.flat):
            if each != each:  # the first NaN
                return place
            if better(each, value):
                found, value = place, each
        return found

    return at


def _count_nonzero(array: Any) -> int:
    return sum(bool(each) for each in array.flat)


def _nansum(array: Any) -> Any:
    total = array.dtype.type(0) if array.dtype.kind in "fc" else 0
    for each in array.flat:
        if each == each:
            total = each + total
    return total


def _nanmean(array: Any) -> Any:
    total, count = 0.0, 0
    for each in array.flat:
        if each == each:
            total = each + total
            count += 1
    return np.true_divide(total, count)


def _searchsorted(array: Any, value: Any, side: str = "left") -> int:
    low, high = 0, len(array)
    while low < high:
        middle = (low + high) >> 1
        before = array[middle] < value if side == "left" else not value < array[middle]
        low, high = (middle + 1, high) if before else (low, middle)
    return low


def _fill(array: Any, value: Any) -> None:
    flat = array.flat
    for place in range(array.size):
        flat[place] = value


def _item(array: Any) -> Any:
    if array.size != 1:
        raise ValueError(f"item() is for arrays of one element, not of {array.size}")
    return array.flat[0]


_BOTH: dict[str, Callable[..., Any]] = {
    "all": _all,
    "any": _any,
    "argmax": _extreme_at(lambda one, other: one > other),
    "argmin": _extreme_at(lambda one, other: one < other),
    "mean": _mean,
    "prod": _prod,
    "std": _std,
    "sum": _sum,
    "var": _var,
}
#: Methods of arrays, and functions of NumPy, by their names; each takes the array first.
METHODS = _BOTH | {"fill": _fill, "item": _item, "transpose": lambda array: array.T}
FUNCTIONS = _BOTH | {
    "count_nonzero": _count_nonzero,
    "nanmean": _nanmean,
    "nansum": _nansum,
    "searchsorted": _searchsorted,
    "shape": lambda array: array.shape,
    "size": lambda array: math.prod(array.shape),
}
#: Functions of NumPy that numba-cuda compiles for whole arrays, with an array for the results: ``np.sin(a, out)``.
UFUNCS = frozenset(
    name
    for line in (
        "arccos arccosh arcsin arcsinh arctan arctan2 arctanh cos cosh sin sinh tan tanh deg2rad degrees rad2deg radians",
        "bitwise_and bitwise_or bitwise_xor invert left_shift right_shift logical_and logical_not logical_or logical_xor",
        "equal greater greater_equal less less_equal not_equal fmax fmin maximum minimum",
        "conjugate divide hypot isnan log log10 log2",
    )
    for name in line.split()
)


def apply(function: Callable[..., Any], inputs: tuple[Any, ...], out: Any) -> None:
    """Store a function of numbers in each element of ``out``; inputs are numbers, or arrays that are broadcast to it."""
    for place in np.ndindex(out.shape):
        out[place] = function(*(_broadcast(each, place) for each in inputs))


def _broadcast(value: Any, place: tuple[int, ...]) -> Any:
    """The element of an array that is broadcast to a shape, at a place in it; a number as it is. NumPy's numbers."""
    if hasattr(value, "space"):
        behind = place[len(place) - value.ndim :]
        value = value[tuple(at if length > 1 else 0 for at, length in zip(behind, value.shape, strict=True))]
    return numpy_number(value)
