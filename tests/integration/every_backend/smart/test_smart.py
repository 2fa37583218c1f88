"""The array on both sides: what moves when, and that no side is ever older than what was said about it."""

from __future__ import annotations

import copy
import gc
import operator
import pickle
import re
import threading

import numpy as np
import pytest
from waits import patience

import devmem as dm
from devmem.testing import every_failure

pytestmark = pytest.mark.usefixtures("devmem_backend", "tidy")

LAYOUTS = {
    "c": lambda: np.arange(24.0).reshape(4, 6),
    "fortran": lambda: np.asfortranarray(np.arange(24.0).reshape(4, 6)),
    "gaps": lambda: np.arange(48.0).reshape(4, 12)[:, ::2],
    "backwards": lambda: np.arange(24.0).reshape(4, 6)[::-1, ::-1],
    "axes": lambda: np.arange(24.0).reshape(2, 3, 4).transpose(1, 2, 0),
    "repeated": lambda: np.broadcast_to(np.arange(6.0), (4, 6)),
    "scalar": lambda: np.array(7.5),
    "empty": lambda: np.empty((0, 3)),
    "record": lambda: np.array([(1, 2.5), (3, 4.5)], [("a", "i4"), ("b", "f8")]),
    "dates": lambda: np.array(["2001-02-03", "1999-12-31"], "M8[D]"),
    "swapped": lambda: np.arange(5, dtype=">i2"),
    "text": lambda: np.array(["ab", "c"]),
}


class Moved:
    """Copies between the sides since the last look."""

    def __init__(self):
        dm.transfer_stats(reset=True)

    def __call__(self):
        stats = dm.transfer_stats(reset=True)
        return tuple(sum(each["copies"] for name, each in stats.items() if name[:3] == way) for way in ("h2d", "d2h"))


@pytest.fixture
def moved(devmem_backend):
    return Moved()


def on_device(smart):
    return smart.gpu().copy_to_host()


def write_device(smart, value):
    """What a kernel does: the device side is asked for, written, and that is told."""
    smart.gpu().copy_to_device(np.full(smart.shape, value, smart.dtype))
    smart.gpu_changed()


# -- what moves when ---------------------------------------------------------------------------------------------------


def test_nothing_moves_until_the_other_side_is_asked_for(moved):
    smart = dm.SmartArray(np.arange(5))
    smart.host(), smart.sum(), smart[2], smart + 1, np.asarray(smart), repr(smart)
    assert moved() == (0, 0)


def test_each_side_is_brought_up_to_date_once(moved):
    smart = dm.SmartArray(np.arange(5))
    first = smart.gpu()
    assert smart.gpu() is first
    assert moved() == (1, 0)
    first.fill(9)
    smart.gpu_changed()
    assert moved() == (0, 0)
    assert smart.host().tolist() == [9] * 5
    assert smart.host() is smart.host()
    assert smart.sum() == 45
    assert smart.gpu() is first
    assert moved() == (0, 1)


def test_writing_the_host_side_makes_the_device_lack_it_once(moved):
    smart = dm.SmartArray(np.arange(5))
    device = smart.gpu()
    moved()
    smart[0] = 7
    smart[1:3] = [8, 9]
    assert moved() == (0, 0)
    assert smart.gpu() is device  # the same memory, new elements
    assert device.copy_to_host().tolist() == [7, 8, 9, 3, 4]
    assert moved() == (1, 1)


def test_what_was_written_behind_its_back_is_told(moved):
    smart = dm.SmartArray(np.arange(3))
    smart.gpu()
    host = smart.host()
    host[:] = 5
    smart.host_changed()
    assert on_device(smart).tolist() == [5, 5, 5]


def test_the_host_side_stays_where_it_is():
    smart = dm.SmartArray(np.arange(3))
    host = smart.host()
    write_device(smart, 4)
    assert host.tolist() == [0, 1, 2]  # until the host array is read
    assert smart.host() is host
    assert host.tolist() == [4, 4, 4]


def test_where_gpu_uploads(moved):
    smart = dm.SmartArray([1, 2, 3], where="gpu")
    assert moved() == (1, 0)
    assert on_device(smart).tolist() == [1, 2, 3]
    moved()
    assert smart.sum() == 6
    assert moved() == (0, 1)


