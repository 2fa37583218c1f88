"""Views and facts: reshape, ravel, transpose, view, squeeze, split, bind, copy, fill, scalars, iteration, repr, flags."""

from __future__ import annotations

import types

import numpy as np
import pytest

import devmem as dm

pytestmark = pytest.mark.usefixtures("tidy")

HOST = np.arange(24, dtype="i4").reshape(2, 3, 4)

SOURCES = {
    "C": lambda a: a,
    "T": lambda a: a.T,
    "rotated": lambda a: a.transpose(1, 0, 2),
    "cut": lambda a: a[:, ::2],
    "reversed": lambda a: a[::-1],
    "inside reversed": lambda a: a[..., ::-1],
    "row": lambda a: a[1],
    "column": lambda a: a[:, :, 2],
    "ones": lambda a: a[:, None, :1],
    "empty": lambda a: a[2:],
    "one": lambda a: a[1:, 2:, 3:],
    "none": lambda a: a[1, 2, 3, ...],
}
SHAPES = [
    (),
    (1,),
    (24,),
    (-1,),
    (4, 6),
    (6, 4),
    (3, -1),
    (2, 3, 4),
    (4, 3, 2),
    (1, 24, 1),
    (8, -1, 1),
    (2, 2),
    (0,),
    (0, 5),
    (-1, 4),
    (6,),
    (3, 4),
    (12,),
    (2, -1),
]


# -- reshape and ravel -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("source", SOURCES.values(), ids=SOURCES)
@pytest.mark.parametrize("order", ["C", "F", "A"])
def test_reshape_is_numpys_and_a_view_where_numpys_is_one(source, order):
    host, d = source(HOST), source(dm.to_device(HOST))
    for shape in SHAPES:
        try:
            want = host.reshape(shape, order=order)
        except ValueError:
            with pytest.raises(dm.LayoutError, match=rf"{d.size} elements cannot be shaped as"):
                d.reshape(shape, order=order)
            continue
        got = d.reshape(shape, order=order)
        assert got.shape == want.shape
        np.testing.assert_array_equal(got.copy_to_host(), want)
        if host.size:
            assert (got.allocation is d.allocation) == np.shares_memory(want, host), shape
            if got.allocation is d.allocation:
                assert d.reshape(shape, order=order, copy=False).ptr == got.ptr == d.ptr
            else:
                with pytest.raises(dm.LayoutError, match=r"has no view of shape .*copy=False"):
                    d.reshape(shape, order=order, copy=False)


def test_reshape_takes_ints_a_tuple_or_a_list():
    d = dm.to_device(HOST)
    for got in (
        d.reshape(4, 6),
        d.reshape((4, 6)),
        d.reshape([4, 6]),
        d.reshape(np.int64(4), -1),
        d.reshape(np.array([4, 6])),
    ):
        np.testing.assert_array_equal(got.copy_to_host(), HOST.reshape(4, 6))
    assert dm.to_device([5]).reshape(()).shape == ()


def test_reshape_with_copy_true_always_copies():
    d = dm.to_device(HOST)
    c = d.reshape(4, 6, copy=True)
    c[...] = 0
    np.testing.assert_array_equal(d.copy_to_host(), HOST)
    f = dm.to_device(HOST).reshape(6, 4, order="F", copy=True)
    np.testing.assert_array_equal(f.copy_to_host(), HOST.reshape(6, 4, order="F"))


def test_reshape_of_what_cannot_be():
    d = dm.to_device(HOST)
    with pytest.raises(dm.LayoutError, match=r"one length open.*\(-1, -1\) leaves 2"):
        d.reshape(-1, -1)
    with pytest.raises(dm.LayoutError, match=r"24 elements cannot be shaped as \(-2, -12\)"):
        d.reshape(-2, -12)
    with pytest.raises(dm.LayoutError, match=r"24 elements cannot be shaped as \(5, -1\)"):
        d.reshape(5, -1)
    with pytest.raises(dm.LayoutError, match="cannot be shaped"):
        dm.zeros((0, 3)).reshape(-1, 0)
    for bad in (2.0, "24", None):
        with pytest.raises(TypeError, match="a shape is made of integers"):
            d.reshape(bad)
    with pytest.raises(dm.LayoutError, match="order is one of 'C', 'F', 'A', not 'K'"):
        d.reshape(24, order="K")


