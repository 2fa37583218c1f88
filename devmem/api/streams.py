"""Streams, events and waiting."""

from __future__ import annotations

from typing import Any

from .._core.base.device_handle import CurrentDevice
from .._core.base.scopes import deferral
from .._core.device.device import current_device, current_open_device, open_devices
from .._core.ordering.stream import Event, Stream
from ..spi.errors import DevmemError


def stream(*, priority: int = 0, non_blocking: bool = False) -> Stream:
    """Make a stream on the current device.

    Parameters
    ----------
    priority : int
        Smaller numbers run first; clamped to what the device has.
    non_blocking : bool
        True: the stream neither waits for the legacy default stream, nor that one for it.
    """
    return current_open_device().new_stream(priority, non_blocking)


def default_stream() -> Stream:
    """The stream that orders work on the current device where none is named: legacy, or what DEVMEM_DEFAULT_STREAM says."""
    return current_open_device().streams.default


def legacy_default_stream() -> Stream:
    """The legacy default stream of the current device, which waits for all blocking streams, and they for it."""
    return current_open_device().streams.legacy


def per_thread_default_stream() -> Stream:
    """The calling thread's own default stream on the current device."""
    return current_open_device().streams.per_thread


def external_stream(ptr: Any) -> Stream:
    """Wrap a stream of another library: its address, an object with ``__cuda_stream__``, or a vendor's own object.

    devmem never destroys it, and forgets it when the result is dropped and no work of devmem is on it; until then
    its address can be given wherever a stream is asked for. Its owner must keep it alive while work is given to it, not until the
    memory used there is freed.
    """
    return current_open_device().streams.external_stream(ptr)


def event(timing: bool = True) -> Event:
    """Make an event on the current device; without timing it is cheaper to record and to wait for."""
    return Event(current_open_device().streams, timing)


def event_elapsed_time(start: Event, end: Event) -> float:
    """Milliseconds between two events that were recorded with timing, and have passed."""
    if not isinstance(start, Event):
        raise TypeError(f"times are taken between two devmem.Events, not from {start!r}")
    return start.elapsed_time(end)


def synchronize() -> None:
    """Wait until everything on the current device is done."""
    current_device().synchronize()


class defer_cleanup:
    """Within this block nothing that waits to be freed is freed: not by thresholds, by `trim`, nor by an allocation that fails.

    Blocks nest, and count for the whole process. Leaving the outermost one looks at the thresholds again.

    Raises
    ------
    DevmemError
        It is left more often than it was entered.
    """

    __slots__ = ("_times",)

    def __init__(self) -> None:
        self._times = 0

    def __enter__(self) -> None:
        self._times, deferral.depth = self._times + 1, deferral.depth + 1

    def __exit__(self, *_: object) -> None:
        if not self._times:
            raise DevmemError("this defer_cleanup() was left more often than it was entered: leave each block once")
        self._times, deferral.depth = self._times - 1, deferral.depth - 1
        if not deferral.depth:
            for opened in open_devices():
                with CurrentDevice(opened.handle):
                    opened.free_queue.safe_point()

    def __del__(self) -> None:
        deferral.depth -= getattr(self, "_times", 0)  # an interrupt came before the block was begun, or as it was left
