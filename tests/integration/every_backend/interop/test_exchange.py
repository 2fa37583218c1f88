"""Arrays that go to other libraries and come from them: DLPack, the CUDA Array Interface, streams, other processes."""

from __future__ import annotations

import contextlib
import copy
import gc
import importlib
import importlib.util
import pickle
import weakref

import crafted
import numpy as np
import pytest
from crafted import Crafted, Interface, OlderProducer, Producer, everything_let_go
from waits import blocked, patience

import devmem as dm
from devmem.spi.types import LEGACY_STREAM, PER_THREAD_STREAM, CopyKind
from devmem.testing import hold

VERSIONED = np.lib.NumpyVersion(np.__version__) >= "2.1.0"
needs_versioned = pytest.mark.skipif(not VERSIONED, reason="this NumPy makes and takes unversioned capsules only")
pytestmark = pytest.mark.usefixtures("tidy")

LAYOUTS = {
    "C": lambda d: d,
    "F": lambda d: d.T,
    "strided": lambda d: d[::2, 1::2],
    "negative strides": lambda d: d[::-1, ::-2],
    "0-d": lambda d: d[1:2, 2:3].reshape(()),
    "one row": lambda d: d[1:2],
    "empty": lambda d: d[:0],
    "a new axis": lambda d: d[:, None],
}


def data(dtype="f4"):
    return np.arange(24).reshape(4, 6).astype(dtype)


@pytest.fixture
def exchange(device):
    """How the device's memory and streams are called by others."""
    return device.info.exchange


@pytest.fixture
def streams(exchange):
    """Skips unless other libraries have streams on such devices."""
    if exchange.streams is None:
        pytest.skip("other libraries have no streams there")
    return exchange.streams


@pytest.fixture
def interface(exchange):
    """Skips unless arrays have __cuda_array_interface__."""
    if not exchange.array_interface:
        pytest.skip("arrays have no __cuda_array_interface__ there")


@pytest.fixture
def pointers(need):
    """Skips unless the driver can be asked what an address is."""
    need("pointer_info")


# -- DLPack, in and out ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("wrap", [Producer, OlderProducer, lambda d: d], ids=["versioned", "older", "itself"])
@pytest.mark.parametrize("layout", LAYOUTS)
def test_memory_is_shared(layout, wrap):
    array = LAYOUTS[layout](dm.to_device(data()))
    seen = dm.from_dlpack(wrap(array))
    assert (seen.shape, seen.dtype, seen.ptr, seen.device) == (array.shape, array.dtype, array.ptr, array.device)
    assert seen.is_c_contiguous() == array.is_c_contiguous()
    np.testing.assert_array_equal(seen.copy_to_host(), array.copy_to_host())
    if array.size:
        seen[...] = np.full(seen.shape, 77, "f4")
        np.testing.assert_array_equal(array.copy_to_host(), np.full(array.shape, 77, "f4"))


@pytest.mark.parametrize("dtype", ["b1", "i1", "i2", "i4", "i8", "u1", "u2", "u4", "u8", "f2", "f4", "f8", "c8", "c16"])
def test_every_type_is_exchanged(dtype):
    array = dm.to_device(data(dtype))
    seen = dm.from_dlpack(Producer(array))
    assert seen.dtype == array.dtype
    np.testing.assert_array_equal(seen.copy_to_host(), data(dtype))


@pytest.mark.parametrize("name", ["bfloat16", "float8_e4m3fn"])
def test_types_of_ml_dtypes_are_exchanged(name):
    ml_dtypes = pytest.importorskip("ml_dtypes")
    host = data().astype(getattr(ml_dtypes, name))
    seen = dm.from_dlpack(Producer(dm.to_device(host)))
    assert seen.dtype == host.dtype
    np.testing.assert_array_equal(seen.copy_to_host().view("u1"), host.view("u1"))


@pytest.mark.parametrize("name", ["bfloat16", "float8_e4m3fn", "float8_e5m2"])
def test_types_of_ml_dtypes_are_opaque_bytes_in_the_array_interface(name, interface):
    ml_dtypes = pytest.importorskip("ml_dtypes")
    dtype = np.dtype(getattr(ml_dtypes, name))
    typestr = dm.zeros(3, dtype).__cuda_array_interface__["typestr"]
    assert np.dtype(typestr) == np.dtype(f"V{dtype.itemsize}")
    record = dm.zeros(3, [("x", "f4"), ("y", dtype)]).__cuda_array_interface__
    assert np.dtype(record["descr"]) == np.dtype([("x", "f4"), ("y", typestr)])


@pytest.mark.parametrize("dtype", ["M8[s]", "m8[s]", ">i4", "S3", "V5", [("a", "i4"), ("b", "f4")]], ids=str)
def test_what_dlpack_has_no_type_for_is_a_buffer_error(dtype):
    array = dm.zeros(3, dtype)
    for ask in ({}, {"copy": True}, {"dl_device": (1, 0)}):
        with pytest.raises(BufferError, match="no type for dtype"):
            array.__dlpack__(**ask)


def test_fields_that_dlpack_cannot_step_over_are_a_buffer_error():
    array = dm.zeros(3, [("a", "i4"), ("b", "f8")])
    with pytest.raises(BufferError, match="no whole elements apart"):
        array["b"].__dlpack__()
    assert dm.from_dlpack(Producer(array["b"].copy())).shape == (3,)


def test_a_capsule_of_each_kind(device):
    array = dm.to_device(data())
    assert 'dltensor" ' in repr(array.__dlpack__())
    assert 'dltensor" ' in repr(array.__dlpack__(max_version=(0, 8)))
    if VERSIONED:
        assert "dltensor_versioned" in repr(array.__dlpack__(max_version=(1, 0)))
        assert "dltensor_versioned" in repr(array.__dlpack__(max_version=(7, 3)))


def test_unknown_keywords_and_positions_are_type_errors():
    array = dm.to_device(data())
    for call in (lambda: array.__dlpack__(1), lambda: array.__dlpack__(steam=1), lambda: dm.from_dlpack(array, "host")):
        with pytest.raises(TypeError):
            call()
    with pytest.raises(TypeError, match="no __dlpack__"):
        dm.from_dlpack([1, 2, 3])


def test_a_freed_array_is_not_exported():
    array = dm.to_device(data())
    array.free()
    for ask in (array.__dlpack__, lambda: array.__cuda_array_interface__, array.get_ipc_handle):
        with pytest.raises(dm.ClosedError):
            ask()


def test_a_capsule_that_is_never_consumed_releases_everything():
    array = dm.to_device(data())
    for _ in range(3):
        array.__dlpack__()
    del array


def test_the_memory_lives_as_long_as_its_consumer():
    array = dm.to_device(data())
    taken = Producer(array).__dlpack__()
    before = dm.memory_info().live
    del array
    gc.collect()
    assert dm.memory_info().live == before
    del taken
    dm.trim()
    assert dm.memory_info().live == before - data().nbytes


def test_letting_go_of_what_was_borrowed_frees_nothing():
    array = dm.to_device(data())
    seen = dm.from_dlpack(Producer(array))
    view = seen[1:]
    seen.free()
    seen.free()
    with pytest.raises(dm.ClosedError):
        view.copy_to_host()
    np.testing.assert_array_equal(array.copy_to_host(), data())


