"""Resources that ask the driver for every block."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ...spi.driver import Driver
from ...spi.errors import ConfigError, DevmemError
from ...spi.types import AllocFlags, MemoryKind

#: What is said of a resource that has a device, or books of what it handed out.
NOT_PICKLED = (
    "a {name} cannot be pickled or copied: what it hands out is this process's own; send the stack as text "
    '("limit:4GiB,pool"), and give it to devmem.use_memory() there'
)


class _Direct:
    """A resource over ``Driver.alloc`` and ``Driver.free``."""

    #: The driver's free waits for the device where it has to; the memory may then go anywhere.
    stream_ordered = False

    allocate: Callable[[int, int], int]
    deallocate: Callable[[int, int, int], None]

    def __init__(self, device: object = None) -> None:
        #: The only device that it may be bound to; None: any.
        self.device = device
        self.driver: Driver | None = None
        self.allocate = _unbound
        self.deallocate = _unbound

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.driver.info.name if self.driver else 'not bound'})"

    def __getstate__(self) -> object:
        if self.driver is not None:
            raise TypeError(NOT_PICKLED.format(name=type(self).__name__))
        return super().__getstate__()

    def bind(self, driver: Driver) -> None:
        """Take the device that the memory comes from; a resource serves one. Again with the same one: nothing."""
        if self.driver is driver:
            return
        if self.driver is not None:
            raise DevmemError(
                f"{self!r} is bound to a device already, or to one that was reset or closed since: "
                f"make one resource for each device, and a new one after a reset"
            )
        info = driver.info
        names = [f"{info.backend}:{info.ordinal}", str(info.ordinal), *([] if info.ordinal else [info.backend])]
        if self.device is not None and str(self.device) not in names:
            raise ConfigError(
                f"{type(self).__name__}(device={str(self.device)!r}) cannot serve {names[0]}: name the same device in "
                f"use_memory(..., device=...), or none here"
            )
        self._take_verbs(driver)
        self.driver = driver

    def _take_verbs(self, driver: Driver) -> None:
        raise NotImplementedError


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
        kind, flags = self.kind, self.flags
        self.allocate = lambda nbytes, stream: driver.alloc(nbytes, stream, kind, flags)
        self.deallocate = lambda ptr, nbytes, stream: driver.free(ptr, nbytes, stream, kind)


class PinnedMemory(_OfKind):
    """Page-locked host memory; addresses are the host's."""

    kind = MemoryKind.PINNED


class MappedMemory(_OfKind):
    """Page-locked host memory that the device can reach; addresses are the host's."""

    kind = MemoryKind.MAPPED


class ManagedMemory(_OfKind):
    """Memory with one address for host and device, moved or shared by the driver."""

    kind = MemoryKind.MANAGED


#: What a stack stands on for each kind of memory, where nothing else is said.
PLAIN: dict[MemoryKind, Callable[..., _Direct]] = {
    MemoryKind.DEVICE: DriverMemory,
    MemoryKind.PINNED: PinnedMemory,
    MemoryKind.MAPPED: MappedMemory,
    MemoryKind.MANAGED: ManagedMemory,
}


def _unbound(*_: object) -> Any:
    raise DevmemError(
        "this memory resource is not bound to a device yet: install it with devmem.use_memory(); where another stands over it, "
        "that passes bind(driver) on"
    )
