"""device_array, device_array_like, zeros, full: shapes, dtypes, strides, and what is refused."""

from __future__ import annotations

import inspect

import numpy as np
import pytest

import devmem as dm

pytestmark = pytest.mark.usefixtures("tidy")


def test_names_and_defaults_are_those_of_numba():
    defaults = {name: p.default for name, p in inspect.signature(dm.device_array).parameters.items()}
    empty = inspect.Parameter.empty
    assert defaults == {"shape": empty, "dtype": np.float64, "strides": None, "order": "C", "stream": 0}
    kinds = {name: p.default for name, p in inspect.signature(dm.to_device).parameters.items()}
    assert kinds == {"obj": inspect.Parameter.empty, "stream": 0, "copy": True, "to": None, "device": None}
    assert inspect.signature(dm.device_array).parameters["stream"].default == 0
    assert list(inspect.signature(dm.device_array_like).parameters) == ["ary", "stream"]


def test_the_default_is_a_c_ordered_f8_array_bound_to_no_stream():
    d = dm.device_array((2, 3))
    assert (d.shape, d.dtype, d.strides, d.stream) == ((2, 3), np.dtype("f8"), (24, 8), None)
    assert (d.size, d.ndim, d.itemsize, d.nbytes, len(d)) == (6, 2, 8, 48, 2)
    assert d.is_c_contiguous()
    assert not d.is_f_contiguous()
    assert d.device == dm.current_device()
    assert d.ptr % dm.current_device().info.alignment == 0


@pytest.mark.parametrize(
    ("shape", "want"),
    [
        (3, (3,)),
        (np.int64(3), (3,)),
        (np.uint8(3), (3,)),
        (np.array(3), (3,)),
        ([2, 3], (2, 3)),
        (np.array([2, 3]), (2, 3)),
        ((np.int32(2), np.int64(3)), (2, 3)),
        (range(1, 4), (1, 2, 3)),
        ((), ()),
        ([], ()),
        (0, (0,)),
        ((2, 0), (2, 0)),
    ],
)
def test_integer_like_shapes_work(shape, want):
    for make in (dm.device_array, dm.zeros, lambda s: dm.full(s, 0.0)):
        d = make(shape)
        assert d.shape == want
        assert all(type(n) is int for n in d.shape)
        assert d.size == 0 or d.strides == np.empty(want).strides


@pytest.mark.parametrize("shape", [-1, (2, -3), (-1, 0), np.int64(-5)])
def test_negative_shapes_are_refused(shape, still):
    before = still.memory_info()
    for make in (dm.device_array, dm.zeros, lambda s: dm.full(s, 0.0)):
        with pytest.raises(dm.LayoutError, match=r"negative lengths.*-"):
            make(shape)
    assert still.memory_info()[2:4] == before[2:4]


@pytest.mark.parametrize("shape", [2**63, (2**32, 2**32), (2**62, 4), (2**63, 0), (2**40, 2**40, 2**40)])
def test_overflowing_shapes_are_refused(shape):
    with pytest.raises(dm.LayoutError, match=r"does not fit into memory addresses"):
        dm.device_array(shape)


@pytest.mark.parametrize(
    "shape", [2.0, "3", b"3", None, (2, 1.5), ("2",), True, np.bool_(True), object(), 1j, [[1, 2]]]
)
def test_shapes_are_integers(shape):
    with pytest.raises(TypeError, match="a shape is"):
        dm.device_array(shape)


@pytest.mark.parametrize("order", ["C", "F"])
def test_order_sets_the_strides_and_the_flags(order):
    host = np.arange(24.0).reshape(2, 3, 4)
    d = dm.device_array((2, 3, 4), order=order)
    assert d.strides == np.empty((2, 3, 4), order=order).strides
    assert d.flags == {"C_CONTIGUOUS": order == "C", "F_CONTIGUOUS": order == "F", "WRITEABLE": True}
    d.copy_to_device(host)
    np.testing.assert_array_equal(d.copy_to_host(), host)
    assert d.copy_to_host().flags[f"{order}_CONTIGUOUS"]


@pytest.mark.parametrize("order", ["K", "A", "c", "", None, 1])
def test_another_order_is_refused(order):
    with pytest.raises(dm.LayoutError, match=r"order is one of 'C', 'F', not"):
        dm.device_array((2, 3), order=order)
    with pytest.raises(dm.LayoutError, match=r"order is one of 'C', 'F', not"):
        dm.zeros((2, 3), order=order)


@pytest.mark.parametrize(
    ("shape", "strides"),
    [
        ((3,), (16,)),
        ((3, 2), (64, 8)),
        ((3, 2), (8, 64)),
        ((2, 3, 4), (8, 16, 48)),
        ((1, 3), (0, 8)),
        ((3, 1), (8, -40)),
        ((2, 0), (8, 8)),
    ],
)
def test_strides_are_taken_as_they_are(shape, strides):
    d = dm.device_array(shape, "f8", strides)
    assert d.strides == strides
    host = np.random.default_rng(1).random(shape)
    d.copy_to_device(host)
    np.testing.assert_array_equal(d.copy_to_host(), host)
    assert d.nbytes == host.nbytes


