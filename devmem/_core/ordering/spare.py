"""Streams and events that were given up are kept for the next use: their handles are, never the objects that had them.

`SpareHandles` keeps a few of each kind. A handle that is given up goes there where it would have been destroyed, so when no lease
can name it any more. From then on the object that had it does not own it: another record stands in the table, and a later
attempt to end the first one does nothing. (The compiled core parts a record from its owner in one step, and keeps the record.) A
handle is given out again to one owner, and only if the driver says that it has passed all that was enqueued on it, whatever its
last owner has done; the others wait their turn, or are destroyed.

Two threads may give up or take at the same time: a spare handle is in the table before it can be found among the spare ones.
"""

# Decision: docs/adr/0016-handles-are-reused-when-they-have-passed.md
from __future__ import annotations

from collections import deque
from collections.abc import Callable, Hashable
from typing import Self

from ...spi.errors import DevmemError
from ...toolkit.deferred_errors import FirstError
from ..base.interrupts import CannotWait
from .leases import AT_ONCE, HandleLeases, HasDriver, OwnedHandle


class SpareHandles:
    """The idle streams, or events, of one open device: at most so many of each key, which is what they were made with."""

    def __init__(self, leases: HandleLeases, most: int) -> None:
        self.leases = leases
        self.most = most
        self._kept: dict[Hashable, deque[OwnedHandle]] = {}

    def __len__(self) -> int:
        return sum(map(len, list(self._kept.values())))

    def keep(self, ended: LentHandle) -> bool:
        """Take a handle over from its owner; False where enough are kept."""
        kept = self._kept.setdefault(ended.key, deque())
        if len(kept) >= self.most:
            return False
        spare = ended.successor()
        ended.table[ended.handle] = spare
        kept.append(spare)
        return True

    def take(self, made: LentHandle, has_passed: Callable[[int], bool]) -> bool:
        """Give a handle to a new owner, if there is one that has passed all of its work. The device is entered."""
        kept = self._kept.get(made.key)
        if not kept:
            return False
        try:
            spare = kept.popleft()  # it cannot be destroyed by another thread while the driver is asked
        except IndexError:  # another thread took it
            return False
        try:
            passed = has_passed(spare.handle)
        except DevmemError:
            # Nothing tells when an event of a captured graph has passed; a device that is lost makes no other one either.
            self.leases.given_up.append((AT_ONCE, spare))
            return False
        if not passed:
            kept.append(spare)
            return False
        made.handle = spare.handle
        made.table[spare.handle] = made
        return True

    def drop(self) -> None:
        """Destroy them all. The device is entered."""
        with FirstError() as first:
            for kept in list(self._kept.values()):
                while kept:
                    try:
                        spare = kept.popleft()
                    except IndexError:  # another thread took it
                        break
                    first.attempt(self.leases.destroy, spare)

    def forget(self) -> None:
        """Forget them all without calling the driver: the device was closed."""
        self._kept.clear()


class LentHandle(OwnedHandle):
    """A handle whose owner gives it back to the spare ones."""

    __slots__ = ("_claim", "spare")

    key: Hashable

    def __init__(
        self,
        spare: SpareHandles,
        key: Hashable,
        handle: int,
        table: dict[int, OwnedHandle],
        owner: HasDriver,
        destroy: str,
        let_go: Callable[[OwnedHandle], bool],
    ) -> None:
        super().__init__(handle, table, owner, destroy, let_go)
        self.spare, self.key = spare, key
        #: It is itself among the spare ones: the compiled core keeps it for its next owner.
        self.idle = False
        #: Empty when a thread ends it. Two may: each has closed the object that had it.
        self._claim = [None]

    def successor(self) -> Self:
        """A spare record of the same handle, for its next owner: of the same class, as the compiled core takes them."""
        spare = type(self)(self.spare, self.key, self.handle, self.table, self.owner, self.destroy, self.let_go)
        spare.idle = spare.leaving = True  # no lease finds it
        return spare

    def end(self) -> None:
        """Give it to the spare ones, or let the driver destroy it."""
        if self.idle:
            super().end()
            return
        try:
            self._claim.pop()
        except IndexError:
            return
        try:
            if self.is_out() and not self.spare.keep(self):
                super().end()
        except CannotWait:  # it is ended another time
            self._claim.append(None)
            raise
