"""``devmem.compat.numba_roc``: what programs for numba.roc say, and what comes of it."""

from __future__ import annotations

import ctypes
import gc
import warnings

import numpy as np
import pytest

import devmem as dm
from devmem.compat import numba_roc as roc
from devmem.compat.numba_roc.hsadrv import devices, driver, error
from devmem.compat.numba_roc.hsadrv.devicearray import DeviceMemory, DeviceNDArray, HostArray, auto_device
from devmem.kernels.simulation import wave_size
from devmem.spi.types import AllocFlags

pytestmark = pytest.mark.usefixtures("devmem_backend", "tidy")

RECORD = np.dtype([("a", "i4"), ("b", "f8")])


# -- to_device ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "source",
    [
        np.arange(10),
        np.arange(12.0).reshape(3, 4),
        np.asfortranarray(np.arange(12.0).reshape(3, 4)),
        np.arange(24).reshape(4, 6)[:, ::2],
        np.arange(24).reshape(4, 6)[::-1],
        np.broadcast_to(np.arange(3), (4, 3)),
        np.empty((0, 3)),
        np.zeros(3, RECORD),
        np.array(["2001-02-03"], "M8[D]"),
    ],
    ids=["1-d", "c", "f", "gaps", "backwards", "repeated", "empty", "record", "date"],
)
def test_an_array_comes_back_from_to_device_unchanged(source):
    device = roc.to_device(source)
    assert type(device) is DeviceNDArray
    assert (device.shape, device.dtype, device.stream) == (source.shape, source.dtype, None)
    back = device.copy_to_host()
    np.testing.assert_array_equal(back, source)
    assert back.strides == device.strides or not back.size
    target = np.empty_like(back)
    if target.strides == device.strides:
        assert device.copy_to_host(target) is target
        np.testing.assert_array_equal(target, source)


def test_strides_are_kept_where_memory_can_lie_so():
    source = np.arange(24.0).reshape(4, 6)[:, ::2]
    device = roc.to_device(source)
    assert device.strides == source.strides
    base = np.full((4, 6), -1.0)
    assert device.copy_to_host(base[:, ::2]) is not None
    np.testing.assert_array_equal(base[:, ::2], source)
    assert (base[:, 1::2] == -1).all()  # numba.roc overwrote these
    assert roc.device_array_like(source).strides == source.strides


@pytest.mark.parametrize(
    "scalar", [np.array(2.5), np.float64(2.5), np.zeros(1, RECORD)[0]], ids=["0-d", "scalar", "record"]
)
def test_one_element_has_an_axis(scalar):
    device = roc.to_device(scalar)
    assert device.shape == (1,)
    assert device.dtype == scalar.dtype
    assert device.copy_to_host()[0] == scalar
    back = np.empty((), scalar.dtype)
    assert device.copy_to_host(back) is back
    assert back[()] == scalar
    device.copy_to_device(np.zeros((), scalar.dtype))
    assert device.copy_to_host()[0] == np.zeros((), scalar.dtype)[()]


def test_a_device_array_is_copied():
    first = roc.to_device(np.arange(4))
    second = roc.to_device(first)
    third = roc.to_device(dm.to_device(np.arange(4)))
    first.copy_to_device(np.zeros(4, np.int64))
    assert second.copy_to_host().tolist() == third.copy_to_host().tolist() == [0, 1, 2, 3]


def test_copy_false_allocates_only(devmem_backend):
    dm.transfer_stats(reset=True)
    device = roc.to_device(np.arange(4), copy=False)
    assert device.shape == (4,)
    assert dm.transfer_stats() == {}


ORDERS = {
    "real, all": lambda a, s, c, out: roc.to_device(a, s, c, True, out),
    "real, stream": lambda a, s, c, out: roc.to_device(a, s, to=out),
    "real, none": lambda a, s, c, out: roc.to_device(a, None, None, True, out),
    "real, keywords": lambda a, s, c, out: roc.to_device(a, context=c, stream=s, copy=True, to=out),
    "documented, all": lambda a, s, c, out: roc.to_device(a, c, True, out),
    "documented, none": lambda a, s, c, out: roc.to_device(a, None, True, out),
    "documented, keywords": lambda a, s, c, out: roc.to_device(a, c, copy=True, to=out),
    "documented, context": lambda a, s, c, out: roc.to_device(a, c, to=out),
}


