"""Compile functions to code objects, which the HIP runtime loads."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping

from numba.core import sigutils, types
from numba.core.typing.typeof import Purpose, typeof
from numba.hip import hipconfig
from numba.hip.compiler import compile_hip
from numba.np import numpy_support

from ....spi.driver import Driver
from ..numba_compiler import check_options
from ..numba_types import Typing
from . import device_names
from .architecture import architecture

#: Options that are passed on to numba-hip, with its defaults.
OPTIONS = {"debug": False, "lineinfo": False, "fastmath": False, "opt": True}

typing = Typing(
    "numba-hip",
    types,
    lambda argument: typeof(argument, Purpose.argument),
    numpy_support.from_dtype,
    sigutils.normalize_signature,
)


def image_for(
    function: Callable[..., object], argument_types: tuple[Hashable, ...], driver: Driver, options: Mapping[str, object]
) -> tuple[bytes, str]:
    """The code object of a kernel for a driver's device, and the kernel's name in it."""
    return code_for(function, argument_types, architecture(driver), options)


def code_for(
    function: Callable[..., object], argument_types: tuple[Hashable, ...], arch: str, options: Mapping[str, object]
) -> tuple[bytes, str]:
    """The code object of a kernel, and the kernel's name in it; needs no device. TypeError for an unknown option."""
    check_options("numba-hip", options, OPTIONS)
    device_names.register()
    told = {**OPTIONS, **options}
    debug, lineinfo = told["debug"], told["lineinfo"]
    further = {"fastmath": told["fastmath"], "opt": hipconfig.OPT_LEVEL if told["opt"] else 0}
    result = compile_hip(
        function,
        types.void,
        argument_types,
        debug=debug,
        lineinfo=lineinfo,
        fastmath=told["fastmath"],
        options=further,
        amdgpu_arch=arch,
    )
    source = function.__code__
    library, kernel = result.target_context.prepare_hip_kernel(
        result.library, result.fndesc, debug, lineinfo, further, source.co_filename, source.co_firstlineno
    )
    return bytes(library.get_codeobj(amdgpu_arch=arch)), str(kernel.name)
