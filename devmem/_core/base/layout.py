"""Arithmetic of shapes, strides and byte ranges, and host arrays of a layout."""

from __future__ import annotations

import math
import operator
import sys
from functools import lru_cache
from itertools import pairwise
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from ...spi.errors import LayoutError

Shape = tuple[int, ...]
#: As many axes as an array has at most: as many as NumPy's, so that every device array fits into a host array.
MAX_AXES = 64 if int(np.__version__.partition(".")[0]) >= 2 else 32
#: The greatest stride that NumPy's arrays hold.
MOST = sys.maxsize


def span(shape: Shape, strides: Shape, itemsize: int) -> tuple[int, int]:
    """Offsets, from the first element, of the lowest byte and of the byte behind the highest."""
    if 0 in shape or not itemsize:
        return 0, 0
    low = high = 0
    for count, stride in zip(shape, strides, strict=True):
        if stride < 0:
            low += (count - 1) * stride
        else:
            high += (count - 1) * stride
    return low, high + itemsize


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
    """Contiguous strides in the same order of axes: what ``numpy.empty_like(order='K')`` gives."""
    for order in "CF":
        packed = contiguous_strides(shape, itemsize, order)
        if strides == packed:
            return packed
    result = [0] * len(shape)
    step = itemsize
    # Larger strides stay outside; equal ones (and those of axes of length one) keep the order of the axes.
    for axis in reversed(memory_order(shape, strides)[0]):
        result[axis] = step
        step *= max(shape[axis], 1)
    return tuple(result)


def new_host(shape: Shape, dtype: np.dtype[Any], order: Literal["C", "F"] = "C") -> npt.NDArray[Any]:
    """A new host array of exactly this dtype, of undefined contents.

    ``numpy.empty`` makes one character of text of no length (``S0``, which fields of records have): bytes that nothing fills.
    """
    return np.ndarray(shape, dtype, order=order)


def opaque(dtype: np.dtype[Any]) -> np.dtype[Any]:
    """The dtype as text can name it: bytes (``|V1``) in place of types that other libraries have registered, in records too.

    NumPy has no text for those, and gives one that means nothing: ``<f1`` for a float8 of ml_dtypes.
    """
    if dtype.isbuiltin == 1:  # one of NumPy's own
        return dtype
    if dtype.isbuiltin == 2:
        return np.dtype(f"V{dtype.itemsize}")
    if dtype.subdtype is not None:
        return np.dtype((opaque(dtype.subdtype[0]), dtype.subdtype[1]))
    names = list(dtype.names or ())
    fields: list[Any] = [dtype.fields[name] for name in names] if dtype.fields is not None else []
    formats = [opaque(field[0]) for field in fields]
    if all(kind == field[0] for kind, field in zip(formats, fields, strict=True)):
        return dtype
    offsets, titles = [field[1] for field in fields], [field[2] if len(field) > 2 else None for field in fields]
    layout = {"names": names, "formats": formats, "offsets": offsets, "titles": titles, "itemsize": dtype.itemsize}
    return np.dtype(layout)  # type: ignore[call-overload, no-any-return]


def index(shape: Shape, strides: Shape, key: object) -> tuple[int, Shape, Shape]:
    """Byte offset, shape and strides of ``array[key]`` for ints, slices, Ellipsis and None.

    Raises
    ------
    IndexError
        Out of range, or more indices than axes.
    LayoutError
        Something else: a float, a list of fields; a mask or a list of indices, which has no strides.
    """
    if type(key) is slice and shape:  # the commonest
        start, stop, step = slice_indices(key, shape[0])
        count, outer = len(range(start, stop, step)), strides[0]
        if abs(stride := outer * step) > MOST:
            stride = outer  # no two elements are so far apart
        return start * outer if count else 0, (count, *shape[1:]), (stride, *strides[1:])
    keys = key if isinstance(key, tuple) else (key,)
    axes = ellipses = 0
    for part in keys:
        if part is Ellipsis:
            ellipses += 1
        elif part is not None:
            axes += 1
    if axes > len(shape):
        raise IndexError(f"too many indices: the array has {len(shape)} axes, {axes} were indexed")
    if ellipses > 1:
        raise IndexError("an index can have one Ellipsis ('...') only")
    if not ellipses:
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
            stride = strides[axis] * step
            new_strides.append(stride if abs(stride) <= MOST else strides[axis])
            axis += 1
        else:
            offset += _position(part, shape[axis], axis) * strides[axis]
            axis += 1
    if len(new_shape) > MAX_AXES:
        raise IndexError(f"too many axes: an array has at most {MAX_AXES}, the index makes {len(new_shape)}")
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
            f"a device array takes ints, slices, Ellipsis and None as indices, not {type(part).__name__}: {_instead(part)}"
        ) from None
    if not -length <= at < length:
        raise IndexError(f"index {at} is out of range for axis {axis} of length {length}")
    return at + length if at < 0 else at


def _instead(part: object) -> str:
    """Return the advice for something that is no index of a device array."""
    if isinstance(part, (bool, np.bool_)):
        return "True and False are masks, which have no strides; index a host copy (copy_to_host()) instead"
    if isinstance(part, (float, np.floating)):
        return "an index is a whole number, int(...)"
    if isinstance(part, str):
        return "the name of a field stands alone, d['name'][...]"
    if isinstance(part, list) and any(isinstance(each, str) for each in part):
        return "take one field at a time, d['name']"
    return "masks and lists of indices have no strides; index a host copy (copy_to_host()) instead"


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
    check_axes(new)
    return new


def overlap(a: tuple[int, int], b: tuple[int, int]) -> bool:
    """Whether two ranges of addresses have a byte in common."""
    return a[0] < b[1] and b[0] < a[1]


def check_axes(shape: Shape) -> None:
    """LayoutError if no ndarray has so many axes."""
    if len(shape) > MAX_AXES:
        raise LayoutError(f"an array has at most {MAX_AXES} axes, as in NumPy: {len(shape)} or more were given")


def check_size(shape: Shape, itemsize: int) -> int:
    """Bytes of an array of that shape; LayoutError if no address space holds it, or no ndarray has so many axes."""
    check_axes(shape)
    nbytes = math.prod(shape) * itemsize
    # An axis without elements hides how long the others are; strides have to be numbers all the same.
    reach = nbytes or math.prod(max(count, 1) for count in shape) * max(itemsize, 1)
    if reach > sys.maxsize:
        raise LayoutError(f"an array of shape {shape} with {itemsize} bytes an item does not fit into memory addresses")
    return nbytes


def memory_order(shape: Shape, strides: Shape) -> tuple[list[int], list[int]]:
    """Axes from the largest stride to the smallest, and those whose stride is negative."""
    steps, flipped = list(map(abs, strides)), []
    axes = sorted(range(len(shape)), key=steps.__getitem__, reverse=True)
    for axis, stride in enumerate(strides):
        if stride < 0 and shape[axis] > 1:
            flipped.append(axis)
    return axes, flipped


def reordered(shape: Shape, strides: Shape, axes: list[int], flipped: list[int]) -> tuple[int, Shape, Shape]:
    """Byte offset, shape and strides of the same elements with the axes so, and some of them walked the other way."""
    offset, steps = 0, list(strides)
    for axis in flipped:
        offset += (shape[axis] - 1) * steps[axis]
        steps[axis] = -steps[axis]
    return offset, tuple(map(shape.__getitem__, axes)), tuple(map(steps.__getitem__, axes))
