"""The kernel: a function, and what launches it."""

# Decision: docs/adr/0010-kernels-are-compiled-by-the-vendors-compiler.md
from __future__ import annotations

import inspect
import numbers
import operator
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import update_wrapper
from types import MappingProxyType
from typing import Any

from .._core.base.device_handle import CurrentDevice
from .._core.device.device import open_device_of
from ..spi.errors import LayoutError, UnsupportedError
from ..spi.types import Extent
from .code import Codes, compiler_for, counted
from .compilers import extensions
from .launch import Launch, Nothing, check_on_host
from .work_items import running_item

#: Threads of a block where nobody says how many: enough for every device to be busy with, and no more than any of them takes.
THREADS = 256
#: Threads that run in step, where those are most: blocks are made of whole ones.
WAVE = 64
#: Threads of a block, at most: so many on every GPU there is.
BLOCK = 1024
#: Bytes of shared memory: more than any of them has for a block.
SHARED = 256 << 10
#: The longest axis that any device takes: an int to the drivers.
MOST = (1 << 31) - 1

Function = Callable[..., object]
Options = Mapping[str, object]
NONE: Options = MappingProxyType({})


class Decorated:
    """What `devmem.kernel` makes of a function.

    Attributes
    ----------
    function : function
        What was decorated. It is never changed, nor are its globals.
    signatures : tuple of str
        The types that it was declared for; empty: it is compiled for those of the arguments.
    options : mapping
        What the compiler is told.
    """

    __name__: str
    __qualname__: str

    def __init__(self, function: Function, signatures: Sequence[str] = (), options: Options = NONE) -> None:
        self.function = function
        self.signatures = tuple(signatures)
        self.options = dict(options)

    def __reduce__(self) -> str:
        return self.__qualname__  # found again in its module, as functions are


