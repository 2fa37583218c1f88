"""An adaptor's access to the memory of its own stack: write and read."""

from __future__ import annotations

import ctypes
from mmap import mmap
from typing import cast

import numpy as np

from ...spi.driver import Driver, SupportsCapture, SupportsPointerInfo
from ...spi.errors import BackendError
from ...spi.types import Capability, CopyKind, MemoryKind
from ..base.address import address
from ..base.device_handle import checks_memory, known_or_all

#: Bytes that are read at a time.
CHUNK = 1 << 20


class MemoryAccess:
    """Reaches memory of one kind, on a device that is entered. The caller owns the block."""

    def __init__(self, driver: Driver, kind: MemoryKind) -> None:
        self.driver = driver
        #: Memory whose address is the host's: no driver is needed, and no device can order it.
        self.host = kind in (MemoryKind.PINNED, MemoryKind.MAPPED)
        captures = Capability.CAPTURE in driver.info.capabilities
        self._capture = driver if captures and isinstance(driver, SupportsCapture) else None

    def capturing(self, stream: int) -> bool:
        """Whether a graph is captured on the stream: what is enqueued there is not done now, and waiting for it ends the capture.

        Of the legacy stream: whether one is captured on any that it waits for.
        """
        try:
            return self._capture is not None and self._capture.capturing(stream)
        except BackendError:  # the next call of the driver fails too, where it can be dealt with
            return False

    def is_gone(self, ptr: int, nbytes: int) -> bool:
        """Whether the driver says that some of this is no memory, or no more."""
        asked = not self.host and checks_memory(self.driver.info)
        return asked and known_or_all(cast(SupportsPointerInfo, self.driver), ptr, nbytes) < nbytes

    def fill(self, ptr: int, byte: int, nbytes: int, stream: int) -> None:
        """Fill with a byte, ordered on the stream. Host memory is filled at once, after the stream has completed."""
        if nbytes and self.host:
            self.driver.stream_synchronize(stream)
            ctypes.memset(ptr, byte, nbytes)
        elif nbytes:
            self.driver.fill(ptr, byte, 1, nbytes, stream)

    def first_other(self, ptr: int, byte: int, nbytes: int, stream: int) -> tuple[int, int] | None:
        """(offset, value) of the first byte that is not ``byte``; None if all are. Waits for the stream."""
        if self.host:
            self.driver.stream_synchronize(stream)
        # On pages of its own: drivers refuse copies to memory that is page-locked in part.
        buffer = np.frombuffer(mmap(-1, min(CHUNK, nbytes) or 1), np.uint8)
        for start in range(0, nbytes, CHUNK):
            found = buffer[: nbytes - start]
            if self.host:
                ctypes.memmove(address(found), ptr + start, len(found))
            else:
                self.driver.copy(address(found), ptr + start, len(found), CopyKind.D2H, stream, blocking=True)
            wrong = int(np.argmax(found != byte))
            if found[wrong] != byte:
                return start + wrong, int(found[wrong])
        return None
