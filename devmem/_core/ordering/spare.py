"""Streams and events that were given up are kept for the next use: their handles are, never the objects that had them.

`SpareHandles` keeps a few of each kind. A handle that is given up goes there where it would have been destroyed, so when no lease
can name it any more. From then on the object that had it does not own it: another `OwnedHandle` stands in the table, and a later
attempt to end the first one does nothing. (The compiled core parts a record from its owner in one step, and keeps the record.) A
handle is given out again to one owner, and only if the driver says that it has passed all that was enqueued on it, whatever its
last owner has done; the others wait their turn, or are destroyed.

Two threads may give up or take at the same time, and an interrupt may come anywhere: each change is made in one step.
"""

# Decision: docs/adr/0016-handles-are-reused-when-they-have-passed.md
from __future__ import annotations

from collections import deque
from collections.abc import Callable, Hashable
from functools import partial

from ...spi.errors import DevmemError
from ...toolkit.deferred_errors import FirstError
from ...toolkit.one_step import in_one_step
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
        spare = OwnedHandle(ended.handle, ended.table, ended.owner, ended.destroy, ended.let_go)
        spare.leaving = True  # no lease finds it
        in_one_step(partial(ended.table.__setitem__, ended.handle, spare), partial(kept.append, spare))
        return True

    def take(self, made: LentHandle, has_passed: Callable[[int], bool]) -> bool:
        """Give a handle to a new owner, if there is one that has passed all of its work. The device is entered."""
        kept = self._kept.get(made.key)
        if not kept:
            return False
        spare: OwnedHandle | None = None
        try:
            [spare] = map(deque.popleft, (kept,))  # it cannot be destroyed by another thread while the driver is asked
            if has_passed(spare.handle):
                made.handle = spare.handle  # interrupted from here on, the caller gives it up
                made.table[spare.handle] = made
                return True
            kept.append(spare)
        except IndexError:  # another thread took it
            if spare is not None:
                raise
        except BaseException as error:
            if spare is not None and spare.is_out() and spare not in kept:
                self.leases.given_up.append((AT_ONCE, spare))
            # Nothing tells when an event of a captured graph has passed; a device that is lost makes no other one either.
            if not isinstance(error, DevmemError):
                raise
        return False

    def drop(self) -> None:
        """Destroy them all. The device is entered."""
        with FirstError() as first:
            for kept in list(self._kept.values()):
                while kept:
                    try:
                        self.leases.destroy_all(map(deque.popleft, (kept,)))
                    except IndexError:  # another thread took it
                        break
                    except Exception as error:
                        first.put(error)

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
        #: Empty while a thread ends it. Two may: each has closed the object that had it.
        self._claim = [None]

    def end(self) -> None:
        """Give it to the spare ones, or let the driver destroy it. If that is interrupted it can be asked for again."""
        if self.idle:
            super().end()
            return
        claimed: list[None] = []
        try:
            claimed += map(list.pop, (self._claim,))
            if self.is_out() and not self.spare.keep(self):
                super().end()
        except IndexError:
            if claimed:
                raise
        finally:
            if claimed and self.is_out():
                self._claim += claimed
