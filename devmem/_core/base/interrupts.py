"""Check whether this thread may wait for another one, as it may have interrupted a call of devmem's.

Python runs a signal's handler, which may raise or call devmem, at the beginning of each Python function and behind each call of a
C function. A finalizer comes there too.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Container
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
    frame: FrameType | None = sys._getframe(1)
    other = ""  # the function above the frame, where that is the program's
    while frame is not None:
        if not _is_ours(frame):
            if other or frame.f_globals.get("__name__") != "contextlib":
                other = frame.f_code.co_name
        elif not other or other in allowed or (allowed and frame.f_code in _calling_verbs):
            other = ""
        elif frame.f_code not in _holding_nothing:
            raise CannotWait(
                f"{what} needs another thread, which may be waiting for the call in {frame.f_code.co_qualname}() that this one "
                f"has interrupted: in a signal's handler or a finalizer, ask where nothing has to be waited for"
            )
        frame = frame.f_back


def _is_ours(frame: FrameType) -> bool:
    name = str(frame.f_globals.get("__name__", ""))
    return name.startswith(PACKAGE) and not name.startswith(PROGRAMS)


def is_out(below: object, what: int) -> bool:
    """Whether a driver knows that it was not given an address back; of one that cannot tell: no."""
    asked = getattr(below, "is_out", None)
    return asked is not None and bool(asked(what))
