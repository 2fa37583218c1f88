"""Arithmetic of shapes, strides and byte ranges. Pure: no device, no memory is touched here."""

from __future__ import annotations

import ctypes
import math
import operator
import sys
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from ...spi.errors import LayoutError

Shape = tuple[int, ...]

#: Where an ndarray object keeps the address of its data: first behind the object header, by NumPy's stable ABI.
_DATA = object.__basicsize__
_WORD = ctypes.sizeof(ctypes.c_size_t)
#: Halvings that make a word's number of an address; a division takes longer.
_TO_WORDS = _WORD.bit_length() - 1
#: All memory as words, to be read from, shifted so that an ndarray object's own number finds the address of its data.
_words = (ctypes.c_size_t * ((sys.maxsize - _DATA) // _WORD)).from_address(_DATA)


def address(array: npt.NDArray[Any]) -> int:
    """The address of an ndarray's first element, of any array: read-only, without axes, datetimes.

    Read from the array object itself: ``array.ctypes.data`` takes ten times as long. Nothing but this function hands out
    host addresses.
    """
    return _words[id(array) >> _TO_WORDS]


_probe = np.empty(1)
if address(_probe) != _probe.__array_interface__["data"][0]:
    raise ImportError(f"NumPy {np.__version__} keeps array addresses where devmem does not know: please report it")


def span(shape: Shape, strides: Shape, itemsize: int) -> tuple[int, int]:
    """Offsets, from the first element, of the lowest byte and of the byte behind the highest."""
    if 0 in shape:
        return 0, 0
    low = high = 0
    for count, stride in zip(shape, strides, strict=True):
        if stride < 0:
            low += (count - 1) * stride
        else:
            high += (count - 1) * stride
    return low, high + itemsize


def extent(array: npt.NDArray[Any]) -> tuple[int, int]:
    """Addresses of the lowest byte of an ndarray and of the byte behind its highest."""
    low, high = span(array.shape, array.strides, array.itemsize)
    start = address(array)
    return start + low, start + high


@lru_cache(maxsize=1024)
def contiguous_strides(shape: Shape, itemsize: int, order: str = "C") -> Shape:
    """Strides of a contiguous array, in bytes. Cached, so that equal arrays share one tuple."""
    strides = []
    step = itemsize
    for count in reversed(shape) if order == "C" else shape:
        strides.append(step)
        step *= max(count, 1)
    return tuple(reversed(strides)) if order == "C" else tuple(strides)


def is_contiguous(shape: Shape, strides: Shape, itemsize: int, order: str = "C") -> bool:
    """Whether elements lie one behind the other; axes of length one may have any stride."""
    if 0 in shape:
        return True
    step = itemsize
    pairs = list(zip(shape, strides, strict=True))
    for count, stride in reversed(pairs) if order == "C" else pairs:
        if count != 1:
            if stride != step:
                return False
            step *= count
    return True


def normal_strides(shape: Shape, strides: Shape, unit: int) -> Shape:
    """The same strides, with those of axes of length one as a contiguous array would have them; ``unit``: bytes of an element."""
    result = list(strides)
    following = unit
    for axis in reversed(range(len(shape))):
        if shape[axis] == 1:
            result[axis] = following
        following = abs(result[axis]) * shape[axis]
    return tuple(result)


def like_strides(shape: Shape, strides: Shape, itemsize: int) -> Shape:
    """Contiguous strides in the order of somebody else's: what ``numpy.empty_like(order='K')`` gives."""
    result = [0] * len(shape)
    step = itemsize
    # Larger strides stay outside; equal ones (and those of axes of length one) keep the order of the axes.
    for axis in sorted(range(len(shape)), key=lambda axis: (abs(strides[axis]), -axis)):
        result[axis] = step
        step *= max(shape[axis], 1)
    return tuple(result)


def index(shape: Shape, strides: Shape, key: object) -> tuple[int, Shape, Shape]:
    """Byte offset, shape and strides of ``array[key]`` for ints, slices, Ellipsis and None.

    Raises
    ------
    IndexError
        Out of range, or more indices than axes.
    LayoutError
        A mask or a list of indices, which has no strides.
    """
    keys = key if isinstance(key, tuple) else (key,)
    axes = sum(1 for part in keys if part is not None and part is not Ellipsis)
    if axes > len(shape):
        raise IndexError(f"too many indices: the array has {len(shape)} axes, {axes} were indexed")
    if sum(1 for part in keys if part is Ellipsis) > 1:
        raise IndexError("an index can have one Ellipsis ('...') only")
    if not any(part is Ellipsis for part in keys):
        keys = (*keys, Ellipsis)
    offset, axis = 0, 0
    new_shape: list[int] = []
    new_strides: list[int] = []
    for part in keys:
        if part is None:
            new_shape.append(1)
            new_strides.append(0)
        elif part is Ellipsis:
            rest = len(shape) - axes
            new_shape += shape[axis : axis + rest]
            new_strides += strides[axis : axis + rest]
            axis += rest
        elif isinstance(part, slice):
            start, stop, step = slice_indices(part, shape[axis])
            count = len(range(start, stop, step))
            offset += start * strides[axis] if count else 0
            new_shape.append(count)
            new_strides.append(strides[axis] * step)
            axis += 1
        else:
            offset += _position(part, shape[axis], axis) * strides[axis]
            axis += 1
    return offset, tuple(new_shape), tuple(new_strides)


def slice_indices(part: slice, length: int) -> tuple[int, int, int]:
    """``slice.indices``, with NumPy's error for a slice that is not made of integers."""
    try:
        return part.indices(length)
    except TypeError:
        raise IndexError(f"slice indices are integers or None, not {part}") from None


def _position(part: object, length: int, axis: int) -> int:
    try:
        if isinstance(part, (bool, np.bool_)):
            raise TypeError
        at = operator.index(part)  # type: ignore[arg-type]
    except TypeError:
        raise LayoutError(
            f"a device array takes ints, slices, Ellipsis and None as indices, not {type(part).__name__}: masks and lists of "
            f"indices have no strides; index a host copy (copy_to_host()) instead"
        ) from None
    if not -length <= at < length:
        raise IndexError(f"index {at} is out of range for axis {axis} of length {length}")
    return at + length if at < 0 else at


def reshape(shape: Shape, strides: Shape, itemsize: int, new: Shape, order: str) -> Shape | None:
    """Strides of a view with the new shape, or None where only a copy has it."""
    if order == "F":
        found = reshape(shape[::-1], strides[::-1], itemsize, new[::-1], "C")
        return None if found is None else found[::-1]
    if 0 in new or 0 in shape:
        return contiguous_strides(new, itemsize)
    old = [(count, stride) for count, stride in zip(shape, strides, strict=True) if count != 1]
    result: list[int] = []
    at = 0
    todo = [count for count in new if count != 1]
    # Walk both shapes, matching groups of axes that have the same number of elements; within a group, the old axes must lie
    # one inside the other for the new ones to have strides.
    i = 0
    while i < len(todo):
        group_new, count_new = [todo[i]], todo[i]
        i += 1
        group_old, count_old = [old[at]], old[at][0]
        at += 1
        while count_new != count_old:
            if count_new < count_old:
                group_new.append(todo[i])
                count_new *= todo[i]
                i += 1
            else:
                group_old.append(old[at])
                count_old *= old[at][0]
                at += 1
        for (_, outer), (count, inner) in pairwise(group_old):
            if outer != count * inner:
                return None
        step = group_old[-1][1]
        part = []
        for count in reversed(group_new):
            part.append(step)
            step *= count
        result += reversed(part)
    strides_left = iter(result)
    following = itemsize
    final = [next(strides_left) if count != 1 else 0 for count in new]
    for axis in reversed(range(len(new))):  # axes of length one: what NumPy's contiguous arrays would have
        if new[axis] == 1:
            final[axis] = following
        following = final[axis] * new[axis]
    return tuple(final)


def resolve_shape(new: Shape, size: int) -> Shape:
    """The shape with its one -1 filled in."""
    if new.count(-1) > 1:
        raise LayoutError(f"a new shape can leave one length open (-1), {new} leaves {new.count(-1)}")
    if -1 in new:
        known = math.prod(count for count in new if count != -1)
        if known == 0 or size % known:
            raise LayoutError(f"{size} elements cannot be shaped as {new}")
        new = tuple(size // known if count == -1 else count for count in new)
    if any(count < 0 for count in new) or math.prod(new) != size:
        raise LayoutError(f"{size} elements cannot be shaped as {new}")
    return new


def overlap(a: tuple[int, int], b: tuple[int, int]) -> bool:
    """Whether two ranges of addresses have a byte in common."""
    return a[0] < b[1] and b[0] < a[1]


def check_size(shape: Shape, itemsize: int) -> int:
    """Bytes of an array of that shape; LayoutError if no address space holds it."""
    nbytes = math.prod(shape) * itemsize
    # An axis without elements hides how long the others are; strides have to be numbers all the same.
    reach = nbytes or math.prod(max(count, 1) for count in shape) * max(itemsize, 1)
    if reach > sys.maxsize:
        raise LayoutError(f"an array of shape {shape} with {itemsize} bytes an item does not fit into memory addresses")
    return nbytes


# -- strided copies ----------------------------------------------------------------------------------------------------


def memory_order(shape: Shape, strides: Shape) -> tuple[list[int], list[int]]:
    """Axes from the largest stride to the smallest, and those whose stride is negative."""
    axes = sorted(range(len(shape)), key=lambda axis: -abs(strides[axis]))
    return axes, [axis for axis in range(len(shape)) if strides[axis] < 0 and shape[axis] > 1]


def in_memory_order(shape: Shape, strides: Shape, axes: list[int], flipped: list[int]) -> tuple[Shape, Shape]:
    """Shape and strides with the axes so, and none of the strides negative: what is lowest in memory comes first."""
    steps = [-stride if axis in flipped else stride for axis, stride in enumerate(strides)]
    return tuple(shape[axis] for axis in axes), tuple(steps[axis] for axis in axes)


class Slices(NamedTuple):
    """What a three-dimensional copy needs besides its rows: slices, pitches between them, and where each call begins."""

    depth: int
    dst_rows: int
    src_rows: int
    offsets: list[tuple[int, int]]


@dataclass(slots=True)
class Rows:
    """A strided copy as a driver can do it: rows of ``width`` bytes, ``height`` of them a pitch apart, and that again at
    every offset of the ``outer`` axes (count, destination stride, source stride).
    """

    width: int
    height: int
    dst_pitch: int
    src_pitch: int
    outer: list[tuple[int, int, int]]
    dst_offset: int
    src_offset: int

    @property
    def calls(self) -> int:
        """Driver calls that it takes where the driver copies in two dimensions."""
        return math.prod(count for count, _, _ in self.outer)

    def slices(self) -> Slices | None:
        """The same with one outer axis done in the same call: one that lies whole pitches apart, on both sides."""
        for at in range(len(self.outer) - 1, -1, -1):
            count, dst, src = self.outer[at]
            dst_rows, dst_rest = divmod(dst, self.dst_pitch)
            src_rows, src_rest = divmod(src, self.src_pitch)
            if self.height > 1 and not dst_rest and not src_rest and min(dst_rows, src_rows) >= self.height:
                rest = replace(self, outer=[*self.outer[:at], *self.outer[at + 1 :]])
                return Slices(count, dst_rows, src_rows, rest.offsets())
        return None

    def offsets(self) -> list[tuple[int, int]]:
        """(destination, source) offsets of every call."""
        found = [(self.dst_offset, self.src_offset)]
        for count, dst, src in self.outer:
            found = [(d + i * dst, s + i * src) for d, s in found for i in range(count)]
        return found


def rows(shape: Shape, itemsize: int, dst_strides: Shape, src_strides: Shape) -> Rows:
    """Break a copy between two layouts of one shape into as few two-dimensional copies as it can be.

    Source axes may have any stride (0 repeats, negative runs backwards); destination elements do not overlap.
    """
    dst_offset = src_offset = 0
    axes = []
    for count, dst, src in zip(shape, dst_strides, src_strides, strict=True):
        if count == 1:
            continue
        if dst < 0:  # walk the axis the other way, on both sides
            dst_offset += (count - 1) * dst
            src_offset += (count - 1) * src
            dst, src = -dst, -src
        axes.append((count, dst, src))
    axes.sort(key=lambda axis: axis[1])
    width = itemsize
    while axes and axes[0][1] == width == axes[0][2]:
        width *= axes.pop(0)[0]
    axes = _merged(axes)
    best = max((axis for axis in axes if min(axis[1], axis[2]) >= width), default=None)
    if best is None:
        return Rows(width, 1, width, width, axes[::-1], dst_offset, src_offset)
    axes.remove(best)
    return Rows(width, best[0], best[1], best[2], axes[::-1], dst_offset, src_offset)


def _merged(axes: list[tuple[int, int, int]]) -> list[tuple[int, int, int]]:
    """Join neighbouring axes that lie one inside the other on both sides; from the innermost out."""
    joined: list[tuple[int, int, int]] = []
    for count, dst, src in axes:
        if joined:
            inner, inner_dst, inner_src = joined[-1]
            if dst == inner * inner_dst and src == inner * inner_src:
                joined[-1] = (inner * count, inner_dst, inner_src)
                continue
        joined.append((count, dst, src))
    return joined
