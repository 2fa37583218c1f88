"""The simulator of kernels: what the names mean, in what order things run, what arguments become."""

from __future__ import annotations

import collections
import itertools
import operator
import random
import sys
import threading

import numpy as np
import pytest
from waits import patience, together

import devmem as dm
from devmem._core.base import config
from devmem.kernels import names, simulation
from devmem.kernels.compilers.simulator import compiler as simulator
from devmem.kernels.compilers.simulator.argument_types import ArrayType, ScalarType, parse_signature, type_of
from devmem.kernels.names import (
    atomic,
    barrier,
    blockDim,
    blockIdx,
    const,
    grid,
    gridDim,
    local,
    shared,
    threadIdx,
    wavebarrier,
)
from devmem.spi.errors import BackendError, ConfigError, LayoutError, SimulatorError, UnsupportedError

# -- where a thread is -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("blocks", "threads"), [(5, 3), ((2, 3), (4, 2)), ((2, 1, 3), (1, 3, 2)), (1, 1), ((1, 1, 4), 1), (1, (2, 2, 2))]
)
def test_every_thread_of_every_block_runs_once_and_knows_where_it_is(simulated, blocks, threads):
    seen = []

    def kernel():
        seen.append(
            (
                *((blockIdx.x, blockIdx.y, blockIdx.z), (threadIdx.x, threadIdx.y, threadIdx.z)),
                *((blockDim.x, blockDim.y, blockDim.z), (gridDim.x, gridDim.y, gridDim.z)),
                (grid(1), grid(2), grid(3), names.gridsize(1), names.gridsize(3)),
                (names.get_global_id(0), names.get_local_id(0), names.get_group_id(0)),
                (names.get_global_size(1), names.get_local_size(1), names.get_num_groups(1)),
            )
        )

    simulated(kernel, blocks, threads)
    grid_dim, block_dim = ((*np.atleast_1d(each).tolist(), 1, 1)[:3] for each in (blocks, threads))
    sizes = tuple(a * b for a, b in zip(grid_dim, block_dim, strict=True))
    expected = []
    for block in itertools.product(*map(range, grid_dim)):
        for thread in itertools.product(*map(range, block_dim)):
            at = tuple(b * n + t for b, n, t in zip(block, block_dim, thread, strict=True))
            indices = (at[0], at[:2], at, sizes[0], sizes)
            opencl = (at[0], thread[0], block[0]), (sizes[1], block_dim[1], grid_dim[1])
            expected.append((block, thread, block_dim, grid_dim, indices, *opencl))
    assert sorted(seen) == sorted(expected)
    assert all(type(each) is int for each in seen[0][0] + seen[0][1])


@pytest.mark.parametrize(
    ("blocks", "threads", "dim"), [(1, 1, 1), (3, 2, 1), (1, (1, 2), 2), ((1, 4), 8, 2), ((1, 1, 2), 1, 3)]
)
def test_the_dimensions_of_a_launch(simulated, blocks, threads, dim):
    seen = set()

    def kernel():
        seen.add(names.get_work_dim())

    simulated(kernel, blocks, threads)
    assert seen == {dim}


@pytest.mark.parametrize("size", [1, 5, 32, 64])
def test_waves_are_counted_along_x_first(simulated, size):
    def kernel(lanes, sizes):
        at = threadIdx.x + blockDim.x * (threadIdx.y + blockDim.y * threadIdx.z)
        lanes[at], sizes[at] = names.laneid, names.warpsize

    with dm.simulator(wave_size=size):
        lanes, sizes = simulated.run(kernel, 1, (3, 4, 2), np.zeros(24, np.int32), np.zeros(24, np.int32))
    assert lanes.tolist() == [n % size for n in range(24)]
    assert set(sizes) == {size}


def test_names_are_the_hosts_again_after_a_launch(simulated):
    simulated(lambda: None, 3, 2)
    with pytest.raises(UnsupportedError, match="belongs in a kernel"):
        grid(1)


# -- arrays ------------------------------------------------------------------------------------------------------------


def test_elements_are_numbers_of_compiled_code(simulated):
    kinds = []

    def kernel(a, b):
        kinds.append((a[0].native, (a[0] + a[1]).native, (b[0] * a[0]).native, (a[0] == a[1]).native))
        kinds.append((isinstance(a[0], np.int32), isinstance(b[0], float), isinstance(a[0], np.int64)))
        a[2] += 1
        a[3] = a[3] * a[3]  # wraps, and says nothing
        b[1] = b[0] / b[1]

    a, b = simulated.run(kernel, 1, 1, np.array([1, 2, 3, 1 << 20], np.int32), np.array([1.0, 0.0]))
    assert kinds == [(np.int32, np.int64, np.float64, np.bool_), (True, True, False)]
    assert a.tolist() == [1, 2, 4, 0]
    assert b.tolist() == [1, np.inf]


