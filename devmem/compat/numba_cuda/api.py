"""The functions of numba.cuda's host side: devmem's, with numba.cuda's arguments, exceptions and rules for streams."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np

import devmem

from ...spi.errors import DevmemError
from .array_creation import call_ready, creation_error
from .cudadrv import devicearray, devices, driver
from .cudadrv.arrays import DeviceNDArray
from .cudadrv.device import Device
from .cudadrv.devicearray import auto_device, borrow
from .cudadrv.error import translated
from .cudadrv.layouts import shape_strides_dtype
from .cudadrv.old_signatures import MISSING, old_keyword, refuse_unknown, with_signature
from .cudadrv.state import context_of, current_device, prepare, ready
from .cudadrv.state import ready_device as _native
from .cudadrv.streams import Event, Stream, event_elapsed_time, native_stream
from .cudadrv.switches import switch
from .host_memory import (
    managed_array,
    mapped,
    mapped_array,
    mapped_array_like,
    open_ipc_array,
    pinned,
    pinned_array,
    pinned_array_like,
)

__all__ = [
    "as_cuda_array",
    "close",
    "current_context",
    "default_stream",
    "defer_cleanup",
    "detect",
    "device_array",
    "device_array_like",
    "devicearray",
    "devices",
    "driver",
    "event",
    "event_elapsed_time",
    "external_stream",
    "from_cuda_array_interface",
    "get_current_device",
    "gpus",
    "is_bfloat16_supported",
    "is_cuda_array",
    "is_float16_supported",
    "is_fp8_supported",
    "legacy_default_stream",
    "list_devices",
    "managed_array",
    "mapped",
    "mapped_array",
    "mapped_array_like",
    "open_ipc_array",
    "per_thread_default_stream",
    "pinned",
    "pinned_array",
    "pinned_array_like",
    "profile_start",
    "profile_stop",
    "profiling",
    "require_context",
    "select_device",
    "stream",
    "synchronize",
    "to_device",
]

require_context = devices.require_context
current_context = devices.get_context
gpus = devices.gpus
profiling, profile_start, profile_stop = driver.profiling, driver.profile_start, driver.profile_stop

_ndarray = np.ndarray
_upload, _device_array, _event = devmem.to_device, devmem.device_array, devmem.event


# -- device arrays -----------------------------------------------------------------------------------------------------


@with_signature(lambda obj, stream=0, copy=True, to=None: None)
def to_device(obj: Any = MISSING, stream: Any = 0, copy: bool = True, to: Any = None, **old: Any) -> Any:
    """Copy an array, a list, a scalar or a record to the device; device memory is returned as it is.

    Parameters
    ----------
    obj : array_like
        A host array has to be contiguous, apart from repeated axes.
    stream : Stream, optional
        Orders the copy, which may still run on return. The array is bound to it.
    copy : bool
        False: nothing is copied; without ``to`` the new array is uninitialised.
    to : DeviceNDArray, optional
        Copy into this array, and return it.

    Raises
    ------
    ValueError
        The array is not contiguous; `devmem.to_device` takes any layout.
    TypeError
        The stream argument is not a stream.
    CudaAPIError
        The driver refused. If memory ran out, the error is also a MemoryError.
    """
    if old:
        obj = old_keyword(old, "array", "obj", "to_device")
        refuse_unknown(old, "to_device")
    try:
        if type(obj) is _ndarray and to is None and copy and obj.flags.forc and obj.size:
            found = current_device().opened()
            if found not in ready:
                prepare(found)
            array = (
                _upload(obj, stream if type(stream) is Stream else native_stream(stream)) if stream else _upload(obj)
            )
            array.__class__ = DeviceNDArray
            return array
    except DevmemError as error:
        raise translated(error) from error
    if obj is MISSING:
        raise TypeError("to_device() missing 1 required positional argument: 'obj'")
    if to is None:
        return auto_device(obj, stream=stream, copy=copy, user_explicit=True)[0]
    if copy:
        to.copy_to_device(obj, stream=stream)
    return to


def device_array(shape: Any, dtype: Any = np.float64, strides: Any = None, order: str = "C", stream: Any = 0) -> Any:
    """Allocate an uninitialised device array, bound to ``stream`` if one is given.

    Raises
    ------
    TypeError
        The shape is not made of integers.
    OverflowError
        Its only length is negative.
    ValueError
        The order or the strides are invalid, or a length is negative.
    """
    if strides is not None or (type(shape) is not int and type(shape) is not tuple):
        shape, strides, dtype = shape_strides_dtype(shape, strides, dtype, order)
    try:
        found = current_device().opened()
        if found not in ready:
            prepare(found)
        if stream and type(stream) is not Stream:
            stream = native_stream(stream)
        array: Any = _device_array(shape, dtype, strides, order, stream or 0)
    except (TypeError, DevmemError) as error:
        raise creation_error(error, shape, strides, dtype, order) from error
    array.__class__ = DeviceNDArray
    return array


def device_array_like(ary: Any, stream: Any = 0) -> Any:
    """Allocate an uninitialised device array with the shape, dtype and order of axes of an array, without its gaps."""
    ary.flags, ary.strides  # noqa: B018  (AttributeError for other objects)
    array = call_ready(lambda: devmem.device_array_like(ary, native_stream(stream)))
    array.__class__ = DeviceNDArray
    return array


def is_cuda_array(obj: Any) -> bool:
    """Whether an object declares device memory; the declaration is not checked."""
    return hasattr(obj, "__cuda_array_interface__") or isinstance(obj, devmem.DeviceNDArray)


def as_cuda_array(obj: Any, sync: bool = True) -> Any:
    """A device array over an object's device memory; it keeps the object alive.

    ``sync``: wait for the work on the stream that the object names.

    Raises
    ------
    TypeError
        The object has no device memory.
    """
    if isinstance(obj, devmem.DeviceNDArray):
        return devicearray.as_numba_array(obj)
    interface = getattr(obj, "__cuda_array_interface__", None)
    if interface is not None:
        return from_cuda_array_interface(interface, owner=obj, sync=sync)
    if hasattr(obj, "__dlpack__") and not isinstance(obj, _ndarray) and devmem.is_device_array(obj):
        return borrow(obj)
    raise TypeError(f"a {type(obj).__name__} doesn't implement the cuda array interface.")


def from_cuda_array_interface(desc: Any, owner: Any = None, sync: bool = True) -> Any:
    """A device array over the memory that a CUDA Array Interface describes; ``owner`` is kept alive.

    The array is bound to the stream that the interface names; with ``sync`` the host waits for that stream.

    Raises
    ------
    NotImplementedError
        It has a mask.
    TypeError
        It has no version.
    """
    if not isinstance(desc.get("version"), int):
        raise TypeError(f"a CUDA Array Interface has a version, not {desc.get('version')!r}")
    if desc.get("mask") is not None:
        raise NotImplementedError("Masked arrays are not supported")
    number = desc.get("stream")
    # numba.cuda itself writes 0 for its default stream, which the interface does not allow.
    array_interface = {**desc, "stream": 1} if number == 0 else desc
    array = borrow(_InterfaceHolder(array_interface, owner))
    if number is not None and desc["version"] >= 3:
        array.stream = external_stream(number or 1)
        if sync and switch("CUDA_ARRAY_INTERFACE_SYNC", True):
            array.stream.synchronize()
    return array


class _InterfaceHolder:
    """An object with a given interface, which keeps the owner of the memory alive."""

    def __init__(self, desc: Any, owner: Any) -> None:
        self.__cuda_array_interface__ = desc
        self.owner = owner


# -- streams and events ------------------------------------------------------------------------------------------------


def stream() -> Stream:
    """Make a stream, which is synchronised with the legacy default stream in both directions."""
    return context_of(_ready_device()).create_stream()  # type: ignore[no-any-return]


def default_stream() -> Stream:
    """The stream of work without a given stream. A copy that is given this object is asynchronous."""
    return context_of(_ready_device()).get_default_stream()  # type: ignore[no-any-return]


def legacy_default_stream() -> Stream:
    """The legacy default stream."""
    return context_of(_ready_device()).get_legacy_default_stream()  # type: ignore[no-any-return]


def per_thread_default_stream() -> Stream:
    """The calling thread's own default stream."""
    return context_of(_ready_device()).get_per_thread_default_stream()  # type: ignore[no-any-return]


