"""Functions that `devmem.kernel` decorated. They go to other processes by name where a module has them, else by value.

What is in ``__main__`` goes both ways: a process that runs the same program has it by name, as one of `multiprocessing`, and any
other, as a worker of Dask, makes it anew with cloudpickle. A process that gets it several times has it once: it is compiled once.
"""

from __future__ import annotations

import pickle
import sys
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from contextvars import ContextVar
from operator import attrgetter
from types import MappingProxyType
from typing import Any, Self
from uuid import uuid4
from weakref import WeakKeyDictionary, WeakValueDictionary

Function = Callable[..., object]
Options = Mapping[str, object]
NO_OPTIONS: Options = MappingProxyType({})

#: How many that came by value are kept, for workers that drop them between two tasks.
_KEPT = 64
#: What the program that was started is called, in its own process and in those of `multiprocessing`.
_MAIN = "__main__", "__mp_main__"


class Unchanging:
    """Its copies are the object itself, as those of functions are."""

    __slots__ = ()

    def __copy__(self) -> Self:
        return self

    def __deepcopy__(self, memo: object) -> Self:
        return self


class Decorated(Unchanging):
    """A function that `devmem.kernel` has decorated.

    Attributes
    ----------
    function : function
        The decorated function. Neither it nor its globals are changed.
    signatures : tuple of str
        The declared types; empty: it is compiled for the types of the arguments.
    options : mapping
        Options for the compiler.
    """

    __name__: str
    __qualname__: str

    def __init__(self, function: Function, signatures: Sequence[str] = (), options: Options = NO_OPTIONS) -> None:
        self.function = function
        self.signatures = tuple(signatures)
        self.options = dict(options)

    def _made_with(self) -> tuple[Any, ...]:
        """Return what it is made with besides the function."""
        return self.signatures, self.options

    def __reduce__(self) -> str | tuple[Any, ...]:
        name = self.__qualname__
        by_name = _named(self.__module__, name) is self
        if by_name and self.__module__ not in _MAIN:
            return name
        identity = _identities.setdefault(self, uuid4().hex)
        _known[identity] = self
        made = _blank, (type(self), identity, name, _code_of(self.function))
        if self in _going.get():
            return made
        function, why = _by_value(self)
        if function is None and not by_name:
            raise pickle.PicklingError(
                f"{self!r} cannot be pickled: no module has it under its name {name!r}, so it goes by value, and {why}; or "
                f"define it at the top of a module"
            )
        return *made, (name, function, why, self._made_with())

    def __setstate__(self, state: tuple[Any, ...]) -> None:
        name, function, why, made_with = state
        if hasattr(self, "function"):  # this process has it already
            return
        if function is None:
            raise pickle.UnpicklingError(
                f"__main__ of this process has no {name!r} of the same code, and it came by name alone: where it was pickled, "
                f"{why}"
            )
        try:
            type(self).__init__(self, pickle.loads(function), *made_with)
        except ImportError as error:
            error.add_note(
                f"{name!r} came by value: cloudpickle, and the modules that it refers to, have to be installed here too"
            )
            raise
        _recent.append(self)


#: What went to other processes from here, and what came here, by a name that no other has; and those names.
_known: WeakValueDictionary[str, Decorated] = WeakValueDictionary()
_identities: WeakKeyDictionary[Decorated, str] = WeakKeyDictionary()
_recent: deque[Decorated] = deque(maxlen=_KEPT)
#: Those whose functions are being pickled: a function may refer to itself.
_going: ContextVar[tuple[Decorated, ...]] = ContextVar("_going", default=())


def _blank(kind: type[Decorated], identity: str, name: str, code: tuple[Any, ...]) -> Decorated:
    """The object that was pickled, if this process has it, else an empty one."""
    found = _known.get(identity)
    if found is None:
        found = _named("__main__", name)
        if type(found) is not kind or _code_of(found.function) != code:
            found = kind.__new__(kind)
        _known[identity] = found
        _identities[found] = identity
    return found


def _by_value(it: Decorated) -> tuple[bytes | None, str]:
    """The pickled function; or None, and why not."""
    try:
        import cloudpickle
    except ImportError:
        return None, "that needs cloudpickle: pip install cloudpickle"
    token = _going.set((*_going.get(), it))
    try:
        return cloudpickle.dumps(it.function), ""
    except Exception as error:  # whatever the objects raise that it refers to
        return None, f"what it refers to cannot be pickled: {type(error).__name__}: {error}"
    finally:
        _going.reset(token)


def _named(module: str, name: str) -> Any:
    try:
        return attrgetter(name)(sys.modules[module])
    except (AttributeError, KeyError):
        return None


def _code_of(function: Function) -> tuple[Any, ...]:
    """Return what distinguishes a function from another one of the same name, in every process."""
    code = function.__code__
    return code.co_firstlineno, code.co_code, code.co_names
