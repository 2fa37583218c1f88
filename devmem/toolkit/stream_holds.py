"""Streams held back by a word of host memory: the latch of `SupportsHold`, for tests and debugging.

`StreamHolds.hold` enqueues a wait for the word to become 1, and `release` writes 1 into it. The word is not freed then, because
the stream may not have read it yet: it lives until the device is closed, or as long as the process.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from ..spi.errors import BackendError
from .driver_state import DriverState, Part

WORD_BYTES = 4


class StreamHolds(Part):
    """Holds.

    Parameters
    ----------
    state : DriverState
    allocate, free : callable
        Mapped host memory of a number of bytes, and giving it back.
    wait : callable
        Make a stream wait until the word at a host address is 1.

    Attributes
    ----------
    words : set of int
        The addresses of the words so far.
    """

    def __init__(
        self,
        state: DriverState,
        allocate: Callable[[int], Any],
        free: Callable[[int], object],
        wait: Callable[[Any, int], object],
    ) -> None:
        super().__init__(state)
        self._allocate = allocate
        self._free = free
        self._wait = wait
        self.words: set[int] = set()

    def hold(self, stream: int) -> int:
        word = int(self._allocate(WORD_BYTES))
        ctypes.c_uint32.from_address(word).value = 0
        try:
            self._wait(self._streams[stream], word)
        except BackendError:
            with suppress(BackendError):  # the error above is the one to be raised
                self._free(word)
            raise
        self.words.add(word)
        return word

    def release(self, hold: int) -> None:
        ctypes.c_uint32.from_address(hold).value = 1
