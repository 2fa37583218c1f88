"""What streams run: copies, fills and host functions. Jobs are given addresses that can be touched, never a device's."""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Callable, Sequence
from functools import partial

import numpy as np
import numpy.typing as npt

from devmem.toolkit.host_functions import this_thread

from .streams import Run

# ctypes releases the GIL in both, so streams run beside each other and beside the caller.
memmove, memset = ctypes.memmove, ctypes.memset

#: The address of the first row, the bytes from one row to the next, and from one slice of rows to the next.
Rows = tuple[int, int, int]
#: Bytes of a row, rows of a slice, slices.
Shape = tuple[int, int, int]


class _Memory:
    """Memory as NumPy asks for it."""

    __slots__ = ("__array_interface__",)

    def __init__(self, ptr: int, typestr: str, shape: tuple[int, ...], strides: tuple[int, ...]) -> None:
        data = ptr, False
        self.__array_interface__ = {"version": 3, "data": data, "typestr": typestr, "shape": shape, "strides": strides}


def copy_rows(to: Rows, source: Rows, shape: Shape) -> None:
    """Copy rows of bytes."""
    _rows(to, shape)[...] = _rows(source, shape)


def fill_words(ptr: int, value: int, width: int, count: int) -> None:
    """Store a word of ``width`` bytes ``count`` times."""
    words = value.to_bytes(width, sys.byteorder) * min(count, 1 << 14)  # they stay in the processor's cache
    nbytes = width * count
    for at in range(0, nbytes, len(words)):
        memmove(ptr + at, words, min(len(words), nbytes - at))


def call_function(function: Callable[[Sequence[int]], None], places: Sequence[int]) -> None:
    """Call a host function, and mark the thread meanwhile."""
    with this_thread.running_host_function():
        function(places)


def read_bytes(to: int, source: int, nbytes: int) -> Run:
    """Read the source of a `memmove` now; return what writes it."""
    return partial(memmove, to, ctypes.string_at(source, nbytes), nbytes)


def read_rows(to: Rows, source: Rows, shape: Shape) -> Run:
    """Read the source of a `copy_rows` now; return what writes it."""
    return partial(np.copyto, _rows(to, shape), _rows(source, shape).copy())


def _rows(at: Rows, shape: Shape) -> npt.NDArray[np.void]:
    # One void element a row: NumPy then moves a row at a time, ten times faster for narrow rows than an array of bytes.
    (ptr, pitch, slice_pitch), (width, height, depth) = at, shape
    return np.asarray(_Memory(ptr, f"|V{width}", (depth, height), (slice_pitch, pitch)))
