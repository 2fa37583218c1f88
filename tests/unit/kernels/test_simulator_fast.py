"""``DEVMEM_SIM=fast``: kernels that numba compiles give what the simulator gives; the others run in the simulator."""

from __future__ import annotations

import logging
import math

import numpy as np
import pytest
from fast_kernels import COMPILED, LEFT, takes_arguments_for_constants

import devmem as dm
from devmem.kernels.compilers.simulator.plain_source import Operations, PlainFunctions, Refused

pytest.importorskip("greenlet", reason="the simulator needs greenlet")
TWO = np.float32(2)
SCALE = np.array([1.5, -2.0], np.float32)


@dm.kernel(device=True)
def lifted(x, by=TWO):
    return x * by + dm.threadIdx.x


@dm.kernel
def arithmetic(a, b, out, factor):
    i = dm.grid(1)
    if i < out.shape[1]:
        out[0, i] = a[i] * b[i] - factor / b[i]
        out[1, i] = math.sqrt(abs(a[i])) + math.floor(b[i] * 3) / 2
        out[2, i] = lifted(a[i]) + lifted(b[i], by=3)
        out[3, i] = a[i - 1] + SCALE[i % 2] + dm.const.array_like(SCALE)[1]


@dm.kernel
def integers(a, b, out):
    i = dm.get_global_id(0)
    if i < a.size:
        out[0, i] = a[i] * b[i] + a[i] // b[i]
        out[1, i] = (a[i] << 3) ^ (b[i] >> 1) | a[i] % b[i]
        out[2, i] = np.uint8(a[i]) * b[i] - np.int32(b[i] << 7)


@dm.kernel
def places(out):
    x, y, z = dm.grid(3)
    kept = dm.local.array(2, np.int64)
    kept[0], kept[1] = dm.laneid, dm.warpsize
    width, height, _ = dm.gridsize(3)
    at = (z * height + y) * width + x
    out[at, 0] = dm.get_local_id(0) + 10 * dm.get_group_id(1) + 100 * dm.get_num_groups(2)
    out[at, 1] = dm.get_global_size(1) + 1000 * kept[0] + 100_000 * kept[1]
    out[at, 2] = dm.blockIdx.z + 10 * dm.blockDim.y + 100 * dm.gridDim.x + 1000 * dm.threadIdx.z + dm.get_work_dim()


@dm.kernel
def transcendental(x, out):
    i = dm.grid(1)
    if i < x.size:
        v = x[i]
        near = v - math.floor(v)
        out[0, i], out[1, i], out[2, i] = math.sin(v), math.cos(v), math.tan(v)
        out[3, i], out[4, i], out[5, i] = math.asin(near), math.acos(near), math.atan(v)
        out[6, i], out[7, i], out[8, i] = math.sinh(v), math.cosh(v), math.tanh(v)
        out[9, i], out[10, i], out[11, i] = math.asinh(v), math.acosh(1 + abs(v)), math.atanh(near)
        out[12, i], out[13, i], out[14, i] = math.exp(v), math.expm1(v), math.log(abs(v))
        out[15, i], out[16, i], out[17, i] = math.log1p(abs(v)), math.log2(abs(v)), math.log10(abs(v))
        out[18, i], out[19, i], out[20, i] = math.erf(v), math.erfc(v), math.hypot(v, near)
        out[21, i], out[22, i], out[23, i] = math.pow(abs(v), near), math.atan2(v, near), math.exp2(near)


@dm.kernel
def parts(x):
    if dm.threadIdx.x:
        dm.barrier()
    x[dm.grid(1)] = 1


@dm.kernel
def leaves(x):
    for _ in range(3):
        if dm.grid(1) == 13:
            return
        dm.syncthreads()


@dm.kernel
def reads_beyond(x):
    part = dm.shared.array(8, np.int32)
    part[dm.threadIdx.x] = 1
    dm.syncthreads()
    x[dm.grid(1)] = part[dm.threadIdx.x + 1]


@dm.kernel
def divides(x):
    x[dm.grid(1)] = 1 // (dm.grid(1) - 11)


@pytest.fixture
def compiled():
    """For tests whose kernels are to be compiled."""
    pytest.importorskip("numba", reason="numba is not installed")


