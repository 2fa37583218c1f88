"""Hold a stream back on purpose: the honest way to test what is asynchronous, with no sleeping."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import TracebackType
from typing import Protocol, Self

from devmem.spi.driver import Driver, SupportsHold
from devmem.spi.errors import UnsupportedError


class Latch:
    """A context manager: work enqueued on the stream inside the block waits until `release`, or the end of the block.

    A call that waits for the held stream would wait forever. So the latch gives up after ``patience`` seconds, lets go
    and says so in `expired`; unless it is ``tolerant``, the block then ends with an AssertionError.

    Make everything that the block needs before it: allocating and freeing may wait for the whole device. In the child of a
    fork the stream is the parent's, and the end of the block does nothing.
    """

    def __init__(self, driver: Driver, stream: int, *, patience: float = 10.0, tolerant: bool = False) -> None:
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
        self._pid = os.getpid()
        self._lock = threading.Lock()
        self._timer = threading.Timer(patience, self._expire)
        self._timer.daemon = True

    def __enter__(self) -> Self:
        with entered(self._driver):
            self._held = self._holder.hold(self._stream)
        self._timer.start()
        return self

    def release(self) -> None:
        """Let the stream go on; only the first call does something."""
        if os.getpid() != self._pid:
            return  # the locks here and below may have been held by threads that only the parent has
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
            raise AssertionError(f"a call that must not wait waited for the held stream {self._stream:#x}")

    def _expire(self) -> None:
        with self._lock:
            self.expired = self._held is not None
        self.release()


class HasDriver(Protocol):
    """What `hold` needs of a `devmem.Device`."""

    def driver(self) -> Driver: ...


class HasHandle(Protocol):
    """What `hold` needs of a `devmem.Stream`."""

    @property
    def device(self) -> HasDriver: ...

    @property
    def handle(self) -> int: ...


def hold(stream: HasHandle, *, patience: float = 10.0, tolerant: bool = False) -> Latch:
    """Hold a `devmem.Stream` for the length of a ``with`` block; see `Latch`. Raises UnsupportedError where it cannot."""
    return Latch(stream.device.driver(), stream.handle, patience=patience, tolerant=tolerant)


@contextmanager
def entered(driver: Driver) -> Iterator[Driver]:
    """Make the driver's device current on this thread for the block."""
    token = driver.enter()
    try:
        yield driver
    finally:
        driver.exit(token)
