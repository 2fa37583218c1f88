"""Sparse memory for an arena: pages take memory once they are written, until they are discarded."""

from __future__ import annotations

import ctypes
import mmap
import os
import sys

import numpy as np

from .error_codes import host_error

_NORESERVE = getattr(mmap, "MAP_NORESERVE", 0x4000 if sys.platform == "linux" else 0)


class Mapping:
    """``size`` bytes at ``base``, which can be touched ``shift`` bytes further.

    If they are hidden, one file is mapped twice: at ``base`` no access is allowed, ``shift`` bytes further every access is. Only
    Linux has this; elsewhere, and if they are not hidden, ``shift`` is 0.
    """

    def __init__(self, nbytes: int, hidden: bool) -> None:
        self.size = nbytes
        try:
            if hidden and sys.platform == "linux":
                self._maps = _map_twice(nbytes)
                advice = "MADV_REMOVE"
            elif sys.platform == "win32":
                # Every mapped page is charged against the page file there, so the range cannot be sparse.
                self.size = min(nbytes, 1 << 32)
                self._maps = [mmap.mmap(-1, self.size)]
                advice = ""
            else:
                self._maps = [mmap.mmap(-1, nbytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | _NORESERVE)]
                advice = "MADV_DONTNEED" if sys.platform == "linux" else ""
        except OSError as error:
            raise host_error("open", "OPERATING_SYSTEM", f"cannot map {nbytes} bytes: {error}") from error
        self.base = address_of(self._maps[-1])
        self.shift = address_of(self._maps[0]) - self.base
        self.end = self.base + self.size
        self._advice: int | None = getattr(mmap, advice, None)

    def discard(self, offset: int, nbytes: int) -> None:
        """Give pages back to the operating system. If it refuses, they stay resident and nothing else changes."""
        if self._advice is not None:
            try:
                self._maps[0].madvise(self._advice, offset, nbytes)
            except (OSError, ValueError):
                self._advice = None

    def unmap(self) -> None:
        """Unmap the bytes. No thread may be using them."""
        for each in self._maps:
            each.close()

    def keep(self) -> None:
        """Let the bytes be mapped until the process ends, beyond the interpreter: a leak instead of a dangling address."""
        for each in self._maps:
            ctypes.pythonapi.Py_IncRef(ctypes.py_object(each))


def _map_twice(nbytes: int) -> list[mmap.mmap]:
    """Return two mappings of the same memory: one that can be touched, and a hidden one."""
    file = os.memfd_create("devmem-host")
    try:
        os.ftruncate(file, nbytes)
        protections = mmap.PROT_READ | mmap.PROT_WRITE, 0
        return [mmap.mmap(file, nbytes, flags=mmap.MAP_SHARED | _NORESERVE, prot=prot) for prot in protections]
    finally:
        os.close(file)


def address_of(mapping: mmap.mmap) -> int:
    """Return where a mapping begins."""
    # By NumPy, because ctypes wants a writable buffer. The array goes at once: while it lives the mapping cannot be closed.
    return int(np.frombuffer(mapping, np.uint8).ctypes.data)