# -- copies ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("layout", LAYOUTS)
def test_numpy_asks_for_a_copy_on_the_host(layout):
    array = LAYOUTS[layout](dm.to_device(data()))
    capsule = array.__dlpack__(dl_device=(1, 0))
    held = Crafted(0)
    held.capsule = capsule
    np.testing.assert_array_equal(np.from_dlpack(held), array.copy_to_host())


@needs_versioned
def test_numpy_s_own_way_of_asking(exchange):
    array = dm.to_device(data())
    seen = np.from_dlpack(array, device="cpu")
    np.testing.assert_array_equal(seen, data())
    if exchange.device_type != 1:
        with pytest.raises(BufferError, match="copy=False"):
            np.from_dlpack(array, device="cpu", copy=False)
        with pytest.raises((BufferError, RuntimeError)):
            np.from_dlpack(array)


def test_a_copy_is_a_copy():
    array = dm.to_device(data())
    for asked in ({"copy": True}, {"copy": True, "dl_device": array.__dlpack_device__()}):
        seen = dm.from_dlpack(Producer(array).__class__(_Asking(array, asked)))
        assert seen.ptr != array.ptr
        np.testing.assert_array_equal(seen.copy_to_host(), data())
    for asked in ({"copy": False}, {"copy": None}, {"dl_device": array.__dlpack_device__(), "copy": False}):
        assert dm.from_dlpack(_Asking(array, asked)).ptr == array.ptr


class _Asking:
    """Hands on an array, and asks it for more than it was asked."""

    def __init__(self, array, asked):
        self.array, self.more = array, asked
        self.__dlpack_device__ = array.__dlpack_device__

    def __dlpack_device__(self):
        return self.array.__dlpack_device__()

    def __dlpack__(self, **asked):
        return self.array.__dlpack__(**{**asked, **self.more})


def test_import_with_a_copy():
    array = dm.to_device(data())
    producer = Producer(array)
    assert dm.from_dlpack(producer, copy=True).ptr != array.ptr
    assert "copy" not in producer.asked
    assert dm.from_dlpack(producer, copy=False).ptr == array.ptr
    assert producer.asked["copy"] is False
    assert dm.from_dlpack(OlderProducer(array), copy=False).ptr == array.ptr


@needs_versioned
def test_a_producer_that_copies_although_it_was_told_not_to():
    array = dm.to_device(data())
    with pytest.raises(BufferError, match="exports a copy"):
        dm.from_dlpack(_Asking(array, {"copy": True}), copy=False)


def test_a_device_that_we_do_not_export_to():
    array = dm.to_device(data())
    for there in ((1, 3), (4, 0), (array.__dlpack_device__()[0], 9)):
        with pytest.raises(BufferError, match="not to"):
            array.__dlpack__(dl_device=there)
    with pytest.raises(TypeError, match="pair of integers"):
        array.__dlpack__(dl_device="cpu")


def test_a_copy_on_the_host_has_no_stream(exchange):
    if exchange.device_type == 1:
        pytest.skip("the device is the host")
    array = dm.to_device(data())
    with pytest.raises(ValueError, match="stream=None"):
        array.__dlpack__(dl_device=(1, 0), stream=3)
    with pytest.raises(BufferError, match="copy=False"):
        array.__dlpack__(dl_device=(1, 0), copy=False)


@needs_versioned
def test_copies_say_that_they_are_copies(device):
    from devmem._core.interop import dlpack

    array = dm.to_device(data())
    for ask in ({"copy": True}, {"dl_device": (1, 0), "copy": True}):
        assert dlpack.take(array.__dlpack__(max_version=(1, 0), **ask))[4] == dlpack.IS_COPIED
    assert dlpack.take(array.__dlpack__(max_version=(1, 0)))[4] == 0


def test_import_to_another_device(second):
    array = dm.to_device(data())
    seen = dm.from_dlpack(Producer(array), device=second)
    assert seen.device == second
    np.testing.assert_array_equal(seen.copy_to_host(), data())
    with pytest.raises(BufferError, match="by a copy only"):
        dm.from_dlpack(Producer(array), device=second, copy=False)


def test_import_stays_on_its_own_device(second):
    array = dm.to_device(data(), device=second)
    seen = dm.from_dlpack(Producer(array))
    assert (seen.device, seen.ptr) == (second, array.ptr)
    assert dm.from_dlpack(Producer(array), device=second).ptr == array.ptr
    assert dm.from_dlpack(Producer(array), device=dm.current_device()).device == dm.current_device()
    np.testing.assert_array_equal(seen.copy_to_host(), data())


# -- host memory -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("layout", LAYOUTS)
def test_host_memory_is_copied(layout, exchange):
    host = data()
    host = LAYOUTS[layout](host)
    seen = dm.from_dlpack(host)
    np.testing.assert_array_equal(seen.copy_to_host(), host)
    if exchange.device_type == 1:
        return
    host[...] = 5
    if host.size:
        assert not np.array_equal(seen.copy_to_host(), host)
    with pytest.raises(BufferError, match="by a copy only"):
        dm.from_dlpack(host, copy=False)


def test_host_memory_goes_to_the_device_that_was_asked_for(second):
    assert dm.from_dlpack(data(), device=second).device == second


@needs_versioned
def test_read_only_host_memory_is_copied():
    host = data()
    host.flags.writeable = False
    seen = dm.from_dlpack(host)
    np.testing.assert_array_equal(seen.copy_to_host(), host)


def test_host_types_of_ml_dtypes_are_copied(exchange):
    ml_dtypes = pytest.importorskip("ml_dtypes")
    host = np.arange(4).astype(ml_dtypes.bfloat16)
    tensor = Crafted(host.ctypes.data, dtype="u2", fields={"code": 4})
    with everything_let_go(tensor):
        seen = dm.from_dlpack(tensor)
        assert seen.dtype == host.dtype
        np.testing.assert_array_equal(seen.copy_to_host().view("u2"), host.view("u2"))
        del seen


def test_a_device_of_host_memory_uses_it_in_place(with_settings):
    with_settings(HOST_STRICT="0")
    if dm.current_device().info.exchange.device_type != 1:
        pytest.skip("the device cannot use host memory in place")
    host = data()
    for seen in (dm.from_dlpack(host), dm.from_dlpack(host, copy=False), dm.as_device_array(host)):
        assert seen.ptr == host.ctypes.data
        host[0, 0] += 1
        np.testing.assert_array_equal(seen.copy_to_host(), host)
    assert dm.is_device_array(host)
    assert dm.from_dlpack(host, copy=True).ptr != host.ctypes.data
    assert dm.to_device(host).ptr != host.ctypes.data
    assert np.from_dlpack(dm.from_dlpack(host)).ctypes.data == host.ctypes.data


@pytest.mark.parametrize("kind", [1, 3, 11])
def test_host_memory_of_any_type_is_used_in_place_by_the_host_that_was_asked_for(kind, with_settings):
    with_settings(HOST_STRICT="0")
    host = data()
    tensor = Crafted(host.ctypes.data, (4, 6), (6, 1), device=(kind, 0))
    with everything_let_go(tensor):
        seen = dm.from_dlpack(tensor, device="host:0")
        assert (seen.ptr, seen.device.backend) == (host.ctypes.data, "host")
        np.testing.assert_array_equal(seen.copy_to_host(), host)
        del seen
        dm.device("host:0").synchronize()
        with dm.device("host:0"):
            dm.trim()


# -- streams: what others call them ------------------------------------------------------------------------------------


