"""Kernels: numba.roc's decorator and its launch configurations, over `devmem.kernel`."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from numbers import Integral
from typing import Any, NoReturn

import numpy as np

import devmem

from ...kernels.work_items import running_item
from ...spi.errors import LayoutError, UnsupportedError
from .hsadrv.devices import select_default_backend
from .hsadrv.error import HsaKernelLaunchError, translating


def jit(signature: Any = None, device: bool = False) -> Any:
    """Make a kernel of a function, or with ``device=True`` a function that kernels call.

    ``@jit``, ``@jit()``, ``@jit(device=True)``, ``@jit("void(float32[:])")``. Signature objects of numba are accepted and
    ignored: the code is compiled for the arguments of the launch.

    Raises
    ------
    TypeError
        The signature of a kernel has a result.
    """
    if callable(signature) and hasattr(signature, "__code__"):
        return _decorate(signature, None, device)
    text = signature if isinstance(signature, str) else None
    returned = re.match(r"\s*(\w[\w.]*)?\s*\(", text or "")
    if not device and returned is not None and returned[1] not in (None, "void", "none", "None"):
        raise TypeError(f"a kernel returns nothing, not {returned[1]}: write void(...), and store results in an array")
    return lambda function: _decorate(function, text, device)


def _decorate(function: Callable[..., object], signature: str | None, device: bool) -> Any:
    if signature is not None and "(" in signature and not re.match(r"\s*\w", signature):
        signature = f"void{signature.strip()}"
    if device:
        return devmem.kernel(device=True)(function)
    return Kernel(devmem.kernel(signature)(function) if signature else devmem.kernel(function))


class Kernel:
    """A kernel with the configuration of its launch.

    ``kernel[groups, items_per_group](...)``, ``kernel[groups, items_per_group, stream](...)``,
    ``kernel.configure(global_size, local_size, stream)(...)``, ``kernel.forall(count)(...)``. Sizes are ints, or up to three of
    them.
    """

    def __init__(
        self,
        native: Any,
        global_size: Sequence[int] = (1,),
        local_size: Sequence[int] | None = (1,),
        stream: Any = None,
    ) -> None:
        self.native = native
        self.global_size = tuple(global_size)
        self.local_size = None if local_size is None else tuple(local_size)
        self.stream = stream or None  # 0 means no stream, too
        self.__name__ = native.__name__
        self.__doc__ = native.__doc__

    def __repr__(self) -> str:
        return f"<kernel {self.__name__}>"

    @property
    def py_func(self) -> Any:
        """The function that was decorated."""
        return self.native.function

    def configure(self, global_size: Any, local_size: Any = None, stream: Any = None) -> Kernel:
        """The kernel with ``global_size`` work-items along each axis, in groups of ``local_size``."""
        items = _lengths(global_size)
        group = None if local_size is None else _lengths(local_size)
        if group is not None:
            axes = max(len(items), len(group))
            items, group = (each + [1] * (axes - len(each)) for each in (items, group))
        return Kernel(self.native, items, group, stream)

    def forall(self, nelem: int, local_size: int = 64, stream: Any = None) -> Kernel:
        """The kernel with exactly one work-item for each of ``nelem`` elements.

        The group size is the largest divisor of ``nelem`` up to ``local_size``.
        """
        size = min(nelem, local_size) or 1
        while nelem % size:
            size -= 1
        return self.configure(nelem, size, stream)

    def __getitem__(self, args: Any) -> Kernel:
        groups, items = _lengths(args[0]), _lengths(args[1])
        axes = max(len(groups), len(items))
        groups, items = (each + [1] * (axes - len(each)) for each in (groups, items))
        return self.configure([g * n for g, n in zip(groups, items, strict=True)], items, *args[2:])

    @translating
    def __call__(self, *args: Any) -> None:
        """Launch the kernel. Without a stream the call waits for it; with one, only until host arrays are copied back.

        Raises
        ------
        HsaKernelLaunchError
            The global size is not a multiple of the group size, or either is larger than devices allow.
        UnsupportedError
            The caller is a kernel.
        """
        if running_item() is not None:
            raise UnsupportedError(
                f"{self} is called by a kernel: make it a device function, @roc.jit(device=True), or launch it after this one"
            )
        select_default_backend()
        given = [_with_direction(each) for each in args]
        if 0 in self.global_size:
            return
        group = self.local_size or (1,) * len(self.global_size)
        rest = [(count, size) for count, size in zip(self.global_size, group, strict=True) if size < 1 or count % size]
        if rest:
            raise HsaKernelLaunchError(
                f"{self.global_size} work-items do not fill groups of {group}: use a multiple, and let the kernel check "
                f"get_global_id(0) < size"
            )
        grid = tuple(count // size for count, size in zip(self.global_size, group, strict=True))
        try:
            launch = self.native[grid, group, self.stream or 0]
        except LayoutError as error:
            raise HsaKernelLaunchError(str(error)) from error
        launch(*given)
        if self.stream is None:
            devmem.synchronize()
        elif any(isinstance(each, devmem.In | devmem.InOut) for each in given):
            devmem.current_device().opened().streams.stream_of(self.stream).synchronize()  # it may be a number


def _with_direction(argument: Any) -> Any:
    """Wrap host memory so that it is copied both ways without a warning, as in numba.roc; read-only memory is only uploaded."""
    if type(argument) is not np.ndarray and not isinstance(argument, np.void):
        return argument
    if isinstance(argument, np.ndarray) and not argument.flags.writeable:
        return devmem.In(argument)
    return devmem.InOut(argument)


def _lengths(value: Any) -> list[int]:
    found = list(value) if isinstance(value, (tuple, list)) else [value]
    if not all(isinstance(each, Integral) for each in found):
        raise TypeError(f"a launch is given integers, not {value!r}: divide with //, or round it")
    if not 1 <= len(found) <= 3:
        raise LayoutError(f"a launch has one to three axes, not {len(found)}: {value!r}")
    return found


def _refuse_instruction(name: str) -> NoReturn:
    raise UnsupportedError(
        f"{name} is an instruction of AMD's early HSA processors with no equivalent on every backend: exchange values through "
        f"shared.array() and wavebarrier()"
    )


def activelanepermute_wavewidth(src: Any, laneid: Any, identity: Any, useidentity: Any) -> NoReturn:
    """Not supported: NotImplementedError. Exchange values through shared.array()."""
    _refuse_instruction("activelanepermute_wavewidth")


def ds_permute(src_lane: Any, dest_lane: Any) -> NoReturn:
    """Not supported: NotImplementedError. Exchange values through shared.array()."""
    _refuse_instruction("ds_permute")


def ds_bpermute(src_lane: Any, dest_lane: Any) -> NoReturn:
    """Not supported: NotImplementedError. Exchange values through shared.array()."""
    _refuse_instruction("ds_bpermute")
