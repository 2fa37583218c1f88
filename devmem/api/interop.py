"""Arrays of other libraries."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy.typing as npt

from .._core.arrays import exchange
from .._core.arrays.exchange import from_dlpack as _from_dlpack
from .._core.arrays.ndarray import DeviceArrayLike, DeviceNDArray
from .._core.base.argument_types import ShapeLike, StridesLike, SupportsDLPack
from .._core.base.arguments import flag_of
from .._core.device.device import DeviceLike

if TYPE_CHECKING:
    from .._core.interop.ipc import IpcHandle

if TYPE_CHECKING:
    import socket


def from_dlpack(x: SupportsDLPack, /, *, device: DeviceLike = None, copy: bool | None = None) -> DeviceNDArray[Any]:
    """The array of another library, by DLPack: in place where it is in device memory, which it keeps alive.

    Parameters
    ----------
    x : object with ``__dlpack__`` and ``__dlpack_device__``
        Device memory is used in place, on its own device. Host memory is copied to the current device; one that takes the host's
        addresses (`DeviceInfo.coherence`) uses it in place.
    device : Device, int or str, optional
        Where to: what is not there is copied.
    copy : bool, optional
        True always copies, False never does, None if there is no other way.

    Returns
    -------
    DeviceNDArray
        Ready for the current stream (`with stream:`), or the default one; other streams of the device wait for that one at
        their first use. Read-only if ``x`` says so. ``free()`` lets go of ``x``, and frees nothing.

    Raises
    ------
    BufferError
        It cannot be imported: the producer refuses, devmem has no such device, only a copy would do and ``copy=False``, or the
        capsule describes an impossible array.
    TypeError
        ``x`` does not speak DLPack.

    Examples
    --------
    >>> d = dm.from_dlpack(np.arange(3.0))      # host memory is copied to the device
    >>> e = dm.from_dlpack(d)                   # device memory is used in place
    >>> e[0] = 7
    >>> d.copy_to_host()
    array([7., 1., 2.])
    """
    return _from_dlpack(x, device, None if copy is None else flag_of(copy, "copy"))


def as_device_array(obj: DeviceArrayLike) -> DeviceNDArray[Any]:
    """The device's view of an object, without a copy; it keeps the object's memory alive.

    Takes device arrays and records (as they are), mapped and managed arrays, and arrays of other libraries in device memory that
    speak DLPack or the CUDA Array Interface, DLPack before the other. What of another library's work has to be waited for, the
    current stream waits for; DEVMEM_CUDA_ARRAY_INTERFACE_SYNC=0 leaves that to you where the array has no DLPack.

    Raises
    ------
    UnsupportedError
        The object has no memory that a device can use in place; `to_device` copies it.
    LayoutError
        Its CUDA Array Interface describes an impossible array.
    BufferError
        Its DLPack capsule does, or its producer refuses to export one.

    Examples
    --------
    >>> d = dm.zeros(3)
    >>> dm.as_device_array(d) is d
    True
    >>> dm.as_device_array([1, 2])
    Traceback (most recent call last):
        ...
    devmem.UnsupportedError: ...
    """
    return exchange.as_device_array(obj)


def is_device_array(obj: object) -> bool:
    """Whether `as_device_array` takes the object, as far as the object says; the memory itself is not asked for.

    Examples
    --------
    >>> dm.is_device_array(dm.zeros(3)), dm.is_device_array([0, 0])
    (True, False)
    """
    return exchange.is_device_array(obj)


def open_ipc_array(
    handle: IpcHandle,
    shape: ShapeLike | None = None,
    dtype: npt.DTypeLike | None = None,
    strides: StridesLike | None = None,
) -> DeviceNDArray[Any]:
    """Device memory of another process, in place.

    Parameters
    ----------
    handle : IpcHandle
        What ``get_ipc_handle()`` of the array returned in that process.
    shape, dtype, strides : optional
        Of the array here, which begins where the other one does; that one's own, if none of them is given. They have to fit into
        the memory.

    Returns
    -------
    DeviceNDArray
        On the device that the handle names. It is the one owner of what was opened here, with its views: the last one that is
        dropped, or ``free()``, lets go of it, after the work that uses it. The memory itself ends with the other process's array.

    Raises
    ------
    LayoutError
        The array does not fit into the memory.
    UnsupportedError
        The handle was made in this process, its device is none of this process's, or the memory is of the driver's own pool of a
        process in another network namespace.
    ClosedError
        The array was freed, or the process that made the handle has ended, or cannot be reached.
    BackendError
        The driver refuses.

    Examples
    --------
    >>> def child(handle):                      # in another process
    ...     with dm.open_ipc_array(handle) as shared:
    ...         shared[...] = 1
    """
    return exchange.open_ipc_array(handle, shape, dtype, strides)


def send_ipc_array(connection: socket.socket, array: DeviceNDArray[Any]) -> None:
    """Let the process at the other end of a Unix socket open an array's memory, and wait until it has.

    One message goes there, with the fields of a handle and, for memory of the driver's own pool, the pool's file descriptor; the
    other process takes it with `receive_ipc_array`. Unlike a pickled handle it runs no code there, and it reaches a process in
    another network namespace (container) whatever the memory is. The socket is the caller's: its timeout applies, and it stays
    usable.

    Parameters
    ----------
    connection : socket.socket
        A connected Unix socket for streams.
    array : DeviceNDArray
        Keep it until the other process has let go of its own. What devmem has enqueued on it is waited for.

    Raises
    ------
    UnsupportedError
        The memory cannot be shared, as for ``get_ipc_handle()``; it is no such socket; or the system is not Linux.
    LayoutError
        The array is empty.
    ClosedError
        The connection has ended, or its other end is another user's.
    DevmemError
        The other process could not open the memory.

    Examples
    --------
    >>> def parent(connection, d):
    ...     dm.send_ipc_array(connection, d)
    """
    exchange.send_ipc_array(connection, array)


def receive_ipc_array(connection: socket.socket) -> DeviceNDArray[Any]:
    """Device memory that the process at the other end of a Unix socket sends with `send_ipc_array`, in place.

    Parameters
    ----------
    connection : socket.socket
        A connected Unix socket for streams.

    Returns
    -------
    DeviceNDArray
        As of `open_ipc_array`.

    Raises
    ------
    LayoutError
        What came is no array that was sent, or one that does not fit into its memory.
    UnsupportedError
        It is of this process, its device is none of this process's, or it is no such socket.
    ClosedError
        The array was freed, the connection has ended, or its other end is another user's.
    BackendError
        The driver refuses.

    Examples
    --------
    >>> def child(connection):                  # in another process
    ...     with dm.receive_ipc_array(connection) as shared:
    ...         shared[...] = 1
    """
    return exchange.receive_ipc_array(connection)


__all__ = ["as_device_array", "from_dlpack", "is_device_array", "open_ipc_array", "receive_ipc_array", "send_ipc_array"]