@pytest.mark.parametrize(
    ("shape", "strides", "says"),
    [
        ((3,), (4,), "overlap"),
        ((3,), (0,), "overlap"),
        ((3,), (-8,), "negative"),
        ((3, 2), (8, 8), "overlap"),
        ((3, 2), (8, 16), "overlap"),
        ((3,), (8, 8), r"2 strides \(8, 8\) do not go with 1 lengths \(3,\)"),
        ((3, 2), (8,), "1 strides"),
        ((10,), (1 << 62,), "do not fit into memory addresses"),
        ((1, 2), (1 << 100, 8), "do not fit into memory addresses"),
        ((0,), (-1 << 100,), "do not fit into memory addresses"),
    ],
)
def test_impossible_strides_are_refused(shape, strides, says):
    with pytest.raises(dm.LayoutError, match=says):
        dm.device_array(shape, "f8", strides)


@pytest.mark.parametrize("strides", [8, "88", (1.5,), (None,)])
def test_strides_are_integers(strides):
    with pytest.raises(TypeError, match="strides are a sequence of integers"):
        dm.device_array((3,), "f8", strides)


@pytest.mark.parametrize("dtype", [object, "O", [("a", "O")], np.dtype([("a", [("b", "O")])])])
def test_object_dtypes_are_refused(dtype):
    for make in (dm.device_array, dm.zeros):
        with pytest.raises(dm.LayoutError, match=r"Python objects.*plain bytes"):
            make(3, dtype)


def test_an_unknown_dtype_is_refused_by_numpy():
    with pytest.raises(TypeError, match="nonsense"):
        dm.device_array(3, "nonsense")


def test_a_subarray_dtype_is_refused_and_a_field_of_one_is_not():
    with pytest.raises(dm.LayoutError, match="itself an array"):
        dm.device_array(3, np.dtype(("f4", (2, 2))))
    assert dm.device_array(3, [("g", "f4", (2, 2))])["g"].shape == (3, 2, 2)


@pytest.mark.parametrize("kind", [str, bytes, "U", "S"])
def test_text_without_a_length_is_one_character_as_in_numpy(kind):
    want = np.empty(3, kind)
    d = dm.device_array(3, kind)
    assert (d.dtype, d.nbytes) == (want.dtype, want.nbytes)
    d.fill("x" if want.dtype.kind == "U" else b"x")
    assert d.copy_to_host().tolist() == [want.dtype.type("x" if want.dtype.kind == "U" else b"x")] * 3


def test_a_new_array_is_bound_to_the_stream_given():
    s = dm.stream()
    assert dm.device_array(3, stream=s).stream is s
    assert dm.zeros(3, stream=s).stream is s
    assert dm.full(3, 1.0, stream=s).stream is s
    assert dm.device_array_like(np.zeros(3), stream=s).stream is s
    s.synchronize()


# -- like --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "model",
    [
        np.zeros((2, 3, 4), "i2"),
        np.zeros((2, 3, 4), "i2", order="F"),
        np.zeros((2, 3, 4)).transpose(1, 2, 0),
        np.zeros((4, 6))[::2, ::3],
        np.zeros((4, 6))[::-1],
        np.broadcast_to(np.zeros(3), (2, 3)),
        np.zeros(()),
        np.zeros((0, 3)),
        np.zeros(3, [("a", "i4"), ("b", "f8")]),
        np.zeros(2, ">f4"),
    ],
)
def test_like_has_the_order_of_axes_and_no_gaps(model):
    want = np.empty_like(model, order="K")
    for source in (model, dm.to_device(model)):
        d = dm.device_array_like(source)
        assert (d.shape, d.dtype, d.nbytes) == (want.shape, want.dtype, want.nbytes)
        steps = [(a, b) for a, b, n in zip(d.strides, want.strides, d.shape, strict=True) if n > 1 and d.size]
        assert all(a == b for a, b in steps), (d.strides, want.strides)
        assert d.stream is None


def test_like_of_a_device_view_drops_its_gaps():
    d = dm.to_device(np.arange(24.0).reshape(4, 6))
    assert dm.device_array_like(d[::2, ::3]).strides == (16, 8)
    assert dm.device_array_like(d.T).strides == (8, 48)
    assert dm.device_array_like(d[0, 0, ...]).shape == ()


def test_like_of_lists_and_of_what_cannot_be():
    assert dm.device_array_like([[1, 2]]).dtype == np.asarray([1]).dtype
    with pytest.raises(dm.LayoutError, match="Python objects"):
        dm.device_array_like([None])


# -- zeros and full ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "dtype", ["?", "u1", "i4", "f2", "f8", "c16", "M8[s]", "S5", "U3", ">i4", [("a", "i4"), ("b", "f8")]]
)
@pytest.mark.parametrize("shape", [(), (0,), (7,), (3, 5), (2, 3, 4)])
def test_zeros_are_zero_in_every_dtype(shape, dtype):
    got = dm.zeros(shape, dtype).copy_to_host()
    assert got.tobytes() == bytes(got.nbytes)
    assert (got.shape, got.dtype) == (shape, np.dtype(dtype))


