"""Compiled code of kernels: which compiler makes it, how it is found again, and when it is unloaded."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from .._core.base.config import settings
from .._core.base.outer_lock import OuterLock
from .._core.base.plugin_registry import registry
from ..spi.errors import ConfigError, UnsupportedError
from ..spi.kernel import CompiledKernel, KernelCompiler
from ..spi.types import Capability
from ..toolkit.locks import Rank
from .functions import KernelFunction, counted

if TYPE_CHECKING:
    from .._core.device.open_device import OpenDevice
    from .._core.ordering.stream import Stream

Types = tuple[Hashable, ...]


class CompiledCode:
    """A kernel compiled for one device and certain types of arguments.

    When the last reference is dropped, the code joins the device's queue of deferred frees, as memory does, and is unloaded when
    the device is idle.
    """

    __slots__ = ("__weakref__", "closed", "compiled", "open_device")

    #: The bytes that it counts for in the queue.
    nbytes = 0
    #: Unloading waits for the device.
    may_wait = True

    def __init__(self, opened: OpenDevice, compiled: CompiledKernel) -> None:
        self.open_device = opened
        self.compiled = compiled
        self.closed = False

    def __del__(self) -> None:
        # Runs at any time in any thread: see `Allocation.__del__`.
        try:
            if not self.closed and not self.open_device.handle.dead:
                self.open_device.handle.dropped.append(self)
        except AttributeError:
            pass

    def is_out(self) -> bool:
        """Whether the code is still loaded."""
        return not self.closed

    def release(self, waited: set[int]) -> bool:
        """Unload it after waiting for the device, as the streams of its launches are not recorded.

        The simulator's code is not resident on the device and needs no wait, which would also raise reports of the simulator
        that belong to another caller.
        """
        if getattr(self.compiled, "resident", True):
            self.open_device.handle.driver.synchronize()
        self.closed = True  # even if the next call fails
        self.compiled.close()
        return True

    def release_at_close(self) -> None:
        """Nothing: the close of the device unloads its code."""


class CompiledCodes:
    """All compiled code of one kernel, by device and types of arguments."""

    __slots__ = ("by_key", "by_types", "compiling", "kernel")

    def __init__(self, kernel: KernelFunction) -> None:
        self.kernel = kernel
        #: By the device and what a launch knows of its arguments without the compiler.
        self.by_key: dict[tuple[Any, ...], CompiledCode] = {}
        self.by_types: dict[tuple[OpenDevice, Types], CompiledCode] = {}
        self.compiling = OuterLock("variants of a kernel", Rank.COMPILE, "a kernel, which another thread compiles,")

    def for_arguments(
        self, opened: OpenDevice, key: tuple[Any, ...], arguments: Sequence[object], stream: Stream
    ) -> CompiledCode:
        """The code for these arguments, compiled if necessary, for a launch on the stream. The device is current.

        Raises
        ------
        TypeError
            The compiler does not take their types, or they do not match the signatures.
        UnsupportedError
            No compiler is usable; or code would have to be loaded while the stream captures a graph.
        """
        compiler = compiler_for(opened)
        given = tuple(type_of(compiler, self.kernel, place, each) for place, each in enumerate(arguments))
        types = self._declared(compiler, given) if self.kernel.signatures else given
        code = self.by_key[key] = self.for_types(opened, compiler, types, stream)
        return code

    def for_types(
        self, opened: OpenDevice, compiler: KernelCompiler, types: Types, stream: Stream | None = None
    ) -> CompiledCode:
        """The code for these types, compiled if necessary. The device is current."""
        found = self.by_types.get((opened, types))
        if found is None:
            with self.compiling:  # one thread compiles, the others wait for its result
                found = self.by_types.get((opened, types)) or self._compiled(opened, compiler, types, stream)
        return found

    def types_of(self, compiler: KernelCompiler, signature: str) -> Types:
        """The compiler's types of a signature, whose number of arguments has to be the kernel's."""
        found, names = compiler.types_of(signature), self.kernel.parameters
        if len(found) != len(names):
            raise TypeError(
                f"the signature {signature!r} has {counted(found, 'type')}, and {self.kernel} takes "
                f"{counted(names, 'argument')} ({', '.join(names)})"
            )
        return found

    def _compiled(
        self, opened: OpenDevice, compiler: KernelCompiler, types: Types, stream: Stream | None
    ) -> CompiledCode:
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
            for other in kernel.kernels_referenced():
                error.add_note(
                    f"it refers to {other}, and a kernel cannot call another one: make that a device function, "
                    f"@devmem.kernel(device=True), or launch it from the host"
                )
            raise
        code = self.by_types[opened, types] = CompiledCode(opened, compiled)
        return code

    def _declared(self, compiler: KernelCompiler, given: Types) -> Types:
        """The types of the signature that equals these types, else of the one that loses least of them; the first of several."""
        declared = [self.types_of(compiler, each) for each in self.kernel.signatures]
        for types in declared:
            if types == given:
                return types
        if fitting := [types for types in declared if compiler.fits(types, given)]:
            return min(fitting, key=lambda types: _losses(types, given))
        mismatches = [
            f"argument {place}, {name!r}, is {_type_text(compiler, one)}, where {signature} has {_type_text(compiler, other)}"
            for signature, types in zip(self.kernel.signatures, declared, strict=True)
            for place, (name, one, other) in enumerate(zip(self.kernel.parameters, given, types, strict=True))
            if not compiler.fits((other,), (one,))
        ]
        raise TypeError(
            f"{self.kernel} was declared for {' and '.join(self.kernel.signatures)}, and given {_listed(compiler, given)}: "
            f"{'; '.join(mismatches)}; convert the arguments, or leave out the signature to compile for the given types"
        )

    def _forget_closed(self) -> None:
        """Drop the code of closed devices, which the keys would keep alive."""
        for key in [key for key in list(self.by_key) if key[0].handle.dead is not None]:
            self.by_key.pop(key, None)
        for types in [types for types in list(self.by_types) if types[0].handle.dead is not None]:
            self.by_types.pop(types, None)


def _losses(declared: Types, given: Types) -> tuple[int, int]:
    """Count the arguments whose conversion to the declared type may lose values, and all that are converted."""
    pairs = [(one, other) for one, other in zip(declared, given, strict=True) if one != other]
    lossy = sum(not np.can_cast(_dtype_of(other), _dtype_of(one)) for one, other in pairs)
    return lossy, len(pairs)


def _dtype_of(kind: Hashable) -> np.dtype[Any]:
    """NumPy's type of a number, by the name that it has in signatures; of objects for all that is no number."""
    try:
        return np.dtype(str(kind))
    except TypeError:
        return np.dtype(object)


