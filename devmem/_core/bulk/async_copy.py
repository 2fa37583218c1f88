"""Copies that go on while the caller does other things.

A `Transfer` keeps the source and the destination alive until the stream has completed the copy, also when the transfer was
dropped: by an event behind the copy, and for a staged download by the slots that still hold its elements. ``wait`` may be
called on any thread, and again after an interrupt; a failure is raised by each call.
"""

from __future__ import annotations

from collections.abc import Generator
from contextlib import suppress
from numbers import Real
from typing import TYPE_CHECKING, Any, Generic, NoReturn, TypeVar, cast

import numpy as np

from ...spi.errors import ClosedError, DevmemError, LayoutError
from ...spi.sizes import size_text
from ...toolkit.deferred_errors import fresh_copy
from ..arrays.creation import empty
from ..arrays.ndarray import DeviceNDArray, DeviceRecord, device_view
from ..arrays.pinned import pinned_like
from ..base.advice import made_by
from ..base.arguments import check_destination, check_same
from ..base.device_handle import CurrentDevice
from ..base.layout import like_strides
from ..base.polling import until
from ..base.shown import html_facts
from ..copy.staging import Download
from ..device.device import open_device_of
from ..device.open_device import OpenDevice
from ..interop.host_objects import host_array
from ..lifetime.allocation import StreamUse
from ..ordering.event import Event, StreamLike
from ..ordering.stream import Stream

if TYPE_CHECKING:
    from types import TracebackType

T = TypeVar("T")

#: Seconds between two queries of a task that awaits a copy: at first, and at most.
FIRST_PAUSE, LONGEST_PAUSE = 50e-6, 5e-3


