"""CUDA's driver, through cuda-bindings."""

from __future__ import annotations

import importlib.metadata
from collections.abc import Callable
from typing import Any

from cuda.bindings import driver as cu

from .driver import UP, Array, Driver, Engine


class CudaDriver(Driver):
    """The primary context, and the device's default pool."""

    bare = "bare bindings"

    def __init__(self, ordinal: int) -> None:
        self.version = f"cuda-bindings {importlib.metadata.version('cuda-bindings')}"
        device = checked(cu.cuDeviceGet(ordinal))
        self.primary = checked(cu.cuDevicePrimaryCtxRetain(device))
        self.enter()
        self.stream = cu.CUstream(1)  # the legacy default stream, as in the other libraries
        self.pool = checked(cu.cuDeviceGetDefaultMemPool(device))
        threshold = cu.CUmemPool_attribute.CU_MEMPOOL_ATTR_RELEASE_THRESHOLD
        checked(cu.cuMemPoolSetAttribute(self.pool, threshold, cu.cuuint64_t((1 << 64) - 1)))

    def enter(self) -> None:
        checked(cu.cuCtxSetCurrent(self.primary))

    def wait(self) -> None:
        checked(cu.cuCtxSynchronize())

    def allocate(self, nbytes: int) -> int:
        return int(checked(cu.cuMemAllocFromPoolAsync(nbytes, self.pool, self.stream)))

    def free(self, ptr: int) -> None:
        cu.cuMemFreeAsync(ptr, self.stream)

    def write(self, ptr: int, host: int, nbytes: int) -> None:
        checked(cu.cuMemcpyHtoD(ptr, host, nbytes))

    def read(self, host: int, ptr: int, nbytes: int) -> None:
        checked(cu.cuMemcpyDtoH(host, ptr, nbytes))

    def move(self, dst: int, src: int, nbytes: int) -> None:
        checked(cu.cuMemcpyDtoDAsync(dst, src, nbytes, self.stream))

    def engine(self, nbytes: int) -> Engine:
        return CudaEngine(nbytes)

    def calls(self, host: Array, ptr: int, out: Array) -> dict[str, Callable[[], object]]:
        pool, stream, nbytes = self.pool, self.stream, host.nbytes
        source, target = host.ctypes.data, out.ctypes.data

        def upload() -> None:
            no_memory, made = cu.cuMemAllocFromPoolAsync(nbytes, pool, stream)
            (not_copied,) = cu.cuMemcpyHtoD(made, source, nbytes)
            (not_freed,) = cu.cuMemFreeAsync(made, stream)
            if no_memory or not_copied or not_freed:
                raise RuntimeError(f"{no_memory!r} {not_copied!r} {not_freed!r}")

        def read() -> None:
            (not_copied,) = cu.cuMemcpyDtoH(target, ptr, nbytes)
            if not_copied:
                raise RuntimeError(repr(not_copied))

        def create() -> None:
            no_memory, made = cu.cuMemAllocFromPoolAsync(nbytes, pool, stream)
            (not_freed,) = cu.cuMemFreeAsync(made, stream)
            if no_memory or not_freed:
                raise RuntimeError(f"{no_memory!r} {not_freed!r}")

        return {"upload": upload, "read": read, "create": create}


class CudaEngine(Engine):
    """Copies on a non-blocking stream, timed by events."""

    def __init__(self, nbytes: int) -> None:
        self.stream, self.ptr = checked(cu.cuStreamCreate(1)), int(checked(cu.cuMemAlloc(nbytes)))
        self.start, self.end = (checked(cu.cuEventCreate(0)) for _ in range(2))

    def seconds(self, direction: str, host: int, nbytes: int, times: int) -> float:
        ptr, stream = self.ptr, self.stream
        checked(cu.cuEventRecord(self.start, stream))
        for _ in range(times):
            if direction == UP:
                checked(cu.cuMemcpyHtoDAsync(ptr, host, nbytes, stream))
            else:
                checked(cu.cuMemcpyDtoHAsync(host, ptr, nbytes, stream))
        checked(cu.cuEventRecord(self.end, stream))
        checked(cu.cuEventSynchronize(self.end))
        return float(checked(cu.cuEventElapsedTime(self.start, self.end))) / 1e3

    def __del__(self) -> None:
        if hasattr(self, "end"):
            cu.cuStreamDestroy(self.stream)
            cu.cuEventDestroy(self.start)
            cu.cuEventDestroy(self.end)
            cu.cuMemFree(self.ptr)


def open_driver(ordinal: int) -> Driver:
    """The driver of a device."""
    return CudaDriver(ordinal)


def checked(result: tuple[Any, ...]) -> Any:
    """The output of a driver call that succeeded."""
    if result[0]:
        raise RuntimeError(f"the driver returned {result[0]!r}")
    return result[1] if len(result) == 2 else result[1:]
