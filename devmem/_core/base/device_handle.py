"""The device handle: what every service of an open device shares.

A handle is made when a device opens and dies once: when the device is closed or reset, in the child of a fork, and when the
interpreter exits. From then on its driver is one that refuses every call with the reason, so a stream, an event or an array that
outlives its device raises a clear error on any thread and never reaches the vendor's library.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, NoReturn, Protocol, cast

from ...spi.driver import PROTOCOLS, Driver, FullDriver
from ...spi.errors import DevmemError, PluginError, UnsupportedError
from ...spi.types import Capability, DeviceInfo, MemoryInfo, MemoryKind
from ...toolkit.deferred_errors import fresh_copy

if TYPE_CHECKING:
    from types import TracebackType

#: ``DLDeviceType`` of memory that every host program can read.
CPU = 1


class PublicDevice(Protocol):
    """`devmem.Device`, as far as the rooms below it know it."""

    backend: str
    ordinal: int

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

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None
    ) -> None: ...


class Droppable(Protocol):
    """What a finalizer may append to `DeviceHandle.dropped`: an allocation, a stream, an event, a loaded kernel."""

    @property
    def nbytes(self) -> int:
        """Bytes that its release gives back; 0 for a handle."""

    def is_out(self) -> bool:
        """Whether the driver, or the memory resource, has not got it back yet."""

    def release(self, waited: set[int]) -> bool:
        """Give it back; the device is entered. False: it is still in use, ask again at the next safe point.

        ``waited`` holds the streams that this drain has waited for already.
        """

    def release_at_close(self) -> None:
        """Give back what the close of the device does not end by itself; the device is idle."""


class DeviceHandle:
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
    dlpack_device : tuple of int
        (type, number) of the device for DLPack.
    stream_numbers : dict
        By our handle of a default stream, the number that other libraries know it by.
    """

    __slots__ = (
        "__weakref__",
        "capabilities",
        "dead",
        "device",
        "dlpack_device",
        "driver",
        "dropped",
        "info",
        "is_host",
        "knows_pointers",
        "stream_numbers",
    )

    def __init__(self, device: PublicDevice, driver: Driver) -> None:
        self.device = device
        self.driver = cast(FullDriver, driver)
        self.info = driver.info
        self.capabilities = _checked_capabilities(driver)
        self.dead: DevmemError | None = None
        self.dropped: deque[Droppable] = deque()
        self.knows_pointers = Capability.POINTER_INFO in self.capabilities
        exchange = self.info.exchange
        # Host memory that every program can read is one device for DLPack, however many devices the backend plays.
        self.is_host = exchange.device_type == CPU
        self.dlpack_device = exchange.device_type, 0 if self.is_host else self.info.ordinal
        self.stream_numbers = {handle: number for number, handle in (exchange.streams or {}).items()}

    def __repr__(self) -> str:
        return f"<handle of {self.device}{', closed' if self.dead else ''}>"

    def check(self) -> None:
        """Raise if the device was closed, reset or left behind by a fork."""
        if self.dead is not None:
            raise fresh_copy(self.dead)

    def end(self, reason: DevmemError) -> None:
        """Refuse every later call for this reason."""
        self.dead = reason
        self.driver = cast(FullDriver, DeadDriver(reason))

    def has(self, capability: Capability) -> bool:
        """Whether the device has a capability."""
        return capability in self.capabilities

    def capturing(self, stream: int) -> bool:
        """Whether a graph is being captured on a stream; the device is entered."""
        return Capability.CAPTURE in self.capabilities and bool(self.driver.capturing(stream))

    def require(self, capability: Capability, purpose: str, instead: str) -> None:
        """Raise UnsupportedError unless the device has a capability."""
        if capability not in self.capabilities:
            raise UnsupportedError(f"{self.device} cannot {purpose} (it lacks {capability.value!r}): {instead}")

    def require_kind(self, kind: MemoryKind) -> None:
        """Raise UnsupportedError unless the device has this kind of memory."""
        if kind not in self.info.memory_kinds:
            kinds = ", ".join(sorted(self.info.memory_kinds))
            raise UnsupportedError(f"{self.device} has no {kind.value} memory, only {kinds}")


class CurrentDevice:
    """``with CurrentDevice(handle) as driver:`` make the device current on this thread, and restore what was.

    A class and not a generator: five times cheaper.
    """

    __slots__ = ("driver", "token")

    def __init__(self, handle: DeviceHandle) -> None:
        self.driver = handle.driver

    def __enter__(self) -> FullDriver:
        self.token = self.driver.enter()
        return self.driver

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        if self.token is not None:
            self.driver.exit(self.token)


class DeadDriver:
    """Takes the place of the driver of a closed device, and raises the reason at every call."""

    def __init__(self, error: DevmemError) -> None:
        object.__setattr__(self, "_error", error)

    def __getattr__(self, name: str) -> NoReturn:
        raise fresh_copy(object.__getattribute__(self, "_error"))


def _checked_capabilities(driver: Driver) -> frozenset[Capability]:
    for capability in driver.info.capabilities:
        if not isinstance(driver, PROTOCOLS[capability]):
            raise PluginError(
                f"the backend {driver.info.backend!r} declares {capability.value!r} but lacks methods of "
                f"{PROTOCOLS[capability].__name__} (see devmem.spi.driver)"
            )
    return driver.info.capabilities