@pytest.mark.parametrize("source", SOURCES.values(), ids=SOURCES)
@pytest.mark.parametrize("order", ["C", "F", "A"])
def test_ravel_has_numpys_order(source, order):
    host, d = source(HOST), source(dm.to_device(HOST))
    np.testing.assert_array_equal(d.ravel(order).copy_to_host(), host.ravel(order))


def test_ravel_of_a_contiguous_array_is_a_view_and_takes_a_stream():
    d = dm.to_device(HOST)
    assert d.ravel().ptr == d.ptr
    assert d.T.ravel("F").ptr == d.ptr
    s = dm.stream()
    assert d.ravel(stream=s).stream is s
    assert d.T.ravel(stream=s).stream is s
    np.testing.assert_array_equal(d.T.ravel(stream=s).copy_to_host(), HOST.T.ravel())
    assert d.stream is None


# -- transpose, squeeze, view ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "axes",
    [(), (0, 1, 2), (2, 1, 0), (1, 0, 2), (-1, 0, 1), ((1, 2, 0),), ([2, 0, 1],), (None,), (np.int64(0), 2, 1)],
    ids=str,
)
def test_transpose_is_a_view(axes):
    d = dm.to_device(HOST)
    got, want = d.transpose(*axes), HOST.transpose(*axes)
    assert (got.shape, got.strides, got.ptr) == (want.shape, want.strides, d.ptr)
    np.testing.assert_array_equal(got.copy_to_host(), want)


def test_T_is_the_transpose():
    d = dm.to_device(HOST)
    assert (d.T.shape, d.T.strides) == (HOST.T.shape, HOST.T.strides)
    assert dm.to_device(5).T.shape == ()


@pytest.mark.parametrize("axes", [(0, 1), (0, 0, 1), (0, 1, 3), (-4, 0, 1), (0, 1, 2, 3)])
def test_transpose_with_other_axes_is_refused(axes):
    with pytest.raises(dm.LayoutError, match=r"are not the axes of an array with 3"):
        dm.to_device(HOST).transpose(*axes)


@pytest.mark.parametrize(
    ("shape", "axis"),
    [
        ((1, 3, 1), None),
        ((1, 3, 1), 0),
        ((1, 3, 1), -1),
        ((1, 3, 1), (0, 2)),
        ((2, 3), None),
        ((1, 1), None),
        ((), None),
        ((1, 0), 0),
        ((1, 3, 1), ()),
    ],
)
def test_squeeze_removes_the_axes_numpy_removes(shape, axis):
    host = np.arange(int(np.prod(shape))).reshape(shape)
    got = dm.to_device(host).squeeze(axis)
    np.testing.assert_array_equal(got.copy_to_host(), host.squeeze(axis))
    assert got.shape == host.squeeze(axis).shape


def test_squeeze_of_what_is_not_one_is_refused():
    d = dm.to_device(HOST[:1])
    with pytest.raises(dm.LayoutError, match="axis 1 has length 3"):
        d.squeeze(1)
    with pytest.raises(dm.LayoutError, match="axis 3 is out of range for an array with 3 axes"):
        d.squeeze(3)
    with pytest.raises(TypeError):
        d.squeeze(1.5)
    s = dm.stream()
    assert d.squeeze(0, s).stream is s


