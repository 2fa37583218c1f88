"""``math`` and NumPy's types in kernels: what compiled code makes of them."""

from __future__ import annotations

import math
from math import log as logarithm

import numpy as np
import pytest

import devmem as dm
from devmem.kernels.compilers.simulator.device_math import MATH
from devmem.kernels.compilers.simulator.numbers import TYPES, Bool, kernel_number, numpy_type


def test_nothing_is_raised_where_a_device_gives_nan_or_infinity(simulated):
    def kernel(a, out):
        out[0], out[1], out[2] = math.sqrt(a[0]), math.log(a[1]), math.exp(a[2])
        out[3], out[4], out[5] = math.pow(a[2], 1000.0), math.acos(2.0), math.fmod(a[2], 0.0)
        out[6], out[7] = math.gamma(a[2]), math.atanh(1)
        out[8], out[9] = logarithm(-1.0), math.floor(math.sqrt(a[0]))

    given = np.array([-1.0, 0.0, 1e3])
    _, out = simulated.run(kernel, 1, 1, given, np.zeros(10))
    expected = [np.nan, -np.inf, np.inf, np.inf, np.nan, np.nan, np.inf, np.inf, np.nan, np.nan]
    assert np.array_equal(out, expected, equal_nan=True)


def test_a_function_of_single_precision_gives_single_precision(simulated):
    seen = []

    def kernel(single, double, whole):
        for each in (single, double, whole):
            seen.append(numpy_type(type(math.sqrt(each[0]))))
        for each in math.frexp(single[0]):
            seen.append(numpy_type(type(each)))
        seen.append(numpy_type(type(math.atan2(single[0], double[0]))))
        seen.append(numpy_type(type(math.pow(single[0], whole[0]))))
        seen.append(numpy_type(type(math.floor(double[0]))))
        double[1] = math.sin(single[0])

    given = np.array([2], np.float32), np.array([2.5, 0]), np.array([2], np.int32)
    _, double, _ = simulated.run(kernel, 1, 1, *given)
    assert seen == [
        *(np.float32, np.float64, np.float64),
        *(np.float32, np.int32),
        *(np.float64, np.float32, np.float64),
    ]
    assert double[1] == np.float32(math.sin(2))


def test_what_built_ins_and_functions_give_computes_as_compiled_numbers_do(simulated):
    seen = []

    def kernel(single, double, byte):
        for each in (single[0], double[0], byte[0]):
            seen.append((type(int(each)), type(float(each)), type(math.sin(each)), type(math.atan2(each, each))))
        seen.append((type(round(double[0])), type(math.isnan(single[0])), type(float(1)), type(int(2.5))))
        seen.append((isinstance(single[0], float), isinstance(double[0], float), isinstance(byte[0], float)))
        near = dm.shared.array(1, float)
        near[0] = 0.1
        double[0], double[1] = 1.0 / math.sqrt(0.0), 1 / float(byte[0])
        double[2], double[3] = math.exp(700.0) ** 2, near[0]

    _, double, _ = simulated.run(kernel, 1, 1, np.zeros(1, np.float32), np.zeros(4), np.zeros(1, np.uint8))
    assert double.tolist() == [np.inf, np.inf, np.inf, 0.1]
    i8, u1, f4, f8 = (TYPES[each] for each in (np.int64, np.uint8, np.float32, np.float64))
    assert seen == [(i8, f4, f4, f4), (i8, f8, f8, f8), (u1, f8, f8, f8), (i8, Bool, f8, i8), (True, True, False)]


def test_a_cast_number_takes_part_as_an_integer_of_64_bits(simulated):
    def kernel(out):
        out[0] = np.uint8(250) + np.uint8(10)
        out[1] = np.uint8(300)
        out[2] = np.int32(2.9) * np.int32(1 << 30)
        out[3] = np.int16(-3.7)
        out[4] = np.float32(0.1) * 1.0

    [out] = simulated.run(kernel, 1, 1, np.zeros(5))
    assert out.tolist() == [260, 44, 1 << 31, -3, float(np.float32(0.1))]


@pytest.mark.parametrize("kind", [np.uint8, np.uint64])
def test_a_range_of_unsigned_numbers_is_a_range_of_them(simulated, kind):
    seen = []

    def kernel(ends, out):
        counted = range(ends[0], ends[1], ends[2])
        out[0], out[1], out[2] = len(counted), counted[1], counted[-1]
        out[3], out[4], out[5] = counted.start, counted.stop, counted.step
        out[6], out[7] = ends[0] in counted, ends[1] in counted
        for _ in range(2):  # it starts anew
            for each in counted:
                out[8] += each
        for at in range(len(counted) - 1, -1, -1):
            out[9] = counted[at] - ends[1]  # below 0 it wraps
        for each in (counted[0], counted.start, counted.stop, counted.step, *counted):
            seen.append(numpy_type(type(each)))

    _, out = simulated.run(kernel, 1, 1, np.array([2, 9, 3], kind), np.zeros(10, np.uint64))
    assert out.tolist() == [3, 5, 8, 2, 9, 3, 1, 0, 30, (1 << 64) - 7]
    assert set(seen) == {np.uint64}


def test_types_are_dtypes_still(simulated):
    def kernel(out):
        near = dm.shared.array(2, np.int16)
        mine = dm.local.array(shape=1, dtype=np.float32)
        near[0], mine[0] = 70000, 0.1
        out[0], out[1], out[2] = near[0], mine[0], near.dtype == np.int16

    [out] = simulated.run(kernel, 1, 1, np.zeros(3))
    assert out.tolist() == [70000 - 65536, float(np.float32(0.1)), 1]


def test_device_functions_and_globals_that_a_function_changes_are_seen_as_they_are(simulated):
    @dm.kernel(device=True)
    def root(x):
        return math.sqrt(x)

    def kernel(a):
        a[0] = root(a[0])

    [a] = simulated.run(kernel, 1, 1, np.array([-4.0]))
    assert math.isnan(a[0])
    with pytest.raises(ValueError, match=r"math domain error|nonnegative"):
        root.function(-4.0)


@pytest.mark.parametrize("function", [math.gcd, math.comb, math.factorial])
def test_functions_that_no_compiler_has_are_refused(simulated, function):
    def kernel(a):
        a[0] = function(4, 2)

    assert "is a function that no compiler has" in str(simulated.report(kernel, 1, 1, np.zeros(1)))


@pytest.mark.parametrize("function", MATH, ids=lambda function: function.__name__)
def test_the_types_are_those_of_numba_cuda(function):
    pytest.importorskip("numba_cuda", reason="numba-cuda is not installed")
    from numba.cuda import types
    from numba.cuda.descriptor import cuda_target

    context = cuda_target.typing_context
    context.refresh()
    arity = (
        2
        if function.__name__ in ("atan2", "copysign", "fmod", "hypot", "nextafter", "pow", "remainder", "ldexp")
        else 1
    )
    for native in (np.float32, np.float64, np.int32, np.int64, np.uint64):
        given = [native] if arity == 1 else [native, np.int32 if function is math.ldexp else native]
        theirs = context.resolve_function_type(
            function, [getattr(types, each.__name__) for each in given], {}
        ).return_type
        with np.errstate(all="ignore"):
            found = MATH[function](*[TYPES[each](1) for each in given])
        found = found if isinstance(found, tuple) else (found,)
        ours = [np.dtype(numpy_type(type(kernel_number(each)))).name for each in found]
        assert ours == [str(each).replace("boolean", "bool") for each in (theirs if len(found) > 1 else [theirs])], (
            native
        )
