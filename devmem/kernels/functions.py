"""The functions that `devmem.kernel` decorates: kernels (`KernelFunction`) and device functions, which kernels call."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import update_wrapper
from operator import methodcaller
from typing import Any

from ..spi.errors import UnsupportedError
from .compilers import extensions
from .decorated import NO_OPTIONS, Decorated, Function, Options, Unchanging
from .work_items import running_item


class KernelFunction(Decorated):
    """The function of a kernel, without what compiles and launches it.

    Attributes
    ----------
    parameters : tuple of str
        The names of its arguments.
    """

    #: A drop-in's own warning of a host array that a launch copies: called with the description of the argument.
    warn_of_copy: Callable[[str], None] | None = None

    def __init__(self, function: Function, signatures: Sequence[str] = (), options: Options = NO_OPTIONS) -> None:
        super().__init__(function, signatures, options)
        self._signature = _positional_signature(function)
        self.parameters = tuple(self._signature.parameters)

    def __repr__(self) -> str:
        return f"<kernel {self.__qualname__}>"

    __str__ = __repr__

    def bound(self, arguments: tuple[object, ...], named: Mapping[str, object]) -> tuple[object, ...]:
        """All arguments by position, with named ones and defaults filled in as Python does for a call.

        Raises
        ------
        TypeError
            An argument is missing, unknown, given twice or one too many; the message says which.
        """
        try:
            found = self._signature.bind(*arguments, **named)
        except TypeError as error:
            raise TypeError(
                f"{self} takes {counted(self.parameters, 'argument')} ({', '.join(self.parameters)}), and was given "
                f"{len(arguments) + len(named)}: {'; '.join(self._misfits(arguments, named)) or error}"
            ) from None
        found.apply_defaults()
        return found.args

    def _misfits(self, arguments: tuple[object, ...], named: Mapping[str, object]) -> Iterator[str]:
        """The errors in the number and the names of arguments."""
        names = self.parameters
        placed = names[: len(arguments)]
        needed = [name for name, each in self._signature.parameters.items() if each.default is each.empty]
        extra = [f"argument {place} ({type(each).__name__})" for place, each in enumerate(arguments)][len(names) :]
        if extra:
            yield f"{_listed(extra)} {_are(extra)} too many"
        twice = [repr(name) for name in named if name in placed]
        if twice:
            yield f"{_listed(twice)} {_are(twice)} given by position and by name"
        unknown = [repr(name) for name in named if name not in names]
        if unknown:
            yield f"there is no argument {_listed(unknown)}"
        missing = [repr(name) for name in needed if name not in placed and name not in named]
        if missing:
            yield f"{_listed(missing)} {_are(missing)} missing"

    def kernels_referenced(self) -> list[KernelFunction]:
        """The kernels that it, or a device function that it calls, refers to: a kernel cannot call another one."""
        found: list[KernelFunction] = []
        functions, seen = [self.function], {self.function}
        while functions:
            for each in _referenced(functions.pop()):
                kernel = each.kernel if isinstance(each, ConfiguredKernel) else each
                if isinstance(kernel, KernelFunction) and kernel not in found:
                    found.append(kernel)
                elif isinstance(each, DeviceFunction) and each.function not in seen:
                    seen.add(each.function)
                    functions.append(each.function)
        return found


class ConfiguredKernel(Unchanging):
    """A kernel with the grid that it is to be launched on."""

    __slots__ = ("kernel",)

    def __init__(self, kernel: KernelFunction) -> None:
        self.kernel = kernel

    def again(self) -> methodcaller:
        """Return a callable that configures a kernel the same way, in any process."""
        raise NotImplementedError

    def __reduce__(self) -> tuple[Any, ...]:
        return self.again(), (self.kernel,)


class DeviceFunction(Decorated):
    """A function that kernels call. Made by ``devmem.kernel(device=True)``; compiled with the kernel that calls it."""

    def __init__(self, function: Function, signatures: Sequence[str] = (), options: Options = NO_OPTIONS) -> None:
        super().__init__(function, signatures, options)
        update_wrapper(self, function)
        #: Results of the compilers, by their names.
        self.compiled: dict[str, object] = {}

    def __repr__(self) -> str:
        return f"<device function {self.__qualname__}>"

    @property
    def _numba_type_(self) -> Any:
        """The type that numba looks up for every global."""
        return extensions.type_of(self)

    def __getitem__(self, configuration: Any) -> Any:
        """Raise TypeError: device functions are not launched."""
        raise TypeError(f"{self!r} is called by kernels, and not launched: leave device=True out for that")

    def __call__(self, *arguments: Any, **named: Any) -> Any:
        """Call the function in a kernel that runs in Python."""
        if running_item() is None:
            raise UnsupportedError(
                f"{self!r} is called by kernels; on the host call what was decorated, {self.__name__}.function(...)"
            )
        return self.function(*arguments, **named)


class CudaFunction:
    """A function for kernels that only CUDA has, by its name in numba.cuda: ``popc``, ``libdevice.sqrt``."""

    def __init__(self, name: str) -> None:
        self.__name__ = name

    def __repr__(self) -> str:
        return f"<function numba.cuda.{self.__name__}, for kernels>"

    def __call__(self, *arguments: Any) -> Any:
        """Compute it in a kernel that runs in Python; UnsupportedError on the host."""
        item = running_item()
        if item is None:
            raise UnsupportedError(f"{self.__name__} belongs in a kernel, and does not work on the host")
        return item.call(self.__name__, arguments)

    @property
    def _numba_type_(self) -> Any:
        """The type that numba looks up for every global; AttributeError if no compiler for CUDA is imported."""
        return extensions.type_of(self)


def _positional_signature(function: Function) -> inspect.Signature:
    """The signature of a function whose arguments are all positional: a device takes no others."""
    found = inspect.signature(function)
    for each in found.parameters.values():
        if each.kind not in (each.POSITIONAL_ONLY, each.POSITIONAL_OR_KEYWORD):
            raise TypeError(
                f"{function.__qualname__}{found} cannot be a kernel: arguments reach a device by their places, and "
                f"{str(each)!r} has none; give each argument a name before any *"
            )
    return found


def counted(items: Sequence[object], what: str) -> str:
    """The number of items as text: ``1 argument``, ``2 arguments``."""
    return f"{len(items)} {what}{'s' * (len(items) != 1)}"


def _referenced(function: Function) -> Iterator[object]:
    """The current values of the names in a function; names without a value are left out."""
    for cell in getattr(function, "__closure__", None) or ():
        try:
            yield cell.cell_contents
        except ValueError:  # not assigned yet
            pass
    found = getattr(function, "__globals__", {})
    names = getattr(getattr(function, "__code__", None), "co_names", ())
    yield from (found[name] for name in names if name in found)


def _listed(words: Sequence[str]) -> str:
    return " and ".join(filter(None, (", ".join(words[:-1]), words[-1])))


def _are(words: Sequence[str]) -> str:
    return "is" if len(words) == 1 else "are"
