"""Operators of kernel numbers give what ``numba.njit(error_model="numpy")`` gives, for each pair of types."""

from __future__ import annotations

import itertools
import warnings

import numpy as np
import pytest

from devmem.kernels.compilers.simulator.numbers import kernel_number, numpy_type

numba = pytest.importorskip("numba", reason="numba is not installed")

INTEGERS = [np.bool_, *(getattr(np, f"{sign}int{width}") for width in (8, 16, 32, 64) for sign in ("", "u"))]
FLOATS = [np.float32, np.float64]
SHIFTS, BITS, POWER = ("<<", ">>"), ("&", "|", "^"), ("**",)
OPERATORS = ("+", "-", "*", "/", "//", "%", "==", "!=", "<", "<=", ">", ">=", *SHIFTS, *BITS, *POWER)


def numbers(kind):
    """Numbers of a type, among them those at which results change."""
    if kind is np.bool_:
        return [kind(0), kind(1)]
    if issubclass(kind, np.integer):
        low, high = np.iinfo(kind).min, np.iinfo(kind).max
        return [kind(each) for each in sorted({0, 1, 2, 3, 7, high, high - 1, high // 3, low, low // 7})]
    return [kind(each) for each in (0.0, -0.0, 1, -1, 0.1, 2.5, -7.75, 3e38, 1e-40, 2**24 + 1, np.inf, -np.inf, np.nan)]


def is_defined(operator, x, y):
    """Whether compilers agree on the result, and devices with them."""
    if operator in SHIFTS:
        return 0 <= int(y) < 64
    if operator in POWER and isinstance(y, np.integer):
        if y < 0 and (abs(float(x)) < 1 or y == np.iinfo(type(y)).min):
            return False  # on the host numba raises an error where a power is 0, or -y is negative
        return abs(int(y)) <= 1 << 16  # beyond that it is a float, which may be beyond the integer
    return True


def same(ours, theirs, operator, by_squares=False):
    if operator in POWER and isinstance(theirs, float) and not by_squares:
        return np.isclose(
            float(ours), theirs, rtol=4e-7 if numpy_type(type(ours)) is np.float32 else 1e-15, equal_nan=True
        )
    if isinstance(theirs, float):
        return (np.isnan(ours) and np.isnan(theirs)) or (
            ours == theirs and np.signbit(float(ours)) == np.signbit(theirs)
        )
    return int(ours) == int(theirs)


@pytest.mark.parametrize("operator", OPERATORS)
def test_each_operator_of_each_pair_of_types(operator):
    made: dict = {}
    exec(f"def function(x, y):\n    return x {operator} y", made)
    function = made["function"]
    compiled = numba.njit(error_model="numpy")(function)
    kinds = INTEGERS if operator in SHIFTS + BITS else INTEGERS + FLOATS
    wrong = []
    with np.errstate(all="ignore"), warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)
        for left, right in itertools.product(kinds, repeat=2):
            for x, y in itertools.product(numbers(left), numbers(right)):
                if is_defined(operator, x, y):
                    ours, theirs = function(kernel_number(x), kernel_number(y)), compiled(x, y)
                    if not same(
                        ours, theirs, operator, isinstance(y, np.integer | np.bool_) and abs(int(y)) <= 1 << 16
                    ):
                        wrong.append(f"{x!r} {operator} {y!r}: {ours!r}, compiled {theirs!r}")
    assert not wrong, wrong[:10]


@pytest.mark.parametrize("target", [*INTEGERS[1:], *FLOATS], ids=lambda kind: kind.__name__)
def test_each_conversion(target):
    from devmem.kernels.compilers.simulator.device_math import NUMBER_TYPES

    compiled = numba.njit(error_model="numpy")(lambda x: target(x))
    wrong = []
    with np.errstate(all="ignore"):
        for kind in INTEGERS + FLOATS:
            for x in numbers(kind):
                if issubclass(target, np.integer) and kind in FLOATS and not abs(x) < np.iinfo(target).max:
                    continue  # undefined
                if issubclass(target, np.unsignedinteger) and kind in FLOATS and x <= -1:
                    continue  # undefined
                ours, theirs = NUMBER_TYPES[target](kernel_number(x)), compiled(x)
                if not same(ours, theirs, ""):
                    wrong.append(f"{x!r}: {ours!r}, compiled {theirs!r}")
    assert not wrong, wrong[:10]
