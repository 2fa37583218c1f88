"""numba.cuda's streams and events: subclasses of devmem's."""

from __future__ import annotations

import asyncio
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

import devmem

from ...._core.base.interrupts import holds_nothing
from ....spi.errors import DevmemError, LayoutError
from ....spi.types import LEGACY_STREAM, PER_THREAD_STREAM
from ...deprecation import warn_old_name
from .error import CudaAPIError, translated
from .old_signatures import is_context, with_signature

S = TypeVar("S", bound="Stream")

_record, _synchronize = devmem.Event.record, devmem.Event.synchronize

#: CUDA_ERROR_INVALID_HANDLE, the driver's error for an event without timing, and CUDA_ERROR_UNKNOWN.
INVALID_HANDLE, UNKNOWN = 400, 999


class Stream(devmem.Stream):
    """A queue of work on one device. Passing it to a copy makes the copy asynchronous, the default streams' objects too."""

    __slots__ = ()

    @with_signature(lambda self, handle, finalizer=None, external=False: None)
    def __init__(self, handle: Any, finalizer: Any = None, external: bool = False, *more: Any) -> None:
        if is_context(handle):
            warn_old_name("Stream(context, handle, finalizer, external)", "Stream(handle, finalizer, external)")
            handle, finalizer, external = finalizer, external or None, bool(more and more[0])
        address = int(getattr(handle, "value", handle) or 0)
        native = devmem.current_device().opened()
        super().__init__(native.streams, address or native.streams.default.handle, external=external)
        if finalizer is not None:
            weakref.finalize(self, finalizer)

    def __repr__(self) -> str:
        if self.closed:
            return super().__repr__()
        known = {0: "Default", LEGACY_STREAM: "Legacy default", PER_THREAD_STREAM: "Per-thread default"}
        number = int(self)
        if number in known:
            return f"<{known[number]} CUDA stream>"
        return f"<{'External ' if self.external else ''}CUDA stream {number:d}>"

    def synchronize(self) -> None:
        """Wait until all work on the stream is done."""
        try:
            super().synchronize()
        except DevmemError as error:
            raise translated(error) from error

    @contextmanager
    def auto_synchronize(self) -> Iterator[Stream]:
        """Synchronize at the end of a ``with`` block, also when its body raises."""
        with super().auto_synchronize():
            yield self

    def add_callback(  # type: ignore[override]  # numba.cuda's callbacks take three arguments
        self, callback: Callable[[Any, int, Any], object], arg: Any = None
    ) -> None:
        """Call ``callback(stream, status, arg)`` once all work now on the stream is done.

        It is called from a Python thread, not from the driver's: it may use the GPU, cannot deadlock, and later work on the
        stream does not wait for it. Callbacks of one stream run in order. An exception of one becomes a warning.
        """

        @holds_nothing
        def call(error: DevmemError | None) -> None:
            callback(self, 0 if error is None else int(getattr(error, "code", 0)) or UNKNOWN, arg)

        super().add_callback(call)

    def async_done(self) -> asyncio.Future[Any]:
        """A future that is done once all work now on the stream is done; its result is the stream."""
        loop = asyncio.get_running_loop()
        future: asyncio.Future[Any] = loop.create_future()

        def resolve(status: int) -> None:
            if not future.done():
                if status:
                    future.set_exception(Exception(f"Stream error {status}"))
                else:
                    future.set_result(self)

        def passed(stream: Any, status: int, arg: Any) -> None:
            if not loop.is_closed():
                loop.call_soon_threadsafe(resolve, status)

        self.add_callback(passed)
        return future


class DefaultStream(Stream):
    """A default stream: a copy that is given this object is asynchronous, unlike one without a stream."""

    __slots__ = ()

    def __int__(self) -> int:
        return 0

    def _cuda_stream(self) -> tuple[int, int]:
        return 0, int(self)  # the number of the stream in NVIDIA's driver


class NumberedStream(DefaultStream):
    """The legacy or the per-thread default stream, by its number."""

    __slots__ = ()

    def __int__(self) -> int:
        return self.handle


