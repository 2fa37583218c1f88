"""DLPack's table of C functions, as a library in C uses it, and the deleters of what the compiled core exports."""

from __future__ import annotations

import contextlib
import ctypes
import gc
import sys

import numpy as np
import pytest
from exchange_table import Deleter, Table, Tell, end, exported, pointer_in
from own_process import check_ends
from table_driver import TableBackend
from waits import together

import devmem as dm
from devmem import _native
from devmem._core.interop.dlpack import NUMPY_IS_VERSIONED
from devmem._core.interop.dlpack_types import DLManagedTensorVersioned

pytestmark = pytest.mark.skipif(_native.core is None, reason=_native.why)


@pytest.fixture(scope="module")
def table_backend():
    made = TableBackend("exchange")
    dm.register_backend(made)
    return made


@pytest.fixture(params=["table", "host"])
def backend(request, table_backend):
    """A driver with a table of C entry points, past which the core goes, and one without."""
    if request.param == "host":
        with dm.use_backend("host"):
            yield "host"
        return
    with dm.use_backend(table_backend.name):
        yield table_backend.name


@pytest.fixture
def has_table():
    if not NUMPY_IS_VERSIONED:
        pytest.skip("NumPy before 2.1 makes no versioned capsules: devmem offers no table")


@pytest.fixture
def table(backend, has_table):
    return Table.from_address(pointer_in(dm.DeviceNDArray.__dlpack_c_exchange_api__))


def live():
    gc.collect()
    dm.trim()
    return dm.memory_info().live


def test_the_table_says_which_version_it_is(table):
    assert (table.major, table.minor, table.before) == (1, 3, None)
    assert table.borrow is None, "shapes are not kept in the form of DLPack"


@pytest.mark.parametrize("make", [lambda d: d, lambda d: d[1:3], lambda d: d.T, lambda d: d[:, ::2], lambda d: d[::-1]])
@pytest.mark.parametrize("dtype", ["f4", "i8", "c16", "?"])
def test_a_tensor_describes_the_array(table, make, dtype):
    array = make(dm.to_device(np.ones((4, 6), dtype)))
    tensor = exported(table, array)
    size = array.dtype.itemsize
    assert (tensor.major, tensor.flags, tensor.byte_offset, tensor.lanes) == (1, 0, 0, 1)
    assert (tensor.data, tensor.ndim, tensor.bits) == (array.ptr, 2, 8 * size)
    assert (tensor.device_type, tensor.device_id) == array.__dlpack_device__()
    assert tuple((ctypes.c_int64 * 2).from_address(tensor.shape)) == array.shape
    assert tuple(size * step for step in (ctypes.c_int64 * 2).from_address(tensor.strides)) == array.strides
    end(tensor)


@pytest.mark.parametrize("shape", [(), (0, 3), (1,) * 9])
def test_arrays_that_python_describes(table, shape):
    tensor = exported(table, dm.zeros(shape, "i2"))
    assert (tensor.ndim, tensor.bits) == (len(shape), 16)
    end(tensor)


def test_a_tensor_keeps_the_memory_alive(table):
    before = live()
    tensor = exported(table, dm.to_device(np.arange(100.0)))
    assert live() == before + 800
    end(tensor)
    assert live() == before


@pytest.mark.parametrize("describes", ["core", "Python"])
@pytest.mark.parametrize("times", [1, 2, 3])
def test_a_deleter_may_be_called_again(table, times, describes):
    with dm.stream() if describes == "Python" else contextlib.nullcontext():
        delete_again(table, times)


def delete_again(table, times):
    before = live()
    tensors = [exported(table, dm.to_device(np.arange(100.0))) for _ in range(3)]
    for _ in range(times):
        for each in tensors:
            end(each)
    again = exported(table, dm.to_device(np.arange(100.0)))
    assert live() == before + 800
    end(again)
    assert live() == before


def test_deleters_are_called_on_any_thread(table):
    before = live()
    tensors = [exported(table, dm.to_device(np.arange(10.0))) for _ in range(200)]
    # ctypes releases the GIL for these calls
    together(*(lambda part=tensors[at::4]: [end(each) for each in part] for at in range(4)))
    assert live() == before


