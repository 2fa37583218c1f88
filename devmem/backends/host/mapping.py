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
    """A range of addresses from ``base`` to ``end``, whose bytes can be touched ``shift`` bytes further.

    A hidden range is one file mapped twice: at ``base`` no access is allowed, ``shift`` bytes further every access is. Only
    Linux has them; elsewhere, and for ranges that are not hidden, ``shift`` is 0.
    """

    def __init__(self, nbytes: int, hidden: bool) -> None:
        self.size = nbytes
        self.shift = 0
        self._advice: int | None = None
        try:
            if hidden and sys.platform == "linux":
                self._map_twice()
            else:
                self._map_once()
        except OSError as error:
            raise host_error("open", "OPERATING_SYSTEM", f"cannot map {nbytes} bytes: {error}") from error
        self.end = self.base + self.size

    def discard(self, offset: int, nbytes: int) -> None:
        """Give pages back to the operating system. If it refuses, they stay resident and nothing else changes."""
        if self._advice is not None:
            try:
                self._maps[0].madvise(self._advice, offset, nbytes)
            except (OSError, ValueError):
                self._advice = None

    def unmap(self) -> None:
        """Unmap the range. No thread may be using it."""
        for each in self._maps:
            each.close()

    def keep(self) -> None:
        """Let the range be mapped until the process ends, beyond the interpreter: a leak instead of a dangling address."""
        for each in self._maps:
            ctypes.pythonapi.Py_IncRef(ctypes.py_object(each))

    def _map_twice(self) -> None:
        file = os.memfd_create("devmem-host")
        try:
            os.ftruncate(file, self.size)
            flags = mmap.MAP_SHARED | _NORESERVE
            hidden = mmap.mmap(file, self.size, flags=flags, prot=0)
            alias = mmap.mmap(file, self.size, flags=flags, prot=mmap.PROT_READ | mmap.PROT_WRITE)
        finally:
            os.close(file)
        self.base = address_of(hidden)
        self.shift = address_of(alias) - self.base
        self._maps = [alias, hidden]
        self._advice = getattr(mmap, "MADV_REMOVE", None)

    def _map_once(self) -> None:
        if sys.platform == "win32":
            # Every mapped page is charged against the page file there, so the range cannot be sparse.
            self.size = min(self.size, 1 << 32)
            self._maps = [mmap.mmap(-1, self.size)]
        else:
            self._maps = [mmap.mmap(-1, self.size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | _NORESERVE)]
        self.base = address_of(self._maps[0])
        self._advice = getattr(mmap, "MADV_DONTNEED", None) if sys.platform == "linux" else None


def address_of(mapping: mmap.mmap) -> int:
    """Return where a mapping begins."""
    # By NumPy, because ctypes wants a writable buffer. The array goes at once: while it lives the mapping cannot be closed.
    return int(np.frombuffer(mapping, np.uint8).ctypes.data)
