"""`devmem.compat.numba_cuda`: the verbs, with numba.cuda's arguments, streams and exceptions."""

from __future__ import annotations

import gc
import weakref

import numpy as np
import pytest
from waits import patience

import devmem as dm
from devmem.compat import numba_cuda as cuda
from devmem.compat.numba_cuda.cudadrv.driver import CudaAPIError, CudaDriverError, MemoryPointer


@pytest.fixture(autouse=True)
def fresh(devmem_backend):
    """Contexts of this test's own: they change the device's memory stack."""
    dm.close()
    yield
    cuda.close()
    dm.close()


# -- to_device ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "source",
    [
        np.arange(6.0),
        np.arange(6, dtype=np.int16).reshape(2, 3),
        np.asfortranarray(np.arange(12.0).reshape(3, 4)),
        np.arange(24).reshape(2, 3, 4),
        np.array(3.5),
        np.empty((0, 3)),
        [1, 2, 3],
        7,
        2.5,
        np.float32(4),
        np.array(["2020-01-01"], "M8[D]"),
        np.array([1 + 2j]),
    ],
    ids=lambda value: f"{type(value).__name__}-{np.shape(value)}",
)
def test_to_device_copies_what_numpy_makes_an_array_of(source):
    d = cuda.to_device(source)
    host = np.asarray(source)
    assert type(d) is cuda.devicearray.DeviceNDArray
    assert isinstance(d, dm.DeviceNDArray)
    assert (d.shape, d.dtype, d.strides) == (host.shape, host.dtype, host.strides)
    np.testing.assert_array_equal(d.copy_to_host(), host)


def test_device_memory_is_returned_as_it_is():
    d = cuda.to_device(np.arange(3))
    assert cuda.to_device(d) is d
    assert cuda.to_device(d, copy=False) is d


def test_a_native_array_is_seen_in_place_and_stays_native():
    native = dm.to_device(np.arange(3))
    d = cuda.to_device(native)
    assert type(d) is cuda.devicearray.DeviceNDArray
    assert type(native) is dm.DeviceNDArray
    d[0] = 9
    assert native.copy_to_host().tolist() == [9, 1, 2]


def test_of_a_broadcast_array_only_the_core_is_uploaded():
    source = np.broadcast_to(np.arange(3.0), (4, 3))
    d = cuda.to_device(source)
    assert (d.shape, d.strides, d.alloc_size) == ((4, 3), (0, 8), 24)
    np.testing.assert_array_equal(d.copy_to_host(), source)
    assert d.flags == {"C_CONTIGUOUS": False, "F_CONTIGUOUS": False}


@pytest.mark.parametrize("source", [np.arange(12.0)[::2], np.arange(12.0)[::-1], np.arange(12.0).reshape(3, 4)[:, 1:3]])
def test_an_array_with_gaps_is_refused(source):
    with pytest.raises(ValueError, match="non-contiguous"):
        cuda.to_device(source)
    assert dm.to_device(source).copy_to_host().tolist() == source.tolist()


def test_to_device_fills_to_and_obeys_copy():
    d = cuda.device_array(3)
    assert cuda.to_device(np.arange(3.0), to=d) is d
    assert d.copy_to_host().tolist() == [0, 1, 2]
    assert cuda.to_device(np.full(3, 5.0), copy=False, to=d) is d
    assert d.copy_to_host().tolist() == [0, 1, 2]
    assert cuda.to_device(np.zeros(3), copy=False).shape == (3,)
    with pytest.raises(TypeError, match="incompatible dtype"):
        cuda.to_device(np.arange(3, dtype=np.int32), to=d)
    with pytest.raises(ValueError, match="incompatible shape"):
        cuda.to_device(np.arange(4.0), to=d)


def test_without_an_argument_it_says_which_is_missing():
    with pytest.raises(TypeError, match="obj"):
        cuda.to_device()
    with pytest.raises(TypeError, match="nonsense"):
        cuda.to_device(np.arange(3), nonsense=1)


@pytest.mark.parametrize("dtype", [object, [("a", object)]])
def test_python_objects_are_refused(dtype):
    """numba.cuda uploads their addresses, which mean nothing there."""
    with pytest.raises(ValueError, match="Python objects"):
        cuda.to_device(np.zeros(3, dtype))


