"""A function called on a thread of its own, where no signal's handler runs.

Python runs the handlers of signals on the main thread. There one that raises inside `threading.Thread.start`, which is Python
and waits, leaves a thread that never runs, or one that runs and that its starter does not know of. Called here `start` comes
to its end whatever interrupts the caller. So do the lines behind it that note what was started.
"""

# Decision: docs/adr/0014-interrupts-and-handlers-may-come-anywhere.md
from __future__ import annotations

import threading
from _thread import start_new_thread
from collections.abc import Callable
from queue import SimpleQueue

from .deferred_errors import FirstError


def _owns_table() -> bool:
    """Whether this is a handler that has interrupted `threading` itself: a start on another thread would wait for this one."""
    lock = getattr(threading, "_active_limbo_lock", None)
    return lock is not None and bool(lock._is_owned())


def run_apart(function: Callable[[], object]) -> None:
    """Call a function on a new thread, wait for it, and raise what it raises. An interrupt ends the wait alone.

    Raises
    ------
    RuntimeError
        The system gives no more threads, or the interpreter is ending: the function was not called.
    """
    if _owns_table():
        function()
        return
    ended: SimpleQueue[None] = SimpleQueue()
    with FirstError() as first:
        start_new_thread(_run, (function, first, ended))
        ended.get()


def _run(function: Callable[[], object], first: FirstError, ended: SimpleQueue[None]) -> None:
    try:
        function()
    except BaseException as error:
        first.put(error)
    ended.put(None)
