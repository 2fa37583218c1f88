"""`devmem.compat.numba_cuda`: what numba.cuda's documentation shows, as programs of our own; kernels where they compile."""

from __future__ import annotations

import enum
import pickle
from functools import partial

import numpy as np
import pytest
from waits import together

import devmem as dm
from devmem.compat import numba_cuda as cuda


@pytest.fixture(autouse=True)
def fresh(devmem_backend):
    """Contexts of this test's own: they change the device's memory stack."""
    dm.close()
    yield
    cuda.close()
    dm.close()


@pytest.fixture
def kernels(device):
    """Skip where no kernel can be compiled and launched."""

    @cuda.jit
    def nothing(x):
        x[0] = 1

    try:
        nothing[1, 1](cuda.device_array(1))
    except dm.UnsupportedError as error:
        pytest.skip(f"no kernels on {device}: {error}")


@cuda.jit
def increase(array, by):
    at = cuda.grid(1)
    if at < array.size:
        array[at] += by


@cuda.jit(device=True)
def larger(a, b):
    return a if a > b else b


@cuda.jit
def largest(left, right, out):
    at = cuda.threadIdx.x + cuda.blockIdx.x * cuda.blockDim.x
    if at < out.size:
        out[at] = larger(left[at], right[at])


@cuda.jit
def backwards(array):
    """Through shared memory: every thread has to have written before any reads."""
    tile = cuda.shared.array(32, "f4")
    at = cuda.threadIdx.x
    tile[at] = array[at]
    cuda.syncthreads()
    array[at] = tile[31 - at]


