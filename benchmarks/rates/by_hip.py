"""AMD's runtime through ctypes, which needs no binding and has the lowest overhead."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from typing import Any

import devmem as dm

from .driver import UP, Array, Driver, Engine

HOST_TO_DEVICE, DEVICE_TO_HOST, DEVICE_TO_DEVICE = 1, 2, 3
NON_BLOCKING, KEEP_AT_LEAST = 1, 4

_size, _address, _int = ctypes.c_size_t, ctypes.c_void_p, ctypes.c_int
SIGNATURES: dict[str, list[Any]] = {
    "hipSetDevice": [_int],
    "hipDeviceSynchronize": [],
    "hipMalloc": [_address, _size],
    "hipFree": [_address],
    "hipMemcpy": [_address, _address, _size, _int],
    "hipMemcpyAsync": [_address, _address, _size, _int, _address],
    "hipStreamCreateWithFlags": [_address, ctypes.c_uint],
    "hipStreamDestroy": [_address],
    "hipEventCreate": [_address],
    "hipEventDestroy": [_address],
    "hipEventRecord": [_address, _address],
    "hipEventSynchronize": [_address],
    "hipEventElapsedTime": [_address, _address, _address],
}
#: Functions that a runtime may lack; without them the direct calls use plain memory.
POOL_SIGNATURES: dict[str, list[Any]] = {
    "hipDeviceGetDefaultMemPool": [_address, _int],
    "hipMemPoolSetAttribute": [_address, _int, _address],
    "hipMallocAsync": [_address, _size, _address],
    "hipFreeAsync": [_address, _address],
}


class HipDriver(Driver):
    """The runtime library that devmem uses, and the device's default pool if it has one."""

    bare = "bare ctypes"

    def __init__(self, ordinal: int) -> None:
        info = dm.device(f"roc:{ordinal}").info
        self.ordinal = ordinal
        self.hip = ctypes.CDLL(str(info.facts["library"]))
        declare(self.hip, SIGNATURES)
        self.enter()
        pooled = bool(info.facts["memory_pools"]) and hasattr(self.hip, "hipMallocAsync")
        if pooled:
            declare(self.hip, POOL_SIGNATURES)
            pool, everything = output(self.hip.hipDeviceGetDefaultMemPool, ordinal), ctypes.c_uint64((1 << 64) - 1)
            checked(self.hip.hipMemPoolSetAttribute(pool, KEEP_AT_LEAST, ctypes.byref(everything)))
        #: The pool functions take a stream; the plain ones do not.
        self.stream = (None,) if pooled else ()
        self.taken, self.given = (
            (self.hip.hipMallocAsync, self.hip.hipFreeAsync) if pooled else (self.hip.hipMalloc, self.hip.hipFree)
        )
        self.version = f"HIP {info.facts['hip_version']}, memory of {'its pool' if pooled else 'hipMalloc'}"

    def enter(self) -> None:
        checked(self.hip.hipSetDevice(self.ordinal))

    def wait(self) -> None:
        checked(self.hip.hipDeviceSynchronize())

    def allocate(self, nbytes: int) -> int:
        return output(self.taken, nbytes, *self.stream)

    def free(self, ptr: int) -> None:
        self.given(ptr, *self.stream)

    def write(self, ptr: int, host: int, nbytes: int) -> None:
        checked(self.hip.hipMemcpy(ptr, host, nbytes, HOST_TO_DEVICE))

    def read(self, host: int, ptr: int, nbytes: int) -> None:
        checked(self.hip.hipMemcpy(host, ptr, nbytes, DEVICE_TO_HOST))

    def move(self, dst: int, src: int, nbytes: int) -> None:
        checked(self.hip.hipMemcpyAsync(dst, src, nbytes, DEVICE_TO_DEVICE, None))

    def engine(self, nbytes: int) -> Engine:
        return HipEngine(self.hip, nbytes)

    def calls(self, host: Array, ptr: int, out: Array) -> dict[str, Callable[[], object]]:
        take, give, stream, copy, nbytes = self.taken, self.given, self.stream, self.hip.hipMemcpy, host.nbytes
        source, target, word, byref = host.ctypes.data, out.ctypes.data, ctypes.c_void_p, ctypes.byref

        def upload() -> None:
            made = word()
            if take(byref(made), nbytes, *stream) or copy(made, source, nbytes, HOST_TO_DEVICE) or give(made, *stream):
                raise RuntimeError("the runtime refused to allocate, to copy or to free")

        def read() -> None:
            checked(copy(target, ptr, nbytes, DEVICE_TO_HOST))

        def create() -> None:
            made = word()
            if take(byref(made), nbytes, *stream) or give(made, *stream):
                raise RuntimeError("the runtime refused to allocate or to free")

        return {"upload": upload, "read": read, "create": create}


class HipEngine(Engine):
    """Copies on a non-blocking stream, timed by events."""

    def __init__(self, hip: ctypes.CDLL, nbytes: int) -> None:
        self.hip, self.ptr = hip, output(hip.hipMalloc, nbytes)
        self.stream = output(hip.hipStreamCreateWithFlags, NON_BLOCKING)
        self.start, self.end = output(hip.hipEventCreate), output(hip.hipEventCreate)

    def seconds(self, direction: str, host: int, nbytes: int, times: int) -> float:
        up = direction == UP
        to, source, kind = (self.ptr, host, HOST_TO_DEVICE) if up else (host, self.ptr, DEVICE_TO_HOST)
        copy, stream = self.hip.hipMemcpyAsync, self.stream
        checked(self.hip.hipEventRecord(self.start, stream))
        for _ in range(times):
            checked(copy(to, source, nbytes, kind, stream))
        checked(self.hip.hipEventRecord(self.end, stream))
        checked(self.hip.hipEventSynchronize(self.end))
        found = ctypes.c_float()
        checked(self.hip.hipEventElapsedTime(ctypes.byref(found), self.start, self.end))
        return found.value / 1e3

    def __del__(self) -> None:
        if hasattr(self, "end"):
            self.hip.hipStreamDestroy(self.stream)
            self.hip.hipEventDestroy(self.start)
            self.hip.hipEventDestroy(self.end)
            self.hip.hipFree(self.ptr)


def open_driver(ordinal: int) -> Driver:
    """The driver of a device."""
    return HipDriver(ordinal)


def declare(library: ctypes.CDLL, signatures: dict[str, list[Any]]) -> None:
    """Declare the argument types; all functions return a status."""
    for name, arguments in signatures.items():
        getattr(library, name).argtypes = arguments


def checked(status: int) -> None:
    """Raise an error if a call failed."""
    if status:
        raise RuntimeError(f"the runtime returned {status}")


def output(function: Any, *arguments: object) -> int:
    """The address or handle that a function stores through its first argument."""
    made = ctypes.c_void_p()
    checked(function(ctypes.byref(made), *arguments))
    return made.value or 0