def test_a_record_becomes_a_device_record():
    kind = np.dtype([("x", "i4"), ("y", "f8")])
    record = np.array([(1, 2.5)], kind)[0]
    d = cuda.to_device(record)
    assert type(d) is cuda.cudadrv.devicearray.DeviceRecord
    assert d["x"] == 1
    assert d["y"] == 2.5


# -- new arrays --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ((3,), ((3,), np.float64, (8,))),
        (((2, 3), np.int16), ((2, 3), np.int16, (6, 2))),
        (([2, 3], "f4"), ((2, 3), np.float32, (12, 4))),
        (((2, 3), "f4", None, "F"), ((2, 3), np.float32, (4, 8))),
        (((2, 3), "f4", (16, 4)), ((2, 3), np.float32, (16, 4))),
        (((), "f4"), ((), np.float32, ())),
        ((0,), ((0,), np.float64, (8,))),
        (((np.int64(2), np.uint8(3)),), ((2, 3), np.float64, (24, 8))),
    ],
)
def test_device_array_takes_numbas_arguments(arguments, expected):
    d = cuda.device_array(*arguments)
    assert (d.shape, d.dtype, d.strides) == expected
    assert d.stream == 0
    assert bool(d.device_ctypes_pointer.value) == bool(d.size)


@pytest.mark.parametrize("make", [cuda.device_array, cuda.pinned_array, cuda.mapped_array, cuda.managed_array])
@pytest.mark.parametrize(
    ("arguments", "error", "says"),
    [
        ((2.0,), TypeError, "integer"),
        (((2, 2.5),), TypeError, "shape elements must be integers, got float"),
        ((np.array([2.0, 3.0]),), TypeError, "integer"),
        ((np.int64(3),), TypeError, "iterable"),
        ((None,), TypeError, "iterable"),
        ((-1,), OverflowError, "negative"),
        (((2, -3),), ValueError, "negative"),
        ((3, "f8", None, "X"), ValueError, "must be either C/F order"),
        (((2, 3), "f8", (8,)), ValueError, "strides not match ndim"),
        ((3, "nonsense"), TypeError, "nonsense"),
    ],
)
def test_bad_arguments_of_new_arrays(make, arguments, error, says):
    with pytest.raises(error, match=says):
        make(*arguments)


@pytest.mark.parametrize(
    "model",
    [
        np.empty((3, 4)),
        np.empty((3, 4), order="F"),
        np.empty((2, 3, 4)).transpose(2, 0, 1),
        np.empty((8, 8))[::2, ::2],
        np.broadcast_to(np.empty(3), (4, 3)),
    ],
)
def test_like_keeps_the_order_and_drops_the_gaps(model, need_kind):
    need_kind("pinned", "mapped")
    wanted = np.empty_like(model).strides if model.flags.forc or 0 not in model.strides else None
    for make in (cuda.device_array_like, cuda.pinned_array_like, cuda.mapped_array_like):
        found = make(model)
        assert (found.shape, found.dtype) == (model.shape, model.dtype)
        assert wanted is None or found.strides == wanted


@pytest.mark.parametrize("make", [cuda.device_array_like, cuda.pinned_array_like, cuda.mapped_array_like])
def test_like_takes_an_array(make):
    with pytest.raises(AttributeError):
        make([1, 2, 3])


def test_memory_that_ran_out_is_a_cuda_api_error_and_a_memory_error():
    with pytest.raises(CudaAPIError) as caught:
        cuda.device_array(1 << 60, np.int8)
    assert caught.value.code == 2
    assert isinstance(caught.value, CudaDriverError)
    assert isinstance(caught.value, dm.OutOfMemory)
    assert "bytes" in caught.value.msg
    assert str(caught.value).startswith("[2] ")


class Mine:
    """Something that a caller has in a variable."""


@pytest.mark.parametrize("what", ["dtype", "items", "type", "closed"])
def test_errors_passed_on_unchanged_keep_nothing_alive_and_have_no_cause(what):
    """Without a collection: not what their callers had."""
    array = cuda.to_device(np.arange(3))
    array.free()
    calls = {
        "dtype": lambda: cuda.device_array(4, dtype="O"),
        "items": lambda: cuda.to_device(np.array([object()])),
        "type": lambda: cuda.device_array(4, dtype=np.dtype("i4"), strides="x"),
        "closed": array.copy_to_host,
    }

    def caller():
        mine = Mine()
        try:
            calls[what]()
        except (TypeError, dm.DevmemError) as error:
            return weakref.ref(mine), error.__cause__ is error

    gc.collect()
    gc.disable()
    try:
        kept, own_cause = caller()
        assert kept() is None
        assert not own_cause
    finally:
        gc.enable()


