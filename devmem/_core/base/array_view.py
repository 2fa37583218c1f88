"""An array view: where the elements of a device array are. The copy engine works on these alone."""

from __future__ import annotations

import math
from typing import Any, Generic, Protocol, TypeVar

import numpy as np
import numpy.typing as npt

from .hot_state import ArrayState
from .layout import Shape, contiguous_strides, index, is_contiguous, memory_order, reordered, span

D = TypeVar("D", bound=np.generic)


class Strided(Protocol):
    """The attributes of device views and of ndarrays that a plan for a copy uses."""

    @property
    def shape(self) -> Shape: ...

    @property
    def strides(self) -> Shape: ...

    @property
    def itemsize(self) -> int: ...

    @property
    def nbytes(self) -> int: ...


class Shaped:
    """Properties that follow from a shape and a dtype: the base of `ArrayView` and `SmartArray`."""

    __slots__ = ()

    _shape: Shape
    _dtype: np.dtype[Any]

    @property
    def ndim(self) -> int:
        """Number of axes."""
        return len(self._shape)

    @property
    def size(self) -> int:
        """Number of elements."""
        return math.prod(self._shape)

    @property
    def itemsize(self) -> int:
        """Bytes of one element."""
        return self._dtype.itemsize

    @property
    def nbytes(self) -> int:
        """Bytes of all elements, without gaps between them."""
        return math.prod(self._shape) * self._dtype.itemsize


class ArrayView(Shaped, ArrayState, Generic[D]):
    """Elements of one type at a device address: so many along each axis, so many bytes apart.

    A view does not own its memory. None of it can be set: other views are new objects.
    """

    __slots__ = ("__weakref__",)

    _dtype: np.dtype[D]

    def __init__(self, ptr: int, shape: Shape, dtype: np.dtype[D], strides: Shape | None = None) -> None:
        self._ptr = ptr
        self._shape = shape
        self._dtype = dtype
        #: None stands for those of a C-contiguous array, which are worked out when they are asked for.
        self._strides = strides

    @property
    def shape(self) -> Shape:
        """Lengths of the axes. It cannot be set: `reshape` gives an array of another shape."""
        return self._shape

    @property
    def strides(self) -> Shape:
        """Bytes from one element to the next, along each axis."""
        strides = self._strides
        return contiguous_strides(self._shape, self._dtype.itemsize) if strides is None else strides

    @property
    def dtype(self) -> np.dtype[D]:
        """Type of the elements. It cannot be set: `view` gives an array of another type."""
        return self._dtype

    def is_c_contiguous(self) -> bool:
        """Whether the elements lie one behind the other, the last axis fastest.

        Examples
        --------
        >>> d = dm.zeros((2, 3))
        >>> d.is_c_contiguous(), d.T.is_c_contiguous()
        (True, False)
        """
        return self._strides is None or is_contiguous(self._shape, self._strides, self._dtype.itemsize)

    def is_f_contiguous(self) -> bool:
        """Whether the elements lie one behind the other, the first axis fastest.

        Examples
        --------
        >>> d = dm.zeros((2, 3))
        >>> d.is_f_contiguous(), d.T.is_f_contiguous()
        (False, True)
        """
        return is_contiguous(self._shape, self.strides, self._dtype.itemsize, "F")


def address_range(view: ArrayView[Any]) -> tuple[int, int]:
    """Addresses of the lowest byte of a view and of the byte behind its highest."""
    low, high = span(view._shape, view.strides, view._dtype.itemsize)
    return view._ptr + low, view._ptr + high


def part_of(view: ArrayView[D], key: object) -> ArrayView[D]:
    """The elements that an index selects."""
    offset, shape, strides = index(view._shape, view.strides, key)
    return ArrayView(view._ptr + offset, shape, view._dtype, strides)


def along_memory(device: ArrayView[D], host: npt.NDArray[D]) -> tuple[ArrayView[D], npt.NDArray[D]]:
    """Both sides of a copy with their axes as the device's lie in memory: from its largest stride down, none negative.

    The same elements meet. What gathers, fetches or cuts into blocks need not look for an order any more. Where the device's
    side was contiguous in C's or Fortran's order, its strides are None.
    """
    shape, strides, itemsize = device._shape, device._strides, device._dtype.itemsize
    if strides is None:
        return device, host
    if is_contiguous(shape, strides, itemsize):
        return ArrayView(device._ptr, shape, device._dtype), host
    if is_contiguous(shape, strides, itemsize, "F"):
        return ArrayView(device._ptr, shape[::-1], device._dtype), host.transpose()
    axes, flipped = memory_order(shape, strides)
    if not flipped and axes == sorted(axes):
        return device, host
    for axis in flipped:
        host = host[(slice(None),) * axis + (slice(None, None, -1),)]
    return _reordered(device, axes, flipped), host.transpose(axes)


def both_along_memory(first: ArrayView[D], second: ArrayView[D]) -> tuple[ArrayView[D], ArrayView[D]]:
    """Two device views with their axes as those of the first lie in memory."""
    axes, flipped = memory_order(first._shape, first.strides)
    return _reordered(first, axes, flipped), _reordered(second, axes, flipped)


def _reordered(view: ArrayView[D], axes: list[int], flipped: list[int]) -> ArrayView[D]:
    offset, shape, strides = reordered(view._shape, view.strides, axes, flipped)
    return ArrayView(view._ptr + offset, shape, view._dtype, strides)