@pytest.mark.parametrize("where", ["host", "gpu"])
def test_get_and_mark_changed_name_a_side(where):
    smart = dm.SmartArray(np.zeros(3), where=where)
    assert smart.get() is smart.host()
    assert smart.get("host") is smart.host()
    assert smart.get("gpu") is smart.gpu()
    smart.get("gpu").fill(2)
    smart.mark_changed("gpu")
    assert smart.tolist() == [2, 2, 2]
    smart.get()[0] = 1
    smart.mark_changed()
    assert on_device(smart).tolist() == [1, 2, 2]


@pytest.mark.parametrize("first", ["host", "gpu"])
def test_a_change_of_both_sides_is_no_ones_to_decide(first):
    smart = dm.SmartArray(np.zeros(3))
    smart.gpu()
    smart.mark_changed(first)
    other = {"host": "gpu", "gpu": "host"}[first]
    with pytest.raises(dm.DevmemError, match=f"{other}_changed\\(\\) was called while the newest"):
        smart.mark_changed(other)
    smart.get(first)
    smart.get(other)
    smart.mark_changed(other)


def test_a_device_side_that_was_never_asked_for_cannot_have_changed():
    with pytest.raises(dm.DevmemError, match="call gpu\\(\\) before writing there"):
        dm.SmartArray([1.0]).gpu_changed()


# -- what it is made of ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("copied", [True, False])
@pytest.mark.parametrize("where", ["host", "gpu"])
def test_any_layout_there_and_back(layout, copied, where):
    source = LAYOUTS[layout]()
    expected = source.copy()
    smart = dm.SmartArray(source, copied, where=where)
    assert (smart.shape, smart.dtype, smart.ndim, smart.size) == (
        source.shape,
        source.dtype,
        source.ndim,
        source.size,
    )
    assert (smart.itemsize, smart.nbytes) == (source.itemsize, source.size * source.itemsize)
    np.testing.assert_array_equal(on_device(smart), expected)
    smart.gpu_changed()
    np.testing.assert_array_equal(smart.host(), expected)
    np.testing.assert_array_equal(source, expected)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_what_the_device_wrote_comes_back_into_any_layout(layout):
    source = LAYOUTS[layout]()
    new = np.roll(source, 1) if source.size else source.copy()
    smart = dm.SmartArray(source, copy=False)
    smart.gpu().copy_to_device(np.ascontiguousarray(new).reshape(new.shape))
    smart.gpu_changed()
    np.testing.assert_array_equal(smart.host(), new)
    if source.flags.writeable:
        assert np.shares_memory(smart.host(), source) == bool(source.size)
        np.testing.assert_array_equal(source, new)


def test_copy_false_keeps_the_memory_of_an_ndarray():
    source = np.arange(4)
    smart = dm.SmartArray(source, copy=False)
    smart[0] = 9
    assert source[0] == 9
    assert not np.shares_memory(dm.SmartArray(source).host(), source)
    assert not np.shares_memory(dm.SmartArray(source, copy=False, dtype="f4").host(), source)


def test_read_only_memory_serves_until_the_device_writes():
    source = np.arange(4)
    source.flags.writeable = False
    smart = dm.SmartArray(source, copy=False)
    with pytest.raises(ValueError, match="read-only"):
        smart[0] = 1
    write_device(smart, 3)
    assert smart.host().tolist() == [3] * 4
    assert source.tolist() == [0, 1, 2, 3]
    smart[0] = 1
    assert on_device(smart).tolist() == [1, 3, 3, 3]


@pytest.mark.parametrize("where", ["host", "gpu"])
@pytest.mark.parametrize("shape", [(), 3, (2, 3), (0, 2), [2, 2]])
def test_an_uninitialised_array_moves_nothing(where, shape, moved):
    smart = dm.SmartArray(shape=shape, dtype=np.int32, where=where)
    assert smart.shape == np.empty(shape).shape
    assert smart.dtype == np.int32
    smart.get(where)
    assert moved() == (0, 0)
    write_device(smart, 5)
    assert (smart == 5).all()


def test_dtype_and_order_convert():
    source = np.arange(6).reshape(2, 3)
    smart = dm.SmartArray(source, dtype=np.float32, order="F", where="gpu")
    assert smart.gpu().dtype == np.float32
    assert smart.gpu().is_f_contiguous()
    assert smart.strides == (4, 8)
    assert dm.SmartArray(shape=(2, 3), dtype="i1", order="F").strides == (1, 2)
    assert dm.SmartArray(shape=(2, 3)).dtype == np.float64
    assert dm.SmartArray(np.asfortranarray(source)).gpu().is_f_contiguous()


