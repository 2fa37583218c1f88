"""Resources that pass every request to the driver."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from functools import partial
from typing import Any

from ...spi.driver import (
    Driver,
    SupportsDecompressPool,
    SupportsPoolControl,
    SupportsSharedPool,
    SupportsStreamOrdered,
    SupportsVirtual,
)
from ...spi.errors import ClosedError, ConfigError, DevmemError, UnsupportedError
from ...spi.types import AllocFlags, Capability, MemoryKind
from ..base.size_text import bytes_of, check_size

#: The error text for a bound resource, which tracks live blocks.
NOT_PICKLED = (
    "a {name} cannot be pickled or copied: what it hands out is this process's own; send the stack as text "
    '("limit:4GiB,pool"), and give it to devmem.use_memory() there'
)


class _Direct(ABC):
    """A resource whose verbs are the driver's."""

    #: What the driver's free takes back may go anywhere at once: it is for blocks that no stream uses.
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

    def unbind(self) -> None:
        """Let go of a device that was closed, and has freed all that was out; another may be bound."""
        self.driver = None
        self.allocate = self.deallocate = unbound

    @abstractmethod
    def _take_verbs(self, driver: Driver) -> None:
        """Set ``allocate`` and ``deallocate``."""


class DriverMemory(_Direct):
    """Plain device memory, straight from the driver: a block is freed when all work on it is done.

    Freeing may wait for the whole device (``cuMemFree`` does), which is why dropped arrays wait in a queue.

    Examples
    --------
    >>> with dm.use_memory(dm.memory.DriverMemory()):
    ...     d = dm.zeros(3)
    >>> handle = d.get_ipc_handle()             # which memory of a pool does not have
    """

    def _take_verbs(self, driver: Driver) -> None:
        # The driver's verbs have a resource's signature: its bound methods serve as they are, without a frame between.
        self.allocate = driver.alloc
        self.deallocate = driver.free


class VirtualMemory(_Direct):
    """Device memory that the driver maps: other processes can map it too, by a file descriptor or a fabric handle.

    Each block is a multiple of the driver's granularity, 2 MiB on most devices: put a pool in front of it. Freeing a block
    unmaps it here; what another process has opened stays there. Raises UnsupportedError when it is bound to a device that has no
    virtual memory, or with ``fabric`` to one that has no fabric handles.

    Parameters
    ----------
    device : Device, int or str, optional
        The only device that it may be bound to.
    fabric : bool
        For processes on other machines as well, which are connected by the devices' own links: such memory is opened by 64 bytes,
        and by no file descriptor.

    Examples
    --------
    >>> stack = "pool,virtual" if "virtual" in dm.current_device().info.capabilities else "driver"
    >>> with dm.use_memory(stack):
    ...     d = dm.zeros(3)
    >>> handle = d.get_ipc_handle()
    """

    def __init__(self, device: object = None, *, fabric: bool = False) -> None:
        super().__init__(device)
        self.fabric = fabric
        #: By address of a block: its file descriptor for other processes, which would keep the memory that is freed.
        self.exported: dict[int, list[Any]] = {}

    def _take_verbs(self, driver: Driver) -> None:
        info = driver.info
        if Capability.VIRTUAL not in info.capabilities or not isinstance(driver, SupportsVirtual):
            raise UnsupportedError(
                f"VirtualMemory needs a device with virtual memory management, which {info.name} has not: use "
                f"devmem.memory.DriverMemory()"
            )
        if self.fabric and not info.facts.get("fabric_handles"):
            raise UnsupportedError(
                f"VirtualMemory(fabric=True) needs a device with fabric handles, which {info.name} has not: use VirtualMemory()"
            )
        self.exported.clear()
        self.allocate = partial(driver.virtual_alloc, fabric=self.fabric)
        self.deallocate = partial(_free_exported, self.exported, driver.virtual_free)


def _free_exported(
    exported: dict[int, list[Any]], free: Callable[[int, int, int], None], ptr: int, nbytes: int, stream: int
) -> None:
    exported.get(ptr, []).clear()
    exported.pop(ptr, None)
    free(ptr, nbytes, stream)


class _OfKind(_Direct):
    """Memory of a kind other than device memory."""

    kind: MemoryKind

    def __init__(self, device: object = None, *, flags: AllocFlags = AllocFlags.NONE) -> None:
        super().__init__(device)
        self.flags = flags

    def _take_verbs(self, driver: Driver) -> None:
        self.allocate = partial(driver.alloc, kind=self.kind, flags=self.flags)
        self.deallocate = partial(driver.free, kind=self.kind)


class PinnedMemory(_OfKind):
    """Page-locked host memory; addresses are the host's.

    Examples
    --------
    >>> with dm.use_memory(dm.memory.Statistics(dm.memory.PinnedMemory()), kind="pinned") as counts:
    ...     host = dm.pinned_array(3)
    >>> counts.current_bytes
    24
    """

    kind = MemoryKind.PINNED


class MappedMemory(_OfKind):
    """Page-locked host memory that the device can reach; addresses are the host's.

    Examples
    --------
    >>> with dm.use_memory(dm.memory.Statistics(dm.memory.MappedMemory()), kind="mapped") as counts:
    ...     array = dm.mapped_array(3)
    >>> counts.current_bytes
    24
    """

    kind = MemoryKind.MAPPED


