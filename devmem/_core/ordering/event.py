"""Events: points in a stream's work, which other streams and the host wait for.

An event knows no more of streams than `EventStream`. A stream that is to wait for an event of another device waits on the
device where the two drivers can, and else the host waits for it (`wait_for`).
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from inspect import Parameter, Signature
from operator import attrgetter
from typing import TYPE_CHECKING, Never, NoReturn, Protocol, SupportsIndex

from ..._native import core
from ...spi.errors import BackendError, ClosedError, LayoutError
from ...spi.types import Capability
from ..base.advice import EVENT, Listed, advise, refuse_keywords
from ..base.argument_types import SupportsCudaStream, SupportsStreamNumber
from ..base.device_handle import CurrentDevice, DeviceHandle, PublicDevice
from ..base.hot_state import EventState
from ..base.shown import html_facts

if TYPE_CHECKING:
    from .leases import OwnedHandle
    from .recorder import Recorder

#: What the finalizer calls where there is nothing to give back: makes an empty tuple.
nothing: Callable[[], object] = tuple


class EventStream:
    """A stream, as far as events need it; `Stream` is it."""

    __slots__ = ()

    device_handle: DeviceHandle
    handle: int
    recorder: Recorder | None

    def wait(self, event: Event) -> None:
        """Make later work on the stream wait for an event."""
        raise NotImplementedError


#: What names a stream: one of devmem's, its handle or another library's number, another library's stream; 0 or None name none.
StreamLike = EventStream | SupportsCudaStream | SupportsStreamNumber | SupportsIndex | None


class EventServices(Protocol):
    """The services of an open device that events use; `StreamTable` has them."""

    @property
    def handle(self) -> DeviceHandle: ...

    def stream_of(self, stream: object) -> EventStream:
        """The stream that an argument means."""

    def create_event(self, timing: bool) -> OwnedHandle:
        """An event that counts as passed, which the close of the device destroys if it is still there."""

    def destroy_event(self, event: OwnedHandle) -> object:
        """Destroy or keep an event."""


class StreamMaker(Protocol):
    """The services of the current device that ``Stream()`` and ``Event()`` use; its `OpenDevice` has them."""

    @property
    def streams(self) -> EventServices: ...

    def new_stream(self, priority: object, non_blocking: bool) -> EventStream:
        """A stream of devmem's own."""


def _no_device() -> StreamMaker:
    raise ClosedError("streams and events are made on a device: import devmem first")


#: The open device that is current; the room of devices, which is below, has it.
current_maker: list[Callable[[], StreamMaker]] = [_no_device]

if TYPE_CHECKING:
    _Advice = Listed
else:
    _Advice = advise(EVENT, "destroy device_handle owned services")


