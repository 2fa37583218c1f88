"""Every scope of devmem: what is current, in this thread or task.

One mechanism for all of them, `ScopeVariable`. A ``with`` block adds its value to those of the context, and takes back that one
alone, in whatever order, thread, task or generator it is left. A choice "from now on" holds for the thread, as other libraries
keep it: contexts end with their tasks. The exception is deferral of cleanup, which counts for the whole process: its promise is
that nothing is freed meanwhile, by any thread.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from contextvars import ContextVar, Token
from typing import Any, Generic, TypeVar
from weakref import ref

from ...spi.errors import DevmemError
from ...toolkit.locks import Rank, lock
from .hot_state import DeferralState

T = TypeVar("T")
#: Whether threads run Python at the same time: then adding to an attribute that they share takes a lock.
FREE_THREADED = "t" in getattr(sys, "abiflags", "")


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

    def set(self, value: T) -> Token[tuple[object, T] | None]:
        return self._held.set(None if value is self._none else (_thread.key, value))

    def reset(self, token: Token[tuple[object, T] | None]) -> None:
        self._held.reset(token)

    def _is_inherited(self) -> bool:
        """Whether the current context is the one with which the thread was started: what is set in it is seen there."""
        started_in = getattr(threading.current_thread(), "_context", None)
        if started_in is None:
            return False
        self._probe.set(probe := object())
        return started_in.get(self._probe) is probe


class _Thread(threading.local):
    """A key of the current thread that no other thread ever has: numbers of threads are used again."""

    def __init__(self) -> None:
        self.key = object()


_thread = _Thread()


def _of_context(name: str) -> Any:
    """A variable of this thread or task, which is None where nothing was set."""
    inherits = getattr(sys.flags, "thread_inherit_context", 0)
    return OwnThreadVariable(name, None) if inherits else ContextVar(name, default=None)


class Choice(tuple[T]):
    """The value, in a tuple as the compiled core reads it, that holds from one call of `ScopeVariable.choose` on.

    Those that were taken back are passed over when a later one is, whatever the order. What takes a choice back knows the one
    before it, and the choice itself does not until then: one that stays for good keeps no earlier ones.
    """

    ended = False
    #: Of one that was taken back: the choice before it.
    before: Choice[T] | None = None


def _not_ended(choice: Choice[T] | None) -> Choice[T] | None:
    while choice is not None and choice.ended:
        choice = choice.before
    return choice


class Block(Generic[T]):
    """The value of one ``with`` block."""

    __slots__ = ("__weakref__", "choices", "ended", "seat", "token", "value")

    def __init__(self, value: T, token: Any) -> None:
        self.value = value
        self.token = token
        #: Whether it was left where it cannot be taken out of its context: no context goes by it any more.
        self.ended = False
        #: What was chosen inside of it, until its end, for each thread by `_Thread.key`.
        self.choices: dict[object, Choice[T]] = {}
        #: Of a value that is entered itself (``with device:``): what stands for the block among the open ones.
        self.seat: tuple[T, ref[Block[T]]] | None = None


class ThreadChoice(threading.local, Generic[T]):
    """The choice of this thread for code outside of all blocks. The compiled core reads it."""

    def __init__(self, none: T) -> None:
        self.choice = Choice((none,))


def ignore(_: object) -> None:
    """Nothing: the value in force is asked for each time."""


class ScopeVariable(Generic[T]):
    """A value in force: that of the innermost block of this thread or task, else the one chosen for this thread.

    A block that is left where it was entered is taken out of the context; tasks that were begun inside of it keep its value, as
    contexts do. Left in another thread or task, it ends for all of them.
    """

    def __init__(self, name: str, none: T, changing: Callable[[bool], object] | None = None) -> None:
        self.name = name
        #: Told True before the value in force changes, and False when it has. So what remembers it knows of a change that an
        #: exception came into: it is told of no end.
        self._changing = changing or ignore
        self._entered = False
        #: The blocks of the context, innermost last; None for none.
        self.blocks = _of_context(name)
        self.chosen = ThreadChoice(none)
        #: Tells contexts apart: its tokens are taken back in the context alone that they are of.
        self._here = _of_context(f"{name}_here")
        self._seats: list[tuple[T, ref[Block[T]]]] = []
        self._left: list[T] = []

    def get(self) -> T:
        """Return the value in force."""
        blocks: tuple[Block[T], ...] | None = self.blocks.get()
        for block in reversed(blocks) if blocks else ():
            if not block.ended:
                choice = block.choices.get(_thread.key) if block.choices else None
                return choice[0] if choice else block.value
        return self.chosen.choice[0]

    def values(self) -> Iterator[T]:
        """Those of all blocks, innermost first."""
        return (block.value for block in reversed(self._blocks()))

    def choose(self, value: T) -> Callable[[], None]:
        """Make a value hold in this thread from now on, to the end of the block around the call; the result takes it back."""
        around = self._blocks()
        choices: dict[Any, Choice[T]] = around[-1].choices if around else vars(self.chosen)
        key = _thread.key if around else "choice"
        before, choice = choices.get(key), Choice((value,))
        self._changing(True)
        choices[key] = choice
        self._changing(False)

        def undo() -> None:
            choice.before = _not_ended(before)
            choice.ended = True  # last: an interrupt comes between, and the call is repeated
            if choices.get(key) is not choice:  # a later one holds, or held and was taken back
                return
            self._changing(True)
            if choice.before is None:
                del choices[key]
            else:
                choices[key] = choice.before
            self._changing(False)

        return undo

    def enter(self, value: T) -> Block[T]:
        """Begin a block, for `leave`."""
        if not self._entered:  # contexts change by themselves: from now on what is in force is asked for each time
            self._changing(True)
            self._entered = True
        block = Block(value, self._here.set(None))
        self.blocks.set((*self._blocks(), block))
        return block

    def leave(self, block: Block[T]) -> None:
        """End a block, wherever that is. A finalizer may call it."""
        if not self._was_entered_here(block):
            block.ended = True
        self._take_out(block)

    def enter_value(self, value: T) -> None:
        """Begin a block of a value that is entered itself, and may be in several threads at a time: for `leave_value`."""
        block = self.enter(value)
        block.seat = (value, ref(block))
        self._seats.append(block.seat)

    def leave_value(self, value: T) -> None:
        """End a block of `enter_value`: of those in this thread or task the innermost.

        The value does not know its blocks apart. So where none was entered here, the end is noted, and blocks elsewhere end as
        soon as there are as many ends as blocks: no earlier, or a block that is still open could end.
        """
        for block in reversed(self.blocks.get() or ()):
            if block.value is value and not block.ended and block.seat is not None and self._was_entered_here(block):
                self._take_out(block)
                self._give_up(block.seat)
                break
        else:
            open_ones = self._seats_of(value)
            gone = next((seat for seat in open_ones if seat[1]() is None), None)
            if gone is not None:  # its context is no more: it is as good as any
                self._give_up(gone)
            elif open_ones:
                self._left.append(value)
        if self._left:
            self._settle(value)

    def _blocks(self) -> tuple[Block[T], ...]:
        return tuple([block for block in self.blocks.get() or () if not block.ended])

    def _take_out(self, block: Block[T]) -> None:
        self.blocks.set(
            tuple([each for each in self.blocks.get() or () if each is not block and not each.ended]) or None
        )

    def _was_entered_here(self, block: Block[T]) -> bool:
        """Whether a block was entered in this context; to be asked once, by who ends it then."""
        try:
            self._here.reset(block.token)
        except (ValueError, RuntimeError):  # it is another context's; or the end was interrupted, and comes again
            return False
        return True

    def _seats_of(self, value: T) -> list[tuple[T, ref[Block[T]]]]:
        return [seat for seat in list(self._seats) if seat[0] is value]

    def _give_up(self, seat: tuple[T, ref[Block[T]]]) -> bool:
        try:
            self._seats.remove(seat)
        except ValueError:  # another thread was faster
            return False
        return True

    def _settle(self, value: T) -> None:
        """End the blocks of a value where all of them were left."""
        open_ones = self._seats_of(value)
        if len(open_ones) == sum(left is value for left in list(self._left)):
            for seat in open_ones:
                if self._give_up(seat):
                    self._left.remove(value)
                    block = seat[1]()
                    if block is not None:
                        block.ended = True


class Scope(Generic[T]):
    """A choice that holds from the call on, or in ``with`` until the end of the block. It is good for one block.

    Raises
    ------
    DevmemError
        It is entered or left a second time.
    """

    __slots__ = ("_block", "_chosen", "_entered", "_undo", "_variable", "value")

    def __init__(self, value: T, variable: ScopeVariable[Any], chosen: object) -> None:
        self.value = value
        self._entered = False
        self._variable = variable
        self._chosen = chosen
        self._block: Block[Any] | None = None
        self._undo: Callable[[], None] | None = self._choose()

    def __repr__(self) -> str:
        return f"<{type(self).__name__} of {self.value!r}>"

    def __enter__(self) -> T:
        if self._entered or self._undo is None:
            raise DevmemError(f"this scope, of {self.value!r}, was entered before: make one for each `with` block")
        self._entered = True
        self._undo()
        self._block = self._variable.enter(self._chosen)
        return self.value

    def __exit__(self, *_: object) -> None:
        if self._undo is None:
            raise DevmemError(f"this scope, of {self.value!r}, was left before: its choice was taken back then")
        self._end()

    def close(self) -> None:
        """Take the choice back; what was in force before is again. A second call does nothing."""
        if self._undo is not None:
            self._end()

    def __del__(self) -> None:
        if getattr(self, "_entered", False) and self._undo is not None:  # an interrupt came as the block was left
            self._end()

    def _choose(self) -> Callable[[], None]:
        """Make the choice hold from now on; the result takes that back, and may be called twice."""
        return self._variable.choose(self._chosen)

    def _end(self) -> None:
        """Take the choice back; to be repeated if it was interrupted. A finalizer calls it on any thread: it takes no lock."""
        if self._block is not None:
            self._variable.leave(self._block)
        elif self._undo is not None:
            self._undo()
        self._undo = None


def count_lock() -> AbstractContextManager[object]:
    """Return the lock for changes of a shared count; none with a GIL, which keeps statements without a call whole."""
    return lock("open scopes, without a GIL", Rank.LEAF) if FREE_THREADED else nullcontext()


class Deferral(DeferralState):
    """The number of ``defer_cleanup()`` blocks that are open in the process.

    ``counting`` is held where ``depth`` changes, and where the blocks of ``with use_memory()`` are counted.
    """

    __slots__ = ()

    def __init__(self) -> None:
        self.counting = count_lock()
        self.reset()

    def reset(self) -> None:
        """Forget blocks of threads that do not exist in the child of a fork."""
        self.depth = 0


deferral = Deferral()
