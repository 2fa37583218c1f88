"""What a kernel was given to read, and not to write."""

from __future__ import annotations

from typing import Any

from .._core.arrays.ndarray import DeviceNDArray, DeviceRecord


class OnlyRead(DeviceNDArray[Any]):
    """An array on the device as a launch has it under `devmem.In`: the simulator reports a kernel that writes it.

    What compilers make is the same as for any array. On a GPU nothing stands in the way of a write, and it is lost, or, in an
    array that is kept on the device, is not.
    """

    __slots__ = ()

    readonly = True


class OnlyReadRecord(DeviceRecord):
    """The same for a record."""

    __slots__ = ()

    readonly = True


def only_read(given: Any) -> Any:
    """An array or a record on the device, to be read by a kernel; it shares the memory, and is bound to the same stream."""
    if isinstance(given, DeviceRecord):
        return OnlyReadRecord(given.__devmem_view__())
    return OnlyRead(given.allocation, given._ptr, given._shape, given._dtype, given._strides, given._stream)
