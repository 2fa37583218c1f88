"""How an adaptor writes and reads the memory of its own stack."""

from __future__ import annotations

import ctypes
from collections.abc import Callable

import numpy as np
import numpy.typing as npt

from ...spi.driver import Driver, SupportsCapture
from ...spi.errors import BackendError
from ...spi.types import Capability, CopyKind, MemoryKind
from ..base.address import address
from ..copy.host_scratch import scratch

#: Read at a time, in bytes.
CHUNK = 1 << 20


class Touch:
    """Reaches memory of one kind, on a device that is entered. Whoever owns the block orders it: see each method."""

    def __init__(self, driver: Driver, kind: MemoryKind) -> None:
        self.driver = driver
        #: Memory whose address is the host's: no driver is needed, and no device can order it.
        self.host = kind in (MemoryKind.PINNED, MemoryKind.MAPPED)
        self._asked: Callable[[int], bool] | None = None
        if Capability.CAPTURE in driver.info.capabilities and isinstance(driver, SupportsCapture):
            self._asked = driver.capturing

    def capturing(self, stream: int) -> bool:
        """Whether a graph is captured on the stream: what is enqueued there is not done now, and waiting for it ends the capture.

        Of the legacy stream: whether one is captured on any that it waits for.
        """
        try:
            return self._asked is not None and self._asked(stream)
        except BackendError:  # the next call of the driver tells, where it can be dealt with
            return False

    def fill(self, ptr: int, byte: int, nbytes: int, stream: int) -> None:
        """Fill with a byte, ordered on the stream. Host memory is filled at once, after the stream has passed."""
        if not nbytes:
            return
        if self.host:
            self.driver.stream_synchronize(stream)
            ctypes.memset(ptr, byte, nbytes)
        else:
            self.driver.fill(ptr, byte, 1, nbytes, stream)

    def first_other(self, ptr: int, byte: int, nbytes: int, stream: int) -> tuple[int, int] | None:
        """(offset, value) of the first byte that is not ``byte``; None if all are. Waits for the stream."""
        if self.host:
            self.driver.stream_synchronize(stream)
        for start in range(0, nbytes, CHUNK):
            chunk = self._read(ptr + start, min(CHUNK, nbytes - start), stream)
            wrong = int(np.argmax(chunk != byte))
            if chunk[wrong] != byte:
                return start + wrong, int(chunk[wrong])
        return None

    def _read(self, ptr: int, nbytes: int, stream: int) -> npt.NDArray[np.uint8]:
        found: npt.NDArray[np.uint8] = scratch((nbytes,), np.uint8)
        if self.host:
            ctypes.memmove(address(found), ptr, nbytes)
        else:
            self.driver.copy(address(found), ptr, nbytes, CopyKind.D2H, stream, blocking=True)
        return found
