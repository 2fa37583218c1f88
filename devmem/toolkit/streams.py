"""Streams and events of a vendor whose functions are those of CUDA's driver and of the HIP runtime.

Parts of a driver (`devmem.toolkit.driver_parts`). Their methods are those of the contract in `devmem.spi.driver`: they
look handles up and call the vendor's functions. Events are asked and waited for in the relaxed capture mode, because devmem asks
while it does something else, and must not disturb a capture on another thread.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from ..spi.driver import SupportsMapped
from ..spi.errors import BackendError, UnsupportedError
from .driver_parts import DriverState, Part
from .vendor_functions import CAPTURE_STATUSES, CAPTURE_UNSUPPORTED, CAPTURED_EVENT

#: The word of a hold.
WORD_BYTES = 4


class Streams(Part):
    """Streams; ``synchronizes_before_destroy`` where destroying one may drop the work that is enqueued on it."""

    def __init__(self, state: DriverState, *, synchronizes_before_destroy: bool = False) -> None:
        super().__init__(state)
        self._synchronizes_before_destroy = synchronizes_before_destroy

    def stream_create(self, priority: int, non_blocking: bool) -> int:
        self._streams.unordered |= non_blocking  # first, for a copy on another thread
        create, destroy = self._recorded.StreamCreateWithPriority, self._functions.StreamDestroy
        return self._streams.make(destroy, create, int(non_blocking), priority)

    def stream_destroy(self, stream: int) -> None:
        try:
            if self._synchronizes_before_destroy:
                self.stream_synchronize(stream)
        finally:  # the caller has let go of it, whatever the wait raises
            self._streams.end(stream, self._recorded.StreamDestroy)

    def stream_synchronize(self, stream: int) -> None:
        self._functions.StreamSynchronize(self._streams[stream])

    def stream_query(self, stream: int) -> bool:
        done: bool = self._functions.StreamQuery(self._streams[stream])
        return done

    def stream_wait(self, stream: int, event: int) -> None:
        self._functions.StreamWaitEvent(self._streams[stream], self._events[event], 0)

    def stream_wait_peer(self, stream: int, event: int, ordinal: int) -> None:
        # The vendors take events of every device; the table of that device's driver is the one to know the handle.
        self._functions.StreamWaitEvent(self._streams[stream], self._events.unknown(event), 0)

    def capturing(self, stream: int) -> bool:
        """Whether the stream captures a graph, or cannot be asked because another one does."""
        try:
            return int(self._functions.StreamIsCapturing(self._streams[stream])) != 0
        except BackendError as error:
            if error.code in CAPTURE_STATUSES:
                return True
            raise


class Events(Part):
    """Events; ``create`` is the name of the function that makes one, ``flags`` are those without and with timing."""

    def __init__(self, state: DriverState, create: str, flags: tuple[int, int]) -> None:
        super().__init__(state)
        self._create, self._flags = create, flags

    def event_create(self, timing: bool) -> int:
        create, destroy = getattr(self._recorded, self._create), self._functions.EventDestroy
        return self._events.make(destroy, create, self._flags[timing])

    def event_destroy(self, event: int) -> None:
        self._events.end(event, self._recorded.EventDestroy)

    def event_record(self, event: int, stream: int) -> None:
        self._functions.EventRecord(self._events[event], self._streams[stream])

    def event_query(self, event: int) -> bool:
        """Whether the captured work is done, as far as may be known: some libraries do not answer during any capture."""
        try:
            done: bool = self._relaxed(self._functions.EventQuery, self._events[event])
        except BackendError as error:
            if error.code == CAPTURE_UNSUPPORTED:
                return False
            if error.code == CAPTURED_EVENT:
                raise _captured(error) from None
            raise
        return done

    def event_synchronize(self, event: int) -> None:
        try:
            self._relaxed(self._functions.EventSynchronize, self._events[event])
        except BackendError as error:
            if error.code == CAPTURED_EVENT:
                raise _captured(error) from None
            raise

    def event_elapsed(self, start: int, end: int) -> float:
        return float(self._functions.EventElapsedTime(self._events[start], self._events[end]))


class StreamHolds(Part):
    """Streams held back by a word of mapped host memory: the latch of `SupportsHold`, for tests and debugging.

    `hold` enqueues a wait for the word to become 1, and `release` stores 1. The stream may not have read it by then, so the word
    lives until the device is closed, or as long as the process. ``allocate`` and ``free`` are for such words; ``words`` has the
    addresses of those that are allocated.
    """

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
        self.words.add(word)
        ctypes.c_uint32.from_address(word).value = 0
        try:
            address = self._memory.device_pointer(word)
            self._functions.StreamWaitValue32(self._streams[stream], address, 1, *self._wait_flags)
        except BackendError:  # nothing waits for it
            self.words.discard(word)
            with suppress(BackendError):  # the error above is the one to be raised
                self._free(word)
            raise
        except BaseException:
            self.release(word)  # the stream may wait for it
            raise
        return word

    def release(self, hold: int) -> None:
        ctypes.c_uint32.from_address(hold).value = 1


def _captured(error: BackendError) -> UnsupportedError:
    return UnsupportedError(
        f"{error.call}: the event was recorded while its stream was capturing a graph, and tells nothing of what runs later"
    )
