"""Every scope of devmem: what is current, in this thread or task.

All are variables of the context (`scope_variable`), so that a scope entered in one thread or task is not seen by another. The
exception is deferral of cleanup, which counts for the whole process: its promise is that nothing is freed meanwhile, by any
thread.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from contextvars import ContextVar
from threading import get_ident
from typing import Generic, Protocol, TypeVar

from ...spi.errors import DevmemError

T = TypeVar("T")
#: Whether threads run Python at the same time: then adding to an attribute that they share takes a lock.
FREE_THREADED = "t" in getattr(sys, "abiflags", "")


class Scope(Generic[T]):
    """A choice that holds from the call on, or in ``with`` until the end of the block. It is good for one block.

    Raises
    ------
    DevmemError
        It is entered or left a second time.
    """

    __slots__ = ("_entered", "_undo", "value")

    def __init__(self, value: T, undo: Callable[[], None]) -> None:
        # ``undo`` may be called twice: an interrupt may have come after the first call, or in it.
        self.value = value
        self._entered = False
        self._undo: Callable[[], None] | None = undo

    def __enter__(self) -> T:
        if self._entered or self._undo is None:
            raise DevmemError(f"this scope, of {self.value!r}, was entered before: make one for each `with` block")
        self._entered = True
        return self.value

    def __exit__(self, *_: object) -> None:
        if self._undo is None:
            raise DevmemError(f"this scope, of {self.value!r}, was left before: its choice was taken back then")
        self._end()

    def __del__(self) -> None:
        if getattr(self, "_entered", False) and self._undo is not None:  # an interrupt came as the block was left
            self._end()

    def _end(self) -> None:
        """Take the choice back; to be repeated if it was interrupted. A finalizer calls it on any thread: it takes no lock."""
        if self._undo is not None:
            self._undo()
        self._undo = None


class ScopeVariable(Protocol[T]):
    """What is in force in this thread or task; the ``name`` is for messages."""

    @property
    def name(self) -> str: ...

    def get(self) -> T: ...

    def set(self, value: T, /) -> object: ...


class OwnThreadVariable(Generic[T]):
    """A ContextVar whose value a new thread does not inherit, where interpreters hand their context on to the threads they start.

    A context that was copied to another thread on purpose (`asyncio.to_thread`) brings its values along, as everywhere.
    """

    __slots__ = ("_held", "_none", "_probe", "name")

    def __init__(self, name: str, none: T) -> None:
        self.name = name
        self._none = none
        self._held: ContextVar[tuple[object, T] | None] = ContextVar(name, default=None)
        self._probe: ContextVar[object] = ContextVar(f"{name}_probe")

    def get(self) -> T:
        held = self._held.get()
        return self._none if held is None or (held[0] is not _thread.key and self._is_inherited()) else held[1]

    def set(self, value: T) -> None:
        self._held.set(None if value is self._none else (_thread.key, value))

    def _is_inherited(self) -> bool:
        """Whether the current context is the one with which the thread was started: what is set in it is seen there."""
        started_in = getattr(threading.current_thread(), "_context", None)
        if started_in is None:
            return False
        self._probe.set(probe := object())
        return started_in.get(self._probe) is probe


class _Thread(threading.local):
    """What no other thread is known by: numbers of threads are used again."""

    def __init__(self) -> None:
        self.key = object()


_thread = _Thread()


def scope_variable(name: str, none: T) -> ScopeVariable[T]:
    """A variable of this thread or task, which is ``none`` where nothing was set."""
    inherits = getattr(sys.flags, "thread_inherit_context", 0)
    return OwnThreadVariable(name, none) if inherits else ContextVar(name, default=none)


def choose(variable: ScopeVariable[T], value: T) -> Callable[[], None]:
    """Set a variable; the result puts back what was there before."""
    undo = putting_back(variable)
    variable.set(value)
    return undo


def putting_back(variable: ScopeVariable[T]) -> Callable[[], None]:
    """Return what puts a variable's value back; called on another thread, by a finalizer, it does nothing."""
    before, thread = variable.get(), get_ident()

    def undo() -> None:
        if get_ident() == thread:
            variable.set(before)

    return undo


def count_lock() -> AbstractContextManager[object]:
    """What is held while a count that threads share changes, by statements without a call: nothing comes between under a GIL."""
    return threading.RLock() if FREE_THREADED else nullcontext()


class Deferral:
    """How many ``defer_cleanup()`` blocks are open in the process.

    ``counting`` is held where ``depth`` changes, and where the blocks of ``with use_memory()`` are counted.
    """

    __slots__ = ("counting", "depth")

    def __init__(self) -> None:
        self.reset()

    def reset(self) -> None:
        """Forget blocks of threads that do not exist in the child of a fork."""
        self.depth = 0
        self.counting = count_lock()


deferral = Deferral()
