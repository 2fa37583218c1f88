"""Streams and events: in which order things happen on a device."""

from __future__ import annotations

import operator
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any, NoReturn, Protocol

from ...spi.errors import BackendError, ClosedError, LayoutError, UnsupportedError
from ...spi.types import LEGACY_STREAM, PER_THREAD_STREAM, Capability
from ..base.device_handle import CurrentDevice, DeviceHandle, PublicDevice

if TYPE_CHECKING:
    from types import TracebackType

#: The stream of the innermost ``with stream:`` of this thread or task, and what was current before each of them.
current_stream: ContextVar[Stream | None] = ContextVar("devmem_stream", default=None)
_saved: ContextVar[tuple[Stream | None, Any] | None] = ContextVar("devmem_saved_streams", default=None)


class StreamServices(Protocol):
    """What streams and events ask of their open device; `StreamTable` is it."""

    @property
    def handle(self) -> DeviceHandle: ...

    @property
    def legacy(self) -> Stream: ...

    @property
    def per_thread(self) -> Stream: ...

    def stream_of(self, stream: object) -> Stream:
        """The stream that an argument means."""

    def order(self, later: int, earlier: int) -> None:
        """Make one stream's later work wait for what is on another now; by handle."""

    def poll(self) -> None:
        """Let go of what completed copies kept."""

    def wait_complete(self, stream: Stream) -> None:
        """Wait until the copies in flight on a stream have completed."""

    def is_busy(self, stream: Stream) -> bool:
        """Whether a copy on the stream still keeps something alive."""

    def destroy_stream(self, handle: int) -> None:
        """Destroy a stream that does not tell its handle any more."""

    def add_event(self, event: int) -> None:
        """Take note of an event, which the close of the device destroys if it is still there."""

    def destroy_event(self, event: int) -> None:
        """Destroy an event."""


