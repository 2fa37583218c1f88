"""numba.cuda's host API on devmem, on any backend: ``from devmem.compat import numba_cuda as cuda``.

Code written for numba.cuda runs with that one line changed. The documented limits are the same; where numba.cuda deviates from
its documentation, this package follows the documentation. Numba itself is imported when a kernel is compiled, not before.
"""

# Decision: docs/adr/0011-drop-ins-add-names-and-no-state.md
from __future__ import annotations

import importlib
from typing import Any

from devmem import (
    In,
    InOut,
    Out,
    atomic,
    blockDim,
    blockIdx,
    const,
    grid,
    gridDim,
    gridsize,
    laneid,
    local,
    shared,
    syncthreads,
    threadIdx,
    warpsize,
)

from . import errors, kernels
from .api import (
    as_cuda_array,
    close,
    current_context,
    default_stream,
    defer_cleanup,
    detect,
    device_array,
    device_array_like,
    devicearray,
    devices,
    driver,
    event,
    event_elapsed_time,
    external_stream,
    from_cuda_array_interface,
    get_current_device,
    gpus,
    is_bfloat16_supported,
    is_cuda_array,
    is_float16_supported,
    is_fp8_supported,
    legacy_default_stream,
    list_devices,
    managed_array,
    mapped,
    mapped_array,
    mapped_array_like,
    open_ipc_array,
    per_thread_default_stream,
    pinned,
    pinned_array,
    pinned_array_like,
    profile_start,
    profile_stop,
    profiling,
    require_context,
    select_device,
    stream,
    synchronize,
    to_device,
)
from .cudadrv.error import CudaSupportError
from .cudadrv.ipc import GetIpcHandleMixin, IpcHandle
from .cudadrv.memory_managers import BaseCUDAMemoryManager, HostOnlyCUDAMemoryManager, MemoryInfo, set_memory_manager
from .cudadrv.pointers import MappedMemory, MemoryPointer, PinnedMemory
from .cudadrv.runtime import runtime
from .device_functions import SIMULATED, VECTORS, CudaFunction
from .errors import KernelRuntimeError
from .kernel import COMPILER_ONLY, LINKED, REFUSED, compiler_only, jit

__all__ = [
    "BaseCUDAMemoryManager",
    "CudaSupportError",
    "GetIpcHandleMixin",
    "HostOnlyCUDAMemoryManager",
    "In",
    "InOut",
    "IpcHandle",
    "KernelRuntimeError",
    "MappedMemory",
    "MemoryInfo",
    "MemoryPointer",
    "Out",
    "PinnedMemory",
    "as_cuda_array",
    "atomic",
    "blockDim",
    "blockIdx",
    "close",
    "const",
    "cuda_error",
    "current_context",
    "default_stream",
    "defer_cleanup",
    "detect",
    "device_array",
    "device_array_like",
    "devicearray",
    "devices",
    "driver",
    "errors",
    "event",
    "event_elapsed_time",
    "external_stream",
    "from_cuda_array_interface",
    "get_current_device",
    "gpus",
    "grid",
    "gridDim",
    "gridsize",
    "is_available",
    "is_bfloat16_supported",
    "is_cuda_array",
    "is_float16_supported",
    "is_fp8_supported",
    "is_supported_version",
    "jit",
    "kernels",
    "laneid",
    "legacy_default_stream",
    "list_devices",
    "local",
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
    "runtime",
    "select_device",
    "set_memory_manager",
    "shared",
    "stream",
    "synchronize",
    "syncthreads",
    "threadIdx",
    "to_device",
    "warpsize",
]

#: Modules that are imported when they are used.
LAZY = ("cg", "fp16", "libdevice", "random", "vectorizers")
#: What numba-cuda compiles and the simulator computes, and no compiler for ROCm has.
NOT_ON_ROCM = SIMULATED | VECTORS | {"libdevice"}
#: Names that only the simulator has, and why.
SIMULATOR_ONLY = {
    "cg": f"{LINKED}; to wait for all blocks, end the kernel and launch another one after it",
    "fp16": f"{LINKED}; compute with float32, and store into an array of float16",
}

#: Tells this implementation from numba-cuda's.
implementation = "devmem"


def is_available() -> bool:
    """Whether there is a device to use; opens it."""
    return driver.driver.is_available


def is_supported_version() -> bool:
    """Whether devmem supports the driver's version: True if a device is usable, as unsupported drivers are refused."""
    return is_available()


def cuda_error() -> str | None:
    """Why there is no device to use, or None."""
    return driver.driver.initialization_error


def __getattr__(name: str) -> Any:
    """Functions for kernels, modules that few programs use, and names that only numba-cuda defines."""
    if name in SIMULATED | VECTORS:
        return CudaFunction(name)
    if name in LAZY:
        return importlib.import_module(f"{__name__}.{name}")
    if name in ("Reduce", "reduce", "vectorize", "guvectorize"):
        return getattr(importlib.import_module(f"{__name__}.ufuncs"), name)
    if name in COMPILER_ONLY:
        return compiler_only(name)
    why = f": {REFUSED[name]}" if name in REFUSED else ""
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}{why}")


def __dir__() -> list[str]:
    return sorted({*__all__, *(name for name in globals() if name.startswith("__"))})
