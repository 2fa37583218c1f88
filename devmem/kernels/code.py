"""Compiled code: which compiler makes it, and when the device gets it back."""

from __future__ import annotations

import inspect
import threading
from collections.abc import Hashable, Sequence
from typing import TYPE_CHECKING, Any

from .._core.backends import registry
from ..spi.errors import UnsupportedError
from ..spi.kernel import CompiledKernel, KernelCompiler
from ..spi.types import Capability

if TYPE_CHECKING:
    from .._core.context import Context
    from .._core.stream import Stream
    from .kernel import Kernel

Types = tuple[Hashable, ...]


class Code:
    """A kernel compiled for one device and some types of arguments.

    When the last reference goes, it waits in the device's queue like dropped memory, and is given back when the device is idle.
    """

    __slots__ = ("__weakref__", "closed", "compiled", "context")

    #: What it counts for in the queue.
    nbytes = 0

    def __init__(self, context: Context, compiled: CompiledKernel) -> None:
        self.context = context
        self.compiled = compiled
        self.closed = False

    def __del__(self) -> None:
        # Anywhere, at any time: see `Allocation.__del__`.
        try:
            if not self.closed and not self.context.dead:
                queue: Any = self.context.reclaim.dropped
                queue.append(self)
        except AttributeError:
            pass

    def is_out(self) -> bool:
        """Whether the device still has it."""
        return not self.closed

    def destroy(self) -> None:
        """Give it back; on which streams it was launched nobody has counted, so the device is waited for.

        Unless the device holds nothing: a wait that nobody asked for would take a report from who waits for it.
        """
        if getattr(self.compiled, "resident", True):
            self.context.driver.synchronize()
        self.closed = True  # from here on the driver's, even if it fails
        self.compiled.close()


class Codes:
    """All code of one kernel, by device and by what was launched with."""

    __slots__ = ("by_key", "by_types", "compiling", "kernel")

    def __init__(self, kernel: Kernel) -> None:
        self.kernel = kernel
        #: By the context and what a launch sees of its arguments without asking the compiler.
        self.by_key: dict[tuple[Any, ...], Code] = {}
        self.by_types: dict[tuple[Context, Types], Code] = {}
        self.compiling = threading.RLock()

    def for_arguments(
        self, context: Context, key: tuple[Any, ...], arguments: Sequence[object], stream: Stream
    ) -> Code:
        """The code for these arguments, for a launch on the stream; compiled, if there is none. The device is entered.

        Raises
        ------
        TypeError
            Their number is wrong, or their types are, or are not those of the signature.
        UnsupportedError
            No compiler can be used; or it would have to be loaded while a graph is captured on the stream.
        """
        kernel = self.kernel
        count = len(inspect.signature(kernel.function).parameters)
        if len(arguments) != count:
            raise TypeError(f"{kernel} takes {count} arguments, and was given {len(arguments)}")
        compiler = compiler_for(context)
        given = tuple(type_of(compiler, kernel, place, each) for place, each in enumerate(arguments))
        types = self._declared(compiler, given) if kernel.signatures else given
        code = self.by_key[key] = self.for_types(context, compiler, types, stream)
        return code

    def for_types(self, context: Context, compiler: KernelCompiler, types: Types, stream: Stream | None = None) -> Code:
        """The code for these types; compiled, if there is none. The device is entered."""
        found = self.by_types.get((context, types))
        if found is None:
            with self.compiling:  # one thread compiles, and those that come meanwhile have the same code
                found = self.by_types.get((context, types)) or self._compiled(context, compiler, types, stream)
        return found

    def _compiled(self, context: Context, compiler: KernelCompiler, types: Types, stream: Stream | None) -> Code:
        if (
            stream is not None
            and Capability.CAPTURE in context.capabilities
            and context.driver.capturing(stream.handle)
        ):
            raise UnsupportedError(
                f"{stream!r} is capturing a graph, and {self.kernel} is not compiled for {context.device} and "
                f"{_listed(types)} yet: loading code may wait for the device, or allocate there; launch it once before the "
                f"capture, or call compile_for()"
            )
        self._forget_closed()
        kernel = self.kernel
        try:
            compiled = compiler.compile(kernel.function, types, context.driver, kernel.options)
        except Exception as error:
            error.add_note(f"while {compiler.name} compiled {kernel} for {context.device}")
            raise
        code = self.by_types[context, types] = Code(context, compiled)
        return code

    def _declared(self, compiler: KernelCompiler, given: Types) -> Types:
        """The first signature that takes arguments of these types; one that they are the very types of goes before."""
        declared = [compiler.types_of(each) for each in self.kernel.signatures]
        for types in declared:
            if types == given:
                return types
        for types in declared:
            if len(types) == len(given) and compiler.fits(types, given):
                return types
        raise TypeError(
            f"{self.kernel} was declared for {' and '.join(self.kernel.signatures)}, and given {_listed(given)}: convert the "
            f"arguments, or leave the signature out and let it be compiled for what it is given"
        )

    def _forget_closed(self) -> None:
        """Drop what belongs to devices that were closed, or a kernel would keep every one of them."""
        for key in [key for key in list(self.by_key) if key[0].dead is not None]:
            self.by_key.pop(key, None)
        for types in [types for types in list(self.by_types) if types[0].dead is not None]:
            self.by_types.pop(types, None)


def compiler_for(context: Context) -> KernelCompiler:
    """The compiler for a device's backend: the first that can be used.

    Raises
    ------
    UnsupportedError
        There is none; the message says why of each, with the command that installs it.
    """
    backend = context.info.backend
    plugins = registry()
    found = plugins.compilers_for(backend)
    reasons = []
    for each in found:
        try:
            reason = each.compiler.unavailable()
        except Exception as error:  # it must not raise; one that does must not take the others with it
            reason = f"it failed when it was asked: {type(error).__name__}: {error}"
        if reason is None:
            return each.compiler
        reasons.append(f"{each.compiler.name}: {reason}")
    reasons += plugins.compiler_failures(backend)
    raise UnsupportedError(
        f"no kernel compiler can be used for {context.device} ({'; '.join(reasons) or 'nobody supplies one for its backend'})"
    )


def type_of(compiler: KernelCompiler, kernel: Kernel, place: int, argument: object) -> Hashable:
    """The compiler's type of an argument, or its TypeError with the argument's place and name."""
    try:
        return compiler.type_of(argument)
    except TypeError as error:
        name = [*inspect.signature(kernel.function).parameters, *["one too many"] * (place + 1)][place]
        raise TypeError(f"argument {place} of {kernel}, {name!r}: {error}") from error


def _listed(types: Types) -> str:
    return f"({', '.join(map(str, types))})"