class Stream:
    """A queue of work on one device; what is on one stream happens in order.

    In ``with stream:`` it is the current stream of this thread or task: work for which no stream is named is ordered on it.
    Entering and leaving neither waits nor closes. A stream that is dropped is destroyed later, when its work is done.

    Attributes
    ----------
    handle : int
        The driver's handle; 1 and 2 are the legacy and the per-thread default stream on every backend.
    external : bool
        The stream belongs to another library: devmem never destroys it and never uses it after the caller's last use.
    """

    __slots__ = (
        "__weakref__",
        "device_handle",
        "external",
        "handle",
        "is_default",
        "non_blocking",
        "owned",
        "plain",
        "services",
        "simple",
    )

    #: What a stream counts for in the queue.
    nbytes = 0

    def __init__(
        self,
        services: StreamServices,
        handle: int,
        *,
        owned: bool = False,
        external: bool = False,
        non_blocking: bool = False,
    ) -> None:
        self.services = services
        self.device_handle = services.handle
        self.handle = handle
        self.owned = owned
        self.external = external
        # Worked out once, for the hottest paths. Plain: the handle can be used from any thread for as long as the stream is
        # open. Simple: and no graph can be captured on it, as none ever is on the legacy stream.
        self.is_default = handle in (LEGACY_STREAM, PER_THREAD_STREAM)
        self.non_blocking = non_blocking or external  # of a foreign one it is not known
        self.plain = not external and handle != PER_THREAD_STREAM
        self.simple = self.plain and (handle == LEGACY_STREAM or not services.handle.has(Capability.CAPTURE))

    def __del__(self) -> None:
        try:
            if self.owned and not self.device_handle.dead:
                self.device_handle.dropped.append(self)
        except AttributeError:
            pass

    def __repr__(self) -> str:
        what = {LEGACY_STREAM: "legacy default", PER_THREAD_STREAM: "per-thread default"}
        name = "closed" if self.closed else what.get(self.handle, f"{self.handle:#x}")
        return f"<{'external ' if self.external else ''}stream {name} of {self.device_handle.device}>"

    def __int__(self) -> int:
        return self.handle

    def __reduce__(self) -> NoReturn:
        raise TypeError(
            "a stream cannot be pickled or copied: its handle means something in this process only, and is destroyed once; "
            "make one where it is used, with devmem.stream()"
        )

    def __cuda_stream__(self) -> tuple[int, int]:
        """(version, handle), for libraries that take any stream; default streams have the vendor's numbers."""
        self.device_handle.check()
        return 0, self.device_handle.stream_numbers.get(self.handle, self.handle)

    def __enter__(self) -> Stream:
        self.device_handle.check()
        self.handle  # noqa: B018  (raises if closed)
        saved = _saved.get()
        _saved.set((current_stream.get(), saved))
        current_stream.set(self)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        entry = _saved.get()
        assert entry is not None, "left a stream that was not entered here"
        before, rest = entry
        current_stream.set(before)
        _saved.set(rest)

    @property
    def device(self) -> PublicDevice:
        """The device that the stream belongs to."""
        return self.device_handle.device

    @property
    def closed(self) -> bool:
        """Whether the stream was closed, or its device was."""
        return self.device_handle.dead is not None

    def synchronize(self) -> None:
        """Wait until all work enqueued on this stream is done, and let go of what its copies held.

        Raises
        ------
        BackendError
            The wait failed, or work on the stream did.
        ClosedError, ForkedError
            The stream or its device is gone.
        """
        with CurrentDevice(self.device_handle) as driver:
            driver.stream_synchronize(self._handle_here())
            self.services.poll()

    def query(self) -> bool:
        """Whether all work enqueued on this stream is done; does not wait."""
        with CurrentDevice(self.device_handle) as driver:
            return bool(driver.stream_query(self._handle_here()))

    def wait(self, event: Event | Stream) -> None:
        """Make later work on this stream wait for an event, or for what is on another stream now. The host does not wait."""
        if isinstance(event, Stream):
            event = event.record()
        if not isinstance(event, Event):
            raise TypeError(f"a stream waits for a devmem.Event or another devmem.Stream, not for {event!r}")
        if event.device_handle is not self.device_handle:
            # Nothing on one device can wait for an event of another backend's device: the host has to.
            event.synchronize()
            return
        with CurrentDevice(self.device_handle) as driver:
            driver.stream_wait(self._handle_here(), event.handle)

    def record(self, event: Event | None = None) -> Event:
        """Record an event (a new one without timing, if none is given) behind all work that is on this stream now."""
        if event is None:
            event = Event(self.services, timing=False)
        if not isinstance(event, Event):
            raise TypeError(f"a stream records a devmem.Event, not {event!r}")
        event.record(self)
        return event

    @contextmanager
    def auto_synchronize(self) -> Iterator[Stream]:
        """Synchronize at the end of a ``with`` block, also when its body raises."""
        try:
            yield self
        finally:
            if not sys.is_finalizing():  # the block may be left when a generator dies at the interpreter's end
                self.synchronize()

    def close(self) -> None:
        """Wait for the stream's work, then destroy it. A second call does nothing; default and external streams are let be."""
        if not self.owned:
            return
        self.synchronize()
        with CurrentDevice(self.device_handle):
            self.services.wait_complete(self)
            self.destroy()

    def _handle_here(self) -> int:
        """The handle that names the stream on this thread; another thread's default stream is put before this thread's."""
        return self.handle if self.plain else self.services.stream_of(self).handle

    # -- for the queue -------------------------------------------------------------------------------------------------

    def waits_for(self, other: Stream) -> bool:
        """Whether nothing has to be done for this stream's later work to come after what is on the other now.

        Of a closed stream all work has passed; blocking streams wait for the legacy one.
        """
        return other.closed or (other.handle == LEGACY_STREAM and not self.non_blocking)

    def check_waitable(self) -> None:
        """Raise where a graph is captured on the stream: to wait for it would end the capture. The device is entered.

        Called by whatever waits for what it enqueues, before it enqueues anything.
        """
        if not self.simple and self.device_handle.capturing(self.handle):
            raise UnsupportedError(
                f"{self!r} is capturing a graph, which a call that waits would end: name the stream in the call, give it arrays "
                f"that need no gathering on the host, or call it outside of the capture"
            )

    def order_handle(self) -> int:
        """A handle of this device on which work is ordered behind all that this stream was given.

        The stream's own, except where that cannot be used: of a closed stream all work has passed; another thread's default
        stream cannot be named from here, but the legacy stream waits for it; a foreign stream may be gone already.
        """
        if self.plain:
            try:
                return self.handle
            except ClosedError:  # by another thread, just now
                return LEGACY_STREAM
        # The handle 2 means another stream in each thread, and a new thread may have the ident of one that is gone.
        if self.external or self.closed or self is not self.services.per_thread:
            return LEGACY_STREAM
        return self.handle

    def ordering_stream(self) -> Stream:
        """The stream of `order_handle`."""
        return self if self.order_handle() != LEGACY_STREAM else self.services.legacy

    def passed(self) -> bool:
        """Whether nothing of devmem's runs on the stream any more."""
        return not self.services.is_busy(self) and (
            self.closed or bool(self.device_handle.driver.stream_query(self.handle))
        )

    def is_out(self) -> bool:
        """Whether the driver has not got the handle back yet."""
        return not self.closed

    def release(self, waited: set[int]) -> bool:
        """Destroy the stream, unless its copies still run."""
        if not self.passed():
            return False
        self.destroy()
        return True

    def release_at_close(self) -> None:
        """Nothing: the close of the device destroys every handle."""

    def destroy(self) -> None:
        """Give the handle back to the driver."""
        handle = self.handle
        self.owned = self.plain = self.simple = False
        self.__class__ = ClosedStream
        self.services.destroy_stream(handle)


