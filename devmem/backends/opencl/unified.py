"""Intel's unified shared memory, by the extension's own functions: pyopencl has none of them.

Intel's GPUs share virtual memory in coarse grain only. What host and device may both reach at any time is unified memory there.
OpenCL's own calls for shared virtual memory take its addresses, except for the one that migrates.
"""

from __future__ import annotations

import ctypes
import functools
from typing import Any

from pyopencl import _cl

from ...spi.types import MemoryKind
from .runtime import CODE, refuse

EXTENSION = "cl_intel_unified_shared_memory"
#: CL_DEVICE_HOST_MEM_CAPABILITIES_INTEL and CL_DEVICE_SINGLE_DEVICE_SHARED_MEM_CAPABILITIES_INTEL, with what is allocated so.
KINDS = {0x4190: {MemoryKind.PINNED, MemoryKind.MAPPED}, 0x4192: {MemoryKind.MANAGED}}
POINTER, SIZE, STATUS = ctypes.c_void_p, ctypes.c_size_t, ctypes.POINTER(ctypes.c_int)


def unified_kinds(device: Any) -> frozenset[MemoryKind]:
    """The kinds of memory that a device has by this extension."""
    found: set[MemoryKind] = set()
    if EXTENSION in device.extensions.split():
        for question, kinds in KINDS.items():
            can = ctypes.c_uint64()
            _loader().clGetDeviceInfo(POINTER(device.int_ptr), question, SIZE(8), ctypes.byref(can), None)
            found |= kinds if can.value else set()
    return frozenset(found)


class UnifiedAllocation:
    """One allocation, with the attribute and the method of `pyopencl.SVMAllocation`."""

    def __init__(self, context: Any, device: Any, nbytes: int, kind: MemoryKind) -> None:
        self._context, status = context, ctypes.c_int()
        shared = kind is MemoryKind.MANAGED
        name, of = ("clSharedMemAllocINTEL", [device.int_ptr]) if shared else ("clHostMemAllocINTEL", [])
        allocate = _function(device.platform, name, POINTER, *[POINTER] * (2 + len(of)), SIZE, ctypes.c_uint, STATUS)
        self._free = _function(device.platform, "clMemFreeINTEL", ctypes.c_int, POINTER, POINTER)
        self.svm_ptr = allocate(context.int_ptr, *of, None, nbytes, 0, ctypes.byref(status)) or 0
        if not self.svm_ptr:
            raise MemoryError(f"{name}: {CODE.to_string(status.value, 'an error %d')}")

    def release(self) -> None:
        """Free it, once."""
        ptr, self.svm_ptr = self.svm_ptr, 0
        if ptr:
            self._free(self._context.int_ptr, ptr)

    __del__ = release


@functools.cache
def _loader() -> ctypes.CDLL:
    """The loader that pyopencl is linked with: what is looked for in its module is found there."""
    found = ctypes.CDLL(_cl.__file__)
    found.clGetExtensionFunctionAddressForPlatform.restype = POINTER
    return found


@functools.cache
def _function(platform: Any, name: str, *types: Any) -> Any:
    """A function of the extension, by its name."""
    found = _loader().clGetExtensionFunctionAddressForPlatform(POINTER(platform.int_ptr), name.encode())
    if not found:
        refuse(name, CODE.INVALID_OPERATION, f"{platform.name} declares {EXTENSION}, and lacks it")
    return ctypes.CFUNCTYPE(*types)(found)
