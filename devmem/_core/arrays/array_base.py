"""What every device array has: the elements' place, the allocation that they are in, and the stream that orders their work."""

from __future__ import annotations

from typing import cast

import numpy as np

from ..base.array_view import ArrayView, D
from ..base.layout import Shape
from ..device.device import Device
from ..device.open_device import OpenDevice
from ..lifetime.allocation import Allocation
from ..ordering.stream import Stream


class ArrayBase(ArrayView[D]):
    """An array view that keeps its memory alive. None of it can be set: views are new objects.

    Attributes
    ----------
    open_device : OpenDevice
        The services of the device that the array lives on.
    allocation : Allocation
        The memory, shared with every view of it.
    """

    __slots__ = ("_stream", "allocation", "open_device")

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
