"""Calling CUDA's driver through `cuda.bindings.driver`: whether it can be used, its functions, and what its statuses mean."""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import partial
from typing import Any

from cuda.bindings import driver as cu

from ...toolkit.vendor_functions import Fail, StatusErrors, checked, checked_query, recorded, unknown_status

#: The driver of the binding's own major version: the binding asks newer functions by names that older drivers lack.
OLDEST_DRIVER = max(12000, getattr(cu, "CUDA_VERSION", 0) // 1000 * 1000)
#: After one of these every call in the context fails: the process has to let go of the device. NVIDIA says of most that the
#: process must be terminated; of 709 that the context was destroyed, or reset, by another library: opening the device anew makes
#: it again; of 710 that the context must be destroyed. (46, a device that another process has to itself, is not one.)
STICKY = frozenset({4, 214, 220, 226, 700, 702, 709, 710, 714, 715, 716, 717, 718, 719, 721, 810, 911})
#: What cuda-bindings calls differently: the older function of that name is gone there.
_NAMES = {"cuGraphInstantiateWithFlags": "cuGraphInstantiate"}
#: These take a location, or tell a MIG partition from its device: spelled _v2 in cuda-bindings 12, with the plain name in 13.
_VERSIONED = frozenset({"cuMemPrefetchAsync", "cuMemAdvise", "cuDeviceGetUuid"})


#: The status for which the binding has no name: it raises the error that is given here, instead of returning the status.
code_of = partial(unknown_status, enum="CUresult")


def bind(name: str, fail: Fail) -> Callable[..., Any]:
    """A function of the driver, checked."""
    call = getattr(cu, f"{name}_v2", None) if name in _VERSIONED else None
    make = checked_query if name.endswith("Query") else checked
    return make(name, call or getattr(cu, name), fail, code_of)


def bind_recorded(name: str, fail: Fail) -> Callable[..., None]:
    """A function of the driver that makes something or ends it."""
    return recorded(name, getattr(cu, _NAMES.get(name, name)), fail, code_of)


def describe(status: int) -> tuple[str, str]:
    """The driver's name for a status, and its sentence."""
    try:
        known = cu.CUresult(status)
    except ValueError:
        return str(status), "a status that this cuda.bindings is too old to know: update cuda-bindings"
    (unnamed, name), (unknown, sentence) = cu.cuGetErrorName(known), cu.cuGetErrorString(known)
    return str(status) if unnamed else name.decode(), "unknown to this driver" if unknown else sentence.decode()


def device_count() -> int:
    """The number of devices."""
    return int(bind("cuDeviceGetCount", StatusErrors("cuda", describe, STICKY).fail)())


def reason() -> str | None:
    """Why the driver cannot be used, or None."""
    if getattr(cu, "HIP_PYTHON", False):
        return (
            "the installed cuda.bindings is AMD's imitation (hip-python-interop), not NVIDIA's: on AMD GPUs use the backend "
            "roc, which does without it; on NVIDIA's: pip uninstall hip-python-interop, then "
            "pip install --force-reinstall 'cuda-bindings>=13,<14'"
        )
    try:
        (error,) = cu.cuInit(0)
        unknown, version = cu.cuDriverGetVersion()
        uncounted, devices = (error, 0) if error else cu.cuDeviceGetCount()
    except ValueError as status:  # the binding does not know the number
        return f"cuInit failed with a status that this cuda.bindings is too old for ({status}): update cuda-bindings"
    except Exception as missing:  # DynamicLibNotFoundError, or RuntimeError from older bindings
        what = f"{type(missing).__name__}: {' '.join(str(missing).split())[:160]}"
        return f"no NVIDIA driver library was found ({what}): install the NVIDIA driver (nvidia-smi shows it)"
    if error == cu.CUresult.CUDA_ERROR_NO_DEVICE or not (uncounted or devices):
        visible = os.environ.get("CUDA_VISIBLE_DEVICES")
        hint = "" if visible is None else f"; CUDA_VISIBLE_DEVICES={visible!r} hides devices"
        return f"the NVIDIA driver sees no device{hint}: check nvidia-smi"
    if error == cu.CUresult.CUDA_ERROR_NOT_INITIALIZED:
        return "CUDA was initialised before this process was forked: start processes with the 'spawn' method"
    if error:
        return f"cuInit failed with {describe(int(error))[0]}: check nvidia-smi, and that the driver fits the kernel"
    for call, failed in (("cuDriverGetVersion", unknown), ("cuDeviceGetCount", uncounted)):
        if failed:
            return f"{call} failed with {describe(int(failed))[0]}: check nvidia-smi"
    if version < OLDEST_DRIVER:
        older = version >= 12000
        return (
            f"the NVIDIA driver supports CUDA {version // 1000}.{version % 1000 // 10}, "
            f"{'this cuda.bindings' if older else 'devmem'} needs {(OLDEST_DRIVER if older else 12000) // 1000}.0: "
            f"update the driver{', or pip install ' + repr('devmem-arrays[cuda12]') if older else ''}"
        )
    return None