class Event(EventState, _Advice):
    """A point in a stream that can be waited for, and timed.

    An event that was never recorded counts as passed. ``Event(timing=True)`` makes one on the current device, as `devmem.event`
    does.

    Attributes
    ----------
    handle : int
        The driver's handle.
    timing : bool
        Whether its time can be taken.
    recorded : bool
        Whether it was recorded.

    Examples
    --------
    >>> stream, done = dm.Stream(), dm.Event()
    >>> d = dm.to_device(np.arange(3), stream)
    >>> done.record(stream)
    >>> done.synchronize()
    >>> done.query()
    True
    """

    __slots__ = ("__weakref__",)

    #: What `help` shows of a call by the user.
    __signature__ = Signature([Parameter("timing", Parameter.KEYWORD_ONLY, default=True, annotation="bool")])
    device_handle: DeviceHandle
    handle: int
    owned: OwnedHandle | None
    services: EventServices

    __del__ = property(attrgetter("_drop"))

    def __init__(self, services: EventServices | None = None, timing: bool = True, **others: Never) -> None:
        if others:
            refuse_keywords("Event()", others)
        if services is None:
            services = current_maker[0]().streams
        elif not hasattr(services, "create_event"):
            raise TypeError(f"Event() takes timing=True or False, not {services!r}: it is made on the current device")
        self.services = services
        self.device_handle = services.handle
        self.timing = bool(timing)
        self.recorded = False
        self._drop = nothing
        with CurrentDevice(self.device_handle):
            owned = services.create_event(timing)
            self._drop = partial(self.device_handle.dropped.append, owned)
        self.handle = owned.handle
        self.owned = owned

    def __repr__(self) -> str:
        return f"<event of {self.device_handle.device}{'' if self.timing else ', without timing'}>"

    def _repr_html_(self) -> str:
        facts = {"device": self.device_handle.device, "timing": "yes" if self.timing else "no"}
        return html_facts("event", facts | {"recorded": "yes" if self.recorded else "no"})

    def __reduce__(self) -> NoReturn:
        raise TypeError(
            "an event cannot be pickled or copied: its handle means something in this process only, and is destroyed once; "
            "wait for it here, synchronize(), before something else relies on it"
        )

    @property
    def device(self) -> PublicDevice:
        """The device that the event belongs to."""
        return self.device_handle.device

    def record(self, stream: StreamLike = 0) -> None:
        """Capture what is on the stream now (the current or default stream, if none is given); may be called again.

        Examples
        --------
        >>> stream, done = dm.stream(), dm.event()
        >>> d = dm.to_device(np.arange(3), stream)
        >>> done.record(stream)
        """
        if core is not None and core.record_event(self, stream) is not None:
            return
        chosen = self.services.stream_of(stream)
        with CurrentDevice(self.device_handle) as driver:
            if chosen.recorder is not None:
                chosen.recorder.record_event(self)
            else:
                driver.event_record(self.handle, chosen.handle)
            self.recorded = True

    def query(self) -> bool:
        """Whether the captured work is done; does not wait.

        Examples
        --------
        >>> done = dm.stream().record()
        >>> done.synchronize()
        >>> done.query()
        True
        """
        with CurrentDevice(self.device_handle) as driver:
            return bool(driver.event_query(self.handle))

    def synchronize(self) -> None:
        """Wait until the captured work is done.

        Examples
        --------
        >>> stream = dm.stream()
        >>> d = dm.to_device(np.arange(3), stream)
        >>> stream.record().synchronize()
        """
        with CurrentDevice(self.device_handle) as driver:
            driver.event_synchronize(self.handle)

    def wait(self, stream: StreamLike = 0) -> None:
        """Make later work on the stream wait for the captured work. The host does not wait.

        Examples
        --------
        >>> loading, working = dm.stream(), dm.stream()
        >>> d = dm.to_device(np.arange(3), loading)
        >>> loading.record().wait(working)          # as working.wait(loading.record())
        """
        (stream if isinstance(stream, EventStream) else self.services.stream_of(stream)).wait(self)

    def elapsed_time(self, end: Event) -> float:
        """Milliseconds from this event to ``end``.

        Raises
        ------
        LayoutError
            They belong to two devices; or one of them was made without timing, or was never recorded.
        BackendError
            One of them has not passed yet, or work before it failed.

        Examples
        --------
        >>> stream = dm.stream()
        >>> start = stream.record(timing=True)
        >>> d = dm.to_device(np.arange(3), stream)
        >>> end = stream.record(timing=True)
        >>> end.synchronize()
        >>> start.elapsed_time(end) >= 0
        True
        """
        if not isinstance(end, Event):
            raise TypeError(f"times are taken between two devmem.Events, not to {end!r}")
        if end.device_handle is not self.device_handle:
            raise LayoutError(
                f"these events belong to {self.device} and {end.device}: times of two devices do not compare"
            )
        if not (self.timing and end.timing):
            raise LayoutError(
                "an event made with timing=False has no time: make both with devmem.event() or stream.record(timing=True)"
            )
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
        """End the event. A second call does nothing; work that waits for it is not disturbed.

        The driver's event is kept for the next `devmem.event` that comes when it has passed, until ``devmem.trim()``.

        Examples
        --------
        >>> done = dm.event()
        >>> done.close()
        """
        if core is not None and core.close_event(self) is not None:
            return
        try:
            self.handle  # noqa: B018
        except ClosedError:
            return
        with CurrentDevice(self.device_handle):
            self.destroy()

    def destroy(self) -> None:
        """Give the handle back to the driver. If that is interrupted, the finalizer leaves it to the queue."""
        owned, self.owned = self.owned, None
        if owned is None:  # another thread has closed it meanwhile
            return
        self.__class__ = ClosedEvent
        self.services.destroy_event(owned)
        self._drop = nothing


class ClosedEvent(Event):
    """An event that has been destroyed."""

    __slots__ = ()

    @property
    def handle(self) -> NoReturn:  # type: ignore[override]
        """Say that the event is closed."""
        raise ClosedError(f"this event of {self.device_handle.device} is closed: make another with devmem.event()")


def orders(later: DeviceHandle, earlier: DeviceHandle) -> bool:
    """Whether streams of one device can wait for events of another one."""
    return later is earlier or (later.info.backend == earlier.info.backend and later.has(Capability.PEER_EVENTS))


def wait_for(device: DeviceHandle, stream: int, event: Event) -> None:
    """Make later work on a stream, by handle, of the device that is entered wait for an event of any device.

    Where no stream can, the host waits. A device that was closed has completed its work.
    """
    other = event.device_handle
    try:
        if other is device:
            device.driver.stream_wait(stream, event.handle)
        elif other.dead is None:
            if orders(device, other):
                device.driver.stream_wait_peer(stream, event.handle, other.info.ordinal)
            else:
                event.synchronize()
    except BackendError:
        if device.capturing(stream):  # and the event was recorded outside of the graph, which only the driver knows
            device.refuse_order(stream)
        raise
