"""Addresses of host arrays: the one place that hands them out, through documented interfaces only."""

from __future__ import annotations

from ctypes import addressof, c_char
from typing import Any

import numpy.typing as npt

from .layout import span

_from_buffer = c_char.from_buffer


def address(array: npt.NDArray[Any]) -> int:
    """The address of an ndarray's first element, of any array: read-only, without axes or elements, datetimes.

    Through the buffer protocol where the array has a writable C-contiguous buffer, which takes a third of the time, else through
    ``__array_interface__``.
    """
    try:
        return addressof(_from_buffer(array))  # type: ignore[arg-type]  # an ndarray is a buffer
    except (TypeError, ValueError, BufferError):
        found: int = array.__array_interface__["data"][0]
        return found


def extent(array: npt.NDArray[Any]) -> tuple[int, int]:
    """Addresses of the lowest byte of an ndarray and of the byte behind its highest."""
    low, high = span(array.shape, array.strides, array.itemsize)
    start = address(array)
    return start + low, start + high