def external_stream(ptr: int) -> Stream:
    """Another library's stream, by its address; TypeError if that is not an int."""
    return context_of(_ready_device()).create_external_stream(ptr)  # type: ignore[no-any-return]


def event(timing: bool = True) -> Any:
    """Make an event; without timing it is cheaper."""
    try:
        made: Any = _event(timing)
    except DevmemError as error:
        raise translated(error) from error
    made.__class__ = Event
    return made


def synchronize() -> None:
    """Wait until all work on the current device is done."""
    try:
        current_device().synchronize()
    except DevmemError as error:
        raise translated(error) from error


# -- devices -----------------------------------------------------------------------------------------------------------


def select_device(device_id: Any) -> Device:
    """Make a device current in this thread; IndexError if there is no such device."""
    return current_context(device_id).device


def get_current_device() -> Device:
    """The current device of this thread."""
    return current_context().device


def list_devices() -> Any:
    """All devices."""
    return gpus


def close() -> None:
    """Close all contexts in the main thread; in another thread, only reset its current device."""
    devices.reset()


def detect() -> bool:
    """Print the devices; return whether there is one."""
    found = list(gpus)
    lines = [f"Found {len(found)} CUDA devices"]
    for each in found:
        lines.append(f"id {each.id}    {each.name:>20} {'[SUPPORTED]':>40}")
        facts = {
            "Compute Capability": "{}.{}".format(*each.compute_capability) + " (simulated)" * each.simulated,
            "PCI Device ID": each.PCI_DEVICE_ID,
            "PCI Bus ID": each.PCI_BUS_ID,
            "UUID": each.uuid,
            "Watchdog": "Enabled" if each.KERNEL_EXEC_TIMEOUT else "Disabled",
            "FP32/FP64 Performance Ratio": each.SINGLE_TO_DOUBLE_PRECISION_PERF_RATIO,
        }
        lines += [f"{name:>40}: {value}" for name, value in facts.items()]
    lines += ["Summary:", f"\t{len(found)}/{len(found)} devices are supported", ""]
    sys.stdout.write("\n".join(lines))
    return bool(found)


def is_float16_supported() -> bool:
    """True: all supported compilers have 16-bit floats."""
    return True


def is_bfloat16_supported() -> bool:
    """Whether the current device supports bfloat16."""
    return get_current_device().supports_bfloat16


def is_fp8_supported() -> bool:
    """Whether the current device supports 8-bit floats."""
    return get_current_device().supports_fp8


@contextmanager
def defer_cleanup() -> Iterator[None]:
    """A ``with`` block in which dropped memory is not freed; blocks nest."""
    with current_context().defer_cleanup():
        yield


# -- private -----------------------------------------------------------------------------------------------------------


def _ready_device() -> Any:
    """The current open device, prepared; raises numba.cuda's errors."""
    try:
        return _native()
    except DevmemError as error:
        raise translated(error) from error