def test_a_tensor_becomes_an_array(table, backend):
    before, source = live(), dm.to_device(np.arange(12.0).reshape(3, 4))
    tensor, out = exported(table, source), ctypes.c_void_p()
    assert table.to_object(ctypes.addressof(tensor), ctypes.addressof(out)) == 0
    array = ctypes.cast(out, ctypes.py_object).value
    ctypes.pythonapi.Py_DecRef(ctypes.py_object(array))
    assert type(array) is dm.DeviceNDArray
    assert array.ptr == source.ptr
    del source
    assert array.tolist() == np.arange(12.0).reshape(3, 4).tolist()
    assert live() > before
    del array
    assert live() == before


def test_a_tensor_that_is_impossible_is_ended_and_refused(table):
    before = live()
    tensor, out = exported(table, dm.to_device(np.arange(3.0))), ctypes.c_void_p()
    tensor.lanes = 4
    with pytest.raises(BufferError, match="4 lanes"):
        table.to_object(ctypes.addressof(tensor), ctypes.addressof(out))
    assert not out.value
    assert live() == before


def test_an_interrupt_during_an_import_is_told_and_the_tensor_given_back(table, backend):
    if backend == "host":
        pytest.skip("it has no table of C entry points")
    source, ended, out = dm.to_device(np.arange(3.0)), [], ctypes.c_void_p()
    ours = exported(table, source)
    theirs = type(ours).from_buffer_copy(ours)
    deleter = Deleter(ended.append)
    theirs.deleter = ctypes.cast(deleter, ctypes.c_void_p).value

    def interrupt(frame, event, argument):
        if frame.f_code.co_name == "is_known":
            raise KeyboardInterrupt

    before = sys.gettrace()
    try:
        sys.settrace(interrupt)
        with pytest.raises(KeyboardInterrupt):
            table.to_object(ctypes.addressof(theirs), ctypes.addressof(out))
    finally:
        sys.settrace(before)
    assert ended == [ctypes.addressof(theirs)]
    assert not out.value
    end(ours)


@pytest.mark.parametrize("what", [5, np.zeros(3), None])
def test_other_objects_are_refused(table, what):
    out = ctypes.c_void_p()
    with pytest.raises(TypeError, match=r"devmem\.DeviceNDArray"):
        table.from_object(what, ctypes.addressof(out))


def test_what_cannot_be_exchanged_raises_what_dlpack_raises(table):
    out, array = ctypes.c_void_p(), dm.to_device(np.zeros(3, "M8[s]"))
    with pytest.raises(BufferError, match="no type for dtype"):
        table.from_object(array, ctypes.addressof(out))
    array.free()
    with pytest.raises(dm.ClosedError):
        table.from_object(array, ctypes.addressof(out))


def test_the_current_stream_is_told_in_the_numbers_of_the_vendor(table):
    kind, number = dm.zeros(1).__dlpack_device__()
    out, numbers = ctypes.c_void_p(), dm.current_device().opened().handle.stream_numbers
    assert table.work_stream(kind, number, ctypes.addressof(out)) == 0
    assert (out.value or 0) == numbers.get(1, 0)
    with dm.stream() as stream:
        assert table.work_stream(kind, number, ctypes.addressof(out)) == 0
        assert (out.value or 0) == (stream.handle if numbers else 0)
    with pytest.raises(BufferError, match="no device that devmem has open"):
        table.work_stream(8, 0, ctypes.addressof(out))


def test_the_legacy_stream_is_told_by_the_core(table, backend):
    if backend == "host":
        pytest.skip("it has no table of C entry points")
    kind, number = dm.zeros(1).__dlpack_device__()
    out, called = ctypes.c_void_p(), []
    sys.setprofile(lambda frame, event, argument: called.append(frame.f_code.co_name) if event == "call" else None)
    try:
        table.work_stream(kind, number, ctypes.addressof(out))
    finally:
        sys.setprofile(None)
    assert "_table_stream" not in called
    assert out.value == 1


def test_a_tensor_is_made_like_another(table):
    before, told = live(), []
    like = DLManagedTensorVersioned()
    lengths = (ctypes.c_int64 * 2)(3, 5)
    like.device_type, like.device_id = dm.zeros(1).__dlpack_device__()
    like.ndim, like.shape, like.code, like.bits, like.lanes = 2, ctypes.addressof(lengths), 2, 32, 1
    tell = Tell(lambda context, kind, message: told.append((kind, message)))
    at, out = ctypes.addressof(like) + DLManagedTensorVersioned.data.offset, ctypes.c_void_p()
    assert table.allocate(at, ctypes.addressof(out), None, tell) == 0
    made = DLManagedTensorVersioned.from_address(out.value)
    assert (made.ndim, made.code, made.bits, bool(made.data)) == (2, 2, 32, True)
    assert live() == before + 60
    end(made)
    assert live() == before
    like.bits = 33
    assert table.allocate(at, ctypes.addressof(out), None, tell) == -1
    assert told == [(b"BufferError", told[0][1])]
    assert b"33 bits" in told[0][1]
    assert not out.value


