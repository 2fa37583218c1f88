"""Memory that is overwritten when it is given back."""

from __future__ import annotations

from ...spi.driver import Driver
from ...spi.errors import BackendError, ConfigError
from ...spi.memory import MemoryResource
from ...spi.types import LEGACY_STREAM, MemoryKind
from ...toolkit.deferred_errors import FirstError
from ..base.interrupts import CannotWait
from .adaptor import Adaptor
from .device_access import MemoryAccess


class Scrub(Adaptor):
    """Fill every block with a byte when it is given back, so that the next owner of the memory cannot read its old contents.

    The fill is enqueued on the stream before the upstream gets the block. Over a stream-ordered upstream the host
    does not wait for it; over any other the call returns when the fill is done, because such an upstream may give the block to
    another stream at once. Put it above a pool: below, only what the pool itself gives back would be filled.

    Where a fill fails, ``deallocate`` raises and the block is withheld: the next ``trim`` tries again, unless the driver knows no
    such memory. So is a block that comes back on a stream that captures a graph, where nothing is filled before the graph runs.

    Parameters
    ----------
    upstream : MemoryResource, optional
        Where the memory comes from.
    byte : int
        What to fill with, 0 to 255.

    Examples
    --------
    >>> with dm.use_memory(dm.memory.Scrub(dm.memory.PoolMemory())):
    ...     d = dm.to_device(np.ones(3))
    ...     d.free()                            # the pool gets zeros back
    """

    _shown = ("byte",)

    def __init__(self, upstream: MemoryResource | None = None, byte: int = 0) -> None:
        super().__init__(upstream)
        if not isinstance(byte, int) or not 0 <= byte <= 255:
            raise ConfigError(f"memory is filled with a byte from 0 to 255, not with {byte!r}")
        self.byte = byte
        self._waits = True
        self._access: MemoryAccess
        self._start_anew()

    def _start_anew(self) -> None:
        #: Blocks that could not be filled: address and bytes. Each step on the list is atomic.
        self.withheld: list[tuple[int, int]] = []

    def bind(self, driver: Driver) -> None:
        """Take the device that fills."""
        super().bind(driver)
        self._access = MemoryAccess(driver, self.kind)
        self._waits = not (self.stream_ordered or self._access.host)  # the host's own fill is done when it returns

    @property
    def stream_ordered(self) -> bool:
        """Whether the upstream is stream-ordered, for device memory; False for memory that the host fills: it is waited for."""
        return super().stream_ordered and self.kind in (MemoryKind.DEVICE, MemoryKind.MANAGED)

    @property
    def cached_bytes(self) -> int:
        """Bytes that the stack keeps; what is withheld among them."""
        return super().cached_bytes + sum(nbytes for _, nbytes in list(self.withheld))

    def deallocate(self, ptr: int, nbytes: int, stream: int) -> None:
        """Fill the block, then give it back."""
        if not ptr:
            return
        wiped = False
        try:
            if not self._access.capturing(stream):
                self._wipe(ptr, nbytes, stream)
                wiped = True
        except BackendError:
            if self._access.is_gone(ptr, nbytes):  # no later attempt could fill it
                wiped = True
                self._deallocate(ptr, nbytes, stream)
            raise
        finally:
            if not wiped:
                self.withheld.append((ptr, nbytes))
        if wiped:
            self._deallocate(ptr, nbytes, stream)

    def trim(self, keep_bytes: int) -> None:
        """Give kept memory back; what was withheld is filled first, unless a graph is being captured."""
        with FirstError() as first:  # one that cannot be filled must not keep the others
            if self.withheld and not self._access.capturing(LEGACY_STREAM):
                self._access.driver.synchronize()  # its own stream may be gone, and is not ordered with the one used here
                for _ in range(len(self.withheld)):
                    first.attempt(self._retry)
            first.attempt(super().trim, keep_bytes)

    def _retry(self) -> None:
        try:
            ptr, nbytes = self.withheld.pop(0)
        except IndexError:  # another thread took the last one
            return
        try:
            self.deallocate(ptr, nbytes, LEGACY_STREAM)
        except CannotWait:
            self.withheld.append((ptr, nbytes))
            raise

    def _wipe(self, ptr: int, nbytes: int, stream: int) -> None:
        self._access.fill(ptr, self.byte, nbytes, stream)
        if self._waits:
            self._access.driver.stream_synchronize(stream)
