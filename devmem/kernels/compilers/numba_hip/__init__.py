"""Kernels for ROCm, compiled by numba-hip (the extra ``rocm-kernels``), which is imported at first use.

This has not been run on an AMD GPU yet.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from ....spi.errors import UnsupportedError
from ....spi.kernel import KernelCompiler
from ...functions import CudaFunction
from ..numba_compiler import NumbaCompiler

INSTALL = "pip install 'devmem-arrays[rocm-kernels]'"


class NumbaHip(NumbaCompiler):
    """numba-hip as a kernel compiler."""

    name = "numba_hip"
    backend = "roc"
    extra = "rocm-kernels"

    def unavailable(self) -> str | None:
        """Why numba-hip cannot be used, as far as that is known without importing it; it needs an installed ROCm."""
        numba = find_spec("numba")
        if numba is None or not any((Path(each) / "hip").is_dir() for each in numba.submodule_search_locations or ()):
            return f"numba-hip is not installed: {INSTALL}"
        root = Path(os.environ.get("ROCM_PATH") or os.environ.get("ROCM_HOME") or "/opt/rocm")
        if not root.is_dir():
            return f"numba-hip compiles with ROCm's headers and libraries, and there are none at {root}: set ROCM_PATH"
        return None

    def compiler(self) -> Any:
        """The module that compiles to code objects; UnsupportedError if numba-hip cannot use the installed ROCm."""
        try:
            from . import compiler
        except (ImportError, OSError, RuntimeError) as error:
            raise UnsupportedError(
                f"numba-hip could not be imported ({type(error).__name__}: {error}): it needs the ROCm version that it was "
                f"built for, with headers, libamd_comgr and libclang; set ROCM_PATH to it"
            ) from error
        return compiler


def devmem_kernel_compilers() -> Sequence[KernelCompiler]:
    """The hook that `devmem.plugins` calls."""
    return [NumbaHip()]


def type_of_name(name: object) -> Any:
    """The type of one of devmem's names in numba-hip; AttributeError for a function that only CUDA has."""
    from . import device_names

    if isinstance(name, CudaFunction):
        raise AttributeError(f"{name!r} works on CUDA alone")

    return device_names.type_of_name(name)
