"""The kernel: a function, and what launches it."""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping, Sequence
from functools import update_wrapper
from typing import Any

from .._core.device import context_of
from .._core.entered import Entered
from ..spi.errors import LayoutError, UnsupportedError
from ..spi.types import Extent
from . import names
from .code import Codes, compiler_for
from .compilers import extensions
from .launch import Launch, Nothing

#: Threads of a block where nobody says how many: enough for every device to be busy with, and no more than any of them takes.
THREADS = 256
#: The longest axis that any device takes, and more bytes than any has for a block: both are an int to the drivers.
MOST = (1 << 31) - 1


class Kernel:
    """A function that runs once for each thread of a grid, on a device. Made by `devmem.kernel`.

    Attributes
    ----------
    function : function
        What was decorated. It is never changed, nor are its globals.
    signatures : tuple of str
        The types that it was declared for; empty: it is compiled for those of the arguments, at the first launch with them.
    options : mapping
        What the compiler is told.
    """

    __name__: str
    __qualname__: str

    def __init__(
        self,
        function: Callable[..., object],
        signatures: Sequence[str] = (),
        options: Mapping[str, object] | None = None,
    ) -> None:
        self.function = function
        self.signatures = tuple(signatures)
        self.options = dict(options or {})
        self.codes = Codes(self)
        update_wrapper(self, function)

    def __repr__(self) -> str:
        return f"<kernel {self.__qualname__}>"

    __str__ = __repr__

    def __reduce__(self) -> str:
        return self.__qualname__  # found again in its module, as functions are

    def __call__(self, *arguments: object) -> None:
        """Say how it is launched."""
        raise TypeError(f"{self} is launched on a grid of blocks, kernel[grid, block](...), or kernel.forall(n)(...)")

    def __getitem__(self, configuration: Any) -> Launch:
        """``kernel[grid, block]``, ``[grid, block, stream]`` or ``[grid, block, stream, dynamic_shared_bytes]``.

        ``grid``: how many blocks, ``block``: how many threads each; an int or up to three of them, for x, y and z.
        """
        if type(configuration) is not tuple or not 2 <= len(configuration) <= 4:
            raise TypeError(
                f"a launch is configured as kernel[grid, block], kernel[grid, block, stream] or kernel[grid, block, stream, "
                f"dynamic_shared_bytes], not kernel[{configuration!r}]"
            )
        grid, block, stream, shared = (*configuration, 0, 0)[:4]
        return Launch(self, _extent("grid", grid), _extent("block", block), stream, shared and _bytes(shared))

    def forall(self, n: int, stream: Any = 0, *, threads: int = 0, dynamic_shared_bytes: int = 0) -> Launch | Nothing:
        """A launch with at least one thread for each of ``n`` elements, in blocks of ``threads``; of none for 0.

        There may be a few threads more: the kernel asks whether ``devmem.grid(1)`` is below ``n``.
        """
        count = _integer("forall(n)", n)
        if count < 0:
            raise LayoutError(f"forall() takes a number of elements, not {count}")
        per_block = _integer("threads", threads) or min(THREADS, max(count, 1))
        blocks = -(-count // max(per_block, 1))
        if not blocks:
            return Nothing(self)
        return Launch(self, _extent("grid", blocks), _extent("block", per_block), stream, _bytes(dynamic_shared_bytes))

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
            Neither has a signature.
        UnsupportedError
            No compiler can be used for the device.
        """
        wanted = (signature,) if signature is not None else self.signatures
        if not wanted:
            raise TypeError(
                f"{self} was declared for no types: say which, compile_for(device, 'void(float32[::1])'), or "
                f"@devmem.kernel('...')"
            )
        context = context_of(device)
        compiler = compiler_for(context)
        with Entered(context):
            for each in wanted:
                self.codes.for_types(context, compiler, compiler.types_of(each))


class DeviceFunction:
    """A function that kernels call. Made by ``devmem.kernel(device=True)``; compiled with the kernel that calls it."""

    __name__: str
    __qualname__: str

    def __init__(
        self,
        function: Callable[..., object],
        signatures: Sequence[str] = (),
        options: Mapping[str, object] | None = None,
    ) -> None:
        self.function = function
        self.signatures = tuple(signatures)
        self.options = dict(options or {})
        #: What compilers made of it, by their names.
        self.compiled: dict[str, object] = {}
        update_wrapper(self, function)

    def __repr__(self) -> str:
        return f"<device function {self.__qualname__}>"

    def __reduce__(self) -> str:
        return self.__qualname__

    @property
    def _numba_type_(self) -> Any:
        """What numba asks of every global."""
        return extensions.type_of(self)

    def __call__(self, *arguments: Any) -> Any:
        """Call it, in a kernel that runs in Python."""
        if names.running() is None:
            raise UnsupportedError(
                f"{self!r} is called by kernels; on the host call what was decorated, {self.__name__}.function(...)"
            )
        return self.function(*arguments)


def _extent(what: str, value: Any) -> Extent:
    """Lengths along x, y and z, of an int or of up to three."""
    if type(value) is int and 0 < value <= MOST:
        return (value, 1, 1)
    lengths = value if isinstance(value, tuple | list) else (value,)
    if not 1 <= len(lengths) <= 3:
        raise LayoutError(f"a {what} has one to three lengths, not {len(lengths)}: {value!r}")
    found = tuple(_integer(what, each) for each in lengths)
    if min(found) < 1:
        raise LayoutError(f"every length of a {what} is at least 1, got {value!r}")
    if max(found) > MOST:
        raise LayoutError(f"no length of a {what} is above {MOST}, got {value!r}: let each thread do several elements")
    x, y, z = (*found, 1, 1)[:3]
    return x, y, z


def _integer(what: str, value: Any) -> int:
    try:
        if isinstance(value, bool):
            raise TypeError
        return operator.index(value)
    except TypeError:
        raise TypeError(f"{what} is made of integers, not {value!r}") from None


def _bytes(value: Any) -> int:
    found = _integer("dynamic_shared_bytes", value)
    if found < 0:
        raise LayoutError(f"dynamic_shared_bytes is a number of bytes, not {found}")
    if found > MOST:
        raise LayoutError(f"no block has {found} bytes of shared memory")
    return found
