"""What numba-cuda compiles in kernels, beside statements and operators: types as functions, axes, fields, declared types."""

from __future__ import annotations

import enum
import math

import numpy as np
import pytest

import devmem as dm
from devmem.compat import numba_cuda as cuda
from devmem.compat.numba_cuda import random
from devmem.kernels.compilers.simulator import device_code
from devmem.kernels.compilers.simulator.argument_types import parse_device_signature, parse_signature
from devmem.kernels.names import grid, local, shared
from devmem.spi.errors import SimulatorError, UnsupportedError

POINT = np.dtype([("x", np.float32), ("n", np.int32), ("v", np.float64, 2)])


def numbas(kind, name):
    """A stand-in for one of Numba's types of numbers: what the simulator knows them by."""
    made = type(kind, (), {"__module__": "numba.core.types.scalars", "__str__": lambda self: name})
    return made()


float32, int32, uint8, boolean = (
    numbas(*each) for each in (("Float", "float32"), ("Integer", "int32"), ("Integer", "uint8"), ("Boolean", "bool"))
)


# -- Numba's types -----------------------------------------------------------------------------------------------------


def test_numbas_types_convert_as_compiled_code_does(simulated):
    def kernel(out):
        out[0] = float32(0.1) * 0.1
        out[1] = int32(2147483647) + int32(1)
        out[2] = uint8(257) + int32(-2.9)
        out[3] = int32(math.nan)
        out[4] = isinstance(int32(3), int32) + 2 * isinstance(3.0, float32) + boolean(7)

    [out] = simulated.run(kernel, 1, 1, np.zeros(5))
    assert out.tolist() == [float(np.float32(0.1)) * 0.1, 1 << 31, 1 - 2, -(1 << 31), 2]


def test_numbas_types_are_types_of_arrays(simulated):
    def kernel(out):
        mine, ours = local.array(1, uint8), shared.array(shape=2, dtype=float32)
        mine[0], ours[0] = 257, 0.1
        out[0], out[1] = mine[0], ours[0]

    [out] = simulated.run(kernel, 1, 1, np.zeros(2))
    assert out.tolist() == [1, np.float32(0.1)]


def test_numbas_other_types_stay_what_they_are():
    assert device_code.number_type(numbas("Record", "Record(x)")) is device_code.number_type(np.float32) is None


# -- axes and fields ---------------------------------------------------------------------------------------------------


def test_none_is_an_axis_of_length_1(simulated):
    def kernel(a, m, out):
        column, row = a[:, None], a[None]
        column[1, 0] = 7
        out[0], out[1], out[2] = column.shape[1], row.shape[0], row[0, 1]
        out[3] = m[..., None, 1].shape[1] + 10 * m[None, ..., 1][0, 1]
        a[0, None] = 5

    a, _, out = simulated.run(kernel, 1, 1, np.zeros(2), np.arange(4.0).reshape(2, 2), np.zeros(4))
    assert (a.tolist(), out.tolist()) == ([5, 7], [1, 1, 7, 31])


def test_none_does_not_hide_an_index_that_is_out_of_bounds(simulated):
    def kernel(a):
        a[None, 2] = 1

    error = simulated.report(kernel, 1, 1, np.zeros(2))
    assert "index 2 on axis 0" in str(error)


@pytest.mark.parametrize("watched", [False, True])
def test_a_field_of_all_records_by_its_name(simulated, watched):
    def kernel(r, out):
        i = grid(1)
        s = shared.array(4, POINT)
        s["n"][i] = i
        s.x[i] = 0.5
        s["v"][i, 1] = 2
        cuda.syncthreads()
        cuda.atomic.add(r["n"], 0, s["n"][3 - i])
        out[i] = r["x"][i] + s["x"][i] + s[3 - i].v[1]

    with dm.simulator(race_check=watched):
        r, out = simulated.run(kernel, 1, 4, np.ones(4, POINT), np.zeros(4))
    assert (r["n"].tolist(), out.tolist()) == ([7, 1, 1, 1], [3.5] * 4)


def test_a_race_on_a_field_is_found(simulated):
    def kernel(out):
        s = shared.array(2, POINT)
        s["n"][0] = grid(1)
        out[0] = s["x"].size

    with dm.simulator(race_check=True):
        error = simulated.report(kernel, 1, 64, np.zeros(1))
    assert error.kind == "race"


def test_a_field_that_records_do_not_have_is_reported(simulated):
    def kernel(r):
        r["size"][0] = 1

    assert "no field 'size' in the record: it has x, n, v" in str(simulated.report(kernel, 1, 1, np.zeros(1, POINT)))


