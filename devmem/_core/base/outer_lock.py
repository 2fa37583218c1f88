"""A lock that is held while other locks are taken, or a driver is called.

A handler may come while its thread has one of those others, which the holder of this lock is waiting for. So no handler waits for
this lock: one that another thread has is refused to it.
"""

# Decision: docs/adr/0014-interrupts-and-handlers-may-come-anywhere.md
from __future__ import annotations

import threading

from ...toolkit.locks import Rank, is_elsewhere, lock
from .interrupts import check_may_wait

#: Methods of a program's memory resource that stands over one of devmem's: they are called without a lock.
VERBS = frozenset({"allocate", "deallocate", "trim", "forget_stream"})


class OuterLock:
    """``with lock.asked():`` holds it; its thread may take it again."""

    __slots__ = ("_lock", "what")

    def __init__(self, name: str, rank: Rank, what: str) -> None:
        self.what = what
        self._lock = lock(name, rank)

    def asked(self) -> threading.RLock:
        """Return the lock itself, which this thread may wait for.

        Raises
        ------
        CannotWait
            Another thread has it, and this is a signal's handler or a finalizer that came into another call of devmem's; ``what``
            begins the message.
        """
        if is_elsewhere(self._lock):
            check_may_wait(self.what, VERBS)
        return self._lock