def both(kernel, grid, block, *arguments):
    """The arrays after a launch in the simulator, and after one that is compiled."""
    found = []
    for mode in ("exact", "fast"):
        held = [_uploaded(each) for each in arguments]
        with dm.simulator(mode=mode):
            kernel[grid, block](*held)
        flat = [each for one in held for each in (one if isinstance(one, tuple) else (one,))]
        found.append([each.copy_to_host() for each in flat if hasattr(each, "copy_to_host")])
    return found


def _uploaded(value):
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return type(value)(*map(_uploaded, value))
    return dm.to_device(value) if isinstance(value, np.ndarray) else value


@pytest.fixture
def refused(caplog):
    """The messages of kernels that were not compiled."""
    caplog.set_level(logging.INFO, "devmem")
    return lambda: [each.getMessage() for each in caplog.records if "DEVMEM_SIM=fast" in each.getMessage()]


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("factor", [3, 2.5, np.float32(0.1)])
def test_floats_are_the_same_to_the_bit(compiled, refused, dtype, factor):
    random = np.random.default_rng(1)
    a, b = random.normal(size=(2, 1000)).astype(dtype)
    b[:5] = 0, -0.0, np.inf, np.nan, 1e-40
    exact, fast = both(arithmetic, 8, 128, a, b, np.zeros((4, 1000), dtype), factor)
    for one, other in zip(exact, fast, strict=True):
        assert np.array_equal(one, other, equal_nan=True)
        assert (np.isnan(one) | (np.signbit(one) == np.signbit(other))).all()
    assert refused() == []


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_other_functions_are_within_two_units_in_the_last_place(compiled, refused, dtype):
    x = np.random.default_rng(3).normal(scale=5, size=500).astype(dtype)
    (_, exact), (_, fast) = both(transcendental, 4, 128, x, np.zeros((24, x.size), dtype))
    assert np.isfinite(exact).all()
    units = np.abs(exact - fast) / np.spacing(np.abs(exact))
    assert units.max(axis=1).max() <= 2, units.max(axis=1)
    assert refused() == []


@pytest.mark.parametrize("right", ["int8", "uint8", "int32", "uint32", "int64", "uint64"])
@pytest.mark.parametrize("left", ["int8", "uint16", "int32", "uint64"])
def test_integers_are_the_same(compiled, refused, left, right):
    random = np.random.default_rng(2)
    a = random.integers(0, np.iinfo(left).max, 500, left, endpoint=True)
    b = random.integers(0, np.iinfo(right).max, 500, right, endpoint=True)
    b[0], a[1] = 0, np.iinfo(left).min
    exact, fast = both(integers, 4, 128, a, b, np.zeros((3, 500), np.int64))
    assert [each.tobytes() for each in exact] == [each.tobytes() for each in fast]
    assert refused() == []


def test_each_thread_knows_its_place(compiled, refused):
    out = np.zeros((2 * 3 * 2 * 4 * 2 * 5, 3), np.int64)
    exact, fast = both(places, (2, 3, 2), (4, 2, 5), out)
    assert np.array_equal(exact[0], fast[0])
    assert exact[0].any()
    assert refused() == []


def test_a_function_of_a_function_takes_its_variables_along(compiled, refused):
    def made(step):
        @dm.kernel
        def kernel(out):
            out[dm.grid(1)] = step * dm.grid(1)

        return kernel

    for step in (2, 5):
        _, fast = both(made(step), 2, 4, np.zeros(8, np.int32))
        assert fast[0].tolist() == [step * i for i in range(8)]
    assert refused() == []


def test_an_index_out_of_bounds_has_block_and_thread(compiled):
    @dm.kernel
    def beyond(a):
        a[dm.grid(1) + 1] = 1

    a = dm.to_device(np.zeros(24))
    with dm.simulator(mode="fast"), pytest.raises(dm.errors.SimulatorError) as told:
        beyond[3, 8](a)
    assert (told.value.kind, told.value.block, told.value.thread) == ("out of bounds", (2, 0, 0), (7, 0, 0))
    assert "index 24 on axis 0 of <array 'a' of shape (24,), dtype float64>" in str(told.value)
    assert "a[dm.grid(1) + 1] = 1" in str(told.value)


