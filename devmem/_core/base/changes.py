"""Waiting for a change of what a lock protects, without the lock.

`threading.Condition` is written in Python: between its ``__enter__`` and the ``with`` block, and where its ``wait`` lets go of
the lock and takes it again, a signal's handler may raise; the lock stays taken, or is given back twice. Here the ``with``
statement is given the lock itself, and what waits has left the block.
"""

# Decision: docs/adr/0014-interrupts-and-handlers-may-come-anywhere.md
from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from queue import Empty, SimpleQueue

from .interrupts import check_may_wait

#: Seconds after which a thread that waits looks again: the one that was to tell it may have been interrupted.
PAUSE = 0.05


class Changes:
    """The changes of what a reentrant lock protects."""

    def __init__(self, lock: threading.RLock) -> None:
        self._lock = lock
        self._waiting: deque[SimpleQueue[None]] = deque()

    def wait_until(self, attempt: Callable[[], bool], what: str) -> None:
        """Call ``attempt`` with the lock held, once and after each change, until it returns True.

        Raises
        ------
        RuntimeError
            It has to wait in a signal's handler or a finalizer, which cannot; ``what`` begins the message.
        """
        while True:
            with self._lock:
                if attempt():
                    return
                waiter: SimpleQueue[None] = SimpleQueue()
                self._waiting.append(waiter)
            try:
                check_may_wait(what)
                waiter.get(timeout=PAUSE)
            except Empty:
                pass
            finally:
                with suppress(ValueError):  # it was told
                    self._waiting.remove(waiter)

    def tell(self) -> None:
        """Let what waits look again."""
        if self._waiting:
            with suppress(IndexError):
                for _ in range(len(self._waiting)):
                    self._waiting.popleft().put(None)
