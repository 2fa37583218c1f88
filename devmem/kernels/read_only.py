"""Arguments that a kernel may read and not write."""

from __future__ import annotations

from typing import Any

from .._core.arrays.ndarray import DeviceNDArray, DeviceRecord


class ReadOnlyArray(DeviceNDArray[Any]):
    """A device array given as `devmem.In`: the simulator reports a kernel that writes it.

    Compiled code is the same as for any array. On a GPU a write goes unnoticed: it is lost for a host array, and changes an
    array that is kept on the device.
    """

    __slots__ = ()

    readonly = True


class ReadOnlyRecord(DeviceRecord):
    """A device record given as `devmem.In`."""

    __slots__ = ()

    readonly = True


def only_read(given: Any) -> Any:
    """A read-only view of a device array or record, bound to the same stream."""
    if isinstance(given, DeviceRecord):
        return ReadOnlyRecord(given.__devmem_view__())
    return ReadOnlyArray(
        given.open_device, given.allocation, given._ptr, given._shape, given._dtype, given._strides, given._stream
    )
