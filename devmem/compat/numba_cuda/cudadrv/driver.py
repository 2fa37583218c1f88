"""numba.cuda's driver module: the driver object, the classes of its handles, and copies of bytes between addresses."""

from __future__ import annotations

import ctypes
import functools
import importlib
import logging
import os
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np

import devmem

from ....spi.errors import DevmemError
from ....spi.types import CopyKind
from . import nvidia_driver, state
from .contexts import MIN_REQUIRED_CC, Context
from .device import Device
from .devices import get_context, gpus, reset
from .error import CudaAPIError, CudaDriverError, CudaSupportError, DeadMemoryError, LinkerError, translated
from .ipc import SUPPORTS_IPC, GetIpcHandleMixin, IpcHandle
from .layouts import byte_bounds
from .memory_managers import (
    BaseCUDAMemoryManager,
    HostOnlyCUDAMemoryManager,
    MemoryInfo,
    NumbaCUDAMemoryManager,
    set_memory_manager,
)
from .pointers import (
    AutoFreePointer,
    ManagedMemory,
    ManagedOwnedPointer,
    MappedMemory,
    MappedOwnedPointer,
    MemoryPointer,
    OwnedPointer,
    PinnedMemory,
    fill,
)
from .streams import Event, Stream, event_elapsed_time, native_stream

__all__ = [
    "MIN_REQUIRED_CC",
    "SUPPORTS_IPC",
    "AutoFreePointer",
    "BaseCUDAMemoryManager",
    "Context",
    "CudaAPIError",
    "CudaDriverError",
    "CudaSupportError",
    "DeadMemoryError",
    "Device",
    "Driver",
    "Event",
    "GetIpcHandleMixin",
    "HostOnlyCUDAMemoryManager",
    "IpcHandle",
    "LinkerError",
    "ManagedMemory",
    "ManagedOwnedPointer",
    "MappedMemory",
    "MappedOwnedPointer",
    "MemoryInfo",
    "MemoryPointer",
    "NumbaCUDAMemoryManager",
    "OwnedPointer",
    "PinnedMemory",
    "Stream",
    "device_ctypes_pointer",
    "device_extents",
    "device_memory_depends",
    "device_memory_size",
    "device_memset",
    "device_pointer",
    "device_to_device",
    "device_to_host",
    "driver",
    "event_elapsed_time",
    "get_version",
    "host_memory_extents",
    "host_memory_size",
    "host_pointer",
    "host_to_device",
    "is_device_memory",
    "memory_size_from_info",
    "profile_start",
    "profile_stop",
    "profiling",
    "require_device_memory",
    "set_memory_manager",
]

CU_STREAM_DEFAULT = 0
#: CUDA_ERROR_PROFILER_DISABLED and CUDA_ERROR_NOT_SUPPORTED: no profiler is attached.
NO_PROFILER = (5, 801)
#: DLPack's device types of memory without a GPU: kDLCPU and kDLExtDev.
HOST_DEVICE_TYPES = (1, 12)


class Driver:
    """The driver. If it is NVIDIA's, its functions are attributes, which raise CudaAPIError if they fail."""

    @property
    def is_available(self) -> bool:
        """Whether there is a device to use."""
        return self.initialization_error is None

    @property
    def initialization_error(self) -> str | None:
        """Why there is no device to use, or None."""
        try:
            native = state.ready_device()
        except (CudaSupportError, DevmemError) as error:
            return str(error)
        stand_in = native.handle.info.exchange.device_type in HOST_DEVICE_TYPES
        if stand_in and not os.environ.get("DEVMEM_BACKEND") and not _other_backends(native.device):
            # The caller has an alternative for machines without a GPU, and the host backend was not chosen.
            return "no GPU is usable, and DEVMEM_BACKEND does not choose the host backend in place of one"
        return None

    def ensure_initialized(self) -> None:
        """Raise CudaSupportError if there is no device to use."""
        if (why := self.initialization_error) is not None:
            raise CudaSupportError(f"Error at driver init: {why}")

    def get_device(self, devnum: int = 0) -> Device:
        """A device by its number."""
        found: Device = gpus[devnum]._device
        return found

    def get_device_count(self) -> int:
        """Return the number of devices."""
        return len(gpus)

    def list_devices(self) -> list[Device]:
        """The devices that have a context."""
        return [context.device for context in state.contexts.values()]

    def reset(self) -> None:
        """End all contexts."""
        reset()

    def get_version(self) -> tuple[int, int]:
        """(major, minor) of the CUDA version that the driver supports; (0, 0) if it is not a CUDA driver."""
        number = int(devmem.current_device().info.facts.get("driver_version", 0))
        return number // 1000, number % 1000 // 10

    def pop_active_context(self) -> int | None:
        """Pop the context that is current in NVIDIA's driver for this thread; return its address, or None."""
        device = devmem.current_device()
        if nvidia_driver.binding_of(device) is None or not nvidia_driver.current_handle(device):
            return None
        return int(nvidia_driver.call(device, "cuCtxPopCurrent"))

    def get_active_context(self) -> Any:
        """The current context, in ``with``."""
        return _ActiveContext()

    def __getattr__(self, name: str) -> Any:
        if not name.startswith("cu"):
            raise AttributeError(name)

        def function(*arguments: Any) -> Any:
            return nvidia_driver.call(devmem.current_device(), name, *arguments)

        function.__name__ = name
        return function


