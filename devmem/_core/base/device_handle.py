"""The device handle: what every service of an open device shares.

A handle is made when a device opens and dies once: when the device is closed or reset, in the child of a fork, and when the
interpreter finalizes. From then on its driver is one that refuses every call with the reason, so a stream, an event or an array
that outlives its device raises a clear error on any thread and never reaches the vendor's library.

A device may be closed while other threads work with it. Each call that enters the device is noted in `callers`, then enters by
`entry`. The thread that closes the device first replaces `entry` by one that refuses, then waits until no other thread is inside
a call. So nothing is taken from under a running call, and no call takes a lock for it.
"""

from __future__ import annotations

import sys
import warnings
from collections import deque
from collections.abc import Callable
from threading import get_ident
from typing import TYPE_CHECKING, Any, NoReturn, Protocol, TypeVar, cast

from ...spi.driver import PROTOCOLS, Driver, FullDriver, SupportsPointerInfo, SupportsStridedCopy
from ...spi.errors import BackendError, ClosedError, DevmemError, DevmemWarning, PluginError, UnsupportedError
from ...spi.types import LEGACY_STREAM, Capability, DeviceInfo, MemoryInfo, MemoryKind
from ...toolkit.deferred_errors import fresh_copy
from ...toolkit.driver_parts import STRIDED, WithoutStridedCopies, lacking
from .call_site import caller_level
from .hot_state import HandleState
from .interrupts import interrupted_call, threads_in_calls
from .polling import until

if TYPE_CHECKING:
    from types import TracebackType

E = TypeVar("E", bound=BaseException)

#: Seconds that a call waits for a close that another thread has begun, before it is refused.
LET_CLOSE = 1.0
#: What is raised once the interpreter finalizes.
ENDED = ClosedError("no device can be used any more: the interpreter is exiting")
#: ``DLDeviceType`` of memory that every host program can read.
CPU = 1


class PublicDevice(Protocol):
    """`devmem.Device`, as far as the rooms below it know it."""

    backend: str
    ordinal: int
    _opened: Any  #: the open device, of a later room

    @property
    def id(self) -> int: ...

    @property
    def name(self) -> str: ...

    @property
    def info(self) -> DeviceInfo: ...

    def memory_info(self) -> MemoryInfo: ...

    def synchronize(self) -> None: ...

    def reset(self) -> None: ...

    def entered(self) -> CurrentDevice: ...

    def __enter__(self) -> PublicDevice: ...

    def __exit__(self, *_: object) -> None: ...


class Droppable(Protocol):
    """An item of `DeviceHandle.dropped`, where finalizers put it: an allocation, a stream, an event, a loaded kernel."""

    @property
    def nbytes(self) -> int:
        """Bytes that its release gives back; 0 for a handle."""

    @property
    def may_wait(self) -> bool:
        """Whether its release may wait for a stream."""

    def is_out(self) -> bool:
        """Whether the driver, or the memory resource, has not got it back yet."""

    def release(self, waited: set[int]) -> bool:
        """Give it back; the device is entered. False: it is still in use, ask again at the next safe point.

        ``waited`` holds the streams that this drain has waited for already.
        """

    def release_at_close(self) -> None:
        """Give back what the close of the device does not end by itself; the device is idle."""