@pytest.mark.parametrize("watched", [False, True])
def test_integers_are_computed_with_in_64_bits_as_compiled_kernels_do(simulated, watched):
    def kernel(line, plane, cube, number, out):
        near = shared.array(2, np.uint8)
        near[0], near[1] = line[0], line[1]
        out[0] = line[0] + line[1]
        out[1] = plane[0, 0] * plane[0, 1]
        out[2] = (cube[0, 0, 0] + cube[0, 0, 1]) / 3
        out[3] = near[0] + near[1] + number
        out[4], line[0] = line[0] + 100, line[0] + 100
        out[5] = line[0]  # what is stored wraps
        line[1] = line[1] + 200
        near[1] = near[1] + 200
        atomic.max(plane, (0, 1), plane[0, 0] << 11)  # which is negative in 32 bits
        out[6], out[7], out[8] = line[1], near[1], plane[0, 1]
        line[2], cube[0, 0, 0] = -1, 1 << 15
        out[9], out[10] = line[2], cube[0, 0, 0]

    given = [np.array([200, 100, 0], np.uint8), np.full((1, 2), 1 << 20, np.int32), np.full((1, 1, 2), 30000, np.int16)]
    with dm.simulator(race_check=watched):
        *_, out = simulated.run(kernel, 1, 1, *given, np.int8(127), np.zeros(11))
    assert out.tolist() == [300, 1 << 40, 20000, 427, 300, 44, 44, 44, 1 << 20, 255, -(1 << 15)]


def test_what_arrays_know_of_themselves(simulated):
    seen, first = [], operator.itemgetter(0)

    def kernel(a):
        seen.append((a.shape, a.size, a.ndim, a.dtype, a.strides, a.itemsize, a.nbytes, len(a)))
        seen.append((a.T.shape, a.T[2, 1] == a[1, 2], tuple(map(first, a)), a[1].shape, a[:, 1].size))

    h = np.arange(12, dtype=np.int16).reshape(3, 4)
    simulated.run(kernel, 1, 1, h)
    assert seen[0] == ((3, 4), 12, 2, np.dtype(np.int16), (8, 2), 2, 24, 3)
    assert seen[1] == ((4, 3), True, (0, 4, 8), (4,), 3)


def test_there_is_no_arithmetic_with_whole_arrays(simulated):
    def add(a):
        a + a

    def test(a):
        np.add(a, 1)

    for kernel in (add, test):
        told = str(simulated.report(kernel, 1, 1, np.zeros(3)))
        assert "TypeError" in told
        assert "array in a kernel" in told


def test_parts_of_arrays_share_their_memory(simulated):
    def kernel(a):
        row, column, middle = a[1], a[:, 3], a[1:3, 1:3]
        row[0] = 10
        column[2] = 20
        middle[1, 1] += 100
        middle[0] = -1
        for i in range(3):
            a[0, 1 + i] = a[2, i]
        a[2, 10:] = 7  # a slice ends where the array does
        assert a[3:, 0].size == 0

    h = np.arange(12).reshape(3, 4)
    [got] = simulated.run(kernel, 1, 1, h)
    assert got.tolist() == [[0, 8, 9, 110], [10, -1, -1, 7], [8, 9, 110, 20]]


@pytest.mark.parametrize(
    "make",
    [
        lambda h: h,
        lambda h: h.T,
        lambda h: h[::-1],
        lambda h: h[1:, ::-2],
        lambda h: h[:, 1:2],
        lambda h: np.broadcast_to(h[0], h.shape),
    ],
)
def test_arrays_of_any_layout(simulated, make):
    h = np.arange(35, dtype=np.float32).reshape(5, 7)
    source = make(h)

    def kernel(a, out):
        x, y = grid(2)
        if y < a.shape[0] and x < a.shape[1]:
            out[y, x] = a[y, x]

    given, out = simulated.put(source), simulated.put(np.zeros(source.shape, np.float32))
    simulated(kernel, 1, (8, 8), given, out)
    assert (simulated.get(out) == source).all()


def test_arrays_without_axes_and_without_elements(simulated):
    sizes = []

    def kernel(scalar, none):
        scalar[()] += 3
        sizes.append((scalar.size, scalar.shape, none.shape, none.size))

    got, none = simulated.run(kernel, 1, 2, np.array(4), np.zeros((3, 0)))
    assert got == 10
    assert none.shape == (3, 0)
    assert sizes == [(1, (), (3, 0), 0)] * 2


def test_more_axes_than_two(simulated):
    def kernel(a):
        i, j, k = grid(3)
        a[i, j, k] = a[i, j][k] + 100 * i

    [got] = simulated.run(kernel, (3, 2, 1), (1, 1, 4), np.ones((3, 2, 4), np.int64))
    assert (got == 1 + 100 * np.arange(3)[:, None, None]).all()