# -- memory that host and device share ---------------------------------------------------------------------------------


def test_pinned_arrays_are_ndarrays(need_kind):
    need_kind("pinned")
    a = cuda.pinned_array((2, 3), np.int32, order="F")
    a[:] = 4
    assert isinstance(a, np.ndarray)
    assert cuda.to_device(a).copy_to_host().tolist() == [[4] * 3] * 2


@pytest.mark.parametrize(("make", "kind"), [(cuda.mapped_array, "mapped"), (cuda.managed_array, "managed")])
def test_arrays_that_the_device_reaches(make, kind, need_kind):
    need_kind(kind)
    a = make((3, 4), np.float64)
    a[:] = np.arange(12.0).reshape(3, 4)
    assert isinstance(a, np.ndarray)
    assert cuda.to_device(a) is a
    # What numba.cuda documents, and raises AttributeError for: B4.
    np.testing.assert_array_equal(a.copy_to_host(), np.arange(12.0).reshape(3, 4))
    a.copy_to_device(np.zeros((3, 4)))
    assert not a.any()
    part = a[1:, ::2]
    assert part.device_ctypes_pointer.value == a.device_ctypes_pointer.value + 32
    assert part.__cuda_array_interface__["strides"] == (32, 16)
    assert [len(each) for each in a.split(2)] == [2, 1]
    assert a.stream == 0
    stream = cuda.stream()
    assert make(3, stream=stream).stream is stream


def test_flags_of_mapped_arrays_reach_the_driver(recorded, need_kind):
    """B3."""
    need_kind("mapped")
    cuda.mapped_array(8, portable=True, wc=True)
    flags = recorded.named("alloc")[-1].args[3]
    assert flags & 1
    assert flags & 2


def test_pinned_locks_for_a_block(need):
    need("host_register")
    a = np.arange(10.0)
    with cuda.pinned(a) as nothing:
        assert nothing is None
        with cuda.pinned(a):  # numba.cuda: CudaAPIError 712
            pass
    with cuda.pinned(a):
        pass
    with pytest.raises(TypeError), cuda.pinned([1, 2]):
        pass


def test_pinned_ends_also_when_the_body_raises(need):
    """B8."""
    need("host_register")
    a = np.arange(10.0)
    with pytest.raises(ZeroDivisionError), cuda.pinned(a):
        1 / 0  # noqa: B018
    with pytest.raises(dm.DevmemError):
        dm.deregister(a)


def test_mapped_gives_one_array_or_a_list(need):
    need("mapped", "host_register")
    a, b = np.arange(4.0), np.arange(6.0)
    with cuda.mapped(a) as one:
        assert type(one) is cuda.devicearray.DeviceNDArray
        one[:] = 7
    with cuda.mapped(a, b, stream=cuda.stream()) as several:
        assert [each.shape for each in several] == [(4,), (6,)]
    assert a.tolist() == [7] * 4
    with pytest.raises(AssertionError, match="stream"), cuda.mapped(a, nonsense=1):
        pass
    with pytest.raises(dm.ClosedError):
        several[0].copy_to_host()


# -- streams -----------------------------------------------------------------------------------------------------------


class UnknownStream:
    def __cuda_stream__(self):
        return 0, 1


@pytest.mark.parametrize("stream", [1, 5, "s", True, 2.5, UnknownStream()], ids=lambda value: type(value).__name__)
def test_what_is_no_stream_is_refused(stream):
    d = cuda.device_array(3)
    for call in (
        lambda: cuda.to_device(np.arange(3.0), stream=stream),
        lambda: cuda.device_array(3, stream=stream),
        lambda: cuda.device_array_like(np.arange(3.0), stream=stream),
        lambda: d.copy_to_host(stream=stream),
        lambda: d.copy_to_device(np.arange(3.0), stream=stream),
        lambda: d.bind(stream),
        lambda: d.setitem(0, 1, stream=stream),
        lambda: cuda.event().record(stream),
        lambda: cuda.event().wait(stream),
    ):
        with pytest.raises(TypeError, match="Expected a Stream object or 0, got"):
            call()


