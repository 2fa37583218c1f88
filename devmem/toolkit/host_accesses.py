"""Accesses of the program itself to page-locked memory that a copy reads or writes, which an emulated driver notes.

The emulator protects such pages, and notes the access that meets one: its address, whether it can only have been a write, and the
thread. Python's `faulthandler` adds the Python stack, at a signal that the emulator raises.
"""

from __future__ import annotations

import ctypes
import faulthandler
import os
import re
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from .libraries import mapped

#: How the names of the libraries begin that may be emulated ones.
LIBRARIES = "libcuda.so", "libamdhip64.so"
#: Whose lines are not the program's.
_PACKAGES = str(Path(__file__).resolve().parents[1]) + os.sep, f"{os.sep}numpy{os.sep}"
_NOTE = re.compile(rb"access ([0-9a-f]+) ([01]) (\d+)\n(.*?)^end\n", re.DOTALL | re.MULTILINE)
_FRAME = re.compile(r'^ *File "(.*)", line (\d+) in ', re.MULTILINE)


class HostAccess(NamedTuple):
    """An access of the program to page-locked memory that a copy was using."""

    address: int
    only_writes: bool  #: it was no read; else it may have been either
    site: str


class HostAccesses:
    """The notes of the emulated drivers of this process."""

    def __init__(self) -> None:
        self._file = os.memfd_create("devmem-host-accesses")  # as long as the process
        self._read = 0
        free = (n for n in range(signal.SIGRTMAX, signal.SIGRTMIN, -1) if signal.getsignal(n) is signal.SIG_DFL)
        self._signal = next(free, 0)
        if self._signal:
            faulthandler.register(self._signal, self._file, all_threads=False)

    def watch(self, library: ctypes.CDLL) -> None:
        """Let an emulated driver note accesses, if its page-locked memory was mapped for that."""
        library.devmem_emulator_watch(self._file, self._signal)

    def take(self) -> Iterator[HostAccess]:
        """Those since the last time."""
        text = os.pread(self._file, os.fstat(self._file).st_size - self._read, self._read)
        start = self._read
        for note in _NOTE.finditer(text):
            self._read = start + note.end()
            stack = note[4].decode(errors="replace")
            yield HostAccess(int(note[1], 16), note[2] == b"1", _site(stack, int(note[3])))


def emulated_drivers() -> Iterator[ctypes.CDLL]:
    """Those that are in this process."""
    for path in (path for name in LIBRARIES for path in mapped(name)):
        library = ctypes.CDLL(path)
        if hasattr(library, "devmem_emulator_watch"):
            yield library


def _site(stack: str, thread: int) -> str:
    """The innermost line of a stack that is the program's."""
    for file, line in _FRAME.findall(stack):
        if not any(package in file for package in _PACKAGES):
            return f"{file}:{line}"
    return f"thread {thread}, of which no line of Python is known"
