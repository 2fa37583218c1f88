"""Files read into the memory of host devices, and written from it, with no staging buffer between.

To make the pages of memory that was never touched takes ten times as long as to copy to them. Device memory is mapped from a file
that has no name, where the system has that. A file is copied into that one, by way of a buffer that stays in the processor's
cache: the system then makes the pages as it writes them, in half the time that it takes to make them at a first touch.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Callable
from functools import partial
from io import FileIO

from .address_space import Place
from .driver import current_driver

#: Larger buffers leave the cache, smaller ones wait more often for the GIL.
BUFFER = 1 << 19
#: Bytes of one call of the system: an interrupt waits for it.
PART = 16 << 20


class HostFiles:
    """Direct copies between files and host devices: see `devmem.spi.files.DirectFiles`."""

    def unavailable(self) -> str | None:
        return None if hasattr(os, "preadv") else "this system does not read files at a position"

    def read(self, path: str, offset: int, ptr: int, nbytes: int) -> int:
        with FileIO(path) as file:
            call = "read_file"
            return current_driver(call).move_file(call, ptr, nbytes, partial(_read, file.fileno(), offset))

    def write(self, path: str, offset: int, ptr: int, nbytes: int) -> int:
        with FileIO(path, "r+") as file:
            call = "write_file"
            return current_driver(call).move_file(call, ptr, nbytes, partial(_write, file.fileno(), offset))


def _read(file: int, offset: int, place: Place, nbytes: int) -> int:
    if place.file < 0:
        return _all(_preadv, file, _bytes(place.address, nbytes), offset)
    buffer, done = memoryview(bytearray(min(BUFFER, nbytes))), 0
    while done < nbytes and (found := _preadv(file, buffer[: nbytes - done], offset + done)):
        _all(os.pwrite, place.file, buffer[:found], place.position + done)
        done += found
    return done


def _write(file: int, offset: int, place: Place, nbytes: int) -> int:
    return _all(os.pwrite, file, _bytes(place.address, nbytes), offset)


def _all(move: Callable[[int, memoryview, int], int], file: int, view: memoryview, offset: int) -> int:
    """Call the system until it has moved all bytes, or there are no more; return how many."""
    done = 0
    while done < view.nbytes and (moved := move(file, view[done : done + PART], offset + done)):
        done += moved
    return done


def _preadv(file: int, view: memoryview, offset: int) -> int:
    return os.preadv(file, [view], offset)


def _bytes(address: int, nbytes: int) -> memoryview:
    return memoryview((ctypes.c_char * nbytes).from_address(address)).cast("B")
