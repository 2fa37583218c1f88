"""Compiled code: which compiler makes it, and when the device gets it back."""

from __future__ import annotations

import threading
from collections.abc import Callable, Hashable, Sequence
from typing import TYPE_CHECKING, Any

from .._core.base.plugin_registry import registry
from ..spi.errors import UnsupportedError
from ..spi.kernel import CompiledKernel, KernelCompiler
from ..spi.types import Capability

if TYPE_CHECKING:
    from .._core.device.open_device import OpenDevice
    from .._core.ordering.stream import Stream
    from .kernel import Kernel

Types = tuple[Hashable, ...]


class Code:
    """A kernel compiled for one device and some types of arguments.

    When the last reference goes, it waits in the device's queue like dropped memory, and is given back when the device is idle.
    """

    __slots__ = ("__weakref__", "closed", "compiled", "open_device")

    #: What it counts for in the queue.
    nbytes = 0

    def __init__(self, opened: OpenDevice, compiled: CompiledKernel) -> None:
        self.open_device = opened
        self.compiled = compiled
        self.closed = False

    def __del__(self) -> None:
        # Anywhere, at any time: see `Allocation.__del__`.
        try:
            if not self.closed and not self.open_device.handle.dead:
                self.open_device.handle.dropped.append(self)
        except AttributeError:
            pass

    def is_out(self) -> bool:
        """Whether the device still has it."""
        return not self.closed

    def release(self, waited: set[int]) -> bool:
        """Unload the code, after waiting for the device: the streams that it was launched on are not counted.

        Unless the device holds nothing of it: an unneeded wait would take an error report from the caller that waits for it.
        """
        if getattr(self.compiled, "resident", True):
            self.open_device.handle.driver.synchronize()
        self.closed = True  # from here on the driver's, even if it fails
        self.compiled.close()
        return True

    def release_at_close(self) -> None:
        """Nothing: the close of the device unloads its code."""