def test_of_a_device_array(moved):
    device = dm.to_device(np.arange(4))
    moved()
    smart = dm.SmartArray(device, copy=False, where="gpu")
    assert smart.gpu() is device
    assert moved() == (0, 0)
    copied = dm.SmartArray(device, where="gpu")
    assert copied.gpu().ptr != device.ptr
    there = dm.SmartArray(device)
    assert there.host().tolist() == [0, 1, 2, 3]
    smart[0] = 9
    assert on_device(smart).tolist() == [9, 1, 2, 3]
    assert device.copy_to_host().tolist() == [9, 1, 2, 3]
    assert copied.tolist() == there.tolist() == [0, 1, 2, 3]
    assert dm.SmartArray(device, copy=False, dtype="f4", where="gpu").gpu().dtype == np.float32


def test_of_a_smart_array():
    smart = dm.SmartArray(np.arange(6).reshape(2, 3))
    same = dm.SmartArray(smart.T, copy=False)
    other = dm.SmartArray(smart)
    same[0, 0] = 9
    assert smart[0, 0] == 9
    assert other[0, 0] == 0
    write_device(smart, 2)
    assert (dm.SmartArray(smart, where="gpu") == 2).all()
    assert dm.SmartArray(smart, copy=False, order="F").strides == (8, 16)


@pytest.mark.parametrize(
    ("arguments", "error", "words"),
    [
        ({}, TypeError, "shape= and dtype="),
        ({"dtype": "f4"}, TypeError, "shape= and dtype="),
        ({"obj": [1], "where": "xpu"}, ValueError, "'host' or on 'gpu', not on 'xpu'"),
        ({"obj": [1], "where": None}, ValueError, "not on None"),
        ({"obj": [1], "order": "X"}, ValueError, "order is one of"),
        ({"obj": [object()]}, ValueError, "references to Python objects"),
        ({"obj": [1], "dtype": object}, ValueError, "references to Python objects"),
        ({"shape": 2, "dtype": object}, ValueError, "references to Python objects"),
        ({"shape": -1, "dtype": "f4"}, ValueError, "no negative lengths"),
        ({"shape": 2.5, "dtype": "f4"}, TypeError, "a shape is"),
        ({"obj": [1, 2], "shape": 3}, ValueError, "shape is \\(2,\\)"),
        ({"obj": np.ma.masked_array([1], [True])}, ValueError, "mask"),
    ],
)
def test_bad_arguments_are_refused_with_the_reason(arguments, error, words):
    with pytest.raises(error, match=words):
        dm.SmartArray(**arguments)


def test_a_shape_that_is_the_objects_is_welcome():
    assert dm.SmartArray([1, 2], shape=2, dtype="i2").tolist() == [1, 2]


@pytest.mark.parametrize("call", [lambda a: a.get("xpu"), lambda a: a.mark_changed("xpu")])
def test_there_are_two_sides(call):
    with pytest.raises(ValueError, match="not on 'xpu'"):
        call(dm.SmartArray([1]))


# -- as an ndarray -----------------------------------------------------------------------------------------------------

READS = {
    "sum": lambda a: a.sum(),
    "np.sum": np.sum,
    "item": lambda a: a[1],
    "slice": lambda a: a[1:],
    "mask": lambda a: a[np.array([True, False, True])],
    "list": lambda a: a[[0, 2]],
    "asarray": np.asarray,
    "array": np.array,
    "tolist": lambda a: a.tolist(),
    "add": lambda a: a + 1,
    "radd": lambda a: np.ones(3) + a,
    "ufunc": np.sqrt,
    "reduce": np.add.reduce,
    "compare": lambda a: a == 9,
    "differ": lambda a: a != 9,
    "less": lambda a: a < 10,
    "matmul": lambda a: a @ np.arange(3),
    "contains": lambda a: 9 in a,
    "iterate": list,
    "str": str,
    "format": lambda a: f"{a[:1].squeeze():.2f}",
    "concatenate": lambda a: np.concatenate([a, a]),
    "where": lambda a: np.where(a > 3, a, 0),
    "view": lambda a: a.view("u1"),
    "real": lambda a: a.real,
    "flat": lambda a: list(a.flat),
    "bytes": lambda a: a.tobytes(),
    "bool": lambda a: bool(a[:1]),
    "int": lambda a: int(a[0]),
    "float": lambda a: float(a[0:1].squeeze()),
    "complex": lambda a: complex(a[0:1].squeeze()),
    "dot": lambda a: a.dot(a),
    "value": lambda a: np.put(z := np.zeros(3), [0, 1, 2], a) or z,
    "upload": lambda a: dm.to_device(a).copy_to_host(),
}

