"""The base of device arrays: address, allocation, stream, and views.

A view is another array over the same memory. Which elements it has `views` works out; here the view gets the allocation, which
it keeps alive, and the stream. No byte is moved.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Self, cast

import numpy as np

from ...spi.errors import LayoutError
from ..base.argument_types import ShapeLike
from ..base.arguments import integers_of, is_named
from ..base.array_view import ArrayView, D
from ..base.layout import Shape, index
from ..device.device import Device
from ..device.open_device import OpenDevice
from ..lifetime.allocation import Allocation
from ..ordering.event import StreamLike
from ..ordering.stream import Stream
from .views import field_of, squeezed, transposed

_new = object.__new__


class ArrayBase(ArrayView[D]):
    """An array view that keeps its memory alive. None of it can be set: views are new objects.

    Attributes
    ----------
    open_device : OpenDevice
        The services of the device that the array lives on.
    allocation : Allocation
        The memory, shared with every view of it.
    """

    __slots__ = ()

    open_device: OpenDevice
    allocation: Allocation
    _stream: Stream | None

    def __init__(
        self,
        open_device: OpenDevice,
        allocation: Allocation,
        ptr: int,
        shape: Shape,
        dtype: np.dtype[D],
        strides: Shape | None,
        stream: Stream | None = None,
    ) -> None:
        self.open_device = open_device
        self.allocation = allocation
        self._ptr = ptr
        self._shape = shape
        self._dtype = dtype
        self._strides = strides
        self._stream = stream

    @property
    def device(self) -> Device:
        """The device that the array lives on."""
        return cast(Device, self.open_device.device)

    @property
    def ptr(self) -> int:
        """The device's address of the first element; 0 for an empty array. ClosedError once the memory is gone."""
        self.allocation.check()
        return self._ptr

    def data_ptr(self) -> int:
        """`ptr`, under the name by which PyTorch's tensors are asked for it.

        Examples
        --------
        >>> d = dm.zeros(3)
        >>> d.data_ptr() == d.ptr
        True
        """
        return self.ptr

    @property
    def stream(self) -> Stream | None:
        """The stream that the array is bound to, or None."""
        return self._stream

    @property
    def flags(self) -> dict[str, bool]:
        """``C_CONTIGUOUS``, ``F_CONTIGUOUS`` and ``WRITEABLE``, as of an ndarray; only foreign memory may not be writeable."""
        return {
            "C_CONTIGUOUS": self.is_c_contiguous(),
            "F_CONTIGUOUS": self.is_f_contiguous(),
            "WRITEABLE": not self.allocation.read_only,
        }

    def __repr__(self) -> str:
        # Moves nothing: an array is shown by what it is, not by what it holds.
        state = ", freed" if self.allocation.freed else ", closed" if self.open_device.handle.dead is not None else ""
        return f"<{type(self).__name__} shape={self.shape} dtype={self.dtype} on {self.device}{state}>"

    def __len__(self) -> int:
        if not self._shape:
            raise TypeError("len() of an array without axes")
        return self._shape[0]

    # -- views, which share the memory ----------------------------------------------------------------------------------

    def transpose(self, *axes: ShapeLike | None) -> Self:
        """A view with the axes in another order; reversed, if none is given.

        Examples
        --------
        >>> dm.zeros((2, 3, 4)).transpose(0, 2, 1).shape
        (2, 4, 3)
        """
        self.allocation.check()
        return self._same_memory(transposed(self, axes))

    @property
    def T(self) -> Self:
        """The array with its axes reversed, a view."""
        return self.transpose()

    def squeeze(self, axis: ShapeLike | None = None, stream: StreamLike = 0) -> Self:
        """A view without axes of length one: all of them, or those named.

        Examples
        --------
        >>> dm.zeros((1, 3, 1)).squeeze().shape
        (3,)
        """
        self.allocation.check()
        view = self._same_memory(squeezed(self, axis))
        return view.bind(stream) if is_named(stream) else view

    def split(self, section: int, stream: StreamLike = 0) -> Iterator[Self]:
        """Views of ``section`` elements each along the first axis, the last one shorter; made as they are asked for.

        Examples
        --------
        >>> [part.tolist() for part in dm.to_device(np.arange(5)).split(2)]
        [[0, 1], [2, 3], [4]]
        """
        self.allocation.check()
        (length,) = integers_of((section,), "split(section): a section is a number of elements")
        if length < 1:
            raise LayoutError(f"a section has at least one element, not {length}")
        count = len(self)
        source = self.bind(stream) if is_named(stream) else self
        return (source._selected(slice(start, start + length)) for start in range(0, count, length))

    def bind(self, stream: StreamLike) -> Self:
        """The same array on a stream: its work is ordered there where no other is named. Binding makes nothing asynchronous.

        Examples
        --------
        >>> stream = dm.stream()
        >>> d = dm.zeros(3).bind(stream)
        >>> d.copy_to_device(np.ones(3))            # ordered on the stream
        >>> d.stream == stream
        True
        """
        self.allocation.check()
        view = self._same_memory(self)
        view._stream = self.open_device.streams.stream_of(stream) if is_named(stream) else None
        return view

    def _same_memory(self, view: ArrayView[Any]) -> Self:
        """An array of the same class over the same memory, with the layout of a view of it."""
        return self._view(view._ptr, view._shape, view._strides, view._dtype)

    def _view(self, ptr: int, shape: Shape, strides: Shape | None, dtype: np.dtype[Any] | None = None) -> Self:
        """An array of the same class over the same memory, at an address in it; of the same dtype, if none is given."""
        # Not by the constructor: a subclass of the user's may have another one.
        array: Self = _new(type(self))
        array.open_device = self.open_device
        array.allocation = self.allocation
        array._ptr = ptr if 0 not in shape else 0
        array._shape = shape
        array._dtype = self._dtype if dtype is None else dtype
        array._strides = strides
        array._stream = self._stream
        return array

    def _selected(self, key: object) -> Self:
        """The view that an index, or the name of a field, selects."""
        self.allocation.check()
        if isinstance(key, str):
            return self._same_memory(field_of(self, key))
        offset, shape, strides = index(self._shape, self.strides, key)
        return self._view(self._ptr + offset, shape, strides)