def test_numbers_of_the_default_streams(streams):
    array = dm.to_device(data())
    for number in (None, -1, *streams):
        array.__dlpack__(stream=number)
        array.__dlpack__(stream=number, copy=True)
    for number in {0, 1, 2, -2, -7} - set(streams):
        with pytest.raises(dm.LayoutError, match="means nothing"):
            array.__dlpack__(stream=number)
    for what in ("1", 1.0, True, object()):
        with pytest.raises(TypeError, match="integers or None"):
            array.__dlpack__(stream=what)


def test_without_streams_there_is_none_to_name(exchange):
    if exchange.streams is not None:
        pytest.skip("other libraries have streams there")
    array = dm.to_device(data())
    array.__dlpack__(stream=None)
    array.__dlpack__(stream=-1)
    for number in (0, 1, 2, 77):
        with pytest.raises(dm.LayoutError, match="it has no streams"):
            array.__dlpack__(stream=number)


def test_producers_are_told_our_stream(streams, device):
    names = {handle: number for number, handle in streams.items()}
    producer = Producer(dm.to_device(data()))
    dm.from_dlpack(producer)
    assert producer.asked["stream"] == names[LEGACY_STREAM]
    with dm.stream() as current:
        dm.from_dlpack(producer)
    assert producer.asked["stream"] == current.handle
    with dm.per_thread_default_stream():
        dm.from_dlpack(producer)
    assert producer.asked["stream"] == names.get(PER_THREAD_STREAM, names[LEGACY_STREAM])


def test_producers_without_streams_are_told_none(exchange):
    if exchange.streams is not None:
        pytest.skip("other libraries have streams there")
    producer = Producer(dm.to_device(data()))
    with dm.stream():
        dm.from_dlpack(producer)
    assert producer.asked["stream"] is None


def test_the_device_is_current_while_its_producer_works(second):
    array = dm.to_device(data(), device=second)
    driver = second.driver()
    seen = []
    dm.from_dlpack(Producer(array, before=lambda: seen.append(driver.enter())))
    assert seen == [None]


def test_our_streams_are_taken_by_others(device, streams):
    names = {handle: number for number, handle in streams.items()}
    stream = dm.stream()
    if not device.info.exchange.cuda_stream:
        assert not hasattr(stream, "__cuda_stream__")
        return
    assert stream.__cuda_stream__() == (0, stream.handle)
    assert dm.default_stream().__cuda_stream__() == (0, names[LEGACY_STREAM])
    assert dm.per_thread_default_stream().__cuda_stream__() == (0, names.get(PER_THREAD_STREAM, PER_THREAD_STREAM))
    stream.close()
    with pytest.raises(dm.ClosedError):
        stream.__cuda_stream__()


class Speaking:
    """As of CuPy, numba, cuda.core and newer PyTorch: it speaks the protocol."""

    def __init__(self, handle):
        self.address = handle

    def __cuda_stream__(self):
        return 0, self.address


class Torch:
    """As of PyTorch on AMD."""

    def __init__(self, handle):
        self.cuda_stream = handle


class Vendor:
    """As of the bindings of HIP, and older ones of CUDA: a pointer."""

    def __init__(self, handle):
        self.address = handle

    def __int__(self):
        return self.address


def hip_stream(handle):
    """The real thing."""
    for module in ("rocm.bindings.hip", "hip.hip"):
        with contextlib.suppress(ImportError):
            return importlib.import_module(module).ihipStream_t.fromObj(handle)
    pytest.skip("there are no bindings of HIP")


@pytest.mark.parametrize("theirs", [Speaking, Torch, Vendor, hip_stream])
def test_streams_of_others_are_taken_by_us(device, theirs):
    ours = dm.stream()
    assert dm.external_stream(theirs(ours.handle)) is ours
    array = dm.to_device(data(), stream=theirs(ours.handle))
    array.copy_to_host(stream=theirs(ours.handle))
    assert dm.external_stream(theirs(0)) is dm.legacy_default_stream()
    with device.entered() as driver:
        handle = driver.stream_create(0, False)
        foreign = dm.external_stream(theirs(handle))
        assert (foreign.external, foreign.handle) == (True, handle)
        array.fill(3, stream=theirs(handle))
        foreign.close()  # theirs: nothing is destroyed
        driver.stream_synchronize(handle)
        driver.stream_destroy(handle)


@pytest.mark.parametrize("what", ["1", 1.0, np.float32(1), True, object(), [1]], ids=repr)
def test_what_is_no_stream(what):
    for call in (dm.external_stream, lambda each: dm.to_device(data(), stream=each)):
        with pytest.raises(TypeError, match="stream"):
            call(what)


# -- order: what is waited for -----------------------------------------------------------------------------------------


class Race:
    """An array that a held stream is about to write, and somewhere to see it from another."""

    def __init__(self, device, held):
        self.device, self.held = device, held
        self.source, self.back = dm.pinned_array(4096, "u1"), dm.pinned_array(4096, "u1")
        self.source[:], self.back[:] = 7, 0
        self.array = dm.full(4096, 1, "u1")
        dm.synchronize()

    def write(self):
        self.array.copy_to_device(self.source, stream=self.held)

    def look(self, handle):
        """What a consumer does: enqueue a copy of the bytes on its stream."""
        with self.device.entered() as driver:
            driver.copy(self.back.ctypes.data, self.array.ptr, 4096, CopyKind.D2H, handle, blocking=False)

    def waits(self, handle):
        """Whether the copy that looks has not run. The bytes are not looked at: that would be a race."""
        with self.device.entered() as driver:
            return not driver.stream_query(handle)

    def arrived(self):
        return bool((self.back == 7).all())


@pytest.fixture
def race(device, need, need_kind):
    need("hold")
    need_kind("pinned")
    return Race(device, dm.stream(non_blocking=True))


@pytest.mark.parametrize("whose", ["ours", "foreign", "legacy", "none named"])
def test_a_consumer_that_names_its_stream_sees_the_bytes(race, streams, device, whose):
    theirs = dm.stream(non_blocking=True)
    names = {handle: number for number, handle in streams.items()}
    handle = theirs.handle if whose in ("ours", "foreign") else LEGACY_STREAM
    name = {"none named": None}.get(whose, names.get(handle, handle))
    if whose == "foreign":
        own = device.opened().streams._streams.pop(handle)
    with hold(race.held) as latch:
        race.write()
        capsule = race.array.__dlpack__(stream=name)
        race.look(handle)
        assert race.waits(handle)
        latch.release()
        race.held.synchronize()
    with device.entered() as driver:
        driver.stream_synchronize(handle)
    assert race.arrived()
    del capsule
    if whose == "foreign":
        device.opened().streams._streams[handle] = own
        del race.array
        dm.synchronize()
        dm.trim()


def test_where_there_are_no_streams_the_host_waits(device, need, need_kind, exchange):
    need("hold")
    if exchange.streams is not None:
        pytest.skip("other libraries have streams there")
    race = Race(device, dm.stream(non_blocking=True))
    with hold(race.held, patience=0.3, tolerant=True) as latch:
        race.write()
        race.array.__dlpack__()
        assert latch.expired, "the array was handed over while it was still being written"
    assert bool((race.array.copy_to_host() == 7).all())


