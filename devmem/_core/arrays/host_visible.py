"""Host arrays in memory that the driver made and a device can reach, mapped ones above all."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

import numpy.typing as npt

from ...spi.errors import LayoutError
from ..base.address import address, extent
from ..base.advice import made_by
from ..lifetime.allocation import Allocation
from ..ordering.event import StreamLike
from .ndarray import ArrayLike, DeviceNDArray
from .pinned import DriverArray

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ..device.open_device import OpenDevice
    from ..ordering.stream import Stream


class HostVisible(DriverArray):
    """An ndarray whose memory a device can reach too. Views keep their device address; results of arithmetic have none."""

    _allocation: Allocation | None
    _open_device: OpenDevice
    _device_base: int
    _stream: Stream | None

    def __array_finalize__(self, obj: object) -> None:
        self._allocation = getattr(obj, "_allocation", None)
        if self._allocation is not None:
            self._open_device = cast(HostVisible, obj)._open_device
        self._device_base = getattr(obj, "_device_base", 0)
        self._stream = getattr(obj, "_stream", None)

    def __array_wrap__(self, array: npt.NDArray[Any], context: object = None, return_scalar: bool = False) -> Any:
        # As of NumPy's own memmap: what was computed is a scalar, or an array that does not keep this memory alive.
        if array is self or not array.shape:
            return array if array is self else array[()]
        return array.view(type(self))

    @property
    def ptr(self) -> int:
        """The device's address of the first element; 0 for an empty array.

        Raises
        ------
        ClosedError
            The memory, or the device, is gone.
        LayoutError
            This array was computed from one and has ordinary memory of its own.
        """
        if not self.nbytes:
            return 0
        allocation = self._allocation
        if allocation is None or not self._reached():
            raise LayoutError(
                f"this {type(self).__name__} is the result of a computation, in ordinary memory that no device can reach: "
                f"copy it into a mapped_array() or managed_array()"
            )
        allocation.check()
        return self._device_base + (address(self) - allocation.ptr)

    def data_ptr(self) -> int:
        """`ptr`, under the name by which PyTorch's tensors are asked for it.

        Examples
        --------
        >>> m = dm.mapped_array(3)
        >>> m[1:].data_ptr() == m.ptr + m.itemsize
        True
        """
        return self.ptr

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        """The memory as the device sees it; see `DeviceNDArray.__cuda_array_interface__`.

        AttributeError where the device's arrays have none, and of the result of a computation, which no device can reach.
        """
        if not self._reached():
            raise AttributeError(f"this {type(self).__name__} has ordinary memory that no device can reach")
        return self._on_device().__cuda_array_interface__

    @property
    def device(self) -> Any:
        """The device that the memory was made for."""
        self._owner()
        return self._open_device.device

    def copy_to_host(
        self, ary: npt.NDArray[Any] | None = None, stream: StreamLike = 0, *, pinned: bool = False
    ) -> npt.NDArray[Any]:
        """Copy the elements, in stream order, into ``ary`` or a new array; as for device arrays."""
        return self._on_device().copy_to_host(ary, stream, pinned=pinned)

    def copy_to_device(self, ary: ArrayLike, stream: StreamLike = 0) -> None:
        """Copy host or device elements into this array, in stream order; as for device arrays."""
        self._on_device().copy_to_device(ary, stream)

    def split(self, section: int, stream: StreamLike = 0) -> Iterator[npt.NDArray[Any]]:
        """Views of ``section`` elements each along the first axis, the last one shorter."""
        if section < 1:
            raise LayoutError(f"a section has at least one element, not {section}")
        return (self[start : start + section] for start in range(0, len(self), section))

    def free(self) -> None:
        """Not possible: NumPy views of the memory cannot be told that it is gone. Drop the last reference instead."""
        raise LayoutError(
            "memory that the host can see is given back when its last array is dropped: "
            "NumPy views cannot be told that it is gone"
        )

    def __devmem_view__(self) -> DeviceNDArray[Any] | None:
        # The result of a computation is an ordinary array like any other, and uploaded like one.
        return self._on_device() if self._reached() else None

    def _on_device(self) -> DeviceNDArray[Any]:
        # Foreign: freeing the view must not take the memory from under the array.
        allocation = self._owner()
        read_only = not self.flags.writeable
        opened = self._open_device
        borrowed = opened.memory.foreign(allocation.ptr, allocation.nbytes, self, None, read_only)
        return DeviceNDArray(opened, borrowed, self.ptr, self.shape, self.dtype, self.strides, self._stream)

    def _reached(self) -> bool:
        """Whether the elements lie in the driver's memory."""
        allocation = self._allocation
        if allocation is None or not self.nbytes:
            return allocation is not None
        low, high = extent(self)
        return allocation.ptr <= low and high <= allocation.ptr + allocation.nbytes

    def _owner(self) -> Allocation:
        if self._allocation is None:
            raise LayoutError("this array has ordinary memory that no device can reach")
        return self._allocation


@made_by("mapped_array(shape) and mapped_array_like(x) make arrays that the device reaches in place")
class MappedNDArray(HostVisible):
    """A host array in page-locked memory that the device reads and writes in place, through an address of its own (``ptr``).

    Examples
    --------
    >>> a = dm.mapped_array(3)
    >>> a[1:].ptr - a.ptr
    8
    """
