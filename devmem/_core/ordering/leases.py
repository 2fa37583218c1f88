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
from contextlib import suppress
from typing import TYPE_CHECKING

from ...spi.errors import DevmemError, DevmemWarning

if TYPE_CHECKING:
    from types import TracebackType


class HandleLeases:
    """The leases on the handles of one driver."""

    def __init__(self) -> None:
        self._numbers = itertools.count()
        self._held: dict[int, None] = {}
        #: The number that the next lease had when a handle was given up, how to destroy the handle, and the handle.
        self._given_up: deque[tuple[int, Callable[[int], object], int]] = deque()

    def hold(self) -> Lease:
        """``with leases.hold():`` handles that are looked up in the block stay valid in the block. The device is entered."""
        return Lease(self)

    def destroy(self, destroy: Callable[[int], object], handle: int) -> None:
        """Destroy a handle that cannot be looked up any more: now, or at the end of the last lease that may have found it."""
        if not self._held:
            destroy(handle)
            return
        self._given_up.append((next(self._numbers), destroy, handle))
        self._destroy_given_up()  # the last lease may have ended meanwhile

    def _destroy_given_up(self) -> None:
        while self._given_up:
            try:
                entry = number, destroy, handle = self._given_up.popleft()
            except IndexError:  # another thread took it
                return
            if min(self._held.copy(), default=number) < number:
                self._given_up.appendleft(entry)
                return
            try:
                destroy(handle)
            except DevmemError as error:  # the call that gave the handle up has returned
                warnings.warn(f"while destroying a stream or an event: {error}", DevmemWarning, stacklevel=4)


class Lease:
    """See `HandleLeases.hold`."""

    __slots__ = ("_leases", "_number")

    def __init__(self, leases: HandleLeases) -> None:
        self._leases = leases
        self._number = -1

    def __enter__(self) -> None:
        self._number = next(self._leases._numbers)
        self._leases._held[self._number] = None

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        leases = self._leases
        leases._held.pop(self._number, None)
        if leases._given_up:
            leases._destroy_given_up()

    def __del__(self) -> None:
        with suppress(AttributeError):  # never finished __init__
            self._leases._held.pop(self._number, None)  # an interrupt may have come between `with` and its block