@made_by("copy_async(x) begins a copy, and returns its Transfer", OpenDevice)
class Transfer(Generic[T]):
    """A copy in the background, made by `copy_async`.

    ``result`` returns the destination when its elements are there. A ``with`` block waits for the copy at its end. ``await``
    gives the result and lets other tasks run meanwhile; ``asyncio.ensure_future`` makes a task of it.

    Examples
    --------
    >>> with dm.copy_async(np.arange(3)) as transfer:
    ...     pass                                # work that does not need the array
    >>> transfer.done()
    True
    """

    __slots__ = ("_download", "_dst", "_error", "_event", "_opened", "_src")

    def __init__(
        self, opened: OpenDevice, src: object, dst: object, event: Event | None, download: Download | None
    ) -> None:
        self._opened = opened
        self._src = src
        self._dst = dst
        self._event = event
        self._download = download
        #: What every `wait` raises, as a copy.
        self._error: BaseException | None = None

    def __repr__(self) -> str:
        return f"<transfer of {size_text(self._nbytes())} to {self._where()}, {self._state()}>"

    def _repr_html_(self) -> str:
        shape, dtype = getattr(self._dst, "shape", ""), getattr(self._dst, "dtype", "")
        facts = {"to": self._where(), "shape": shape, "dtype": dtype, "size": size_text(self._nbytes())}
        return html_facts(f"transfer, {self._state()}", facts)

    def _state(self) -> str:
        return "failed" if self._error is not None else "done" if self._event is None else "under way"

    def _nbytes(self) -> int:
        return int(getattr(self._dst, "nbytes", 0))

    def _where(self) -> str:
        on_device = isinstance(self._dst, (DeviceNDArray, DeviceRecord))
        return str(self._opened.device) if on_device else f"the host, from {self._opened.device}"

    def done(self) -> bool:
        """Whether the copy is complete, or has failed.

        Where the device has done its part, but pageable memory of the host has not been written to yet, this call writes to it.
        """
        event = self._event
        if event is None or self._error is not None:
            return True
        try:
            if not event.query():
                return False
        except DevmemError as error:
            self._error = fresh_copy(error)
            return True
        with suppress(DevmemError):  # `wait` and `result` raise it
            self._complete(event)
        return True

    def wait(self, timeout: float | None = None) -> bool:
        """Wait until the copy is complete on both sides, for so many seconds at most; None: for as long as it takes.

        Returns
        -------
        bool
            True when it is complete; False if the time is over, and the copy still under way.

        Raises
        ------
        BackendError, ClosedError, ForkedError
            The copy failed; the same each time. What the destination holds then is undefined.
        TypeError, ValueError
            The timeout is no number of seconds.
        """
        _check_seconds(timeout)
        if self._event is not None and timeout is not None and not until(self.done, timeout):
            return False
        if self._error is not None:
            raise fresh_copy(self._error)
        event = self._event  # another thread may complete it meanwhile
        if event is not None:
            self._complete(event)
        opened = self._opened
        if opened.handle.dead is None and (opened.free_queue.dropped or opened.free_queue.pending):
            with suppress(ClosedError), CurrentDevice(opened.handle):
                opened.free_queue.free_if_due()  # what the call left alone because it may wait
        return True

    def _complete(self, event: Event) -> None:
        """Wait for the device, and write what it has fetched to the destination. Any thread may, and several at once."""
        download = self._download
        try:
            with CurrentDevice(self._opened.handle):
                if download is not None:
                    self._opened.copies.finish_download(download)
                event.synchronize()
                self._opened.completions.poll()
        except Exception as error:
            # Anything else, of a signal's handler say, ends this wait and not the copy.
            if isinstance(error, DevmemError) or (download is not None and download.failed):
                self._error = fresh_copy(error)
            raise
        # In this order: another thread that has seen the event still finds the download, which is finished by then.
        self._event = None
        self._download = self._src = None

    def result(self, timeout: float | None = None) -> T:
        """The destination, when the copy is complete.

        Raises
        ------
        TimeoutError
            It is not, after so many seconds.
        BackendError, ClosedError, ForkedError
            The copy failed.
        """
        if not self.wait(timeout):
            raise TimeoutError(
                f"the copy is still under way after {timeout} seconds: ask again, or wait without a limit"
            )
        return cast(T, self._dst)

    def __reduce__(self) -> NoReturn:
        raise TypeError(
            "a transfer cannot be pickled or copied: it is under way in this process; send what result() gives"
        )

    def __await__(self) -> Generator[Any, None, T]:
        import asyncio  # late: a program that awaits has imported it already

        pause = FIRST_PAUSE
        while not self.done():
            yield from asyncio.sleep(pause).__await__()
            pause = min(pause * 2, LONGEST_PAUSE)
        return self.result()

    def __enter__(self) -> Transfer[T]:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        try:
            self.wait()
        except Exception:
            if error is None:  # else the block's own error is the one to tell
                raise


def _check_seconds(timeout: object) -> None:
    if timeout is None:
        return
    if isinstance(timeout, bool) or not isinstance(timeout, Real):
        raise TypeError(
            f"timeout={timeout!r} is no number of seconds: give one, or None to wait for as long as it takes"
        )
    if timeout != timeout:
        raise ValueError("timeout=nan would never be over: give a number of seconds, or None")


def copy_async(src: object, dst: object, stream: StreamLike, device: object, pinned: bool = False) -> Transfer[Any]:
    """Begin a copy; see `devmem.copy_async`."""
    source, target = device_view(src), None if dst is None else device_view(dst)
    if pinned and (source is None or dst is not None):
        raise LayoutError("pinned=True is for a new host array: give a device array as source, and no destination")
    if target is not None:
        return _into_device(target, source, src, dst, stream, device)
    if source is None:
        if dst is not None:
            if isinstance(dst, str) or hasattr(dst, "synchronize"):
                raise TypeError(
                    f"copy_async: the destination is an array, not {dst!r}: give that as stream= or device="
                )
            raise TypeError(
                f"both sides are on the host, a {type(src).__name__} and a {type(dst).__name__}: that is numpy.copyto()"
            )
        return _new_on_device(src, stream, device)
    _check_device(device, source, "source")
    copy = _to_host(source, dst, stream, pinned)
    if isinstance(copy._dst, np.ndarray) and dst is None and isinstance(src, DeviceRecord):
        copy._dst = copy._dst[()]  # a record of NumPy, which shares the array's memory
    return copy


