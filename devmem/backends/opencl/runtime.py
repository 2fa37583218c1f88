"""Calling OpenCL through pyopencl: its devices, why there are none, and what its errors mean."""

from __future__ import annotations

import ctypes
import functools
import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NoReturn

import pyopencl as cl

from ...spi.errors import BackendError, DeviceLost, OutOfMemory

CODE = cl.status_code
#: The device is gone. Behind a wait OUT_OF_RESOURCES says so too: a command failed on the device.
LOST = frozenset({CODE.DEVICE_NOT_AVAILABLE})
LOST_IN_WAIT = LOST | {CODE.OUT_OF_RESOURCES}
NO_MEMORY = frozenset({CODE.MEM_OBJECT_ALLOCATION_FAILURE, CODE.OUT_OF_HOST_MEMORY, CODE.OUT_OF_RESOURCES})
#: PLATFORM_NOT_FOUND_KHR: the loader found no runtime.
NO_PLATFORM = -1001


def every_platform() -> list[Any]:
    """The runtimes that the loader finds."""
    try:
        return list(cl.get_platforms())
    except cl.Error as error:
        if error.code != NO_PLATFORM:
            raise
        return []


def devices(platform: str) -> list[Any]:
    """The devices with shared virtual memory, of the platforms with this text in their names."""
    platforms = [each for each in every_platform() if platform.lower() in each.name.lower()]
    return [device for each in platforms for device in each.get_devices() if shares_memory(device)]


def shares_memory(device: Any) -> bool:
    """Whether it has shared virtual memory; a device of OpenCL 1 may fail at the question."""
    try:
        return bool(device.svm_capabilities)
    except cl.Error:
        return False


def device(platform: str, ordinal: int) -> Any:
    """One of them."""
    found = devices(platform)
    if not 0 <= ordinal < len(found):
        refuse("open", CODE.DEVICE_NOT_FOUND, f"there is no device {ordinal}; there are {len(found)}")
    return found[ordinal]


def reason(platform: str) -> str | None:
    """Why there is no device, and what would bring one."""
    try:
        if devices(platform):
            return None
        others = sorted({device.platform.name for device in devices("")})
        platforms = every_platform()
        without = [f"{device.name} ({device.version})" for each in platforms for device in each.get_devices()]
    except cl.Error as error:
        return f"OpenCL fails with {error}: reinstall the vendor's OpenCL runtime"
    if others:
        return f"no device is of a platform with {platform!r} in its name, DEVMEM_OPENCL_PLATFORM: there are {', '.join(others)}"
    cure = "pip install 'devmem-arrays[opencl-cpu]', or a vendor's runtime"
    if without:
        return (
            f"no OpenCL device has shared virtual memory, which is of OpenCL 2: there are {', '.join(without)}; {cure}"
        )
    if platforms:
        return f"the OpenCL runtime has no device: {', '.join(each.name for each in platforms)}; {cure}"
    folder = os.environ.get("OCL_ICD_VENDORS")
    return f"no OpenCL runtime is there{f' (OCL_ICD_VENDORS={folder} says where to look)' if folder else ''}: {cure}"


@functools.cache
def context_of(device: Any) -> Any:
    """The one context of a device: memory and events mean nothing in another, so a queue of a user's has to be in it."""
    return cl.Context([device])


def at(ptr: int, nbytes: int) -> Any:
    """Memory at an address, device's or host's, as pyopencl takes it."""
    return cl.SVM((ctypes.c_ubyte * nbytes).from_address(ptr))


def is_done(event: Any) -> bool:
    """Whether a command is over; what failed, a wait tells."""
    return bool(event.command_execution_status <= cl.command_execution_status.COMPLETE)


@contextmanager
def checked(call: str, lost: frozenset[int] = LOST) -> Iterator[None]:
    """Raise what the block's call of OpenCL raises as an error of devmem's."""
    try:
        yield
    except cl.Error as error:
        kind = DeviceLost if error.code in lost else OutOfMemory if error.code in NO_MEMORY else BackendError
        raise make_error(call, error.code, str(error), kind) from error


def refuse(call: str, code: int, why: str, kind: type[BackendError] = BackendError) -> NoReturn:
    """Raise for a call that is wrong, or cannot be done."""
    raise make_error(call, code, why, kind)


def refuse_handle(what: str, status: int, why: str) -> NoReturn:
    """Raise for a handle, as `Handles` asks."""
    raise make_error(what, CODE.INVALID_VALUE, why)


def make_error(call: str, code: int, message: str, kind: type[BackendError] = BackendError) -> BackendError:
    """Return the exception for a call that failed."""
    name = str(CODE.to_string(code, "an error %d"))
    return kind(f"{call}: {message}", backend="opencl", call=call, code=code, name=name)