class _ActiveContext:
    """The context that is current in the driver: ``context_handle`` and ``devnum``, None where none is."""

    context_handle: int | None = None
    devnum: int | None = None

    def __enter__(self) -> _ActiveContext:
        context = get_context()
        native = context.device.native
        has_contexts = nvidia_driver.binding_of(native) is not None
        current = nvidia_driver.current_handle(native) if has_contexts else context.handle
        if current:
            self.context_handle, self.devnum = current, context.device.id
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def __bool__(self) -> bool:
        return self.context_handle is not None


driver = Driver()


#: What modules of numba-cuda import, to link code and load drivers themselves: that is refused when they do.
NVIDIA_ONLY = frozenset({"_Linker", "_to_core_stream", "load_driver", "locate_driver_and_loader"})
#: What Numba's module of the CUDA runtime names its errors by; without an entry they are "unknown".
ERROR_MAP: dict[int, str] = {}


def make_logger() -> logging.Logger:
    """The logger of Numba's own modules for drivers, which import it from here."""
    return logging.getLogger("numba.cuda.cudadrv.driver")


def __getattr__(name: str) -> Any:
    """``binding``, NVIDIA's own binding, imported at first use; and what only numba-cuda's own driver can do."""
    if name == "binding":
        return importlib.import_module(nvidia_driver.BINDING)
    if name in NVIDIA_ONLY:
        return functools.partial(_refuse, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


# -- copies of bytes ---------------------------------------------------------------------------------------------------


def host_to_device(dst: Any, src: Any, size: int, stream: Any = 0) -> None:
    """Copy ``size`` bytes of host memory to device memory; with a stream the copy may still run on return."""
    _copy(device_pointer(dst), host_pointer(src, readonly=True), size, CopyKind.H2D, stream, src, dst)


def device_to_host(dst: Any, src: Any, size: int, stream: Any = 0) -> None:
    """Copy ``size`` bytes of device memory to host memory; with a stream the copy may still run on return."""
    _copy(host_pointer(dst), device_pointer(src), size, CopyKind.D2H, stream, src, dst)


def device_to_device(dst: Any, src: Any, size: int, stream: Any = 0) -> None:
    """Copy ``size`` bytes within device memory; with a stream the copy may still run on return."""
    _copy(device_pointer(dst), device_pointer(src), size, CopyKind.D2D, stream, src, dst)


def device_memset(dst: Any, val: int, size: int, stream: Any = 0) -> None:
    """Set ``size`` bytes of device memory; complete on return unless a stream is given."""
    fill(device_pointer(dst), val, size, stream)


def _copy(dst: int, src: int, size: int, kind: CopyKind, stream: Any, *keep: Any) -> None:
    native = state.ready_device()
    chosen = native.streams.stream_of(native_stream(stream))
    try:
        with native.device.entered() as device:
            try:
                if size:
                    running = device.copy(dst, src, size, kind, chosen.handle, blocking=not stream)
                    native.completions.keep_host_side(running, chosen, *keep)
            except BaseException as error:
                native.completions.keep_interrupted(error, chosen, *keep)
                raise
            if not stream and kind is CopyKind.D2D:
                device.stream_synchronize(chosen.handle)
    except DevmemError as error:
        raise translated(error) from error


# -- addresses and sizes of objects ------------------------------------------------------------------------------------


def is_device_memory(obj: Any) -> bool:
    """Whether an object declares itself device memory."""
    return bool(getattr(obj, "__cuda_memory__", False))


def require_device_memory(obj: Any) -> None:
    """Raise unless an object declares itself device memory."""
    if not is_device_memory(obj):
        raise Exception(f"Not a CUDA memory object: {type(obj).__name__}")


def device_ctypes_pointer(obj: Any) -> Any:
    """The device address of an object, for ctypes; a null pointer for None."""
    if obj is None:
        return ctypes.c_void_p(0)
    require_device_memory(obj)
    return obj.device_ctypes_pointer


def device_pointer(obj: Any) -> int:
    """The device's address of an object."""
    return device_ctypes_pointer(obj).value or 0


def device_extents(devmem: Any) -> tuple[int, int]:
    """The first address of the allocation that contains an object, and the address behind its end."""
    address = device_pointer(devmem)
    native = state.ready_device()
    if native.handle.knows_pointers:
        with native.device.entered() as device:
            found = device.pointer_range(address)
        if found is not None:
            return int(found[0]), int(found[0] + found[1])
    allocation = getattr(getattr(devmem, "gpu_data", devmem), "allocation", None)
    if allocation is not None:
        return allocation.ptr, allocation.ptr + allocation.nbytes
    return address, address + device_memory_size(devmem)


def device_memory_size(devmem: Any) -> int:
    """Bytes of an object's device memory."""
    size = getattr(devmem, "_cuda_memsize_", None)
    if size is None:
        size = getattr(devmem, "alloc_size", None)
    if size is None:
        begin, end = device_extents(devmem)
        size = end - begin
    return int(size)


def device_memory_depends(devmem: Any, *objs: Any) -> None:
    """Keep objects alive as long as an object."""
    weakref.finalize(devmem, _keep_alive, objs).atexit = False


def host_pointer(obj: Any, readonly: bool = False) -> int:
    """The address of an object's host memory; an int is an address already.

    Raises
    ------
    ValueError
        The memory is read-only, and ``readonly`` is False.
    TypeError
        It has no buffer.
    """
    if isinstance(obj, int):
        return obj
    if isinstance(obj, np.generic):
        return int(np.frombuffer(obj, np.uint8).ctypes.data)
    if isinstance(obj, np.ndarray):
        if not readonly and not obj.flags.writeable:
            raise ValueError("buffer source array is read-only")
        return int(obj.ctypes.data)
    view = memoryview(obj)
    if view.readonly and not readonly:
        raise ValueError("buffer source is read-only")
    return int(np.frombuffer(view, np.uint8).ctypes.data)


def host_memory_extents(obj: Any) -> tuple[int, int]:
    """The first address of an object's host memory, and the address behind its end."""
    array = obj if isinstance(obj, np.ndarray) else np.frombuffer(obj, np.uint8)
    return byte_bounds(int(array.ctypes.data), array.shape, array.strides, array.itemsize)


def host_memory_size(obj: Any) -> int:
    """Bytes from the first address of an object's host memory to its last."""
    begin, end = host_memory_extents(obj)
    return end - begin


def memory_size_from_info(shape: Any, strides: Any, itemsize: int) -> int:
    """Bytes from the first element of an array to behind its last."""
    assert len(shape) == len(strides), "# dim mismatch"
    begin, end = byte_bounds(0, shape, strides, itemsize)
    return end - begin


# -- the rest ----------------------------------------------------------------------------------------------------------


def get_version() -> tuple[int, int]:
    """(major, minor) of the CUDA version that the driver supports."""
    return driver.get_version()


def profile_start() -> None:
    """Start collection of an attached profiler; does nothing for devices that are not NVIDIA's."""
    _profiler("cuProfilerStart")


def profile_stop() -> None:
    """Stop collection of an attached profiler."""
    _profiler("cuProfilerStop")


@contextmanager
def profiling() -> Iterator[None]:
    """Let an attached profiler collect during a ``with`` block; collection also stops if the block raises."""
    profile_start()
    try:
        yield
    finally:
        profile_stop()


def _have_nvjitlink() -> bool:
    """Whether code is linked: modules of numba-cuda ask."""
    return False


def _refuse(name: str, *_: Any, **named: Any) -> None:
    raise CudaSupportError(f"devmem's drop-in has no {name}: it links no code, and loads drivers itself")


def _other_backends(device: devmem.Device) -> bool:
    """Whether a backend other than the device's has devices."""
    return any(status.usable and status.devices for status in devmem.backends() if status.name != device.backend)


def _keep_alive(objs: Any) -> None:
    pass


def _profiler(function: str) -> None:
    device = state.ready_device().device
    if nvidia_driver.binding_of(device) is None:
        return
    try:
        nvidia_driver.call(device, function)
    except CudaAPIError as error:
        if int(error.code) not in NO_PROFILER:
            raise
