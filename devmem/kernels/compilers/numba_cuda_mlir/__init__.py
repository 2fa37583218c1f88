"""Kernels for CUDA, compiled by numba-cuda-mlir (the extra ``cuda-kernels-mlir``), which is imported at first use."""

from __future__ import annotations

from collections.abc import Sequence
from importlib.util import find_spec
from typing import Any

from ....spi.kernel import KernelCompiler
from ..numba_compiler import NumbaCompiler


class NumbaCudaMlir(NumbaCompiler):
    """numba-cuda-mlir, the successor of numba-cuda, as a kernel compiler."""

    name = "numba_cuda_mlir"
    backend = "cuda"
    extra = "cuda-kernels-mlir"

    def unavailable(self) -> str | None:
        """Why it cannot be used, found out without importing it; None if it can."""
        if find_spec("numba_cuda_mlir") is None:
            return f"numba-cuda-mlir is not installed: pip install 'devmem-arrays[{self.extra}]'"
        return None

    def compiler(self) -> Any:
        """The module that compiles to cubins."""
        from . import compiler

        return compiler


def devmem_kernel_compilers() -> Sequence[KernelCompiler]:
    """The hook that `devmem.plugins` calls."""
    return [NumbaCudaMlir()]


def type_of_name(name: object) -> Any:
    """The type of one of devmem's names in numba-cuda-mlir."""
    from . import device_names

    return device_names.type_of_name(name)
