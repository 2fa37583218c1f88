"""The arithmetic of layouts, against NumPy."""

from __future__ import annotations

import ctypes
import math
from typing import Any

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from hypothesis.extra.numpy import array_shapes, basic_indices

from devmem._core.base import address, layout, rows
from devmem.spi.errors import LayoutError

Array = np.ndarray[Any, Any]

byte_bounds = getattr(np.lib, "array_utils", np).byte_bounds
DTYPES = ["u1", "<i2", "<f4", ">f8", "<c16", "V3", "V24"]
SHAPES = array_shapes(min_dims=0, max_dims=4, min_side=0, max_side=5)


@st.composite
def bases(draw: st.DrawFn, shapes: st.SearchStrategy[tuple[int, ...]] = SHAPES) -> Array:
    """A contiguous array with bytes that differ."""
    shape = draw(shapes)
    dtype = np.dtype(draw(st.sampled_from(DTYPES)))
    raw = np.arange(max(math.prod(shape), 1) * dtype.itemsize, dtype=np.uint32).astype(np.uint8)
    return raw.view(dtype)[: math.prod(shape)].reshape(shape, order=draw(st.sampled_from("CF")))


@st.composite
def views(draw: st.DrawFn, repeated: bool = True) -> Array:
    """An array in any layout: permuted, sliced, reversed, and with repeated axes (stride 0)."""
    array = draw(bases())
    array = array.transpose(draw(st.permutations(range(array.ndim))))
    array = array[draw(basic_indices(array.shape, allow_newaxis=True).map(keep_axes))]
    if repeated:
        shape = tuple(n if n != 1 else draw(st.sampled_from([1, 1, 3])) for n in array.shape)
        array = np.broadcast_to(array, shape)
    return array


def keep_axes(index: Any) -> tuple[Any, ...]:
    """The index with an Ellipsis, so that it gives a view and never a scalar."""
    parts = index if isinstance(index, tuple) else (index,)
    return parts if any(part is Ellipsis for part in parts) else (*parts, Ellipsis)


def significant(shape: tuple[int, ...], strides: tuple[int, ...]) -> list[int]:
    """Strides that mean something: of an axis with one element any will do, and of an empty array all."""
    return [] if 0 in shape else [step for count, step in zip(shape, strides, strict=True) if count > 1]


@given(st.data())
def test_an_index_gives_numpys_layout(data: st.DataObject) -> None:
    array = data.draw(views())
    key = keep_axes(data.draw(basic_indices(array.shape, allow_newaxis=True, max_dims=8)))
    expected = array[key]
    offset, shape, strides = layout.index(array.shape, array.strides, key)
    assert shape == expected.shape
    assert significant(shape, strides) == significant(shape, expected.strides)
    if expected.size:
        assert offset == expected.ctypes.data - array.ctypes.data


@given(st.data())
def test_index_out_of_range(data: st.DataObject) -> None:
    array = data.draw(views())
    assume(array.ndim)
    axis = data.draw(st.integers(0, array.ndim - 1))
    length = array.shape[axis]
    bad = data.draw(st.sampled_from([length, length + 3, -length - 1, 2**70, -(2**70)]))
    with pytest.raises(IndexError):
        layout.index(array.shape, array.strides, (slice(None),) * axis + (bad,))
    with pytest.raises(IndexError):
        layout.index(array.shape, array.strides, (0,) * (array.ndim + 1))


@st.composite
def other_shapes(draw: st.DrawFn, size: int) -> tuple[int, ...]:
    """A shape with so many elements: factors, split and shuffled, with ones among them."""
    if size == 0:
        return tuple(draw(st.permutations([0, *draw(st.lists(st.integers(0, 4), max_size=3))])))
    parts, left = [], size
    while left > 1:
        divisors = [d for d in range(2, left + 1) if left % d == 0]
        parts.append(draw(st.sampled_from(divisors)))
        left //= parts[-1]
    return tuple(draw(st.permutations([*parts, *[1] * draw(st.integers(0, 2))])))


@pytest.mark.skipif(np.lib.NumpyVersion(np.__version__) < "2.1.0", reason="NumPy before 2.1 has no reshape(copy=False)")
@given(st.data())
def test_reshape_is_a_view_exactly_where_numpy_has_one(data: st.DataObject) -> None:
    array = data.draw(views())
    shape = data.draw(other_shapes(array.size))
    order: Any = data.draw(st.sampled_from("CF"))
    found = layout.reshape(array.shape, array.strides, array.itemsize, shape, order)
    try:
        expected = np.reshape(array, shape, order=order, copy=False)
    except ValueError:
        assert found is None
        return
    assert found is not None
    assert significant(shape, found) == significant(shape, expected.strides)