OWN = {
    "copy": lambda a: a.copy(),
    "astype": lambda a: a.astype("i2"),
    "transposed": lambda a: a.T,
    "reshaped": lambda a: a.reshape(3, 1),
    "ravelled": lambda a: a.ravel("K"),
    "deepcopy": lambda a: copy.deepcopy(a),
    "pickle": lambda a: pickle.loads(pickle.dumps(a)),
}


@pytest.mark.parametrize("name", READS)
def test_no_read_is_stale(name):
    smart = dm.SmartArray(np.arange(3.0))
    write_device(smart, 9)
    np.testing.assert_array_equal(READS[name](smart), READS[name](np.full(3, 9.0)))


@pytest.mark.parametrize("name", OWN)
def test_no_array_made_of_it_is_stale(name):
    smart = dm.SmartArray(np.arange(3.0))
    write_device(smart, 9)
    made = OWN[name](smart)
    assert isinstance(made, dm.SmartArray)
    assert made.dtype == (np.int16 if name == "astype" else np.float64)
    assert (made.host() == 9).all()


def test_a_method_of_before_is_not_stale():
    smart = dm.SmartArray(np.arange(3.0))
    total = smart.sum
    write_device(smart, 9)
    assert total() == 27


WRITES = {
    "item": lambda a: operator.setitem(a, 0, 5),
    "slice": lambda a: operator.setitem(a, slice(1, None), 5),
    "mask": lambda a: operator.setitem(a, np.array([True, False, True]), 5),
    "own mask": lambda a: operator.setitem(a, a > 0, 5),
    "iadd": lambda a: operator.iadd(a, 1),
    "imul": lambda a: operator.imul(a, 3),
    "out": lambda a: np.add(a, 1, out=a),
    "out of two": lambda a: np.divmod(a, 2, out=(a, None)),
    "at": lambda a: np.add.at(a, [0, 0], 1),
    "reduce out": lambda a: np.add.reduce(np.ones((4, 3)), out=a),
    "sum out": lambda a: np.ones((4, 3)).sum(axis=0, out=a),
    "method out": lambda a: a.clip(1, 1, out=a),
    "fill": lambda a: a.fill(8),
    "sort": lambda a: (operator.setitem(a, 0, 9), a.sort())[1],
    "np.put": lambda a: np.put(a, [0], [4]),
    "view": lambda a: operator.setitem(a[1:], 0, 4),
    "view of view": lambda a: operator.setitem(a[1:].T[:1].reshape(1, 1), (0, 0), 4),
    "row": lambda a: next(operator.setitem(row, 0, 4) for row in a.reshape(3, 1)),
    "byteswap": lambda a: a.byteswap(inplace=True),
}


@pytest.mark.parametrize("name", WRITES)
def test_no_write_is_lost_on_the_device(name):
    plain, smart = np.arange(3.0), dm.SmartArray(np.arange(3.0))
    smart.gpu()
    WRITES[name](plain)
    result = WRITES[name](smart)
    if result is not None and not isinstance(result, tuple):
        assert result is smart
    assert not np.array_equal(plain, np.arange(3.0))
    np.testing.assert_array_equal(on_device(smart), plain)
    np.testing.assert_array_equal(smart.host(), plain)


@pytest.mark.parametrize(
    "write",
    [
        lambda a: operator.setitem(np.asarray(a), 0, 1),
        lambda a: operator.setitem(a.view("u1"), 0, 1),
        lambda a: operator.setitem(a.flat, 0, 1),
        lambda a: operator.setitem(a.real, 0, 1),
        lambda a: operator.setitem(a.data, 0, 1.0),
        lambda a: operator.setitem(a.diagonal(), 0, 1),
        lambda a: np.fill_diagonal(a, 3),
        lambda a: np.copyto(a, 3),
        lambda a: setattr(a, "real", 3),
        lambda a: setattr(a, "shape", (9,)),
        lambda a: a.resize(2),
        lambda a: a.setflags(write=False),
        lambda a: a.sum(0, None, a[0]),
    ],
)
def test_writes_that_would_go_unnoticed_are_refused(write):
    smart = dm.SmartArray(np.arange(9.0).reshape(3, 3))
    smart.gpu()
    with pytest.raises((ValueError, TypeError, AttributeError)):
        write(smart)
    np.testing.assert_array_equal(smart.host(), np.arange(9.0).reshape(3, 3))
    np.testing.assert_array_equal(on_device(smart), np.arange(9.0).reshape(3, 3))


