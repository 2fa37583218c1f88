"""Copies in every layout, against NumPy; the bytes between elements are part of the answer."""

from __future__ import annotations

import contextlib
import gc
import math
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from hypothesis.extra.numpy import array_shapes, basic_indices

import devmem as dm

Array = np.ndarray[Any, Any]

RECORD = np.dtype([("a", "u1"), ("b", ">i4"), ("c", "<f8", (2,))], align=True)
DTYPES = ["?", "u1", "<i2", ">i4", "<f2", "<f8", "<c16", "<M8[ns]", "S3", "V7", RECORD]
SHAPES = array_shapes(min_dims=0, max_dims=3, min_side=0, max_side=6)


@pytest.fixture(scope="module", autouse=True)
def back_to_nothing() -> Iterator[None]:
    dm.close()
    yield
    gc.collect()
    dm.trim()
    info = dm.memory_info()
    assert (info.live, info.pending) == (0, 0)
    dm.close()


@st.composite
def bases(draw: st.DrawFn, shapes: st.SearchStrategy[tuple[int, ...]] = SHAPES) -> Array:
    """A contiguous array of any dtype with arbitrary bytes."""
    shape, dtype = draw(shapes), np.dtype(draw(st.sampled_from(DTYPES)))
    seed = draw(st.integers(0, 2**16))
    raw = np.random.default_rng(seed).integers(
        0, 2 if dtype.kind == "b" else 256, math.prod(shape) * dtype.itemsize, np.uint8
    )
    return raw.view(dtype).reshape(shape, order=draw(st.sampled_from("CF")))


@st.composite
def keys(draw: st.DrawFn, shape: tuple[int, ...], newaxis: bool = True) -> tuple[Any, ...]:
    """A basic index that gives a view, never a scalar."""
    index = draw(basic_indices(shape, allow_newaxis=newaxis))
    parts = index if isinstance(index, tuple) else (index,)
    return parts if any(part is Ellipsis for part in parts) else (*parts, Ellipsis)


@st.composite
def views(draw: st.DrawFn, repeated: bool = True) -> tuple[Array, Array]:
    """An array in any layout, and the array whose memory it lies in."""
    base = draw(bases())
    array = base.transpose(draw(st.permutations(range(base.ndim))))
    array = array[draw(keys(array.shape))]
    if repeated:
        array = np.broadcast_to(array, tuple(n if n != 1 else draw(st.sampled_from([1, 3])) for n in array.shape))
    return array, base


def bits(array: Array) -> bytes:
    """The bytes of the elements in C order, with the padding of records, which NumPy's own copies leave behind."""
    return np.ascontiguousarray(raw(array)).tobytes()


def same(got: Array, expected: Array) -> bool:
    return got.shape == expected.shape and bits(got) == bits(expected)


streams = st.sampled_from(["none", "named", "current"])


class On:
    """Run a block with no stream, a named one, or a current one, which is late; all is done at its end."""

    def __init__(self, how: str, late: Any, data: st.DataObject) -> None:
        self.how = how
        self.stream: Any = dm.stream() if how != "none" else 0
        self.late = late(self.stream, data)

    def __enter__(self) -> Any:
        self.late.__enter__()
        if self.how == "current":
            self.stream.__enter__()
            return 0
        return self.stream

    def __exit__(self, *error: Any) -> None:
        if self.how == "current":
            self.stream.__exit__(*error)
        dm.synchronize()
        self.late.__exit__(*error)


@given(st.data(), views(), streams)
def test_an_array_in_any_layout_comes_back_unchanged(
    late: Any, data: st.DataObject, pair: tuple[Array, Array], how: str
) -> None:
    array, _ = pair
    with On(how, late, data) as stream:
        there = dm.to_device(array, stream=stream)
        back = there.copy_to_host(stream=stream)
    assert (there.shape, there.dtype) == (array.shape, array.dtype)
    assert same(back, array)
    assert back.dtype == array.dtype
    if array.size:
        k = np.empty_like(array, order="K")
        assert [s for n, s in zip(array.shape, there.strides, strict=True) if n > 1] == [
            s for n, s in zip(array.shape, k.strides, strict=True) if n > 1
        ]
        assert [s for n, s in zip(array.shape, back.strides, strict=True) if n > 1] == [
            s for n, s in zip(array.shape, k.strides, strict=True) if n > 1
        ]