@pytest.mark.parametrize("name", ORDERS)
def test_both_orders_of_arguments(name):
    source = np.arange(5.0)
    stream, out = roc.stream(), roc.device_array(5)
    assert ORDERS[name](source, stream, devices.get_context(), out) is out
    stream.synchronize()
    np.testing.assert_array_equal(out.copy_to_host(), source)


@pytest.mark.parametrize(
    "call",
    [
        lambda a, c, out: roc.to_device(a, c, False, out),
        lambda a, c, out: roc.to_device(a, c, copy=False, to=out),
        lambda a, c, out: roc.to_device(a, None, False, out),
        lambda a, c, out: roc.to_device(a, None, None, False, out),
        lambda a, c, out: roc.to_device(a, None, c, False, out),
    ],
)
def test_copy_false_is_found_in_both_orders(call):
    out = roc.to_device(np.zeros(3))
    assert call(np.ones(3), devices.get_context(), out) is out
    assert out.copy_to_host().tolist() == [0, 0, 0]


def test_a_context_says_where(second):
    there = devices.Context(second)
    assert roc.to_device(np.arange(3), there).device == second
    assert roc.to_device(np.arange(3), None, there).device == second
    assert roc.to_device(np.arange(3), second).device == second
    here = roc.device_array(3, np.int64)
    with pytest.raises(error.HsaContextMismatchError, match="given context"):
        roc.to_device(np.arange(3), there, to=here)
    with pytest.raises(error.HsaContextMismatchError):
        here.copy_to_device(np.arange(3), context=there)
    here.copy_to_device(np.arange(3), context=devices.get_context())
    assert here.copy_to_host().tolist() == [0, 1, 2]


@pytest.mark.parametrize(
    ("call", "kind"),
    [
        (lambda: roc.to_device([1, 2]), AttributeError),
        (lambda: roc.to_device(None), AttributeError),
        (lambda: roc.to_device(np.array([object()])), ValueError),
        (lambda: roc.to_device(np.arange(3), stream="x"), TypeError),
        (lambda: roc.to_device(np.arange(3), context="x"), TypeError),
        (lambda: roc.to_device(np.arange(3), to=roc.device_array(3)), ValueError),
        (lambda: roc.to_device(np.arange(3), to=roc.device_array(4, "i8")), ValueError),
        (lambda: roc.device_array(-1), ValueError),
        (lambda: roc.device_array(3, order="X"), ValueError),
        (lambda: roc.device_array(3, strides=(8, 8)), ValueError),
        (lambda: roc.device_array(2.5), TypeError),
        (lambda: roc.device_array(3, "nonsense"), TypeError),
        (lambda: roc.device_array(3, object), ValueError),
        (lambda: roc.device_array_like([1, 2]), AttributeError),
        (lambda: roc.register([1, 2]), TypeError),
        (lambda: roc.register(np.zeros(3), 5), TypeError),
        (lambda: roc.deregister("x"), TypeError),
        (lambda: roc.deregister(np.zeros(3)), dm.DevmemError),
        (lambda: roc.finegrain_array(-1), ValueError),
        (lambda: roc.coarsegrain_array(3, order="X"), ValueError),
        (lambda: DeviceNDArray((2, 3), (8,), np.dtype("f8")), ValueError),
        (lambda: DeviceNDArray(3, 8, np.dtype("f8"), dgpu_data=object()), ValueError),
        (lambda: devices.get_gpu(99), IndexError),
        (lambda: devices.get_context(99), dm.ConfigError),
    ],
)
def test_bad_arguments_are_refused(call, kind):
    with pytest.raises(kind):
        call()


# -- device_array, and the array itself --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "shape", "strides"),
    [
        ((3,), (3,), (8,)),
        (((),), (1,), (8,)),
        (((2, 3), "f4"), (2, 3), (12, 4)),
        (((2, 3), "f4", None, "F"), (2, 3), (4, 8)),
        (((2, 3), "f4", (16, 4)), (2, 3), (16, 4)),
        ((3, "i2", 4), (3,), (4,)),
    ],
)
def test_device_array_has_the_layout_asked_for(arguments, shape, strides):
    array = roc.device_array(*arguments)
    assert type(array) is DeviceNDArray
    assert (array.shape, array.strides) == (shape, strides)
    host = np.ndarray(shape, array.dtype, np.zeros(64, "u1"), 0, strides)
    host[...] = np.arange(host.size).reshape(shape)
    array.copy_to_device(host)
    np.testing.assert_array_equal(array.copy_to_host(), host)