def test_read_only_arrays_are_read(simulated, line_of):
    def kernel(a, out):
        out[0] = a[1]
        a[0] = 1

    a, out = simulated.put(np.array([1, 2]), readonly=True), simulated.put(np.zeros(1, int))
    with pytest.raises(SimulatorError, match="misuse: <array 'a' of shape") as caught:
        simulated(kernel, 1, 1, a, out)
    assert caught.value.lineno == line_of(kernel, "a[0] = 1")
    assert simulated.get(out) == 2


RECORD = np.dtype([("x", np.float32), ("y", np.int16, (2,))], align=True)


def test_kernels_read_and_write_fields_of_records(simulated):
    def kernel(a, one):
        i = grid(1)
        a[i].x += one.x
        a[i]["y"][1] = i
        if i == 0:
            one["x"] = 7

    a, one = np.zeros(3, RECORD), np.zeros((), RECORD)
    one["x"] = 1.5
    placed, single = simulated.put(a), simulated.put(one)
    del single.shape, single.strides  # a record on the device has none
    simulated(kernel, 3, 1, placed, single)
    got = simulated.get(placed)
    assert got["x"].tolist()[0] == 1.5
    assert got["y"].tolist() == [[0, 0], [0, 1], [0, 2]]
    single.shape, single.strides = (), ()
    assert simulated.get(single)["x"] == 7


def test_a_record_of_the_host_is_a_copy(simulated):
    def kernel(one, out):
        out[0] = one.x
        one.x = 3

    record = np.ones((), RECORD)[()]
    [out] = simulated.run(kernel, 1, 1, record, np.zeros(1))
    assert (out, record["x"]) == (1, 1)


# -- numbers -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("value", "kind"),
    [
        (3, np.int64),
        (-3, np.int64),
        (1 << 63, np.uint64),
        (2.5, np.float64),
        (1j, np.complex128),
        (True, np.bool_),
        (np.float32(3), np.float32),
        (np.uint8(200), np.uint8),
        (np.uint64(200), np.uint64),
        ((1, 2.5), (np.int64, np.float64)),
    ],
)
def test_numbers_have_the_types_that_compilers_give_them(simulated, value, kind):
    seen = []

    def kernel(n):
        seen.append(n)

    simulated(kernel, 1, 1, value)
    assert seen == [value]
    found = seen[0] if isinstance(value, tuple) else seen
    assert [type(each).native for each in found] == list(np.atleast_1d(kind))


def test_integers_wrap(simulated):
    def kernel(n, out):
        out[0] = n * n

    [out] = simulated.run(kernel, 1, 1, (1 << 32) + 1, np.zeros(1, np.int64))
    assert out == (1 << 33) + 1


def test_tuples_of_tuples_of_numbers(simulated):
    def kernel(out, box):
        (low, high), weight = box
        out[0], out[1], out[2] = low, high[1], weight

    out, *_ = simulated.run(kernel, 1, 1, np.zeros(3), ((1, (2, 3)), np.float32(0.5)))
    assert out.tolist() == [1, 3, 0.5]


def test_arrays_in_tuples_and_named_tuples(simulated):
    pair = collections.namedtuple("Pair", "x scale")

    def kernel(p, t, out):
        i = threadIdx.x
        out[i] = p.x[i] * p.scale + t[0][0][i]

    x, y = (simulated.put(np.arange(3) * by) for by in (1, 10))
    out = simulated.put(np.zeros(3))
    simulated(kernel, 1, 3, pair(x, 2), ((y,), 5), out)
    assert simulated.get(out).tolist() == [0, 12, 24]
    assert "array 'p'" in str(simulated.report(lambda p: p.x[9], 1, 1, pair(x, 2)))


def test_numbers_are_converted_to_what_was_declared(simulated):
    seen = []

    def kernel(n, x, flag):
        seen.append((n, x, flag, n.native, x.native, flag.native))

    compiled = simulated.compiler.compile(
        kernel, parse_signature("void(uint8, float32, boolean)"), simulated.driver, {}
    )
    compiled.launch((1, 1, 1), (1, 1, 1), 0, 1, (-1, 3, 2))
    assert seen == [(255, 3.0, True, np.uint8, np.float32, np.bool_)]


@pytest.mark.parametrize("wrong", [1 << 64, "text", None, [1, 2], ("a",), np.zeros(3)])
def test_what_no_kernel_takes(simulated, wrong):
    with pytest.raises(TypeError, match="no argument for a kernel"):
        simulated.compiler.type_of(wrong)


F4, I8 = np.dtype(np.float32), np.dtype(np.int64)


