"""Leases: no handle of a stream or an event is destroyed while a call on another thread may still name it.

Housekeeping names handles that the calling thread did not make: it asks every stream whether it captures a graph, and orders a
block's home stream behind the others that used it. It does so inside ``with leases.hold():``, and looks handles up there. What
destroys a handle first makes it impossible to find, then calls `destroy`. A lease that began before that may have found the
handle, so the handle waits until every such lease has ended; a lease that begins later cannot find it. Nothing waits, no lock is
held, and leases may nest and may be taken on any thread, also by a signal handler or a finalizer.
"""

from __future__ import annotations

import itertools
import warnings
from collections import deque
from collections.abc import Callable
from functools import partial
from operator import attrgetter
from typing import TYPE_CHECKING, Protocol

from ...spi.driver import Driver
from ...spi.errors import DevmemError, DevmemWarning
from ..base.hot_state import RecordState
from ..base.interrupts import CannotWait

if TYPE_CHECKING:
    from types import TracebackType


#: For a handle that no lease can have found.
AT_ONCE = -1


class HasDriver(Protocol):
    """An object with a driver, which may change: a device handle, or a bound memory resource."""

    @property
    def driver(self) -> Driver: ...


class HandleLeases:
    """The leases on the handles of one driver."""

    def __init__(self) -> None:
        self._numbers = itertools.count()
        self._held: dict[int, None] = {}
        #: The number that the next lease had when a handle was given up, or `AT_ONCE`, and the handle.
        self.given_up: deque[tuple[int, OwnedHandle]] = deque()

    def hold(self) -> Lease:
        """``with leases.hold():`` handles that are looked up in the block stay valid in the block. The device is entered."""
        return Lease(self)

    def destroy(self, handle: OwnedHandle) -> None:
        """Destroy a handle that cannot be looked up any more: now, or at the end of the last lease that may have found it."""
        handle.leaving = True  # first: a lease that begins from now on does not find it
        if self._held:
            self.given_up.append((next(self._numbers), handle))
            self.destroy_given_up()
            return
        try:
            handle.end()
        except CannotWait:  # at the end of the next lease
            self.given_up.append((AT_ONCE, handle))

    def destroy_given_up(self) -> None:
        """Destroy what was given up, as far as no lease may have found it. A failure is told as a DevmemWarning."""
        while self.given_up:
            try:
                number, handle = self.given_up.popleft()
            except IndexError:  # another thread took it
                break
            if min(list(self._held), default=number) < number:
                self.given_up.appendleft((number, handle))
                break
            try:
                handle.end()
            except CannotWait:
                self.given_up.append((number, handle))
                break
            except DevmemError as error:  # the call that gave the handle up has returned
                warnings.warn(f"while destroying a stream or an event: {error}", DevmemWarning, stacklevel=3)


class OwnedHandle(RecordState):
    """The handle of a stream or an event that devmem has made: in ``table`` from its making until the driver destroys it.

    ``let_go`` takes it from the queue of what was dropped, and returns whether it could; ``destroy`` is the driver's method.
    """

    __slots__ = ("destroy", "let_go", "owner")

    table: dict[int, OwnedHandle]
    #: What it counts for in the queue.
    nbytes = 0
    may_wait = False

    def __init__(
        self,
        handle: int,
        table: dict[int, OwnedHandle],
        owner: HasDriver,
        destroy: str,
        let_go: Callable[[OwnedHandle], bool],
    ) -> None:
        self.handle, self.table, self.owner, self.destroy, self.let_go = handle, table, owner, destroy, let_go
        #: It is being destroyed: no lease may look it up any more.
        self.leaving = False

    def is_out(self) -> bool:
        """Whether the driver has not got it back yet; the close of a device clears the table."""
        return self.table.get(self.handle) is self

    def may_be_named(self) -> bool:
        """Whether a lease that begins now may find it."""
        return not self.leaving and self.is_out()

    def release(self, waited: set[int]) -> bool:
        """Give it back, if it is not in use."""
        return not self.is_out() or self.let_go(self)

    def release_at_close(self) -> None:
        """Nothing: the close of the device destroys every handle."""

    def end(self) -> None:
        """Let the driver destroy it, unless it has, or the device is closed."""
        if self.is_out() and self.table.pop(self.handle, None) is self:
            getattr(self.owner.driver, self.destroy)(self.handle)


class Lease:
    """See `HandleLeases.hold`."""

    __slots__ = ("_drop", "_leases", "_number")

    #: Called in C, where an interrupt has come between ``with`` and its block, or as the block was left.
    __del__ = property(attrgetter("_drop"))

    def __init__(self, leases: HandleLeases) -> None:
        self._leases = leases
        self._number = next(leases._numbers)
        self._drop = partial(leases._held.pop, self._number, None)

    def __enter__(self) -> None:
        self._leases._held[self._number] = None

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._drop()
        if self._leases.given_up:
            self._leases.destroy_given_up()
