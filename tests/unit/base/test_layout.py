"""Shapes, strides and byte ranges, by example; against NumPy at random they are tested under ``property``."""

from __future__ import annotations

import ctypes
import operator

import numpy as np
import pytest

from devmem._core.base.address import address, extent
from devmem._core.base.array_view import ArrayView, along_memory, both_along_memory
from devmem._core.base.layout import (
    check_size,
    contiguous_strides,
    index,
    is_contiguous,
    like_strides,
    memory_order,
    overlap,
    reshape,
    resolve_shape,
    span,
)
from devmem._core.base.rows import Rows, rows
from devmem.spi.errors import LayoutError


def read_only(array):
    array.flags.writeable = False
    return array


@pytest.mark.parametrize(
    "array",
    [
        np.zeros(3),
        np.zeros((2, 3))[1:, ::2],
        np.zeros(4)[::-1],
        np.array(5),
        np.zeros(3, "M8[s]"),
        np.zeros(3, [("a", "i4"), ("b", "M8[s]")]),
        np.zeros(3, ">f8"),
        np.zeros(3, "U2"),
        np.zeros(0),
        np.zeros((2, 3), order="F"),
        read_only(np.arange(3)),
        np.frombuffer(b"abc", "u1"),
        np.broadcast_to(np.zeros(1), (3, 3)),
        np.zeros(3, np.dtype([])),
    ],
    ids=lambda a: f"{a.dtype}{a.shape}",
)
def test_address_is_that_of_the_first_element(array):
    assert address(array) == array.ctypes.data


@pytest.mark.parametrize(
    ("shape", "strides", "want"),
    [
        ((), (), (0, 8)),
        ((3,), (8,), (0, 24)),
        ((3,), (-8,), (-16, 8)),
        ((3,), (0,), (0, 8)),
        ((2, 3), (100, -8), (-16, 108)),
        ((0,), (8,), (0, 0)),
        ((3, 0), (8, -8), (0, 0)),
        ((1,), (-1000,), (0, 8)),
    ],
)
def test_span_of_strided_shapes(shape, strides, want):
    assert span(shape, strides, 8) == want


def test_extent_covers_every_element():
    a = np.zeros((4, 6), "i4")
    base = a.ctypes.data
    assert extent(a) == (base, base + 96)
    assert extent(a[::-1, ::-2]) == (base + 4, base + 96)
    assert extent(a[1:3, 2:4]) == (base + 32, base + 64)


def test_contiguous_strides():
    for shape in [(), (3,), (2, 3), (2, 3, 4), (1, 5, 1)]:
        for order in "CF":
            assert contiguous_strides(shape, 8, order) == np.empty(shape, order=order).strides
    assert contiguous_strides((2, 0, 3), 4) == (12, 12, 4)


def test_is_contiguous():
    for array in (
        np.zeros((2, 3)),
        np.zeros((2, 3), order="F"),
        np.zeros((4, 6))[::2],
        np.zeros((3, 1)),
        np.zeros(()),
        np.zeros((0, 3)),
    ):
        assert is_contiguous(array.shape, array.strides, 8) == array.flags.c_contiguous
        assert is_contiguous(array.shape, array.strides, 8, "F") == array.flags.f_contiguous
    assert is_contiguous((1, 3), (-999, 8), 8)
    assert not is_contiguous((3,), (-8,), 8)
    assert not is_contiguous((3,), (0,), 8)


def test_like_strides():
    for array in (
        np.zeros((2, 3, 4)).transpose(1, 2, 0),
        np.zeros((2, 3, 4), order="F"),
        np.zeros((4, 6))[::2, ::3],
        np.zeros((2, 3))[::-1],
    ):
        assert like_strides(array.shape, array.strides, 8) == np.empty_like(array, order="K").strides