def test_none_and_zero_name_no_stream_but_events_take_no_none():
    for stream in (0, None, False):
        assert cuda.to_device(np.arange(3.0), stream=stream).stream == 0
    for nothing in (None, [], ()):
        assert cuda.to_device(np.arange(3.0)).copy_to_host(stream=nothing).tolist() == [0, 1, 2]
        with pytest.raises(TypeError):
            cuda.event().record(nothing)
        with pytest.raises(TypeError):
            cuda.event().wait(nothing)


def test_streams_say_which_they_are():
    own, default, legacy, mine = (
        cuda.stream(),
        cuda.default_stream(),
        cuda.legacy_default_stream(),
        cuda.per_thread_default_stream(),
    )
    assert (int(default), int(legacy), int(mine)) == (0, 1, 2)
    assert repr(default) == "<Default CUDA stream>"
    assert repr(legacy) == "<Legacy default CUDA stream>"
    assert repr(mine) == "<Per-thread default CUDA stream>"
    assert repr(own) == f"<CUDA stream {int(own)}>"
    if own.device.info.exchange.cuda_stream:
        assert own.__cuda_stream__() == (0, own.handle)
        assert default.__cuda_stream__() == (0, 0)
    for each in (own, default, legacy, mine):
        assert each
        assert not each.external
        assert each != 0
        each.synchronize()
    assert cuda.default_stream() is not default
    assert isinstance(own, cuda.cudadrv.driver.Stream)
    assert isinstance(own, dm.Stream)


def test_external_streams_keep_their_handle(device):
    with device.entered() as driver:
        handle = driver.stream_create(0, False)
    stream = cuda.external_stream(handle)
    assert stream.external
    assert int(stream) == handle
    assert repr(stream) == f"<External CUDA stream {handle}>"
    d = cuda.to_device(np.arange(3.0), stream=stream)
    assert d.stream is stream
    stream.synchronize()
    assert d.copy_to_host(stream=stream).shape == (3,)
    stream.synchronize()
    del d
    dm.synchronize()
    with device.entered() as driver:
        driver.stream_destroy(handle)
    for bad in (np.int64(handle), "1", 1.0, None):
        with pytest.raises(TypeError, match="must be an int"):
            cuda.external_stream(bad)


def test_a_named_stream_makes_a_copy_asynchronous_and_binds_the_array(need, need_kind, hold):
    need("hold")
    need_kind("pinned")
    stream = cuda.stream()
    source, out = cuda.pinned_array(4), cuda.pinned_array(4)
    source[:] = 1
    out[:] = 0
    with hold(stream) as latch:
        d = cuda.to_device(source, stream=stream)
        assert d.stream is stream
        assert d[1:].stream is stream
        assert d.view(np.int64).stream is stream
        assert d.ravel().stream is stream
        assert next(d.split(2)).stream is stream
        assert d.reshape(2, 2).stream == 0
        # The array's own stream orders copies for which none is named, and they do not wait either.
        d.copy_to_host(out)
        assert not stream.query()
        latch.release()
    stream.synchronize()
    assert out.tolist() == [1] * 4


def test_the_default_stream_named_makes_a_copy_asynchronous(need, need_kind, hold):
    need("hold")
    need_kind("pinned")
    out, d = cuda.pinned_array(4), cuda.to_device(np.ones(4))
    default = cuda.default_stream()
    with hold(dm.legacy_default_stream()) as latch:
        d.copy_to_host(out, stream=default)
        latch.release()
    default.synchronize()
    assert out.tolist() == [1] * 4


def test_one_element_and_arrays_of_numpys_are_complete_even_if_the_array_is_bound():
    """numba.cuda reads them asynchronously, and too early."""
    d = cuda.to_device(np.arange(4.0), stream=cuda.stream())
    assert d[2] == 2.0
    assert np.asarray(d).tolist() == [0, 1, 2, 3]
    assert d.tolist() == [0, 1, 2, 3]
    assert float(d[1:2]) == 1.0


def test_auto_synchronize_waits_also_when_the_body_raises():
    """B8."""
    stream = cuda.stream()
    with stream.auto_synchronize() as same:
        assert same is stream
        d = cuda.to_device(np.arange(4.0), stream=stream)
    with pytest.raises(ZeroDivisionError), stream.auto_synchronize():
        d.copy_to_host(stream=stream)
        1 / 0  # noqa: B018
    assert stream.query()


