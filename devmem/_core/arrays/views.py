"""Views: the same memory in another shape, order or type, as pure functions of array views. No byte is moved here."""

from __future__ import annotations

from typing import Any

import numpy as np

from ...spi.errors import LayoutError
from ..base.arguments import integers_of
from ..base.array_view import ArrayView
from ..base.layout import check_size, contiguous_strides

View = ArrayView[Any]


def field_of(view: View, name: str) -> View:
    """One field of every record."""
    fields = view._dtype.fields
    if fields is None or name not in fields:
        known = "it has no fields" if fields is None else f"its fields are {', '.join(map(repr, fields))}"
        raise LayoutError(f"there is no field {name!r} in dtype {view._dtype}: {known}")
    dtype, offset = fields[name][:2]
    base, inner = dtype.subdtype or (dtype, ())
    check_size(view._shape + inner, base.itemsize)
    strides = view.strides + contiguous_strides(inner, base.itemsize)
    return ArrayView(view._ptr + offset, view._shape + inner, base, strides)


def retyped(view: View, dtype: np.dtype[Any]) -> View:
    """The same bytes as elements of another type."""
    shape, strides, itemsize = view._shape, view.strides, view.itemsize
    if dtype.itemsize == itemsize:
        return ArrayView(view._ptr, shape, dtype, view._strides)
    if not shape or (view.size and strides[-1] != itemsize and shape[-1] != 1):
        raise LayoutError(
            f"a view with {dtype.itemsize} instead of {itemsize} bytes an element needs a contiguous last axis; this "
            f"array has shape {shape} and strides {strides}"
        )
    if not dtype.itemsize or shape[-1] * itemsize % dtype.itemsize:
        raise LayoutError(
            f"the last axis has {shape[-1] * itemsize} bytes, which {dtype.itemsize}-byte elements do not divide"
        )
    lengths = (*shape[:-1], shape[-1] * itemsize // dtype.itemsize)
    return ArrayView(view._ptr, lengths, dtype, (*strides[:-1], dtype.itemsize))


def transposed(view: View, axes: tuple[Any, ...]) -> View:
    """The axes in another order; reversed, if none is given."""
    given = axes[0] if len(axes) == 1 and (axes[0] is None or hasattr(axes[0], "__iter__")) else axes
    named = () if given is None else integers_of(given, "axes are integers")
    order = tuple(axis + view.ndim if axis < 0 else axis for axis in named or reversed(range(view.ndim)))
    if sorted(order) != list(range(view.ndim)):
        raise LayoutError(f"axes {named} are not the axes of an array with {view.ndim}, in some order")
    shape, strides = view._shape, view.strides
    return ArrayView(view._ptr, tuple(shape[i] for i in order), view._dtype, tuple(strides[i] for i in order))


def squeezed(view: View, axis: object) -> View:
    """Without axes of length one: all of them, or those named."""
    shape, strides = view._shape, view.strides
    given = range(view.ndim) if axis is None else axis if hasattr(axis, "__iter__") else (axis,)
    named = integers_of(given, "axes are integers")
    gone = {_axis(view, each) for each in named if axis is not None or shape[each] == 1}
    for each in gone:
        if shape[each] != 1:
            raise LayoutError(f"axis {each} has length {shape[each]}: only axes of length one can go")
    kept = [each for each in range(view.ndim) if each not in gone]
    return ArrayView(view._ptr, tuple(shape[i] for i in kept), view._dtype, tuple(strides[i] for i in kept))


def broadcast(view: View, shape: tuple[int, ...]) -> View:
    """Axes repeated (stride 0), as NumPy broadcasts in an assignment."""
    kept = without_leading_ones(view._shape, len(shape))
    missing = len(shape) - len(kept)
    lengths = (1,) * missing + kept
    steps = (0,) * missing + view.strides[len(view._shape) - len(kept) :]
    if missing < 0 or any(have not in (1, want) for have, want in zip(lengths, shape, strict=False)):
        raise LayoutError(f"cannot assign shape {view._shape} to shape {shape}: they do not broadcast")
    strides = tuple(0 if have != want else step for have, want, step in zip(lengths, shape, steps, strict=True))
    return ArrayView(view._ptr, shape, view._dtype, strides)


def without_leading_ones(shape: tuple[int, ...], ndim: int) -> tuple[int, ...]:
    """The shape with at most so many axes, where the surplus ones are in front and have length one: NumPy assigns so."""
    while len(shape) > ndim and shape[0] == 1:
        shape = shape[1:]
    return shape


def _axis(view: View, at: int) -> int:
    if not -view.ndim <= at < view.ndim:
        raise LayoutError(f"axis {at} is out of range for an array with {view.ndim} axes")
    return at % view.ndim
