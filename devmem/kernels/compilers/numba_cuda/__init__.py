"""Kernels for CUDA, compiled by numba-cuda (the extra ``cuda-kernels``), which is imported when it is needed."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib.util import find_spec
from typing import Any

from ....spi.kernel import KernelCompiler
from ..numba_compiler import NumbaCompiler

INSTALL = "pip install 'devmem-arrays[cuda-kernels]'"


class NumbaCuda(NumbaCompiler):
    """numba-cuda, for what devmem asks of a compiler."""

    name = "numba_cuda"
    backend = "cuda"

    def unavailable(self) -> str | None:
        """Why numba-cuda cannot be used; it is looked for, and not imported."""
        if find_spec("numba") is None:
            return f"numba-cuda is not installed: {INSTALL}"
        if find_spec("numba_cuda") is None:
            return f"numba is installed without numba-cuda, which compiles for today's CUDA: {INSTALL}"
        return simulated()

    def compiler(self) -> Any:
        """What makes PTX."""
        from . import compiler

        return compiler


def devmem_kernel_compilers() -> Sequence[KernelCompiler]:
    """For `devmem.plugins`."""
    return [NumbaCuda()]


def simulated() -> str | None:
    """Why nothing can be compiled where numba-cuda runs its own simulator instead."""
    config = sys.modules.get("numba.cuda.core.config")
    if config is not None and getattr(config, "ENABLE_CUDASIM", False):
        return (
            "NUMBA_ENABLE_CUDASIM has numba-cuda simulate: unset it, or run the kernel under @numba.cuda.jit, or by "
            "devmem's own simulator, devmem.use_backend('host')"
        )
    return None


def type_of_name(name: object) -> Any:
    """The type of a name of devmem's in numba-cuda; None where that simulates, or where numba.cuda is something else."""
    if simulated() is not None or find_spec("numba_cuda") is None:
        return None
    from . import device_names

    return device_names.type_of_name(name)


def extend() -> None:
    """Make devmem's names known to numba-cuda; its entry point, where it calls any: launches of 0.30 do not."""
    if simulated() is None:
        from . import device_names

        device_names.register()
