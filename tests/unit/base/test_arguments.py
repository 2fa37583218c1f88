"""Every argument's parser: what it takes, and what it says to anything else."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from devmem._core.arrays.views import squeezed, transposed
from devmem._core.base.arguments import (
    check_destination,
    check_same,
    dtype_of,
    layout_of,
    new_shape_of,
    order_of,
    shape_of,
)
from devmem._core.base.array_view import ArrayView
from devmem._core.base.layout import MAX_AXES
from devmem.spi.errors import LayoutError

ENDLESS = [lambda: itertools.repeat(1), lambda: np.zeros(10_000_000, "u1")]


@pytest.mark.parametrize("values", ENDLESS)
def test_a_sequence_without_end_is_read_as_far_as_an_array_has_axes(values):
    calls = {
        "shape": lambda: shape_of(values()),
        "new shape": lambda: new_shape_of((values(),)),
        "strides": lambda: layout_of(2, "u1", values(), "C"),
        "transpose": lambda: transposed(VIEW, (values(),)),
        "squeeze": lambda: squeezed(VIEW, values()),
        "many": lambda: new_shape_of((1,) * 100_000),
    }
    for call in calls.values():
        with pytest.raises(
            LayoutError, match=f"at most {MAX_AXES} axes, as in NumPy: {MAX_AXES + 1} or more"
        ) as raised:
            call()
        assert len(str(raised.value)) < 500


VIEW = ArrayView(0, (2, 3), np.dtype("u1"), None)


class Index:
    def __index__(self):
        return 4


@pytest.mark.parametrize(
    ("given", "want"),
    [
        (3, (3,)),
        (Index(), (4,)),
        ([1, Index()], (1, 4)),
        (np.array([2, 3]), (2, 3)),
        (iter([1, 2]), (1, 2)),
        ((), ()),
        (np.array(7), (7,)),
    ],
)
def test_shape_of_takes_integers_and_sequences(given, want):
    assert shape_of(given) == want


@pytest.mark.parametrize("given", [1.0, "12", b"12", None, True, [1.0], [[1]], {"a": 1}, object()])
def test_shape_of_what_is_none(given):
    with pytest.raises(TypeError, match="a shape is"):
        shape_of(given)


def test_shape_of_negative_lengths():
    with pytest.raises(LayoutError, match=r"negative lengths, got \(2, -1\)"):
        shape_of((2, -1))


@pytest.mark.parametrize("given", ["f8", np.float32, np.dtype(">i2"), [("a", "i4", (2,))], None, int, "S0"])
def test_dtype_of_takes_what_numpy_takes(given):
    assert dtype_of(given) == np.dtype(given)


@pytest.mark.parametrize("given", [object, [("a", "O")], ("f8", (2,))])
def test_dtype_of_what_cannot_go(given):
    with pytest.raises(LayoutError, match=r"Python objects|itself an array"):
        dtype_of(given)


def test_layout_of_gives_strides_and_bytes():
    assert layout_of((2, 3), "i4", None, "C") == ((2, 3), np.dtype("i4"), (12, 4), 24)
    assert layout_of((2, 3), "i4", None, "F") == ((2, 3), np.dtype("i4"), (4, 8), 24)
    assert layout_of((2, 3), "i4", (100, 8), "C") == ((2, 3), np.dtype("i4"), (100, 8), 120)
    assert layout_of(2, "S", None, "C") == ((2,), np.dtype("S1"), (1,), 2)
    assert layout_of((0, 3), "i4", (12, 4), "C")[3] == 0


def test_order_of_takes_the_orders_allowed_only():
    assert order_of("F", "CFA") == "F"
    for bad in ("K", "", "CF", None, 3):
        with pytest.raises(LayoutError, match=r"order is one of 'C', 'F', 'A', not"):
            order_of(bad, "CFA")


def test_new_shape_of_takes_integers_and_one_sequence():
    assert new_shape_of((2, -1)) == new_shape_of(((2, -1),)) == new_shape_of(([2, np.int64(-1)],)) == (2, -1)
    assert new_shape_of(()) == new_shape_of(((),)) == ()
    for bad in ((2.0,), ("2",), (None,), ((1, 2), 3)):
        with pytest.raises(TypeError, match="a shape is made of integers"):
            new_shape_of(bad)


def test_check_same_names_what_differs():
    check_same("x", (2,), np.dtype("f4"), (2,), np.dtype("f4"))
    check_same("x", (2,), np.dtype("=i4"), (2,), np.dtype("i4"))
    with pytest.raises(LayoutError, match=r"verb: the destination has dtype float32, the source >f4: convert"):
        check_same("verb", (2,), np.dtype("f4"), (2,), np.dtype(">f4"))
    with pytest.raises(LayoutError, match=r"verb: the destination has shape \(2,\), the source \(2, 1\): reshape"):
        check_same("verb", (2,), np.dtype("f4"), (2, 1), np.dtype("f4"))


def test_check_destination_refuses_what_cannot_be_written():
    check_destination(np.zeros((2, 3))[::-1, ::2], (2, 2), np.dtype("f8"))
    check_destination(np.zeros((0, 3)), (0, 3), np.dtype("f8"))
    with pytest.raises(TypeError, match=r"ndarray, not a list"):
        check_destination([0], (1,), np.dtype("f8"))
    with pytest.raises(LayoutError, match=r"keep its mask.*m\.data"):
        check_destination(np.ma.array([9.0, 9.0], mask=[1, 0]), (2,), np.dtype("f8"))
    check_destination(np.recarray(2, [("mask", "f8")]), (2,), np.recarray(2, [("mask", "f8")]).dtype)
    frozen = np.zeros(3)
    frozen.flags.writeable = False
    with pytest.raises(LayoutError, match="read-only"):
        check_destination(frozen, (3,), np.dtype("f8"))


@pytest.mark.parametrize(
    ("shape", "strides"),
    [
        ((3, 4), (4, 4)),
        ((2, 3), (6, 4)),
        ((4,), (2,)),
        ((3,), (0,)),
        ((2, 2, 2), (16, 8, 8)),
        ((3, 3), (-4, 4)),
        ((2, 9), (20, 4)),
    ],
)
def test_destinations_that_overlap_themselves_are_refused(shape, strides):
    base = np.zeros(50, "i4")
    ary = np.lib.stride_tricks.as_strided(base[20:], shape, strides)
    with pytest.raises(LayoutError, match=r"elements overlap \(shape .*, strides .*, 4 bytes an item\): give one"):
        check_destination(ary, shape, np.dtype("i4"))


@pytest.mark.parametrize(
    ("shape", "strides"),
    [
        ((3, 4), (16, 4)),
        ((4, 3), (4, 16)),
        ((2, 3), (12, 8)),
        ((3,), (-4,)),
        ((1, 5), (0, 4)),
        ((0, 3), (0, 0)),
        ((2, 2), (-8, 4)),
    ],
)
def test_destinations_whose_elements_have_their_own_place_are_not(shape, strides):
    base = np.zeros(50, "i4")
    ary = np.lib.stride_tricks.as_strided(base[20:], shape, strides)
    check_destination(ary, shape, np.dtype("i4"))


@given(
    st.lists(st.tuples(st.integers(1, 4), st.integers(-12, 12)), min_size=1, max_size=3),
    st.sampled_from([1, 2, 4]),
)
def test_overlap_is_found_exactly(axes, itemsize):
    shape, strides = tuple(n for n, _ in axes), tuple(s for _, s in axes)
    places = [sum(i * s for i, s in zip(index, strides, strict=True)) for index in np.ndindex(*shape)]
    taken = [place + byte for place in places for byte in range(itemsize)]
    ary = np.ndarray(shape, f"V{itemsize}", np.zeros(400, "u1"), 200, strides)
    if len(set(taken)) == len(taken):
        check_destination(ary, shape, ary.dtype)
    else:
        with pytest.raises(LayoutError, match="overlap"):
            check_destination(ary, shape, ary.dtype)