@pytest.mark.races("it looks at memory that no order was asked for")
@pytest.mark.parametrize("ask", [{"stream": -1}, {"stream": -1, "max_version": (1, 0)}])
def test_a_consumer_that_wants_no_order_gets_none(race, device, ask):
    theirs = dm.stream(non_blocking=True)
    with hold(race.held) as latch:
        race.write()
        race.array.__dlpack__(**ask)
        race.look(theirs.handle)
        theirs.synchronize()  # it does not wait for the held stream
        assert not race.arrived()
        latch.release()


def test_a_copy_on_the_host_waits_for_every_stream(device, need, need_kind):
    need("hold")
    race = Race(device, dm.stream(non_blocking=True))
    with hold(race.held, patience=0.3, tolerant=True) as latch:
        race.write()
        held = Crafted(0)
        held.capsule = race.array.__dlpack__(dl_device=(1, 0))
        assert latch.expired
    assert bool((np.from_dlpack(held) == 7).all())


def test_a_copy_on_the_device_comes_after_what_was_written(race, streams, device):
    theirs = dm.stream(non_blocking=True)
    with hold(race.held) as latch:
        race.write()
        copied = _Asking(race.array, {"copy": True, "stream": theirs.handle})
        seen = dm.from_dlpack(copied)
        race.array = seen
        race.look(theirs.handle)
        assert race.waits(theirs.handle)
        latch.release()
    theirs.synchronize()
    assert race.arrived()


def test_other_streams_of_ours_wait_until_borrowed_memory_is_ready(race, streams, device):
    """The producer has made our stream wait; the others are made to wait for ours, once."""
    ours, other = dm.stream(non_blocking=True), dm.stream(non_blocking=True)
    with hold(race.held) as latch:
        race.write()
        with ours:
            seen = dm.from_dlpack(Producer(race.array))
        seen.copy_to_host(race.back, stream=other)
        assert race.waits(other.handle)
        latch.release()
    other.synchronize()
    assert race.arrived()


def test_borrowed_memory_goes_on_in_order(race, streams):
    """Imported, written on a held stream of ours, exported again."""
    seen = dm.from_dlpack(Producer(race.array))
    theirs = dm.stream(non_blocking=True)
    with hold(race.held) as latch:
        seen.copy_to_device(race.source, stream=race.held)
        capsule = seen.__dlpack__(stream=theirs.handle)
        race.look(theirs.handle)
        assert race.waits(theirs.handle)
        latch.release()
    theirs.synchronize()
    assert race.arrived()
    del capsule


def test_an_owner_is_kept_until_our_work_has_passed(race):
    producer = Producer(race.array)
    seen = dm.from_dlpack(producer)
    given = weakref.ref(race.array.allocation)
    race.array = producer.array = None
    with hold(race.held) as latch:
        seen.copy_to_host(race.back, stream=race.held)
        seen.free()
        del seen
        gc.collect()
        assert given() is not None
        latch.release()
    race.held.synchronize()
    dm.trim()
    gc.collect()
    assert given() is None


def test_memory_that_a_consumer_uses_is_freed_behind_its_stream(race, streams, device):
    """The array goes while a stream that was named at the export still reads it: the memory is not reused early."""
    theirs = race.held
    race.array.fill(7)
    with hold(theirs) as latch:
        capsule = race.array.__dlpack__(stream=theirs.handle)
        race.look(theirs.handle)
        del capsule
        race.array = None
        if "stream_ordered" in device.info.capabilities:
            dm.trim()
            others = [dm.full(4096, 9, "u1", stream=dm.stream(non_blocking=True)) for _ in range(4)]
        latch.release()
    theirs.synchronize()
    dm.synchronize()
    assert race.arrived()
    if "stream_ordered" in device.info.capabilities:
        assert all((other.copy_to_host() == 9).all() for other in others)


def test_memory_of_others_that_was_handed_on_is_kept_behind_the_consumer_s_stream(race, streams):
    """Imported and exported again: who let go of it may still be using it on the stream that it named."""
    tensor = Crafted(race.array.ptr, (4096,), dtype="u1", device=race.array.__dlpack_device__())
    seen = dm.from_dlpack(tensor)
    capsule = seen.__dlpack__(stream=race.held.handle)
    dm.synchronize()
    with hold(race.held) as latch:
        race.look(race.held.handle)
        del seen, capsule
        for _ in range(3):  # what was dropped is looked at by the verbs that come next
            dm.zeros(3, stream=dm.stream(non_blocking=True))
        assert tensor.deleted == 0, "given back while the consumer's work was still to come"
        latch.release()
    race.held.synchronize()
    dm.trim()
    assert tensor.deleted == 1


@pytest.mark.parametrize("stream", [None, -1])
def test_freeing_what_was_borrowed_takes_it_from_no_consumer(craft, stream):
    tensor = craft(times=1)
    seen = dm.from_dlpack(tensor)
    held = Crafted(0, device=craft.array.__dlpack_device__())
    held.capsule = seen.__dlpack__(stream=stream)
    seen.free()
    del seen
    dm.trim()
    assert tensor.deleted == 0
    np.testing.assert_array_equal(dm.from_dlpack(held).copy_to_host(), [0, 1, 2, 3])
    held.capsule = None
    dm.synchronize()
    dm.trim()
    assert tensor.deleted == 1


# -- read-only ---------------------------------------------------------------------------------------------------------


@pytest.fixture
def read_only(exchange):
    """An array on the device that is lent read-only."""
    if not VERSIONED:
        pytest.skip("this NumPy makes unversioned capsules only, which cannot say it")
    array = dm.to_device(data())
    tensor = Crafted(array.ptr, (4, 6), (6, 1), device=array.__dlpack_device__(), fields={"flags": 1})
    tensor.array = array
    return tensor


def test_read_only_memory_is_only_read(read_only):
    seen = dm.from_dlpack(read_only)
    view = seen[1:, ::2].T
    for each in (seen, view, seen.view("u4"), seen.reshape(-1), seen.bind(dm.stream())):
        assert each.flags["WRITEABLE"] is False
    np.testing.assert_array_equal(view.copy_to_host(), data()[1:, ::2].T)

    def assign():
        seen[0, 0] = 1

    def assign_array():
        view[...] = dm.zeros(view.shape, "f4")

    for write in (
        assign,
        assign_array,
        lambda: seen.fill(0),
        lambda: seen.copy_to_device(data()),
        lambda: dm.to_device(data(), to=seen),
    ):
        with pytest.raises(ValueError, match=r"read-only.*copy\(\)") as caught:
            write()
        assert isinstance(caught.value, dm.LayoutError)
    np.testing.assert_array_equal(seen.copy_to_host(), data())
    own = seen.copy()
    own.fill(3)
    assert own.flags["WRITEABLE"] is True


def test_read_only_memory_is_exported_so(read_only, exchange):
    from devmem._core.interop import dlpack

    seen = dm.from_dlpack(read_only)
    assert dlpack.take(seen[1:].__dlpack__(max_version=(1, 0)))[4] == dlpack.READ_ONLY
    assert dm.from_dlpack(seen).flags["WRITEABLE"] is False
    with pytest.raises(BufferError, match="read-only"):
        seen.__dlpack__()
    if exchange.array_interface:
        assert seen.__cuda_array_interface__["data"] == (seen.ptr, True)
        assert dm.as_device_array(Interface(seen, data=(seen.ptr, True))).flags["WRITEABLE"] is False
    assert dm.from_dlpack(read_only.array).flags["WRITEABLE"] is True


