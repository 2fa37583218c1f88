"""A device's own memory pool, for stream-ordered allocation.

The vendors' default pool of a device is shared by all libraries of the process, and so is its threshold: how much unused memory
it keeps. So a driver makes a pool of its own. Its threshold starts at "keep everything": with the vendors' default of zero, every
synchronization gives the unused memory back to the system, which costs milliseconds a gigabyte at the next allocation.

``alloc_async`` and ``free_async`` stay with the backend: they are called most, and read ``handle``.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from .driver_parts import DriverState, Part

KEEP_EVERYTHING = (1 << 64) - 1
#: Attributes of a pool, as CUDA and HIP number them.
RELEASE_THRESHOLD, RESERVED_BYTES, USED_BYTES = 4, 5, 7


class MemoryPool(Part):
    """The pool, as the vendor's ``handle``: None before `create` and after `destroy`.

    ``attribute`` gives an attribute as the vendor's functions take it, from its number; ``threshold`` a number of bytes.
    """

    def __init__(
        self, state: DriverState, attribute: Callable[[int], Any], threshold: Callable[[int], Any] = int
    ) -> None:
        super().__init__(state)
        self._attribute = attribute
        self._threshold = threshold
        self.handle: Any = None

    def create(self, properties: Any) -> None:
        """Make the pool; ``properties`` as the vendor's function takes them."""
        self.handle = self._functions.MemPoolCreate(properties)
        self.pool_threshold(KEEP_EVERYTHING)

    def destroy(self) -> None:
        """Destroy the pool, if there is one."""
        handle, self.handle = self.handle, None
        if handle is not None:
            self._functions.MemPoolDestroy(handle)

    def pool_cached(self) -> int:
        return self.bytes_of(RESERVED_BYTES) - self.bytes_of(USED_BYTES)

    def pool_trim(self, keep_bytes: int) -> None:
        used = self.bytes_of(USED_BYTES)  # the vendors count memory in use among what is kept
        self._relaxed(self._functions.MemPoolTrimTo, self.handle, used + keep_bytes)
        # The pool keeps at least that, in pieces of its own size. If it kept more, keep nothing instead.
        if keep_bytes and self.pool_cached() > keep_bytes:
            self._relaxed(self._functions.MemPoolTrimTo, self.handle, used)

    def pool_threshold(self, nbytes: int) -> None:
        attribute = self._attribute(RELEASE_THRESHOLD)
        self._relaxed(self._functions.MemPoolSetAttribute, self.handle, attribute, self._threshold(nbytes))

    def bytes_of(self, attribute: int) -> int:
        """An attribute of the pool that counts bytes."""
        return int(self._relaxed(self._functions.MemPoolGetAttribute, self.handle, self._attribute(attribute)))
