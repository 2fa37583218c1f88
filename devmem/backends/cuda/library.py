"""Finding out whether there is a CUDA driver to talk to, and what its errors mean."""

from __future__ import annotations

import os
import re
from typing import Any, NoReturn

from cuda.bindings import driver as binding

from ...spi.errors import BackendError, DeviceLost, OutOfMemory

#: The driver of the binding's own major version: newer ones are looked up under names that older ones have not got.
OLDEST_DRIVER = max(12000, getattr(binding, "CUDA_VERSION", 0) // 1000 * 1000)

OUT_OF_MEMORY = 2
NOT_READY = 600
#: After one of these every call in the context fails: the process has to let go of the device. (46, a device that another
#: process has to itself, is not one of them.)
STICKY = frozenset({4, 214, 220, 226, 700, 702, 709, 710, 714, 715, 716, 717, 718, 719, 721})


class Binding:
    """The binding, where a function that meets a status newer than the binding raises BackendError instead of ValueError."""

    def __getattr__(self, name: str) -> Any:
        found = getattr(binding, name)
        if isinstance(found, type) or not callable(found):
            return found

        def call(*arguments: Any) -> Any:
            try:
                return found(*arguments)
            except ValueError as unknown:
                code = code_of(unknown)
            fail(name, code)

        setattr(self, name, call)
        return call


cu = Binding()


def reason() -> str | None:
    """Why the driver cannot be used, or None."""
    if getattr(binding, "HIP_PYTHON", False):
        return (
            "the installed cuda.bindings is AMD's imitation (hip-python-interop), not NVIDIA's: on AMD GPUs use the backend "
            "roc, which does without it; on NVIDIA's: pip uninstall hip-python-interop, then "
            "pip install --force-reinstall 'cuda-bindings>=13,<14'"
        )
    try:
        (error,) = binding.cuInit(0)
        unknown, version = binding.cuDriverGetVersion()
    except ValueError as status:  # the binding does not know the number
        return f"cuInit failed with a status that this cuda.bindings is too old for ({status}): update cuda-bindings"
    except Exception as missing:  # DynamicLibNotFoundError, or RuntimeError from older bindings
        return f"no NVIDIA driver library was found ({_one_line(missing)}): install the NVIDIA driver (nvidia-smi shows it)"
    if error == binding.CUresult.CUDA_ERROR_NO_DEVICE:
        visible = os.environ.get("CUDA_VISIBLE_DEVICES")
        hint = "" if visible is None else f"; CUDA_VISIBLE_DEVICES={visible!r} hides devices"
        return f"the NVIDIA driver sees no device{hint}: check nvidia-smi"
    if error == binding.CUresult.CUDA_ERROR_NOT_INITIALIZED:
        return "CUDA was initialised before this process was forked: start processes with the 'spawn' method"
    if error:
        return f"cuInit failed with {name_of(error)}: check nvidia-smi, and that the driver fits the kernel"
    if unknown:
        return f"cuDriverGetVersion failed with {name_of(unknown)}: check nvidia-smi"
    if version < OLDEST_DRIVER:
        older = version >= 12000
        return (
            f"the NVIDIA driver supports CUDA {version // 1000}.{version % 1000 // 10}, "
            f"{'this cuda.bindings' if older else 'devmem'} needs {(OLDEST_DRIVER if older else 12000) // 1000}.0: "
            f"update the driver{', or pip install ' + repr('devmem-arrays[cuda12]') if older else ''}"
        )
    return None


def device_count() -> int:
    """The number of devices."""
    error, count = cu.cuDeviceGetCount()
    if error:
        fail("cuDeviceGetCount", error)
    return int(count)


def checked(call: str, result: tuple[Any, ...]) -> Any:
    """The outputs of a call that succeeded; for calls that are not on anybody's hot path."""
    if result[0]:
        fail(call, result[0])
    return result[1] if len(result) == 2 else result[1:]


def code_of(unknown: ValueError) -> int:
    """The status for which the binding has no name, and raises this instead of returning it."""
    found = re.match(r"(\d+) is not a valid CUresult", str(unknown))
    if found is None:
        try:
            raise unknown
        finally:
            del unknown  # or its traceback and this frame would keep each other
    return int(found[1])


def fail(call: str, error: Any) -> NoReturn:
    """Raise the error that a status of the binding's stands for, or the number of one that it does not know."""
    code = int(error)
    kind = OutOfMemory if code == OUT_OF_MEMORY else DeviceLost if code in STICKY else BackendError
    message = f"{call} failed with {name_of(error)} ({code}): {_sentence(error)}"
    if kind is DeviceLost:
        message += "; the device's context is lost for this process: restart it"
    raise kind(message, backend="cuda", call=call, code=code, name=name_of(error))


def name_of(error: Any) -> str:
    """The driver's name for a status."""
    if type(error) is int:
        return str(error)
    failed, name = cu.cuGetErrorName(error)
    return str(int(error)) if failed else name.decode()


def _sentence(error: Any) -> str:
    if type(error) is int:
        return "a status that this cuda.bindings is too old to know: update cuda-bindings"
    failed, text = cu.cuGetErrorString(error)
    return "unknown to this driver" if failed else text.decode()


def _one_line(error: BaseException) -> str:
    return f"{type(error).__name__}: {' '.join(str(error).split())[:160]}"
