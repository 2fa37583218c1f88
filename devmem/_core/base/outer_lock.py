"""A lock that is held while other locks are taken, or a driver is called.

A handler may come while its thread has one of those others, which the holder of this lock is waiting for. So no handler waits for
this lock: one that another thread has is refused to it.
"""

# Decision: docs/adr/0014-interrupts-and-handlers-may-come-anywhere.md
from __future__ import annotations

import threading
from collections.abc import Callable
from operator import attrgetter

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

    #: Called in C: an interrupt comes before the lock is given back, or behind it, and not in between.
    __exit__: Callable[..., None] = property(attrgetter("_lock.__exit__"))  # type: ignore[assignment]

    def __init__(self, what: str) -> None:
        self.what = what
        self._lock = threading.RLock()

    def __enter__(self) -> None:
        # No handler comes behind the lines that take it: nothing is called there.
        [taken] = map(self._lock.acquire, (False,))
        if not taken:
            check_may_wait(self.what, VERBS)
            [taken] = map(self._lock.acquire, (True,))
