"""Arrays of other libraries as device arrays."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from ..._native import core
from ...spi.errors import UnsupportedError
from ..base.layout import check_size, like_strides
from ..device.device import current_open_device, open_device_of
from ..interop import foreign_arrays
from ..interop.dlpack import HOST_TYPES, NUMPY_IS_VERSIONED, VERSION
from ..interop.dlpack_types import NAMED_TYPES, dtype_of
from ..interop.foreign_arrays import is_known
from ..interop.host_objects import check_no_mask, has_mask
from ..lifetime.allocation import ForeignAllocation
from .creation import empty, in_place, upload
from .ndarray import DeviceNDArray, device_view

if TYPE_CHECKING:
    from ..device.open_device import OpenDevice
    from ..interop.ipc import IpcHandle

_ndarray = np.ndarray


def from_dlpack(obj: object, device: object, copy: bool | None) -> DeviceNDArray[Any]:
    """The memory that an object exports by DLPack, or a copy of it on the device that was asked for."""
    if core is not None and device is None and copy is None:
        adopted: DeviceNDArray[Any] | None = core.adopt(obj)
        if adopted is not None:
            return adopted
    if isinstance(obj, _ndarray) and type(obj) is not _ndarray:
        check_no_mask(obj)
        view = device_view(obj)
        # Devmem's own mapped or managed memory: devmem knows its device and streams, DLPack does not.
        if view is not None:
            return _placed(view, None if device is None else open_device_of(device), copy)
    exporter = foreign_arrays.device_of_tensor(obj, "copy it with devmem.to_device()")
    wanted = None if device is None else open_device_of(device)
    if exporter[0] in HOST_TYPES:
        opened = current_open_device() if wanted is None else wanted
        if not opened.handle.is_host:
            return _from_host(obj, opened, copy)
        return _placed(DeviceNDArray(*foreign_arrays.by_dlpack(obj, exporter, copy, opened)), wanted, copy)
    found = DeviceNDArray(*foreign_arrays.by_dlpack(obj, exporter, copy))
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
        view = DeviceNDArray(*foreign_arrays.by_dlpack(obj, foreign_arrays.device_of_tensor(obj)))
    if view is None:
        check_no_mask(obj)
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
    return foreign_arrays.has_device_memory(obj) or _is_readable(obj)


def open_ipc_array(handle: IpcHandle, shape: object, dtype: object, strides: object) -> DeviceNDArray[Any]:
    """A device array in memory of another process."""
    from ..interop import ipc  # on first use, as few programs share memory

    return DeviceNDArray(*ipc.opened(handle, shape, dtype, strides))


def send_ipc_array(connection: Any, array: object) -> None:
    """Pass a device array to another process over a Unix socket."""
    from ..interop import passing  # late: sockets are for programs that share

    if not isinstance(array, DeviceNDArray):
        raise TypeError(f"a device array is sent, not a {type(array).__name__}")
    passing.send(connection, array, array.allocation)


def receive_ipc_array(connection: Any) -> DeviceNDArray[Any]:
    """A device array that another process passes over a Unix socket, in its memory."""
    from ..interop import passing

    return DeviceNDArray(*passing.receive(connection))


def _is_readable(obj: object) -> bool:
    """Whether it has host memory, and the device is the host."""
    return (
        current_open_device().handle.is_host
        and foreign_arrays.is_tensor(obj)
        and not has_mask(obj)
        and foreign_arrays.device_of_tensor(obj)[0] in HOST_TYPES
    )


def _from_host(obj: object, opened: OpenDevice, copy: bool | None) -> DeviceNDArray[Any]:
    if copy is False and not opened.handle.info.coherence:
        raise BufferError(f"host memory gets to {opened.device} by a copy only, and copy=False")
    host = foreign_arrays.host_tensor(obj)
    if not copy and (lent := in_place(opened, host, None)) is not None:
        return lent
    if copy is False and host.nbytes:
        raise BufferError(
            f"{opened.device} does not use the memory as it is, and copy=False: elements have to be aligned"
        )
    return upload(opened, host, 0, True)


# -- DLPack's table of C functions, which the compiled core fills; what it asks -------------------------------------------


class _Tensor:
    """An exporter of one DLPack capsule that was made already."""

    def __init__(self, capsule: object, device: tuple[int, int]) -> None:
        self.capsule, self.device = capsule, device

    def __dlpack_device__(self) -> tuple[int, int]:
        return self.device

    def __dlpack__(self, **_: object) -> object:
        return self.capsule


def _table_export(array: DeviceNDArray[Any]) -> object:
    """A versioned capsule of an array, ready on the stream that `_table_stream` gives."""
    if not isinstance(array, DeviceNDArray):
        raise TypeError(f"this is the table of devmem.DeviceNDArray, which a {type(array).__name__} is not")
    _, number = foreign_arrays.current_number(array.open_device)
    return array.__dlpack__(stream=number, max_version=VERSION)


def _table_import(capsule: object, kind: int, number: int) -> DeviceNDArray[Any]:
    device = kind, number
    return DeviceNDArray(*foreign_arrays.by_dlpack(_Tensor(capsule, device), device))


def _table_allocate(
    kind: int, number: int, shape: tuple[int, ...], code: int, bits: int, lanes: int
) -> DeviceNDArray[Any]:
    opened, dtype = foreign_arrays.open_device_of_type(kind, number), dtype_of(code, bits, lanes)
    return empty(opened, shape, dtype, None, check_size(shape, dtype.itemsize), 0)


def _table_stream(kind: int, number: int) -> int:
    """The current stream, in its vendor's numbers; 0 where it has none."""
    return foreign_arrays.current_number(foreign_arrays.open_device_of_type(kind, number))[1] or 0


if core is not None:
    _exchange_table = core.exchange(
        ForeignAllocation, NAMED_TYPES, is_known, _table_export, _table_import, _table_allocate, _table_stream
    )
    if NUMPY_IS_VERSIONED:  # the table's tensors are, also those of arrays that Python describes
        DeviceNDArray.__dlpack_c_exchange_api__ = _exchange_table
