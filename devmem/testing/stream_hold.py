"""Hold a stream, so that a test can look at work that is enqueued and not yet done, without sleeping.

`StreamHold` tells the driver (capability ``hold``) to stop the stream before its next operation. `release` may be called
from any thread; a timer thread releases the stream where the test would otherwise wait forever.
"""

from __future__ import annotations

import os
import sys
import threading
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from types import TracebackType
from typing import Protocol, Self

from devmem.spi.driver import Driver, SupportsHold
from devmem.spi.errors import UnsupportedError


class StreamHold:
    """Context manager: work enqueued on the stream inside the block waits until `release`, or the end of the block.

    A call that waits for the held stream would wait forever. Therefore the hold releases the stream after ``patience``
    seconds and sets `expired`; the block then ends with an AssertionError, which shows where the thread was, unless the hold is
    ``tolerant``.

    Create what the block needs before the block: allocating and freeing may wait for the whole device. In a forked child,
    `release` and the end of the block do nothing: the stream belongs to the parent.
    """

    def __init__(self, driver: Driver, stream: int, *, patience: float = 30.0, tolerant: bool = False) -> None:
        if not isinstance(driver, SupportsHold):
            raise UnsupportedError(
                f"{driver.info.name} cannot hold a stream; test on a device with the capability 'hold'"
            )
        self.expired = False
        self._driver: Driver = driver
        self._holder: SupportsHold = driver
        self._stream = stream
        self._tolerant = tolerant
        self._held: int | None = None
        self._thread = 0
        self._waited_in = ""
        self._pid = os.getpid()
        self._lock = threading.RLock()
        self._timer = threading.Timer(patience, self._expire)
        self._timer.daemon = True

    def __enter__(self) -> Self:
        self._thread = threading.get_ident()
        with entered(self._driver):
            self._held = self._holder.hold(self._stream)
        self._timer.start()
        return self

    def release(self) -> None:
        """Let the stream continue. Further calls do nothing."""
        if os.getpid() != self._pid:
            return  # a thread that the child does not have may hold the locks used here
        with self._lock:
            held, self._held = self._held, None
        if held is not None:
            with entered(self._driver):
                self._holder.release(held)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if os.getpid() != self._pid:
            return
        self._timer.cancel()
        self._timer.join()
        self.release()
        if self.expired and not self._tolerant and error is None:
            raise AssertionError(
                f"a call that must not wait waited for the held stream {self._stream:#x}, in\n{self._waited_in}"
            )

    def _expire(self) -> None:
        with self._lock:
            self.expired = self._held is not None
        frame = sys._current_frames().get(self._thread)
        self._waited_in = "".join(traceback.format_stack(frame, 12))
        self.release()


class HasDriver(Protocol):
    """The attributes of a `devmem.Device` that `hold` needs."""

    def driver(self) -> Driver: ...


class HasHandle(Protocol):
    """The attributes of a `devmem.Stream` that `hold` needs."""

    @property
    def device(self) -> HasDriver: ...

    @property
    def handle(self) -> int: ...


def hold(stream: HasHandle, *, patience: float = 30.0, tolerant: bool = False) -> StreamHold:
    """Hold a `devmem.Stream` for a ``with`` block; see `StreamHold`. Raises UnsupportedError without the capability."""
    return StreamHold(stream.device.driver(), stream.handle, patience=patience, tolerant=tolerant)


@contextmanager
def entered(driver: Driver) -> Iterator[Driver]:
    """Make the device of the driver current on this thread for the block."""
    token = driver.enter()
    try:
        yield driver
    finally:
        driver.exit(token)