class Kernel(Decorated):
    """A function that runs once for each thread of a grid, on a device. Made by `devmem.kernel`.

    Attributes
    ----------
    parameters : tuple of str
        The names of its arguments.
    """

    def __init__(self, function: Function, signatures: Sequence[str] = (), options: Options = NONE) -> None:
        super().__init__(function, signatures, options)
        update_wrapper(self, function)
        self._signature = _of_places(function)
        self.parameters = tuple(self._signature.parameters)
        self.codes = Codes(self)

    def __repr__(self) -> str:
        return f"<kernel {self.__qualname__}>"

    __str__ = __repr__

    def __call__(self, *arguments: object, **named: object) -> None:
        """Say how it is launched."""
        check_on_host(self)
        raise TypeError(f"{self} is launched on a grid of blocks, kernel[grid, block](...), or kernel.forall(n)(...)")

    def __getitem__(self, configuration: Any) -> Launch:
        """``kernel[grid, block]``, ``[grid, block, stream]`` or ``[grid, block, stream, dynamic_shared_bytes]``.

        ``grid``: how many blocks, ``block``: how many threads each; an int or up to three of them, for x, y and z.
        """
        if type(configuration) is not tuple or not 2 <= len(configuration) <= 4:
            raise TypeError(
                f"{self} is configured as kernel[grid, block], kernel[grid, block, stream] or kernel[grid, block, stream, "
                f"dynamic_shared_bytes], not kernel[{configuration!r}]: say how many blocks there are, and how many threads "
                f"each has, or let kernel.forall(n) choose"
            )
        grid, block, stream, shared = (*configuration, 0, 0)[:4]
        return Launch(
            self, _extent("grid", grid, MOST), _extent("block", block, BLOCK), stream, shared and _bytes(shared)
        )

    def forall(self, n: int, stream: Any = 0, *, threads: int = 0, dynamic_shared_bytes: int = 0) -> Launch | Nothing:
        """A launch with more threads than the ``n`` elements, a block more at most; with none for 0.

        The kernel asks whether ``devmem.grid(1)`` is below ``n``; one that does not is found wherever it is first tried, because
        there always is a thread that has no element. Who names the ``threads`` of a block gets as few blocks as hold ``n``.
        """
        count = _integer("forall(n)", n)
        if count < 0:
            raise LayoutError(f"forall() takes a number of elements, not {count}")
        named = _integer("threads", threads)
        threads = named or min(THREADS, (count // WAVE + 1) * WAVE)
        block = _extent("block", threads, BLOCK)
        if not count:
            return Nothing(self)
        blocks = -(-count // threads) if named else count // threads + 1
        return Launch(self, _extent("grid", blocks, MOST), block, stream, _bytes(dynamic_shared_bytes))

    def compile_for(self, device: Any = None, signature: str | None = None) -> None:
        """Compile now, for a device (None: the current one), what would be compiled at the first launch.

        Parameters
        ----------
        device : Device, int or str, optional
            Which one.
        signature : str, optional
            The types of the arguments, ``"void(float32[::1], int64)"``; those that the kernel was declared for, if not given.

        Raises
        ------
        TypeError
            There is no signature, or it is none, or one of another number of arguments than the kernel takes.
        UnsupportedError
            No compiler can be used for the device.
        """
        if not isinstance(signature, str | None):
            raise TypeError(f"a signature is text such as 'void(float32[::1])', not {signature!r}")
        wanted = (signature,) if signature is not None else self.signatures
        if not wanted:
            raise TypeError(
                f"{self} was declared for no types: say which, compile_for(device, 'void(float32[::1])'), or "
                f"@devmem.kernel('...')"
            )
        opened = open_device_of(device)
        compiler = compiler_for(opened)
        with CurrentDevice(opened.handle):
            for each in wanted:
                self.codes.for_types(opened, compiler, self.codes.types_of(compiler, each))

    def bound(self, arguments: tuple[object, ...], named: Mapping[str, object]) -> tuple[object, ...]:
        """The arguments in their places, as a call of the function would have them: by position, by name, or by default.

        Raises
        ------
        TypeError
            Some are missing, too many, unknown or given twice; the message says which.
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
        """What is wrong with the number and the names of arguments."""
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

    def kernels_named(self) -> list[Kernel]:
        """The kernels that it, or a device function that it calls, names: a kernel cannot call one."""
        found: list[Kernel] = []
        functions, seen = [self.function], {self.function}
        while functions:
            for each in _named(functions.pop()):
                kernel = each.kernel if isinstance(each, Launch) else each
                if isinstance(kernel, Kernel) and kernel not in found:
                    found.append(kernel)
                elif isinstance(each, DeviceFunction) and each.function not in seen:
                    seen.add(each.function)
                    functions.append(each.function)
        return found


class DeviceFunction(Decorated):
    """A function that kernels call. Made by ``devmem.kernel(device=True)``; compiled with the kernel that calls it."""

    def __init__(self, function: Function, signatures: Sequence[str] = (), options: Options = NONE) -> None:
        super().__init__(function, signatures, options)
        update_wrapper(self, function)
        #: What compilers made of it, by their names.
        self.compiled: dict[str, object] = {}

    def __repr__(self) -> str:
        return f"<device function {self.__qualname__}>"

    @property
    def _numba_type_(self) -> Any:
        """What numba asks of every global."""
        return extensions.type_of(self)

    def __getitem__(self, configuration: Any) -> Any:
        """Say that it is not launched."""
        raise TypeError(f"{self!r} is called by kernels, and not launched: leave device=True out for that")

    def __call__(self, *arguments: Any, **named: Any) -> Any:
        """Call it, in a kernel that runs in Python."""
        if running_item() is None:
            raise UnsupportedError(
                f"{self!r} is called by kernels; on the host call what was decorated, {self.__name__}.function(...)"
            )
        return self.function(*arguments, **named)


def _of_places(function: Function) -> inspect.Signature:
    """What a function takes, if that is one argument for each name, in their order: a device is given nothing else."""
    found = inspect.signature(function)
    for each in found.parameters.values():
        if each.kind not in (each.POSITIONAL_ONLY, each.POSITIONAL_OR_KEYWORD):
            raise TypeError(
                f"{function.__qualname__}{found} cannot be a kernel: arguments reach a device by their places, and "
                f"{str(each)!r} has none; give each argument a name before any *"
            )
    return found


def _named(function: Function) -> Iterator[object]:
    """What the names in a function stand for, now; those without a value are left out."""
    for cell in getattr(function, "__closure__", None) or ():
        try:
            yield cell.cell_contents
        except ValueError:  # not assigned yet
            pass
    found = getattr(function, "__globals__", {})
    names = getattr(getattr(function, "__code__", None), "co_names", ())
    yield from (found[name] for name in names if name in found)


def _extent(what: str, value: Any, most: int) -> Extent:
    """Lengths along x, y and z, of an int or of up to three; of which an int, alone, is at most ``most``."""
    if type(value) is int and 0 < value <= most:
        return (value, 1, 1)
    lengths = value if isinstance(value, tuple | list) else (value,)
    if not 1 <= len(lengths) <= 3:
        raise LayoutError(f"a {what} has one to three lengths, not {len(lengths)}: {value!r}")
    found = tuple(_integer(what, each) for each in lengths)
    if min(found) < 1:
        advice = ": kernel.forall(n) launches nothing where n may be 0" if most == MOST and 0 in found else ""
        raise LayoutError(f"every length of a {what} is at least 1, got {value!r}{advice}")
    if max(found) > MOST:
        raise LayoutError(f"no length of a {what} is above {MOST}, got {value!r}: let each thread do several elements")
    x, y, z = (*found, 1, 1)[:3]
    if most == BLOCK and x * y * z > BLOCK:
        raise LayoutError(
            f"a block has at most {BLOCK} threads on every GPU, not the {x * y * z} of {value!r}: take smaller blocks, and more"
        )
    return x, y, z


def _integer(what: str, value: Any) -> int:
    try:
        if isinstance(value, bool):
            raise TypeError
        return operator.index(value)
    except TypeError:
        inexact = isinstance(value, numbers.Real) and not isinstance(value, bool)
        advice = ": divide with //, or round it" if inexact else ""
        raise TypeError(f"{what} is made of integers, not {value!r} ({type(value).__name__}){advice}") from None


def _bytes(value: Any) -> int:
    found = _integer("dynamic_shared_bytes", value)
    if found < 0:
        raise LayoutError(f"dynamic_shared_bytes is a number of bytes, not {found}")
    if found > SHARED:
        raise LayoutError(f"dynamic_shared_bytes={found}: no GPU has so much for a block, 48 KiB are there on most")
    return found


def _listed(words: Sequence[str]) -> str:
    return " and ".join(filter(None, (", ".join(words[:-1]), words[-1])))


def _are(words: Sequence[str]) -> str:
    return "is" if len(words) == 1 else "are"