def test_a_read_only_mapped_array_has_a_read_only_view(need_kind):
    need_kind("mapped")
    array = dm.mapped_array(4)
    array.flags.writeable = False
    with pytest.raises(ValueError, match="read-only"):
        dm.as_device_array(array).fill(3)


# -- misbehaving producers ---------------------------------------------------------------------------------------------


@pytest.fixture
def craft(device):
    """``craft(shape=..., fields=...)``: a tensor of device memory, which is let go of exactly as often as is said."""
    array = dm.to_device(data())
    made = []

    def make(times=0, **changes):
        tensor = Crafted(changes.pop("ptr", array.ptr), **{"device": array.__dlpack_device__(), **changes})
        made.append((tensor, times))
        return tensor

    make.array = array
    yield make
    dm.synchronize()
    dm.trim()
    gc.collect()
    assert [tensor.deleted for tensor, _ in made] == [times for _, times in made]


WRONG = {
    "a newer version": {"fields": {"major": 3}},
    "no address": {"fields": {"data": None}},
    "a negative length": {"shape": (-3,)},
    "no shape": {"fields": {"shape": None}},
    "huge ndim": {"fields": {"ndim": 10**6}},
    "lanes": {"fields": {"lanes": 2}},
    "an unknown type": {"fields": {"code": 99}},
    "another device": {"fields": {"device_id": 55}},
    "another type of device": {"fields": {"device_type": 8}},
}


@pytest.mark.parametrize("what", WRONG)
def test_a_capsule_that_describes_what_cannot_be(craft, what):
    # Refused before it is taken it stays its producer's; afterwards it is let go of at once.
    tensor = craft(times=1 if "device" in what else 0, **WRONG[what])
    with pytest.raises(BufferError):
        dm.from_dlpack(tensor)


@pytest.mark.parametrize(
    ("shape", "strides"),
    [((25,), (1,)), ((2, 2), (24, 1)), ((4,), (-1,)), ((10**6,), (1,)), ((2**40,), (1,)), ((2,), (10**9,))],
)
def test_a_shape_that_lies_about_the_size(craft, pointers, exchange, shape, strides):
    if exchange.device_type == 1:
        pytest.skip("all memory is the device's")
    alone = by_itself()
    with pytest.raises(BufferError, match=r"which (reaches|is no memory)"):
        dm.from_dlpack(craft(times=1, ptr=alone.ptr, shape=shape, strides=strides))


def by_itself():
    """96 bytes with no other memory in front: what is next to each other may be one, for all that a driver says."""
    with dm.use_memory(dm.memory.DriverMemory()), dm.current_device().entered() as driver:
        made = [dm.device_array(24, "f4") for _ in range(4)]
        found = [each for each in made if driver.pointer_range(each.ptr - 1) is None]
    if not found:
        pytest.skip("the driver puts one allocation directly behind another")
    return found[0]


def test_memory_that_is_none_of_the_device_s(craft, pointers, exchange):
    if exchange.device_type == 1:
        pytest.skip("all memory is the device's")
    host = np.zeros(4, "f4")
    with pytest.raises(BufferError, match="is no memory"):
        dm.from_dlpack(craft(times=1, ptr=host.ctypes.data))


def test_missing_strides_and_no_deleter(craft):
    seen = dm.from_dlpack(craft(deleter=False, shape=(4, 6), strides=None))
    np.testing.assert_array_equal(seen.copy_to_host(), data())


def test_a_capsule_that_is_handed_out_twice(craft):
    tensor = craft(times=1)
    first = dm.from_dlpack(tensor)
    with pytest.raises(BufferError, match="taken before"):
        dm.from_dlpack(tensor)
    assert first.shape == (4,)


def test_dropping_an_import_lets_go_once(craft):
    seen = dm.from_dlpack(craft(times=1))
    view = seen[1:]
    del seen
    np.testing.assert_array_equal(view.copy_to_host(), [1, 2, 3])


class Broken(Producer):
    """Fails in a way of its own."""

    def __init__(self, array, how, result=None):
        super().__init__(array)
        self.how, self.result = how, result

    def __dlpack_device__(self):
        if self.how == "device":
            return self._fail()
        return super().__dlpack_device__()

    def __dlpack__(self, **asked):
        return self._fail()

    def _fail(self):
        if isinstance(self.result, BaseException):
            raise self.result
        return self.result


@pytest.mark.parametrize("error", [BufferError, RuntimeError, KeyboardInterrupt, MemoryError])
def test_a_producer_s_own_error_is_passed_on(error):
    for how in ("device", "capsule"):
        with pytest.raises(error, match="no"):
            dm.from_dlpack(Broken(dm.zeros(3), how, error("no")))
    np.testing.assert_array_equal(dm.to_device(data()).copy_to_host(), data())  # and nothing is left entered


@pytest.mark.parametrize("result", [None, 3, "tensor", (1, 2)])
def test_a_producer_that_hands_over_something_else(result):
    with pytest.raises(BufferError, match="not a DLPack capsule"):
        dm.from_dlpack(Broken(dm.zeros(3), "capsule", result))


@pytest.mark.parametrize("result", [None, 3, (1,), (1, 2, 3), ("cpu", 0), (1.5, 0)])
def test_a_device_that_is_no_pair(result):
    with pytest.raises(BufferError, match="not two integers"):
        dm.from_dlpack(Broken(dm.zeros(3), "device", result))


def refused(producer, match):
    """What is raised refers to what was taken, so it dies here."""
    with pytest.raises(BufferError, match=match):
        dm.from_dlpack(producer)


def test_a_producer_that_lies_about_its_device(exchange):
    array, host = dm.zeros(3), np.zeros(4, "f4")
    lying = Crafted(host.ctypes.data)
    lying.device = 4, 0
    if exchange.device_type != 1:
        lying.device = array.__dlpack_device__()
    with everything_let_go(lying, times=lying.device != (4, 0)):
        refused(lying, r"exports memory of|no device that devmem has open")
    if exchange.device_type != 1:
        with pytest.raises(BufferError, match="says that its memory"):
            dm.from_dlpack(Producer(array, device=(1, 0)))


@pytest.mark.parametrize("there", [(77, 0), (8, 0), (14, 1), (-1, 0)])
def test_a_device_type_that_no_backend_has_is_refused(there):
    with pytest.raises(BufferError, match="no device that devmem has open"):
        dm.from_dlpack(Producer(dm.zeros(3), device=there))


def test_a_number_that_no_device_has(exchange):
    if exchange.device_type == 1:
        pytest.skip("there is one host only")
    with pytest.raises(BufferError, match="there is no device"):
        dm.from_dlpack(Producer(dm.zeros(3), device=(exchange.device_type, 99)))


def test_a_consumer_that_fails_half_way(craft):
    """Ours, taken and dropped: as if its consumer had raised between the two."""
    from devmem._core.interop import dlpack

    array = dm.to_device(data())
    with contextlib.suppress(ZeroDivisionError):
        dlpack.take(array.__dlpack__())
        _ = 1 // 0
    del array
    gc.collect()


# -- as_device_array, to_device and assignment -------------------------------------------------------------------------


