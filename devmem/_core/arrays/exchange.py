"""Arrays of other libraries as device arrays."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from ...spi.errors import UnsupportedError
from ..base.layout import like_strides
from ..device.device import current_open_device, open_device_of
from ..interop import import_, ipc
from ..interop.dlpack import HOST_TYPES
from .creation import empty, upload
from .ndarray import DeviceNDArray, device_view

if TYPE_CHECKING:
    from ..device.open_device import OpenDevice

_ndarray = np.ndarray


def from_dlpack(obj: object, device: object, copy: bool | None) -> DeviceNDArray[Any]:
    """The memory that an object exports by DLPack, or a copy of it on the device that was asked for."""
    if isinstance(obj, _ndarray) and type(obj) is not _ndarray:
        view = device_view(obj)
        if (
            view is not None
        ):  # devmem's own mapped or managed memory: devmem knows its device and streams, DLPack does not
            return _placed(view, None if device is None else open_device_of(device), copy)
    exporter = import_.device_of_tensor(obj)
    wanted = None if device is None else open_device_of(device)
    if exporter[0] in HOST_TYPES:
        opened = current_open_device() if wanted is None else wanted
        if not opened.handle.is_host:
            return _from_host(obj, opened, copy)
        return _placed(DeviceNDArray(*import_.by_dlpack(obj, exporter, copy, opened)), wanted, copy)
    found = DeviceNDArray(*import_.by_dlpack(obj, exporter, copy))
    return found if wanted is None and not copy else _placed(found, wanted, copy)


def _placed(found: DeviceNDArray[Any], wanted: OpenDevice | None, copy: bool | None) -> DeviceNDArray[Any]:
    """The array, or a copy where ``copy`` is true or another device is wanted."""
    if wanted is not None and found.open_device is not wanted:
        if copy is False:
            raise BufferError(f"memory of {found.device} gets to {wanted.device} by a copy only, and copy=False")
        strides = like_strides(found.shape, found.strides, found.itemsize)
        result = empty(wanted, found.shape, found.dtype, strides, found.nbytes, 0)
        result.copy_to_device(found)
        return result
    return found.copy() if copy else found


def as_device_array(obj: object) -> DeviceNDArray[Any]:
    """A device array of the object's memory, without a copy."""
    view = device_view(obj)
    if view is None and _is_readable(obj):
        view = DeviceNDArray(*import_.by_dlpack(obj, import_.device_of_tensor(obj)))
    if view is None:
        raise UnsupportedError(
            f"a {type(obj).__name__} has no memory that the device can use in place: copy it with devmem.to_device()"
        )
    view.allocation.check()
    return view


def is_device_array(obj: object) -> bool:
    """Whether an object says that it has memory that the device can use in place."""
    if isinstance(obj, DeviceNDArray):
        return True
    if hasattr(type(obj), "__devmem_view__"):
        return device_view(obj) is not None
    return import_.has_device_memory(obj) or _is_readable(obj)


def open_ipc_array(handle: ipc.IpcHandle, shape: object, dtype: object, strides: object) -> DeviceNDArray[Any]:
    """A device array in memory of another process."""
    return DeviceNDArray(*ipc.opened(handle, shape, dtype, strides))


def _is_readable(obj: object) -> bool:
    """Whether it has host memory, and the device is the host."""
    return (
        current_open_device().handle.is_host
        and hasattr(type(obj), "__dlpack_device__")
        and import_.device_of_tensor(obj)[0] in HOST_TYPES
    )


def _from_host(obj: object, opened: OpenDevice, copy: bool | None) -> DeviceNDArray[Any]:
    if copy is False:
        raise BufferError(f"host memory gets to {opened.device} by a copy only, and copy=False")
    return upload(opened, import_.host_tensor(obj), 0, True)
