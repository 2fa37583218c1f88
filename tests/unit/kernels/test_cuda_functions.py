"""numba.cuda's functions in the simulator: bits, warps, votes, fences, libdevice, cooperative groups."""

from __future__ import annotations

import math
import statistics
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

import devmem as dm
from devmem.compat import numba_cuda as cuda
from devmem.kernels.compilers.simulator.cuda_functions import FUNCTIONS
from devmem.kernels.compilers.simulator.exact import fma
from devmem.kernels.compilers.simulator.half_precision import FUNCTIONS as HALF_PRECISION
from devmem.kernels.compilers.simulator.libdevice import FUNCTIONS as LIBDEVICE
from devmem.kernels.names import atomic, barrier, grid, laneid, shared, threadIdx
from devmem.spi.errors import UnsupportedError

ALL = 0xFFFFFFFF


def test_every_name_of_the_drop_in_is_simulated():
    assert set(FUNCTIONS) == cuda.SIMULATED
    assert set(cuda.libdevice.__all__) == set(LIBDEVICE)
    assert set(cuda.fp16.__all__) == set(HALF_PRECISION)


def test_on_the_host_they_say_where_they_belong():
    for function in (cuda.popc, cuda.libdevice.sqrt, cuda.fp16.hadd):
        with pytest.raises(UnsupportedError, match="belongs in a kernel"):
            function(2)


def test_bits_follow_the_type_of_the_number(simulated):
    def kernel(narrow, wide, out):
        out[0], out[1] = cuda.popc(narrow[0]), cuda.popc(wide[0])
        out[2], out[3] = cuda.clz(narrow[1]), cuda.clz(wide[1])
        out[4], out[5] = cuda.ffs(narrow[2]), cuda.ffs(wide[3])
        out[6], out[7] = cuda.brev(narrow[1]), cuda.brev(wide[1])
        out[8], out[9] = cuda.clz(1), cuda.selp(narrow[0] < 0, 5, 6)

    given = np.array([-1, 1, 8], np.int32), np.array([-1, 1, 8, 0], np.int64)
    *_, out = simulated.run(kernel, 1, 1, *given, np.zeros(10))
    assert out.tolist() == [32, 64, 31, 63, 4, 0, float(1 << 31), float(1 << 63), 63, 5]


