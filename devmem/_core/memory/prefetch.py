"""Managed memory that is on the device before its first use."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress

from ...spi.driver import Driver, SupportsManaged
from ...spi.errors import UnsupportedError
from ...spi.memory import MemoryResource
from ...spi.types import Capability, MemoryKind
from .adaptor import Adaptor, kind_of
from .direct import ManagedMemory


class Prefetch(Adaptor):
    """Move managed memory to the device when it is allocated, in stream order, instead of page by page at its first use.

    Parameters
    ----------
    upstream : MemoryResource, optional
        A stack of managed memory; ``ManagedMemory()`` if none is given.

    UnsupportedError is raised when it is bound to a device that cannot prefetch, or over memory of another kind.

    Examples
    --------
    >>> with dm.use_memory(dm.memory.Prefetch(dm.memory.ManagedMemory())):
    ...     d = dm.zeros(3)                     # its pages are on their way before the fill
    """

    def __init__(self, upstream: MemoryResource | None = None) -> None:
        super().__init__(ManagedMemory() if upstream is None else upstream)
        self._prefetch: Callable[[int, int, bool, int], None]

    def bind(self, driver: Driver) -> None:
        """Take the device that the memory is moved to."""
        if Capability.MANAGED not in driver.info.capabilities or not isinstance(driver, SupportsManaged):
            raise UnsupportedError(f"{driver.info.name} cannot prefetch managed memory: leave Prefetch out")
        if kind_of(self.upstream) is not MemoryKind.MANAGED:
            raise UnsupportedError(
                f"Prefetch stands over managed memory, not over {self.upstream!r}: give it devmem.memory.ManagedMemory()"
            )
        super().bind(driver)
        self._prefetch = driver.prefetch

    def allocate(self, nbytes: int, stream: int) -> int:
        """Allocate, and begin to move the pages."""
        if not nbytes:
            return 0
        ptr = self._allocate(nbytes, stream)
        try:
            self._prefetch(ptr, nbytes, False, stream)
        except BaseException:
            with suppress(Exception):  # the failure that is told is the first
                self._deallocate(ptr, nbytes, stream)
            raise
        return ptr