def test_index_gives_offset_shape_and_strides():
    assert index((3, 4), (32, 8), (1, slice(None, None, -2))) == (32 + 24, (2,), (-16,))
    assert index((3, 4), (32, 8), None) == (0, (1, 3, 4), (0, 32, 8))
    assert index((3, 4), (32, 8), ()) == (0, (3, 4), (32, 8))
    assert index((), (), Ellipsis) == (0, (), ())
    assert index((3,), (8,), slice(5, 9)) == (0, (0,), (8,))


def test_reshape_finds_views_and_says_when_there_is_none():
    assert reshape((2, 3), (24, 8), 8, (6,), "C") == (8,)
    assert reshape((2, 3), (8, 16), 8, (6,), "C") is None
    assert reshape((2, 3), (8, 16), 8, (6,), "F") == (8,)
    assert reshape((4,), (16,), 8, (2, 2), "C") == (32, 16)
    assert reshape((6,), (-8,), 8, (2, 3), "C") == (-24, -8)
    assert reshape((2, 3), (0, 8), 8, (3, 2), "C") is None
    assert reshape((), (), 8, (1, 1), "C") == (8, 8)


@pytest.mark.parametrize(
    ("new", "size", "want"),
    [((-1,), 6, (6,)), ((2, -1), 6, (2, 3)), ((-1, 3), 0, (0, 3)), ((), 1, ()), ((0,), 0, (0,))],
)
def test_resolve_shape(new, size, want):
    assert resolve_shape(new, size) == want


@pytest.mark.parametrize(
    ("new", "size"), [((-1, -1), 6), ((4, -1), 6), ((-1, 0), 0), ((5,), 6), ((-2, -3), 6), ((), 2)]
)
def test_resolve_shape_refuses(new, size):
    with pytest.raises(LayoutError):
        resolve_shape(new, size)


def test_overlap():
    assert overlap((0, 10), (9, 20))
    assert overlap((5, 6), (0, 10))
    assert not overlap((0, 10), (10, 20))
    assert not overlap((10, 20), (0, 10))


@pytest.mark.parametrize(
    ("shape", "itemsize", "nbytes"),
    [((2, 3), 8, 48), ((), 4, 4), ((0, 2**60), 1, 0), ((2**62,), 1, 2**62), ((3,), 0, 0)],
)
def test_check_size_gives_the_bytes(shape, itemsize, nbytes):
    assert check_size(shape, itemsize) == nbytes


@pytest.mark.parametrize(("shape", "itemsize"), [((2**63,), 1), ((2**32, 2**32), 1), ((2**62,), 4), ((2**63, 0), 1)])
def test_check_size_refuses(shape, itemsize):
    with pytest.raises(LayoutError, match="does not fit into memory addresses"):
        check_size(shape, itemsize)


def test_memory_order():
    assert memory_order((2, 3, 4), (8, 64, -16)) == ([1, 2, 0], [2])
    assert memory_order((1, 3), (-8, 8)) == ([0, 1], [])


ARRAY = np.arange(120.0).reshape(4, 5, 6)
LAYOUTS = {
    "contiguous": ARRAY,
    "Fortran's": np.asfortranarray(ARRAY),
    "axes in another order": ARRAY.transpose(1, 0, 2),
    "gaps": ARRAY[::2, :, ::3],
    "backwards": ARRAY[::-1, :, ::-2],
    "backwards in another order": ARRAY.transpose(2, 0, 1)[::-1, ::2],
    "an axis of length one": ARRAY[:, 1:2, ::-1],
    "no axes": np.array(1.0),
}


def like(array):
    return ArrayView(address(array), array.shape, array.dtype, array.strides)


def addresses(view):
    """The address of each element of a view."""
    return [view._ptr + sum(map(operator.mul, index, view.strides)) for index in np.ndindex(view.shape)]


