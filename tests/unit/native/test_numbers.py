"""The operators of kernel numbers in the compiled core give what the methods in Python give, to the bit and of the same type."""

from __future__ import annotations

import itertools
import math
import operator
import struct
import sys

import numpy as np
import pytest

from devmem import _native
from devmem.kernels.compilers.simulator import numbers
from devmem.kernels.compilers.simulator.numbers import TYPES, Bool, kernel_number

pytestmark = pytest.mark.skipif(_native.core is None, reason=_native.why)

COMPILED = ("add", "sub", "mul", "truediv", "floordiv", "mod", "lshift", "rshift", "and", "or", "xor")
COMPARED = ("lt", "le", "eq", "ne", "gt", "ge")
FLOATS = (0.0, -0.0, 1.0, -1.5, 0.1, 3e38, -1e-40, 2.0**24 + 1, 2.0**53 + 2, math.inf, -math.inf, math.nan)
INTEGERS = (0, 1, -1, 2, 7, 63, 64, 1 << 24, 1 << 31, (1 << 62) + 1, (1 << 63) - 1, -(1 << 63), (1 << 64) - 1)
#: Operands that are no numbers of kernels.
OTHERS = (*FLOATS, *INTEGERS, 1 << 64, True, False, Bool(1), Bool(0), 2j, None)


def numbers_of(native):
    """Kernel numbers of a type, among them those at which results change."""
    if np.issubdtype(native, np.floating):
        return [kernel_number(native(each)) for each in FLOATS if native is np.float64 or abs(each) != 2.0**53 + 2]
    limits = np.iinfo(native)
    return [
        kernel_number(native(each)) for each in {*INTEGERS, limits.min, limits.max} if limits.min <= each <= limits.max
    ]


def told(function, *operands):
    """The type and the bits of a result, or the error."""
    try:
        found = function(*operands)
    except (TypeError, ValueError, ZeroDivisionError, OverflowError) as error:
        return type(error)
    if found is NotImplemented:
        return TypeError
    if isinstance(found, float | np.floating):
        return type(found), "nan" if math.isnan(found) else struct.pack("d", found)
    return type(found), str(found) if isinstance(found, complex | np.complexfloating) else int(found)


NATIVES = [native for native in TYPES if native in numbers._COMPILED]


@pytest.fixture(autouse=True)
def silent():
    with np.errstate(all="ignore"):  # as in a kernel
        yield


@pytest.mark.parametrize("native", NATIVES)
def test_errors_tell_of_a_class_by_its_name(native):
    with pytest.raises(TypeError, match=rf"for \+: '{native.__name__}' and 'str'"):
        TYPES[native](1) + "a"


@pytest.mark.parametrize("native", NATIVES)
def test_operators_give_what_the_methods_in_python_give(native):
    mine = numbers_of(native)
    assert (type(mine[0]), "__add__") in numbers._METHODS  # else Python would be compared with itself
    kernel_numbers = [each for other in NATIVES for each in numbers_of(other)]
    wrong = []
    for name in COMPILED + COMPARED:
        function = getattr(operator, f"__{name}__")
        for one, other in itertools.product(mine, (*kernel_numbers, *OTHERS)):
            # Python's complex number is asked before a number that is a float, too.
            ways = [(one, other)] if name in COMPARED or other == 2j else [(one, other), (other, one)]
            for way in ways:
                expected = told(numbers._general, name, *way)
                if expected is TypeError and name in ("eq", "ne"):
                    continue  # Python compares by identity
                if (found := told(function, *way)) != expected:
                    wrong.append((name, *map(repr, way), *map(type, way), found, expected))
    assert not wrong[:5]


@pytest.mark.filterwarnings("ignore:NumPy will stop allowing conversion:DeprecationWarning")  # NumPy 1
@pytest.mark.parametrize("native", NATIVES)
def test_a_number_is_made_and_negated_as_in_python(native):
    kind = TYPES[native]
    in_python = type("in_python", (kind.base,), {"__slots__": ()})
    others = [*numbers_of(np.float32), *numbers_of(np.int64), *numbers_of(np.uint64)]
    for given in (*FLOATS, *INTEGERS, 1 << 64, True, Bool(1), None, *numbers_of(native), *others):
        one, other = (told(lambda make=make, given=given: make(given).item()) for make in (kind, in_python))
        assert one == other, given
    for given in numbers_of(native):
        if (kind, "__neg__") in numbers._METHODS:  # integers of fewer than 64 bits are negated in Python
            assert told(operator.neg, given) == told(numbers._METHODS[kind, "__neg__"], given)
        assert hash(given) == hash(given.item()) or given != given
        assert type(given) is kind
        assert np.array([given]).dtype == kind.base
    with pytest.raises(TypeError):
        kind(1, 2, 3)


def test_numbers_leave_nothing():
    one = kernel_number(np.float32(1.5))
    kind = type(one)
    before = sys.getrefcount(kind)
    for _ in range(1000):
        assert -(one + one) < kind(3.5) * 2.0
    assert sys.getrefcount(kind) == before
