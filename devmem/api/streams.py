"""Streams, events and waiting."""

from __future__ import annotations

from typing import Never, SupportsInt

from .._core.base.advice import refuse_keywords
from .._core.base.arguments import flag_of
from .._core.base.device_handle import CurrentDevice
from .._core.base.scopes import deferral
from .._core.device.device import current_device, current_open_device
from .._core.device.opening import open_devices
from .._core.ordering.event import Event, StreamLike
from .._core.ordering.stream import Stream
from .._native import core
from ..spi.errors import DevmemError


def stream(*, priority: int = 0, non_blocking: bool = False, **others: Never) -> Stream:
    """Make a stream on the current device.

    Parameters
    ----------
    priority : int
        Smaller numbers run first; clamped to what the device has.
    non_blocking : bool
        True: the stream neither waits for the legacy default stream, nor that one for it.

    Examples
    --------
    >>> stream = dm.stream()
    >>> d = dm.to_device(np.arange(3), stream)  # may return before the copy is done
    >>> stream.synchronize()
    """
    if others:
        refuse_keywords("stream()", others)
    if core is not None and (made := core.take_stream(priority, non_blocking)) is not None:
        used: Stream = made
        return used
    return current_open_device().new_stream(priority, non_blocking)


def default_stream() -> Stream:
    """The stream that orders work on the current device where none is named: legacy, or what DEVMEM_DEFAULT_STREAM says.

    Examples
    --------
    >>> dm.default_stream() == dm.legacy_default_stream()
    True
    """
    return current_open_device().streams.default


def legacy_default_stream() -> Stream:
    """The legacy default stream of the current device, which waits for all blocking streams, and they for it.

    Examples
    --------
    >>> dm.legacy_default_stream().handle
    1
    """
    return current_open_device().streams.legacy


def per_thread_default_stream() -> Stream:
    """The calling thread's own default stream on the current device.

    Examples
    --------
    >>> dm.per_thread_default_stream().handle
    2
    """
    return current_open_device().streams.per_thread


def external_stream(ptr: StreamLike | SupportsInt) -> Stream:
    """Wrap a stream of another library: its address, an object with ``__cuda_stream__``, or a vendor's own object.

    devmem never destroys it, and forgets it when the result is dropped and no work of devmem is on it; until then
    its address can be given wherever a stream is asked for. A number has to be the address of a stream that is alive: drivers
    refuse others, or do not survive them. Its owner must keep it alive while work is given to it, not until the
    memory used there is freed.

    Examples
    --------
    >>> theirs = dm.stream().handle             # the address of another library's stream
    >>> d = dm.to_device(np.arange(3), dm.external_stream(theirs))
    """
    return current_open_device().streams.external_stream(ptr)


def event(timing: bool = True, **others: Never) -> Event:
    """Make an event on the current device; without timing it is cheaper to record and to wait for.

    Examples
    --------
    >>> stream, done = dm.stream(), dm.event(timing=False)
    >>> d = dm.to_device(np.arange(3), stream)
    >>> done.record(stream)
    >>> done.synchronize()                      # the copy has been done
    """
    if others:
        refuse_keywords("event()", others)
    if type(timing) is not bool:
        timing = flag_of(timing, "timing")
    if core is not None and (made := core.take_event(timing)) is not None:
        used: Event = made
        return used
    return Event(current_open_device().streams, timing)


def event_elapsed_time(start: Event, end: Event) -> float:
    """Milliseconds between two events that were recorded with timing, and have passed.

    Examples
    --------
    >>> start, end = dm.event(), dm.event()
    >>> start.record()
    >>> d = dm.to_device(np.arange(1000))
    >>> end.record()
    >>> end.synchronize()
    >>> dm.event_elapsed_time(start, end) >= 0
    True
    """
    if not isinstance(start, Event):
        raise TypeError(f"times are taken between two devmem.Events, not from {start!r}")
    return start.elapsed_time(end)


def synchronize(*others: Never) -> None:
    """Wait until everything on the current device is done; ``stream.synchronize()`` waits for what is on a stream alone.

    Examples
    --------
    >>> d = dm.to_device(np.arange(3), dm.stream())
    >>> dm.synchronize()                        # whatever runs on the device is done
    """
    if others:
        raise TypeError(
            "synchronize() waits for the current device: stream.synchronize(), or device.synchronize(), for others"
        )
    current_device().synchronize()


class defer_cleanup:
    """Within this block nothing that waits to be freed is freed: not by thresholds, by `trim`, nor by an allocation that fails.

    Blocks nest, and count for the whole process. Leaving the outermost one looks at the thresholds again.

    Raises
    ------
    DevmemError
        It is left more often than it was entered.

    Examples
    --------
    >>> with dm.defer_cleanup():
    ...     del_later = dm.zeros(1000)
    ...     del del_later
    ...     dm.memory_info().pending > 0
    True
    """

    __slots__ = ("_times",)

    def __init__(self) -> None:
        self._times = 0

    def __enter__(self) -> None:
        with deferral.counting:
            self._times, deferral.depth = self._times + 1, deferral.depth + 1

    def __exit__(self, *_: object) -> None:
        if not self._times:
            raise DevmemError("this defer_cleanup() was left more often than it was entered: leave each block once")
        with deferral.counting:
            self._times, deferral.depth = self._times - 1, deferral.depth - 1
        if not deferral.depth:
            for opened in open_devices():
                with CurrentDevice(opened.handle):
                    opened.free_queue.free_if_due()

    def __del__(self) -> None:
        with deferral.counting:
            deferral.depth -= getattr(
                self, "_times", 0
            )  # an interrupt came before the block was begun, or as it was left
