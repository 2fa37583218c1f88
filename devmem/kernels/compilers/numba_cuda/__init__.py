"""Kernels for CUDA, compiled by numba-cuda (the extra ``cuda-kernels``), which is imported at first use."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib.util import find_spec
from typing import Any

from ....spi.kernel import KernelCompiler
from ..numba_compiler import NumbaCompiler

INSTALL = "pip install 'devmem-arrays[cuda-kernels]'"


class NumbaCuda(NumbaCompiler):
    """numba-cuda as a kernel compiler."""

    name = "numba_cuda"
    backend = "cuda"
    extra = "cuda-kernels"

    def unavailable(self) -> str | None:
        """Why numba-cuda cannot be used, found out without importing it; None if it can."""
        if find_spec("numba") is None:
            return f"numba-cuda is not installed: {INSTALL}"
        if find_spec("numba_cuda") is None:
            return f"numba is installed without numba-cuda, which compiles for today's CUDA: {INSTALL}"
        return simulated()

    def compiler(self) -> Any:
        """The module that compiles to PTX."""
        from . import compiler

        return compiler


def devmem_kernel_compilers() -> Sequence[KernelCompiler]:
    """The hook that `devmem.plugins` calls."""
    return [NumbaCuda()]


def simulated() -> str | None:
    """Why numba-cuda compiles nothing, if it runs its own simulator; None if it does not."""
    config = sys.modules.get("numba.cuda.core.config")
    if config is not None and getattr(config, "ENABLE_CUDASIM", False):
        return (
            "NUMBA_ENABLE_CUDASIM makes numba-cuda simulate: unset it, or run the kernel under @numba.cuda.jit, or in "
            "devmem's own simulator, devmem.use_backend('host')"
        )
    return None


def type_of_name(name: object) -> Any:
    """The type of one of devmem's names in numba-cuda; None if it simulates, or if numba.cuda is another package."""
    if simulated() is not None or find_spec("numba_cuda") is None:
        return None
    from . import device_names

    return device_names.type_of_name(name)


def extend() -> None:
    """Register devmem's names with numba-cuda. Its entry point for extensions, which launches of 0.30 do not call."""
    if simulated() is None:
        from . import device_names

        device_names.register()