def compiler_for(opened: OpenDevice) -> KernelCompiler:
    """The first usable compiler for a device's backend.

    Raises
    ------
    UnsupportedError
        None is usable; the message says why for each, with the command that installs it.
    """
    backend = opened.handle.info.backend
    reasons = []
    for compiler in compilers_of(backend):
        reason = why_unavailable(compiler)
        if reason is None:
            return compiler
        reasons.append(f"{compiler.name}: {reason}")
    reasons += registry().compiler_failures(backend)
    if not reasons and Capability.LAUNCH not in opened.handle.capabilities:
        reasons = ["its driver launches no compiled functions; use the kernels of the vendor's own library"]
    raise UnsupportedError(
        f"no kernel compiler can be used for {opened.device} ({'; '.join(reasons) or 'none is installed for its backend'})"
    )


def compilers_of(backend: str) -> list[KernelCompiler]:
    """The compilers for a backend, the first usable of which takes its kernels; the one that DEVMEM_KERNEL_COMPILER names alone.

    Raises
    ------
    ConfigError
        DEVMEM_KERNEL_COMPILER names no compiler of any backend.
    """
    found = [each.compiler for each in registry().compilers_for(backend)]
    wanted = settings().kernel_compiler
    chosen = [each for each in found if each.name == wanted]
    if wanted and not chosen and wanted not in (known := registry().compiler_names()):
        raise ConfigError(f"DEVMEM_KERNEL_COMPILER is {wanted!r}, and no such compiler is known: {', '.join(known)}")
    return chosen or found


def why_unavailable(compiler: KernelCompiler) -> str | None:
    """Why a compiler cannot be used; None if it can."""
    try:
        return compiler.unavailable()
    except (Exception, SystemExit) as error:  # a broken plugin must not disable the other compilers
        return f"unavailable() raised {type(error).__name__}: {error}"


def argument(kernel: KernelFunction, place: int) -> str:
    """An argument of a launch, for messages."""
    return f"argument {place} of {kernel}, {kernel.parameters[place]!r}"


def type_of(compiler: KernelCompiler, kernel: KernelFunction, place: int, value: object) -> Hashable:
    """The compiler's type of an argument; its TypeError with the argument's position and name."""
    try:
        return compiler.type_of(value)
    except TypeError as error:
        raise TypeError(f"{argument(kernel, place)}: {error}") from error


def _listed(compiler: KernelCompiler, types: Types) -> str:
    return f"({', '.join(_type_text(compiler, each) for each in types)})"


def _type_text(compiler: KernelCompiler, kind: Hashable) -> str:
    """A type as in signatures, if the compiler can write it so."""
    spelled: Callable[[Hashable], str] = getattr(compiler, "spelled", str)
    return spelled(kind)