@pytest.mark.parametrize(
    "write",
    [
        lambda a: np.copyto(a, 3),
        lambda a: np.putmask(a, a > 3, 3),
        lambda a: np.place(a, np.asarray(a) > 3, [3]),
        lambda a: np.fill_diagonal(a, 3),
    ],
)
def test_what_numpy_refuses_tells_what_to_give_it(write):
    smart = dm.SmartArray(np.arange(9.0).reshape(3, 3))
    with pytest.raises((ValueError, TypeError)) as told:
        write(smart)
    [note] = told.value.__notes__
    assert "host()" in note and "host_changed()" in note
    write(smart.host())
    smart.host_changed()
    assert 3 in on_device(smart)
    with pytest.raises(ValueError, match="dimension") as told:  # which has nothing to do with it
        np.concatenate([smart, np.zeros(3)])
    assert not hasattr(told.value, "__notes__")


def test_its_bytes_are_those_of_the_ndarray():
    smart = dm.SmartArray(np.arange(3))
    write_device(smart, 5)
    assert bytes(smart) == bytes(np.full(3, 5))


def test_functions_that_ask_for_no_elements_move_none(moved):
    smart = dm.SmartArray(np.arange(6.0).reshape(2, 3), where="gpu")
    assert moved() == (1, 0)
    assert (np.shape(smart), np.ndim(smart), np.size(smart)) == ((2, 3), 2, 6)
    assert moved() == (0, 0)


def test_another_librarys_array_has_the_say():
    class Other:
        def __array_function__(self, func, types, args, keywords):
            return func.__name__, types, args

    class Unit(np.ndarray):
        def __array_function__(self, func, types, args, keywords):
            return func.__name__, types, args

    smart = dm.SmartArray([1, 2])
    for other in (Other(), np.zeros(2).view(Unit)):
        name, types, (arrays,) = np.concatenate([smart, other])
        assert name == "concatenate" and type(other) in types and dm.SmartArray not in types
        assert type(arrays[0]) is np.ndarray and arrays[1] is other
    assert np.concatenate([smart, np.zeros(2).view(np.matrix).A1]).tolist() == [1, 2, 0, 0]


@pytest.mark.parametrize("newest", ["host", "gpu"])
def test_np_save_writes_the_newest_side(newest, tmp_path):
    smart = dm.SmartArray(np.zeros(3))
    if newest == "gpu":
        write_device(smart, 5)
    else:
        smart.gpu()
        smart[:] = 5
    dm.save(smart, tmp_path / "a.npy")
    assert np.load(tmp_path / "a.npy").tolist() == [5, 5, 5]
    assert dm.to_device(smart).copy_to_host().tolist() == [5, 5, 5]


def test_a_destination_is_its_host_side():
    smart, array = dm.SmartArray(np.zeros(3)), dm.to_device(np.ones(3))
    for call in (lambda: array.copy_to_host(smart), lambda: dm.copy_async(array, smart)):
        with pytest.raises(TypeError, match=r"not a SmartArray: give its host\(\), and call host_changed\(\)"):
            call()


def test_a_field_of_one_record_is_read_only_too():
    smart = dm.SmartArray(LAYOUTS["record"]())
    with pytest.raises(ValueError, match="read-only"):
        smart[0]["a"] = 5
    smart["a"] = [7, 8]
    assert on_device(smart)["a"].tolist() == [7, 8]


def test_a_failed_write_leaves_the_sides_alike():
    smart = dm.SmartArray(np.arange(4.0))
    smart.gpu()
    with pytest.raises(TypeError):
        np.add(smart, object(), out=smart)
    with pytest.raises(ValueError, match="broadcast"):
        smart[:] = [1, 2, 3]
    with pytest.raises(IndexError):
        smart[9] = 1
    np.testing.assert_array_equal(on_device(smart), smart.host())


def test_arithmetic_is_numpys():
    a, b = np.arange(1.0, 4), np.array([[2.0], [3.0]])
    for name in ["add", "sub", "mul", "truediv", "floordiv", "mod", "pow", "lt", "le", "eq", "ne", "gt", "ge"]:
        call = getattr(operator, name)
        for left, right in [(a, b), (a, 2.5), (2.5, a)]:
            smart_left = dm.SmartArray(left) if isinstance(left, np.ndarray) else left
            smart_right = dm.SmartArray(right) if isinstance(right, np.ndarray) else right
            expected = call(left, right)
            for result in (call(smart_left, smart_right), call(left, smart_right), call(smart_left, right)):
                np.testing.assert_array_equal(result, expected)
                assert type(result) is type(expected)
    assert (dm.SmartArray([1, 2]) == "text").tolist() == (np.array([1, 2]) == "text").tolist()
    np.testing.assert_array_equal(abs(-dm.SmartArray(a)), a)
    plain = np.zeros(3)
    plain += dm.SmartArray(a)
    np.testing.assert_array_equal(plain, a)