@pytest.mark.parametrize(
    ("text", "types"),
    [
        ("void()", ()),
        ("(float32[:])", (ArrayType(F4, 1, "A"),)),
        (" void( float32[::1] , int64)", (ArrayType(F4, 1, "C"), ScalarType(I8))),
        ("void(float32[:, ::1], f4[::1, :])", (ArrayType(F4, 2, "C"), ArrayType(F4, 2, "F"))),
        ("none(int_[:,:,:])", (ArrayType(I8, 3, "A"),)),
        ("void(boolean, intp)", (ScalarType(np.dtype(bool)), ScalarType(np.dtype(np.intp)))),
    ],
)
def test_signatures(text, types):
    assert parse_signature(text) == types


@pytest.mark.parametrize(
    "text",
    [
        "",
        "float32[:]",
        "void(float33)",
        "void(float32[1])",
        "void(f4[::1, ::1])",
        "void(f4[:, ::1, :])",
        "void(object)",
        "void(CPointer(float32), int32)",
    ],
)
def test_what_is_no_signature(text):
    with pytest.raises(TypeError, match="void"):
        parse_signature(text)


@pytest.mark.parametrize(
    ("declared", "given", "fits"),
    [
        ("void(f4[:])", "void(f4[::1])", True),
        ("void(f4[::1])", "void(f4[:])", False),
        ("void(f4[:, :])", "void(f4[::1, :])", True),
        ("void(f4[:, ::1])", "void(f4[::1, :])", False),
        ("void(f4[:])", "void(f8[:])", False),
        ("void(f4[:])", "void(f4)", False),
        ("void(f4[:])", "void(f4[:, :])", False),
        ("void(f4)", "void(int64)", True),
        ("void(int8)", "void(f8)", False),
        ("void(int8)", "void(int64)", True),
        ("void(boolean)", "void(int64)", False),
        ("void(f8)", "void(complex128)", False),
        ("void(complex64)", "void(f8)", True),
        ("void(f4, f4)", "void(f4)", False),
    ],
)
def test_what_fits_a_declaration(declared, given, fits):
    assert simulator.Simulator().fits(parse_signature(declared), parse_signature(given)) is fits


def test_types_decide_by_dtype_axes_and_layout(simulated):
    h = np.zeros((3, 4), np.float32)
    arrays = {h.strides: h, h.T.strides: h.T, h[:, ::2].strides: h[:, ::2]}
    assert [type_of(simulated.put(each)).layout for each in arrays.values()] == ["C", "F", "A"]
    assert hash(type_of(simulated.put(h))) == hash(type_of(simulated.put(h.copy())))


# -- memory of the kernel's own ----------------------------------------------------------------------------------------


def test_shared_memory_is_the_blocks_own(simulated):
    def kernel(out):
        s = shared.array(4, np.int32)
        s[threadIdx.x] = 10 * blockIdx.x + threadIdx.x
        barrier()
        out[grid(1)] = s[3 - threadIdx.x]

    [out] = simulated.run(kernel, 50, 4, np.zeros(200, np.int32))
    assert (out.reshape(50, 4) == 10 * np.arange(50)[:, None] + [3, 2, 1, 0]).all()


def test_each_place_has_an_array_of_its_own_and_keeps_it(simulated):
    def kernel(out):
        a, b = shared.array(2, np.int64), shared.array((2,), np.int64)
        for i in range(2):
            again = shared.array(2, np.int64)
            again[i] = i + 5
        a[0], a[1], b[0], b[1] = 1, 2, 3, 4
        out[0], out[1], out[2] = a[0] + 10 * a[1], b[0] + 10 * b[1], again[0] + 10 * again[1]

    [out] = simulated.run(kernel, 1, 1, np.zeros(3, np.int64))
    assert out.tolist() == [21, 43, 65]


def test_a_function_that_is_called_twice_has_one_shared_array(simulated):
    @dm.kernel(device=True)
    def of_all():
        return shared.array(1, np.int32)

    def kernel(out):
        of_all()[0] = 7
        out[0] = of_all()[0]

    [out] = simulated.run(kernel, 1, 1, np.zeros(1, np.int32))
    assert out == 7


def test_dynamic_shared_memory_is_one_piece_of_any_type(simulated):
    def kernel(out):
        words, numbers = shared.array(0, np.uint32), shared.array((0,), np.float32)
        numbers[1] = 1.0
        out[0], out[1], out[2] = words[1], words.size, numbers[1:].size

    [out] = simulated.run(kernel, 2, 1, np.zeros(3, np.uint32), shared=15)
    assert out.tolist() == [0x3F800000, 3, 2]


@pytest.mark.parametrize(
    ("dtype", "unwritten"), [("f4", np.nan), ("f8", np.nan), ("i2", -1), ("u4", 2**32 - 1), ("?", True)]
)
def test_memory_that_was_never_written_is_not_zero(simulated, dtype, unwritten):
    def kernel(out):
        out[0], out[1] = shared.array(2, dtype)[1], local.array((1, 2), dtype)[0, 1]

    [out] = simulated.run(kernel, 1, 1, np.zeros(2, dtype))
    np.testing.assert_array_equal(out, np.full(2, unwritten, dtype))


