"""Errors of kernels, and the check of launch configurations."""

from __future__ import annotations

from numbers import Integral
from typing import Any

from .cudadrv.error import CudaAPIError, CudaDriverError, CudaSupportError

__all__ = [
    "CudaAPIError",
    "CudaDriverError",
    "CudaLoweringError",
    "CudaSupportError",
    "KernelRuntimeError",
    "UnsupportedBytecodeError",
    "missing_launch_config_msg",
    "normalize_kernel_dimensions",
]

missing_launch_config_msg = (
    "the launch configuration was not specified: a kernel is launched as kernel[blocks, threads_per_block](arguments)"
)


class KernelRuntimeError(RuntimeError):
    """A kernel raised; `tid` and `ctaid` are the thread and the block."""

    def __init__(self, msg: str, tid: Any = None, ctaid: Any = None) -> None:
        self.tid = tid
        self.ctaid = ctaid
        self.msg = msg
        super().__init__(f"thread={tid} of block={ctaid} raised: {msg}")


class UnsupportedBytecodeError(Exception):
    """A kernel contains instructions that the compiler does not support."""

    def __init__(self, msg: str, loc: Any = None) -> None:
        super().__init__(f"{msg}. Raised from {loc}")


class CudaLoweringError(Exception):
    """A kernel could not be compiled."""


def normalize_kernel_dimensions(griddim: Any, blockdim: Any) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """The grid and the block as three lengths each.

    Raises
    ------
    ValueError
        One of them is None, or has more than three lengths.
    TypeError
        A length is no integer.
    """
    if griddim is None or blockdim is None:
        raise ValueError(missing_launch_config_msg)
    return _three(griddim, "griddim"), _three(blockdim, "blockdim")


def _three(given: Any, name: str) -> tuple[int, ...]:
    lengths = list(given) if isinstance(given, tuple | list) else [given]
    if len(lengths) > 3:
        raise ValueError(f"{name} must be a sequence of 1, 2 or 3 integers, got {lengths}")
    if not all(isinstance(each, Integral) for each in lengths):
        raise TypeError(f"{name} must be a sequence of integers, got {lengths}")
    return tuple(lengths + [1] * (3 - len(lengths)))
