"""Addresses of host arrays, and arrays at addresses of the host: the one place for both, through documented interfaces only."""

from __future__ import annotations

from ctypes import addressof, c_char
from typing import Any

import numpy as np
import numpy.typing as npt

from ..._native import core
from .layout import span

_from_buffer = c_char.from_buffer


def address(array: npt.NDArray[Any]) -> int:
    """The address of an ndarray's first element, of any array: read-only, without axes or elements, datetimes.

    Through the buffer protocol where the array has a writable C-contiguous buffer, which takes a third of the time, else through
    ``__array_interface__``.
    """
    if core is not None:
        there: int | None = core.address(array)
        if there is not None:
            return there
    try:
        return addressof(_from_buffer(array))  # type: ignore[arg-type]  # an ndarray is a buffer
    except (TypeError, ValueError, BufferError):
        found: int = array.__array_interface__["data"][0]
        return found


def addresses(arrays: list[npt.NDArray[Any]]) -> list[int]:
    """The address of each of many."""
    found = list(map(address if core is None else core.address, arrays))
    return list(map(address, arrays)) if None in found else found


def bytes_at(ptr: int, nbytes: int, *, read_only: bool = False, owner: object = None) -> npt.NDArray[np.uint8]:
    """The bytes at an address of the host as an array, which keeps ``owner`` alive."""
    return np.asarray(_HostMemory(ptr, nbytes, read_only, owner))


class _HostMemory:
    """Host memory as NumPy takes it."""

    def __init__(self, ptr: int, nbytes: int, read_only: bool, owner: object) -> None:
        self.owner = owner
        self.__array_interface__ = {"shape": (nbytes,), "typestr": "|u1", "data": (ptr, read_only), "version": 3}


def extent(array: npt.NDArray[Any]) -> tuple[int, int]:
    """Addresses of the lowest byte of an ndarray and of the byte behind its highest."""
    low, high = span(array.shape, array.strides, array.itemsize)
    start = address(array)
    return start + low, start + high
