"""Callbacks behind events: Python functions that are called once a stream has passed a point.

A stream with callbacks that wait has one thread of devmem's. It waits for the event behind each callback and then calls it, in
the order in which they were added, and ends with the last. No Python runs on the driver's threads: there the interpreter's lock
and the driver's would wait for each other. The thread is a daemon: what waits as the interpreter ends is not called.
"""

from __future__ import annotations

import os
import warnings
import weakref
from _thread import start_new_thread
from collections import deque
from collections.abc import Callable, Hashable

from ...spi.errors import DevmemError, DevmemWarning
from ...toolkit.locks import Rank, lock
from ..base.interrupts import holds_nothing

#: What is given the error of the wait, or None.
Callback = Callable[[DevmemError | None], object]


class _Waiting:
    """The callbacks of one stream that wait, each with its wait, and whether a thread takes them."""

    __slots__ = ("callbacks", "has_thread")

    def __init__(self) -> None:
        self.callbacks: deque[tuple[Callable[[], object], Callback]] = deque()
        self.has_thread = False


_waiting: weakref.WeakKeyDictionary[Hashable, _Waiting] = weakref.WeakKeyDictionary()
_lock = lock("stream callbacks", Rank.LEAF)


def call_behind(stream: Hashable, wait: Callable[[], object], callback: Callback) -> None:
    """Call ``callback`` on the stream's thread of callbacks when ``wait``, called there too, has returned or raised."""
    with _lock:
        waiting, added = _waiting.setdefault(stream, _Waiting()), (wait, callback)
        waiting.callbacks.append(added)
        if not waiting.has_thread:
            waiting.has_thread = True
            try:
                # Not by `threading.Thread`, whose `start` waits in Python: an interrupt there breaks the new thread.
                start_new_thread(_call_all, (stream, waiting))
            except RuntimeError:  # no thread can be had
                waiting.has_thread = False
                waiting.callbacks.remove(added)
                raise


@holds_nothing
def _call_all(stream: Hashable, waiting: _Waiting) -> None:
    try:
        _call_each(waiting)
    except BaseException:  # where warnings are errors this thread ends, as Python's do, and another one calls the rest
        start_new_thread(_call_all, (stream, waiting))
        raise


@holds_nothing
def _call_each(waiting: _Waiting) -> None:
    # Without the lock: a signal's handler may wait for a callback on a thread that holds it.
    while True:
        if not waiting.callbacks:
            waiting.has_thread = False  # no call stands between the question and this, so nothing is added between them
            return
        wait, callback = waiting.callbacks.popleft()
        failed: DevmemError | None = None
        try:
            wait()
        except DevmemError as error:
            failed = error.with_traceback(None)  # whose frames would keep the event
        del wait
        try:
            callback(failed)
        except BaseException as error:  # SystemExit, too: the thread is of the callbacks behind this one as well
            warnings.warn(f"Exception in stream callback: {error!r}", DevmemWarning, stacklevel=1)
        del callback, failed


def _after_fork_in_child() -> None:
    _waiting.clear()  # the threads are the parent's


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork_in_child)
