"""Streams: in which order things happen on a device."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import partial
from inspect import Parameter, Signature
from operator import attrgetter
from typing import TYPE_CHECKING, Any, NoReturn, Protocol, cast

from ..._native import core
from ...spi.errors import ClosedError, LayoutError, UnsupportedError
from ...spi.types import LEGACY_STREAM, PER_THREAD_STREAM, Capability
from ..base.advice import STREAM, Listed, advise, refuse_keywords
from ..base.device_handle import CurrentDevice, PublicDevice
from ..base.hot_state import StreamState
from ..base.scopes import ScopeVariable
from ..base.shown import html_facts
from .callbacks import Callback, call_behind
from .event import Event, EventServices, EventStream, current_maker, nothing, wait_for

if TYPE_CHECKING:
    from types import TracebackType

    from .leases import OwnedHandle

#: Where this thread or task works: the device that was chosen, or a stream, and with it its device.
place: ScopeVariable[PublicDevice | Stream | None] = ScopeVariable(
    "devmem_place", None, None if core is None else core.choosing
)


def chosen_device() -> PublicDevice | None:
    """The device that a block or a call has made current in this thread or task; None where none has."""
    found = place.get()
    return found.device if isinstance(found, Stream) else found


def chosen_stream(services: StreamServices | None = None) -> Stream | None:
    """The stream of the innermost ``with stream:`` of this thread or task; of one device's, if its services are given."""
    for each in place.values():
        if isinstance(each, Stream) and services in (None, each.services):
            return each
    return None


class StreamServices(EventServices, Protocol):
    """The services of an open device that streams use; `StreamTable` has them."""

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

    def wait_complete(self, streams: Iterable[Stream]) -> None:
        """Wait until the copies in flight on these streams have completed."""

    def is_busy(self, stream: Stream) -> bool:
        """Whether a copy on the stream still keeps something alive."""

    def destroy_stream(self, owned: OwnedHandle) -> None:
        """Destroy or keep a stream that does not tell its handle any more."""


if TYPE_CHECKING:
    _Advice = Listed
else:
    _Advice = advise(
        STREAM,
        "check_not_captured check_not_recorded check_waitable destroy device_handle is_capturing is_default order_handle "
        "ordering_stream owned plain recorder services simple waits_for",
    )


