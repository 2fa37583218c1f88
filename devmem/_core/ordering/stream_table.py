"""The streams of one open device, by handle: its own, the default ones, and those of other libraries."""

from __future__ import annotations

import operator
import threading
import weakref
from collections.abc import Callable, Iterable
from contextlib import suppress
from functools import partial
from typing import Self

from ..._native import core
from ...spi.errors import ClosedError, LayoutError, UnsupportedError
from ...spi.types import LEGACY_STREAM, PER_THREAD_STREAM, Capability
from ...toolkit.deferred_errors import FirstError
from ..base.arguments import foreign_attribute, priority_of
from ..base.config import DefaultStream, settings
from ..base.device_handle import CurrentDevice, DeviceHandle
from ..base.interrupts import CannotWait
from .completions import SPARE_EVENTS, CompletionTracker
from .event import ClosedEvent, Event
from .foreign_stream import foreign_handle
from .leases import OwnedHandle
from .spare import LentHandle, SpareHandles
from .stream import ClosedStream, Stream, chosen_stream, place

#: Numbers below it are no addresses: programs map nothing on the first page.
NO_ADDRESS = 4096
#: Idle streams of each priority that are kept for the next use, and as many that do not wait for the legacy stream.
SPARE_STREAMS = 16


class OwnedStream(LentHandle):
    """The handle of a stream. Memory stacks that keep blocks by stream are told before it is kept or destroyed."""

    __slots__ = ("streams",)

    streams: StreamTable

    def successor(self) -> Self:
        """A spare record of the same handle, for its next owner."""
        spare = super().successor()
        spare.streams = self.streams
        return spare

    def end(self) -> None:
        """End like every handle, after the memory stacks have been told.

        They are told when no lease can hand a block back on the stream any more, while the handle still is this stream's: a pool
        must not take the next stream with that number for it. Where an interrupt comes before they all know, the stream stays.
        """
        if self.is_out():
            with FirstError() as first:
                try:
                    self.streams.on_destroy(self.handle)
                except CannotWait:  # another thread may be naming it: it stays
                    raise
                except Exception as error:
                    first.put(error)
                first.attempt(super().end)