def test_the_array_has_what_numba_rocs_has():
    array = roc.to_device(np.arange(6.0).reshape(2, 3))
    assert (array.ndim, array.size, array.alloc_size) == (2, 6, 48)
    assert array.is_c_contiguous()
    assert not array.is_f_contiguous()
    assert isinstance(array.dgpu_data, DeviceMemory)
    assert array.dgpu_data._hsa_memsize_ == 48
    assert array.dgpu_data.context == array._context == devices.get_context()
    assert array.dgpu_data.device_ctypes_pointer.value == array.device_ctypes_pointer.value == array.ptr
    assert isinstance(array.as_hsa_arg(), DeviceMemory)
    assert roc.device_array((0, 2)).dgpu_data is None
    assert isinstance(roc.device_array(0).device_ctypes_pointer, ctypes.c_void_p)
    assert array == array
    assert array != roc.device_array(3)
    assert {array: 1}[array] == 1
    roc.devicearray.verify_hsa_ndarray_interface(array)
    with pytest.raises(ValueError, match="require an hsa ndarray"):
        roc.devicearray.require_hsa_ndarray(np.zeros(3))


def test_memory_of_another_array():
    array = roc.to_device(np.arange(6.0))
    other = DeviceNDArray((2, 3), (24, 8), np.dtype("f8"), array.dgpu_data)
    np.testing.assert_array_equal(other.copy_to_host(), np.arange(6.0).reshape(2, 3))
    del array
    gc.collect()
    assert other.copy_to_host()[1, 2] == 5
    with pytest.raises((ValueError, TypeError)):
        DeviceNDArray((3, 3), (24, 8), np.dtype("f8"), other.dgpu_data)


def test_reshape_and_ravel_are_views_or_refuse():
    array = roc.to_device(np.arange(1000))
    shaped = array.reshape(20, 50, order="F")
    np.testing.assert_array_equal(shaped.copy_to_host(), np.arange(1000).reshape(20, 50, order="F"))
    assert type(shaped) is DeviceNDArray
    assert array.reshape((10, -1)).shape == (10, 100)
    assert array.reshape([10, 100]).ravel().ptr == array.ptr
    rows = array.reshape(20, 50)
    for call in (
        lambda: rows.ravel("F"),
        lambda: rows.reshape(1000, order="F"),
        lambda: rows.reshape(50, 20, order="F"),
    ):
        with pytest.raises(NotImplementedError, match="operation requires copying"):
            call()
    np.testing.assert_array_equal(
        rows.reshape(1000, order="F", copy=True).copy_to_host(), np.arange(1000).reshape(20, 50).ravel("F")
    )
    with pytest.raises(ValueError, match="cannot be shaped"):
        array.reshape(7, 7)
    with pytest.raises(ValueError, match="order is one of"):
        array.reshape(1000, order="X")
    with pytest.raises(TypeError, match="nonsense"):
        array.reshape(1000, nonsense=1)


@pytest.mark.parametrize(
    ("target", "words"),
    [
        (lambda: np.empty((2, 3), "f4"), "incompatible dtype; device float64; host float32"),
        (lambda: np.empty((3, 2)), r"incompatible shape; device \(2, 3\); host \(3, 2\)"),
        (lambda: np.empty(6), "incompatible shape"),
        (lambda: np.empty((2, 3), order="F"), r"incompatible strides; device \(24, 8\); host \(8, 16\)"),
        (lambda: np.empty((2, 6))[:, ::2], "incompatible strides"),
        (lambda: [0] * 6, "into an ndarray, not a list"),
        (lambda: bytearray(48), "into an ndarray, not a bytearray"),
    ],
)
def test_what_a_copy_to_the_host_does_not_go_into_is_a_type_error(target, words):
    array = roc.to_device(np.arange(6.0).reshape(2, 3))
    with pytest.raises(TypeError, match=words):
        array.copy_to_host(target())


