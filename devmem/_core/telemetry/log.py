"""A log of all that passes through a stack, one JSON object a line."""

from __future__ import annotations

import os
import time
import warnings
from contextlib import suppress
from pathlib import Path

from ...spi.driver import Driver
from ...spi.errors import ConfigError, DevmemWarning
from ...spi.memory import MemoryResource
from ..base.call_site import Site, calling_frames
from ..memory.adaptor import Adaptor
from .allocation_log import Record


class Log(Adaptor):
    """Write every allocation and deallocation that succeeds to a file, which ``devmem replay`` reads.

    The file is made anew when the stack is bound, and each line is with the operating system when the call returns: a process
    that crashes loses none. If the file cannot be written to any more (a full disk), the log warns once with a DevmemWarning
    and ends; allocations go on.

    Parameters
    ----------
    upstream : MemoryResource, optional
        What is watched.
    path : str or Path
        The file. ``{device}`` in it becomes the device's name (``host-0``), ``{pid}`` the process id: give those where several
        devices or processes take the same text.
    frames : int
        How many lines of the program are written with each allocation, innermost first: ``devmem view`` shows memory over time
        by them. Each costs a fraction of a microsecond, and some hundred bytes of the file.

    Examples
    --------
    >>> with dm.use_memory(dm.memory.Log(dm.memory.PoolMemory(), "run.log", frames=8)):
    ...     d = dm.zeros(3)                     # then: devmem view run.log -o run.html
    """

    _shown = ("path",)

    def __init__(
        self, upstream: MemoryResource | None = None, path: str | Path = "devmem.log", *, frames: int = 0
    ) -> None:
        super().__init__(upstream)
        if frames < 0:
            raise ConfigError(f"Log(frames={frames}): give how many lines of the program to write, from 0 on")
        self.path = os.fspath(path)
        self._frames = frames
        self._file: int | None = None
        self._began = 0.0

    def bind(self, driver: Driver) -> None:
        """Open the file; OSError if it cannot be made."""
        if self.driver is None:
            device = f"{driver.info.backend}-{driver.info.ordinal}"
            path = self.path.replace("{device}", device).replace("{pid}", str(os.getpid()))
            flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | getattr(os, "O_CLOEXEC", 0)
            try:
                file = os.open(path, flags, 0o644)
            except OSError as error:
                error.add_note(f"devmem: the log {path!r} of a memory stack cannot be made: name another path")
                raise
            try:
                super().bind(driver)
            except BaseException:
                os.close(file)
                raise
            with suppress(OSError):  # a device, say, that has no length
                os.truncate(file, 0)  # last: what another run wrote is not lost to a stack that cannot be used
            self._file, self._began = file, time.perf_counter()
        else:
            super().bind(driver)

    def __del__(self) -> None:
        file = getattr(self, "_file", None)
        if file is not None:
            os.close(file)

    def allocate(self, nbytes: int, stream: int) -> int:
        """Allocate, then write it down."""
        if not nbytes:
            return 0
        ptr = self._allocate(nbytes, stream)
        try:
            self._write("allocate", ptr, nbytes, stream, calling_frames(self._frames) if self._frames else ())
        except BaseException:  # a warning filter may have made the warning an error
            self._deallocate(ptr, nbytes, stream)
            raise
        return ptr

    def deallocate(self, ptr: int, nbytes: int, stream: int) -> None:
        """Write it down, then deallocate: the other way round another thread's allocation of the address could come first."""
        if ptr:
            try:
                self._write("deallocate", ptr, nbytes, stream)
            finally:
                self._deallocate(ptr, nbytes, stream)

    def _write(self, op: str, ptr: int, nbytes: int, stream: int, frames: tuple[Site, ...] = ()) -> None:
        with self._lock:  # keeps the times in order; one write to a file does not wait for a device
            if self._file is None:
                return
            line = Record(op, ptr, nbytes, stream, time.perf_counter() - self._began, frames).line()
            try:
                if os.write(self._file, line) == len(line):
                    return
                problem = "only a part of a line could be written"
            except OSError as error:
                problem = str(error)
            file, self._file = self._file, None
            os.close(file)
        warnings.warn(f"{self.path} cannot be written to, the log ends here: {problem}", DevmemWarning, stacklevel=3)
