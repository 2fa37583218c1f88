"""Compile functions to cubins or PTX, which the CUDA driver loads.

numba-cuda-mlir asks the driver which device is current, also where the architecture is given; `compile` of devmem has entered
the device by then. It links for that device, so a cubin is taken where the architectures agree, and PTX elsewhere.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Hashable, Mapping
from typing import Any

from numba_cuda_mlir import cuda, types
from numba_cuda_mlir.numba_cuda.core import sigutils
from numba_cuda_mlir.numba_cuda.np import numpy_support
from numba_cuda_mlir.numba_cuda.typing.typeof import Purpose, typeof

from ....spi.driver import Driver
from ....spi.errors import UnsupportedError
from .. import abi
from ..numba_compiler import check_options
from ..numba_types import Typing
from . import device_names

#: Options that are passed on to numba's decorator.
OPTIONS = frozenset({"debug", "lineinfo", "fastmath", "opt", "launch_bounds"})
_CUDA_ARCHITECTURE = re.compile(r"sm_\d+[af]?")


class MlirTyping(Typing):
    """Types of numba-cuda-mlir, whose arrays and complex numbers are MLIR's."""

    def array_slot(self, kind: Any) -> abi.Slot:
        """MLIR's descriptor. Strides are counted in elements; in bytes where an element is opaque, a record or text."""
        opaque = isinstance(kind.dtype, types.Record | types.CharSeq | types.UnicodeCharSeq)
        return abi.memref(kind.ndim, 1 if opaque else numpy_support.as_dtype(kind.dtype).itemsize)

    def complex_slot(self, code: str) -> abi.Slot:
        """One parameter with both parts."""
        return abi.packed_complex(code)

    def _array(self, array: Any) -> Any:
        kind = super()._array(array)
        if not kind.aligned or (array.dtype.names is None and any(each % array.itemsize for each in array.strides)):
            raise NotImplementedError(
                f"arrays whose elements are not a whole number of elements apart, or not aligned; its strides are "
                f"{array.strides}, its items have {array.itemsize} bytes: copy it into one of its own"
            )
        return kind


typing = MlirTyping(
    "numba-cuda-mlir",
    types,
    lambda argument: typeof(argument, Purpose.argument),
    numpy_support.from_dtype,
    sigutils.normalize_signature,
)


def image_for(
    function: Callable[..., object], argument_types: tuple[Hashable, ...], driver: Driver, options: Mapping[str, object]
) -> tuple[bytes, str]:
    """A cubin, or PTX, for the architecture of a driver's device, and the kernel's name in it."""
    made = compiled(function, argument_types, architecture(driver), options)
    if made.metadata["gpu_target"]["linker_arch"] == made.metadata["gpu_target"]["chip"]:
        return bytes(made.metadata["cubin"]), str(made.metadata["func_name"])
    return str(made.ptx).encode() + b"\0", str(made.metadata["func_name"])


def ptx_for(
    function: Callable[..., object], argument_types: tuple[Hashable, ...], chip: str, options: Mapping[str, object]
) -> str:
    """The PTX of a kernel, for an architecture such as ``sm_90``. A driver is needed, and no device of that architecture."""
    return str(compiled(function, argument_types, chip, options).ptx)


def compiled(
    function: Callable[..., object], argument_types: tuple[Hashable, ...], chip: str, options: Mapping[str, object]
) -> Any:
    """Compile a kernel with numba-cuda-mlir; TypeError for an option that it does not have."""
    check_options("numba-cuda-mlir", options, OPTIONS)
    device_names.register()
    made = cuda.jit(types.void(*argument_types), chip=chip, **options)(function)
    [found] = made.overloads.values()
    return found


def architecture(driver: Driver) -> str:
    """The device's architecture, as NVIDIA writes it."""
    if not _CUDA_ARCHITECTURE.fullmatch(driver.info.arch):
        raise UnsupportedError(
            f"the architecture {driver.info.arch!r} of {driver.info.name} is not a CUDA architecture"
        )
    return driver.info.arch