class ClosedStream(Stream):
    """What a stream becomes when it is destroyed: it has no handle, and every use asks for it.

    Another class, not a ``__getattr__``: a class that has one makes every look at an attribute ten times as slow.
    """

    __slots__ = ()

    @property
    def handle(self) -> NoReturn:  # type: ignore[override]
        """Say that the stream is closed."""
        raise ClosedError(
            f"this stream of {self.device_handle.device} is closed: make another with devmem.stream(), and rebind the arrays "
            f"that were bound to it with bind(0)"
        )

    @property
    def closed(self) -> bool:
        """True."""
        return True


class Event:
    """A point in a stream that can be waited for, and timed.

    An event that was never recorded counts as passed.
    """

    __slots__ = ("__weakref__", "device_handle", "handle", "recorded", "services", "timing")

    nbytes = 0

    def __init__(self, services: StreamServices, timing: bool = True) -> None:
        self.services = services
        self.device_handle = services.handle
        self.timing = timing
        self.recorded = False
        with CurrentDevice(self.device_handle) as driver:
            self.handle: int = driver.event_create(timing)
            services.add_event(self.handle)

    def __del__(self) -> None:
        try:
            if self.handle and not self.device_handle.dead:
                self.device_handle.dropped.append(self)
        except (AttributeError, ClosedError):
            pass

    def __repr__(self) -> str:
        return f"<event of {self.device_handle.device}{'' if self.timing else ', without timing'}>"

    def __reduce__(self) -> NoReturn:
        raise TypeError(
            "an event cannot be pickled or copied: its handle means something in this process only, and is destroyed once; "
            "wait for it here, synchronize(), before something else relies on it"
        )

    @property
    def device(self) -> PublicDevice:
        """The device that the event belongs to."""
        return self.device_handle.device

    def record(self, stream: Stream | int | None = 0) -> None:
        """Capture what is on the stream now (the current or default stream, if none is given); may be called again."""
        chosen = self.services.stream_of(stream)
        if chosen.device_handle is not self.device_handle:
            raise LayoutError(
                f"this event belongs to {self.device}, the stream to {chosen.device}: record it on its own device"
            )
        with CurrentDevice(self.device_handle) as driver:
            driver.event_record(self.handle, chosen.handle)
            self.recorded = True

    def query(self) -> bool:
        """Whether the captured work is done; does not wait."""
        with CurrentDevice(self.device_handle) as driver:
            return bool(driver.event_query(self.handle))

    def synchronize(self) -> None:
        """Wait until the captured work is done."""
        with CurrentDevice(self.device_handle) as driver:
            driver.event_synchronize(self.handle)

    def wait(self, stream: Stream | int | None = 0) -> None:
        """Make later work on the stream wait for the captured work. The host does not wait."""
        (stream if isinstance(stream, Stream) else self.services.stream_of(stream)).wait(self)

    def elapsed_time(self, end: Event) -> float:
        """Milliseconds from this event to ``end``.

        Raises
        ------
        LayoutError
            They belong to two devices; or one of them was made without timing, or was never recorded.
        BackendError
            One of them has not passed yet, or work before it failed.
        """
        if not isinstance(end, Event):
            raise TypeError(f"times are taken between two devmem.Events, not to {end!r}")
        if end.device_handle is not self.device_handle:
            raise LayoutError(
                f"these events belong to {self.device} and {end.device}: times of two devices do not compare"
            )
        if not (self.timing and end.timing):
            raise LayoutError("an event made with timing=False has no time: make both with devmem.event()")
        handles = self.handle, end.handle  # these say it if one is closed
        if not (self.recorded and end.recorded):
            which = "the end" if self.recorded else "the start" if end.recorded else "neither"
            raise LayoutError(
                f"times are taken between two events that were recorded ({which} {'was' if which == 'neither' else 'was not'}): "
                f"record(stream) one before the work and one behind it"
            )
        with CurrentDevice(self.device_handle) as driver:
            try:
                return float(driver.event_elapsed(*handles))
            except BackendError as error:
                if all(map(driver.event_query, handles)):
                    raise
                raise BackendError(
                    f"the work before these events is not done: synchronize() the later one first ({error})",
                    backend=error.backend,
                    call=error.call,
                    code=error.code,
                    name=error.name,
                ) from error

    def close(self) -> None:
        """Destroy the event. A second call does nothing; work that waits for it is not disturbed."""
        try:
            self.handle  # noqa: B018
        except ClosedError:
            return
        self.device_handle.check()
        with CurrentDevice(self.device_handle):
            self.destroy()

    def is_out(self) -> bool:
        """Whether the driver has not got the handle back yet."""
        try:
            return bool(self.handle)
        except ClosedError:
            return False

    def release(self, waited: set[int]) -> bool:
        """Destroy the event."""
        self.destroy()
        return True

    def release_at_close(self) -> None:
        """Nothing: the close of the device destroys every handle."""

    def destroy(self) -> None:
        """Give the handle back to the driver."""
        handle = self.handle
        self.__class__ = ClosedEvent
        self.services.destroy_event(handle)


