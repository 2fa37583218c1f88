"""Errors that are kept, to be raised later or more than once, without keeping anything else alive.

An error refers to its traceback, the traceback to the frames of the callers, and a frame to its variables. So an error that stays
in one of those variables, or in an object that they refer to, makes a reference cycle: arrays and buffers in it live until the
next garbage collection. `FirstError` raises what it kept and drops it; `fresh_copy` makes a copy without a traceback.
"""

# Decision: docs/adr/0013-each-failure-is-told-once.md
from __future__ import annotations

import copy
from collections.abc import Callable
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from types import TracebackType

E = TypeVar("E", bound=BaseException)


class FirstError:
    """Do several things, all of them whatever becomes of each, then raise the first error.

    The end of the ``with`` block raises ``error``: the first error that was ``put``, or the first that is no `Exception`, such as
    Ctrl-C. If the block itself raises, that error goes on and the one that was put is dropped::

        with FirstError() as first:
            for block in blocks:
                first.attempt(give_back, block)  # the other blocks must still be given back
    """

    __slots__ = ("error",)

    def __init__(self) -> None:
        self.error: BaseException | None = None

    def put(self, error: BaseException) -> None:
        """Keep an error unless there is one; what is no `Exception` replaces one that is."""
        if self.error is None or (isinstance(self.error, Exception) and not isinstance(error, Exception)):
            self.error = error

    def attempt(self, call: Callable[..., object], *arguments: object) -> None:
        """Make a call; keep the exception that it raises, which of a plugin's code may be any."""
        try:
            call(*arguments)
        except Exception as error:
            self.put(error)

    def __enter__(self) -> FirstError:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        first, self.error = self.error, None
        if first is not None and kind is None:
            try:
                raise first
            finally:
                del first  # or its traceback and this frame would keep each other


def fresh_copy(error: E) -> E:
    """A copy of a kept error, to be raised: raising adds a traceback, and the kept error must not get one.

    Message, attributes and notes are the same; the cause is copied too, because its frames belong to the same callers. An error
    whose class cannot be copied is returned itself, without its traceback.
    """
    try:
        made = copy.copy(error)
    except Exception:  # a constructor that takes something other than `args` may raise anything
        made = error.with_traceback(None)
    made.args = error.args
    cause, hidden = error.__cause__, error.__suppress_context__
    made.__cause__ = cause if cause is None or cause is error else fresh_copy(cause)
    made.__suppress_context__ = hidden  # setting the cause has set it
    if notes := getattr(error, "__notes__", ()):
        made.__notes__ = [*notes]
    return made
