"""Memory from the driver's own stream-ordered pool."""

from __future__ import annotations

from ...spi.driver import Driver, SupportsStreamOrdered
from ...spi.errors import UnsupportedError
from ...spi.types import Capability
from .direct import _Direct


class StreamOrderedMemory(_Direct):
    """Device memory whose allocation and freeing are ordered on a stream, so that neither waits.

    Raises UnsupportedError when it is bound to a device without such a pool.
    """

    stream_ordered = True

    @property
    def cached_bytes(self) -> int:
        """Bytes that the driver's pool holds and nobody uses."""
        return self._pool().pool_cached()

    @property
    def shared_cache(self) -> object:
        """Whose memory `cached_bytes` counts: every such resource of a device draws on the driver's one pool."""
        return self.driver

    def trim(self, keep_bytes: int) -> None:
        """Give the driver's unused memory back until at most ``keep_bytes`` are held."""
        self._pool().pool_trim(keep_bytes)

    def _take_verbs(self, driver: Driver) -> None:
        pool = self._pool()
        self.allocate = pool.alloc_async
        self.deallocate = pool.free_async

    def _pool(self) -> SupportsStreamOrdered:
        # Of a backend that can, a device need not: it is the device that has to declare it.
        driver = self.driver
        if (
            driver is None
            or Capability.STREAM_ORDERED not in driver.info.capabilities
            or not isinstance(driver, SupportsStreamOrdered)
        ):
            raise UnsupportedError(
                f"{self!r} needs a device with stream-ordered allocation: use devmem.memory.DriverMemory()"
            )
        return driver