def test_lanes_exchange_values(simulated):
    def kernel(out):
        i = threadIdx.x
        out[0, i] = cuda.shfl_sync(ALL, i * 10, 3)
        out[1, i] = cuda.shfl_up_sync(ALL, i, 2)
        out[2, i] = cuda.shfl_down_sync(ALL, i, 30)
        out[3, i] = cuda.shfl_xor_sync(ALL, i, 1)
        out[4, i] = cuda.match_any_sync(ALL, i // 31)
        mask, same = cuda.match_all_sync(ALL, i // 32)
        out[5, i] = mask * same

    [out] = simulated.run(kernel, 1, 64, np.zeros((6, 64), np.int64))
    lane = np.arange(64) % 32
    first = np.arange(64) - lane
    assert out[0].tolist() == ((first + 3) * 10).tolist()
    assert out[1].tolist() == (first + np.where(lane < 2, lane, lane - 2)).tolist()
    assert out[2].tolist() == (first + np.where(lane < 2, lane + 30, lane)).tolist()
    assert out[3].tolist() == (first + (lane ^ 1)).tolist()
    assert out[4, :32].tolist() == [(1 << 31) - 1] * 31 + [-(1 << 31)]
    assert out[5].tolist() == [-1] * 64


def test_lanes_vote(simulated):
    def kernel(out):
        i = threadIdx.x
        out[0, i] = cuda.ballot_sync(ALL, i % 2)
        out[1, i] = cuda.all_sync(ALL, i < 40)
        out[2, i] = cuda.any_sync(ALL, i == 40)
        out[3, i] = cuda.eq_sync(ALL, i < 32)
        out[4, i] = cuda.lanemask_lt()
        out[5, i] = cuda.activemask()

    [out] = simulated.run(kernel, 1, 64, np.zeros((6, 64), np.int64))
    assert out[0].tolist() == [0xAAAAAAAA] * 64
    assert out[1].tolist() == [1] * 32 + [0] * 32
    assert out[2].tolist() == [0] * 32 + [1] * 32
    assert out[3].tolist() == [1] * 64
    assert out[4].tolist() == [(1 << i % 32) - 1 for i in range(64)]
    assert out[5].tolist() == [ALL] * 64


def test_a_sum_over_a_warp_in_a_loop(simulated):
    def kernel(a, out):
        value = a[grid(1)]
        step = 16
        while step:
            value += cuda.shfl_down_sync(ALL, value, step)
            step //= 2
        if laneid == 0:
            atomic.add(out, 0, value)

    a = np.arange(256, dtype=np.float32)
    _, out = simulated.run(kernel, 2, 128, a, np.zeros(1, np.float32))
    assert out[0] == a.sum()


def test_the_lanes_of_a_mask_meet_without_the_others(simulated):
    def kernel(out):
        i = threadIdx.x
        if i < 8:
            out[i] = cuda.ballot_sync(0xFF, i > 3)
        elif i < 16:
            cuda.syncwarp(0xFF00)
            out[i] = cuda.shfl_sync(0xFF00, i, 15)
        barrier()

    [out] = simulated.run(kernel, 1, 32, np.zeros(32, np.int32))
    assert out.tolist() == [0xF0] * 8 + [15] * 8 + [0] * 16


def test_lanes_that_have_returned_are_not_waited_for(simulated):
    def kernel(out):
        i = threadIdx.x
        if i >= 4:
            return
        out[i] = cuda.ballot_sync(ALL, True)
        out[i + 4] = cuda.activemask()

    [out] = simulated.run(kernel, 1, 32, np.zeros(8, np.int32))
    assert out.tolist() == [0xF] * 8


def test_a_mask_without_the_lane_and_lanes_that_wait_elsewhere_are_reported(simulated, line_of):
    def left_out(out):
        cuda.ballot_sync(1, True)  # here

    def elsewhere(out):
        if threadIdx.x == 0:
            barrier()
        else:
            cuda.ballot_sync(3, True)  # here

    report = simulated.report(left_out, 1, 2, np.zeros(1))
    assert "the mask 0x1 leaves out lane 1" in str(report)
    assert (report.thread, report.lineno) == ((1, 0, 0), line_of(left_out, "# here"))
    report = simulated.report(elsewhere, 1, 2, np.zeros(1))
    assert report.kind == "divergence"
    assert "exchange of lanes" in str(report)


def test_the_block_votes_at_a_barrier(simulated):
    def kernel(out):
        i = threadIdx.x
        out[0, i] = cuda.syncthreads_count(i % 3 == 0)
        out[1, i] = cuda.syncthreads_and(i < 40)
        out[2, i] = cuda.syncthreads_or(i == 39)

    [out] = simulated.run(kernel, 1, 40, np.zeros((3, 40), np.int32))
    assert out.tolist() == [[14] * 40, [1] * 40, [1] * 40]


@pytest.mark.parametrize("fence", ["threadfence", "threadfence_block", "threadfence_system"])
def test_fences_and_loads_with_hints(simulated, fence):
    function = getattr(cuda, fence)

    def kernel(a):
        function()
        cuda.nanosleep(100)
        cuda.stcg(a, 1, cuda.ldca(a, 0) + 1)

    [a] = simulated.run(kernel, 1, 1, np.array([5, 0], np.int32))
    assert a.tolist() == [5, 6]


def test_a_warp_exchange_orders_shared_memory_as_far_as_it_does_on_a_device(simulated):
    def kernel(out):
        near, i = shared.array(32, np.int32), threadIdx.x
        near[i] = i
        cuda.syncwarp()
        out[i] = near[31 - i]

    with dm.simulator(race_check=True):
        [out] = simulated.run(kernel, 1, 32, np.zeros(32, np.int32))
    assert out.tolist() == list(range(31, -1, -1))


# -- all atomic operations ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [np.uint32, np.uint64])
@pytest.mark.parametrize("watched", [False, True])
def test_atomic_operations_on_integers(simulated, dtype, watched):
    def kernel(u, old):
        old[0] = atomic.sub(u, 0, 3)
        old[1] = atomic.and_(u, 1, 6)
        old[2] = atomic.or_(u, 2, 8)
        old[3] = atomic.xor(u, 3, 5)
        old[4] = atomic.inc(u, 4, 7)
        old[5] = atomic.inc(u, 5, 5)
        old[6] = atomic.dec(u, 6, 9)
        old[7] = atomic.dec(u, 7, 100)
        old[8] = atomic.dec(u, 8, 3)
        old[9] = atomic.compare_and_swap(u[9:], 9, 77)
        old[10] = atomic.compare_and_swap(u[10:], 9, 77)

    before = [10, 7, 1, 6, 5, 5, 0, 50, 7, 9, 8]
    with dm.simulator(race_check=watched):
        u, old = simulated.run(kernel, 1, 1, np.array(before, dtype), np.zeros(11, np.int64))
    assert u.tolist() == [7, 6, 9, 3, 6, 0, 9, 49, 3, 77, 8]
    assert old.tolist() == before


def test_atomic_operations_that_take_nan_for_nothing(simulated):
    def kernel(f):
        atomic.nanmax(f, 0, 2.0)
        atomic.nanmin(f, 1, -2.0)
        atomic.nanmax(f, 2, math.nan)
        atomic.nanmin(f, 3, 5.0)
        atomic.sub(f, 4, 0.5)

    [f] = simulated.run(kernel, 1, 1, np.array([np.nan, np.nan, 3, 4, 1]))
    assert f.tolist() == [2, -2, 3, 4, 0.5]


@pytest.mark.parametrize(
    ("operation", "wanted"), [("inc", "unsigned integers"), ("and_", "integers"), ("xor", "integers")]
)
def test_atomic_operations_that_devices_lack_for_a_type(simulated, operation, wanted):
    function = getattr(atomic, operation)

    def kernel(a):
        function(a, 0, 1)

    dtype = np.int32 if operation == "inc" else np.float32
    assert f"use {wanted} of 32 or 64 bits" in str(simulated.report(kernel, 1, 1, np.zeros(1, dtype)))


# -- the whole grid ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("shuffle", [None, 3])
def test_all_blocks_wait_for_each_other(simulated, shuffle):
    def kernel(a):
        group, i = cuda.cg.this_grid(), grid(1)
        a[i] = i
        group.sync()
        mirrored = a[a.size - 1 - i]
        group.sync()
        a[i] = mirrored

    with dm.simulator(shuffle=shuffle):
        [a] = simulated.run(kernel, 5, 7, np.zeros(35))
    assert a.tolist() == list(range(34, -1, -1))


def test_a_block_or_a_thread_that_does_not_come_to_the_barrier_of_the_grid_is_reported(simulated, line_of):
    def block(a):
        group = cuda.cg.this_grid()
        if dm.blockIdx.x:
            group.sync()  # here

    def thread(a):
        group = cuda.cg.this_grid()
        if grid(1) != 5:
            group.sync()  # here

    def after(a):
        cuda.cg.this_grid().sync()
        a[grid(1) + 1] = 1  # here

    report = simulated.report(block, 3, 4, np.zeros(12))
    assert "block (0, 0, 0) has returned without reaching it" in str(report)
    assert (report.kind, report.block, report.lineno) == ("divergence", (1, 0, 0), line_of(block, "# here"))
    report = simulated.report(thread, 3, 4, np.zeros(12))
    assert (report.kind, report.block, report.lineno) == ("divergence", (1, 0, 0), line_of(thread, "# here"))
    report = simulated.report(after, 3, 4, np.zeros(12))
    assert (report.kind, report.block, report.thread) == ("out of bounds", (2, 0, 0), (3, 0, 0))


# -- libdevice ---------------------------------------------------------------------------------------------------------

FINITE = st.floats(-1e6, 1e6)


@given(st.floats(width=32), st.floats(width=32), st.floats(width=32))
@example(9430269639524352.0, 1.5, 1.0)  # a little above the middle of two neighbours
@np.errstate(all="ignore")
def test_a_fused_multiply_and_add_rounds_once(a, b, c):
    found = fma(np.float32(a), np.float32(b), np.float32(c))
    assert found.dtype == np.float32
    if not all(map(math.isfinite, (a, b, c))):
        assert np.array_equal(found, np.float32(a) * np.float32(b) + np.float32(c), equal_nan=True)
        return
    exact = Fraction(a) * Fraction(b) + Fraction(c)
    if not np.isfinite(found):
        assert abs(exact) > Fraction(float(np.finfo(np.float32).max))
        return
    error = abs(Fraction(float(found)) - exact)
    for neighbour in (np.nextafter(found, np.float32(np.inf)), np.nextafter(found, np.float32(-np.inf))):
        if np.isfinite(neighbour):
            assert error <= abs(Fraction(float(neighbour)) - exact)


@given(FINITE, FINITE)
def test_directed_rounding_encloses_the_exact_result(x, y):
    x, y = float(np.float32(x)), float(np.float32(y))
    for name, exact in (
        ("fadd", Fraction(x) + Fraction(y)),
        ("fsub", Fraction(x) - Fraction(y)),
        ("fmul", Fraction(x) * Fraction(y)),
        ("fdiv", Fraction(x) / Fraction(y) if y else None),
    ):
        if exact is None:
            continue
        low, high, zero = (LIBDEVICE[f"{name}_{mode}"](x, y) for mode in ("rd", "ru", "rz"))
        if not np.isfinite([low, high]).all():
            continue
        assert Fraction(float(low)) <= exact <= Fraction(float(high))
        assert np.nextafter(low, np.float32(np.inf)) >= high
        assert zero == (low if exact > 0 else high)


@given(st.floats(0, 1e30))
def test_roots_rounded_in_a_direction_enclose_the_root(x):
    low, high = LIBDEVICE["dsqrt_rd"](x), LIBDEVICE["dsqrt_ru"](x)
    assert Fraction(float(low)) ** 2 <= Fraction(x) <= Fraction(float(high)) ** 2


@pytest.mark.parametrize(
    ("name", "arguments", "expected"),
    [
        ("sinf", (1.0,), np.float32(math.sin(1))),
        ("fast_cosf", (1.0,), np.float32(math.cos(1))),
        ("sinpi", (0.5,), 1.0),
        ("cospi", (1e15 + 0.5,), 0.0),
        ("exp10", (3.0,), 1000.0),
        ("rsqrt", (0.25,), 2.0),
        ("rcbrtf", (8.0,), np.float32(0.5)),
        ("erf", (0.3,), math.erf(0.3)),
        ("normcdf", (0.7,), statistics.NormalDist().cdf(0.7)),
        ("lgamma", (-1.0,), math.inf),
        ("tgamma", (5.0,), 24.0),
        ("tgamma", (200.0,), math.inf),
        ("fdim", (5.0, 3.0), 2.0),
        ("fdim", (3.0, 5.0), 0.0),
        ("fmax", (math.nan, 2.0), 2.0),
        ("round", (2.5,), 3.0),
        ("rint", (2.5,), 2.0),
        ("llround", (-2.5,), -3),
        ("ilogb", (0.0,), -(1 << 31)),
        ("ilogb", (10.0,), 3),
        ("logb", (10.0,), 3.0),
        ("ldexp", (1.5, 4), 24.0),
        ("scalbnf", (1.0, 300), np.float32(np.inf)),
        ("powi", (2.0, -2), 0.25),
        ("frexp", (10.0,), (0.625, 4)),
        ("modf", (-3.25,), (-0.25, -3.0)),
        ("remquo", (29.0, 3.0), (-1.0, 2)),
        ("remainder", (5.0, 3.0), -1.0),
        ("saturatef", (1.5,), 1.0),
        ("saturatef", (math.nan,), 0.0),
        ("isnand", (math.nan,), 1),
        ("signbitf", (-0.0,), 1),
        ("float2int_rn", (2.5,), 2),
        ("float2int_ru", (2.1,), 3),
        ("double2int_rz", (1e20,), (1 << 31) - 1),
        ("double2uint_rn", (-3.0,), 0),
        ("double2uint_rn", (3e9,), 3_000_000_000 - (1 << 32)),
        ("int2float_rz", ((1 << 24) + 1,), np.float32(1 << 24)),
        ("int2float_ru", ((1 << 24) + 1,), np.float32((1 << 24) + 2)),
        ("ull2double_rn", (-1,), float(1 << 64)),
        ("double_as_longlong", (1.0,), 0x3FF0000000000000),
        ("longlong_as_double", (0x3FF0000000000000,), 1.0),
        ("float_as_int", (1.0,), 0x3F800000),
        ("int_as_float", (0x3F800000,), 1.0),
        ("hiloint2double", (0x3FF00000, 0), 1.0),
        ("double2hiint", (1.0,), 0x3FF00000),
        ("half2float", (0x3C00,), 1.0),
        ("float2half_rn", (1.0,), 0x3C00),
        ("mulhi", (-1, 1), -1),
        ("umulhi", (-1, -1), -2),
        ("mul64hi", (1 << 62, 8), 2),
        ("mul24", (0xFFFFFF, 2), -2),
        ("umul24", (0xFFFFFF, 2), 0x1FFFFFE),
        ("sad", (3, 10, 5), 12),
        ("usad", (-1, 0, 1), 0),
        ("hadd", (-3, 0), -2),
        ("rhadd", (-3, 0), -1),
        ("uhadd", (-1, 1), -(1 << 31)),
        ("byte_perm", (0x11223344, 0x55667788, 0x7610), 0x55663344),
        ("byte_perm", (0x80, 0, 0x8888), -1),
        ("umax", (-1, 1), -1),
        ("llmin", (-1, 1), -1),
        ("brevll", (1,), -(1 << 63)),
        ("clzll", (1,), 63),
        ("popc", (-1,), 32),
        ("abs", (-(1 << 31),), -(1 << 31)),
        ("nextafterf", (1.0, 2.0), np.nextafter(np.float32(1), np.float32(2))),
    ],
)
def test_libdevice_functions(name, arguments, expected):
    with np.errstate(all="ignore"):
        found = LIBDEVICE[name](*arguments)
    if isinstance(expected, tuple):
        assert tuple(map(float, found)) == tuple(map(float, expected))
    else:
        assert found == pytest.approx(expected, rel=1e-15, abs=1e-15)


@given(st.floats(1e-12, 2 - 1e-12))
def test_inverses_undo_their_functions(x):
    assert math.erfc(LIBDEVICE["erfcinv"](x)) == pytest.approx(x, rel=1e-12)
    assert math.erf(LIBDEVICE["erfinv"](x - 1)) == pytest.approx(x - 1, rel=1e-12, abs=1e-15)


@given(st.floats(-30, 30))
def test_bessel_functions_satisfy_their_recurrence(x):
    if abs(x) > 0.1:
        left = LIBDEVICE["jn"](0, x) + LIBDEVICE["jn"](2, x)
        assert left == pytest.approx(2 / x * LIBDEVICE["j1"](x), abs=1e-12)


def test_libdevice_in_a_kernel(simulated):
    def kernel(a, out):
        s, c = cuda.libdevice.sincosf(a[0])
        out[0] = s * s + c * c
        out[1] = cuda.fma(a[1], a[1], -1.0)
        out[2] = cuda.cbrt(a[2])

    a = np.array([0.7, 1 + 2**-30, 27])
    _, out = simulated.run(kernel, 1, 1, a, np.zeros(3))
    assert out[0] == pytest.approx(1, abs=1e-6)
    assert out[1] == float(Fraction(a[1]) ** 2 - 1)
    assert out[2] == pytest.approx(3, rel=1e-15)


def test_half_precision_is_rounded_once(simulated):
    def kernel(a, b, out, compared):
        i = cuda.grid(1)
        x, y = a[i], b[i]
        out[0, i], out[1, i] = cuda.fp16.hadd(x, y), cuda.fp16.hsub(x, 2)
        out[2, i], out[3, i] = cuda.fp16.hmul(x, y), cuda.fp16.hdiv(x, y)
        out[4, i], out[5, i] = cuda.fp16.hfma(x, y, 0.5), cuda.fp16.hneg(x)
        out[6, i], out[7, i] = cuda.fp16.hfloor(x), cuda.fp16.hrsqrt(cuda.fp16.habs(y))
        out[8, i], out[9, i] = cuda.fp16.hmax(x, y), cuda.fp16.hexp10(y)
        compared[i] = cuda.fp16.hlt(x, y) and not cuda.fp16.hge(x, y)

    random = np.random.default_rng(7)
    a, b = random.normal(scale=3, size=(2, 64)).astype(np.float16)
    a[0], b[0] = np.nan, 1
    given = a, b, np.zeros((10, 64), np.float16), np.zeros(64, np.bool_)
    *_, out, compared = simulated.run(kernel, 1, 64, *given)
    x, y = a.astype(np.float64), b.astype(np.float64)
    expected = [x + y, x - 2, x * y, x / y, x * y + 0.5, -x, np.floor(x), 1 / np.sqrt(np.abs(y)), np.fmax(x, y), 10**y]
    with np.errstate(over="ignore"):
        np.testing.assert_array_equal(out, np.array(expected).astype(np.float16))
    assert compared.tolist() == (x < y).tolist()


def test_vectors_have_numbers_of_their_type(simulated):
    def kernel(a, out):
        pair = cuda.float32x2(a[0], 0.1)
        four = cuda.uchar4(300, pair, cuda.int32x1(-1))
        wide = cuda.double3(pair, four.w)
        out[0], out[1], out[2] = pair.x, pair.y, wide.z
        out[3], out[4], out[5] = four.x, four.y, four.w
        out[6] = pair.y * pair.y

    *_, out = simulated.run(kernel, 1, 1, np.array([2.5]), np.zeros(7))
    tenth = np.float32(0.1)
    assert out.tolist() == [2.5, float(tenth), 255, 44, 2, 255, float(tenth * tenth)]


def test_a_vector_has_as_many_elements_as_its_name_says(simulated):
    def kernel(out):
        out[0] = cuda.float4(1, cuda.int2(2, 3)).x

    with pytest.raises(dm.SimulatorError, match="float4 has 4 elements, and was given 3"):
        simulated.run(kernel, 1, 1, np.zeros(1))
    assert all(hasattr(cuda, each) for each in cuda.device_functions.VECTORS)
    with pytest.raises(AttributeError):
        cuda.float32x5  # noqa: B018