@given(st.data())
def test_resolve_shape_agrees_with_reshape(data: st.DataObject) -> None:
    size = data.draw(st.integers(0, 24))
    shape = data.draw(st.one_of(other_shapes(size), st.lists(st.integers(-2, 6), max_size=4).map(tuple)))
    if shape and data.draw(st.booleans()):
        at = data.draw(st.integers(0, len(shape) - 1))
        shape = (*shape[:at], -1, *shape[at + 1 :])
    try:
        expected = np.empty(size, "u1").reshape(shape).shape
    except ValueError:
        # NumPy before some version took any negative length for -1.
        with pytest.raises(LayoutError):
            layout.resolve_shape(shape, size)
        return
    if any(count < -1 for count in shape):
        return
    assert layout.resolve_shape(shape, size) == expected


@given(views())
def test_like_strides_are_those_of_empty_like(array: Array) -> None:
    expected = np.empty_like(array, order="K")
    found = layout.like_strides(array.shape, array.strides, array.itemsize)
    assert significant(array.shape, found) == significant(array.shape, expected.strides)
    assert layout.span(array.shape, found, array.itemsize) == (0, array.nbytes)


@given(SHAPES, st.sampled_from(DTYPES), st.sampled_from("CF"))
def test_contiguous_strides_are_numpys(shape: tuple[int, ...], dtype: str, order: Any) -> None:
    made = np.empty(shape, dtype, order)
    found = layout.contiguous_strides(shape, made.itemsize, order)
    assert significant(shape, found) == significant(shape, made.strides)
    assert layout.is_contiguous(shape, found, made.itemsize, order)


@given(views())
def test_is_contiguous_agrees_with_numpys_flags(array: Array) -> None:
    assert layout.is_contiguous(array.shape, array.strides, array.itemsize) == array.flags.c_contiguous
    assert layout.is_contiguous(array.shape, array.strides, array.itemsize, "F") == array.flags.f_contiguous


@given(views())
def test_span_and_extent_cover_every_byte(array: Array) -> None:
    low, high = layout.span(array.shape, array.strides, array.itemsize)
    if not array.size:
        assert (low, high) == (0, 0)
        return
    start = array.ctypes.data
    assert (start + low, start + high) == byte_bounds(array)
    assert address.extent(array) == byte_bounds(array)
    assert address.address(array) == start


@given(st.data())
def test_a_plan_of_rows_moves_what_numpys_assignment_moves(data: st.DataObject) -> None:
    """Do what the plan says, on bytes, and compare with what NumPy's assignment does; the gaps are not touched."""
    target = data.draw(views(repeated=False))
    assume(target.size)
    shape, itemsize = target.shape, target.itemsize
    source = data.draw(sources(shape, itemsize))
    plan = rows.rows(shape, itemsize, target.strides, source.strides)
    assert plan.calls == len(plan.offsets())
    assert plan.calls * plan.width * plan.height == target.size * itemsize

    before = bytes_of(target)
    low = byte_bounds(target)[0] - target.ctypes.data
    expected, ours = np.array(before), np.array(before)
    np.ndarray(shape, f"V{itemsize}", expected, -low, target.strides)[...] = source
    raw = bytes_of(source)
    source_low = byte_bounds(source)[0] - source.ctypes.data
    for to, origin in plan.offsets():
        for row in range(plan.height):
            d = to + row * plan.dst_pitch - low
            s = origin + row * plan.src_pitch - source_low
            assert 0 <= d <= len(ours) - plan.width
            assert 0 <= s <= len(raw) - plan.width
            ours[d : d + plan.width] = raw[s : s + plan.width]
    assert np.array_equal(ours, expected)
    if plan.height > 1:
        assert min(plan.dst_pitch, plan.src_pitch) >= plan.width, "a driver's pitch is at least a row"


@st.composite
def sources(draw: st.DrawFn, shape: tuple[int, ...], itemsize: int) -> Array:
    """Something of the same shape in any layout, with repeated axes too."""
    perm = draw(st.permutations(range(len(shape))))
    steps = [draw(st.sampled_from([1, 1, 2, -1, -2, 0])) for _ in shape]
    big = tuple((n - 1) * max(abs(step), 1) + 1 for n, step in zip(shape, steps, strict=True))
    raw = np.arange(math.prod(big) * itemsize, dtype=np.uint32) * 7 + 1
    base = raw.astype(np.uint8).view(f"V{itemsize}").reshape(tuple(big[axis] for axis in perm))
    back = base.transpose(tuple(np.argsort(perm))) if shape else base
    assert back.shape == big
    strides = tuple(stride * step for stride, step in zip(back.strides, steps, strict=True))
    start = sum(-stride * (n - 1) for n, stride in zip(shape, strides, strict=True) if stride < 0)
    return np.ndarray(shape, f"V{itemsize}", raw.astype(np.uint8), start, strides)


def bytes_of(array: Array) -> Array:
    """A copy of all bytes from the lowest to the highest of an array."""
    low, high = byte_bounds(array)
    return np.frombuffer(ctypes.string_at(low, high - low), np.uint8).copy()


@given(st.tuples(st.integers(0, 20), st.integers(0, 20)), st.tuples(st.integers(0, 20), st.integers(0, 20)))
def test_overlap_is_a_common_byte(a: tuple[int, int], b: tuple[int, int]) -> None:
    assume(a[0] < a[1] and b[0] < b[1])
    assert layout.overlap(a, b) == bool(set(range(*a)) & set(range(*b)))
