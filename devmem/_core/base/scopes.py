"""Every scope of devmem: what is current, in this thread or task.

All are ContextVars, so that a scope entered in one thread or task is not seen by another. The exception is deferral of
cleanup, which counts for the whole process: its promise is that nothing is freed meanwhile, by any thread.
"""

from __future__ import annotations

from collections.abc import Callable
from contextvars import ContextVar
from typing import TYPE_CHECKING, Generic, TypeVar

from ...spi.errors import DevmemError

if TYPE_CHECKING:
    from types import TracebackType


T = TypeVar("T")


class Scope(Generic[T]):
    """A choice that holds from the call on, or in ``with`` until the end of the block. It is good for one block.

    Raises
    ------
    DevmemError
        It is entered or left a second time.
    """

    __slots__ = ("_entered", "_undo", "value")

    def __init__(self, value: T, undo: Callable[[], None]) -> None:
        self.value = value
        self._entered = False
        self._undo: Callable[[], None] | None = undo

    def __enter__(self) -> T:
        if self._entered or self._undo is None:
            raise DevmemError(f"this scope, of {self.value!r}, was entered before: make one for each `with` block")
        self._entered = True
        return self.value

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        undo, self._undo = self._undo, None
        if undo is None:
            raise DevmemError(f"this scope, of {self.value!r}, was left before: its choice was taken back then")
        undo()


def choose(variable: ContextVar[T], value: T) -> Callable[[], None]:
    """Set a variable; the result puts back what was there before."""
    before = variable.get()
    variable.set(value)

    def undo() -> None:
        variable.set(before)

    return undo


class Deferral:
    """How many ``defer_cleanup()`` blocks are open in the process. Each changes ``depth`` by one statement without a call."""

    __slots__ = ("depth",)

    def __init__(self) -> None:
        self.depth = 0


deferral = Deferral()
