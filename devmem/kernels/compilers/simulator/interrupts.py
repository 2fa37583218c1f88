"""Ending what runs in other threads: an exception that is raised there."""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Callable
from threading import get_ident

#: How often threads are told to end, and how long between, in seconds: code that they call may not notice at once.
ATTEMPTS, PATIENCE = 20, 0.1

_raise_in = ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.c_ulong, ctypes.py_object)(
    ("PyThreadState_SetAsyncExc", ctypes.pythonapi)
)


class Interrupted(BaseException):
    """What is raised in a kernel that somebody has stopped waiting for."""


class Interrupts:
    """The threads that are inside of code that may be ended, from any other thread.

    `inside` runs it. What ends it is raised between two of its instructions, and nowhere else: behind the code the thread leaves,
    and waits for whoever is about to raise in it.
    """

    def __init__(self) -> None:
        self.asked = False
        self._lock = threading.Lock()
        self._inside: set[int] = set()

    def inside(self, run: Callable[..., object], *args: object) -> None:
        """Run code that may be ended. Raises Interrupted where it was, or at once if all was ended before."""
        me = get_ident()
        try:
            self._inside.add(me)
            if self.asked:
                raise Interrupted
            run(*args)
        finally:
            self._leave(me)

    def end(self, over: threading.Event) -> bool:
        """End all that runs, until ``over`` is set; False if it cannot be ended. Nothing of it begins any more."""
        self.asked = True
        for _ in range(ATTEMPTS):
            with self._lock:
                for thread in list(self._inside):
                    _raise_in(thread, Interrupted)
            if over.wait(PATIENCE):
                return True
        return False

    def _leave(self, me: int) -> None:
        """Let nobody raise it in this thread any more, and take what was raised and has not come yet.

        It has to come. If it were taken back, the interpreter would go on looking for it, at every call of every thread; and
        while a debugger or a coverage tool traces, Python 3.11 would do nothing else.
        """
        left = False
        while not left:
            try:
                self._inside.discard(me)
                with self._lock:  # nobody is about to raise it any more
                    asked = self.asked
                left = True
                if asked:
                    _raise_in(me, Interrupted)  # instead of the one that has not come, or as one more
                    while True:
                        pass
            except Interrupted:
                pass