@pytest.mark.parametrize(
    "dtype", ["i4", "f4", "u1", "i2", "i8", "c8", "c16", "S4", "S8", "V16", ">i4", [("a", "i2"), ("b", "i2")], "M8[s]"]
)
@pytest.mark.parametrize("source", SOURCES.values(), ids=SOURCES)
def test_view_reinterprets_bytes_as_numpy_does(source, dtype):
    host, d = source(HOST), source(dm.to_device(HOST))
    try:
        want = host.view(dtype)
    except (ValueError, TypeError):
        with pytest.raises(dm.LayoutError, match=r"contiguous last axis|do not divide"):
            d.view(dtype)
        return
    got = d.view(dtype)
    assert (got.shape, got.dtype) == (want.shape, want.dtype)
    assert got.copy_to_host().tobytes() == want.tobytes()


@pytest.mark.parametrize("dtype", [object, [("a", "O")]])
def test_a_view_of_objects_is_refused(dtype):
    with pytest.raises(dm.LayoutError, match="Python objects"):
        dm.to_device(np.arange(4)).view(dtype)


def test_a_view_with_elements_of_no_bytes_is_refused():
    with pytest.raises(dm.LayoutError, match="0-byte elements do not divide"):
        dm.to_device(np.arange(4)).view([])


# -- split and bind ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("section", [1, 3, 4, 9, 10, 11, np.int64(4)])
def test_split_gives_chunks_of_that_size_lazily(section):
    host = np.arange(20).reshape(10, 2)
    d = dm.to_device(host)
    parts = d.split(section)
    assert isinstance(parts, types.GeneratorType)
    got = list(parts)
    assert [len(part) for part in got[:-1]] == [section] * (len(got) - 1)
    assert 1 <= len(got[-1]) <= section
    np.testing.assert_array_equal(np.concatenate([part.copy_to_host() for part in got]), host)
    assert all(part.allocation is d.allocation for part in got)


def test_split_of_nothing_and_of_what_cannot_be():
    assert list(dm.zeros((0, 3)).split(2)) == []
    d = dm.to_device(HOST)
    for bad in (0, -1):
        with pytest.raises(dm.LayoutError, match=f"a section has at least one element, not {bad}"):
            d.split(bad)
    with pytest.raises(TypeError):
        d.split(1.5)
    with pytest.raises(TypeError, match="without axes"):
        dm.to_device(5).split(1)
    s = dm.stream()
    assert [part.stream for part in d.split(1, s)] == [s, s]


def test_bind_and_unbind():
    d = dm.to_device(HOST)
    s = dm.stream()
    b = d.bind(s)
    assert (b.stream, d.stream) == (s, None)
    assert b.ptr == d.ptr
    assert b[1].stream is b.T.stream is b.reshape(-1).stream is b.view("f4").stream is b[..., 0].stream is s
    assert b.bind(0).stream is None
    assert b.bind(None).stream is None
    assert b.bind(1).stream is dm.legacy_default_stream()
    np.testing.assert_array_equal(b.copy_to_host(), HOST)
    for bad in ("x", 1.5, True):
        with pytest.raises(TypeError, match="a stream is"):
            d.bind(bad)


# -- copy and fill -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("source", SOURCES.values(), ids=SOURCES)
def test_copy_is_new_memory_in_the_same_order_of_axes(source):
    host, d = source(HOST), source(dm.to_device(HOST))
    c = d.copy()
    np.testing.assert_array_equal(c.copy_to_host(), host)
    assert c.strides == dm.device_array_like(d).strides
    assert c.stream is None
    if c.size:
        assert c.ptr != d.ptr
        c[...] = -1
        np.testing.assert_array_equal(d.copy_to_host(), host)


def test_copy_on_a_stream():
    s = dm.stream()
    c = dm.to_device(HOST).copy(stream=s)
    assert c.stream is s
    np.testing.assert_array_equal(c.copy_to_host(), HOST)