def test_foreign_device_arrays_are_taken_everywhere(exchange):
    array = dm.to_device(data())
    foreign = Producer(array)
    assert dm.is_device_array(foreign) or exchange.device_type == 1
    assert dm.as_device_array(foreign).ptr == array.ptr
    if exchange.device_type == 1:
        return
    assert dm.to_device(foreign).ptr == array.ptr
    target = dm.zeros((4, 6), "f4")
    target.copy_to_device(foreign)
    np.testing.assert_array_equal(target.copy_to_host(), data())
    target[1:] = 0
    target[1:] = Producer(array[:3])
    np.testing.assert_array_equal(target.copy_to_host()[1:], data()[:3])
    assert dm.to_device(foreign, to=dm.zeros((4, 6), "f4")).shape == (4, 6)


def test_foreign_arrays_are_copied_to_another_device(second, exchange):
    if exchange.device_type == 1:
        pytest.skip("all memory is the device's")
    array = dm.to_device(data())
    moved = dm.to_device(Producer(array), device=second)
    assert moved.device == second
    np.testing.assert_array_equal(moved.copy_to_host(), data())
    assert dm.to_device(Producer(moved)).device == second


def test_host_arrays_are_no_device_arrays(exchange):
    if exchange.device_type == 1:
        pytest.skip("all memory is the device's")
    for other in (np.zeros(3), [1, 2], 3, "text", None, Producer(np.zeros(3))):
        assert not dm.is_device_array(other)
        with pytest.raises(dm.UnsupportedError, match="to_device"):
            dm.as_device_array(other)


def test_dlpack_comes_before_the_interface(pointers):
    class Both(Producer):
        asked_for_interface = 0

        @property
        def __cuda_array_interface__(self):
            Both.asked_for_interface += 1
            raise AssertionError("asked for although there is DLPack")

    if dm.current_device().info.exchange.device_type == 1:
        pytest.skip("all memory is the device's")
    array = dm.to_device(data())
    assert dm.as_device_array(Both(array)).ptr == array.ptr
    assert Both.asked_for_interface == 0


def test_records_come_by_the_interface_where_dlpack_has_none(pointers, exchange):
    if exchange.device_type == 1:
        pytest.skip("all memory is the device's")
    records = dm.to_device(np.array([(1, 2.5), (3, 4.5)], [("a", "i4"), ("b", "f4")]))

    class Both(Producer):
        @property
        def __cuda_array_interface__(self):
            return Interface(records, descr=records.dtype.descr).__cuda_array_interface__

    seen = dm.as_device_array(Both(records))
    np.testing.assert_array_equal(seen["b"].copy_to_host(), [2.5, 4.5])


BEYOND_DLPACK = ["M8[s]", "M8[Y]", "m8[25D]", "U3", "S5", ">f4", ">i8", "f16", "c32", ">c8"]


@pytest.mark.parametrize("dtype", BEYOND_DLPACK)
@pytest.mark.parametrize("way", [dm.as_device_array, dm.to_device, lambda x: dm.to_device_many([x])[0]])
def test_what_dlpack_has_no_type_for_comes_by_the_interface(pointers, exchange, dtype, way):
    if exchange.device_type == 1:
        pytest.skip("all memory is the device's")
    array = dm.to_device(np.arange(4).astype(dtype))

    class Both(Producer):
        @property
        def __cuda_array_interface__(self):
            return Interface(array).__cuda_array_interface__

    with pytest.raises(BufferError):
        array.__dlpack__()
    seen = way(Both(array))
    assert (seen.ptr, seen.dtype) == (array.ptr, np.dtype(dtype))
    assert seen.copy_to_host().tobytes() == array.copy_to_host().tobytes()


@pytest.mark.parametrize("dtype", ["V5", "V8"])
def test_bytes_that_describe_themselves_are_bytes(pointers, exchange, dtype):
    """NumPy's description of them is one field without a name, which is no record."""
    if exchange.device_type == 1:
        pytest.skip("all memory is the device's")
    array = dm.zeros(3, dtype)
    seen = dm.as_device_array(Interface(array, descr=array.dtype.descr))
    assert (seen.ptr, seen.dtype, seen.dtype.fields) == (array.ptr, np.dtype(dtype), None)


@pytest.mark.parametrize("dtype", ["bfloat16", "float8_e4m3fn"])
def test_bytes_without_names_do_not_replace_dlpack(pointers, exchange, dtype):
    """The interface has them of types that DLPack has, too: why that refuses is not known."""
    if exchange.device_type == 1:
        pytest.skip("all memory is the device's")
    array = dm.zeros(3, getattr(pytest.importorskip("ml_dtypes"), dtype))

    class Refusing(Producer):
        def __dlpack__(self, **asked):
            raise BufferError("not this one")

        @property
        def __cuda_array_interface__(self):
            return Interface(array).__cuda_array_interface__

    with pytest.raises(BufferError, match="not this one"):
        dm.as_device_array(Refusing(array))


def test_what_else_dlpack_refuses_stays_refused(pointers, exchange):
    """An interface without names of fields describes nothing that DLPack has no type for, so it does not replace DLPack."""
    if exchange.device_type == 1:
        pytest.skip("all memory is the device's")

    class Refusing(Producer):
        descr = None

        def __dlpack__(self, **asked):
            raise BufferError("not this one")

        @property
        def __cuda_array_interface__(self):
            return Interface(self.array, descr=self.descr).__cuda_array_interface__

    array = dm.to_device(data())
    for descr in ([("", "<f4")], [], None):
        Refusing.descr = descr
        with pytest.raises(BufferError, match="not this one"):
            dm.as_device_array(Refusing(array))


def test_a_property_that_raises_counts_as_absent():
    class Raising:
        asked = 0

        @property
        def __cuda_array_interface__(self):
            Raising.asked += 1
            raise RuntimeError("call detach() first")

    assert not dm.is_device_array(Raising())
    with pytest.raises(dm.UnsupportedError, match=r"Raising.*to_device"):
        dm.as_device_array(Raising())
    assert Raising.asked == 2

    class NoCapsule(Raising):
        def __dlpack_device__(self):
            return 2, 0

        @property
        def __dlpack__(self):
            raise RuntimeError("call detach() first")

    with pytest.raises(TypeError, match="no __dlpack__"):
        dm.from_dlpack(NoCapsule())


# -- the CUDA Array Interface ------------------------------------------------------------------------------------------


def test_where_there_is_no_interface_there_is_no_attribute(exchange):
    if exchange.array_interface:
        pytest.skip("arrays have one there")
    assert not hasattr(dm.zeros(3), "__cuda_array_interface__")


def test_the_interface_where_a_setting_gives_it(exchange, with_settings):
    """On AMD. No number of a default stream is said, as consumers disagree about what it means: the work is done instead."""
    if exchange.array_interface:
        pytest.skip("arrays have one without")
    with_settings(ROC_CUDA_ARRAY_INTERFACE="1")
    if not dm.current_device().info.exchange.array_interface:
        pytest.skip("no setting gives one there")
    array = dm.to_device(data())
    said = array.__cuda_array_interface__
    assert (said["data"], said["version"], said["stream"]) == ((array.ptr, False), 3, None)
    stream = dm.stream()
    assert dm.to_device(data(), stream=stream).__cuda_array_interface__["stream"] == stream.handle
    np.testing.assert_array_equal(dm.as_device_array(Interface(array, **said)).copy_to_host(), data())


@pytest.mark.parametrize("layout", LAYOUTS)
def test_what_the_interface_says(layout, interface):
    array = LAYOUTS[layout](dm.to_device(data()))
    said = array.__cuda_array_interface__
    assert (said["shape"], said["typestr"], said["version"]) == (array.shape, "<f4", 3)
    assert said["data"] == (array.ptr, False)
    assert "mask" not in said
    assert said["strides"] == (None if array.is_c_contiguous() else array.strides)
    assert said["stream"] is None or said["stream"] > 0
    if not array.size:
        assert said["data"] == (0, False)
        assert said["stream"] is None


