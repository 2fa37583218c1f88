"""A lock that is held while other locks are taken, or a driver is called.

A handler may come while its thread has one of those others, which the holder of this lock is waiting for. So no handler waits for
this lock: one that another thread has is refused to it.
"""

# Decision: docs/adr/0014-interrupts-and-handlers-may-come-anywhere.md
from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from itertools import chain
from operator import attrgetter

from ...toolkit.locks import Rank, lock
from .interrupts import check_may_wait

#: Methods of a program's memory resource that stands over one of devmem's: they are called without a lock.
VERBS = frozenset({"allocate", "deallocate", "trim", "forget_stream"})


class OuterLock:
    """``with lock:`` holds it; its thread may take it again.

    Raises
    ------
    CannotWait
        Another thread has it, and this is a signal's handler or a finalizer that came into another call of devmem's; ``what``
        begins the message.
    """

    __slots__ = ("_lock", "what")

    #: The lock's own: it is given back in C.
    __exit__: Callable[..., None] = property(attrgetter("_lock.__exit__"))  # type: ignore[assignment]

    def __init__(self, name: str, rank: Rank, what: str) -> None:
        self.what = what
        self._lock = lock(name, rank)

    @property
    def __enter__(self) -> Callable[[], bool]:
        """A callable, in C like the lock's own, that takes the lock at once, or waits where this thread may wait."""
        acquire = self._lock.acquire
        return partial(next, filter(None, chain(map(acquire, [False]), self._ask(), map(acquire, [True]))))

    def _ask(self) -> Iterator[bool]:
        check_may_wait(self.what, VERBS)
        yield False
