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


def platforms() -> list[Any]:
    """The runtimes that the loader finds."""
    try:
        return list(cl.get_platforms())
    except cl.Error as error:
        if error.code != NO_PLATFORM:
            raise
        return []


def devices(platform: str) -> list[Any]:
    """The devices with shared virtual memory, of the platforms with this text in their names."""
    found = [each for one in platforms() if platform.lower() in one.name.lower() for each in one.get_devices()]
    # One of OpenCL 1 fails at the question.
    return [each for each in found if each.version >= "OpenCL 2" and each.svm_capabilities]


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
        there = [(each.name, [device.name for device in each.get_devices()]) for each in platforms()]
    except cl.Error as error:
        return f"OpenCL fails with {error}: reinstall the vendor's OpenCL runtime"
    told = "; ".join(f"{name} has {', '.join(names) or 'no device'}" for name, names in there) or "there is no runtime"
    why = f"{told}; DEVMEM_OPENCL_PLATFORM={platform}, OCL_ICD_VENDORS={os.environ.get('OCL_ICD_VENDORS', '')}"
    return f"no OpenCL device shares virtual memory ({why}): pip install 'devmem-arrays[opencl-cpu]', or a vendor's runtime"


@functools.cache
def context_of(device: Any) -> Any:
    """The one context of a device: memory and events mean nothing in another, so a queue of a user's has to be in it."""
    return cl.Context([device])


def at(ptr: int, nbytes: int) -> Any:
    """Memory at an address, device's or host's, as pyopencl takes it."""
    return cl.SVM((ctypes.c_ubyte * nbytes).from_address(ptr))


def is_done(event: Any) -> bool:
    """Whether a command is over; what failed, a wait tells."""
    with checked("clGetEventInfo"):
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
