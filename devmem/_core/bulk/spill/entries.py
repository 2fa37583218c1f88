"""The entries of a store: for each key the tier that it is on, the value there, and the call that moves it.

The lock of the store protects all of it.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from threading import get_ident

from .places import Place


class Tier:
    """One tier: its name, its limit, what is on it, and in which order that was used."""

    __slots__ = ("bytes", "count", "limit", "name", "order")

    def __init__(self, name: str, limit: int | None) -> None:
        self.name = name
        self.limit = limit
        self.bytes = 0
        self.count = 0
        #: The oldest first. An entry that is on another tier by now may still be here, and is left out when it is met.
        self.order: dict[Hashable, Entry] = {}

    def __str__(self) -> str:
        return self.name


class Claim:
    """The claim of a call that is moving an entry, or has taken one out; the entry refers to it weakly."""

    __slots__ = ("__weakref__", "entry", "thread")

    def __init__(self) -> None:
        self.thread = get_ident()
        self.entry: Entry | None = None


def unclaimed() -> None:
    """The claim on an entry that no call moves."""


class Entry:
    """One key: the tier that it is on, and its value there.

    Attributes
    ----------
    nbytes, host_bytes : int
        Its bytes on that tier, and off the device.
    pickles : bool
        Whether there is something in the value that goes to disk by pickle.
    stuck : bool
        Whether it cannot be moved at all.
    """

    __slots__ = ("claim", "host_bytes", "key", "nbytes", "pickles", "place", "stuck", "tier")

    def __init__(self, key: Hashable, tier: Tier, place: Place, nbytes: int) -> None:
        self.key = key
        self.tier = tier
        self.place = place
        self.nbytes = nbytes
        self.host_bytes = nbytes
        self.pickles = True
        self.stuck = False
        self.claim: Callable[[], Claim | None] = unclaimed
