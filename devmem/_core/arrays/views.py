"""Views: the same memory in another shape, order or type. No byte is moved here."""

from __future__ import annotations

import operator
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from ...spi.errors import LayoutError
from ..base.arguments import dtype_of
from ..base.array_view import D
from ..base.layout import Shape, contiguous_strides, index, slice_indices
from .array_base import ArrayBase

if TYPE_CHECKING:
    from .ndarray import DeviceNDArray

_new: Any = object.__new__


class Views(ArrayBase[D]):
    """What gives another array over the same memory, which keeps it alive."""

    __slots__ = ()

    def view(self, dtype: npt.DTypeLike) -> DeviceNDArray[Any]:
        """The same bytes as elements of another type; with another size of element, the last axis must be contiguous."""
        self.allocation.check()
        kind = dtype_of(dtype)
        if kind.itemsize == self.itemsize:
            return self._view(self._ptr, self.shape, self.strides, kind)
        if not self.shape or (self.strides[-1] != self.itemsize and self.shape[-1] != 1):
            raise LayoutError(
                f"a view with {kind.itemsize} instead of {self.itemsize} bytes an element needs a contiguous last axis; this "
                f"array has shape {self.shape} and strides {self.strides}"
            )
        if not kind.itemsize or self.shape[-1] * self.itemsize % kind.itemsize:
            raise LayoutError(
                f"the last axis has {self.shape[-1] * self.itemsize} bytes, which {kind.itemsize}-byte elements do not divide"
            )
        shape = (*self.shape[:-1], self.shape[-1] * self.itemsize // kind.itemsize)
        return self._view(self._ptr, shape, (*self.strides[:-1], kind.itemsize), kind)

    def transpose(self, *axes: Any) -> DeviceNDArray[D]:
        """A view with the axes in another order; reversed, if none is given."""
        self.allocation.check()
        given = axes
        order = tuple(axes[0]) if len(axes) == 1 and hasattr(axes[0], "__iter__") else axes
        if not order or order == (None,):
            order = tuple(reversed(range(self.ndim)))
        order = tuple(axis + self.ndim if axis < 0 else axis for axis in map(operator.index, order))
        if sorted(order) != list(range(self.ndim)):
            raise LayoutError(f"axes {given} are not the axes of an array with {self.ndim}, in some order")
        return self._view(
            self._ptr, tuple(self.shape[axis] for axis in order), tuple(self.strides[axis] for axis in order)
        )

    @property
    def T(self) -> DeviceNDArray[D]:
        """The array with its axes reversed, a view."""
        return self.transpose()

    def squeeze(self, axis: Any = None, stream: Any = 0) -> DeviceNDArray[D]:
        """A view without axes of length one: all of them, or those named."""
        self.allocation.check()
        named = range(self.ndim) if axis is None else axis if hasattr(axis, "__iter__") else (axis,)
        gone = {self._axis(each) for each in named if axis is not None or self.shape[each] == 1}
        for each in gone:
            if self.shape[each] != 1:
                raise LayoutError(f"axis {each} has length {self.shape[each]}: only axes of length one can go")
        kept = [each for each in range(self.ndim) if each not in gone]
        view = self._view(self._ptr, tuple(self.shape[i] for i in kept), tuple(self.strides[i] for i in kept))
        return view.bind(stream) if stream else view

    def split(self, section: int, stream: Any = 0) -> Iterator[DeviceNDArray[D]]:
        """Views of ``section`` elements each along the first axis, the last one shorter; made as they are asked for."""
        self.allocation.check()
        length = operator.index(section)
        if length < 1:
            raise LayoutError(f"a section has at least one element, not {length}")
        count = len(self)
        source = self.bind(stream) if stream else self
        return (source._slice(slice(start, start + length)) for start in range(0, count, length))

    def bind(self, stream: Any) -> DeviceNDArray[D]:
        """The same array on a stream: its work is ordered there where no other is named. Binding makes nothing asynchronous."""
        self.allocation.check()
        view = self._view(self._ptr, self._shape, self._strides)
        view._stream = self.open_device.streams.stream_of(stream) if stream else None
        return view

    # -- below ---------------------------------------------------------------------------------------------------------

    def _view(
        self, ptr: int, shape: Shape, strides: Shape | None, dtype: np.dtype[Any] | None = None
    ) -> DeviceNDArray[Any]:
        # Not by the constructor: a subclass of the user's may have another one.
        view: DeviceNDArray[Any] = _new(type(self))
        ptr = ptr if 0 not in shape else 0
        ArrayBase.__init__(
            view, self.open_device, self.allocation, ptr, shape, dtype or self._dtype, strides, self._stream
        )
        return view

    def _slice(self, key: slice) -> DeviceNDArray[D]:
        """What `_at` does, for the commonest index: one slice."""
        self.allocation.check()
        shape, strides = self._shape, self.strides
        start, stop, step = slice_indices(key, shape[0])
        shape, outer = (len(range(start, stop, step)), *shape[1:]), strides[0]
        return self._view(self._ptr + start * outer, shape, (outer * step, *strides[1:]))

    def _at(self, key: object) -> DeviceNDArray[D]:
        self.allocation.check()
        offset, shape, strides = index(self.shape, self.strides, key)
        return self._view(self._ptr + offset, shape, strides)

    def _field(self, name: str) -> DeviceNDArray[Any]:
        self.allocation.check()
        fields = self.dtype.fields
        if fields is None or name not in fields:
            known = "it has no fields" if fields is None else f"its fields are {', '.join(map(repr, fields))}"
            raise LayoutError(f"there is no field {name!r} in dtype {self.dtype}: {known}")
        dtype, offset = fields[name][:2]
        base, inner = dtype.subdtype or (dtype, ())
        return self._view(
            self._ptr + offset,
            self.shape + inner,
            self.strides + contiguous_strides(inner, base.itemsize),
            base,
        )

    def _axis(self, axis: object) -> int:
        at = operator.index(axis)  # type: ignore[arg-type]
        if not -self.ndim <= at < self.ndim:
            raise LayoutError(f"axis {at} is out of range for an array with {self.ndim} axes")
        return at % self.ndim