@given(st.data())
def test_views_of_a_device_array(data: st.DataObject) -> None:
    base = data.draw(bases())
    key = data.draw(keys(base.shape))
    there = dm.to_device(base)
    view = there[key]
    expected = raw(base)[key]
    assert same(view.copy_to_host(), expected)
    axes = data.draw(st.permutations(range(expected.ndim)))
    assert same(view.transpose(axes).copy_to_host() if axes else view.copy_to_host(), expected.transpose(axes))
    assert same(view.ravel().copy_to_host(), np.ravel(expected))
    assert same(view.reshape(-1, order="F").copy_to_host(), expected.reshape(-1, order="F"))
    assert same(view.copy().copy_to_host(), expected)
    assert same(view.squeeze().copy_to_host(), expected.squeeze())
    assert view.is_c_contiguous() == expected.flags.c_contiguous
    assert view.is_f_contiguous() == expected.flags.f_contiguous
    assert same(there.copy_to_host(), base), "looking changed it"


@given(st.data(), streams)
def test_into_a_strided_host_array(late: Any, data: st.DataObject, how: str) -> None:
    """Only the elements are written; every byte between them stays."""
    target, base = data.draw(views(repeated=False))
    seed = data.draw(st.integers(0, 99))
    source = fresh(target.shape, target.dtype, seed)
    layout = data.draw(st.permutations(range(target.ndim)))
    there = (
        dm.to_device(source.transpose(layout)).transpose(np.argsort(layout).tolist())
        if layout
        else dm.to_device(source)
    )
    expected = in_bytes(base)
    at = place(target, base)
    at(expected)[...] = source.view(f"V{source.itemsize}")
    with On(how, late, data) as stream:
        assert there.copy_to_host(target, stream=stream) is target
    assert np.array_equal(in_bytes(base), expected)


@given(st.data(), streams)
def test_into_a_strided_device_array(late: Any, data: st.DataObject, how: str) -> None:
    base = data.draw(bases())
    key = data.draw(keys(base.shape))
    there = dm.to_device(base)
    source = layout_of(data, fresh(base[key].shape, base.dtype, data.draw(st.integers(0, 99))))
    expected = raw(base).copy()
    expected[key] = raw(source)
    kind = data.draw(st.sampled_from(["host", "device", "other device", "pinned"]))
    with On(how, late, data) as stream:
        there[key].copy_to_device(given_as(kind, source), stream=stream)
    assert same(there.copy_to_host(), expected)


@given(st.data())
def test_assignment_that_overlaps(data: st.DataObject) -> None:
    """As if the source had been copied away first, which NumPy itself does not always do."""
    base = data.draw(bases(array_shapes(min_dims=1, max_dims=3, min_side=1, max_side=7)))
    left, right = [], []
    for length in base.shape:
        count = data.draw(st.integers(1, length))
        left.append(data.draw(slices(length, count)))
        right.append(data.draw(slices(length, data.draw(st.sampled_from([count, count, 1])))))
    if data.draw(st.booleans()) and base.ndim > 1:
        right[0] = data.draw(st.integers(0, base.shape[0] - 1))
    to, origin = tuple(left), tuple(right)
    there = dm.to_device(base)
    expected = raw(base).copy()
    expected[to] = raw(base)[origin].copy()
    there[to] = there[origin]
    assert same(there.copy_to_host(), expected)


@given(st.data())
def test_assignment_broadcasts_and_casts(data: st.DataObject) -> None:
    shape = data.draw(array_shapes(min_dims=1, max_dims=3, min_side=0, max_side=5))
    kinds = ["u1", "i2", ">i4", "i8", "f4", ">f8", "c16"]
    target, given_kind = data.draw(st.sampled_from(kinds)), data.draw(st.sampled_from(kinds))
    base = np.arange(math.prod(shape)).astype(target).reshape(shape)
    key = data.draw(keys(shape, newaxis=False))
    part = base[key].shape
    cut = data.draw(st.integers(0, len(part)))
    small = tuple(n if data.draw(st.booleans()) else 1 for n in part[cut:])
    value = np.arange(1, math.prod(small) + 1).astype(given_kind).reshape(small)
    there = dm.to_device(base)
    source = dm.to_device(value) if data.draw(st.booleans()) else value
    expected = base.copy()
    try:
        np.copyto(expected[key], value, casting="same_kind")
    except TypeError:
        with pytest.raises(dm.LayoutError):
            there[key] = source
        expected = base
    else:
        there[key] = source
    assert same(there.copy_to_host(), expected)