class Stream(StreamState, EventStream, _Advice):
    """A queue of work on one device; what is on one stream happens in order.

    In ``with stream:`` its device is the current one of this thread or task, and work of that device for which no stream is named
    is ordered on it. Entering and leaving neither waits nor closes. A stream that is dropped is destroyed later, when its work
    is done.

    ``Stream(priority=0, non_blocking=False)`` makes one on the current device, as `devmem.stream` does.

    Attributes
    ----------
    handle : int
        The driver's handle; 1 and 2 are the legacy and the per-thread default stream on every backend.
    external : bool
        The stream belongs to another library: devmem never destroys it and never uses it after the caller's last use.
    non_blocking : bool
        It neither waits for the legacy default stream, nor that one for it; of a foreign stream it is not known, and True.

    Examples
    --------
    >>> with dm.Stream() as stream:
    ...     d = dm.to_device(np.arange(3))      # on this stream
    >>> stream.synchronize()
    """

    __slots__ = ("__weakref__",)

    #: What `help` shows of a call by the user.
    __signature__ = Signature(
        [
            Parameter("priority", Parameter.KEYWORD_ONLY, default=0, annotation="int"),
            Parameter("non_blocking", Parameter.KEYWORD_ONLY, default=False, annotation="bool"),
        ]
    )
    services: StreamServices
    owned: OwnedHandle | None

    #: Called in C for the method, which is then called, so that no interrupt comes before the handle is in the queue.
    __del__ = property(attrgetter("_drop"))

    def __new__(cls, services: StreamServices | None = None, *_: object, **options: Any) -> Stream:
        """A new stream on the current device, where the user calls the class."""
        if cls is Stream and not hasattr(services, "create_event"):  # called by a user
            if services is not None:
                raise TypeError(
                    f"Stream() takes priority= and non_blocking=, not {services!r}: it is made on the current device; "
                    f"devmem.external_stream() wraps one of another library"
                )
            priority, non_blocking = options.pop("priority", 0), options.pop("non_blocking", False)
            if options:
                refuse_keywords("Stream()", options)
            return cast(Stream, current_maker[0]().new_stream(priority, non_blocking))
        return super().__new__(cls)

    def __init__(
        self,
        services: StreamServices | None = None,
        handle: int = 0,
        *,
        priority: int = 0,
        non_blocking: bool = False,
        owned: OwnedHandle | None = None,
        external: bool = False,
    ) -> None:
        if services is None:
            return  # made by `__new__`
        self._drop = nothing if owned is None else partial(services.handle.dropped.append, owned)
        self.services = services
        self.device_handle = services.handle
        self.handle = handle
        self.owned = owned
        self.external = external
        #: Takes the driver's place while the stream's work is recorded.
        self.recorder = None
        # Worked out once, for the hottest paths. Plain: the handle can be used from any thread for as long as the stream is
        # open. Simple: and no graph can be captured on it, as none ever is on the legacy stream.
        self.is_default = handle in (LEGACY_STREAM, PER_THREAD_STREAM)
        self.non_blocking = bool(non_blocking or external)  # of a foreign one it is not known
        self.plain = not external and handle != PER_THREAD_STREAM
        self.simple = self.plain and (handle == LEGACY_STREAM or not services.handle.has(Capability.CAPTURE))

    def __repr__(self) -> str:
        what = {LEGACY_STREAM: "legacy default", PER_THREAD_STREAM: "per-thread default"}
        name = "closed" if self.closed else what.get(self.handle, f"{self.handle:#x}")
        return f"<{'external ' if self.external else ''}stream {name} of {self.device_handle.device}>"

    def _repr_html_(self) -> str:
        facts = {
            "device": self.device_handle.device,
            "handle": "closed" if self.closed else f"{self.handle:#x}",
            "belongs to": "another library" if self.external else "devmem",
            "waits for the legacy default stream": "no" if self.non_blocking else "yes",
        }
        return html_facts(repr(self).strip("<>"), facts)

    def __int__(self) -> int:
        return self.handle

    def __reduce__(self) -> NoReturn:
        raise TypeError(
            "a stream cannot be pickled or copied: its handle means something in this process only, and is destroyed once; "
            "make one where it is used, with devmem.stream()"
        )

    @property
    def __cuda_stream__(self) -> Callable[[], tuple[int, int]]:
        """Call it for (version, handle); default streams have CUDA's numbers. AttributeError where CUDA knows no such stream."""
        if not self.device_handle.info.exchange.cuda_stream:
            raise AttributeError(f"streams of {self.device_handle.device} mean nothing to CUDA: pass their handle")
        return self._cuda_stream

    def _cuda_stream(self) -> tuple[int, int]:
        self.device_handle.check()
        return 0, self.device_handle.stream_numbers.get(self.handle, self.handle)

    def __enter__(self) -> Stream:
        self.device_handle.check()
        self.handle  # noqa: B018  (raises if closed)
        if core is not None:
            core.stream_entered()  # it asks for the current stream from now on
        place.enter_value(self)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        place.leave_value(self)

    @property
    def device(self) -> PublicDevice:
        """The device that the stream belongs to."""
        return self.device_handle.device

    @property
    def closed(self) -> bool:
        """Whether the stream was closed, or its device was."""
        # The handle has ended also where the collector has taken the stream together with a block, which refers to it still.
        return self.device_handle.dead is not None or (self.owned is not None and not self.owned.may_be_named())

    def synchronize(self) -> None:
        """Wait until all work enqueued on this stream is done, and let go of what its copies held.

        Raises
        ------
        UnsupportedError
            A graph is captured on the stream.
        BackendError
            The wait failed, or work on the stream did.
        ClosedError, ForkedError
            The stream or its device is gone.

        Examples
        --------
        >>> stream = dm.stream()
        >>> d = dm.to_device(np.arange(3), stream)
        >>> stream.synchronize()
        """
        if core is not None and core.synchronize(self) is not None:
            return
        with CurrentDevice(self.device_handle) as driver:
            self.check_waitable()
            driver.stream_synchronize(self.handle if self.plain else self._handle_here())
            self.services.poll()

    def query(self) -> bool:
        """Whether all work enqueued on this stream is done; does not wait.

        Raises
        ------
        UnsupportedError
            A graph is captured on the stream.

        Examples
        --------
        >>> stream = dm.stream()
        >>> stream.query()
        True
        """
        with CurrentDevice(self.device_handle) as driver:
            self.check_waitable()
            return bool(driver.stream_query(self._handle_here()))

    def wait(self, event: Event | Stream) -> None:
        """Make later work on this stream wait for an event, or for what is on another stream now.

        They may be another device's. The host does not wait, unless that device is another backend's, or the backend lacks
        ``peer_events``.

        Raises
        ------
        UnsupportedError
            A graph is captured on this stream, and what it is to wait for is no part of the graph.

        Examples
        --------
        >>> loading, working = dm.stream(), dm.stream()
        >>> d = dm.to_device(np.arange(3), loading)
        >>> working.wait(loading)                   # what is enqueued from here on sees the elements
        >>> d.copy(working).tolist()
        [0, 1, 2]
        """
        if isinstance(event, Stream):
            self.check_not_recorded("to wait for what is on another stream now")
            if event.device_handle is self.device_handle:
                with CurrentDevice(self.device_handle):
                    self.device_handle.check_order(self._handle_here(), event.handle)
            event = event.record()
        if not isinstance(event, Event):
            raise TypeError(f"a stream waits for a devmem.Event or another devmem.Stream, not for {event!r}")
        event.device_handle.check()
        with CurrentDevice(self.device_handle):
            if self.recorder is None:
                wait_for(self.device_handle, self._handle_here(), event)
            elif event.device_handle is self.device_handle:
                self.recorder.wait_event(event)
            else:
                self.recorder.refuse("to wait for an event of another device")

    def record(self, event: Event | None = None, *, timing: bool = False) -> Event:
        """Record an event (a new one, if none is given) behind all work that is on this stream now.

        ``timing=True``: one whose time can be taken, by `Event.elapsed_time`.

        Examples
        --------
        >>> stream = dm.stream()
        >>> d = dm.to_device(np.arange(3), stream)
        >>> copied = stream.record()
        >>> copied.synchronize()
        """
        if event is None:
            event = Event(self.services, timing=timing)
        if not isinstance(event, Event):
            raise TypeError(f"a stream records a devmem.Event, not {event!r}")
        if timing and not event.timing:
            raise LayoutError(
                "record(timing=True) of an event that was made with timing=False: make it with devmem.event()"
            )
        event.record(self)
        return event

    def add_callback(self, callback: Callback) -> None:
        """Call ``callback(error)`` once all work that is on this stream now is done.

        It is called on a thread of devmem's, never on the driver's: it may use devices. Callbacks of one stream are called one
        after the other, in the order in which they were added. Later work on the stream does not wait for them. ``error`` is
        None, or the error of the work, or of a device that was closed meanwhile. What a callback raises becomes a
        DevmemWarning. Callbacks that still wait when the interpreter ends are not called.

        Raises
        ------
        UnsupportedError
            A graph is captured on the stream.
        ClosedError, ForkedError
            The stream or its device is gone.

        Examples
        --------
        >>> import threading
        >>> stream, called = dm.stream(), threading.Event()
        >>> stream.add_callback(lambda error: called.set())
        >>> called.wait()
        True
        """
        if not callable(callback):
            raise TypeError(f"a callback is called with the error or None, {callback!r} cannot be called")
        with CurrentDevice(self.device_handle):
            self.check_waitable()
            event = self.record()
        call_behind(self, event.synchronize, callback)

    @contextmanager
    def auto_synchronize(self) -> Iterator[Stream]:
        """Synchronize at the end of a ``with`` block, also when its body raises.

        Examples
        --------
        >>> with dm.stream().auto_synchronize() as stream:
        ...     d = dm.to_device(np.arange(3), stream)
        >>> stream.query()
        True
        """
        try:
            yield self
        finally:
            if not sys.is_finalizing():  # the block may be left when a generator dies at the interpreter's end
                self.synchronize()

    def close(self) -> None:
        """Wait for the stream's work, then end it. A second call does nothing; default and external streams are not closed.

        The driver's stream is kept for the next `devmem.stream` that asks for one of its kind, until ``devmem.trim()``.

        Examples
        --------
        >>> stream = dm.stream()
        >>> stream.close()
        >>> stream.closed
        True
        """
        if (core is not None and core.close_stream(self) is not None) or self.owned is None:
            return
        self.check_not_recorded("to close a stream")
        with CurrentDevice(self.device_handle) as driver:
            self.check_waitable()
            driver.stream_synchronize(self.handle)
            self.services.poll()
            if self.services.is_busy(self):
                self.services.wait_complete([self])
            self.destroy()

    def _handle_here(self) -> int:
        """The handle that names the stream on this thread; another thread's default stream is put before this thread's."""
        return self.handle if self.plain else self.services.stream_of(self).handle

    # -- for the queue -------------------------------------------------------------------------------------------------

    def waits_for(self, other: Stream) -> bool:
        """Whether nothing has to be done for this stream's later work to come after what is on the other now.

        Of a closed stream all work has passed; blocking streams wait for the legacy one.
        """
        legacy = not self.non_blocking and other.services is self.services
        return other.closed or (legacy and other.handle == LEGACY_STREAM)

    def is_capturing(self) -> bool:
        """Whether a graph is captured on the stream, or its work is recorded for a plan. The device is entered."""
        return self.recorder is not None or (not self.simple and self.device_handle.capturing(self.handle))

    def check_not_recorded(self, what: str) -> None:
        """Raise UnsupportedError, saying what cannot be recorded, where the stream's work is recorded for a plan."""
        if self.recorder is not None:
            self.recorder.refuse(what)

    def check_not_captured(self, what: str) -> None:
        """Raise UnsupportedError, saying what a graph cannot have, where one is captured on the stream. The device is entered."""
        if self.is_capturing():
            raise UnsupportedError(f"{self!r} is capturing a graph, which cannot have {what}")

    def check_waitable(self) -> None:
        """Raise where a graph is captured on the stream: to wait for it, or to ask for it, would end the capture.

        Called by whatever waits for what it enqueues, before it enqueues anything. The device is entered.
        """
        if self.recorder is not None:
            self.recorder.refuse("a call that waits for its stream, or asks for it,")
        if not self.simple and self.device_handle.capturing(self.handle):
            raise UnsupportedError(
                f"{self!r} is capturing a graph, which a call that waits or asks for it would end: name the stream in the call, "
                f"give it arrays that need no gathering on the host, or call it outside of the capture"
            )

    def order_handle(self) -> int:
        """A handle of this device on which work is ordered behind all that this stream was given.

        The stream's own, except where that cannot be used: of a closed stream all work has passed; another thread's default
        stream cannot be named from here, but the legacy stream waits for it; a foreign stream may be gone already.
        """
        if self.plain:
            try:
                return self.handle if self.owned is None or self.owned.may_be_named() else LEGACY_STREAM
            except ClosedError:  # by another thread, just now
                return LEGACY_STREAM
        # The handle 2 means another stream in each thread, and a new thread may have the ident of one that is gone.
        if self.external or self.closed or self is not self.services.per_thread:
            return LEGACY_STREAM
        return self.handle

    def ordering_stream(self) -> Stream:
        """The stream of `order_handle`."""
        return self if self.order_handle() != LEGACY_STREAM else self.services.legacy

    def destroy(self) -> None:
        """Give the handle back to the driver. If that is interrupted, the finalizer leaves it to the queue."""
        owned, self.owned = self.owned, None
        if owned is None:  # another thread has closed it meanwhile
            return
        self.plain = self.simple = False
        self.__class__ = ClosedStream
        self.services.destroy_stream(owned)
        self._drop = nothing


class ClosedStream(Stream):
    """A stream that has been destroyed: it has no handle, and every use asks for it.

    Another class, not a ``__getattr__``: a class that has one makes every look at an attribute ten times as slow.
    """

    __slots__ = ()

    @property
    def handle(self) -> NoReturn:  # type: ignore[override]
        """Say that the stream is closed."""
        raise ClosedError(
            f"this stream of {self.device_handle.device} is closed: make another with devmem.stream(), and rebind the arrays "
            f"that were bound to it, d = d.bind(0)"
        )

    @property
    def closed(self) -> bool:
        """True."""
        return True
