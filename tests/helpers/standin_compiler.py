"""A kernel compiler that compiles nothing, for tests of all that stands before one: on every backend, with no package.

Its kernels copy, on the device and in stream order, so that what a launch is given, where it is ordered and how long it holds on
to what it touches can be seen from outside. ``function.__doc__`` says what a kernel does: ``copy`` copies its first argument's
bytes over its second one's, anything else does nothing.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from devmem import plugins
from devmem.spi.types import CopyKind


class CopyingCompiler:
    """Types are (dtype, axes) of arrays and the classes of scalars; signatures name them: ``void(float32 1, int)``."""

    name = "copying"

    def __init__(self, backend: str) -> None:
        self.backend = backend
        self.reason: str | None = None
        self.compiled: list[CopyingKernel] = []
        self.launches: list[tuple] = []
        self.closed = 0

    def unavailable(self):
        return self.reason

    def type_of(self, argument):
        if isinstance(argument, str | list | type(None)):
            raise TypeError(f"a {type(argument).__name__} is nothing that a kernel takes")
        if hasattr(argument, "dtype") and hasattr(argument, "ptr"):
            return f"{argument.dtype} {len(getattr(argument, 'shape', ()))}"
        return type(argument).__name__

    def types_of(self, signature):
        if not signature.startswith("void("):
            raise TypeError(f"{signature!r} is no signature")
        return tuple(each.strip() for each in signature[5:-1].split(","))

    def fits(self, declared, given):
        return all(a == b or {a, b} <= {"int", "float", "float32"} for a, b in zip(declared, given, strict=True))

    def compile(self, function, types, driver, options):
        if options.get("broken"):
            raise SyntaxError("it does not compile")
        kernel = CopyingKernel(self, function, types, driver, options)
        self.compiled.append(kernel)
        return kernel


class CopyingKernel:
    def __init__(self, compiler, function, types, driver, options) -> None:
        self.compiler, self.function, self.types, self.driver, self.options = compiler, function, types, driver, options

    def launch(self, grid, block, shared_bytes, stream, arguments):
        self.compiler.launches.append((grid, block, shared_bytes, stream, tuple(arguments)))
        if self.function.__doc__ == "copy":
            src, dst = arguments[:2]
            if src.nbytes:
                self.driver.copy(dst.ptr, src.ptr, src.nbytes, CopyKind.D2D, stream, blocking=False)

    def close(self):
        self.compiler.closed += 1


@contextlib.contextmanager
def standing_in(backend: str) -> Iterator[CopyingCompiler]:
    """Within the block it is the only compiler of a backend."""
    compiler = CopyingCompiler(backend)
    kept = plugins.registry.compilers, plugins.BUILT_IN_COMPILERS
    plugins.registry.compilers = {compiler.name: plugins.LoadedCompiler(compiler, "tests")}
    plugins.BUILT_IN_COMPILERS = {}
    try:
        yield compiler
    finally:
        plugins.registry.compilers, plugins.BUILT_IN_COMPILERS = kept
        compiler.launches.clear()  # with the arguments that they kept alive
