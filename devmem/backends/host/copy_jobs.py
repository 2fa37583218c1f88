"""What streams run. Jobs speak of addresses that can be touched, never of a device's."""

from __future__ import annotations

import ctypes
from functools import partial

import numpy as np

from .streams import Run

# ctypes lets go of the GIL in both, so streams really run beside each other and beside the caller.
memmove = ctypes.memmove
memset = ctypes.memset

# One type for views of any length: a ctypes array type for each length would cost more than a small copy.
_Anything = ctypes.c_char * (1 << 62)


def snapshot(to: int, source: int, nbytes: int) -> Run:
    """Read the source now; return the job that writes what was read."""
    return partial(memmove, to, ctypes.string_at(source, nbytes), nbytes)


def snapshot_rows(to: int, to_pitch: int, source: int, source_pitch: int, width: int, height: int) -> Run:
    """Read the rows now; return the job that writes what was read."""
    rows = _rows(source, source_pitch, width, height).copy()

    def write() -> None:
        _rows(to, to_pitch, width, height)[...] = rows

    return write


def copy_rows(to: int, to_pitch: int, source: int, source_pitch: int, width: int, height: int) -> None:
    """Copy rows that lie a pitch apart."""
    _rows(to, to_pitch, width, height)[...] = _rows(source, source_pitch, width, height)


def fill_words(ptr: int, value: int, width: int, count: int) -> None:
    """Store a word of 2 or 4 bytes ``count`` times."""
    buffer = memoryview(_Anything.from_address(ptr))
    np.ndarray((count,), np.uint16 if width == 2 else np.uint32, buffer).fill(value)


def _rows(ptr: int, pitch: int, width: int, height: int) -> np.ndarray[tuple[int], np.dtype[np.void]]:
    # One void element a row: NumPy then moves a row at a time, ten times faster for narrow rows than an array of bytes.
    buffer = memoryview(_Anything.from_address(ptr))
    return np.ndarray((height,), np.dtype((np.void, width)), buffer, strides=(pitch,))