def test_one_element_and_none():
    one = dm.SmartArray(3)
    assert (int(one), float(one), complex(one), bool(one), range(5)[one]) == (3, 3.0, 3 + 0j, True, 3)
    assert f"{one:d}" == "3"
    with pytest.raises(TypeError, match="axes"):
        len(one)
    with pytest.raises(TypeError, match="axes"):
        iter(one)
    one[()] = 4
    one[...] += 1
    assert one[()] == 5
    assert on_device(one) == 5
    with pytest.raises(ValueError, match="ambiguous"):
        bool(dm.SmartArray([1, 2]))
    with pytest.raises(TypeError):
        operator.index(dm.SmartArray([1.5]))
    with pytest.raises(TypeError, match="unhashable"):
        hash(one)


def test_the_array_protocol_gives_the_host_side():
    smart = dm.SmartArray([1, 2])
    assert np.array(smart).flags.writeable
    assert np.asarray(smart, dtype="f4").dtype == np.float32
    assert np.shares_memory(smart.__array__(copy=False), smart.host())
    assert np.shares_memory(np.asarray(smart, dtype=smart.dtype), smart.host())
    with pytest.raises(ValueError, match="by a copy only"):
        smart.__array__("f4", copy=False)


def test_unknown_attributes_and_bad_indices_are_numpys():
    smart = dm.SmartArray(np.arange(4))
    with pytest.raises(AttributeError, match="nonsense"):
        _ = smart.nonsense
    assert not hasattr(smart, "__array_interface__")
    assert "cumsum" in dir(smart)
    for key in (9, (0, 0), "x", 1.5):
        with pytest.raises((IndexError, ValueError)):
            smart[key]
    for bad in (lambda: smart.reshape(3, 2), lambda: smart.transpose(1, 0), lambda: smart.squeeze(0)):
        with pytest.raises(ValueError, match=r"."):
            bad()
    assert "cumsum" in repr(smart.cumsum)


# -- views -------------------------------------------------------------------------------------------------------------

VIEWS = {
    "slice": lambda a: a[1:],
    "step": lambda a: a[::2, ::-1],
    "row": lambda a: a[1],
    "numpy integer": lambda a: a[np.int64(1)],
    "ellipsis": lambda a: a[..., 1],
    "new axis": lambda a: a[:, None],
    "one element": lambda a: a[1, 2, ...],
    "transpose": lambda a: a.T,
    "axes": lambda a: a.transpose(1, 0),
    "reshape": lambda a: a.reshape(3, 4, 2),
    "reshape F": lambda a: a.T.reshape(24, order="F"),
    "reshape A": lambda a: a.T.reshape(24, order="A"),
    "ravel": lambda a: a.ravel(),
    "squeeze": lambda a: a[:1].squeeze(),
    "squeeze axis": lambda a: a[:1].squeeze(0),
    "nothing": lambda a: a[2:2],
    "chain": lambda a: a[1:].T[::2].reshape(-1, 1, 3)[0],
}


@pytest.mark.parametrize("copied", [True, False])
@pytest.mark.parametrize("name", VIEWS)
def test_views_share_memory_and_what_is_known(name, copied, moved):
    make = VIEWS[name]
    plain = np.arange(24).reshape(4, 6)
    smart = dm.SmartArray(plain.copy(), copied)
    smart.gpu()
    moved()
    view = make(smart)
    assert isinstance(view, dm.SmartArray)
    assert view.shape == make(plain).shape
    np.testing.assert_array_equal(on_device(view), make(plain))
    assert moved()[0] == 0  # no upload: the whole is up to date, and so is its part
    make(plain)[...] = -1
    view[...] = -1
    np.testing.assert_array_equal(on_device(smart), plain)
    make(plain)[...] = -2
    view.gpu().copy_to_device(np.full(view.shape, -2))
    view.gpu_changed()
    np.testing.assert_array_equal(smart.host(), plain)
    plain[...] = 5
    smart.fill(5)
    np.testing.assert_array_equal(on_device(view), make(plain))


