"""Page-locking memory that the user allocated.

A registration that belongs to a ``with`` block ends with the block. Where an interrupt comes before the block's end has begun, it
ends when it is dropped: at the next safe point, like a block of memory.
"""

from __future__ import annotations

from functools import partial
from operator import attrgetter
from typing import Any

import numpy.typing as npt

from ...spi.errors import ClosedError, DevmemError
from ...spi.types import Capability
from ...toolkit.deferred_errors import FirstError
from ..base.device_handle import CurrentDevice, DeviceHandle
from .page_locks import Entry, PageLockTable, Run


class LockedArrays:
    """The arrays that one registration has locked and not deregistered yet."""

    __slots__ = ("entries", "handle", "page_locks")

    #: What it counts for in the queue of what was dropped.
    nbytes = 0
    may_wait = True

    def __init__(self, handle: DeviceHandle, page_locks: PageLockTable) -> None:
        self.handle = handle
        self.page_locks = page_locks
        self.entries: list[Entry] = []

    def is_out(self) -> bool:
        """Whether something is locked still; the close of a device unlocks all."""
        return bool(self.entries) and self.handle.dead is None

    def release(self, waited: set[int]) -> bool:
        """Deregister what is still registered, each array after the copies that use it. The device is entered.

        Where only the wait failed, an array is still registered, and this can be tried again.
        """
        with FirstError() as first:
            for entry in self.entries[::-1]:
                try:
                    self.page_locks.end(self.handle, entry)
                except DevmemError as error:  # the others must still be let go
                    first.put(error)
            self.entries = [entry for entry in self.entries if self.page_locks.has(self.handle, entry)]
        return True

    def release_at_close(self) -> None:
        """Nothing: the close of the device deregisters every array."""


def _nothing() -> None:
    """Do nothing: the registration of memory without a block is not dropped; it lasts until `deregister`."""


class Registration:
    """Arrays that are registered until the end of a ``with`` block, or until ``deregister``.

    If ``scoped``, they are deregistered at the latest when it is dropped.
    """

    __slots__ = ("_drop", "closed", "locked")

    #: Called in C for the method, which is then called, so that no interrupt comes before it is in the queue.
    __del__ = property(attrgetter("_drop"))

    def __init__(
        self,
        handle: DeviceHandle,
        page_locks: PageLockTable,
        arrays: tuple[npt.NDArray[Any], ...],
        *,
        scoped: bool = False,
    ) -> None:
        self._drop = _nothing
        handle.require(Capability.HOST_REGISTER, "page-lock memory", "copy without registering, or use pinned_array()")
        self.locked = locked = LockedArrays(handle, page_locks)
        self.closed = False
        pages, several = Run(), len(arrays) > 1
        try:
            with CurrentDevice(handle) as driver:
                try:
                    if several:
                        page_locks.lock_together(handle, arrays, pages)
                    for array in arrays:
                        locked.entries += map(page_locks.register, (handle,), (array,))  # no interrupt comes before
                finally:
                    if several:
                        pages.clear()
                        page_locks.sweep(driver)
            if scoped:
                self._drop = partial(handle.dropped.append, locked)
        except BaseException:  # also when leaving the device fails: the caller would have no handle to close
            handle.dropped.append(locked)  # where an interrupt comes once more
            self.close()
            raise

    def __repr__(self) -> str:
        count = len(self.locked.entries)
        state = "closed" if self.closed else f"of {count} array{'' if count == 1 else 's'}"
        return f"<{type(self).__name__} {state} on {self.locked.handle.device}>"

    def __enter__(self) -> Registration:
        if self.closed:
            raise ClosedError(
                "these arrays are not registered any more: call register() or pinned() again for each block"
            )
        self._drop = partial(self.locked.handle.dropped.append, self.locked)
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Deregister what is still registered, each array after the copies that use it. A second call does nothing."""
        self.closed = True
        if self.locked.is_out():
            with CurrentDevice(self.locked.handle):
                self.locked.release(set())
