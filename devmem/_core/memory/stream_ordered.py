"""Memory from the driver's own stream-ordered pool."""

from __future__ import annotations

from ...spi.driver import Driver, SupportsStreamOrdered
from ...spi.errors import UnsupportedError
from ...spi.types import Capability
from .direct import _Direct
from .size_text import bytes_of, check_size


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
