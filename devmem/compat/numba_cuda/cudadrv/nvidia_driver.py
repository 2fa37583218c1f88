"""Calls through NVIDIA's own binding, for what numba.cuda exposes of the driver and devmem does not need."""

from __future__ import annotations

import sys
from contextlib import nullcontext
from typing import Any

import devmem

from .error import CudaAPIError, CudaDriverError

BINDING = "cuda.bindings.driver"
CHANGES_CURRENT = ("cuCtxCreate", "cuCtxDestroy", "cuCtxPush", "cuCtxPop", "cuCtxSetCurrent")


def binding_of(device: devmem.Device) -> tuple[Any, Any] | None:
    """NVIDIA's binding, and the primary context that devmem's driver retains; None if the device does not use that binding."""
    binding: Any = sys.modules.get(BINDING)  # loaded by any device that uses it
    if binding is None:
        return None
    context: Any = getattr(device.driver(), "context", None)
    known = isinstance(getattr(context, "device", None), binding.CUdevice)
    return (binding, context) if known else None


def call(device: devmem.Device, name: str, *arguments: Any) -> Any:
    """Call a function of the driver by name, with the device current; return its results without the status.

    Raises
    ------
    CudaDriverError
        The device's driver has no such function.
    CudaAPIError
        It failed.
    """
    found = binding_of(device)
    function = getattr(found[0], name, None) if found is not None else None
    if function is None:
        raise CudaDriverError(f"Driver missing function: {name} ({device} has no such function of NVIDIA's driver)")
    # Functions that change the current context keep their effect.
    with nullcontext() if name.startswith(CHANGES_CURRENT) else device.entered():
        status, *results = function(*arguments)
    if status:
        raise CudaAPIError(status, f"Call to {name} results in {getattr(status, 'name', status)}")
    return results[0] if len(results) == 1 else tuple(results) or None


def attribute(device: devmem.Device, name: str) -> int | None:
    """A ``CU_DEVICE_ATTRIBUTE_*`` of the device; None if it does not exist."""
    found = binding_of(device)
    if found is None:
        return None
    code = getattr(found[0].CUdevice_attribute, f"CU_DEVICE_ATTRIBUTE_{name}", None)
    return None if code is None else int(call(device, "cuDeviceGetAttribute", code, found[1].device))


def context_handle(device: devmem.Device) -> int:
    """The address of the device's primary context; a unique number for devices without contexts."""
    found = binding_of(device)
    return int(found[1].primary) if found is not None else id(device.opened())


def current_handle(device: devmem.Device) -> int:
    """The address of the context that is current in the driver; 0 if none is: devmem leaves none current."""
    found = binding_of(device)
    status, current = found[0].cuCtxGetCurrent() if found is not None else (0, 0)
    return 0 if status else int(current)


def refuse_foreign_context(device: devmem.Device) -> None:
    """Raise RuntimeError if the current context is not a device's primary one."""
    found = binding_of(device)
    current = current_handle(device)
    if found is None or current in (0, int(found[1].primary)):
        return
    status, ordinal = found[0].cuCtxGetDevice()
    other = None if status else binding_of(devmem.device(int(ordinal)))
    if other is not None and int(other[1].primary) != current:
        raise RuntimeError(f"Numba cannot operate on non-primary CUDA context {current:x}")
