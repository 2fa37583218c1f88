"""An array view: where the elements of a device array are. The copy engine works on these alone."""

from __future__ import annotations

from typing import Any, Generic, Protocol, TypeVar

import numpy as np

from .hot_state import ArrayState
from .layout import Shape, contiguous_strides, in_memory_order, index, is_contiguous, memory_order, span

D = TypeVar("D", bound=np.generic)


class Strided(Protocol):
    """What device views and ndarrays have in common, as far as a plan for a copy needs it."""

    @property
    def shape(self) -> Shape: ...

    @property
    def strides(self) -> Shape: ...

    @property
    def itemsize(self) -> int: ...

    @property
    def nbytes(self) -> int: ...


class Shaped:
    """What follows from a shape and a dtype: `ArrayView` and `SmartArray` have it."""

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
        size = 1
        for count in self._shape:
            size *= count
        return size

    @property
    def itemsize(self) -> int:
        """Bytes of one element."""
        return self._dtype.itemsize

    @property
    def nbytes(self) -> int:
        """Bytes of all elements, without gaps between them."""
        return self.size * self._dtype.itemsize


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
    low, high = span(view._shape, view.strides, view.itemsize)
    return view._ptr + low, view._ptr + high


def part_of(view: ArrayView[D], key: object) -> ArrayView[D]:
    """The elements that an index selects."""
    offset, shape, strides = index(view._shape, view.strides, key)
    return ArrayView(view._ptr + offset, shape, view._dtype, strides)


def along_memory(view: ArrayView[D]) -> ArrayView[D]:
    """The same elements with axes from the largest stride to the smallest, none of them negative."""
    shape, strides = in_memory_order(view._shape, view.strides, *memory_order(view._shape, view.strides))
    return ArrayView(address_range(view)[0], shape, view._dtype, strides)
