"""The live handles of a device, and what the vendor's library is given for each.

Outside a driver, streams, events and functions are integers. A vendor's binding may want an object of its own, which costs more
to make at every call than to look up: `Handles` is a dictionary of these. A handle that is not in it is foreign. The user vouched
for it, and an object is made at each call, because the handle may name something else tomorrow.

Some libraries read the memory behind a handle without a check, and crash on one that was destroyed. With ``refuse`` the table is
the check, and raises INVALID_HANDLE for a handle that was destroyed here; without ``foreign``, for each one that is not live.
Lookups take no lock; `add` and `take` do.

A call may look handles up that are not its caller's (`each`). What another thread, or a signal's handler, destroys meanwhile is
taken out of the table, and the vendor destroys it when no such call is under way: nothing waits, and no handle is used that the
vendor has destroyed.
"""

from __future__ import annotations

import warnings
import weakref
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Generic, NoReturn, SupportsInt, TypeVar

from ..spi.errors import DevmemError, DevmemWarning
from ..spi.types import LEGACY_STREAM, PER_THREAD_STREAM
from .locks import Rank, lock
from .vendor_functions import INVALID_HANDLE

H = TypeVar("H", bound=SupportsInt)
DEFAULT_STREAMS = (LEGACY_STREAM, PER_THREAD_STREAM)
#: Destroyed handles that a table remembers, so that a program that makes millions of streams does not fill its memory.
REMEMBERED = 1024


def _nothing() -> None:
    pass


class _Walk:
    """One walk over a table, as long as it is referenced."""


class Handles(dict[int, H], Generic[H]):
    """The library's object for each live handle; ``make`` makes one, ``defaults`` are always live, `StatusErrors.refuse` refuses.

    ``unordered`` tells whether a stream was seen that may not be ordered with the legacy stream: a foreign one, or (set by
    `Streams`) one that was made non-blocking.
    """

    def __init__(
        self,
        make: Callable[[int], H],
        defaults: Iterable[int] = (),
        refuse: Callable[[str, int, str], NoReturn] | None = None,
        *,
        what: str = "stream",
        foreign: bool = True,
    ) -> None:
        super().__init__({handle: make(handle) for handle in defaults})
        self._unordered = False
        self._tell_unordered: Callable[[], None] = _nothing
        self._make, self._refuse, self._what, self._foreign = make, refuse, what, foreign
        self._defaults = frozenset(self)
        self._destroyed: dict[int, None] = {}  # in the order of destruction: older addresses are in use again
        self._lock = lock("handle table", Rank.LEAF)
        self._walks: weakref.WeakSet[_Walk] = weakref.WeakSet()
        #: What was taken out during a walk, and what destroys it.
        self._late: deque[tuple[H, Callable[..., object]]] = deque()

    @property
    def unordered(self) -> bool:
        """Whether a stream was seen that may not be ordered with the legacy stream."""
        return self._unordered

    @unordered.setter
    def unordered(self, seen: bool) -> None:
        self._unordered = seen
        if seen:
            self._tell_unordered()

    def on_unordered(self, call: Callable[[], None]) -> None:
        """Call it when such a stream is seen."""
        self._tell_unordered = call

    def __missing__(self, handle: int) -> H:
        if not self._foreign or handle in self._destroyed:
            self._not_live(handle)
        self.unordered = True
        return self._make(handle)

    def unknown(self, handle: int) -> H:
        """The library's object for a handle of another table."""
        return self._make(handle)

    def make(self, destroy: Callable[[int], object], create: Callable[..., object], *arguments: object) -> int:
        """Let ``create(record, *arguments)`` make an object, and take it in; if an interrupt comes before, it is destroyed."""
        made: list[Any] = []
        try:
            create(made, *arguments)
            return self.add(self._make(int(made[0])))
        except BaseException:
            for each in map(int, made):
                self.pop(each, None)
                destroy(each)
            raise

    def end(self, handle: int, destroy: Callable[..., object]) -> None:
        """Take an object out, and let ``destroy(record, object)`` destroy it; if an interrupt comes before, it stays.

        During a walk (`each`) it is destroyed at the end of that.
        """
        known = self.get(handle)
        destroyed: list[object] = []
        try:
            taken = self.take(handle)
            if self._walks:
                destroyed.append(taken)
                self._late.append((taken, destroy))
                self._destroy_late()  # the walk may have ended just now
            else:
                destroy(destroyed, taken)
        except DevmemError:
            raise
        except BaseException:
            if known is not None and not destroyed:
                self.add(known, handle)
            raise

    def holds(self, handle: int) -> bool:
        """Whether this very handle is live, and not one that has got the same number since."""
        return any(each is handle for each in list(self))

    def each(self) -> Iterator[int]:
        """Walk over the live handles; the vendor destroys none until the walk has ended."""
        walk = _Walk()  # it ends at the latest with this frame, whatever comes in between
        self._walks.add(walk)
        try:
            yield from list(self)
        finally:
            self._walks.discard(walk)
            self._destroy_late()

    def _destroy_late(self) -> None:
        while self._late and not self._walks:
            try:
                taken, destroy = self._late.popleft()
            except IndexError:  # another thread took it
                break
            try:
                destroy([], taken)
            except DevmemError as error:  # the call that gave it up has returned
                warnings.warn(f"while destroying a {self._what}: {error}", DevmemWarning, stacklevel=3)

    def add(self, made: H, handle: int | None = None) -> int:
        """Take a new object in, or one back; its handle, whose number may be that of one that was destroyed before."""
        handle = int(made) if handle is None else handle
        with self._lock:
            self[handle] = made
            self._destroyed.pop(handle, None)
        return handle

    def take(self, handle: int) -> H:
        """Take an object out that is about to be destroyed."""
        with self._lock:
            if self._refuse is None:
                return self.pop(handle) if handle in self else self._make(handle)
            if handle not in self or handle in self._defaults:
                self._not_live(handle)
            if self._foreign:
                self._destroyed[handle] = None  # first: a lookup on another thread finds it in one of the two
                if len(self._destroyed) > REMEMBERED:
                    self._destroyed.pop(next(iter(list(self._destroyed))), None)
            return self.pop(handle)

    def live(self) -> list[int]:
        """The handles that were made here and not destroyed."""
        return [handle for handle in self if handle not in self._defaults]

    def _not_live(self, handle: int) -> NoReturn:
        assert self._refuse is not None
        self._refuse(self._what, INVALID_HANDLE, f"the {self._what} {handle:#x} was destroyed, or never made here")