class DeviceHandle(HandleState):
    """Driver, facts and state of one open device.

    Attributes
    ----------
    device : Device
        The public device, which outlives the handle.
    driver : FullDriver
        The driver; a `DeadDriver` once the device is closed.
    dead : DevmemError or None
        Why the device cannot be used any more.
    dropped : deque
        What finalizers have dropped. Appending is atomic and takes no lock; the deferred free queue empties it.
    dropped_bytes : int
        Its bytes of memory, or more, where the compiled core counts them.
    lane : core.Lane or None
        The compiled core's way to the driver, while there is one.
    heap : Heap or None
        What device memory comes from where no scope says otherwise.
    scopes : int
        How many ``with use_memory()`` blocks are open on the device.
    outside : int
        Calls of the compiled core that are inside the driver, without the GIL.
    dlpack_device : tuple of int
        (type, number) of the device for DLPack.
    callers : list of int
        The threads that are inside a call, once for each call.
    entry : FullDriver
        What enters the device: the driver, or what refuses to while the device is being closed.
    stream_numbers : dict
        By our handle of a default stream, the number that other libraries know it by.
    legacy_number : int or None
        That of the legacy default stream; None where other libraries have no streams of the device.
    """

    __slots__ = (
        "__weakref__",
        "callers",
        "capabilities",
        "checks_memory",
        "device",
        "info",
        "is_host",
        "knows_pointers",
        "stream_numbers",
    )

    driver: FullDriver
    entry: FullDriver
    dead: DevmemError | None
    dropped: deque[Droppable]

    def __init__(self, device: PublicDevice, driver: Driver) -> None:
        self.device = device
        self.driver = self.entry = cast(FullDriver, driver)
        self.info = driver.info
        self.capabilities = driver.info.capabilities
        self.dead = None
        self.dropped = deque()
        self.drop = self.dropped.append
        self.dropped_bytes = self.outside = self.scopes = 0
        self.heap = None
        self.lane = None
        self.callers: list[int] = []
        self.knows_pointers = Capability.POINTER_INFO in self.capabilities
        exchange = self.info.exchange
        # Host memory that every program can read is one device for DLPack, however many devices the backend plays.
        self.is_host = exchange.device_type == CPU
        #: Whether memory of other libraries is the device's only where its driver says so.
        self.checks_memory = checks_memory(self.info)
        self.dlpack_device = exchange.device_type, 0 if self.is_host else self.info.ordinal
        self.stream_numbers = {handle: number for number, handle in (exchange.streams or {}).items()}
        self.legacy_number = self.stream_numbers.get(LEGACY_STREAM)

    def __repr__(self) -> str:
        return f"<handle of {self.device}{', closed' if self.dead else ''}>"

    def check(self) -> None:
        """Raise if the device was closed, reset or left behind by a fork."""
        if self.dead is not None:
            _refuse(self.dead)

    def refuse(self, reason: DevmemError, patience: float) -> bool:
        """Let no other thread begin a call; return whether, after so many seconds at most, none is inside one any more."""
        entry = ClosedEntry(reason, self)
        self.entry = cast(FullDriver, entry)
        entry.inside.update(list(self.callers))
        return until(entry.is_alone, patience)

    def has_interrupted_a_call(self) -> bool:
        """Whether this call was made in the middle of another one on the device: by a signal's handler, or a finalizer."""
        return get_ident() in self.callers and interrupted_call() is not None

    def end(self, reason: DevmemError) -> None:
        """Refuse every later call for this reason."""
        self.dead = reason
        self.lane = self.heap = None
        self.driver = self.entry = cast(FullDriver, DeadDriver(reason))

    def end_with_interpreter(self) -> None:
        """Refuse every call as soon as the interpreter finalizes; until then other handlers of `atexit` may call."""
        self.lane = None
        self.entry = cast(FullDriver, LastEntry(self.driver))
        self.__class__ = LastHandle

    def has(self, capability: Capability) -> bool:
        """Whether the device has a capability."""
        return capability in self.capabilities

    def capturing(self, stream: int) -> bool:
        """Whether a graph is being captured on a stream; the device is entered."""
        return Capability.CAPTURE in self.capabilities and bool(self.driver.capturing(stream))

    def check_order(self, later: int, earlier: int) -> None:
        """Raise UnsupportedError where a graph is captured on a stream, by handle, that is to wait for one outside of the graph.

        The driver would end the capture. The device is entered.
        """
        if self.capturing(later) and not self.capturing(earlier):
            self.refuse_order(later)

    def refuse_order(self, later: int) -> NoReturn:
        """Say that a stream on which a graph is captured waits for nothing else."""
        raise UnsupportedError(
            f"the stream {later:#x} of {self.device} is capturing a graph, which cannot wait for what is on a stream outside of "
            f"it: make the array on the captured stream, or use it there once, before the capture"
        )

    def require(self, capability: Capability, purpose: str, instead: str) -> None:
        """Raise UnsupportedError unless the device has a capability."""
        if capability not in self.capabilities:
            lacks = f"it lacks {capability.value!r}: {capability.meaning}"
            raise UnsupportedError(f"{self.device} cannot {purpose} ({lacks}): {instead}")

    def require_kind(self, kind: MemoryKind) -> None:
        """Raise UnsupportedError unless the device has this kind of memory."""
        if kind not in self.info.memory_kinds:
            kinds = ", ".join(sorted(self.info.memory_kinds))
            raise UnsupportedError(f"{self.device} has no {kind.value} memory, only {kinds}")


_get_dead, _set_dead = (getattr(vars(HandleState)["dead"], name) for name in ("__get__", "__set__"))


def _dead_or_over(
    handle: DeviceHandle,
    dead: Callable[[DeviceHandle], DevmemError | None] = _get_dead,
    is_finalizing: Callable[[], bool] = sys.is_finalizing,
    ended: DevmemError = ENDED,
) -> DevmemError | None:
    return dead(handle) or (ended if is_finalizing() else None)


def checks_memory(info: DeviceInfo) -> bool:
    """Whether memory that devmem did not allocate is the device's only where its driver says so."""
    return Capability.POINTER_INFO in info.capabilities and info.exchange.device_type != CPU and not info.coherence


def known_bytes(driver: SupportsPointerInfo, low: int, nbytes: int) -> int:
    """Count the bytes from an address on that the entered driver knows, ``nbytes`` at most: of several allocations, too."""
    at = low
    while at < low + nbytes:
        found = driver.pointer_range(at)
        if found is None or found[0] + found[1] <= at:
            return at - low
        at = found[0] + found[1]
    return nbytes


def known_or_all(driver: SupportsPointerInfo, low: int, nbytes: int) -> int:
    """Return as many bytes as `known_bytes`; all where the driver fails, as its next call will, at which no block is lost."""
    try:
        return known_bytes(driver, low, nbytes)
    except BackendError:
        return nbytes