def test_local_memory_is_the_threads_own(simulated):
    def kernel(out):
        mine = local.array(3, np.int32)
        mine[0] = threadIdx.x
        barrier()
        out[threadIdx.x] = mine[0]

    [out] = simulated.run(kernel, 1, 9, np.zeros(9, np.int32))
    assert out.tolist() == list(range(9))


TABLE = np.array([[1, 2], [3, 4]])


def test_constants_are_as_they_were_when_the_kernel_was_compiled(simulated):
    table = TABLE.copy()

    def kernel(out):
        out[threadIdx.x] = const.array_like(table)[1, threadIdx.x]

    out = simulated.put(np.zeros(2, np.int64))
    compiled = simulated.prepare(kernel, out)
    for _ in range(2):
        compiled.launch((1, 1, 1), (2, 1, 1), 0, 1, (out,))
        assert simulated.get(out).tolist() == [3, 4]
        table[1] = 0


def test_device_functions_of_one_factory_have_memory_of_their_own(simulated):
    def made(table):
        @dm.kernel(device=True)
        def function():
            mine = shared.array(1, np.int64)
            mine[0] = const.array_like(table)[0]
            return mine

        return function

    first, second = made(np.array([1])), made(np.array([20]))

    def kernel(out):
        one, other, again = first(), second(), first()
        again[0] += 100
        out[0], out[1] = one[0], other[0]

    [out] = simulated.run(kernel, 1, 1, np.zeros(2, np.int64))
    assert out.tolist() == [101, 20]


class Foreign:
    """A type as another compiler has them: it has NumPy's name."""

    def __init__(self, name):
        self.name = name

    def __str__(self):
        return self.name


@pytest.mark.parametrize(("name", "dtype"), [("float32", np.float32), ("boolean", np.bool_), ("uint8", np.uint8)])
def test_types_of_other_compilers(simulated, name, dtype):
    seen = []

    def kernel():
        seen.append(shared.array(2, Foreign(name)).dtype)

    simulated(kernel, 1, 1)
    assert seen == [np.dtype(dtype)]


# -- atomics -----------------------------------------------------------------------------------------------------------


def test_atomics_are_exact_over_all_blocks(simulated):
    def kernel(counts, total):
        i = grid(1)
        atomic.add(counts, i % 7, 1)
        atomic.add(total, (0, 0), np.float32(0.5))

    counts, total = simulated.run(kernel, 200, 64, np.zeros(7, np.uint32), np.zeros((1, 1), np.float32))
    assert counts.tolist() == np.bincount(np.arange(12800) % 7).tolist()
    assert total == 6400


@pytest.mark.parametrize(
    ("operation", "operands", "after"),
    [
        ("add", (-3,), 2),
        ("max", (7,), 7),
        ("max", (3,), 5),
        ("min", (3,), 3),
        ("min", (7,), 5),
        ("exch", (9,), 9),
        ("cas", (5, 8), 8),
        ("cas", (4, 8), 5),
    ],
)
@pytest.mark.parametrize("dtype", ["i4", "i8", "f4", "f8"])
def test_atomics_give_the_value_from_before(simulated, operation, operands, after, dtype):
    def kernel(a, old):
        old[0] = getattr(atomic, operation)(a, 1, *operands)

    if operation == "cas":  # which is for integers
        dtype = dtype.replace("f", "u")
    a, old = simulated.run(kernel, 1, 1, np.array([0, 5, 0], dtype), np.zeros(1, dtype))
    assert (a.tolist(), old) == ([0, after, 0], 5)


@pytest.mark.parametrize(
    ("dtype", "before", "operation", "operands", "after"),
    [
        ("i4", 5, "add", ((1 << 32) + 2,), 7),
        ("i4", (1 << 31) - 1, "add", (1,), -(1 << 31)),
        ("i4", 5, "add", (np.uint64((1 << 64) - 2),), 3),
        ("i4", 5, "add", (True,), 6),
        ("i4", 5, "max", (1 << 31,), 5),
        ("i4", 5, "cas", (5 + (1 << 32), 1 << 31), -(1 << 31)),
        ("u4", 5, "add", (-1,), 4),
        ("u4", 5, "max", (-1,), (1 << 32) - 1),
        ("u8", 5, "add", ((1 << 64) - 1,), 4),
        ("u8", 5, "min", (np.int64(-1),), 5),
        (">i8", 5, "add", (np.float32(2),), 7),
        ("i8", 5, "cas", (5.0, np.float32(1 << 40)), 1 << 40),
        ("f4", 0, "exch", (0.1,), np.float32(0.1)),
        ("f8", 5, "max", (np.nan,), 5),
        ("f4", np.nan, "max", (1,), np.nan),
        ("f4", 5, "min", (np.nan,), 5),
        ("f8", np.nan, "min", (1,), np.nan),
    ],
)
def test_operands_of_atomics_become_elements(simulated, dtype, before, operation, operands, after):
    def kernel(a, old):
        old[0] = getattr(atomic, operation)(a, (0, 1), *operands)

    a, old = simulated.run(kernel, 1, 1, np.array([[0, before]], dtype), np.zeros(1, dtype))
    np.testing.assert_array_equal([a[0, 1], old[0]], [after, before])