@pytest.mark.parametrize("watched", [False, True])
def test_a_contiguous_array_is_reshaped_in_place(simulated, watched):
    def kernel(a, empty, shape, out):
        i = grid(1)
        s = shared.array((2, 2), np.float64)
        s.reshape(4)[i] = i
        cuda.syncthreads()
        a.reshape(2, -1)[i // 2, i % 2] = s.reshape(shape)[0, 3 - i, 0]
        out[i] = empty.reshape((1, 0, 2)).shape[2] + empty.reshape(0).size

    with dm.simulator(race_check=watched):
        a, _, out = simulated.run(kernel, 1, 4, np.zeros(4), np.zeros(0), (1, 4, 1), np.zeros(4))
    assert (a.tolist(), out.tolist()) == ([3, 2, 1, 0], [2] * 4)


def test_a_race_through_other_lengths_is_found(simulated):
    def kernel():
        shared.array((2, 2), np.float64).reshape(4)[3] = grid(1)

    with dm.simulator(race_check=True):
        error = simulated.report(kernel, 1, 64)
    assert error.kind == "race"


@pytest.mark.parametrize(("shape", "told"), [((2, 3), "cannot reshape"), ((3,), "is not contiguous")])
def test_what_cannot_be_reshaped_is_reported(simulated, shape, told):
    def kernel(a):
        (a if len(shape) == 2 else a[::2]).reshape(shape)[0] = 1

    assert told in str(simulated.report(kernel, 1, 1, np.zeros(8)))


# -- declared types of device functions --------------------------------------------------------------------------------


@cuda.jit("int32(int32)", device=True)
def truncated(x):
    return x


@cuda.jit("float32(float64)", device=True)
def narrowed(x):
    return x


@cuda.jit(["int64(int64)", "float64(float64)"], device=True)
def of_two(x):
    return x


@cuda.jit("(float64[:], uint8)", device=True, inline=True)
def stored(a, value):
    a[0] = value
    return value


@cuda.jit("void(float64[:], int32)", device=True)
def kept(a, value):
    a[1] = value


def test_declared_types_convert_arguments_and_results(simulated):
    def kernel(out, row):
        out[0] = truncated(-2.9)
        out[1] = narrowed(0.1)
        out[2] = of_two(2) / 4 + of_two(0.25)
        out[3] = stored(row, 257)
        kept(row, 3.9)

    out, row = simulated.run(kernel, 1, 1, np.zeros(4), np.zeros(2))
    assert out.tolist() == [-2, np.float32(0.1), 0.75, 1]
    assert row.tolist() == [1, 3]


def test_declared_types_convert_arguments_by_name_too(simulated):
    def kernel(out):
        out[0] = truncated(x=-2.9)

    [out] = simulated.run(kernel, 1, 1, np.zeros(1))
    assert out.tolist() == [-2]


def test_functions_of_one_factory_have_their_own_memory_with_declared_types_too(simulated):
    def made(value):
        @cuda.jit("float64(int64)", device=True)
        def function(i):
            s = shared.array(2, np.float64)
            s[i] = value
            cuda.syncthreads()
            return s[1 - i]

        return function

    one, two = made(1), made(2)

    def kernel(out):
        i = grid(1)
        out[i] = one(i) + 10 * two(i)

    [out] = simulated.run(kernel, 1, 2, np.zeros(2))
    assert out.tolist() == [21, 21]


@pytest.mark.parametrize(
    ("signature", "arguments", "result"),
    [
        ("float32(float32, int64[:, ::1])", ["float32", "int64[:, ::1]"], "float32"),
        ("(int32,)", ["int32"], "None"),
        ("Pair(int32, float32)(Pair((float32, int8)), int8)", ["None", "int8"], "None"),
    ],
)
def test_signatures_of_device_functions(signature, arguments, result):
    found, returned = parse_device_signature(signature)
    assert ([str(each) for each in found], str(returned)) == (arguments, result)


@pytest.mark.parametrize("signature", ["float32", "float32(int8", ")", ""])
def test_what_is_no_signature_of_a_device_function(signature):
    with pytest.raises(TypeError, match="is no signature of a device function"):
        parse_device_signature(signature)


def test_an_njit_helper_with_declared_types_is_refused_as_numba_cuda_refuses_it(simulated):
    made = type(
        "CPUDispatcher", (), {"__module__": "numba.core.registry", "py_func": lambda x: x, "_can_compile": False}
    )
    helper = made()

    def kernel(a):
        a[0] = helper(1)

    with pytest.raises(SimulatorError, match="helper has declared types"):
        simulated.run(kernel, 1, 1, np.zeros(1))


def signature_of(*arguments):
    """A stand-in for Numba's signature object."""
    return type("Signature", (), {"args": arguments, "return_type": None})()


def test_signatures_of_tuples_and_of_records(simulated):
    made = {name: type(name, (), {"types": (int32, float32), "layout": None})() for name in ("Tuple", "UniTuple")}
    record = type("Array", (), {"layout": "A", "ndim": 1, "dtype": "Record(x[type=float32;offset=0];4;False)"})()
    signatures = [
        "void(UniTuple(int64[:], 2), int8)",
        "void(Tuple((int32, float32[:])), int8)",
        *(signature_of(made[name], uint8) for name in made),
        signature_of(record, uint8),
    ]
    texts = [cuda.jit(each)(lambda a, b: None).signatures for each in signatures]
    assert texts[2:] == [("void(Tuple((int32, float32,)), uint8)",)] * 2 + [()]
    types = [[str(kind) for kind in parse_signature(*each)] for each in texts[:4]]
    assert types == [
        ["(int64[:], int64[:])", "int8"],
        ["(int32, float32[:])", "int8"],
        *[["(int32, float32)", "uint8"]] * 2,
    ]


# -- the rest ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("value", "digits", "expected"),
    [
        (np.float32(0.3425), 3, np.float32(0.343)),  # a multiple in single precision would be halfway
        (np.float32(3e38), 300, np.float32(3e38)),
        (2.675, 2, 2.68),  # Python's own is 2.67
        (0.125, 2, 0.12),
        (0.375, 2, 0.38),
        (-1250.0, -2, -1200.0),
        (1e20, 2, float((1 << 63) - 1) / 100),
        (1e300, 300, 1e300),
        (5, 0, 5.0),
        (-math.inf, 3, -math.inf),
        (math.nan, -3, math.nan),
    ],
)
def test_rounding_to_digits_is_numba_cudas(simulated, value, digits, expected):
    def kernel(a, out):
        out[0] = round(a[0], digits)

    _, out = simulated.run(kernel, 1, 1, np.array([value]), np.zeros(1))
    np.testing.assert_array_equal(out, [expected])