@cuda.jit
def multiply(a, b, c):
    """Square matrices, tile by tile."""
    left, right = cuda.shared.array((4, 4), "f8"), cuda.shared.array((4, 4), "f8")
    x, y = cuda.grid(2)
    tx, ty = cuda.threadIdx.x, cuda.threadIdx.y
    total = 0.0
    for tile in range(a.shape[1] // 4):
        left[tx, ty] = a[x, ty + tile * 4]
        right[tx, ty] = b[tx + tile * 4, y]
        cuda.syncthreads()
        for k in range(4):
            total += left[tx, k] * right[k, ty]
        cuda.syncthreads()
    c[x, y] = total


@cuda.jit
def powers(out):
    own = cuda.local.array(4, "f8")
    own[0] = 1.0
    for k in range(1, 4):
        own[k] = own[k - 1] * cuda.threadIdx.x
    for k in range(4):
        out[cuda.threadIdx.x, k] = own[k]


@cuda.jit
def count(values, bins):
    at = cuda.grid(1)
    step = cuda.gridsize(1)
    for k in range(at, values.size, step):
        cuda.atomic.add(bins, values[k], 1)


WEIGHTS = np.array([1.0, 10.0, 100.0])


@cuda.jit
def weigh(values, out):
    table = cuda.const.array_like(WEIGHTS)
    at = cuda.grid(1)
    if at < out.size:
        out[at] = values[at] * table[at % 3]


# -- data transfer -----------------------------------------------------------------------------------------------------


def test_to_the_device_and_back():
    source = np.arange(1000)
    d = cuda.to_device(source)
    assert (d.copy_to_host() == source).all()
    target = np.empty(shape=d.shape, dtype=d.dtype)
    d.copy_to_host(target)
    assert (target == source).all()
    shaped = d.reshape(20, 50, order="F")
    assert shaped.is_f_contiguous()
    assert (shaped.copy_to_host() == source.reshape(20, 50, order="F")).all()
    assert shaped.ravel(order="F").is_c_contiguous()


def test_copies_on_a_stream_arrive_after_synchronizing():
    source, stream = np.arange(1000), cuda.stream()
    d = cuda.to_device(source, stream=stream)
    back = d.copy_to_host(stream=stream)
    stream.synchronize()
    assert (back == source).all()
    with stream.auto_synchronize():
        d = cuda.to_device(source + 1, stream=stream)
        back = d.copy_to_host(stream=stream)
    assert (back == source + 1).all()


def test_a_pipeline_of_pinned_pieces(need, need_kind):
    need("host_register")
    need_kind("pinned")
    source = np.arange(4000.0)
    results = cuda.pinned_array_like(source)
    with cuda.pinned(source):
        streams = [cuda.stream() for _ in range(4)]
        for at, stream in enumerate(streams):
            part = slice(at * 1000, (at + 1) * 1000)
            cuda.to_device(source[part], stream=stream).copy_to_host(results[part], stream=stream)
        cuda.synchronize()
    assert (results == source).all()


def test_two_buffers_in_turns(need_kind):
    need_kind("pinned")
    source, result = np.arange(4000.0), np.empty(4000)
    streams, passed = [cuda.stream(), cuda.stream()], [cuda.event(timing=False), cuda.event(timing=False)]
    sent, back = ([cuda.pinned_array(500) for _ in streams] for _ in range(2))
    there = [cuda.device_array(500) for _ in streams]
    with cuda.defer_cleanup():
        for at in range(10):
            turn = at % 2
            if at >= 2:
                passed[turn].synchronize()
                result[(at - 2) * 500 : (at - 1) * 500] = back[turn]
            if at < 8:
                sent[turn][:] = source[at * 500 : (at + 1) * 500]
                there[turn].copy_to_device(sent[turn], stream=streams[turn])
                there[turn].copy_to_host(back[turn], stream=streams[turn])
                passed[turn].record(streams[turn])
    assert (result == source).all()


def test_nothing_is_freed_in_a_section_that_has_to_be_fast():
    pending = cuda.current_context().memory_manager.deallocations
    pending.clear()
    with cuda.defer_cleanup():
        for _ in range(20):
            cuda.to_device(np.arange(10))
        assert len(pending) == 20
    pending.clear()
    assert len(pending) == 0


def test_a_thread_for_each_device(device):
    backend = device.backend

    def work(number):
        with dm.use_backend(backend), cuda.gpus[number]:
            return cuda.to_device(np.full(10, number)).copy_to_host().sum()

    numbers = range(len(cuda.gpus))
    assert together(*(partial(work, number) for number in numbers)) == [10 * number for number in numbers]


def test_time_between_events():
    start, end, stream = cuda.event(), cuda.event(), cuda.stream()
    start.record(stream)
    cuda.to_device(np.arange(100), stream=stream)
    end.record(stream)
    end.synchronize()
    assert cuda.event_elapsed_time(start, end) >= 0


# -- kernels -----------------------------------------------------------------------------------------------------------


def test_a_kernel_on_device_arrays(kernels):
    d = cuda.to_device(np.arange(100.0))
    increase[4, 32](d, 1.5)
    assert (d.copy_to_host() == np.arange(100.0) + 1.5).all()
    increase.forall(100)(d, 1.0)
    increase.forall(0)(d, 1.0)
    assert (d.copy_to_host() == np.arange(100.0) + 2.5).all()
    increase[(2, 1), (16, 1, 1)](d[:20], -2.5)
    assert (d.copy_to_host()[:20] == np.arange(20.0)).all()


def test_arguments_by_their_names(kernels):
    d = cuda.to_device(np.arange(4.0))
    increase[1, 4](d, by=2)
    increase.forall(4)(array=d, by=1)
    assert d.copy_to_host().tolist() == [3, 4, 5, 6]


def test_arrays_in_a_tuple(kernels):
    @cuda.jit
    def difference(pair, out):
        i = cuda.grid(1)
        if i < out.size:
            out[i] = pair[0][i] - pair[1][i]

    d, out = cuda.to_device(np.arange(4.0)), cuda.device_array(4)
    host = np.ones(4)
    with pytest.warns(dm.DevmemWarning, match="uploaded"):
        difference[1, 4]((d, host), out)
    assert out.copy_to_host().tolist() == [-1, 0, 1, 2]
    with pytest.raises(TypeError, match="SmartArray"):
        difference[1, 4]((d, dm.SmartArray(host)), out)


def test_a_kernel_on_host_arrays(kernels):
    source = np.arange(100.0)
    with pytest.warns(dm.DevmemWarning, match="uploaded"):
        increase[4, 32](source, 1.0)
    assert (source == np.arange(100.0) + 1).all()
    largest[1, 4](cuda.In(np.array([1.0, 5, 2, 7])), cuda.In(np.array([4.0, 3, 9, 1])), cuda.Out(out := np.empty(4)))
    assert out.tolist() == [4, 5, 9, 7]


@pytest.mark.parametrize(
    ("name", "value"), [("NUMBA_CUDA_WARN_ON_IMPLICIT_COPY", "0"), ("NUMBA_DISABLE_PERFORMANCE_WARNINGS", "1")]
)
def test_numbas_variables_silence_the_warning_of_copies(kernels, monkeypatch, name, value):
    monkeypatch.setenv(name, value)
    increase[4, 32](source := np.arange(100.0), 1.0)
    assert source[0] == 1


POINT = np.dtype([("x", "f8"), ("y", "f8")])


@cuda.jit
def move(point, by, out):
    out[0] = point.x
    point.y = by


def test_a_record_of_an_array_in_a_kernel(kernels):
    points, out = cuda.to_device(np.ones(3, POINT)), cuda.to_device(np.zeros(1))
    move[1, 1](points[1], 4.0, out)
    assert points.copy_to_host().tolist() == [(1, 1), (1, 4), (1, 1)]
    assert out.copy_to_host()[0] == 1
    move[1, 1](cuda.InOut(host := np.ones(3, POINT)[2]), 5.0, out)
    assert host.tolist() == (1, 5)


@cuda.jit
def twice(value):
    return value * 2


@cuda.jit
def twice_each(array):
    at = cuda.grid(1)
    if at < array.size:
        array[at] = twice(array[at])


@cuda.jit("void(float64[:])")
def twice_each_and_more(array):
    twice_each(array)
    array[cuda.grid(1)] += twice(1)


def test_a_kernel_that_a_kernel_calls_is_a_function(kernels):
    """As in numba.cuda: ``device=True`` is for functions that are never launched, and need not be said."""
    d = cuda.to_device(np.arange(4.0))
    twice_each.specialize(d)[1, 4](d)
    twice_each_and_more[1, 4](d)
    assert d.copy_to_host().tolist() == [2, 6, 10, 14]
    with pytest.raises(ValueError, match="launch configuration was not specified"):
        twice(1)
    with pytest.raises(ValueError, match=r"griddim must be a sequence of 1, 2 or 3 integers, got \[1, 2, 3, 4\]"):
        twice_each[(1, 2, 3, 4), 5]
    with pytest.raises(TypeError, match=r"blockdim must be a sequence of integers, got \[2\.0\]"):
        twice_each[1, 2.0]


def test_what_jit_has_made_can_be_given_to_it_again(kernels):
    """As in numba.cuda, which compiles the function anew: of a device function or a kernel, the one or the other."""
    bigger, more = cuda.jit(device=True)(larger), cuda.jit(device=True)(twice)

    @cuda.jit
    def largest_twice(array):
        array[0] = more(bigger(array[0], array[1]))

    d = cuda.to_device(np.array([2.0, 3.0]))
    cuda.jit(cuda.jit(largest_twice, device=True))[1, 1](d)
    cuda.jit("void(float64[::1], int64)")(increase)[1, 2](d, 1)
    assert d.copy_to_host().tolist() == [7, 4]


def test_a_function_of_a_kernel_is_looked_through(kernels, device):
    """What no compiler takes is found in what a kernel calls, with or without ``device=True``."""
    if "launch" in device.info.capabilities:
        pytest.skip("compilers say it in their own words")

    def plain(value):
        return value

    @cuda.jit
    def inner(value):
        return plain(value)

    @cuda.jit
    def outer(array):
        array[0] = inner(array[0])

    with pytest.raises(dm.errors.SimulatorError, match="plain is a plain function"):
        outer[1, 1](cuda.to_device(np.ones(1)))


def test_a_kernel_can_be_pickled():
    assert pickle.loads(pickle.dumps(twice)) is twice


def test_a_kernel_on_a_stream(kernels):
    stream = cuda.stream()
    d = cuda.to_device(np.zeros(64), stream=stream)
    increase[2, 32, stream](d, 3.0)
    increase.configure(2, 32, stream, 0)(d, 1.0)
    out = d.copy_to_host(stream=stream)
    stream.synchronize()
    assert (out == 4).all()


def test_memory_that_a_block_shares(kernels):
    d = cuda.to_device(np.arange(32, dtype="f4"))
    backwards[1, 32](d)
    assert d.copy_to_host().tolist() == list(range(31, -1, -1))


def test_matrices_by_tiles(kernels):
    random = np.random.default_rng(1)
    a, b = random.random((8, 8)), random.random((8, 8))
    c = cuda.device_array((8, 8))
    multiply[(2, 2), (4, 4)](cuda.to_device(a), cuda.to_device(b), c)
    np.testing.assert_allclose(c.copy_to_host(), a @ b)


def test_memory_of_a_threads_own(kernels):
    out = cuda.device_array((3, 4))
    powers[1, 3](out)
    assert out.copy_to_host().tolist() == [[1, 0, 0, 0], [1, 1, 1, 1], [1, 2, 4, 8]]


def test_constants_of_a_kernel(kernels):
    out = cuda.device_array(6)
    weigh[1, 8](cuda.to_device(np.arange(6.0)), out)
    assert out.copy_to_host().tolist() == [0, 10, 200, 3, 40, 500]


def test_atomic_counts_are_numpys_bincount(kernels):
    values = np.arange(100) % 7
    bins = cuda.to_device(np.zeros(7, np.int32))
    count[2, 8](cuda.to_device(values), bins)
    assert bins.copy_to_host().tolist() == np.bincount(values).tolist()


def test_mapped_memory_in_a_kernel(kernels, need_kind):
    need_kind("mapped")
    shared = cuda.mapped_array(32)
    shared[:] = 1
    increase[1, 32](shared, 2.0)
    cuda.synchronize()
    assert (shared == 3).all()


@pytest.mark.parametrize(
    ("call", "error"),
    [
        (lambda: increase(1), ValueError),
        (lambda: increase[1], ValueError),
        (lambda: increase[None, 1], ValueError),
        (lambda: increase[(1, 1, 1, 1), 1], ValueError),
        (lambda: increase[1.5, 1], TypeError),
        (lambda: increase[1, 1, 7], TypeError),
        (lambda: increase.forall(-1), ValueError),
        (lambda: cuda.jit(boundscheck=True), NotImplementedError),
        (lambda: cuda.jit(link=["other.cu"]), NotImplementedError),
        (lambda: cuda.shared.array(3, "f4"), NotImplementedError),
        (lambda: cuda.syncthreads(), NotImplementedError),
        (lambda: cuda.grid(1), NotImplementedError),
        (lambda: cuda.threadIdx.x, NotImplementedError),
    ],
)
def test_kernels_that_are_used_wrongly(call, error):
    with pytest.raises(error):
        call()


def test_signatures_and_options():
    def body(x):
        pass

    assert cuda.jit("void(float32[::1])")(body).signatures == ("void(float32[::1])",)
    assert cuda.jit(["void(int32)", "void(float64)"])(body).signatures == ("void(int32)", "void(float64)")
    assert cuda.jit(fastmath=True, cache=True, inline="always", lto=False)(body).targetoptions == {"fastmath": True}
    with pytest.warns(DeprecationWarning, match="argtypes"):
        assert cuda.jit(argtypes=["float64[:]", "int32"])(body).signatures == ("void(float64[:], int32)",)
    assert cuda.jit(body).py_func is body


@pytest.mark.parametrize("name", ["overloads", "inspect_asm", "inspect_llvm", "get_regs_per_thread"])
def test_kernels_do_not_show_their_compiled_code(name):
    assert not hasattr(increase, name)
    with pytest.raises(AttributeError, match=f"no attribute '{name}': it tells of compiled code.*numba.cuda.jit"):
        getattr(increase, name)
    with pytest.raises(AttributeError, match=r"'Dispatcher' object has no attribute 'else_where'$"):
        increase.else_where  # noqa: B018


def test_a_record_of_the_host_is_written_back(kernels):
    @cuda.jit
    def double(record):
        record.x *= 2

    rows = np.array([(1.5, 3), (2.5, 4)], [("x", "f4"), ("n", "i4")]).view(np.recarray)
    double[1, 1](rows[1])
    assert rows.x.tolist() == [1.5, 5]


def test_fields_of_an_array_of_records(kernels):
    @cuda.jit
    def copy(rows, out):
        i = cuda.grid(1)
        out[i] = rows.x[i]

    rows, out = np.array([(1.5, 3), (2.5, 4)], [("x", "f4"), ("n", "i4")]).view(np.recarray), np.zeros(2)
    copy[1, 2](cuda.In(rows), cuda.Out(out))
    assert out.tolist() == [1.5, 2.5]


def test_the_signature_that_loses_least_is_taken(kernels):
    @cuda.jit(["(float64[::1], float32, float32)", "(float64[::1], float64, float64)"])
    def add(out, x, y):
        out[0] = x + y

    for types, total in ((float, 1 + 2**-25), (np.float32, 1)):
        out = np.zeros(1)
        add[1, 1](cuda.Out(out), types(1), types(2**-25))
        assert out[0] == total


def test_a_kernels_exception_is_of_its_kind(kernels):
    class Own(Exception):
        pass

    @cuda.jit
    def wrong(x, which):
        if which == 0:
            raise Own("here")
        raise IndexError

    for which, kind in enumerate((Own, IndexError)):
        with pytest.raises(kind) as caught:
            wrong[1, 1](cuda.device_array(1), which)
        assert isinstance(caught.value, dm.SimulatorError)
        assert caught.value.lineno


def test_members_of_enumerations_are_arguments(kernels):
    class Color(enum.Enum):
        RED = 1
        BLUE = 2

    @cuda.jit
    def is_red(color, out):
        out[0] = color == Color.RED

    out = np.zeros(2, bool)
    is_red[1, 1](Color.RED, cuda.Out(out[:1]))
    is_red[1, 1](Color.BLUE, cuda.Out(out[1:]))
    assert out.tolist() == [True, False]


def test_extensions_replace_arguments(kernels):
    class Unwrap:
        def prepare_args(self, kind, value, stream, retr):
            if not isinstance(value, list):
                return kind, value
            array = np.array(value)
            retr.append(lambda: value.__setitem__(slice(None), array.tolist()))
            return kind, cuda.InOut(array)

    @cuda.jit(extensions=[Unwrap()])
    def double(x):
        x[cuda.grid(1)] *= 2

    given = [1, 2, 3]
    double[1, 3](given)
    assert given == [2, 4, 6]


def test_what_guvectorize_does_not_take():
    with pytest.raises(TypeError, match="'what'"):
        cuda.guvectorize(["void(float32[:], float32[:])"], "(x)->(x)", what=True)
    with pytest.raises(TypeError, match="cannot return values"):
        cuda.guvectorize(["int32(int32[:], int32[:])"], "(m)->(m)")


def test_printed_positions_and_tuples(kernels, capfd):
    @cuda.jit
    def show(x):
        print(cuda.threadIdx, (x[0], x[1]))

    show[1, 1](cuda.In(np.arange(2)))
    assert capfd.readouterr().out == "(0, 0, 0) (0, 1)\n"
