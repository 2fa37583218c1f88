"""Every lock of devmem: reentrant, known by its name, and of a rank.

A lock is taken by ``with`` on itself, and never else (those that a handler may not wait for: `_core/base/outer_lock.py`). Python
takes it, and gives it back, in C, so no exception of a signal's handler comes in between. It is reentrant, as a handler or a
finalizer may call devmem on the thread that has it.

A thread takes locks in the order of their ranks: anew only one of a higher rank than all that it has. So no two threads wait for
one another. Nothing checks this but the tests (`tests/helpers/lock_order.py`), so that a lock costs what Python's does.
"""

# Decision: docs/adr/0014-interrupts-and-handlers-may-come-anywhere.md
from __future__ import annotations

import os
import threading
import weakref
from enum import IntEnum


class Rank(IntEnum):
    """The calls that are made while a lock is held. The table in ARCHITECTURE.md has the locks of each rank."""

    #: A library of kernels or a compiler, and all below.
    COMPILE = 1
    #: A backend's `open`, and all below.
    DEVICE = 2
    #: The import of a plugin.
    PLUGIN = 3
    #: A driver, which may not wait for a stream.
    DRIVER = 4
    #: What only a driver has: a vendor's library is loaded, or pages are reserved.
    WITHIN_DRIVER = 5
    #: Nothing but this package's own code that takes no lock and calls no driver: arithmetic, or work on a list.
    LEAF = 6


class Known(weakref.ref[threading.RLock]):
    """A lock that was made, as long as it is there."""

    __slots__ = ("name", "rank")

    name: str
    rank: Rank


#: The locks that are there.
known: set[Known] = set()


def make(name: str, rank: Rank) -> threading.RLock:
    """Make the lock itself. Tests put a function in this one's place whose locks look at the ranks."""
    return threading.RLock()


def lock(name: str, rank: Rank) -> threading.RLock:
    """Make a lock. The name says in the table of ARCHITECTURE.md, and in messages of the tests, which it is."""
    made = make(name, rank)
    ref = Known(made, known.discard)
    ref.name, ref.rank = name, rank
    known.add(ref)
    return made


def _after_fork_in_child() -> None:
    """No thread is left to give a lock back, but the one that has forked."""
    for each in list(known):
        one = each()
        if one is not None and not one._is_owned():  # type: ignore[attr-defined]
            one._at_fork_reinit()  # type: ignore[attr-defined]


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork_in_child)