def test_fields_of_records_survive(interface):
    dtype = np.dtype([("a", "i4"), ("b", "f8", (2,)), ("c", "S3")], align=True)
    array = dm.zeros(3, dtype)
    said = array.__cuda_array_interface__
    assert said["descr"] == dtype.descr
    assert said["typestr"] == dtype.str
    assert dm.as_device_array(array).dtype == dtype
    overlapping = np.dtype({"names": ["a", "b"], "formats": ["i4", "i2"], "offsets": [0, 0]})
    assert "descr" not in dm.zeros(3, overlapping).__cuda_array_interface__


def test_the_interface_names_a_stream_behind_all_work(race, interface):
    with hold(race.held) as latch:
        race.write()
        said = race.array.__cuda_array_interface__["stream"]
        assert said is not None
        race.look(said)
        assert race.waits(said)
        latch.release()
    dm.synchronize()
    assert race.arrived()


@pytest.mark.parametrize("whose", ["own", "closed", "foreign", "another thread's"])
def test_the_stream_that_is_named_is_one_that_is_there(interface, device, in_thread, whose):
    if whose == "another thread's":
        array = in_thread(lambda: dm.to_device(data(), stream=dm.per_thread_default_stream()))
        assert array.__cuda_array_interface__["stream"] == LEGACY_STREAM
        return
    stream = dm.stream()
    if whose == "foreign":
        context, handle = device.opened(), stream.handle
        own = context.streams._streams.pop(handle)
        array = dm.to_device(data(), stream=dm.external_stream(handle))
        assert array.__cuda_array_interface__["stream"] == LEGACY_STREAM
        context.streams._streams[handle] = own
        return
    array = dm.to_device(data(), stream=stream)
    assert array.__cuda_array_interface__["stream"] == stream.handle
    if whose == "closed":
        stream.close()
        assert array.__cuda_array_interface__["stream"] == LEGACY_STREAM


RECORDS = {
    "packed": np.dtype([("a", "i4"), ("b", "f8"), ("c", "S3")]),
    "with gaps": np.dtype([("a", "i1"), ("b", "f8", (2,)), ("c", "S3")], align=True),
    "a gap in front": np.dtype({"names": ["b"], "formats": ["f4"], "offsets": [4], "itemsize": 12}),
    "nested": np.dtype([("a", [("x", "f4"), ("y", "u1")]), ("b", "i8")], align=True),
}


@pytest.mark.parametrize("name", RECORDS)
def test_fields_of_others_records_survive(name, pointers):
    dtype = RECORDS[name]
    host = np.frombuffer(np.arange(3 * dtype.itemsize, dtype="u1").tobytes(), dtype)
    array = dm.to_device(host)
    seen = dm.as_device_array(Interface(array, descr=dtype.descr))
    assert seen.dtype == dtype
    assert seen.copy_to_host().tobytes() == host.tobytes()
    field = dtype.names[-1]
    np.testing.assert_array_equal(seen[field].copy_to_host(), host[field])


@pytest.mark.parametrize("layout", LAYOUTS)
def test_arrays_with_the_interface_are_taken_in_place(layout, pointers):
    array = LAYOUTS[layout](dm.to_device(data()))
    foreign = Interface(array)
    assert dm.is_device_array(foreign)
    seen = dm.as_device_array(foreign)
    assert (seen.ptr, seen.shape, seen.dtype, seen.device) == (array.ptr, array.shape, array.dtype, array.device)
    np.testing.assert_array_equal(seen.copy_to_host(), array.copy_to_host())
    assert dm.to_device(foreign).ptr == array.ptr


@pytest.mark.parametrize(
    "changes",
    [
        {"version": 0, "stream": ...},
        {"version": 1, "strides": ..., "stream": ...},
        {"version": 2, "stream": ...},
        {"version": 2, "stream": 0},
        {"descr": [("", "<f4")]},
        {"mask": None},
        {"strides": (24, 4)},
        {"shape": [4, 6]},
    ],
    ids=str,
)
def test_what_older_and_longer_interfaces_say(changes, pointers):
    array = dm.to_device(data())
    np.testing.assert_array_equal(dm.as_device_array(Interface(array, **changes)).copy_to_host(), data())


BAD = {
    "no dict": (None, dm.LayoutError),
    "no version": ({"version": ...}, dm.LayoutError),
    "no shape": ({"shape": ...}, dm.LayoutError),
    "no data": ({"data": ...}, dm.LayoutError),
    "a bare address": ({"data": 4096}, dm.LayoutError),
    "a strange type": ({"typestr": "<q9"}, dm.LayoutError),
    "Python objects": ({"typestr": "|O"}, dm.LayoutError),
    "fields of no list": ({"typestr": "|V4", "descr": 7}, dm.LayoutError),
    "fields of no type": ({"typestr": "|V4", "descr": [("a",)]}, dm.LayoutError),
    "a version to come": ({"version": 4}, dm.UnsupportedError),
    "a mask": ({"mask": object()}, dm.UnsupportedError),
    "a negative length": ({"shape": (-4, 6)}, dm.LayoutError),
    "a length of no number": ({"shape": ("4", 6)}, dm.LayoutError),
    "strides of other axes": ({"strides": (4,)}, dm.LayoutError),
    "no address": ({"data": (0, False)}, dm.LayoutError),
    "no address at all": ({"data": (None, False)}, dm.LayoutError),
    "a stream of no number": ({"stream": "1"}, dm.LayoutError),
    "a negative stream": ({"stream": -1}, dm.LayoutError),
}


@pytest.mark.parametrize("what", BAD)
def test_an_interface_that_says_what_cannot_be(what, pointers):
    changes, error = BAD[what]
    array = dm.to_device(data())
    foreign = Interface(array, **(changes or {}))
    if changes is None:
        foreign = type("Odd", (), {"__cuda_array_interface__": 3})()
    with pytest.raises(error, match=r"__cuda_array_interface__ of an? "):
        dm.as_device_array(foreign)


def test_a_stream_that_could_be_two(streams, pointers):
    if 0 in streams:
        pytest.skip("0 is the default stream there")
    with pytest.raises(dm.LayoutError, match="the stream 0, which is not allowed"):
        dm.as_device_array(Interface(dm.to_device(data()), stream=0))


def test_pointers_outside_any_allocation_are_refused(pointers):
    array, host = dm.to_device(data()), data()
    with pytest.raises(dm.UnsupportedError, match="no device of devmem's knows"):
        dm.as_device_array(Interface(array, data=(host.ctypes.data, False)))
    with dm.use_memory(dm.memory.DriverMemory()):
        alone = dm.device_array(24, "f4")
    with pytest.raises(dm.LayoutError, match=r"bytes\)? further|is no memory"):
        dm.as_device_array(Interface(alone, shape=(10**6,)))


def test_the_interface_does_not_say_which_device(second, pointers):
    array = dm.to_device(data(), device=second)
    seen = dm.as_device_array(Interface(array))
    assert seen.device == second
    np.testing.assert_array_equal(seen.copy_to_host(), data())


