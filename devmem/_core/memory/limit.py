"""A bound on what a stack hands out."""

from __future__ import annotations

from ...spi.driver import Driver
from ...spi.errors import GuardError, OutOfMemory
from ...spi.memory import MemoryResource
from ...spi.sizes import exact_size
from ..base.interrupts import CannotWait
from ..base.size_text import bytes_of, check_size
from .adaptor import Adaptor, taken_of


class Limit(Adaptor):
    """Raise OutOfMemory for an allocation with which more than ``max_bytes`` would be in use.

    Bytes are counted as they are asked for, while they are in use: what a pool below keeps for reuse does not count. To bound
    that too, put the limit below the pool, or give the pool its own.

    Parameters
    ----------
    upstream : MemoryResource, optional
        Where the memory comes from.
    max_bytes : int or str
        The limit: bytes, ``"4GiB"``, or a share of the device's memory, ``"80%"``.

    Examples
    --------
    >>> with dm.use_memory(dm.memory.Limit(dm.memory.PoolMemory(), "1MiB")):
    ...     d = dm.zeros(1_000_000)
    Traceback (most recent call last):
        ...
    devmem.OutOfMemory: ...
    """

    _shown = ("max_bytes",)

    def __init__(self, upstream: MemoryResource | None = None, max_bytes: int | str = "100%") -> None:
        super().__init__(upstream)
        self.max_bytes = check_size(max_bytes)
        self._most = 0
        self._start_anew()

    def _start_anew(self) -> None:
        #: Bytes in use.
        self.current_bytes = 0

    def bind(self, driver: Driver) -> None:
        """Take the device; a share of its memory becomes a number of bytes."""
        super().bind(driver)
        self._most = bytes_of(self.max_bytes, driver.info.total_bytes)

    def allocate(self, nbytes: int, stream: int) -> int:
        """Allocate, if it fits below the limit."""
        if not nbytes:
            return 0
        with self._lock:
            used = self.current_bytes
            fits = used + nbytes <= self._most
            if fits:
                # Taken before it is asked for: two threads must not both fit into the last bytes.
                self.current_bytes = used + nbytes
        if not fits:
            raise OutOfMemory(
                f"the limit is {exact_size(self._most)}, of which {exact_size(used)} are in use and "
                f"{exact_size(self._most - used)} are left (Limit)",
                requested=nbytes,
                free=self._most - used,
                limit=self._most,
            )
        try:
            return self._allocate(nbytes, stream)
        except BaseException:
            with self._lock:
                self.current_bytes -= nbytes
            raise

    def deallocate(self, ptr: int, nbytes: int, stream: int) -> None:
        """Deallocate; then the bytes may be handed out again, also where the upstream raises: it has the block.

        What a `Guard` below refuses was not in use.
        """
        if ptr:
            taken = nbytes
            try:
                self._deallocate(ptr, nbytes, stream)
            except (GuardError, CannotWait) as error:
                taken = taken_of(error, nbytes)
                raise
            finally:
                with self._lock:
                    self.current_bytes -= taken