@pytest.mark.parametrize("count", [1, 12])
def test_a_loop_that_waits_for_a_later_thread_ends(simulated, count):
    def kernel(turn, order):
        i = dm.threadIdx.x
        while atomic.cas(turn, 0, dm.blockDim.x - i, dm.blockDim.x - i) != dm.blockDim.x - i:
            pass
        order[i] = i
        atomic.add(turn, 0, 1)

    turn, order = simulated.run(kernel, 1, count, np.ones(1, np.int64), np.zeros(count, np.int64))
    assert turn[0] == count + 1
    assert order.tolist() == list(range(count))


@pytest.mark.parametrize("operands", [(1 << 64,), ((1,),), ("1",)])
def test_what_is_no_number_of_a_device_is_no_operand(simulated, operands):
    def kernel(a):
        atomic.add(a, 0, *operands)

    a = simulated.put(np.array([5, 6]))
    with pytest.raises(SimulatorError, match=r"OverflowError|TypeError|no number"):
        simulated(kernel, 1, 1, a)
    assert simulated.get(a).tolist() == [5, 6]


def test_a_failed_comparison_writes_nothing_and_one_that_holds_not_what_is_read_only(simulated):
    def kernel(a, old):
        old[0] = atomic.cas(a, 0, 4, 7)
        atomic.cas(a, 0, 5, 7)

    a, old = simulated.put(np.array([5]), readonly=True), simulated.put(np.zeros(1, int))
    with pytest.raises(SimulatorError, match="kernels may only read it"):
        simulated(kernel, 1, 1, a, old)
    assert (simulated.get(a), simulated.get(old)) == (5, 5)


def test_an_atomic_operation_undoes_no_plain_store_of_another_block(simulated, hasty):
    def kernel(a, lost):
        if blockIdx.x == 0:
            for n in range(1, 3001):
                a[0] = n
                for _ in range(50):
                    if a[0] != n:
                        lost[0] += 1
                        break
            a[1] = 1
        else:
            while a[1] == 0:
                atomic.add(a, 0, 0)
                atomic.max(a, 0, 0)

    _, lost = simulated.run(kernel, 2, 1, np.zeros(2, np.int64), np.zeros(1, np.int64))
    assert lost == 0


def test_every_thread_gets_a_number_of_its_own(simulated, hasty):
    def kernel(next_one, taken):
        taken[atomic.add(next_one, 0, 1)] += 1

    _, taken = simulated.run(kernel, 40, 32, np.zeros(1, np.int64), np.zeros(1280, np.int8))
    assert (taken == 1).all()


@pytest.mark.parametrize("wrong", [lambda a: atomic.add(a, slice(0, 2), 1), lambda a: atomic.add((1,), 0, 1)])
def test_atomics_are_about_one_element_of_an_array(simulated, wrong):
    assert "TypeError" in str(simulated.report(wrong, 1, 1, np.zeros(3)))


# -- barriers, and who runs when ---------------------------------------------------------------------------------------


def test_barriers_in_loops_and_in_functions(simulated):
    @dm.kernel(device=True)
    def add_neighbour(s, t, step):
        value = s[t - step] if t >= step else 0
        barrier()
        s[t] += value
        barrier()

    def kernel(out):
        s, t = shared.array(16, np.int32), threadIdx.x
        s[t] = t + blockIdx.x
        barrier()
        step = 1
        while step < 16:
            add_neighbour(s, t, step)
            step *= 2
        out[grid(1)] = s[t]

    [out] = simulated.run(kernel, 5, 16, np.zeros(80, np.int32))
    assert (out.reshape(5, 16) == np.cumsum(np.arange(16) + np.arange(5)[:, None], axis=1)).all()