@pytest.mark.races("with the wait switched off, it looks at memory too early")
@pytest.mark.parametrize("sync", ["1", "0"])
def test_our_stream_waits_for_the_one_that_is_named(device, need, need_kind, pointers, with_settings, sync):
    need("hold")
    with_settings(CUDA_ARRAY_INTERFACE_SYNC=sync)
    race = Race(dm.current_device(), dm.stream(non_blocking=True))
    ours = dm.stream(non_blocking=True)
    with hold(race.held) as latch:
        race.write()
        with ours:
            seen = dm.as_device_array(Interface(race.array, stream=race.held.handle))
        seen.copy_to_host(race.back, stream=ours)
        if sync == "0":
            ours.synchronize()
        assert not race.arrived()
        latch.release()
    ours.synchronize()
    assert race.arrived() == (sync == "1")


def test_an_array_with_the_interface_is_kept_alive(pointers):
    foreign = Interface(dm.to_device(data()))
    seen = dm.as_device_array(foreign)
    owner = weakref.ref(foreign)
    del foreign
    gc.collect()
    assert owner() is not None
    np.testing.assert_array_equal(seen.copy_to_host(), data())
    del seen
    dm.synchronize()
    gc.collect()
    assert owner() is None


# -- host arrays of ours -----------------------------------------------------------------------------------------------

MAKE = {"pinned": dm.pinned_array, "mapped": dm.mapped_array, "managed": dm.managed_array}


@pytest.fixture(params=MAKE)
def visible(request, need_kind):
    need_kind(request.param)
    array = MAKE[request.param]((4, 6), "f4")
    array[...] = data()
    return request.param, array


#: Types of memory that NumPy takes.
READ_BY_NUMPY = 1, 3, 11, 13


def relabelled(capsule, expected):
    """The (unversioned) capsule as one of ordinary memory."""
    from devmem._core.interop import dlpack

    tensor = crafted.Legacy.from_address(dlpack._get_pointer(capsule, b"dltensor"))
    assert (tensor.device_type, tensor.device_id) == expected
    tensor.device_type, tensor.device_id = 1, 0
    return capsule


def test_host_arrays_say_what_their_memory_is(visible, exchange, device):
    kind, array = visible
    expected = (exchange.managed_type, device.ordinal) if kind == "managed" else (exchange.host_type, 0)
    if expected[0] == 1:
        expected = (1, 0)
    assert array.__dlpack_device__() == array[1:].__dlpack_device__() == expected
    held = Crafted(0, device=expected)
    for part in (array, array[::2, 1:], array.T, array[:0]):
        held.capsule = part.__dlpack__()
        if expected[0] not in READ_BY_NUMPY:
            held.capsule = relabelled(held.capsule, expected)
        seen = np.from_dlpack(held)
        np.testing.assert_array_equal(seen, part)
        assert not part.size or seen.ctypes.data == part.ctypes.data
    held.device = 1, 0
    held.capsule = array.__dlpack__(dl_device=(1, 0))
    assert np.from_dlpack(held).ctypes.data == array.ctypes.data
    held.capsule = array.__dlpack__(copy=True)
    assert np.from_dlpack(held).ctypes.data != array.ctypes.data
    with pytest.raises(BufferError):
        array.__dlpack__(dl_device=(4, 0))
    for computed in (array + 1, array.copy(), np.empty_like(array)):
        assert computed.__dlpack_device__() == (1, 0)


def test_host_arrays_keep_their_memory_for_consumers(visible):
    _, array = visible
    held = Crafted(0)
    held.capsule = relabelled(array[1:].__dlpack__(), array.__dlpack_device__())
    seen = np.from_dlpack(held)
    del array, visible, held.capsule
    gc.collect()
    np.testing.assert_array_equal(seen, data()[1:])


def test_copies_to_host_arrays_are_waited_for(device, need, need_kind, in_background):
    need("hold")
    need_kind("pinned")
    race = Race(device, dm.stream(non_blocking=True))
    race.array.fill(7)
    with hold(race.held) as latch:
        race.array.copy_to_host(race.back, stream=race.held)
        race.back.__dlpack__(stream=-1)  # a consumer that says so waits for nothing
        done = in_background(race.back.__dlpack__)
        if done.wait(0.1):  # the driver may have done it before it returned
            assert race.arrived()
        latch.release()
        assert done.wait(patience())
    assert done.errors == []
    assert race.arrived()


def test_copies_to_host_arrays_are_waited_for_by_the_stream_that_is_named(race, streams, in_background):
    theirs, seen = dm.stream(non_blocking=True), dm.zeros(4096, "u1")
    race.array.fill(7)
    dm.synchronize()
    with hold(race.held) as latch:
        race.array.copy_to_host(race.back, stream=race.held)
        race.back.__dlpack__(stream=theirs.handle)
        with race.device.entered() as driver:
            driver.copy(seen.ptr, race.back.ctypes.data, 4096, CopyKind.H2D, theirs.handle, blocking=False)
        done = in_background(theirs.synchronize)
        blocked(done)
        latch.release()
        assert done.wait(patience())
    assert set(seen.tolist()) == {7}


def test_a_copy_of_a_host_array_has_what_was_on_its_way(race, streams):
    """Whatever stream the consumer names: the copy is the host's, and made at once."""
    theirs, held = dm.stream(non_blocking=True), Crafted(0)
    with hold(race.held, patience=0.3, tolerant=True):
        race.array.fill(7)
        race.array.copy_to_host(race.back, stream=race.held)
        held.capsule = race.back.__dlpack__(stream=theirs.handle, copy=True)
    assert bool((np.from_dlpack(held) == 7).all())


def test_device_views_of_host_arrays_come_by_from_dlpack(need_kind):
    need_kind("mapped", "managed")
    for make in (dm.mapped_array, dm.managed_array):
        array = make(4, "f4")
        array[:] = 3
        seen = dm.from_dlpack(array)
        assert seen.ptr == array.ptr
        assert dm.from_dlpack(array, copy=True).ptr != array.ptr
        np.testing.assert_array_equal(seen.copy_to_host(), np.full(4, 3, "f4"))


def test_pinned_arrays_are_ndarrays(need_kind):
    need_kind("pinned")
    array = dm.pinned_array((4, 6), "f4")
    array[...] = data()
    assert isinstance(array, np.ndarray)
    assert type(array + 1) is np.ndarray
    assert type(array.sum()) is np.float32
    array += 1
    assert type(array) is dm.PinnedNDArray
    for other in (pickle.loads(pickle.dumps(array)), dm.to_device(array).copy_to_host()):
        assert type(other) is np.ndarray
        np.testing.assert_array_equal(other, data() + 1)
    np.testing.assert_array_equal(copy.deepcopy(array), array)


# -- NumPy -------------------------------------------------------------------------------------------------------------


def test_device_arrays_have_no_buffer_and_no_array_interface():
    array = dm.zeros(3)
    assert not hasattr(array, "__array_interface__")
    with pytest.raises(TypeError):
        memoryview(array)


@pytest.mark.parametrize("bad", ["x", 1, (1,), (1, 0, 0), (1, "a"), (None, 0)])
@pytest.mark.parametrize(
    "make", [lambda: dm.to_device(np.arange(3)), lambda: dm.pinned_array(3)], ids=["device", "host"]
)
def test_a_version_that_is_no_pair_of_integers_is_refused(make, bad):
    with pytest.raises(TypeError, match=r"max_version is a pair of integers, \(major, minor\), or None, not "):
        make().__dlpack__(max_version=bad)
