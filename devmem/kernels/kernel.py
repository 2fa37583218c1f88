"""Kernels: a decorated function with its compiled codes, and the configuration of its launches."""

# Decision: docs/adr/0010-kernels-are-compiled-by-the-vendors-compiler.md
from __future__ import annotations

import numbers
import operator
from collections.abc import Sequence
from functools import update_wrapper
from typing import Any

from .._core.base.device_handle import CurrentDevice
from .._core.device.device import open_device_of
from ..spi.errors import LayoutError
from ..spi.types import Extent
from .code import CompiledCodes, compiler_for
from .decorated import NO_OPTIONS, Function, Options
from .functions import KernelFunction
from .launch import EmptyLaunch, Launch, check_on_host

#: Threads of a block by default: enough to occupy every GPU, and allowed by all.
DEFAULT_THREADS = 256
#: The longest wavefront of any GPU: blocks are multiples of it.
LONGEST_WAVE = 64
#: Most threads of a block; every GPU allows this many.
MAX_THREADS = 1024
#: More bytes of shared memory than any GPU has for a block.
MAX_SHARED_BYTES = 256 << 10
#: The longest axis that any device takes; drivers take it as an int.
MAX_LENGTH = (1 << 31) - 1


class Kernel(KernelFunction):
    """A function that runs once for each thread of a grid, on a device. Made by `devmem.kernel`."""

    def __init__(self, function: Function, signatures: Sequence[str] = (), options: Options = NO_OPTIONS) -> None:
        super().__init__(function, signatures, options)
        update_wrapper(self, function)
        self.codes = CompiledCodes(self)

    def __call__(self, *arguments: object, **named: object) -> None:
        """Raise TypeError, which says how a kernel is launched."""
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
            self.codes,
            _extent("grid", grid, MAX_LENGTH),
            _extent("block", block, MAX_THREADS),
            stream,
            shared and _bytes(shared),
        )

    def forall(
        self, n: int, stream: Any = 0, *, threads: int = 0, dynamic_shared_bytes: int = 0
    ) -> Launch | EmptyLaunch:
        """A launch with more threads than the ``n`` elements, by at most one block; nothing is launched for 0.

        The kernel has to check that ``devmem.grid(1)`` is below ``n``. As there always is a thread without an element, a kernel
        that does not check fails at its first launch. With ``threads`` given, there are as few blocks as hold ``n`` elements.
        """
        count = _integer("forall(n)", n)
        if count < 0:
            raise LayoutError(f"forall() takes a number of elements, not {count}")
        named = _integer("threads", threads)
        threads = named or min(DEFAULT_THREADS, (count // LONGEST_WAVE + 1) * LONGEST_WAVE)
        block = _extent("block", threads, MAX_THREADS)
        if not count:
            return EmptyLaunch(self)
        blocks = -(-count // threads) if named else count // threads + 1
        return Launch(self.codes, _extent("grid", blocks, MAX_LENGTH), block, stream, _bytes(dynamic_shared_bytes))

    def compile_for(self, device: Any = None, signature: str | None = None) -> None:
        """Compile now, for a device (None: the current one), instead of at the first launch.

        Parameters
        ----------
        device : Device, int or str, optional
            The device.
        signature : str, optional
            The types of the arguments, ``"void(float32[::1], int64)"``; by default those that the kernel was declared for.

        Raises
        ------
        TypeError
            There is no signature, or it is invalid, or it has another number of arguments than the kernel.
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


def _extent(what: str, value: Any, most: int) -> Extent:
    """The lengths along x, y and z from an int or up to three; ``most`` bounds a single int."""
    if type(value) is int and 0 < value <= most:
        return (value, 1, 1)
    lengths = value if isinstance(value, tuple | list) else (value,)
    if not 1 <= len(lengths) <= 3:
        raise LayoutError(f"a {what} has one to three lengths, not {len(lengths)}: {value!r}")
    found = tuple(_integer(what, each) for each in lengths)
    if min(found) < 1:
        advice = ": kernel.forall(n) launches nothing where n may be 0" if most == MAX_LENGTH and 0 in found else ""
        raise LayoutError(f"every length of a {what} is at least 1, got {value!r}{advice}")
    if max(found) > MAX_LENGTH:
        raise LayoutError(
            f"no length of a {what} is above {MAX_LENGTH}, got {value!r}: let each thread do several elements"
        )
    x, y, z = (*found, 1, 1)[:3]
    if most == MAX_THREADS and x * y * z > MAX_THREADS:
        raise LayoutError(
            f"a block has at most {MAX_THREADS} threads on every GPU, not the {x * y * z} of {value!r}: take smaller blocks"
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
    if found > MAX_SHARED_BYTES:
        raise LayoutError(f"dynamic_shared_bytes={found}: no GPU has that much for a block; most have 48 KiB")
    return found
