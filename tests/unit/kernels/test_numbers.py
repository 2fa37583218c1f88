"""The numbers of simulated kernels against numba's own typing of every operator."""

from __future__ import annotations

import operator

import numpy as np
import pytest

from devmem.kernels.compilers.simulator.numbers import ARITHMETIC, BITWISE, EQUALITY, ORDER, SHIFTS, kernel_number

pytest.importorskip("numba_cuda")

INTEGERS = np.int8, np.int16, np.int32, np.int64, np.uint8, np.uint16, np.uint32, np.uint64
NATIVE = np.bool_, *INTEGERS, np.float16, np.float32, np.float64, np.complex64, np.complex128
#: Numbers that stand in a kernel's text, by the type that a compiler gives them.
WRITTEN = {int: np.int64, float: np.float64, complex: np.complex128}
#: What numba takes for something else than itself: an oversight of its tables.
ODD = {("pow", np.bool_, np.int32), ("pow", np.bool_, np.uint32)}


@pytest.fixture(scope="module")
def typing():
    from numba.cuda.descriptor import cuda_target

    cuda_target.typing_context.refresh()
    return cuda_target.typing_context


def told(typing, function, *natives):
    """The name of numba's type of a result; None: it refuses the operands."""
    from numba.cuda import types

    try:
        found = typing.resolve_function_type(
            function, tuple(getattr(types, np.dtype(each).name.replace("bool", "boolean")) for each in natives), {}
        )
    except Exception as error:  # numba and numba-cuda have a class each
        if type(error).__name__ != "TypingError":
            raise
        return None
    return str(found.return_type).replace("boolean", "bool")


def got(function, *operands):
    """The same of ours: Python's own numbers by what they are to a compiler."""
    try:
        with np.errstate(all="ignore"):  # as in a kernel
            kind = type(function(*operands))
    except TypeError:
        return None
    return np.dtype(WRITTEN.get(kind, getattr(kind, "native", kind))).name


@pytest.mark.parametrize("name", ARITHMETIC + SHIFTS + BITWISE + EQUALITY + ORDER)
def test_operators_have_the_types_that_numba_has(typing, name):
    function = getattr(operator, f"__{name}__")
    wrong = []
    for left in (*NATIVE, *WRITTEN):
        for right in (*NATIVE, *WRITTEN):
            natives = WRITTEN.get(left, left), WRITTEN.get(right, right)
            if (left in WRITTEN and right in WRITTEN) or (name, *natives) in ODD:
                continue
            one, two = left(1), right(1)
            expected = told(typing, function, *natives)
            ways = [(one if left in WRITTEN else kernel_number(one), two if right in WRITTEN else kernel_number(two))]
            if left in NATIVE and right in NATIVE and (name not in ORDER or expected is not None):
                # NumPy's own beside ours, as after an explicit cast
                ways = [*ways, (one, kernel_number(two)), (kernel_number(one), two)]
            wrong += [
                (name, *map(type, way), found, expected) for way in ways if (found := got(function, *way)) != expected
            ]
    assert not wrong


@pytest.mark.parametrize("function", [operator.neg, operator.pos, operator.invert, abs])
def test_operators_of_one_operand_have_the_types_that_numba_has(typing, function):
    natives = [each for each in NATIVE if not (function is abs and each is np.bool_)]
    assert [got(function, kernel_number(each(1))) for each in natives] == [
        told(typing, function, each) for each in natives
    ]
