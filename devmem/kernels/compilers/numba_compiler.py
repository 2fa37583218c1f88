"""A numba as a kernel compiler: what is the same for every vendor."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Hashable, Mapping
from typing import Any

from ...spi.driver import Driver, SupportsLaunch
from ...spi.errors import UnsupportedError
from ...spi.kernel import CompiledKernel
from .numba_types import LoadedKernel


class NumbaCompiler(ABC):
    """A vendor's numba, for what devmem asks of a compiler.

    Its module ``compiler``, which imports that numba, has ``typing``, and ``image_for(function, types, driver, options)``, which
    gives the code for a driver's device and the name of the kernel in it.
    """

    name: str
    backend: str

    @abstractmethod
    def unavailable(self) -> str | None:
        """Why it cannot be used, as far as can be seen without importing it."""

    @abstractmethod
    def compiler(self) -> Any:
        """The module, imported when it is needed."""

    def type_of(self, argument: object) -> Hashable:
        """Numba's type of an argument."""
        found: Hashable = self.compiler().typing.type_of(argument)
        return found

    def types_of(self, signature: str) -> tuple[Hashable, ...]:
        """Numba's types of a signature's arguments."""
        found: tuple[Hashable, ...] = self.compiler().typing.types_of(signature)
        return found

    def spelled(self, kind: Hashable) -> str:
        """A type as signatures have it."""
        found: str = self.compiler().typing.spelled(kind)
        return found

    def fits(self, declared: tuple[Hashable, ...], given: tuple[Hashable, ...]) -> bool:
        """Whether scalars can be converted, and arrays are at least as regular as they were declared."""
        return all(map(self.compiler().typing.fits, declared, given))

    def compile(
        self,
        function: Callable[..., object],
        types: tuple[Hashable, ...],
        driver: Driver,
        options: Mapping[str, object],
    ) -> CompiledKernel:
        """Compile for the device of a driver, and load.

        Raises
        ------
        UnsupportedError
            The driver loads nothing; or the kernel needs what the compiler would have to link in from elsewhere.
        TypeError
            An option that the compiler has not got.
        """
        if not isinstance(driver, SupportsLaunch):
            raise UnsupportedError(f"the driver of {driver.info.name} launches no kernels")
        compiler = self.compiler()
        slots = [compiler.typing.slot(each) for each in types]
        image, entry = compiler.image_for(function, types, driver, options)
        return LoadedKernel(driver, image, entry, slots)


def check_options(compiler: str, options: Mapping[str, object], known: Collection[str]) -> None:
    """Refuse options that a compiler would ignore."""
    unknown = sorted(set(options) - set(known))
    if unknown:
        raise TypeError(f"{compiler} is told nothing by {', '.join(unknown)}: it knows {', '.join(sorted(known))}")