@pytest.mark.parametrize(
    ("value", "dtype"),
    [
        (True, "?"),
        (-1, "i1"),
        (200, "u1"),
        (-2, "i2"),
        (0x01020304, "i4"),
        (0x0101, "u2"),
        (0x01010101, "u4"),
        (0x0102030405060708, "i8"),
        (0x0101010101010101, "i8"),
        (1.5, "f2"),
        (np.nan, "f4"),
        (-0.0, "f8"),
        (1 + 2j, "c8"),
        (1 - 2j, "c16"),
        (np.datetime64("2024-02-29"), "M8[D]"),
        (np.timedelta64(5, "s"), "m8[s]"),
        (b"abc", "S3"),
        (b"abc", "S7"),
        ("né", "U2"),
        (258, ">i4"),
        (1.5, ">f8"),
        ((1, 2.5), [("a", "i4"), ("b", "f8")]),
        ((1, (2, 3)), [("a", "u1"), ("b", [("c", "u1"), ("d", "u1")])]),
        (np.void(b"12345"), "V5"),
        (1.25, "longdouble"),
    ],
)
@pytest.mark.parametrize("shape", [(), (1,), (3, 5), (5000,)])
def test_full_has_the_bytes_of_numpys(shape, value, dtype):
    want = np.full(shape, np.array(value, dtype), dtype)
    d = dm.full(shape, value, dtype)
    assert d.copy_to_host().tobytes() == want.tobytes()
    assert d.dtype == want.dtype


@pytest.mark.parametrize("value", [1, 2.5, True, 1j, "ab", np.float32(2), np.datetime64("2020-01-01")])
def test_full_without_a_dtype_takes_that_of_the_value(value):
    d = dm.full(3, value)
    assert d.dtype == np.asarray(value).dtype
    assert d.tolist() == np.full(3, value).tolist()


def test_full_and_zeros_in_fortran_order():
    assert dm.zeros((2, 3), order="F").strides == (8, 16)
    assert dm.full((2, 3), 1, order="F").copy_to_host().flags.f_contiguous


@pytest.mark.parametrize(("value", "dtype"), [("text", "f8"), ([1, 2], "f8"), (None, "i4"), (object(), "f4")])
def test_a_value_that_does_not_convert_is_refused_and_leaves_nothing(value, dtype, device):
    before = device.memory_info()
    with pytest.raises((TypeError, ValueError)):
        dm.full(3, value, dtype)
    assert sum(device.memory_info()[2:4]) <= sum(before[2:4]) + 24  # at most the dropped array, waiting in the queue


# -- limits --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "make",
    [
        lambda: dm.device_array((1,) * 65),
        lambda: dm.device_array(np.ones(1 << 20, np.int64)),
        lambda: dm.zeros([1] * 65),
        lambda: dm.to_device(np.zeros(1, [("x", "f4", (2,) * 10)])).reshape((1,) * 60)["x"],
        lambda: dm.device_array(1).reshape((1,) * 65),
    ],
    ids=["shape", "a huge array as shape", "zeros", "a field with axes", "reshape"],
)
def test_an_array_has_no_more_axes_than_numpy_s(make):
    with pytest.raises(dm.LayoutError, match="at most"):
        make()


def test_an_index_makes_no_more_axes_than_numpy_has():
    with pytest.raises(IndexError, match="at most"):
        dm.device_array(1)[(None,) * 64]


def test_as_many_axes_as_numpy_has_come_back():
    shape = (1,) * 32
    assert dm.to_device(np.ones(shape)).copy_to_host().shape == shape


def test_strides_of_an_array_without_elements_are_taken_as_they_are():
    """NumPy gives such an array strides of 0."""
    array = dm.device_array((0, 4), "f8", strides=(0, 0))
    assert (array.shape, array.strides, array.size) == ((0, 4), (0, 0), 0)
    assert array.copy_to_host().shape == (0, 4)


@pytest.mark.parametrize("verb", [dm.to_device, dm.as_device_array])
def test_a_freed_array_is_not_taken(verb):
    array = dm.device_array(3)
    array.free()
    with pytest.raises(dm.ClosedError, match="was freed"):
        verb(array)


def test_a_value_that_no_element_can_hold_is_told():
    with pytest.raises(dm.LayoutError, match=rf"full\(fill_value={1 << 70}\) does not fit into uint8"):
        dm.full(2, 1 << 70, "u1")


@pytest.mark.parametrize(
    "key", [np.s_[:: 1 << 100], np.s_[:: -1 << 100, :], np.s_[5 :: 1 << 62], np.s_[..., :: 1 << 60]]
)
def test_a_step_beyond_all_addresses_leaves_the_stride_as_it_is(key):
    d = dm.to_device(np.arange(12.0).reshape(3, 4))
    view = d[key]
    assert all(abs(stride) < 1 << 63 for stride in view.strides)
    assert [part.tolist() for part in dm.to_host_many([view, view])] == [
        np.arange(12.0).reshape(3, 4)[key].tolist()
    ] * 2