class ManagedMemory(_OfKind):
    """Memory with one address for host and device, moved or shared by the driver.

    Examples
    --------
    >>> with dm.use_memory(dm.memory.Limit(dm.memory.ManagedMemory(), "1GiB")):
    ...     d = dm.zeros(3)                     # device arrays in managed memory: more may be in use than the device has
    """

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
    current : bool
        Take memory from the pool that is the device's current one, which other libraries of the process use too, instead of one
        of devmem's own: what one library frees, another may be given. devmem then neither trims nor bounds it.
    hw_decompress : bool
        Take memory from a second pool of the driver's, which serves the device's decompression engine as a buffer; plain memory
        (`DriverMemory`) serves it too. The threshold and `trim` are for both pools.

    Examples
    --------
    >>> with dm.use_memory(dm.memory.StreamOrderedMemory(release_threshold="1GiB")), dm.stream() as stream:
    ...     d = dm.zeros(3, stream=stream)
    ...     d.free()                            # does not wait for the fill
    """

    stream_ordered = True

    def __init__(
        self,
        device: object = None,
        *,
        release_threshold: int | str | None = None,
        current: bool = False,
        hw_decompress: bool = False,
    ) -> None:
        super().__init__(device)
        self.current, self.hw_decompress = current, hw_decompress
        if current and hw_decompress:
            raise ConfigError(
                "StreamOrderedMemory(current=True, hw_decompress=True): what the device's current pool is used for is said where "
                "it is made: leave one of the two out"
            )
        if current and release_threshold is not None:
            raise ConfigError(
                f"StreamOrderedMemory(current=True, release_threshold={release_threshold!r}): the device's current pool is "
                f"shared with other libraries, so its threshold is not devmem's to set: leave one of the two out"
            )
        self.release_threshold = None if release_threshold is None else check_size(release_threshold)
        self._pool: SupportsPoolControl | None = None  # where the device tells of its pool

    @property
    def cached_bytes(self) -> int:
        """Bytes that the driver's pool holds and does not use."""
        return 0 if self._pool is None else self._pool.pool_cached()

    @property
    def shared_cache(self) -> object:
        """The owner of what `cached_bytes` counts: every such resource of a device draws on the driver's one pool."""
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
        if self.current:
            if Capability.SHARED_POOL not in driver.info.capabilities or not isinstance(driver, SupportsSharedPool):
                raise UnsupportedError(
                    f"StreamOrderedMemory(current=True) needs a device with a pool that libraries share ('shared_pool'), which "
                    f"{driver.info.name} has not: leave current out"
                )
            self.allocate, self.deallocate = driver.alloc_shared, driver.free_async
            return
        allocate = driver.alloc_async
        if self.hw_decompress:
            if Capability.DECOMPRESS_POOL not in driver.info.capabilities or not isinstance(
                driver, SupportsDecompressPool
            ):
                raise UnsupportedError(
                    f"StreamOrderedMemory(hw_decompress=True) needs a device with a decompression engine, and a driver that lets "
                    f"a pool serve it ('decompress_pool', CUDA 12.8), which {driver.info.name} has not: leave hw_decompress out"
                )
            driver.pool_decompressible()
            allocate = driver.alloc_decompressible
        if Capability.POOL_CONTROL in driver.info.capabilities and isinstance(driver, SupportsPoolControl):
            self._pool = driver
        if self.release_threshold is not None:
            if self._pool is None:
                raise UnsupportedError(
                    f"StreamOrderedMemory(release_threshold={self.release_threshold!r}) needs a device whose pool can be "
                    f"bounded ('pool_control'), which {driver.info.name} has not: leave the threshold out"
                )
            self._pool.pool_threshold(bytes_of(self.release_threshold, driver.info.total_bytes))
        self.allocate, self.deallocate = allocate, driver.free_async


#: What a stack stands on for each kind of memory, where nothing else is said.
PLAIN: dict[MemoryKind, Callable[..., _Direct]] = {
    MemoryKind.DEVICE: DriverMemory,
    MemoryKind.PINNED: PinnedMemory,
    MemoryKind.MAPPED: MappedMemory,
    MemoryKind.MANAGED: ManagedMemory,
}


def already_bound(resource: object, bound: Driver | None, driver: Driver, what: str) -> bool:
    """Whether a resource has this driver; ClosedError if it has an earlier one of the device, DevmemError if another device's."""
    if bound is None or bound is driver:
        return bound is driver
    old, new = (f"{each.info.backend}:{each.info.ordinal}" for each in (bound, driver))
    if old == new:  # a device has one driver at a time
        raise ClosedError(
            f"{resource!r} is bound to {old} as it was before it was reset or closed, and some of its memory is still in "
            f"use (drop it and call trim()), or a part of it is not devmem's own: make a new {what} and give that to use_memory()"
        )
    raise DevmemError(f"{resource!r} is bound to a device already, {old}: make another {what} for {new}")


def unbound(*_: object) -> Any:
    """Both verbs of a resource that has no device yet."""
    raise DevmemError(
        "this memory resource is not bound to a device yet: install it with devmem.use_memory(); where another stands over it, "
        "that passes bind(driver) on"
    )
