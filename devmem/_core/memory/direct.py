"""Resources that pass every request to the driver."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from functools import partial
from typing import Any

from ...spi.driver import Driver, SupportsStreamOrdered
from ...spi.errors import ConfigError, DevmemError, UnsupportedError
from ...spi.types import AllocFlags, Capability, MemoryKind
from .size_text import bytes_of, check_size

#: What is said of a resource that has a device, or books of what it handed out.
NOT_PICKLED = (
    "a {name} cannot be pickled or copied: what it hands out is this process's own; send the stack as text "
    '("limit:4GiB,pool"), and give it to devmem.use_memory() there'
)


class _Direct(ABC):
    """A resource whose verbs are the driver's."""

    #: The driver's free waits for the device where it has to; the memory may then go anywhere.
    stream_ordered = False

    allocate: Callable[[int, int], int]
    deallocate: Callable[[int, int, int], None]

    def __init__(self, device: object = None) -> None:
        #: The only device that it may be bound to; None: any.
        self.device = device
        self.driver: Driver | None = None
        self.allocate = self.deallocate = unbound

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.driver.info.name if self.driver else 'not bound'})"

    def __getstate__(self) -> object:
        if self.driver is not None:
            raise TypeError(NOT_PICKLED.format(name=type(self).__name__))
        return super().__getstate__()

    def bind(self, driver: Driver) -> None:
        """Take the device that the memory comes from; a resource serves one. Again with the same one: nothing."""
        if already_bound(self, self.driver, driver, "resource"):
            return
        info = driver.info
        names = [f"{info.backend}:{info.ordinal}", str(info.ordinal), *([] if info.ordinal else [info.backend])]
        if self.device is not None and str(self.device) not in names:
            raise ConfigError(
                f"{type(self).__name__}(device={str(self.device)!r}) cannot serve {names[0]}: name the same device in "
                f"use_memory(..., device=...), or none here"
            )
        self._take_verbs(driver)
        self.driver = driver

    @abstractmethod
    def _take_verbs(self, driver: Driver) -> None:
        """Set ``allocate`` and ``deallocate``."""


class DriverMemory(_Direct):
    """Plain device memory, straight from the driver.

    Freeing may wait for the whole device (``cuMemFree`` does), which is why dropped arrays wait in a queue.
    """

    def _take_verbs(self, driver: Driver) -> None:
        # The driver's verbs have a resource's signature: its bound methods serve as they are, without a frame between.
        self.allocate = driver.alloc
        self.deallocate = driver.free


class _OfKind(_Direct):
    """Memory of a kind other than device memory."""

    kind: MemoryKind

    def __init__(self, device: object = None, *, flags: AllocFlags = AllocFlags.NONE) -> None:
        super().__init__(device)
        self.flags = flags

    def _take_verbs(self, driver: Driver) -> None:
        self.allocate = partial(driver.alloc, kind=self.kind, flags=self.flags)  # no line of Python between
        self.deallocate = partial(driver.free, kind=self.kind)


class PinnedMemory(_OfKind):
    """Page-locked host memory; addresses are the host's."""

    kind = MemoryKind.PINNED


class MappedMemory(_OfKind):
    """Page-locked host memory that the device can reach; addresses are the host's."""

    kind = MemoryKind.MAPPED


class ManagedMemory(_OfKind):
    """Memory with one address for host and device, moved or shared by the driver."""

    kind = MemoryKind.MANAGED


class StreamOrderedMemory(_Direct):
    """Device memory whose allocation and freeing are ordered on a stream, so that neither waits.

    Raises UnsupportedError when it is bound to a device without such a pool.

    Parameters
    ----------
    device : Device, int or str, optional
        The only device that it may be bound to.
    release_threshold : int or str, optional
        If the driver's pool holds more bytes than this, it gives unused ones back to the system at each wait for a stream, an
        event or the device: a number, ``"1GiB"``, or a share of the device's memory, ``"25%"``. By default it keeps all that it
        has until `trim`, or until memory runs out. A device has one such pool for all its `StreamOrderedMemory`: the last one
        that is bound with a threshold sets it.
    """

    stream_ordered = True

    def __init__(self, device: object = None, *, release_threshold: int | str | None = None) -> None:
        super().__init__(device)
        self.release_threshold = None if release_threshold is None else check_size(release_threshold)
        self._pool: SupportsStreamOrdered | None = None

    @property
    def cached_bytes(self) -> int:
        """Bytes that the driver's pool holds and does not use."""
        return 0 if self._pool is None else self._pool.pool_cached()

    @property
    def shared_cache(self) -> object:
        """Whose memory `cached_bytes` counts: every such resource of a device draws on the driver's one pool."""
        return self.driver

    def trim(self, keep_bytes: int) -> None:
        """Give the driver's unused memory back until at most ``keep_bytes`` are held."""
        if self._pool is not None:
            self._pool.pool_trim(keep_bytes)

    def _take_verbs(self, driver: Driver) -> None:
        # Of a backend that can, a device need not: it is the device that has to declare it.
        if Capability.STREAM_ORDERED not in driver.info.capabilities or not isinstance(driver, SupportsStreamOrdered):
            raise UnsupportedError(
                f"StreamOrderedMemory needs a device with stream-ordered allocation, which {driver.info.name} has not: use "
                f"devmem.memory.DriverMemory(), or devmem.memory.PoolMemory()"
            )
        if self.release_threshold is not None:
            driver.pool_threshold(bytes_of(self.release_threshold, driver.info.total_bytes))
        self._pool = driver
        self.allocate = driver.alloc_async
        self.deallocate = driver.free_async


#: What a stack stands on for each kind of memory, where nothing else is said.
PLAIN: dict[MemoryKind, Callable[..., _Direct]] = {
    MemoryKind.DEVICE: DriverMemory,
    MemoryKind.PINNED: PinnedMemory,
    MemoryKind.MAPPED: MappedMemory,
    MemoryKind.MANAGED: ManagedMemory,
}


def already_bound(resource: object, bound: Driver | None, driver: Driver, what: str) -> bool:
    """Whether a resource has this device already; DevmemError if it has another."""
    if bound is not None and bound is not driver:
        raise DevmemError(
            f"{resource!r} is bound to a device already, or to one that was reset or closed since: "
            f"make one {what} for each device, and a new one after a reset"
        )
    return bound is driver


def unbound(*_: object) -> Any:
    """Both verbs of a resource that has no device yet."""
    raise DevmemError(
        "this memory resource is not bound to a device yet: install it with devmem.use_memory(); where another stands over it, "
        "that passes bind(driver) on"
    )