@pytest.mark.parametrize(
    "key",
    [np.s_[...], np.s_[:, 1], np.s_[..., ::2], np.s_[::-1], np.s_[1, 2, 3, ...], np.s_[2:], np.s_[:, :, 1]],
    ids=str,
)
@pytest.mark.parametrize("value", [0, 7, -3, 0x01020304])
def test_fill_touches_nothing_else(key, value):
    host = HOST.copy()
    d = dm.to_device(host)
    assert d[key].fill(value) is None
    host[key] = value
    np.testing.assert_array_equal(d.copy_to_host(), host)


def test_fill_at_an_odd_address():
    raw = dm.zeros(64, "u1")
    odd = raw[1:41].view("i4")
    odd.fill(0x0A0B0A0B)
    want = np.zeros(64, "u1")
    want[1:41] = np.frombuffer(np.full(10, 0x0A0B0A0B, "i4").tobytes(), "u1")
    np.testing.assert_array_equal(raw.copy_to_host(), want)


@pytest.mark.parametrize("dtype", ["u1", "f2", "i8", "c16", "S5", "M8[s]", ">f8"])
@pytest.mark.parametrize("count", [1, 3, 4097, 20000])
def test_fill_of_any_length(dtype, count):
    value = np.array(77).astype(dtype)[()]
    d = dm.zeros(count + 2, dtype)
    d[1:-1].fill(value)
    want = np.zeros(count + 2, dtype)
    want[1:-1] = value
    np.testing.assert_array_equal(d.copy_to_host(), want)


@pytest.mark.parametrize(
    "value", [2, True, 2.9, np.float32(2), np.int64(3), 1j, "text", object(), 300, -1, np.nan, [5]]
)
@pytest.mark.parametrize("dtype", ["i4", "u1", "f4", "c8", "?", "S3"])
def test_fill_casts_as_assignment_does(dtype, value):
    filled, assigned = dm.zeros(2, dtype), dm.zeros(2, dtype)

    def outcome(call):
        try:
            call()
        except Exception as error:
            return type(error), str(error)
        return None

    assert outcome(lambda: filled.fill(value)) == outcome(lambda: assigned.__setitem__(..., value))
    assert filled.copy_to_host().tobytes() == assigned.copy_to_host().tobytes()


def test_fill_takes_one_value():
    d = dm.zeros(3, "i4")
    with pytest.raises(dm.LayoutError, match=r"fill\(\) stores one value, not 3 of shape \(3,\): assign them"):
        d.fill([1, 2, 3])
    assert d.tolist() == [0, 0, 0]


@pytest.mark.parametrize("store", [lambda d, v: d.__setitem__(slice(None), v), lambda d, v: d.fill(v)])
def test_the_advice_for_a_value_of_another_kind_can_be_followed(store):
    d = dm.zeros(3, "i4")
    with pytest.raises(
        dm.LayoutError, match=r"cannot assign 2\.7 \(float\) to int32: .*same kind.*numpy\.int32\(value\)$"
    ):
        store(d, 2.7)
    store(d, np.int32(2.7))
    assert d.tolist() == [2, 2, 2]
    swapped = dm.zeros(3, ">i4")
    with pytest.raises(dm.LayoutError, match=r"numpy\.asarray\(value\)\.astype\('>i4'\)$"):
        store(swapped, 2.7)
    store(swapped, np.asarray(2.7).astype(">i4"))
    assert swapped.tolist() == [2, 2, 2]


def test_fill_on_a_stream():
    s = dm.stream()
    d = dm.zeros(100)
    d.fill(2.0, stream=s)
    s.synchronize()
    assert set(d.tolist()) == {2.0}


# -- scalars, iteration, facts -----------------------------------------------------------------------------------------