def test_a_reshape_without_a_view_is_an_array_of_its_own():
    source = np.arange(24.0).reshape(4, 6)
    smart = dm.SmartArray(source[:, ::2], copy=False)
    for other in (smart.reshape(12), smart.T.reshape(12), smart.ravel("K")):
        other[...] = 0
        assert on_device(other).sum() == 0
    np.testing.assert_array_equal(smart.host(), source[:, ::2])
    strided = dm.SmartArray(dm.to_device(source)[:, :4], copy=False, where="gpu")
    flat = strided.reshape(-1)  # the host side has a view, the device side has not
    np.testing.assert_array_equal(on_device(flat), source[:, :4].ravel())


def test_copies_are_independent():
    smart = dm.SmartArray(np.arange(4))
    others = [smart.copy(), copy.copy(smart), copy.deepcopy(smart), pickle.loads(pickle.dumps(smart))]
    others += [smart.astype("i8"), smart.astype("f4", copy=False)]
    smart.fill(0)
    for other in others:
        assert isinstance(other, dm.SmartArray)
        assert other.tolist() == [0, 1, 2, 3]
        assert on_device(other).tolist() == [0, 1, 2, 3]


# -- streams, devices, lifetime ----------------------------------------------------------------------------------------


def test_copies_come_behind_work_on_any_stream(need, hold, tidy):
    need("hold")
    smart = dm.SmartArray(np.zeros(1000), where="gpu")
    stream = dm.stream(non_blocking=True)
    new = dm.pinned_array(1000)
    new[:] = 3
    smart.host()
    device = smart.gpu()
    with hold(stream, patience=0.5, tolerant=True):
        device.copy_to_device(new, stream=stream)
        smart.gpu_changed()
        assert (smart.host() == 3).all()  # waited until the latch gave up
    back = dm.pinned_array(1000)
    with hold(stream, patience=0.5, tolerant=True):
        device.copy_to_host(back, stream=stream)
        smart.fill(4)
        smart.gpu()  # must not overtake the download
        stream.synchronize()
    assert (back == 3).all()


def test_the_device_side_goes_where_it_is_asked_for(second):
    smart = dm.SmartArray([1, 2])
    with dm.device(second):
        assert smart.gpu().device == second
    assert smart.gpu().device == second
    assert smart.tolist() == [1, 2]


def test_a_closed_device_takes_only_what_was_there_alone():
    both, alone, freed = (dm.SmartArray(np.arange(3)) for _ in range(3))
    both.gpu()
    write_device(alone, 7)
    freed.gpu().free()
    assert on_device(freed).tolist() == [0, 1, 2]
    dm.reset()
    assert "up to date on host" in repr(both)
    assert on_device(both).tolist() == [0, 1, 2]
    assert "nowhere any more" in repr(alone)
    for use in (alone.host, alone.gpu, alone.sum):
        with pytest.raises(dm.ClosedError):
            use()


def test_its_memory_goes_with_it():
    smart = dm.SmartArray(np.zeros(1 << 16))
    view = smart[5:]
    smart.gpu()
    live = dm.memory_info().live
    assert live >= 1 << 19
    del smart
    assert dm.memory_info().live == live
    del view
    gc.collect()
    dm.trim()
    assert dm.memory_info().live < 1 << 19


def test_every_failure_leaves_the_newest_elements(recorded, devmem_backend):
    device = dm.device("recording")
    smart = dm.SmartArray(np.arange(1000.0))
    smart.gpu()
    state = {"value": 0}

    def call():
        state["value"] += 1
        smart[:] = state["value"]
        smart.gpu()
        smart.gpu_changed()
        smart.host()

    def check():
        device.synchronize()
        np.testing.assert_array_equal(smart, np.full(1000, state["value"]))
        np.testing.assert_array_equal(on_device(smart), np.full(1000, state["value"]))

    assert every_failure(call, recorded, check=check) > 1


def test_memory_that_does_not_fit_leaves_the_host_side(devmem_backend):
    smart = dm.SmartArray(np.arange(1000.0))
    with dm.use_memory(dm.memory.Limit(None, 100)), pytest.raises(dm.OutOfMemory):
        smart.gpu()
    assert smart.sum() == 499500
    assert on_device(smart).sum() == 499500


