"""d[key] = value: casts as numpy.copyto(casting="same_kind"), broadcasts as NumPy, and is right where both sides overlap."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

import devmem as dm

pytestmark = [
    pytest.mark.usefixtures("tidy"),
    pytest.mark.filterwarnings("ignore:overflow encountered in cast:RuntimeWarning"),
    pytest.mark.filterwarnings("ignore:Casting complex values:RuntimeWarning"),
]

KEYS = [
    *(np.s_[...], np.s_[1], np.s_[-1, 2], np.s_[:, 1], np.s_[::2], np.s_[::-1], np.s_[:, ::-2], np.s_[1:3, 2:4]),
    *(np.s_[None, 1], np.s_[..., None], np.s_[2:1], np.s_[0, 0, ...], np.s_[::-1, ::-1]),
]


@pytest.mark.parametrize("key", KEYS, ids=str)
@pytest.mark.parametrize("value", [5, -1.5, np.float32(2.5), np.int8(3)], ids=repr)
def test_assigned_scalars_arrive_as_in_numpy(key, value):
    host = np.arange(24.0).reshape(4, 6)
    d = dm.to_device(host)
    d[key] = value
    host[key] = value
    np.testing.assert_array_equal(d.copy_to_host(), host)


@pytest.mark.parametrize("key", KEYS, ids=str)
def test_arrays_of_host_and_device(key):
    host = np.arange(24.0).reshape(4, 6)
    value = -1.0 - np.arange(host[key].size).reshape(host[key].shape)
    want = host.copy()
    want[key] = value
    for given in (
        value,
        dm.to_device(value),
        value.copy("F"),
        dm.to_device(value.copy("F")),
        value.tolist() if value.size else value,
    ):
        d = dm.to_device(host)
        d[key] = given
        np.testing.assert_array_equal(d.copy_to_host(), want)


SHAPES = [
    (),
    (1,),
    (6,),
    (4, 1),
    (1, 6),
    (1, 1),
    (4, 6),
    (1, 4, 6),
    (1, 1, 1),
    (1, 1, 4, 1),
    (5,),
    (4,),
    (6, 4),
    (2, 6),
    (2, 4, 6),
    (0,),
    (4, 0),
]


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("key", [np.s_[...], np.s_[1], np.s_[:, ::2], np.s_[0, 0, ...], np.s_[2:2]], ids=str)
def test_broadcasting_is_numpys(shape, key):
    host = np.arange(24.0).reshape(4, 6)
    value = np.arange(float(np.prod(shape, dtype=int))).reshape(shape) - 50
    want = host.copy()
    try:
        want[key] = value
        fits = True
    except (ValueError, TypeError):
        fits = False
    for given in (value, dm.to_device(value)):
        d = dm.to_device(host)
        if fits:
            d[key] = given
        else:
            with pytest.raises(dm.LayoutError, match=r"cannot assign shape .* to shape .*broadcast"):
                d[key] = given
        np.testing.assert_array_equal(d.copy_to_host(), want)


CASTS = [
    "?",
    "i1",
    "u1",
    "i4",
    "u4",
    "i8",
    "u8",
    "f2",
    "f4",
    "f8",
    "c8",
    "c16",
    "M8[s]",
    "M8[D]",
    "m8[s]",
    "m8[ms]",
    "S2",
    "S5",
    "U2",
    "U5",
    ">i4",
    ">f8",
]


@pytest.mark.parametrize("to", CASTS)
def test_arrays_cast_as_copyto_with_same_kind(to):
    for origin in CASTS:
        value = np.array([1, 0, 1]).astype(origin)
        want = np.zeros(3, to)
        try:
            np.copyto(want, value, casting="same_kind")
            fits = True
        except TypeError:
            fits = False
        for given in (value, dm.to_device(value)):
            d = dm.zeros(3, to)
            if fits:
                d[...] = given
            else:
                with pytest.raises(dm.LayoutError, match=r"cannot assign .* to .*same kind.*astype"):
                    d[...] = given
            assert d.copy_to_host().tobytes() == want.tobytes(), (origin, to)


SCALARS = [
    True,
    0,
    1,
    -1,
    127,
    300,
    2**40,
    1.5,
    np.nan,
    1j,
    "ab",
    b"ab",
    np.int8(1),
    np.uint64(1),
    np.float32(1.5),
    np.bool_(True),
]
SCALARS += [np.datetime64("2024-01-01"), np.timedelta64(3, "s"), np.complex64(1j), np.str_("x")]


@pytest.mark.parametrize("to", CASTS)
def test_scalars_cast_as_copyto_with_same_kind(to):
    for value in SCALARS:
        if type(value) is int and np.dtype(to).kind in "iu":
            continue  # in the next tests: NumPy 1 and 2 do not agree
        want = np.zeros(3, to)
        try:
            np.copyto(want, value, casting="same_kind")
            refusal = None
        except (TypeError, ValueError, OverflowError) as error:
            refusal = type(error)
        d = dm.zeros(3, to)
        if refusal is None:
            d[...] = value
        else:
            with pytest.raises(dm.LayoutError if refusal is TypeError else (refusal, dm.LayoutError)):
                d[...] = value
        assert d.copy_to_host().tobytes() == want.tobytes(), (value, to)


@pytest.mark.parametrize(
    ("to", "value"), [("i1", -128), ("u1", 255), ("u8", 2**64 - 1), ("i8", -(2**63)), (">i2", 258)]
)
def test_python_integers_that_fit(to, value):
    d = dm.zeros(2, to)
    d[0] = value
    assert d.tolist() == [value, 0]
    d[...] = [value, value]
    assert d.tolist() == [value, value]


@pytest.mark.parametrize("to", ["i1", "u1", "i4", "u8", "f2", "f8", "c8"])
def test_lists_of_python_numbers_take_the_dtype_that_holds_them(to):
    d = dm.zeros(3, to)
    d[...] = [1, 2, 3]
    assert d.tolist() == [1, 2, 3]
    d[:2] = (4, 5)
    assert d.tolist() == [4, 5, 3]


@pytest.mark.parametrize(
    ("to", "value"), [("u1", 256), ("u1", -1), ("i1", 128), ("i4", 2**31), ("u1", [1, 300]), ("i8", 2**63)]
)
def test_python_integers_that_do_not_fit_are_refused(to, value):
    d = dm.full(2, 7, to)
    with pytest.raises(dm.LayoutError, match=rf"cannot assign -?\d+ to {np.dtype(to)}, which holds -?\d+ to \d+"):
        d[...] = value
    assert d.tolist() == [7, 7]


@pytest.mark.parametrize("value", [None, object(), [None, 1], np.array([None, 1]), {}, lambda: 0])
def test_objects_are_refused(value):
    d = dm.full(2, 7.0)
    with pytest.raises(dm.LayoutError, match=r"Python objects|is not an array"):
        d[...] = value
    assert d.tolist() == [7, 7]


def test_masked_arrays_are_refused():
    d = dm.full(2, 7.0)
    with pytest.raises(dm.LayoutError, match="mask"):
        d[...] = np.ma.array([1.0, 2.0], mask=[0, 1])


def test_records_take_records_tuples_and_lists_of_tuples():
    dtype = np.dtype([("a", "i4"), ("b", "f8")])
    d = dm.zeros(3, dtype)
    d[0] = (1, 2.5)
    d[1:] = [(3, 4.0), (5, 6.0)]
    assert d.tolist() == [(1, 2.5), (3, 4.0), (5, 6.0)]
    d[...] = np.array((7, 8.0), dtype)
    assert d.tolist() == [(7, 8.0)] * 3
    d[0:1] = np.array([(1, 1)], dtype)
    assert d[0]["a"] == 1


# -- overlap -----------------------------------------------------------------------------------------------------------

SLICES = [
    slice(None),
    slice(1, None),
    slice(None, -1),
    slice(None, None, -1),
    slice(None, None, 2),
    slice(1, None, 2),
    slice(None, None, -2),
    slice(2, 7),
    slice(3, 8),
]


@pytest.mark.parametrize(("dst", "src"), list(itertools.product(SLICES, repeat=2)), ids=str)
def test_overlapping_assignment_is_as_if_the_source_had_been_copied(dst, src):
    host = np.arange(11.0)
    count = min(len(host[dst]), len(host[src]))
    d = dm.to_device(host)
    want = host.copy()
    want[dst][:count] = host[src][:count].copy()
    d[dst][:count] = d[src][:count]
    np.testing.assert_array_equal(d.copy_to_host(), want)


@pytest.mark.parametrize(
    ("dst", "src"),
    [
        (lambda a: a, lambda a: a.T),
        (lambda a: a.T, lambda a: a[::-1]),
        (lambda a: a[::-1], lambda a: a[:, ::-1]),
        (lambda a: a[1:], lambda a: a[:-1]),
        (lambda a: a[:, 1:], lambda a: a[:, :-1]),
        (lambda a: a[:-1, 1:], lambda a: a[1:, :-1]),
        (lambda a: a, lambda a: a[0]),
        (lambda a: a, lambda a: a[-1:]),
        (lambda a: a, lambda a: a[:, 3:4]),
        (lambda a: a, lambda a: a[2, 2, ...]),
        (lambda a: a[::2], lambda a: a[1::2]),
        (lambda a: a, lambda a: a),
    ],
)
@pytest.mark.parametrize("side", [6, 40, 700])
def test_overlapping_assignment_in_two_dimensions(dst, src, side):
    host = np.arange(side * side, dtype="i4").reshape(side, side)
    d = dm.to_device(host)
    want = host.copy()
    dst(want)[...] = src(host.copy())
    dst(d)[...] = src(d)
    np.testing.assert_array_equal(d.copy_to_host(), want)


def test_overlapping_fields_of_a_record_array():
    host = np.array([(1, 2), (3, 4)], [("a", "i4"), ("b", "i4")])
    d = dm.to_device(host)
    d["a"] = d["b"][::-1]
    assert d.tolist() == [(4, 2), (2, 4)]


def test_assignment_of_another_dtype_that_overlaps():
    host = np.arange(8, dtype="f4")
    d = dm.to_device(host)
    d[:4] = d.view("i4")[2:6]
    want = host.copy()
    want[:4] = host.view("i4")[2:6]
    np.testing.assert_array_equal(d.copy_to_host(), want)


def test_assignment_across_devices(second):
    far = dm.to_device(np.arange(6.0), device=second)
    d = dm.zeros((2, 6))
    d[...] = far
    d[1, ::-2] = far[:3]
    want = np.tile(np.arange(6.0), (2, 1))
    want[1, ::-2] = np.arange(3.0)
    np.testing.assert_array_equal(d.copy_to_host(), want)


def test_assignment_goes_through_a_chain_of_views():
    host = np.zeros((4, 5, 6), "i2")
    d = dm.to_device(host)
    d.T[1:, ::-1][..., 2] = 9
    host.T[1:, ::-1][..., 2] = 9
    np.testing.assert_array_equal(d.copy_to_host(), host)


def test_assignment_is_complete_on_return_also_for_a_bound_array(recorded):
    s = dm.stream()
    d = dm.zeros(6).bind(s)
    e = dm.zeros(6)
    with recorded.during() as seen:
        d[...] = np.arange(6.0)
        d[::2] = 1.0
    copies = [call for call in seen if call.method in ("copy", "copy_strided")]
    assert copies
    assert all(call.args[-1] == s.handle for call in copies)
    assert copies[-1].keywords["blocking"]
    d[...] = e
    assert s.query()