def test_numba_cudas_own_tests_are_programs_like_any_other(simulated):
    color = enum.IntEnum("Color", "RED BLUE", module="numba.cuda.tests.enums")
    other = enum.IntEnum("Other", "RED", module="numba.cuda.simulator")

    def kernel(out):
        out[0] = color.BLUE

    def vendors(out):
        out[0] = other.RED

    assert simulated.run(kernel, 1, 1, np.zeros(1))[0] == 2
    with pytest.raises(UnsupportedError, match="other works on CUDA alone"):
        simulated.run(vendors, 1, 1, np.zeros(1))


def test_alignment_is_checked(simulated):
    def kernel(out):
        s = shared.array(4, np.float32, alignment=16)
        mine = local.array(shape=(2,), dtype=np.float32, alignment=64)
        s[0] = mine[0] = 3
        out[0] = s[0] + mine[0]

    [out] = simulated.run(kernel, 1, 1, np.zeros(1))
    assert out[0] == 6


@pytest.mark.parametrize("alignment", [-8, 0, 4, 24])
def test_no_compiler_takes_this_alignment(simulated, alignment):
    def kernel(out):
        out[0] = local.array(4, np.float32, alignment)[0]

    assert f"alignment={alignment}: give a power of two" in str(simulated.report(kernel, 1, 1, np.zeros(1)))


def test_a_global_array_of_the_device_is_refused():
    table = dm.to_device(np.arange(4.0), device="host")

    @dm.kernel
    def kernel(a):
        a[0] = table[0]

    with dm.device("host"), pytest.raises(SimulatorError, match="table is an array of the device, and a global"):
        kernel[1, 1](dm.zeros(1))


def test_generators_are_started_and_moved_on_in_kernels(simulated):
    def kernel(states, out):
        i = grid(1)
        random.init_xoroshiro128p_state(states, i, 7)
        for _ in range(i):
            random.xoroshiro128p_jump(states, i)
        out[i] = random.uint64_to_unit_float64(random.rotl(1 << 63, 64 - 1))
        out[i] += random.uint64_to_unit_float32(1 << 63)

    expected = np.empty(3, random.xoroshiro128p_dtype)
    random.init_xoroshiro128p_states_cpu(expected, 7, 0)
    states, out = simulated.run(kernel, 1, 3, np.zeros(3, random.xoroshiro128p_dtype), np.zeros(3))
    assert np.array_equal(states, expected)
    assert out.tolist() == [0.75] * 3
