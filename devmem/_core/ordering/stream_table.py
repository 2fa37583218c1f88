"""The streams of one open device, by handle: its own, the default ones, and those of other libraries."""

from __future__ import annotations

import operator
import threading
import weakref
from collections.abc import Callable
from contextlib import suppress

from ...spi.errors import ClosedError, LayoutError
from ...spi.types import LEGACY_STREAM, PER_THREAD_STREAM, Capability
from ..base.arguments import priority_of
from ..base.config import DefaultStream, settings
from ..base.device_handle import CurrentDevice, DeviceHandle
from .completions import CompletionTracker
from .stream import Stream, current_stream, foreign_handle


class StreamTable:
    """Make streams, and find the stream that an argument means.

    Streams refer to the table (`StreamServices`); the table refers to them weakly, so that a dropped stream is noticed. The
    handles of devmem's own streams are kept besides, so that the close of the device destroys them all.
    """

    def __init__(self, handle: DeviceHandle, completions: CompletionTracker) -> None:
        self.handle = handle
        self.completions = completions
        self.leases = completions.events.leases
        #: Called with the handle of a stream that is about to be destroyed: memory stacks that keep blocks by stream.
        self.on_destroy: Callable[[int], None] = lambda handle: None
        self.legacy = Stream(self, LEGACY_STREAM)
        #: The default stream of every thread; None where each thread has one of its own.
        self.shared_default = self.legacy if settings().default_stream is DefaultStream.LEGACY else None
        self._streams: weakref.WeakValueDictionary[int, Stream] = weakref.WeakValueDictionary()
        #: Streams of other libraries, as long as anything refers to them or work of devmem is on them.
        self._external: weakref.WeakValueDictionary[int, Stream] = weakref.WeakValueDictionary()
        self._handles: dict[int, None] = {}
        self._per_thread = threading.local()

    @property
    def default(self) -> Stream:
        """The stream that orders work for which none was named."""
        return self.shared_default or self.per_thread

    @property
    def per_thread(self) -> Stream:
        """The calling thread's own default stream."""
        found: Stream | None = getattr(self._per_thread, "stream", None)
        if found is None:
            found = self._per_thread.stream = Stream(self, PER_THREAD_STREAM)
        return found

    def stream_of(self, stream: object) -> Stream:
        """The stream that an argument means: 0 or None is the current one, else the default.

        Another thread's default stream means the calling thread's, which is then ordered behind it.

        Raises
        ------
        LayoutError
            It belongs to another device, or is a number that no stream of this device has.
        TypeError
            It is nothing that could be a stream.
        """
        if stream is None or (type(stream) is int and stream == 0):
            current = current_stream.get()
            if current is not None and current.services is self:
                return self._of_this_thread(current) if current.is_default and not current.plain else current
            return self.shared_default or self.per_thread
        if isinstance(stream, Stream):
            if stream.services is not self:
                stream.device_handle.check()
                device = self.handle.device
                raise LayoutError(
                    f"{stream!r} cannot order work on {device}: use a stream of that device, made inside "
                    f"`with devmem.device({str(device)!r}):`"
                )
            return self._of_this_thread(stream) if stream.is_default and not stream.plain else stream
        if hasattr(stream, "__cuda_stream__"):
            return self.external_stream(stream)
        try:
            if isinstance(stream, bool):
                raise TypeError
            handle = operator.index(stream)  # type: ignore[arg-type]
        except TypeError:
            if foreign_handle(stream) is not None:
                return self.external_stream(stream)
            raise TypeError(
                f"a stream is 0, None, a devmem.Stream, the int handle of one, or an object with __cuda_stream__, "
                f"not {stream!r}"
            ) from None
        return self._by_handle(handle)

    def new_stream(self, priority: object, non_blocking: bool, safe_point: Callable[[], None]) -> Stream:
        """A stream of devmem's own; ``safe_point`` is called with the device entered."""
        least, greatest = self.handle.info.stream_priorities
        priority = max(min(priority_of(priority, least, greatest), least), greatest)
        with CurrentDevice(self.handle) as driver:
            safe_point()
            handle = driver.stream_create(priority, non_blocking)
            self._handles[handle] = None
            found = self._streams[handle] = Stream(self, handle, owned=True, non_blocking=non_blocking)
        return found

    def external_stream(self, stream: object) -> Stream:
        """A stream of another library, by its address or its ``__cuda_stream__``; devmem never destroys it.

        It is known by its number as long as anything refers to it or work of devmem is on it.
        """
        handle = foreign_handle(stream)
        if handle is None:
            raise TypeError(
                f"a foreign stream is given by its address, an int, or as an object with __cuda_stream__, not as {stream!r}"
            )
        if not 0 <= handle < 1 << 64:
            raise LayoutError(f"a stream's address has 64 bits and no sign, got {handle}")
        if handle in (0, LEGACY_STREAM, PER_THREAD_STREAM) or handle in self._streams:
            return self._by_handle(handle or LEGACY_STREAM)
        return self._external.setdefault(handle, Stream(self, handle, external=True))

    def any_capturing(self) -> bool:
        """Whether a graph is being captured on a stream of devmem's own; the device is entered."""
        if Capability.CAPTURE not in self.handle.capabilities:
            return False
        if not self._handles:
            return False
        with self.leases.hold():
            for reference in self._streams.valuerefs():
                stream = reference()
                with suppress(ClosedError):  # by another thread, just now
                    if stream is not None and self.handle.capturing(stream.handle):
                        return True
        return False

    # -- for streams and events (`StreamServices`) -----------------------------------------------------------------------

    def order(self, later: int, earlier: int) -> None:
        """Make one stream's later work wait for what is on another now; by handle."""
        self.completions.order(later, earlier)

    def poll(self) -> None:
        """Let go of what completed copies kept."""
        self.completions.poll()

    def wait_complete(self, stream: Stream) -> None:
        """Wait until the copies in flight on a stream have completed."""
        self.completions.wait_complete([stream])

    def is_busy(self, stream: Stream) -> bool:
        """Whether a copy on the stream still keeps something alive."""
        return self.completions.is_busy(stream)

    def destroy_stream(self, handle: int) -> None:
        """Destroy a stream of devmem's own; the object that had the handle does not tell it any more."""
        self._streams.pop(handle, None)
        try:
            # While the handle still is this stream's: a pool must not take the next stream with that number for it.
            self.on_destroy(handle)
        finally:
            self.leases.destroy(self._destroy, handle)

    def add_event(self, event: int) -> None:
        """Take note of an event, which the close of the device destroys if it is still there."""
        self.completions.events.events[event] = None

    def destroy_event(self, event: int) -> None:
        """Destroy an event."""
        self.completions.events.destroy(event)

    # -- the end -------------------------------------------------------------------------------------------------------

    def take_handles(self) -> list[int]:
        """The handles of all streams of devmem's own, which the caller destroys."""
        found = list(self._handles)
        self._handles.clear()
        return found

    def _of_this_thread(self, stream: Stream) -> Stream:
        """The calling thread's default stream, whose later work comes after what is on another thread's now.

        Its handle means the calling thread's stream to every driver. The legacy stream waits for the other thread's.
        """
        mine = self.per_thread
        if mine is not stream:
            with CurrentDevice(self.handle):
                self.completions.order(mine.handle, LEGACY_STREAM)
        return mine

    def _destroy(self, handle: int) -> None:
        if handle in self._handles:  # else the device was closed meanwhile
            del self._handles[handle]
            self.handle.driver.stream_destroy(handle)

    def _by_handle(self, handle: int) -> Stream:
        if handle == 0:
            return self.stream_of(None)
        if handle == LEGACY_STREAM:
            return self.legacy
        if handle == PER_THREAD_STREAM:
            return self.per_thread
        found = self._streams.get(handle) or self._external.get(handle)
        if found is None:
            raise LayoutError(
                f"{handle:#x} is not the handle of a stream that was made on {self.handle.device}: wrap a foreign one with "
                f"devmem.external_stream({handle:#x}) first, and keep what it returns"
            )
        return found