def test_events_order_streams_and_measure_time():
    start, end = cuda.event(), cuda.event(timing=True)
    assert start.query()
    stream = cuda.stream()
    start.record(stream)
    cuda.to_device(np.arange(1000.0), stream=stream)
    end.record(stream)
    end.wait(cuda.stream())
    end.synchronize()
    assert end.query()
    assert cuda.event_elapsed_time(start, end) >= 0
    assert start.elapsed_time(end) == cuda.event_elapsed_time(start, end)
    cuda.event(timing=False).record()
    for one, other in ((start, cuda.event()), (cuda.event(timing=False), end)):
        with pytest.raises(CudaAPIError):
            one.elapsed_time(other)
    assert isinstance(start, cuda.cudadrv.driver.Event)


def test_callbacks_are_called_in_order_when_the_stream_has_passed(need, hold):
    """B2."""
    need("hold")
    import threading

    stream, calls, done = cuda.stream(), [], threading.Event()
    with hold(stream) as latch:
        for number in range(5):
            stream.add_callback(lambda s, status, arg: calls.append((s, status, arg)), number)
        stream.add_callback(lambda *_: done.set())
        assert not calls
        latch.release()
    assert done.wait(patience())
    assert calls == [(stream, 0, number) for number in range(5)]


def test_async_done_can_be_awaited():
    """B2."""
    import asyncio

    async def wait():
        stream = cuda.stream()
        d = cuda.to_device(np.arange(4.0), stream=stream)
        out = d.copy_to_host(stream=stream)
        assert await asyncio.wait_for(stream.async_done(), 20) is stream
        return out.tolist()

    assert asyncio.run(wait()) == [0, 1, 2, 3]


# -- the rest ----------------------------------------------------------------------------------------------------------


def test_the_questions_about_the_device_are_answered(capsys):
    assert cuda.is_available() is True
    assert cuda.cuda_error() is None
    assert cuda.is_supported_version() is cuda.runtime.is_supported_version() is True
    assert cuda.runtime.get_version() == cuda.cudadrv.runtime.get_version() == cuda.driver.get_version()
    assert cuda.detect() is True
    assert f"Found {len(cuda.gpus)} CUDA devices" in capsys.readouterr().out
    assert cuda.is_float16_supported()
    assert isinstance(cuda.is_bfloat16_supported(), bool)
    assert isinstance(cuda.is_fp8_supported(), bool)
    assert cuda.synchronize() is None
    with cuda.profiling():
        pass
    cuda.profile_start()
    cuda.profile_stop()


def test_a_host_backend_chosen_by_default_is_no_gpu(python):
    """Code that asks has a way of its own for machines without one."""
    done = python(
        "import warnings, numpy as np, devmem as dm\n"
        "warnings.simplefilter('ignore')\n"
        "from devmem.compat import numba_cuda as cuda\n"
        "gpus = any(status.usable and status.devices for status in dm.backends() if status.name != 'host')\n"
        "assert cuda.is_available() is gpus, cuda.cuda_error()\n"
        "assert (cuda.cuda_error() is None) is gpus\n"
        "print(cuda.to_device(np.arange(3)).copy_to_host().tolist())\n",
        BACKEND=None,
    )
    assert done.stdout.strip() == "[0, 1, 2]", done.stderr


def test_old_spellings_are_accepted_and_told():
    with pytest.warns(DeprecationWarning, match="obj=") as caught:
        d = cuda.to_device(array=np.arange(3.0))
    assert caught[0].filename == __file__
    out = np.empty(3)
    with pytest.warns(DeprecationWarning, match="ary="):
        assert d.copy_to_host(array=out) is out
    kind = cuda.cudadrv.devicearray.DeviceNDArray
    for keywords in ({"writeback": None}, {"gpu_head": None}):
        with pytest.warns(DeprecationWarning, match="no effect"):
            assert kind((3,), (8,), "f8", **keywords).shape == (3,)
    memory = cuda.current_context().memalloc(24)
    with pytest.warns(DeprecationWarning, match="writeback"):
        assert kind((3,), (8,), "f8", 0, None, memory).device_ctypes_pointer.value == memory.device_pointer.value
    with pytest.raises(TypeError):
        kind((3,), (8,), "f8", nonsense=1)
    handle = cuda.stream().handle
    with pytest.warns(DeprecationWarning, match="Stream") as caught:
        assert int(cuda.cudadrv.driver.Stream(cuda.current_context(), handle, None)) == handle
    assert caught[0].filename == __file__


