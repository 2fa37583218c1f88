"""Streams held back by a word of host memory: the latch of `SupportsHold`, for tests and debugging.

`StreamHolds.hold` enqueues a wait for the word to become 1, and `release` writes 1 into it. The word is not freed then, because
the stream may not have read it yet: it lives until the device is closed, or as long as the process.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from ..spi.driver import SupportsMapped
from ..spi.errors import BackendError
from .driver_parts import DriverState, Part

WORD_BYTES = 4


class StreamHolds(Part):
    """Holds; ``allocate`` and ``free`` words of mapped host memory; the addresses of those allocated are in ``words``."""

    def __init__(
        self,
        state: DriverState,
        memory: SupportsMapped,
        allocate: Callable[[], Any],
        free: Callable[[int], object],
        *wait_flags: int,
    ) -> None:
        super().__init__(state)
        self._memory, self._allocate, self._free, self._wait_flags = memory, allocate, free, wait_flags
        self.words: set[int] = set()

    def hold(self, stream: int) -> int:
        word = int(self._allocate())
        ctypes.c_uint32.from_address(word).value = 0
        try:
            address = self._memory.device_pointer(word)
            self._functions.StreamWaitValue32(self._streams[stream], address, 1, *self._wait_flags)
        except BackendError:
            with suppress(BackendError):  # the error above is the one to be raised
                self._free(word)
            raise
        self.words.add(word)
        return word

    def release(self, hold: int) -> None:
        ctypes.c_uint32.from_address(hold).value = 1