def test_work_on_another_stream_comes_before_what_the_consumer_does(table):
    """The consumer orders its work on the current stream, which is made to wait."""
    other, array = dm.stream(non_blocking=True), dm.zeros(8)
    array.fill(1.0, stream=other)
    tensor = exported(table, array)
    assert dm.default_stream() in array.allocation.uses()
    end(tensor)
    array.bind(0)
    other.synchronize()


def test_arrays_of_another_library_are_taken_by_its_table(backend, has_table):
    """A class with devmem's own table, and objects that are no devmem arrays, as another library's would be."""
    if backend == "host":
        pytest.skip("it has no table of C entry points")
    calls, source = [], dm.to_device(np.arange(6.0))
    table, mine = Table.from_address(pointer_in(dm.DeviceNDArray.__dlpack_c_exchange_api__)), Table()
    ctypes.memmove(ctypes.addressof(mine), ctypes.addressof(table), ctypes.sizeof(mine))

    def from_object(thing, out):
        calls.append(type(thing).__name__)
        return table.from_object(thing.array, out)

    mine.from_object = type(mine.from_object)(from_object)
    new = ctypes.PYFUNCTYPE(ctypes.py_object, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p)(
        ("PyCapsule_New", ctypes.pythonapi)
    )
    name = ctypes.create_string_buffer(b"dlpack_exchange_api")

    class Theirs:
        __dlpack_c_exchange_api__ = new(ctypes.addressof(mine), ctypes.addressof(name), None)

        def __init__(self, array):
            self.array = array

        def __dlpack_device__(self):
            return self.array.__dlpack_device__()

        def __dlpack__(self, **options):
            calls.append("__dlpack__")
            return self.array.__dlpack__(**options)

    found = dm.from_dlpack(Theirs(source))
    assert calls == ["Theirs"]
    assert found.ptr == source.ptr
    with dm.stream():  # the producer's stream is not the consumer's: Python orders them
        assert dm.from_dlpack(Theirs(source)).ptr == source.ptr
    assert "__dlpack__" in calls


def test_views_that_were_imported_outlive_what_they_came_from(backend):
    before = live()
    view = dm.from_dlpack(dm.to_device(np.arange(5.0)))
    assert view.tolist() == [0, 1, 2, 3, 4]
    assert live() > before
    del view
    assert live() == before


@pytest.mark.parametrize("version", [None, (1, 0), (1, 1), (0, 8), (7, 0)])
def test_a_capsule_that_is_not_taken_ends_by_itself(backend, version):
    before = live()
    capsule = dm.to_device(np.arange(9.0)).__dlpack__(stream=-1 if backend == "host" else None, max_version=version)
    asked = version is not None and version[0] >= 1
    assert ("versioned" in repr(capsule)) == (asked and (NUMPY_IS_VERSIONED or backend != "host"))
    del capsule
    assert live() == before


def test_a_deleter_may_be_called_when_the_interpreter_has_ended(has_table):
    """By the destructor of a library, say: it runs at the end of the process."""
    program = """
        import atexit, ctypes, sys
        import numpy as np
        import devmem as dm
        from exchange_table import Table, exported, pointer_in
        with dm.use_backend("host"):
            table = Table.from_address(pointer_in(dm.DeviceNDArray.__dlpack_c_exchange_api__))
            tensor = exported(table, dm.to_device(np.arange(3.0)))
        libc, at = ctypes.CDLL(None), ctypes.addressof(tensor)
        libc.on_exit.argtypes = [ctypes.c_void_p, ctypes.c_void_p]
        # int status, void *argument: the deleter takes the argument first, so it is called through a function that swaps them
        libc.__cxa_atexit.argtypes = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p]
        libc.__cxa_atexit(tensor.deleter, at, None)
        libc.__cxa_atexit(tensor.deleter, at, None)
        print("ends")
    """
    check_ends(program, __file__.rpartition("/")[0])
