"""What simulated kernels compute, where NumPy's own numbers would give something else than compiled code."""

from __future__ import annotations

import copy
import math
import operator
import pickle

import numpy as np
import pytest

from devmem.kernels.compilers.simulator.kernel_arrays import kernel_array
from devmem.kernels.compilers.simulator.numbers import TYPES, kernel_number
from devmem.kernels.compilers.simulator.reports import Misuse
from devmem.kernels.names import atomic, const, local, shared
from devmem.spi.errors import SimulatorError

U8, I8, U16, I32, U32, I64, U64 = (
    getattr(np, name) for name in ("uint8", "int8", "uint16", "int32", "uint32", "int64", "uint64")
)
F2, F4, F8, C8 = np.float16, np.float32, np.float64, np.complex64
TENTH = float(F4(0.1))


@pytest.fixture(autouse=True)
def silent():
    with np.errstate(all="ignore"):  # as in a kernel
        yield


# What numba computes, with its error model "numpy".
@pytest.mark.parametrize(
    ("function", "given", "expected"),
    [
        (lambda a, b: a + b, (np.True_, np.True_), 2),
        (lambda a, b: a - b, (np.False_, np.True_), -1),
        (lambda a: -a, (np.True_,), -1),
        (lambda a: ~a, (np.True_,), False),
        (lambda a, b: a ^ b, (np.True_, np.True_), False),
        (lambda a, b: (a > 0) + (b > 0), (F8(1), F8(1)), 2),
        (lambda a: (a > 0) - (a < 0), (F4(-3),), -1),
        (lambda a: ~(a > 0), (I32(3),), False),
        (lambda a: a * 10, (F4(1e38),), float(F4(1e38)) * 10),
        (lambda a: a * 1e30, (F4(1e30),), float(F4(1e30)) * 1e30),
        (lambda a: 0.0 + a, (F4(0.1),), TENTH),
        (lambda a: a == 0.1, (F4(0.1),), False),
        (lambda a: a * F4(0.1), (F4(0.1),), float(F4(0.1) * F4(0.1))),
        (lambda a, b: a * b, (F4(0.1), U8(3)), float(F4(0.1) * F4(3))),
        (lambda a, b: a * b, (F4(0.1), U16(3)), TENTH * 3),
        (lambda a: abs(a * 0.1), (C8(1 + 2j),), abs((1 + 2j) * 0.1)),
        (lambda a: a.real * 0.1, (C8(1 + 2j),), 0.1),
        (lambda a: round(a, 1) * 0.1, (F4(0.12),), TENTH * 0.1),
        (lambda a: round(a), (F4(2.5),), 2),
        (lambda a: a - 6, (U64(5),), -1),
        (lambda a: 4 - a, (U64(5),), -1),
        (lambda a: a * -1, (U64(5),), -5),
        (lambda a: a > -1, (U64(5),), True),
        (lambda a, b: a < b, (U64(1 << 63), I64(-1)), False),
        (lambda a: a * 6364136223846793005 + 1, (U64(5),), 5 * 6364136223846793005 + 1 - (2 << 64)),
        (lambda a: a * 0x9E3779B97F4A7C15 >> 33, (U64(5),), (5 * 0x9E3779B97F4A7C15 & (1 << 64) - 1) >> 33),
        (lambda a, b: (a - b) >> 4, (U32(1), U32(2)), ((1 << 64) - 1) >> 4),
        (lambda a, b: a + b, (U8(200), U8(100)), 300),
        (lambda a: a - 300, (U8(5),), -295),
        (lambda a: abs(a), (I8(-128),), -128),
        (lambda a: a**-1, (I64(5),), 0),
        (lambda a: a**-3, (I64(-1),), -1),
        (lambda a: a**30, (I64(5),), 8985370930000934825),
        (lambda a: a // 0, (I64(5),), 0),
        (lambda a: a % 0, (I32(5),), 0),
        (lambda a: a / 0, (I32(5),), math.inf),
        (lambda a: 1 / a, (F4(0),), math.inf),
        (lambda a: np.minimum(a, 0.1), (F4(1),), 0.1),
        (lambda a: np.sqrt(a) * np.float32(2), (F4(4),), 4),
        (lambda a: np.float32(3) - a, (U64(5),), -2),
        (lambda a: np.int64(3) - a, (U64(5),), -2),
        (lambda a: np.isnan(a) + np.isnan(a), (F4(np.nan),), 2),
        (lambda a: a << -1, (U8(5),), 0),
        (lambda a: a >> -70, (U64(5),), 0),
        (lambda a: a << -1, (I32(5),), 0),
        (lambda a: -2 >> a, (U32(1),), -1),
        (lambda a: a << -1, (np.True_,), 0),
        (lambda a: a >> -1, (np.True_,), 0),
        (lambda a: a << 63, (np.True_,), -1 << 63),
        (lambda a: (1 << 62) * a * 4, (np.True_,), 0),
        (lambda a: a + ((1 << 63) - 1), (np.True_,), -1 << 63),
        (lambda a: a / 0.0, (np.True_,), math.inf),
        (lambda a: 2 ** (a * 64), (np.True_,), 0),
        (lambda a: divmod(7, a)[0] << 62, (np.True_,), -1 << 62),
        (lambda a: divmod(a, 0), (np.True_,), (0, 0)),
        (lambda a: -a << 63, (np.True_,), -1 << 63),
        (lambda a: ~(a < 2.5), (np.True_,), False),
        (lambda a: (6 | a) << 62, (np.True_,), -1 << 62),
    ],
)
def test_operators_give_what_compiled_code_gives(function, given, expected):
    assert function(*map(kernel_number, given)) == expected


@pytest.mark.parametrize(
    ("function", "given", "native", "expected"),
    [
        (lambda a, b: a + b, (F2(0.1), F2(0.2)), F2, F2(0.1) + F2(0.2)),
        (lambda a, b: a * b, (F2(0.1), I8(3)), F2, F2(0.1) * F2(3)),
        (lambda a, b: a - b, (F2(0.1), U8(3)), F4, F4(F2(0.1)) - F4(3)),
        (lambda a, b: a * b, (F4(0.1), F2(0.1)), F4, F4(0.1) * F4(F2(0.1))),
        (lambda a: a * 3, (F2(0.1),), F8, float(F2(0.1)) * 3),
        (lambda a: 0.1 * a, (F2(0.5),), F8, 0.05),
        (lambda a: a // F2(0.1), (F2(1),), F4, F4(10)),
        (lambda a: a**2, (F2(0.1),), F4, F4(F2(0.1)) ** 2),
        (lambda a: a / F2(0), (F2(1),), F2, math.inf),
        (lambda a: -a, (F2(0.1),), F2, -F2(0.1)),
        (lambda a: abs(a), (F2(-0.1),), F2, F2(0.1)),
        (lambda a: a + 1j, (F2(0.5),), np.complex128, 0.5 + 1j),
    ],
)
def test_halves_are_promoted_as_compiled_code_promotes_them(function, given, native, expected):
    found = function(*map(kernel_number, given))
    assert (found.native, found) == (native, expected)


def test_functions_of_halves_give_halves_where_there_are_such(simulated):
    found = []

    def kernel(a):
        x = a[0]
        found.extend((math.sin(x), math.floor(x), float(x), a[1], np.float16(0.1), min(x, a[1])))
        found.extend((math.tan(x), math.atan2(x, x), math.pow(x, x), math.ldexp(x, 1)))
        found.append((int(x), int(a[1]), np.int32(-x), round(x), x < 2, x == 1.5))

    simulated.run(kernel, 1, 1, np.array([1.5, 2.5], np.float16))
    assert [each.native for each in found[:-1]] == [np.float16] * 6 + [np.float32] * 4
    assert found[0] == F2(math.sin(1.5)) and found[6] == F4(math.tan(1.5))
    assert found[-1] == (2, 2, -2, 2, True, True)  # numba-cuda rounds a half that becomes an integer: cvt.rni


@pytest.mark.parametrize(
    "function",
    [
        *(lambda x, f=f: f(x, 1j) for f in (operator.lt, operator.floordiv)),
        lambda x: x & 1,
        lambda x: x + "1",
        lambda x: 1 << x,
    ],
)
def test_what_compilers_refuse_is_refused(function):
    with pytest.raises(TypeError):
        function(kernel_number(F4(1)))


@pytest.mark.parametrize("constant", [1 << 64, -(1 << 63) - 1])
def test_constants_that_fit_nowhere_are_reported(constant):
    with pytest.raises(OverflowError):
        kernel_number(U64(1)) + constant


def test_wherever_a_kernel_reads_a_number_it_is_one_of_ours(simulated):
    table, found = np.array([True, True]), []
    record = np.dtype([("x", np.float32), ("y", np.uint8, (2,)), ("z", [("w", np.float32)])])

    def kernel(line, plane, cube, zero, records, one, number, flag):
        s, mine = shared.array(1, np.float32), local.array(1, np.uint8)
        s[0], mine[0] = 0.1, 200
        found.append(
            (line[0], plane[0, 0], cube[0, 0, 0], zero[()], s[0], line[0:][0], plane[0][0], plane.T[0, 0], number)
        )
        found.append(
            (records[0].x, records[0]["x"], records[0].z.w, records[0].z["w"], one.x, atomic.add(line, 0, 0.0))
        )
        found.append((mine[0] + mine[0], records[0].y[1] + records[0].y[1], one["y"][0] + one["y"][0]))
        found.append((const.array_like(table)[0] + const.array_like(table)[1], flag + flag, ~flag))

    arrays = [np.ones((1,) * axes, np.float32) for axes in (1, 2, 3, 0)]
    records = np.ones(1, record)
    records["y"] = 200
    simulated.run(kernel, 1, 1, *arrays, records, records[0], np.float32(0.1), True)
    assert [(x * 0.1).native for x in found[0] + found[1]] == [np.float64] * 15
    assert found[2:] == [(400, 400, 400), (2, 2, False)]


def test_fields_that_are_arrays_are_checked_as_arrays_are(simulated):
    def kernel(records):
        records[0].y[0] = 7
        records[0].y[2] = 1

    records = np.zeros(1, [("y", np.int16, (2,))])
    with pytest.raises(SimulatorError, match="index 2 on axis 0 of <field of a record of shape"):
        simulated.run(kernel, 1, 1, records)


def test_float_atomics_are_as_wide_as_the_array(simulated):
    def kernel(total):
        for _ in range(10):
            atomic.add(total, 0, 0.1)

    expected = F4(0)
    for _ in range(10):
        expected += F4(0.1)
    [got] = simulated.run(kernel, 1, 1, np.zeros(1, np.float32))
    assert got == expected


VALUES = [np.True_, I8(-3), U8(200), I32(-70000), U32((1 << 31) + 5), I64(-(1 << 40)), U64((1 << 63) + 5)]
VALUES += [F4(3.7), F4(np.nan), F8(1e300), F8(-3.5), C8(1 + 2j), np.complex128(1 + 2j)]


@pytest.mark.parametrize("value", VALUES, ids=lambda value: type(value).__name__)
def test_they_are_the_same_number_to_everything_else(value):
    number = kernel_number(value)
    assert float(f"{number}") == value if type(value) in (F4, F8, I8) and value == value else str(number) == str(value)
    assert copy.copy(number) is number or copy.copy(number) == number or value != value
    back = pickle.loads(pickle.dumps(number))
    assert type(back).__module__ in ("numpy", "builtins")
    assert back == value or value != value
    assert bool(number) is bool(value)
    assert hash(number) == hash(value) or value != value
    if not np.iscomplexobj(value):
        assert math.isnan(value) or int(number) == int(value)
        assert isinstance(number, float) is isinstance(value, float)
    if isinstance(value, np.integer | np.bool_):
        assert operator.index(number) == int(value)
        assert range(3)[kernel_number(U8(1)) : number] == range(3)[1 : int(value)]


@pytest.mark.filterwarnings("ignore:Casting complex values")
@pytest.mark.parametrize("dtype", list(TYPES))
@pytest.mark.parametrize("value", VALUES, ids=lambda value: type(value).__name__)
def test_numpy_stores_and_casts_them_as_its_own(value, dtype):
    def stored(given):
        array = np.zeros(1, dtype)
        try:
            array[0] = given
            return array.tobytes(), repr(dtype(given))
        except (TypeError, ValueError, OverflowError) as error:
            return type(error)

    wide = type(value)
    if isinstance(value, np.integer):
        wide = np.uint64 if value.dtype.kind == "u" else np.int64
    assert stored(kernel_number(value)) == stored(wide(value))


@pytest.mark.parametrize("operation", [operator.add, operator.sub, operator.mul, operator.truediv])
def test_single_precision_is_rounded_as_if_once(operation):
    random = np.random.default_rng(1)
    bits = random.integers(0, 1 << 32, (3000, 2), np.uint64).astype(np.uint32)
    bits[:1000] &= 0x80FFFFFF  # results that are tiny
    bits[1000:2000, 1] = bits[1000:2000, 0] ^ (bits[1000:2000, 1] & 0xFFF)  # neighbours
    pairs = bits.view(F4)
    found = np.array([operation(kernel_number(a), kernel_number(b)) for a, b in pairs], F4)
    assert np.array_equal(found, operation(*pairs.T), equal_nan=True)


@pytest.mark.parametrize("kind", [int, bool, *TYPES], ids=lambda kind: kind.__name__)
@pytest.mark.parametrize("axes", [1, 2])
def test_an_index_is_an_integer_of_any_type(kind, axes):
    array = kernel_array(np.arange(float(3**axes)).reshape((3,) * axes), "array")
    one, expected = kernel_number(kind(1)) if kind not in (int, bool) else kind(1), [1, 4][axes - 1]
    index = one if axes == 1 else (one, one)
    if np.dtype(kind).kind in "fc":
        with pytest.raises(TypeError, match="indexed with integers"):
            array[index]
        return
    assert type(array[index]) is TYPES[F8]
    assert array[index] == expected
    array[index] = 7.0
    assert array[index] == 7
    for beyond in (3 * one, one + 2):
        with pytest.raises(Misuse, match=f"index {beyond} on axis"):
            array[beyond if axes == 1 else (one, beyond)]