def test_item_gives_pythons_scalars():
    d = dm.to_device(HOST)
    assert (d.item(1, 2, 3), d.item(-1, 0, 0)) == (23, 12)
    assert type(d.item(0, 0, 0)) is int
    assert dm.to_device([[7.5]]).item() == 7.5
    assert (
        dm.to_device(np.array((1, 2.5), "i4,f8")).item()
        == dm.to_device(np.array([(1, 2.5)], "i4,f8")).item(0)
        == (1, 2.5)
    )
    for call in (d.item, lambda: d.item(1), d[2:].item):
        with pytest.raises(dm.LayoutError, match=r"item\(\) takes one element, this array has"):
            call()
    with pytest.raises(IndexError, match="out of range"):
        d.item(2, 0, 0)


def test_tolist_is_numpys():
    assert dm.to_device(HOST).tolist() == HOST.tolist()
    assert dm.to_device(HOST)[::-1, 0].tolist() == HOST[::-1, 0].tolist()
    assert dm.to_device(5).tolist() == 5


def test_len_and_iteration():
    d = dm.to_device(HOST)
    assert len(d) == 2
    assert [part.tolist() for part in d] == HOST.tolist()
    assert list(dm.to_device([1, 2])) == [1, 2]
    zero = dm.to_device(5)
    with pytest.raises(TypeError, match="len"):
        len(zero)
    with pytest.raises(TypeError, match="iteration"):
        iter(zero)
    assert list(dm.zeros((0, 3))) == []


def test_numbers_of_one_element():
    for one in (dm.to_device(3.0), dm.to_device([3.0]), dm.to_device([[[3.0]]])):
        assert bool(one) is True
        assert int(one) == 3
        assert float(one) == 3.0
        assert complex(one) == 3
    assert complex(dm.to_device(np.array([1 + 2j]))) == 1 + 2j
    assert not dm.to_device(0)
    for many in (dm.zeros(2), dm.zeros(0)):
        for kind in (bool, int, float, complex):
            with pytest.raises(dm.LayoutError, match=f"one element, this has {many.size}"):
                kind(many)


def test_only_an_integer_without_axes_is_an_index():
    assert [10, 20, 30][dm.to_device(2)] == 30
    for bad in (dm.to_device([2]), dm.to_device(2.0), dm.to_device(True)):
        with pytest.raises(TypeError, match="an index is one integer"):
            [10, 20, 30][bad]


def test_repr_moves_nothing(recorded):
    d = dm.to_device(HOST)
    with recorded.during() as seen:
        text = repr(d) + str(d) + f"{d}"
    assert seen == []
    assert "shape=(2, 3, 4)" in text
    assert "int32" in text
    assert str(d.device) in text
    d.free()
    assert "freed" in repr(d)


@pytest.mark.parametrize("source", SOURCES.values(), ids=SOURCES)
def test_flags_are_numpys(source):
    host, d = source(HOST), source(dm.to_device(HOST))
    assert d.flags["C_CONTIGUOUS"] == d.is_c_contiguous() == host.flags.c_contiguous
    assert d.flags["F_CONTIGUOUS"] == d.is_f_contiguous() == host.flags.f_contiguous
    assert d.flags["WRITEABLE"] is True
    assert (d.size, d.ndim, d.nbytes, d.itemsize) == (host.size, host.ndim, host.nbytes, host.itemsize)


def test_is_device_array_and_as_device_array():
    d = dm.to_device(np.zeros(2, "i4,f8"))
    assert dm.is_device_array(d)
    assert dm.as_device_array(d) is d
    r = d[0]
    assert dm.is_device_array(r)
    assert dm.as_device_array(r).ptr == r.ptr
    for other in (HOST, [1], 5, None, "x"):
        assert not dm.is_device_array(other)
        with pytest.raises(dm.UnsupportedError, match=rf"{type(other).__name__}.*to_device"):
            dm.as_device_array(other)


def test_an_array_without_elements_is_seen_as_another_type_whatever_its_strides():
    backwards = dm.to_device(np.arange(6, dtype="i2"))[0:0:-1]
    assert backwards.view("u1").shape == np.arange(6, dtype="i2")[0:0:-1].view("u1").shape == (0,)