class LastHandle(DeviceHandle):
    """The handle of a device from devmem's own handler of `atexit` on: it is dead once the interpreter finalizes.

    What a generator that is collected leaves then asks for that. The names of modules may be gone by then: it looks none up.
    """

    __slots__ = ()

    dead = property(_dead_or_over, _set_dead)


class CurrentDevice:
    """``with CurrentDevice(handle) as driver:`` make the device current on this thread, and restore what was.

    A class and not a generator: five times cheaper.
    """

    __slots__ = ("caller", "entry", "handle", "token")

    def __init__(self, handle: DeviceHandle) -> None:
        self.handle = handle

    def __enter__(self) -> FullDriver:
        handle = self.handle
        self.caller = me = get_ident()
        try:
            handle.callers.append(me)
            self.entry = entry = handle.entry
            self.token = entry.enter()
        except BaseException:
            handle.callers.remove(me)
            raise
        return handle.driver

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.handle.callers.remove(self.caller)
        if self.token is not None:
            self.entry.exit(self.token)


class DeadDriver:
    """Takes the place of the driver of a closed device, and raises the reason at every call."""

    def __init__(self, error: DevmemError) -> None:
        object.__setattr__(self, "_error", error)

    def __getattr__(self, name: str) -> NoReturn:
        _refuse(object.__getattribute__(self, "_error"))


def _refuse(reason: DevmemError) -> NoReturn:
    raise fresh_copy(reason)


class LastEntry:
    """Enters a device until the interpreter finalizes."""

    def __init__(self, driver: FullDriver) -> None:
        self.driver = driver

    def enter(self) -> object:
        if sys.is_finalizing():
            _refuse(ENDED)
        return self.driver.enter()

    def exit(self, token: object) -> None:
        self.driver.exit(token)


class ClosedEntry:
    """Refuses to enter a device that is being closed, except for the thread that closes it, and within calls that run already."""

    def __init__(self, reason: DevmemError, handle: DeviceHandle) -> None:
        self.reason = reason
        self.handle = handle
        self.closing = get_ident()
        #: Threads that have not been seen outside of a call since the device began to close.
        self.inside: set[int] = set()

    def enter(self) -> object:
        me = get_ident()
        if me != self.closing and self.handle.callers.count(me) < 2:
            self.inside.discard(me)
            # A thread that tried again and again would leave the closing thread no time.
            until(lambda: self.handle.dead is not None, LET_CLOSE)
            raise fresh_copy(self.handle.dead or self.reason)
        return self.handle.driver.enter()

    def exit(self, token: object) -> None:
        self.handle.driver.exit(token)

    def is_alone(self) -> bool:
        """Whether no thread but the one that closes the device is inside a call."""
        self.inside.intersection_update(list(self.handle.callers))
        # An interrupt may have come as a thread left its call, before that was noted.
        if not self.inside <= {self.closing}:
            self.inside &= threads_in_calls()
        return self.inside <= {self.closing} and not self.handle.outside


def without_own_frames(error: E) -> E:
    """The error with the lines of its traceback from where devmem called other code on: of a driver's error none is left."""
    at = error.__traceback__
    while at is not None and at.tb_frame.f_globals.get("__name__", "").startswith("devmem."):
        at = at.tb_next
    return error.with_traceback(at)


def checked_driver(driver: object, backend: str, ordinal: int) -> Driver:
    """Return the driver that a backend's ``open`` returned, once its form was checked against the contract.

    Raises
    ------
    PluginError
        It lacks a method of the contract or of a capability that it declares, or declares an unknown one.
    """
    what = f"the backend {backend!r} opened device {ordinal} with"
    missing = lacking(driver, Driver)
    if missing:
        raise PluginError(f"{what} {driver!r}, which lacks {', '.join(missing)} (see devmem.spi.driver.Driver)")
    info = cast(Driver, driver).info
    if not isinstance(info, DeviceInfo):
        raise PluginError(f"{what} an info that is {info!r}, not a devmem.spi.types.DeviceInfo")
    if info.alignment < 64 or info.alignment & (info.alignment - 1):
        raise PluginError(f"{what} alignment={info.alignment}: it is a power of two, at least 64")
    if info.capabilities & STRIDED and lacking(driver, SupportsStridedCopy):
        driver = WithoutStridedCopies(driver)
        info = driver.info
        warnings.warn(
            f"{what} a driver that declares {Capability.STRIDED_COPY.value!r} and has no copy_strided: strided copies take the "
            f"general path, and copy_2d, copy_3d and copy_3d_batch are not called; write copy_strided in place of the first two "
            f"(see docs/reference/contract-changes.md)",
            DevmemWarning,
            stacklevel=caller_level(),
        )
    unknown = info.capabilities - set(Capability)
    if unknown:
        there = ", ".join(sorted(Capability))
        raise PluginError(f"{what} unknown capabilities {', '.join(sorted(map(str, unknown)))}; there are {there}")
    for capability in info.capabilities:
        protocol = PROTOCOLS[Capability(capability)]
        if missing := lacking(driver, protocol):
            raise PluginError(
                f"{what} the capability {str(capability)!r}, but without {', '.join(missing)} of {protocol.__name__} "
                f"(see devmem.spi.driver)"
            )
    return cast(Driver, driver)
