"""Kernels for CUDA, compiled by numba-cuda (the extra ``cuda-kernels``), which is imported when it is needed."""

from __future__ import annotations

import sys
from collections.abc import Callable, Hashable, Mapping, Sequence
from importlib.util import find_spec
from typing import Any

from ....spi.driver import Driver
from ....spi.kernel import CompiledKernel, KernelCompiler

INSTALL = "pip install 'numba-cuda[cu13]'"


class NumbaCuda:
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

    def type_of(self, argument: object) -> Hashable:
        """Numba's type of an argument."""
        from . import compiler

        return compiler.typing.type_of(argument)

    def types_of(self, signature: str) -> tuple[Hashable, ...]:
        """Numba's types of a signature's arguments."""
        from . import compiler

        return compiler.typing.types_of(signature)

    def fits(self, declared: tuple[Hashable, ...], given: tuple[Hashable, ...]) -> bool:
        """Whether scalars can be converted, and arrays are at least as regular as they were declared."""
        from . import compiler

        return all(map(compiler.typing.fits, declared, given))

    def compile(
        self,
        function: Callable[..., object],
        types: tuple[Hashable, ...],
        driver: Driver,
        options: Mapping[str, object],
    ) -> CompiledKernel:
        """PTX for the device's architecture, loaded."""
        from . import compiler

        return compiler.compile(function, types, driver, options)


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