def test_waves_pass_their_barriers_by_themselves(simulated):
    order = []

    def kernel():
        for step in range(threadIdx.x // 4 + 1):  # another number of times in each wave
            order.append((threadIdx.x // 4, step, "before"))
            wavebarrier()
            order.append((threadIdx.x // 4, step, "after"))
            wavebarrier()
        barrier()

    with dm.simulator(wave_size=4):
        simulated(kernel, 1, 10)  # the last wave has two threads
    for wave in range(3):
        mine = [each for each in order if each[0] == wave]
        assert [key[1:] for key, _ in itertools.groupby(mine)] == [
            (step, when) for step in range(wave + 1) for when in ("before", "after")
        ]
        assert len(mine) == (wave + 1) * 2 * min(4, 10 - 4 * wave)


def test_without_barriers_one_greenlet_runs_all_threads(simulated):
    from greenlet import getcurrent

    seen, hosts = set(), set()

    def kernel():
        seen.add(getcurrent())
        hosts.add(threading.get_ident())

    simulated(kernel, 300, 8)
    assert len(seen) == len(hosts)
    assert threading.get_ident() not in hosts


def test_blocks_are_dealt_out_to_several_threads(simulated):
    meet = threading.Barrier(2, timeout=patience())

    def kernel():
        meet.wait()  # two blocks have to run at once for either to end

    simulated(kernel, 2, 1)
    assert meet.n_waiting == 0


def test_nothing_is_left_running(simulated):
    before = threading.active_count()
    stream = simulated.driver.stream_create(0, True)

    def kernel():
        barrier()

    for _ in range(3):
        simulated(kernel, 40, 40, stream=stream)
    simulated.driver.stream_synchronize(stream)
    assert not [each for each in threading.enumerate() if each.name == "devmem-simulator"]
    assert threading.active_count() <= before + 1  # the stream's own


def test_the_order_is_the_threads_own(simulated):
    order = []

    def kernel():
        order.append(("first", threadIdx.x))
        barrier()
        order.append(("second", threadIdx.x))

    simulated(kernel, 1, 20)
    assert order == [(when, n) for when in ("first", "second") for n in range(20)]


def test_a_seed_shuffles_threads_and_blocks_the_same_way_each_time(simulated):
    order = []

    def one_block():
        order.append(threadIdx.x)
        barrier()
        order.append(threadIdx.x)

    def orders(seed):
        order.clear()
        with dm.simulator(shuffle=seed):
            simulated(one_block, 1, 20)
        return tuple(order[:20]), tuple(order[20:])

    seen = {seed: orders(seed) for seed in range(5)}
    for seed, halves in seen.items():
        assert [sorted(half) for half in halves] == [list(range(20))] * 2
        assert halves[0] != halves[1]
        assert halves == orders(seed)
    assert len(set(seen.values())) == 5


def test_blocks_are_shuffled_too(simulated):
    order = []
    with dm.simulator(shuffle=1):
        simulated(lambda: order.append((blockIdx.x, blockIdx.y)), (5, 5), 1)
    assert sorted(order) == list(itertools.product(range(5), range(5)))
    assert order != sorted(order, key=lambda at: at[::-1])


def test_a_seed_gives_atomics_of_all_blocks_the_same_order_each_time(simulated):
    def kernel(count, out):
        for _ in range(10):
            out[atomic.add(count, 0, 1)] = grid(1)

    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)  # several threads of the host would take many turns
    try:
        with dm.simulator(shuffle=3):
            results = [simulated.run(kernel, 8, 8, np.zeros(1, np.int64), np.zeros(640, np.int64))[1] for _ in range(4)]
    finally:
        sys.setswitchinterval(interval)
    assert all((each == results[0]).all() for each in results)
    assert sorted(results[0]) == sorted(list(range(64)) * 10)


@pytest.mark.parametrize("seed", random.Random(8).sample(range(10**6), 8))
def test_what_is_right_is_right_in_any_order(simulated, seed):
    def kernel(a):
        s, t = shared.array(32, np.int32), threadIdx.x
        s[t] = a[grid(1)]
        barrier()
        step = 16
        while step > 0:
            if t < step:
                s[t] += s[t + step]
            barrier()
            step //= 2
        a[grid(1)] = s[0]

    h = np.arange(96, dtype=np.int32)
    with dm.simulator(shuffle=seed, race_check=True):
        [got] = simulated.run(kernel, 3, 32, h)
    assert (got.reshape(3, 32) == h.reshape(3, 32).sum(axis=1)[:, None]).all()


# -- launching ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("blocks", "threads", "nbytes"),
    [((0, 1, 1), (1, 1, 1), 0), ((1, 1, 1), (4, 0, 1), 0), ((1, 1, 1), (32, 33, 1), 0), ((1, 1, 1), (1, 1, 1), -1)],
)
def test_launches_that_no_gpu_makes(simulated, blocks, threads, nbytes):
    compiled = simulated.prepare(lambda: None)
    with pytest.raises(LayoutError):
        compiled.launch(blocks, threads, nbytes, 1, ())


def test_a_block_of_1024(simulated):
    def kernel(a):
        t = threadIdx.x + 32 * threadIdx.y
        value = a[1023 - t]
        barrier()
        a[t] = value

    [got] = simulated.run(kernel, 1, (32, 32), np.arange(1024))
    assert (got == np.arange(1024)[::-1]).all()


def test_a_named_stream_is_not_waited_for(simulated):
    driver = simulated.driver
    stream = driver.stream_create(0, True)
    a = simulated.put(np.zeros(4, np.int32))

    def kernel(a):
        a[threadIdx.x] += 1

    held = driver.hold(stream)
    for _ in range(3):
        simulated(kernel, 1, 4, a, stream=stream)
    assert simulated.get(a).tolist() == [0] * 4
    driver.release(held)
    driver.stream_synchronize(stream)
    assert simulated.get(a).tolist() == [3] * 4


def test_memory_that_is_not_the_devices_is_refused_by_the_launch(simulated):
    a = simulated.put(np.zeros(4))
    compiled = simulated.prepare(lambda a: None, a)
    simulated.driver.free(a.ptr, 32, 1)
    with pytest.raises(BackendError, match="INVALID_ADDRESS"):
        compiled.launch((1, 1, 1), (1, 1, 1), 0, 1, (a,))


def test_arrays_are_of_no_use_after_the_launch(simulated):
    kept = []

    def kernel(a):
        kept.append(a)

    a = simulated.put(np.ones(4))
    simulated(kernel, 1, 1, a)
    simulated.driver.free(a.ptr, 32, 1)
    simulated.driver.close()
    assert repr(kept[0]) == "<array 'a' of shape (4,), dtype float64>"
    assert kept[0][0] == 0


def test_a_kernel_cannot_launch_another(simulated):
    other = simulated.prepare(lambda: None)

    def kernel():
        other.launch((1, 1, 1), (1, 1, 1), 0, 1, ())

    assert "cannot launch another" in str(simulated.report(kernel, 1, 1))


# -- what it needs, and how it is told what to do ----------------------------------------------------------------------


def test_without_greenlet_it_says_how_to_get_it(simulated, monkeypatch):
    assert simulated.compiler.unavailable() is None
    monkeypatch.setitem(sys.modules, "greenlet", None)
    assert "pip install 'devmem-arrays[sim]'" in simulated.compiler.unavailable()
    with pytest.raises(UnsupportedError, match=r"pip install 'devmem-arrays\[sim\]'"):
        simulated.prepare(lambda: None)


def test_a_device_that_the_host_does_not_reach(simulated):
    class Distant:
        info = simulated.driver.info

    with pytest.raises(UnsupportedError, match="the host cannot access its memory"):
        simulated.compiler.compile(lambda: None, (), Distant(), {})


@pytest.fixture
def unset(monkeypatch):
    for name in ("RACE_CHECK", "SHUFFLE", "WAVE_SIZE"):
        monkeypatch.delenv(f"DEVMEM_SIM_{name}", raising=False)
    config.forget()
    block = simulation.in_force.enter(None)
    yield monkeypatch
    simulation.in_force.leave(block)
    config.forget()


@pytest.mark.own_thread  # its last choice stays
def test_scopes_go_before_settings(unset):
    assert simulation.current() == simulation.Simulation(False, None, 32)
    unset.setenv("DEVMEM_SIM_RACE_CHECK", "1")
    unset.setenv("DEVMEM_SIM_SHUFFLE", "12")
    unset.setenv("DEVMEM_SIM_WAVE_SIZE", "64")
    config.forget()
    assert simulation.current() == simulation.Simulation(True, 12, 64)
    with dm.simulator(wave_size=16) as chosen:
        assert simulation.current() == chosen == simulation.Simulation(False, None, 16)
        with dm.simulator(race_check=True, shuffle=np.int64(3)):
            assert simulation.current() == simulation.Simulation(True, 3, 32)
        assert simulation.current() == chosen
    assert simulation.current().wave_size == 64
    dm.simulator(shuffle=5)  # from here on
    assert simulation.current().shuffle == 5


@pytest.mark.parametrize(
    ("given", "what"),
    [
        ({"race_check": 1}, "race_check=1 must be True or False"),
        ({"shuffle": "x"}, "shuffle='x' must be an integer"),
        ({"shuffle": True}, "shuffle=True must be an integer"),
        ({"shuffle": 1.5}, "shuffle=1.5 must be an integer"),
        ({"wave_size": 0}, "wave_size=0 must be an integer of at least 1"),
        ({"wave_size": None}, "wave_size=None must be an integer of at least 1"),
    ],
)
def test_what_the_scope_refuses(given, what):
    before = simulation.current()
    with pytest.raises(ConfigError, match=what):
        dm.simulator(**given)
    assert simulation.current() == before


def test_a_scope_is_this_threads_alone():
    with dm.simulator(wave_size=3):
        assert together(lambda: simulation.current().wave_size) == [32]