class Event(devmem.Event):
    """A point in a stream that can be waited for, and timed."""

    __slots__ = ()

    @with_signature(lambda self, handle, finalizer=None: None)
    def __init__(self, handle: Any, finalizer: Any = None, *more: Any) -> None:
        if is_context(handle):
            warn_old_name("Event(context, handle, finalizer)", "Event(handle, finalizer)")
            handle, finalizer = finalizer, more[0] if more else None
        self.services = devmem.current_device().opened().streams
        self.device_handle = self.services.handle
        self.handle = int(getattr(handle, "value", handle) or 0)
        self.timing = self.recorded = True
        self.__class__ = ForeignEvent
        if finalizer is not None:
            weakref.finalize(self, finalizer)

    def record(self, stream: Any = 0) -> None:
        """Capture what is on a stream now; on the default stream if none is named."""
        try:
            _record(self, stream if type(stream) is Stream else _checked_stream(stream))
        except DevmemError as error:
            raise translated(error) from error

    def wait(self, stream: Any = 0) -> None:
        """Make later work on a stream wait for what was captured. The host does not wait."""
        try:
            super().wait(_checked_stream(stream))
        except DevmemError as error:
            raise translated(error) from error

    def query(self) -> bool:
        """Whether what was captured is done."""
        try:
            return super().query()
        except DevmemError as error:
            raise translated(error) from error

    def synchronize(self) -> None:
        """Wait until what was captured is done."""
        try:
            _synchronize(self)
        except DevmemError as error:
            raise translated(error) from error

    def elapsed_time(self, evtend: Any) -> float:
        """Milliseconds from this event to another one.

        Raises
        ------
        CudaAPIError
            One of them was not recorded, has not passed, or is without timing.
        """
        try:
            return super().elapsed_time(evtend)
        except LayoutError as error:
            raise CudaAPIError(INVALID_HANDLE, str(error)) from error
        except DevmemError as error:
            raise translated(error) from error


class ForeignEvent(Event):
    """An event that another library owns and destroys."""

    __slots__ = ()

    def __del__(self) -> None:
        pass


def event_elapsed_time(evtstart: Event, evtend: Event) -> float:
    """Milliseconds between two events that were recorded with timing, and have passed."""
    return evtstart.elapsed_time(evtend)


def native_stream(stream: Any) -> Any:
    """A stream argument as devmem's functions take it; 0 for none.

    Raises
    ------
    TypeError
        It is neither a Stream, one of cuda.core's, nor 0 or None.
    """
    if not stream:
        return 0
    if isinstance(stream, devmem.Stream):
        return _native(stream)
    if type(stream).__module__.partition("._")[0].startswith("cuda.core") and hasattr(stream, "__cuda_stream__"):
        return stream
    raise TypeError(
        f"Expected a Stream object or 0, got {type(stream).__name__}: wrap another library's with external_stream(address)"
    )


def numba_stream(stream: devmem.Stream | None) -> Any:
    """The stream that an array is bound to, as an object of numba.cuda's; 0 for none."""
    if stream is None:
        return 0
    if isinstance(stream, Stream):
        return stream
    return default_stream_object(stream, NumberedStream) if stream.is_default else with_class(stream, Stream)


def default_stream_object(native: devmem.Stream, kind: type[Stream]) -> Any:
    """An object for a default stream; devmem's own object would not make copies asynchronous."""
    found = kind.__new__(kind)
    devmem.Stream.__init__(found, native.services, native.handle)
    return found


def with_class(native: Any, kind: type[Any]) -> Any:
    """The same object with its class changed to a subclass without further state."""
    native.__class__ = kind
    return native


def _native(stream: devmem.Stream) -> Any:
    # devmem takes its own default streams by number.
    return stream.handle if isinstance(stream, DefaultStream) else stream


def _checked_stream(stream: Any) -> Any:
    if not stream and stream != 0:
        raise TypeError(f"Expected a Stream object or 0, got {type(stream).__name__}")
    return native_stream(stream)
