"""Interrupt code that runs in other threads, by raising an exception there."""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Callable
from threading import get_ident

#: How often the exception is raised, and the seconds between: a thread in C code does not notice it at once.
ATTEMPTS, INTERVAL = 20, 0.1

_raise_in = ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.c_ulong, ctypes.py_object)(
    ("PyThreadState_SetAsyncExc", ctypes.pythonapi)
)


class Interrupted(BaseException):
    """Raised in a kernel whose launch was interrupted."""


class Interrupts:
    """The threads that run interruptible code; any other thread can interrupt them.

    The exception is raised between two instructions of the code that `run_interruptible` runs, and never later: on leaving, a
    thread waits for an interrupt that is being raised in it. The lock is the launch's, and no such code runs under it.
    """

    def __init__(self, lock: threading.RLock) -> None:
        self.requested = False
        self._lock = lock
        self._running: set[int] = set()

    def run_interruptible(self, run: Callable[..., object], *args: object) -> None:
        """Run code that other threads may interrupt; raise Interrupted at once if an interrupt was requested before."""
        me = get_ident()
        try:
            self._running.add(me)
            if self.requested:
                raise Interrupted
            run(*args)
        finally:
            self._leave(me)

    def interrupt_all(self, over: threading.Event) -> bool:
        """Interrupt all threads until ``over`` is set, and prevent further runs; False if ``over`` was not set in time."""
        self.requested = True
        for _ in range(ATTEMPTS):
            with self._lock:
                for thread in list(self._running):
                    _raise_in(thread, Interrupted)
            if over.wait(INTERVAL):
                return True
        return False

    def _leave(self, me: int) -> None:
        """Stop other threads from raising in this one, and catch an exception that is raised but not delivered yet.

        It has to be delivered: if it were cancelled, the interpreter would go on checking for it at every call of every thread,
        and Python 3.11 would hang under a debugger or a coverage tool.
        """
        left = False
        while not left:
            try:
                self._running.discard(me)
                with self._lock:  # no other thread is raising any more
                    asked = self.requested
                left = True
                if asked:
                    _raise_in(me, Interrupted)  # replaces an undelivered one, or is one more
                    while True:
                        pass
            except Interrupted:
                pass
