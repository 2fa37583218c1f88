"""Errors that are put aside, to be raised later or once more, and keep nothing alive meanwhile.

An error has its traceback, and that the frames of all who were called, with their variables; and these refer to those who called.
So an error that stays in a variable of one of them, or in an object that they have, keeps all of it, arrays and buffers among it,
until a garbage collection.
"""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from types import TracebackType

E = TypeVar("E", bound=BaseException)


class FirstError:
    """``with FirstError() as first:`` what is put aside in the block is raised at its end: the first, or Ctrl-C.

    For several things that all have to be done, whatever becomes of each. A block that is left by another error is left by that.

    ::

        with FirstError() as first:
            for block in blocks:
                try:
                    give_back(block)
                except DevmemError as error:  # the others must still be given back
                    first.put(error)

    Attributes
    ----------
    error : BaseException or None
        What has been put aside so far.
    """

    __slots__ = ("error",)

    def __init__(self) -> None:
        self.error: BaseException | None = None

    def put(self, error: BaseException) -> None:
        """Put an error aside, unless there is one. Ctrl-C, and what else is no `Exception`, goes before those that are."""
        if self.error is None or (isinstance(self.error, Exception) and not isinstance(error, Exception)):
            self.error = error

    def __enter__(self) -> FirstError:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        first, self.error = self.error, None
        if first is not None and kind is None:
            try:
                raise first
            finally:
                del first  # or its traceback and this frame would keep each other


def again(error: E) -> E:
    """A copy of an error that is kept, to be raised each time somebody comes to it: what is raised gets a traceback.

    It says the same, with the notes and the cause; that is a copy too, for its frames have the same callers. One whose class
    cannot be copied is that error itself, without the traceback.
    """
    try:
        made = copy.copy(error)
    except Exception:  # of a constructor that takes something else than `args`, whatever it raises then
        made = error.with_traceback(None)
    made.args = error.args
    cause, hidden = error.__cause__, error.__suppress_context__
    made.__cause__ = cause if cause is None or cause is error else again(cause)
    made.__suppress_context__ = hidden
    if notes := getattr(error, "__notes__", ()):
        made.__notes__ = [*notes]
    return made