def test_the_stride_of_an_axis_of_length_one_means_nothing():
    array = roc.to_device(np.arange(3.0).reshape(1, 3))
    target = np.empty((5, 3, 2))[:1, :, 0].copy()
    target = np.ndarray((1, 3), "f8", np.zeros(100, "u1"), 0, (64, 8))
    array.copy_to_host(target)
    np.testing.assert_array_equal(target, [[0, 1, 2]])


def test_a_copy_to_the_host_into_read_only_memory():
    target = np.zeros(3)
    target.flags.writeable = False
    with pytest.raises(ValueError, match="read-only"):
        roc.to_device(np.ones(3)).copy_to_host(target)


def test_a_source_that_does_not_fit_is_refused():
    array = roc.device_array(4)
    for bad in (np.zeros(3), np.zeros(5), np.zeros(4, "f4"), np.zeros((2, 2))):
        with pytest.raises(ValueError, match="copy_to_device"):
            array.copy_to_device(bad)
    array.copy_to_device(np.zeros(0))  # nothing to do, as ever
    with pytest.raises(AttributeError):
        array.copy_to_device([1, 2, 3, 4])


def test_device_to_device():
    one, other = roc.to_device(np.arange(5)), roc.device_array(5, "i8")
    other.copy_to_device(one)
    stream = roc.stream()
    third = roc.device_array(5, "i8")
    third.copy_to_device(other, stream=stream)
    stream.synchronize()
    assert third.copy_to_host().tolist() == [0, 1, 2, 3, 4]


def test_auto_device_uploads_only_host_arrays():
    array = roc.to_device(np.arange(3))
    assert auto_device(array) == (array, False)
    host = roc.finegrain_array(3)
    assert auto_device(host, None) == (host, False) or auto_device(host, None)[0] is host
    made, new = auto_device(np.arange(3), devices.get_context())
    assert new
    assert made.copy_to_host().tolist() == [0, 1, 2]


def test_use_after_the_end_is_said():
    array = roc.to_device(np.arange(3))
    array.free()
    with pytest.raises(dm.ClosedError):
        array.copy_to_host()


# -- streams -----------------------------------------------------------------------------------------------------------


def test_a_stream_has_what_numba_rocs_has(need, hold):
    stream = roc.stream()
    assert isinstance(stream, driver.Stream)
    source = dm.pinned_array(1000)
    source[:] = 5
    target = dm.pinned_array(1000)
    with stream.auto_synchronize():
        array = roc.to_device(source, stream=stream)
        array.copy_to_host(target, stream=stream)
    assert (target == 5).all()
    assert array.stream is None  # bound to none: a copy without a stream waits for all of them
    with pytest.raises(ZeroDivisionError), stream.auto_synchronize():
        roc.to_device(source, stream=stream).copy_to_host(target, stream=stream)
        1 / 0  # noqa: B018
    assert (target == 5).all()
    need("hold")
    with hold(stream, patience=5) as latch:
        array.copy_to_device(np.full(1000, 6.0), stream=stream)
        array.copy_to_host(target, stream=stream)
        assert not stream.query()
        latch.release()
        stream.synchronize()
    assert (target == 6).all()


def test_a_copy_without_a_stream_waits_for_every_stream(need, hold):
    need("hold")
    first, second = roc.stream(), roc.stream()
    new = dm.pinned_array(1000)
    new[:] = 7
    array = roc.to_device(np.zeros(1000))
    with hold(first, patience=0.5, tolerant=True):
        array.copy_to_device(new, stream=first)
        assert (array.copy_to_host() == 7).all()
    new[:] = 8
    with hold(second, patience=0.5, tolerant=True):
        array.copy_to_device(new, stream=second)
        array.copy_to_device(np.full(1000, 9.0))
    assert (array.copy_to_host() == 9).all()


def test_a_pipeline_of_many_copies_and_two_streams():
    sources = [np.full(100, value) for value in range(200)]
    streams = [roc.stream(), roc.stream()]
    targets = []
    for at, source in enumerate(sources):  # far more than waits one by one would allow
        stream = streams[at % 2]
        targets.append(roc.to_device(source, stream=stream).copy_to_host(stream=stream))
    for stream in streams:
        stream.synchronize()
    assert [int(target[0]) for target in targets] == list(range(200))