#: What copies without its being asked for by name, and how it is told.
GUARDED = {
    "sum": lambda a: a.sum(),
    "indexing one element": lambda a: a[0],
    "add": lambda a: a + 1,
    "fill": lambda a: a.fill(1),
    "numpy": np.asarray,
    "==": lambda a: a == 1,
    "!=": lambda a: a != 1,
    "in": lambda a: 1 in a,
    "bool()": bool,
    "int()": int,
    "float()": float,
    "complex()": complex,
    "bytes()": bytes,
    "an index": operator.index,
    "str()": str,
    "format()": lambda a: f"{a}",
}


def test_the_transfer_guard_sees_implicit_copies(with_settings):
    with_settings(TRANSFER_GUARD="disallow")
    smart = dm.SmartArray([1])
    write_device(smart, 3)
    for what, use in GUARDED.items():
        with pytest.raises(dm.TransferGuardError, match=re.escape(f"SmartArray, for {what} at")):
            use(smart)
    assert smart.host().tolist() == [3]  # this one is spelled out
    assert smart.sum() == 3


def test_a_change_during_a_copy_is_not_lost(devmem_backend):
    smart = dm.SmartArray(np.zeros(1 << 12))
    device = smart.gpu()
    going = threading.Event()
    backend = dm.current_device().backend

    def keep_reading():
        with dm.use_backend(backend):
            while not going.is_set():
                smart.host()

    reader = threading.Thread(target=keep_reading)
    reader.start()
    try:
        for value in range(200):
            device.fill(value)
            smart.gpu_changed()
    finally:
        going.set()
        reader.join(patience())
    assert (smart.host() == 199).all()


# -- what the old page showed, in words of our own ---------------------------------------------------------------------


def test_a_chain_of_device_work_moves_twice_in_all(moved):
    """The promise of the old class: what a chain of device work needs goes there once, and its result comes back once."""
    smart = dm.SmartArray(np.zeros(100))
    for step in range(10):
        write = smart.gpu()  # what a launch does before ...
        write.fill(step)
        smart.gpu_changed()  # ... and behind
    assert moved() == (1, 0)
    assert (smart + 1 == 10).all()
    assert smart.mean() == 9
    assert moved() == (0, 1)


# -- as an argument of kernels -----------------------------------------------------------------------------------------


@dm.kernel
def double(array):
    i = dm.grid(1)
    if i < array.size:
        array[i] = 2 * array[i]


@dm.kernel
def add_to(target, source):
    i = dm.grid(1)
    if i < target.size:
        target[i] += source[i]


@pytest.fixture
def launches(devmem_backend):
    array, reason = dm.zeros(1), ""
    try:
        double[1, 1](array)
    except dm.UnsupportedError as error:
        reason = str(error)
    array.free()  # a skip keeps what its traceback has seen
    if reason:
        pytest.skip(f"kernels cannot be launched here: {reason}")


def test_kernels_move_nothing_between_them(launches, moved):
    smart = dm.SmartArray(np.arange(8.0))
    moved()
    for _ in range(5):
        double[2, 4](smart)
    assert moved() == (1, 0)
    assert smart.tolist() == [32 * i for i in range(8)]
    assert moved() == (0, 1)
    smart += 1
    double[2, 4](smart)
    assert smart[3] == 2 * (32 * 3 + 1)


def test_a_kernel_on_a_stream_is_waited_for(launches):
    smart = dm.SmartArray(np.ones(8))
    stream = dm.stream(non_blocking=True)
    for _ in range(20):
        double[2, 4, stream](smart)
    assert (smart == 2.0**20).all()


def test_what_a_kernel_only_reads_stays_up_to_date(launches, moved):
    target, source = dm.SmartArray(np.zeros(4)), dm.SmartArray(np.arange(4.0))
    add_to[1, 4](target, dm.In(source))
    moved()
    assert source.sum() == 6
    assert moved() == (0, 0)
    assert target.sum() == 6
    assert moved() == (0, 1)


def test_views_are_arguments(launches):
    smart = dm.SmartArray(np.arange(12.0).reshape(3, 4))
    double[1, 4](smart[1])
    double[1, 3](smart.T[0])
    assert smart.tolist() == [[0, 1, 2, 3], [16, 10, 12, 14], [16, 9, 10, 11]]
    add_to[1, 4](smart[0], smart[1])  # two views of one array
    assert smart[0].tolist() == [16, 11, 14, 17]


def test_a_launch_that_fails_loses_nothing(launches):
    smart = dm.SmartArray(np.arange(4.0))
    with pytest.raises(TypeError):
        add_to[1, 4](smart)
    assert smart.tolist() == [0, 1, 2, 3]
    assert on_device(smart).tolist() == [0, 1, 2, 3]
