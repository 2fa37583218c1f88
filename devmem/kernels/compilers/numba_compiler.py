"""The common part of the kernel compilers over a vendor's numba."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Hashable, Mapping
from typing import Any

from ...spi.driver import Driver, SupportsLaunch
from ...spi.errors import UnsupportedError
from ...spi.kernel import CompiledKernel
from .numba_types import LoadedKernel


class NumbaCompiler(ABC):
    """A vendor's numba as a kernel compiler of devmem.

    Its module ``compiler``, which imports that numba, provides ``typing`` and ``image_for(function, types, driver, options)``,
    which returns the code for a driver's device and the kernel's name in it.
    """

    name: str
    backend: str
    #: devmem's extra that installs it.
    extra: str

    @abstractmethod
    def unavailable(self) -> str | None:
        """Why it cannot be used, as far as that is known without importing it; None if it can."""

    @abstractmethod
    def compiler(self) -> Any:
        """The module ``compiler``, imported at first use."""

    def type_of(self, argument: object) -> Hashable:
        """Numba's type of an argument."""
        found: Hashable = self.compiler().typing.type_of(argument)
        return found

    def types_of(self, signature: str) -> tuple[Hashable, ...]:
        """Numba's types of a signature's arguments."""
        found: tuple[Hashable, ...] = self.compiler().typing.types_of(signature)
        return found

    def spelled(self, kind: Hashable) -> str:
        """A type as written in signatures."""
        found: str = self.compiler().typing.spelled(kind)
        return found

    def fits(self, declared: tuple[Hashable, ...], given: tuple[Hashable, ...]) -> bool:
        """Whether given types match the declared ones: scalars convert, and arrays are at least as contiguous as declared."""
        return all(map(self.compiler().typing.fits, declared, given))

    def compile(
        self,
        function: Callable[..., object],
        types: tuple[Hashable, ...],
        driver: Driver,
        options: Mapping[str, object],
    ) -> CompiledKernel:
        """Compile a function for a driver's device, and load the code.

        Raises
        ------
        UnsupportedError
            The driver cannot load kernels; or the kernel needs code that would have to be linked in.
        TypeError
            An option that the compiler does not have.
        """
        if not isinstance(driver, SupportsLaunch):
            raise UnsupportedError(f"the driver of {driver.info.name} launches no kernels")
        compiler = self.compiler()
        slots = [compiler.typing.slot(each) for each in types]
        try:
            image, entry = compiler.image_for(function, types, driver, options)
        except Exception as error:
            if "NotFoundError" not in type(error).__name__:  # of a library: cuda.pathfinder's
                raise
            raise UnsupportedError(
                f"{self.name} lacks a library ({error}): install what it compiles and links with, "
                f"pip install 'devmem-arrays[{self.extra}]'"
            ) from error
        return LoadedKernel(driver, image, entry, slots)


def check_options(compiler: str, options: Mapping[str, object], known: Collection[str]) -> None:
    """Raise TypeError for options that a compiler does not have."""
    unknown = sorted(set(options) - set(known))
    if unknown:
        raise TypeError(f"{compiler} has no option {', '.join(unknown)}: its options are {', '.join(sorted(known))}")