class StreamTable:
    """Make streams, and find the stream that an argument means.

    Streams refer to the table (`StreamServices`); the table refers to them weakly, so that a dropped stream is noticed. The
    handles of devmem's own streams are kept besides, so that the close of the device destroys them all.
    """

    def __init__(self, handle: DeviceHandle, completions: CompletionTracker) -> None:
        self.handle = handle
        self.completions = completions
        self.leases = completions.events.leases
        self.order, self.poll = completions.order, completions.poll
        self.is_busy, self.wait_complete = completions.is_busy, completions.wait_complete
        self.create_event = partial(completions.events.create, lent=True)
        self.destroy_event = completions.events.destroy
        #: Called with the handle of a stream that is about to be destroyed: memory stacks that keep blocks by stream.
        self.on_destroy: Callable[[int], None] = lambda handle: None
        self.legacy = Stream(self, LEGACY_STREAM)
        #: The default stream of every thread; None where each thread has one of its own.
        self.shared_default = self.legacy if settings().default_stream is DefaultStream.LEGACY else None
        #: Those of devmem's own; one that was dropped stays until the queue has let go of its handle.
        self._streams: dict[int, weakref.ref[Stream]] = {}
        #: Streams of other libraries, as long as anything refers to them or work of devmem is on them.
        self._external: weakref.WeakValueDictionary[int, Stream] = weakref.WeakValueDictionary()
        self._handles: dict[int, OwnedHandle] = {}
        self.spare = SpareHandles(self.leases, SPARE_STREAMS)
        self._per_thread = threading.local()
        self._side: Stream | None = None

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
        """The stream that an argument means: 0 or None is the current one of this device, else the default.

        Another thread's default stream means the calling thread's, which is then ordered behind it.

        Raises
        ------
        LayoutError
            It belongs to another device, or is a number that no stream of this device has.
        TypeError
            It is nothing that could be a stream.
        """
        if stream is None or (type(stream) is int and stream == 0):
            current = chosen_stream(self) if place.blocks.get() else None
            if current is not None:
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
        if foreign_attribute(stream, "__cuda_stream__") is not None:
            return self.external_stream(stream)
        try:
            if isinstance(stream, bool):
                raise TypeError
            handle = operator.index(stream)  # type: ignore[arg-type]
        except TypeError:
            with suppress(TypeError):
                return self.external_stream(stream)
            advice = "; a device is given as device=" if isinstance(stream, str) or hasattr(stream, "ordinal") else ""
            raise TypeError(
                f"a stream is 0, None, a devmem.Stream, the int handle of one, or an object with __cuda_stream__, "
                f"not {stream!r}{advice}"
            ) from None
        return self._by_handle(handle)

    def new_stream(self, priority: object, non_blocking: object, free_if_due: Callable[[], None]) -> Stream:
        """A stream of devmem's own; ``free_if_due`` is called with the device entered."""
        least, greatest = self.handle.info.stream_priorities
        priority = max(min(priority_of(priority, least, greatest), least), greatest)
        non_blocking = bool(non_blocking)
        with CurrentDevice(self.handle) as driver:
            free_if_due()
            owned = OwnedStream(
                self.spare, (priority, non_blocking), 0, self._handles, self.handle, "stream_destroy", self._let_go
            )
            owned.streams = self
            if not self.spare.take(owned, driver.stream_query):
                owned.handle = driver.stream_create(priority, non_blocking)
                self._handles[owned.handle] = owned
            found = Stream(self, owned.handle, owned=owned, non_blocking=non_blocking)
            self._streams[owned.handle] = weakref.ref(found)
        return found

    def side_stream(self) -> Stream:
        """A stream of devmem's own, for calls that drivers refuse on the legacy stream; the caller orders the two by events."""
        if self._side is None:
            self._side = self.new_stream(0, True, lambda: None)
        return self._side

    def external_stream(self, stream: object) -> Stream:
        """A stream of another library, by its address, its ``__cuda_stream__`` or the vendor's own object.

        devmem never destroys it. It is known by its number as long as anything refers to it or work of devmem is on it.

        Raises
        ------
        LayoutError
            A number that cannot be a stream of this device.
        UnsupportedError
            It belongs to another device or context, as far as its vendor tells.
        TypeError
            It is nothing that could be a stream.
        """
        handle = foreign_handle(stream)
        if handle is not None and (handle in (0, LEGACY_STREAM, PER_THREAD_STREAM) or self._own(handle) is not None):
            return self._by_handle(handle or LEGACY_STREAM)
        if handle is not None and not 0 <= handle < 1 << 64:
            raise LayoutError(f"a stream's address has 64 bits and no sign, got {handle}")
        own = None if handle is None else self._handles.get(handle)
        if own is not None and own.leaving:
            raise LayoutError(
                f"{handle:#x} was the handle of a stream of devmem's on {self.handle.device}, which was closed or dropped: "
                f"keep the stream as long as its handle is used"
            )
        if self.handle.has(Capability.FOREIGN_STREAMS) and not isinstance(stream, bool):
            with CurrentDevice(self.handle) as driver:
                handle = driver.stream_from(stream if handle is None else handle)
        elif handle is None:
            raise TypeError(
                f"a foreign stream is given by its address, an int, or as an object with __cuda_stream__, not as {stream!r}"
            )
        elif self.handle.info.exchange.streams is None:
            raise LayoutError(f"{handle:#x} is no stream: no other library has streams of {self.handle.device}")
        elif handle < NO_ADDRESS:
            raise LayoutError(f"{handle} is no stream: streams of other libraries are known by their addresses")
        if handle not in self._external:
            self._check_origin(handle)
        return self._external.setdefault(handle, Stream(self, handle, external=True))

    def own_handles(self) -> list[int]:
        """The handles of all streams of devmem's own, the spare ones included."""
        return list(self._handles)

    def any_capturing(self) -> bool:
        """Whether a graph is being captured on a stream of devmem's own; the device is entered."""
        if Capability.CAPTURE not in self.handle.capabilities:
            return False
        if not self._streams:
            return False
        with self.leases.hold():
            for reference in list(self._streams.values()):
                stream = reference()
                with suppress(ClosedError):  # by another thread, just now
                    if stream is not None and self.handle.capturing(stream.handle):
                        return True
        return False

    def idle(self) -> set[int]:
        """Handles of streams on which nothing runs or waits: devmem's own, and the default ones where none of those is busy.

        A stream on which a graph is captured is not asked, which would end the capture, and counts as busy.

        None while some library captures a graph that the legacy stream would be drawn into. The device is entered.
        """
        if self.handle.capturing(LEGACY_STREAM):
            return set()
        query = self.handle.driver.stream_query
        with self.leases.hold():
            own = [each.handle for each in list(self._handles.values()) if not each.leaving]
            found = {handle for handle in own if not self.handle.capturing(handle) and query(handle)}
            # The legacy stream waits for the others.
            found.update(each for each in (LEGACY_STREAM, PER_THREAD_STREAM) if len(found) >= len(own) and query(each))
        return found

    def synchronize(self, handles: Iterable[int]) -> None:
        """Wait for default streams, and for those of devmem's own that are still there. The device is entered."""
        with self.leases.hold():
            for handle in handles:
                own = self._handles.get(handle)
                if handle in (LEGACY_STREAM, PER_THREAD_STREAM) or (own is not None and not own.leaving):
                    self.handle.driver.stream_synchronize(handle)

    # -- for streams (`StreamServices`) ----------------------------------------------------------------------------------

    def destroy_stream(self, owned: OwnedHandle) -> None:
        """Destroy or keep a stream of devmem's own; the object that had the handle does not tell it any more."""
        self._streams.pop(owned.handle, None)
        self.leases.destroy(owned)

    # -- the end -------------------------------------------------------------------------------------------------------

    def take_handles(self) -> list[int]:
        """The handles of all streams of devmem's own, which the caller destroys."""
        found = self.own_handles()
        self._handles.clear()
        self.spare.forget()
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

    def _check_origin(self, handle: int) -> None:
        """Raise where the vendor says that a foreign stream belongs to another device or context."""
        if self.handle.has(Capability.STREAM_ORIGIN):
            with CurrentDevice(self.handle) as driver:
                refusal = driver.stream_refusal(handle)
            if refusal:
                raise UnsupportedError(f"the stream {handle:#x} cannot order work of {self.handle.device}: {refusal}")

    def _let_go(self, dropped: OwnedHandle) -> bool:
        passed = self.handle.driver.stream_query(
            dropped.handle
        )  # no copy of devmem's is on it: that would keep the stream
        if passed:
            self.destroy_stream(dropped)
        return bool(passed)

    def _own(self, handle: int) -> Stream | None:
        reference = self._streams.get(handle)
        return None if reference is None else reference()

    def _by_handle(self, handle: int) -> Stream:
        if handle == 0:
            return self.stream_of(None)
        if handle == LEGACY_STREAM:
            return self.legacy
        if handle == PER_THREAD_STREAM:
            return self.per_thread
        found = self._own(handle) or self._external.get(handle)
        if found is None:
            raise LayoutError(
                f"{handle:#x} is not the handle of a stream that was made on {self.handle.device}: wrap a foreign one with "
                f"devmem.external_stream({handle:#x}) first, and keep what it returns"
            )
        return found


if core is not None:
    core.handles(
        *(Stream, ClosedStream, OwnedStream, SPARE_STREAMS),
        *(Event, ClosedEvent, LentHandle, SPARE_EVENTS),
        *(partial, tuple),
    )
