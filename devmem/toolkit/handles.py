"""The live handles of a device, and what the vendor's library is given for each.

Outside a driver, streams, events and functions are integers. A vendor's binding may want an object of its own, which costs more
to make at every call than to look up: `Handles` is a dictionary of these. A handle that is not in it is foreign. The user vouched
for it, and an object is made at each call, because the handle may name something else tomorrow.

Some libraries read the memory behind a handle without a check, and crash on one that was destroyed. With ``refuse`` the table is
the check, and raises INVALID_HANDLE for a handle that was destroyed here; without ``foreign``, for each one that is not live.
Lookups take no lock; `add` and `take` do.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from typing import Generic, NoReturn, SupportsInt, TypeVar

from ..spi.types import LEGACY_STREAM, PER_THREAD_STREAM
from .vendor_functions import INVALID_HANDLE

H = TypeVar("H", bound=SupportsInt)
DEFAULT_STREAMS = (LEGACY_STREAM, PER_THREAD_STREAM)
#: Destroyed handles that a table remembers, so that a program that makes millions of streams does not fill its memory.
REMEMBERED = 1024


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
        self.unordered = False
        self._make, self._refuse, self._what, self._foreign = make, refuse, what, foreign
        self._defaults = frozenset(self)
        self._destroyed: dict[int, None] = {}  # in the order of destruction: older addresses are in use again
        self._lock = threading.RLock()

    def __missing__(self, handle: int) -> H:
        if not self._foreign or handle in self._destroyed:
            self._not_live(handle)
        self.unordered = True
        return self._make(handle)

    def add(self, made: H) -> int:
        """Take a new object in; its handle, which may be one that was destroyed before."""
        handle = int(made)
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
                    self._destroyed.pop(next(iter(self._destroyed.copy())), None)
            return self.pop(handle)

    def live(self) -> list[int]:
        """The handles that were made here and not destroyed."""
        return [handle for handle in self if handle not in self._defaults]

    def _not_live(self, handle: int) -> NoReturn:
        assert self._refuse is not None
        self._refuse(self._what, INVALID_HANDLE, f"the {self._what} {handle:#x} was destroyed, or never made here")