@pytest.mark.parametrize("device", LAYOUTS.values(), ids=LAYOUTS)
@pytest.mark.parametrize("order", ["C", "F"])
def test_in_the_order_of_the_device_the_same_elements_meet(device, order):
    view, host = like(device), np.arange(device.size).reshape(device.shape, order=order)
    ordered, beside = along_memory(view, host)
    met = zip(addresses(view), host.ravel(), strict=True)
    assert set(zip(addresses(ordered), beside.ravel(), strict=True)) == set(met)
    steps = [stride for stride, count in zip(ordered.strides, ordered.shape, strict=True) if count > 1]
    assert steps == sorted(map(abs, steps), reverse=True)
    assert (ordered._strides is None) == (device.flags.c_contiguous or device.flags.f_contiguous)


@pytest.mark.parametrize("device", LAYOUTS.values(), ids=LAYOUTS)
@pytest.mark.parametrize("order", ["C", "F"])
def test_so_do_those_of_two_device_views(device, order):
    first, second = like(device), like(np.zeros(device.shape, order=order))
    met = zip(addresses(first), addresses(second), strict=True)
    ordered, beside = both_along_memory(first, second)
    assert set(zip(addresses(ordered), addresses(beside), strict=True)) == set(met)
    assert ordered._ptr == min(addresses(first))


# -- how a strided copy is broken into rows ----------------------------------------------------------------------------


def test_contiguous_on_both_sides_is_one_call():
    assert rows((4, 6), 8, (48, 8), (48, 8)) == Rows(192, 1, 192, 192, [], 0, 0)
    assert rows((), 8, (), ()) == Rows(8, 1, 8, 8, [], 0, 0)


def test_rows_with_gaps_are_one_call_in_two_dimensions():
    plan = rows((4, 6), 8, (48, 8), (480, 8))
    assert (plan.width, plan.height, plan.dst_pitch, plan.src_pitch, plan.calls) == (48, 4, 48, 480, 1)


def test_a_cube_with_gaps_takes_a_call_for_each_slice():
    plan = rows((3, 4, 6), 8, (192, 48, 8), (9000, 480, 8))
    assert (plan.width, plan.height, plan.calls) == (48, 4, 3)
    assert plan.offsets() == [(0, 0), (192, 9000), (384, 18000)]


def test_a_backward_destination_is_walked_forward_on_both_sides():
    plan = rows((5,), 8, (-8,), (-8,))
    assert (plan.width, plan.height) == (40, 1)
    assert plan.offsets() == [(-32, -32)]


def test_a_repeated_source_is_read_again_for_each_row():
    plan = rows((3, 6), 8, (48, 8), (0, 8))
    assert sorted(plan.offsets()) == [(0, 0), (48, 0), (96, 0)]


@pytest.mark.parametrize("seed", range(20))
def test_every_plan_moves_every_element(seed):
    rng = np.random.default_rng(seed)
    shape = tuple(map(int, rng.integers(1, 5, rng.integers(1, 4))))
    big = tuple(3 * n for n in shape)
    cut = tuple(slice(None, None, int(rng.choice([1, 2, 3]))) for _ in shape)
    axes = rng.permutation(len(shape)).tolist()
    src = rng.integers(0, 255, big, np.uint8)[cut][tuple(slice(n) for n in shape)]
    src = np.ascontiguousarray(src.transpose(axes)).transpose(np.argsort(axes)) if seed % 2 else src
    room = np.full(big, 0, np.uint8)
    dst = room[cut][tuple(slice(n) for n in shape)]
    if seed % 3 == 0:
        src = src[::-1]
    plan = rows(shape, 1, dst.strides, src.strides)
    for to, origin in plan.offsets():
        for line in range(plan.height):
            a = dst.ctypes.data + to + line * plan.dst_pitch
            b = src.ctypes.data + origin + line * plan.src_pitch
            ctypes.memmove(a, b, plan.width)
    np.testing.assert_array_equal(dst, src)
    assert (room != 0).sum() == (np.asarray(src) != 0).sum()