class ClosedEvent(Event):
    """What an event becomes when it is destroyed."""

    __slots__ = ()

    @property
    def handle(self) -> NoReturn:  # type: ignore[override]
        """Say that the event is closed."""
        raise ClosedError(f"this event of {self.device_handle.device} is closed: make another with devmem.event()")


def foreign_handle(stream: object) -> int | None:
    """The address of another library's stream, or the number of a default one; None of what is no stream.

    Most speak ``__cuda_stream__``. PyTorch's on AMD name it ``cuda_stream``; the vendors' own bindings have types that are turned
    into integers, and into no other numbers.

    Raises
    ------
    UnsupportedError
        It speaks a newer protocol.
    """
    protocol = getattr(stream, "__cuda_stream__", None)
    if protocol is not None:
        answer = protocol() if callable(protocol) else protocol
        try:
            version, handle = map(operator.index, answer)
        except (TypeError, ValueError):
            raise TypeError(
                f"__cuda_stream__ of a {type(stream).__name__} gave {answer!r}: it returns two integers, (0, address)"
            ) from None
        if version != 0:
            raise UnsupportedError(f"{stream!r} speaks version {version} of __cuda_stream__, this devmem version 0")
        return handle
    if isinstance(stream, bool):
        return None
    try:
        return operator.index(stream)  # type: ignore[arg-type]
    except TypeError:
        named = getattr(stream, "cuda_stream", None)
        if type(named) is int:
            return named
        kind = type(stream)
        return int(stream) if hasattr(kind, "__int__") and not hasattr(kind, "__float__") else None  # type: ignore[call-overload]
