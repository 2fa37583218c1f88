"""Kernels: functions that run on the device."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Literal, overload

from ..kernels.arguments import In, InOut, Out
from ..kernels.code import compilers_of, why_unavailable
from ..kernels.functions import DeviceFunction
from ..kernels.kernel import Kernel

__all__ = ["In", "InOut", "Out", "kernel"]


def kernel_compilers(backend: str) -> dict[str, str | None]:
    """The kernel compilers of a backend by name, in the order in which they are asked: why each cannot be used, or None."""
    return {compiler.name: why_unavailable(compiler) for compiler in compilers_of(backend)}


@overload
def kernel(function: Callable[..., object], /, *, device: Literal[False] = False, **options: object) -> Kernel: ...
@overload
def kernel(function: Callable[..., object], /, *, device: Literal[True], **options: object) -> DeviceFunction: ...
@overload
def kernel(
    signature: str | Sequence[str] | None = None, /, *, device: Literal[False] = False, **options: object
) -> Callable[[Callable[..., object]], Kernel]: ...
@overload
def kernel(
    signature: str | Sequence[str] | None = None, /, *, device: Literal[True], **options: object
) -> Callable[[Callable[..., object]], DeviceFunction]: ...
def kernel(
    first: Callable[..., object] | str | Sequence[str] | None = None, /, *, device: bool = False, **options: object
) -> Kernel | DeviceFunction | Callable[[Callable[..., object]], Kernel | DeviceFunction]:
    """Make a kernel of a function: ``@devmem.kernel``, ``@devmem.kernel("void(float32[::1])")``, ``@devmem.kernel(device=True)``.

    devmem compiles nothing itself: the function goes to the compiler for the device that it is launched on, numba-cuda on CUDA
    (the extra ``cuda-kernels``), numba-hip on ROCm (``rocm-kernels``), and is run as it is by the simulator on the
    host (``sim``). It is compiled at its first launch with arguments of new types.

    Parameters
    ----------
    first : function, str or sequence of str
        The function; or the types that it is for, as numba spells them, ``"void(float32[::1], int64)"``. Then it takes no others,
        but scalars are converted.
    device : bool
        It is no kernel, but a function that kernels call.
    **options
        What the compiler is told besides: ``fastmath``, ``debug``, ``lineinfo``, ``opt``; numba-cuda takes ``launch_bounds`` too.
        What none of these is a TypeError at the first launch. With ``debug=True`` a division by zero raises a ZeroDivisionError
        in the simulator, as with numba-cuda, and otherwise gives inf, nan or 0; the other options change nothing there.

    Returns
    -------
    Kernel
        ``k[grid, block](...)``, ``k[grid, block, stream, dynamic_shared_bytes](...)``, ``k.forall(n, stream=...)(...)``,
        ``k.compile_for(device)``. Arguments are given as to any function, by position, by name, or left to their defaults. For
        ``device=True`` a function that can be called in kernels.

    Raises
    ------
    TypeError
        What is decorated is no function, or one of ``*arguments`` or of arguments by name alone; or a signature is no text.
    UnsupportedError
        Raised by a launch: no compiler is installed for the device; the message has the command that installs it.

    Examples
    --------
    >>> @dm.kernel
    ... def double(x):
    ...     i = dm.grid(1)
    ...     if i < x.size:
    ...         x[i] *= 2
    >>> d = dm.to_device(np.arange(4))
    >>> double.forall(d.size)(d)
    >>> d.copy_to_host()
    array([0, 2, 4, 6])
    """
    if callable(first):
        return _made(first, (), device, options)
    signatures = (first,) if isinstance(first, str) else () if first is None else first
    if not isinstance(signatures, Sequence) or not all(isinstance(each, str) for each in signatures):
        raise TypeError(
            f"@devmem.kernel is given a function, or a signature, or several: a signature is text such as "
            f"'void(float32[::1])', not {first!r}"
        )

    def decorate(function: Callable[..., object]) -> Kernel | DeviceFunction:
        return _made(function, signatures, device, options)

    return decorate


def _made(
    function: Callable[..., object], signatures: Sequence[str], device: bool, options: dict[str, object]
) -> Kernel | DeviceFunction:
    if isinstance(function, Kernel | DeviceFunction) or not hasattr(function, "__code__"):
        raise TypeError(f"@devmem.kernel makes a kernel of a function, not of {function!r}")
    return (DeviceFunction if device else Kernel)(function, signatures, options)