@given(st.data(), streams)
def test_a_fill_touches_what_it_selects_only(late: Any, data: st.DataObject, how: str) -> None:
    base = data.draw(bases(array_shapes(min_dims=0, max_dims=3, min_side=0, max_side=40)))
    assume(base.dtype.fields is None)
    value = fresh((), base.dtype, data.draw(st.integers(0, 99)))[()]
    key = data.draw(keys(base.shape))
    there, expected = dm.to_device(base), base.copy(order="K")
    expected[key] = value
    with On(how, late, data) as stream:
        there[key].fill(value, stream=stream)
    assert same(there.copy_to_host(), expected)


@given(st.data())
def test_view_with_another_dtype(data: st.DataObject) -> None:
    base = data.draw(bases())
    assume(base.dtype.fields is None)
    key = data.draw(keys(base.shape))
    other = np.dtype(data.draw(st.sampled_from(["u1", "<i2", "<f4", "<f8", "V3"])))
    there = dm.to_device(base)[key]
    host = np.array(base)[key]
    assume(host.size)
    try:
        expected = host.view(other)
    except (ValueError, TypeError):
        # NumPy also wants a smaller element to divide the larger one; bytes that are contiguous can do without.
        with contextlib.suppress(dm.LayoutError):
            assert bits(there.view(other).copy_to_host()) == bits(host)
        return
    assert same(there.view(other).copy_to_host(), expected)


# -- below -------------------------------------------------------------------------------------------------------------


@st.composite
def slices(draw: st.DrawFn, length: int, count: int) -> slice:
    """A slice that takes so many of so many."""
    widest = (length - 1) // (count - 1) if count > 1 else 3
    step = draw(st.integers(1, max(widest, 1)))
    start = draw(st.integers(0, length - 1 - (count - 1) * step))
    if draw(st.booleans()):
        return slice(start, start + (count - 1) * step + 1, step)
    last = start + (count - 1) * step
    return slice(last, start - 1 if start else None, -step)


def fresh(shape: tuple[int, ...], dtype: np.dtype[Any], seed: int) -> Array:
    nbytes = math.prod(shape) * dtype.itemsize
    found = np.random.default_rng(1000 + seed).integers(0, 2 if dtype.kind == "b" else 256, nbytes, np.uint8)
    return found.view(dtype).reshape(shape) if nbytes else np.empty(shape, dtype)


def raw(array: Array) -> Array:
    return array.view(f"V{array.itemsize}")


def in_bytes(base: Array) -> Array:
    """A copy of the memory of a contiguous array."""
    return np.frombuffer(base.tobytes(order="A"), np.uint8).copy()


def place(view: Array, base: Array) -> Any:
    """What finds the elements of a view again in a copy of its base's memory."""
    offset = view.ctypes.data - base.ctypes.data if view.size else 0
    return lambda memory: np.ndarray(
        view.shape, f"V{view.itemsize}", memory if view.size else None, offset, view.strides
    )


def layout_of(data: st.DataObject, array: Array) -> Array:
    """The same elements in another layout."""
    order = data.draw(st.permutations(range(array.ndim)))
    if not order:
        return array
    wide = np.repeat(array.view(f"V{array.itemsize}"), 2, axis=0).view(array.dtype)[::2]
    return np.ascontiguousarray(raw(wide).transpose(order)).view(array.dtype).transpose(np.argsort(order))


def given_as(kind: str, source: Array) -> Any:
    if kind == "device":
        return dm.to_device(source)
    if kind == "other device":
        with dm.device(1):
            return dm.to_device(source)
    if kind == "pinned" and source.size:
        pinned = dm.pinned_array_like(source)
        raw(pinned)[...] = raw(source)
        return pinned
    return source