def test_the_old_name_of_a_stream_is_told():
    with pytest.warns(DeprecationWarning, match=r"write roc.stream\(\)") as caught:
        stream = driver.hsa.create_stream()
    assert caught[0].filename == __file__
    stream.synchronize()
    with pytest.warns(DeprecationWarning, match="numba_roc itself"):
        assert roc.hsa is driver.hsa


# -- host memory -------------------------------------------------------------------------------------------------------


def test_register_and_deregister(need):
    need("host_register")
    a, b = np.arange(10), np.arange(10)
    with roc.register(a, b):
        device = roc.to_device(a)
    assert device.copy_to_host().tolist() == a.tolist()
    with pytest.raises(dm.DevmemError):
        roc.deregister(a)
    roc.register(a)
    gc.collect()  # registered until deregistered, even if what was returned is dropped
    roc.deregister(a)
    with pytest.raises(TypeError):
        roc.register(a, [1])
    with pytest.raises(dm.DevmemError):
        roc.deregister(a)  # none of the others stayed registered


@pytest.mark.parametrize(
    ("make", "flag"), [("finegrain_array", AllocFlags.FINE), ("coarsegrain_array", AllocFlags.COARSE)]
)
def test_grain_reaches_the_driver(make, flag, recorded, need_kind):
    need_kind("mapped")
    with recorded.during() as seen:
        array = getattr(roc, make)((2, 3), "f4", order="F")
    [flags] = [call.args[3] for call in seen if call.method == "alloc"]
    assert flags & flag
    assert not flags & (AllocFlags.FINE | AllocFlags.COARSE) & ~flag
    assert flags & AllocFlags.PORTABLE
    assert isinstance(array, HostArray)
    assert array.flags.f_contiguous


@pytest.mark.parametrize("make", [roc.finegrain_array, roc.coarsegrain_array])
def test_hsa_host_arrays_are_ndarrays(make, need_kind):
    need_kind("mapped")
    array = make(10)
    assert isinstance(array, np.ndarray)
    assert array.__hsa_memory__
    assert array.dtype == np.float64
    array[:] = np.arange(10)
    assert array.device_ctypes_pointer.value == array.ptr
    assert array[3:].device_ctypes_pointer.value == array.ptr + 24
    np.testing.assert_array_equal(roc.to_device(array).copy_to_host(), np.arange(10))
    device = roc.to_device(np.ones(10))
    stream = roc.stream()
    device.copy_to_device(array, stream=stream)
    device.copy_to_host(array[::1], stream=stream)
    stream.synchronize()
    np.testing.assert_array_equal(array, np.arange(10))
    assert make(()).shape == (1,)
    assert make(shape=(2, 2), dtype="i4", strides=(16, 4)).strides == (16, 4)
    assert make((2, 2), order="F").flags.f_contiguous


def test_no_such_memory_is_a_value_error(monkeypatch, devmem_backend):
    def refuse(*args, **keywords):
        raise dm.UnsupportedError("no mapped memory")

    monkeypatch.setattr(dm, "mapped_array", refuse)
    with pytest.raises(ValueError, match="finegrain mempool is not available in"):
        roc.finegrain_array(3)


# -- devices, and errors -----------------------------------------------------------------------------------------------


def test_agents_and_devices():
    host, *gpus = roc.agents
    assert (host.device, host.is_component) == ("CPU", False)
    assert len(gpus) == len(devices.cus) == devices.get_num_gpus() == len(devices.get_all_contexts())
    assert all((each.device, each.is_component) == ("GPU", True) for each in gpus)
    assert gpus[0].wavefront_size == wave_size(dm.current_device().info)
    assert gpus[0] == devices.get_context().agent
    assert gpus[0].name in repr(gpus[0])
    assert gpus[0].create_context() == devices.get_context()
    assert roc.is_available()
    assert driver.hsa.is_available
    assert driver.dgpu_present
    for use in (lambda: host.wavefront_size, host.create_context):
        with pytest.raises(AttributeError, match="the host has no"):
            use()
    driver.hsa.implicit_sync()


def test_with_another_device(second):
    with devices.cus[second.ordinal]:
        assert devices.cus.current.name == second.name
        assert roc.to_device(np.arange(3)).device == second
    assert roc.to_device(np.arange(3)).device != second


