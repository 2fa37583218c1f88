"""Find the call of devmem's that this one has interrupted, and the threads that are inside one.

Python runs a signal's handler, which may raise or call devmem, at the beginning of each Python function and behind each call of a
C function. A finalizer comes there too. Only the thread's frames tell that it did: a call of devmem's below the program's code.

A count of the calls of each thread would be too high for ever behind an interrupt that comes as a call ends, before the call can
count itself out; and `reset`, which must give everything back, would be refused for ever. So the calls that have entered a device
are noted (`DeviceHandle.callers`), which costs them little, and frames are looked at where a note alone does not decide: before
a wait for another thread, and by the close of a device.

A wrong yes costs an error: a call that might have waited raises CannotWait, or a close waits for `open_device.PATIENCE` seconds
and raises. A wrong no could cost a wait for ever, or a device that is closed under a call. It takes a function that is marked as
one that holds nothing (`holds_nothing`, `calls_verb`) and holds something, or a program that calls itself ``devmem.cli``.
"""

# Decision: docs/adr/0014-interrupts-and-handlers-may-come-anywhere.md
from __future__ import annotations

import gc
import sys
from collections.abc import Callable, Container
from inspect import currentframe
from types import CodeType, FrameType
from typing import TypeVar

Verb = TypeVar("Verb", bound=Callable[..., object])

#: Functions that call the program's own code, and hold nothing meanwhile that another thread may wait for.
_holding_nothing: set[CodeType] = set()
#: Functions that call a verb of the program's resource, whatever that one's name is.
_calling_verbs: set[CodeType] = set()
#: What a name of a module of devmem's begins with; and of those that run whole programs.
PACKAGE = f"{__name__.partition('.')[0]}."
PROGRAMS = f"{PACKAGE}cli.", f"{PACKAGE}testing."


class CannotWait(RuntimeError):
    """A call in a signal's handler or a finalizer would have to wait for another thread, which may wait for what it came into."""


def holds_nothing(function: Verb) -> Verb:
    """Mark a function that calls the program's own code, and holds nothing meanwhile that another thread may wait for."""
    _holding_nothing.add(function.__code__)
    return function


def calls_verb(function: Verb) -> Verb:
    """Mark a function that holds nothing, nor do its callers, while it calls one of the verbs of `check_may_wait`."""
    _calling_verbs.add(function.__code__)
    return function


def check_may_wait(what: str, allowed: Container[str] = ()) -> None:
    """Raise CannotWait where this call has interrupted another one of devmem's on its thread, which cannot go on meanwhile.

    Then a signal's handler made it, or a finalizer, or a function that devmem calls. Another thread that was waited for might
    wait for what the interrupted call has: a lock, pages, or a key. To be asked before each wait for another thread's progress.
    ``allowed``: names of methods of the program's that devmem calls where it has nothing that is waited for.
    """
    interrupted = interrupted_call(allowed)
    if interrupted is not None:
        raise CannotWait(
            f"{what} needs another thread, which may be waiting for the call in {interrupted.co_qualname}() that this one "
            f"has interrupted: in a signal's handler or a finalizer, ask where nothing has to be waited for"
        )


def interrupted_call(allowed: Container[str] = ()) -> CodeType | None:
    """The function of devmem's that this call has come into, on the same thread; ``allowed`` as in `check_may_wait`."""
    frame = currentframe()
    other = ""  # the function above the frame, where that is the program's
    while frame is not None:
        if not _is_ours(frame):
            if other or frame.f_globals.get("__name__") != "contextlib":
                other = frame.f_code.co_name
        elif not other or other in allowed or (allowed and frame.f_code in _calling_verbs):
            other = ""
        elif frame.f_code not in _holding_nothing:
            return frame.f_code
        frame = frame.f_back
    return None


def threads_in_calls() -> set[int]:
    """The threads that have a function of devmem's among their frames.

    The collector is off meanwhile: `sys._current_frames` holds the interpreter's lock of all threads, and what a collection
    within it calls may want that lock, on this thread or on another one that has the GIL by then (CPython issue 106883).
    """
    enabled = gc.isenabled()
    try:
        gc.disable()
        # No variable here may have the frames: this one is among them, and would keep itself and its callers.
        return {at for at, frame in sys._current_frames().items() if _has_ours(frame)}
    finally:
        if enabled:
            gc.enable()


def _has_ours(frame: FrameType | None) -> bool:
    while frame is not None and not _is_ours(frame):
        frame = frame.f_back
    return frame is not None


def _is_ours(frame: FrameType) -> bool:
    name = str(frame.f_globals.get("__name__", ""))
    return name.startswith(PACKAGE) and not name.startswith(PROGRAMS)


def is_out(below: object, what: int) -> bool:
    """Whether a driver knows that it was not given an address back; of one that cannot tell: no."""
    asked = getattr(below, "is_out", None)
    return asked is not None and bool(asked(what))