def test_is_cuda_array_and_as_cuda_array():
    d = cuda.to_device(np.arange(6.0).reshape(2, 3))
    assert cuda.is_cuda_array(d)
    assert not cuda.is_cuda_array(np.arange(3))
    same = cuda.as_cuda_array(d)
    same[0] = 9
    assert d.copy_to_host()[0].tolist() == [9] * 3
    with pytest.raises(TypeError, match="interface"):
        cuda.as_cuda_array(np.arange(3))


class Foreign:
    def __init__(self, **interface):
        self.__cuda_array_interface__ = interface


def described(d, **changes):
    found = {"shape": d.shape, "strides": None, "typestr": d.dtype.str, "data": (d.ptr, False), "version": 3}
    return Foreign(**found | changes)


def test_foreign_arrays_are_seen_in_place():
    d = cuda.to_device(np.arange(6.0))
    stream = cuda.stream()
    seen = cuda.as_cuda_array(described(d, stream=stream.handle))
    assert int(seen.stream) == stream.handle
    seen[:] = 1
    assert d.copy_to_host().tolist() == [1] * 6
    assert cuda.as_cuda_array(described(d)).stream == 0
    assert int(cuda.as_cuda_array(described(d, stream=0)).stream) == 1
    part = cuda.from_cuda_array_interface(described(d, shape=(3,), strides=(16,)).__cuda_array_interface__, owner=d)
    assert part.copy_to_host().tolist() == [1] * 3


@pytest.mark.parametrize(
    ("value", "sync", "waits"), [(None, True, 1), ("1", True, 1), ("0", True, 0), (None, False, 0)]
)
def test_whether_the_host_waits_for_a_foreign_array(monkeypatch, value, sync, waits):
    d, stream, waited = cuda.to_device(np.arange(6.0)), cuda.stream(), []
    monkeypatch.setattr(cuda.cudadrv.driver.Stream, "synchronize", lambda self: waited.append(self))
    if value is not None:
        monkeypatch.setenv("NUMBA_CUDA_ARRAY_INTERFACE_SYNC", value)
    seen = cuda.as_cuda_array(described(d, stream=stream.handle), sync=sync)
    assert [int(each) for each in waited] == [int(seen.stream)] * waits


def test_foreign_arrays_that_cannot_be_taken():
    d = cuda.to_device(np.arange(6.0))
    with pytest.raises(NotImplementedError, match="Masked"):
        cuda.as_cuda_array(described(d, mask=d))
    without = described(d).__cuda_array_interface__
    del without["version"]
    with pytest.raises(TypeError, match="version"):
        cuda.from_cuda_array_interface(without)


def test_the_array_interface_of_arrays():
    stream = cuda.stream()
    kind = np.dtype([("x", "i4"), ("y", "f8")])
    d = cuda.device_array((2, 3), "f4")
    interface = d.__cuda_array_interface__
    assert {key: interface[key] for key in ("shape", "strides", "typestr", "version", "stream")} == {
        "shape": (2, 3),
        "strides": None,
        "typestr": "<f4",
        "version": 3,
        "stream": None,
    }
    assert interface["data"] == (d.device_ctypes_pointer.value, False)
    assert cuda.device_array(3, stream=stream).__cuda_array_interface__["stream"] == int(stream)
    assert d[:, ::2].__cuda_array_interface__["strides"] == (12, 8)
    # B7: no stream 0, and records with their fields.
    assert cuda.device_array(3, stream=cuda.default_stream()).__cuda_array_interface__["stream"] != 0
    records = cuda.device_array(3, kind)
    assert records.__cuda_array_interface__["descr"] == kind.descr
    assert cuda.as_cuda_array(Foreign(**records.__cuda_array_interface__)).dtype == kind


def test_pyarrow_builds_pointers_by_position():
    d = cuda.to_device(np.arange(4.0))
    memory = MemoryPointer(cuda.current_context(), d.device_ctypes_pointer, d.alloc_size, d)
    seen = cuda.cudadrv.devicearray.DeviceNDArray((4,), (8,), np.float64, gpu_data=memory)
    assert seen.gpu_data is memory
    seen[1] = 5
    assert d[1] == 5