def test_reset_ends_arrays():
    array = roc.to_device(np.arange(3))
    devices.reset()
    with pytest.raises(dm.ClosedError):
        array.copy_to_host()
    assert roc.to_device(np.arange(3)).copy_to_host().tolist() == [0, 1, 2]


def test_what_the_driver_refuses_is_an_api_error(recorded):
    recorded.fail_at(1, repeat=True)
    with pytest.raises(error.HsaApiError) as caught:
        roc.device_array(10)
    recorded.disarm()
    assert isinstance(caught.value, dm.BackendError)
    assert isinstance(caught.value.code, int)
    array = roc.device_array(10)
    for use in (array.copy_to_host, lambda: array.copy_to_device(np.zeros(10))):
        recorded.fail_at(1, "copy", repeat=True)
        with pytest.raises(error.HsaDriverError):
            use()
        recorded.disarm()


def test_memory_that_does_not_fit(devmem_backend):
    with dm.use_memory(dm.memory.Limit(None, 100)), pytest.raises(error.HsaApiError) as caught:
        roc.device_array(1000)
    assert isinstance(caught.value, MemoryError)


# -- which backend -----------------------------------------------------------------------------------------------------


PROBE = """
import warnings; warnings.simplefilter("error")
import numpy as np, devmem
from devmem.compat import numba_roc as roc
try:
    print(roc.is_available(), roc.to_device(np.arange(3)).device.backend, len(roc.agents) > 1, devmem.current_device().backend)
except ImportError as error:
    print(roc.is_available(), type(error).__mro__[0].__name__, roc.agents, "DEVMEM_BACKEND=cuda" in str(error))
"""


def test_the_backend_that_was_chosen_is_used(python, devmem_backend):
    result = python(PROBE)
    assert result.stdout.split() == ["True", devmem_backend, "True", devmem_backend], result.stderr


def test_rocm_is_used_where_no_backend_was_chosen(python, devmem_backend):
    result = python(PROBE, BACKEND=None)
    usable = any(each.name == "roc" and each.usable for each in dm.backends())
    expected = "True roc True roc" if usable else "False HsaSupportError [] True"
    assert result.stdout.strip() == expected, result.stderr


def test_an_import_opens_nothing(python):
    script = """
import sys
before = set(sys.modules)  # a .pth file may have brought in something
from devmem.compat import numba_roc as roc
from devmem._core.device.opening import open_devices
assert not open_devices()
assert not {"numba", "cuda", "hip", "rocm"} & {name.split(".")[0] for name in set(sys.modules) - before}
assert set(roc.__all__) <= set(dir(roc)) | {"agents"}
try:
    roc.nonsense
except AttributeError as error:
    assert "nonsense" in str(error)
else:
    raise AssertionError
print("fine")
"""
    result = python(script)
    assert result.stdout == "fine\n", result.stderr


# -- the old page's samples, in words of our own -----------------------------------------------------------------------


def test_page_data_transfer():
    numbers = np.arange(10)
    on_device = roc.to_device(numbers)
    came_back = on_device.copy_to_host()
    np.testing.assert_array_equal(came_back, numbers)
    place = np.empty(shape=on_device.shape, dtype=on_device.dtype)
    on_device.copy_to_host(place)
    np.testing.assert_array_equal(place, numbers)


def test_page_reshape_keeps_the_elements():
    on_device = roc.to_device(np.arange(1000)).reshape(20, 50, order="F")
    assert on_device.is_f_contiguous()
    np.testing.assert_array_equal(on_device.copy_to_host().ravel("F"), np.arange(1000))


def test_registered_arrays_are_copied_unchanged(need):
    need("host_register")
    left, right = np.arange(10), np.arange(10)
    with roc.register(left, right):
        total = roc.to_device(left).copy_to_host() + roc.to_device(right).copy_to_host()
    np.testing.assert_array_equal(total, 2 * np.arange(10))


def test_page_stream_commits_on_exit():
    stream = roc.stream()
    result = np.zeros(10)
    with stream.auto_synchronize():
        roc.to_device(np.arange(10.0), stream).copy_to_host(result, stream)
    np.testing.assert_array_equal(result, np.arange(10))


def test_nothing_here_warns():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        roc.to_device(np.arange(3), devices.get_context(), True).copy_to_host()
