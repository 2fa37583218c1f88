"""Compile functions to PTX, which the CUDA driver loads."""

from __future__ import annotations

import re
from collections.abc import Callable, Hashable, Mapping

from numba import cuda
from numba.cuda import types
from numba.cuda.core import sigutils
from numba.cuda.np import numpy_support
from numba.cuda.typing.typeof import Purpose, typeof

from ....spi.driver import Driver
from ....spi.errors import UnsupportedError
from ..numba_compiler import check_options
from ..numba_types import Typing
from . import device_names

#: Options that are passed on to numba's compile function.
OPTIONS = frozenset({"debug", "lineinfo", "fastmath", "opt", "launch_bounds"})
_ENTRY = re.compile(r"\.entry\s+([\w$]+)")
#: Finds external functions, which numba-cuda would link into a kernel.
_EXTERN = re.compile(r"^\s*\.extern\s+\.func\s+(?:\([^)]*\)\s*)?([\w$]+)", re.MULTILINE)
_IN_EVERY_DRIVER = frozenset({"vprintf", "__assertfail", "malloc", "free"})

typing = Typing(
    "numba-cuda",
    types,
    lambda argument: typeof(argument, Purpose.argument),
    numpy_support.from_dtype,
    sigutils.normalize_signature,
)


def image_for(
    function: Callable[..., object], argument_types: tuple[Hashable, ...], driver: Driver, options: Mapping[str, object]
) -> tuple[bytes, str]:
    """PTX for the architecture of a driver's device, null-terminated, and the kernel's name in it."""
    ptx = ptx_for(function, argument_types, compute_capability(driver), options)
    [entry] = _ENTRY.findall(ptx)
    return ptx.encode() + b"\0", entry


def ptx_for(
    function: Callable[..., object],
    argument_types: tuple[Hashable, ...],
    capability: tuple[int, int],
    options: Mapping[str, object],
) -> str:
    """The PTX of a kernel; needs no device.

    Raises
    ------
    UnsupportedError
        The kernel needs external functions that would have to be linked in.
    TypeError
        An option that numba-cuda does not have.
    """
    check_options("numba-cuda", options, OPTIONS)
    device_names.register()
    signature = types.void(*argument_types)
    code, _ = cuda.compile(function, signature, device=False, cc=capability, abi="numba", output="ptx", **options)
    ptx = code.decode() if isinstance(code, bytes) else str(code)
    missing = sorted(set(_EXTERN.findall(ptx)) - _IN_EVERY_DRIVER)
    if missing:
        raise UnsupportedError(
            f"the kernel {function.__qualname__} calls {', '.join(missing)}, which would have to be linked in (reshape of an "
            f"array and arrays made in the kernel need that): do it on the host, or use devmem.local.array"
        )
    return ptx


def compute_capability(driver: Driver) -> tuple[int, int]:
    """The device's compute capability. For a newer device than it knows, numba-cuda compiles for the newest known."""
    digits = re.fullmatch(r"sm_(\d+)(\d)", driver.info.arch)
    if digits is None:
        raise UnsupportedError(
            f"the architecture {driver.info.arch!r} of {driver.info.name} is not a CUDA architecture"
        )
    return int(digits[1]), int(digits[2])
