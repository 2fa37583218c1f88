"""Where the elements of a device array are."""

from __future__ import annotations

from typing import TYPE_CHECKING, Generic, TypeVar

import numpy as np

from ..base.layout import Shape, contiguous_strides, is_contiguous

if TYPE_CHECKING:
    from ..device.device import Device
    from ..device.open_device import Context
    from ..lifetime.allocation import Allocation
    from ..ordering.stream import Stream

D = TypeVar("D", bound=np.generic)


class Region(Generic[D]):
    """Elements of one type at an address, so many along each axis and so many bytes apart, and the memory that they are in.

    None of it can be set: views are new objects.
    """

    __slots__ = ("__weakref__", "_dtype", "_ptr", "_shape", "_stream", "_strides", "allocation")

    def __init__(
        self,
        allocation: Allocation,
        ptr: int,
        shape: Shape,
        dtype: np.dtype[D],
        strides: Shape | None,
        stream: Stream | None = None,
    ) -> None:
        self.allocation = allocation
        self._ptr = ptr
        self._shape = shape
        self._dtype = dtype
        #: None stands for those of a C-contiguous array, which are worked out when somebody asks.
        self._strides = strides
        self._stream = stream

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

    @property
    def context(self) -> Context:
        """The open device that the array lives on."""
        return self.allocation.context

    @property
    def device(self) -> Device:
        """The device that the array lives on."""
        return self.allocation.context.device

    @property
    def ptr(self) -> int:
        """The device's address of the first element; 0 for an empty array. ClosedError once the memory is gone."""
        allocation = self.allocation
        if allocation.freed or allocation.context.dead is not None:
            allocation.refuse()
        return self._ptr

    @property
    def stream(self) -> Stream | None:
        """The stream that the array is bound to, or None."""
        return self._stream

    @property
    def ndim(self) -> int:
        """Number of axes."""
        return len(self.shape)

    @property
    def size(self) -> int:
        """Number of elements."""
        size = 1
        for count in self.shape:
            size *= count
        return size

    @property
    def itemsize(self) -> int:
        """Bytes of one element."""
        return self.dtype.itemsize

    @property
    def nbytes(self) -> int:
        """Bytes of all elements, without gaps between them."""
        return self.size * self.dtype.itemsize

    @property
    def flags(self) -> dict[str, bool]:
        """``C_CONTIGUOUS``, ``F_CONTIGUOUS`` and ``WRITEABLE``, as of an ndarray; only memory of others may not be writeable."""
        return {
            "C_CONTIGUOUS": self.is_c_contiguous(),
            "F_CONTIGUOUS": self.is_f_contiguous(),
            "WRITEABLE": not self.allocation.read_only,
        }

    def is_c_contiguous(self) -> bool:
        """Whether the elements lie one behind the other, the last axis fastest."""
        return is_contiguous(self.shape, self.strides, self.dtype.itemsize)

    def is_f_contiguous(self) -> bool:
        """Whether the elements lie one behind the other, the first axis fastest."""
        return is_contiguous(self.shape, self.strides, self.dtype.itemsize, "F")

    def __repr__(self) -> str:
        # Moves nothing: an array is shown by what it is, not by what it holds.
        state = ", freed" if self.allocation.freed else ", closed" if self.allocation.context.dead is not None else ""
        return f"<{type(self).__name__} shape={self.shape} dtype={self.dtype} on {self.device}{state}>"

    def __len__(self) -> int:
        if not self.shape:
            raise TypeError("len() of an array without axes")
        return self.shape[0]