class Codes:
    """All code of one kernel, by device and by what was launched with."""

    __slots__ = ("by_key", "by_types", "compiling", "kernel")

    def __init__(self, kernel: Kernel) -> None:
        self.kernel = kernel
        #: By the opened and what a launch sees of its arguments without asking the compiler.
        self.by_key: dict[tuple[Any, ...], Code] = {}
        self.by_types: dict[tuple[OpenDevice, Types], Code] = {}
        self.compiling = threading.RLock()

    def for_arguments(
        self, opened: OpenDevice, key: tuple[Any, ...], arguments: Sequence[object], stream: Stream
    ) -> Code:
        """The code for these arguments, for a launch on the stream; compiled, if there is none. The device is entered.

        Raises
        ------
        TypeError
            Their types are wrong, or are not those of the signature.
        UnsupportedError
            No compiler can be used; or it would have to be loaded while a graph is captured on the stream.
        """
        compiler = compiler_for(opened)
        given = tuple(type_of(compiler, self.kernel, place, each) for place, each in enumerate(arguments))
        types = self._declared(compiler, given) if self.kernel.signatures else given
        code = self.by_key[key] = self.for_types(opened, compiler, types, stream)
        return code

    def for_types(
        self, opened: OpenDevice, compiler: KernelCompiler, types: Types, stream: Stream | None = None
    ) -> Code:
        """The code for these types; compiled, if there is none. The device is entered."""
        found = self.by_types.get((opened, types))
        if found is None:
            with self.compiling:  # one thread compiles, and those that come meanwhile have the same code
                found = self.by_types.get((opened, types)) or self._compiled(opened, compiler, types, stream)
        return found

    def types_of(self, compiler: KernelCompiler, signature: str) -> Types:
        """The compiler's types of a written signature, which has to be for as many arguments as the kernel takes."""
        found, names = compiler.types_of(signature), self.kernel.parameters
        if len(found) != len(names):
            raise TypeError(
                f"the signature {signature!r} has {counted(found, 'type')}, and {self.kernel} takes "
                f"{counted(names, 'argument')} ({', '.join(names)})"
            )
        return found

    def _compiled(self, opened: OpenDevice, compiler: KernelCompiler, types: Types, stream: Stream | None) -> Code:
        if (
            stream is not None
            and Capability.CAPTURE in opened.handle.capabilities
            and opened.handle.driver.capturing(stream.handle)
        ):
            raise UnsupportedError(
                f"{stream!r} is capturing a graph, and {self.kernel} is not compiled for {opened.device} and "
                f"{_listed(compiler, types)} yet: loading code may wait for the device, or allocate there; launch it once "
                f"before the capture, or call compile_for()"
            )
        self._forget_closed()
        kernel = self.kernel
        try:
            compiled = compiler.compile(kernel.function, types, opened.handle.driver, kernel.options)
        except Exception as error:
            error.add_note(f"while {compiler.name} compiled {kernel} for {opened.device}")
            for other in kernel.kernels_named():
                error.add_note(
                    f"it names {other}, and a kernel cannot call one: make that a device function, "
                    f"@devmem.kernel(device=True), or launch it from the host"
                )
            raise
        code = self.by_types[opened, types] = Code(opened, compiled)
        return code

    def _declared(self, compiler: KernelCompiler, given: Types) -> Types:
        """The first signature that takes arguments of these types; one that they are the very types of goes before."""
        declared = [self.types_of(compiler, each) for each in self.kernel.signatures]
        for types in declared:
            if types == given:
                return types
        for types in declared:
            if compiler.fits(types, given):
                return types
        told = [
            f"argument {place}, {name!r}, is {_spelled(compiler, one)}, where {signature} has {_spelled(compiler, other)}"
            for signature, types in zip(self.kernel.signatures, declared, strict=True)
            for place, (name, one, other) in enumerate(zip(self.kernel.parameters, given, types, strict=True))
            if not compiler.fits((other,), (one,))
        ]
        raise TypeError(
            f"{self.kernel} was declared for {' and '.join(self.kernel.signatures)}, and given {_listed(compiler, given)}: "
            f"{'; '.join(told)}; convert the arguments, or leave the signature out and let it be compiled for what it is given"
        )

    def _forget_closed(self) -> None:
        """Drop what belongs to devices that were closed, or a kernel would keep every one of them."""
        for key in [key for key in list(self.by_key) if key[0].handle.dead is not None]:
            self.by_key.pop(key, None)
        for types in [types for types in list(self.by_types) if types[0].handle.dead is not None]:
            self.by_types.pop(types, None)


def compiler_for(opened: OpenDevice) -> KernelCompiler:
    """The compiler for a device's backend: the first that can be used.

    Raises
    ------
    UnsupportedError
        There is none; the message says why of each, with the command that installs it.
    """
    backend = opened.handle.info.backend
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
        f"no kernel compiler can be used for {opened.device} ({'; '.join(reasons) or 'nobody supplies one for its backend'})"
    )


def argument(kernel: Kernel, place: int) -> str:
    """What messages call an argument of a launch."""
    return f"argument {place} of {kernel}, {kernel.parameters[place]!r}"


def type_of(compiler: KernelCompiler, kernel: Kernel, place: int, value: object) -> Hashable:
    """The compiler's type of an argument, or its TypeError with the argument's place and name."""
    try:
        return compiler.type_of(value)
    except TypeError as error:
        raise TypeError(f"{argument(kernel, place)}: {error}") from error


def counted(items: Sequence[object], what: str) -> str:
    """How many there are, in words: ``1 argument``, ``2 arguments``."""
    return f"{len(items)} {what}{'s' * (len(items) != 1)}"


def _listed(compiler: KernelCompiler, types: Types) -> str:
    return f"({', '.join(_spelled(compiler, each) for each in types)})"


def _spelled(compiler: KernelCompiler, kind: Hashable) -> str:
    """A type as people write it, of compilers that say."""
    spelled: Callable[[Hashable], str] = getattr(compiler, "spelled", str)
    return spelled(kind)