def _check_device(device: object, array: DeviceNDArray[Any], side: str) -> None:
    if device is not None and open_device_of(device) is not array.open_device:
        instead = (
            f"to_device(array, stream, device={device!r}) copies it there, and without device= this copies it to the host"
            if side == "source"
            else "leave it out"
        )
        raise LayoutError(f"device={device!s} is not where the {side} is ({array.device}): {instead}")


def _check_stream(opened: OpenDevice, stream: Stream) -> None:
    """Raise where the copy would be a part of a graph: nothing tells when that has run."""
    stream.check_not_recorded("copy_async()")
    with CurrentDevice(opened.handle):
        stream.check_not_captured("copy_async()")


def _new_on_device(src: object, stream: StreamLike, device: object) -> Transfer[Any]:
    opened = open_device_of(device)
    chosen = opened.streams.stream_of(stream)
    _check_stream(opened, chosen)
    source = host_array(src)
    shape, itemsize = source.shape, source.itemsize
    strides = None if source.flags.c_contiguous else like_strides(shape, source.strides, itemsize)
    with opened.free_queue.without_waiting():
        made = empty(opened, shape, source.dtype, strides, source.nbytes, stream)
        made.put(source, chosen, waits=False)
    record = isinstance(src, np.void) and source.dtype.fields is not None
    return _transfer(opened, chosen, source, DeviceRecord(made) if record else made, None)


def _into_device(
    target: DeviceNDArray[Any],
    source: DeviceNDArray[Any] | None,
    src: object,
    dst: object,
    stream: StreamLike,
    device: object,
) -> Transfer[Any]:
    opened = target.open_device
    _check_device(device, target, "destination")
    origin = host_array(src) if source is None else source
    check_same("copy_async", target.shape, target.dtype, origin.shape, origin.dtype)
    chosen = opened.streams.stream_of(stream if target.stream is None else stream or target.stream)
    _check_stream(opened, chosen)
    with opened.free_queue.without_waiting():
        target.put(origin, chosen, waits=False)
    return _transfer(opened, chosen, origin, dst, None)


def _to_host(source: DeviceNDArray[Any], dst: object, stream: StreamLike, pinned: bool) -> Transfer[Any]:
    source.allocation.check()
    opened = source.open_device
    with opened.free_queue.without_waiting():
        return _start(opened, source, dst, stream, pinned)


def _start(
    opened: OpenDevice, source: DeviceNDArray[Any], dst: object, stream: StreamLike, pinned: bool
) -> Transfer[Any]:
    if pinned:
        target = pinned_like(opened, source.shape, source.dtype, source.strides)
    elif dst is None:
        strides = like_strides(source.shape, source.strides, source.itemsize)
        target = np.ndarray(source.shape, source.dtype, np.empty(source.nbytes, np.uint8), 0, strides)
    else:
        target = check_destination(dst, source.shape, source.dtype, "copy_async")
    chosen = opened.streams.stream_of(stream if source.stream is None else stream or source.stream)
    _check_stream(opened, chosen)
    with CurrentDevice(opened.handle):
        opened.free_queue.free_if_due()
        with StreamUse(chosen, source.allocation):
            download = opened.copies.start_download(source, target, chosen)
    return _transfer(opened, chosen, source, target if dst is None else dst, download)


def _transfer(opened: OpenDevice, stream: Stream, src: object, dst: object, download: Download | None) -> Transfer[Any]:
    with CurrentDevice(opened.handle):
        try:
            event = opened.completions.event_behind(stream, src, dst, download)
        except BaseException:
            if download is not None:
                download.cancel()
            raise
    return Transfer(opened, src, dst, event, download)
