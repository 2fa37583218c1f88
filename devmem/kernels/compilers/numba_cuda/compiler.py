"""From a function to something that the CUDA driver launches."""

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

#: What numba's compile function is told as it is.
OPTIONS = frozenset({"debug", "lineinfo", "fastmath", "opt", "launch_bounds"})
_ENTRY = re.compile(r"\.entry\s+([\w$]+)")
#: Functions that numba-cuda links from elsewhere into a kernel that needs them.
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
    """PTX for the architecture of a driver's device, as the driver takes it, and the kernel's name in it."""
    ptx = ptx_for(function, argument_types, compute_capability(driver), options)
    [entry] = _ENTRY.findall(ptx)
    return ptx.encode() + b"\0", entry


def ptx_for(
    function: Callable[..., object],
    argument_types: tuple[Hashable, ...],
    capability: tuple[int, int],
    options: Mapping[str, object],
) -> str:
    """The PTX of a kernel, with no device.

    Raises
    ------
    UnsupportedError
        The kernel needs functions that numba-cuda links in from elsewhere.
    TypeError
        An option that numba-cuda has not got.
    """
    check_options("numba-cuda", options, OPTIONS)
    device_names.register()
    signature = types.void(*argument_types)
    code, _ = cuda.compile(function, signature, device=False, cc=capability, abi="numba", output="ptx", **options)
    ptx = code.decode() if isinstance(code, bytes) else str(code)
    missing = sorted(set(_EXTERN.findall(ptx)) - _IN_EVERY_DRIVER)
    if missing:
        raise UnsupportedError(
            f"the kernel {function.__qualname__} calls {', '.join(missing)}, which has to be linked in (reshape of an array, or "
            f"arrays that are made in the kernel, do): do that on the host, or use devmem.local.array"
        )
    return ptx


def compute_capability(driver: Driver) -> tuple[int, int]:
    """The device's. Of one that is newer than the compiler, numba-cuda makes the newest that it knows."""
    digits = re.fullmatch(r"sm_(\d+)(\d)", driver.info.arch)
    if digits is None:
        raise UnsupportedError(f"the architecture {driver.info.arch!r} of {driver.info.name} is none of CUDA's")
    return int(digits[1]), int(digits[2])