@pytest.mark.parametrize("name", COMPILED)
def test_compiled_it_leaves_what_the_simulator_leaves(compiled, refused, name):
    kernel, arguments, grid, _ = COMPILED[name]
    exact, fast = both(kernel.__class__(kernel.function), *grid, *arguments)
    assert [each.tobytes() for each in exact] == [each.tobytes() for each in fast]
    assert any(any(each.tobytes()) for each in exact)
    assert refused() == []


@pytest.mark.parametrize("name", LEFT)
def test_what_cannot_be_compiled_runs_in_the_simulator(compiled, refused, name, capfd):
    kernel, arguments, grid, why = LEFT[name]
    exact, fast = both(kernel.__class__(kernel.function), *grid, *arguments)
    assert [each.tobytes() for each in exact] == [each.tobytes() for each in fast]
    (told,) = refused()
    assert f"{kernel.__name__} runs in the simulator: {why}" in told


def test_a_constant_of_an_argument_is_refused_as_by_the_simulator(compiled):
    for mode in ("exact", "fast"):
        with (
            dm.simulator(mode=mode),
            pytest.raises(dm.errors.SimulatorError, match="takes a host array that is a global"),
        ):
            dm.kernel(takes_arguments_for_constants)[1, 4](dm.to_device(np.zeros(8)), dm.to_device(np.arange(8.0)))


@pytest.mark.parametrize("kernel", [parts, leaves, reads_beyond, divides])
def test_mistakes_are_reported_as_by_the_simulator(compiled, refused, kernel):
    told = []
    for mode in ("exact", "fast"):
        with dm.simulator(mode=mode), pytest.raises(dm.errors.SimulatorError) as found:
            dm.kernel(kernel.function, debug=True)[2, 8](dm.to_device(np.zeros(16)))
        told.append((found.value.kind, found.value.lineno, found.value.block, found.value.thread, str(found.value)))
    assert told[0] == told[1]
    assert refused() == []


def test_arrays_of_another_layout_and_read_only_ones_are_compiled_anew(compiled, refused):
    kernel = dm.kernel(COMPILED["column"].kernel.function)
    a, out = np.arange(8.0), np.zeros(8)
    for given in (dm.to_device(a), dm.to_device(np.repeat(a, 2))[::2], dm.In(a)):
        held = dm.to_device(out)
        with dm.simulator(mode="fast"):
            kernel[1, 8](given, given, held)
        assert held.copy_to_host().tolist() == (2 * a).tolist()
    with (
        dm.simulator(mode="fast"),
        pytest.raises(dm.errors.SimulatorError, match="is written, but kernels may only read"),
    ):
        kernel[1, 8](dm.to_device(a), dm.to_device(a), dm.In(out))
    assert len(refused()) == 1


def test_without_checked_indices_nothing_is_compiled(compiled, refused, monkeypatch):
    import numba

    monkeypatch.setattr(numba.core.config, "BOUNDSCHECK", 0)
    both(dm.kernel(COMPILED["column"].kernel.function), 1, 8, *(np.ones(8) for _ in range(3)))
    assert "NUMBA_BOUNDSCHECK=0 is set" in refused()[0]


def test_a_check_that_the_user_asked_for_is_made(compiled):
    @dm.kernel
    def last(a):
        a[-1] = 1

    a = dm.to_device(np.zeros(4))
    with dm.simulator(mode="fast", negative="report"), pytest.raises(dm.errors.SimulatorError, match="index -1"):
        last[1, 1](a)


def test_without_numba_the_log_says_so(monkeypatch, refused):
    import importlib.util

    find = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == "numba" else find(name))
    _, fast = both(dm.kernel(places.function), 1, 1, np.zeros((1, 3), np.int64))
    assert fast[0].any()
    assert "pip install numba" in refused()[0]


def test_a_function_without_its_source_is_refused():
    made: dict = {}
    exec("def f(a): pass", made)
    with pytest.raises(Refused, match="the source of f cannot be read"):
        PlainFunctions(lambda function: function, Operations(len, len, {}, {}, {})).of(made["f"])


def test_an_unknown_mode_is_refused():
    with pytest.raises(dm.errors.ConfigError, match="mode='slow' must be one of 'exact', 'fast'"):
        dm.simulator(mode="slow")
