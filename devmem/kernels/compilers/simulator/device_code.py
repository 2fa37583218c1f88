"""The functions that the simulator runs: kernels and what they call, with other globals where Python's would do something else.

Compilers read a kernel's globals when they compile it: a value that is assigned later is not seen. They take functions under
``numba.njit`` as device functions, and have their own ``math``. A compiled function does not take the arrays of the simulator,
and `math` raises where a device gives nan. So a kernel runs as a copy with the same code, whose globals are those of its first
launch, with the Python function and the functions of `device_math`; and so do the functions that it calls. `print` writes its
line in pieces, between which a block on another thread may write: copies have one that writes it at once.
"""

from __future__ import annotations

import builtins
import os
import sys
from collections.abc import Callable
from functools import partial
from types import CellType, FunctionType, ModuleType
from typing import Any

import numpy as np

from ...functions import DeviceFunction
from .declared_types import DeclaredFunction
from .device_math import NUMBER_TYPES, REPLACED
from .raw_arrays import dtype_of

Function = Callable[..., Any]


def _print(*values: object, sep: str = " ", end: str = "\n", **options: Any) -> None:
    print(sep.join(map(str, values)) + end, end="", **options)  # noqa: T201


_REPLACED = REPLACED | {id(print): _print}
_BUILTINS = vars(builtins)
#: What Python itself finds in the globals of a function.
_OF_EVERY_MODULE = {"__builtins__", "__name__"}
#: Numba's classes of types of numbers.
_NUMBERS = {"Boolean", "Complex", "Float", "Integer"}
#: What modules may hold that a compiler takes for a constant.
_CONSTANTS = (bool, int, float, complex, tuple, np.generic)


def python_function(value: object) -> Function | None:
    """The function that ``numba.njit`` or ``numba.jit`` has decorated; None for anything else."""
    kind = type(value)
    if kind.__module__.startswith("numba.core.") and kind.__name__ == "CPUDispatcher":
        found: Function = value.py_func  # type: ignore[attr-defined]
        return found
    return None


def number_type(value: object) -> Any:
    """Return the type that a kernel calls and passes for one of Numba's types of numbers; None for anything else."""
    kind = type(value)
    if kind.__module__.startswith("numba") and kind.__module__.endswith(".types.scalars") and kind.__name__ in _NUMBERS:
        return NUMBER_TYPES[dtype_of(value).type]
    return None


def jit_is_disabled() -> bool:
    """Whether NUMBA_DISABLE_JIT makes ``njit`` return plain functions, which cannot be told from others."""
    return "numba" in sys.modules and os.environ.get("NUMBA_DISABLE_JIT", "0") not in ("", "0")


def in_python(function: Function) -> Function:
    """A copy of the function with the globals that it has on a device."""
    return _Copies().of(function)


class _Copies:
    """The copies for one kernel."""

    def __init__(self) -> None:
        self._made: dict[int, Any] = {}
        self._kept: list[object] = []  # so that no other object gets the id of one of them

    def of(self, function: Function) -> Function:
        """The copy of a function."""
        if not isinstance(function, FunctionType):
            return function
        found = self._made.get(id(function))
        if found is not None:
            return found  # type: ignore[no-any-return]
        names = _names(function)
        # No others, which the copy would keep alive.
        values = {name: value for name, value in function.__globals__.items() if name in names | _OF_EVERY_MODULE}
        cells = tuple(CellType(*_contents(cell)) for cell in function.__closure__ or ())
        copy = FunctionType(function.__code__, values, function.__name__, function.__defaults__, cells)
        copy.__kwdefaults__, copy.__qualname__ = function.__kwdefaults__, function.__qualname__
        self._kept.append(function)
        self._made[id(function)] = copy  # functions may call each other
        values.update(
            (name, self._replaced(_BUILTINS[name], names)) for name in names & _BUILTINS.keys() - values.keys()
        )
        values.update((name, self._replaced(values[name], names)) for name in names & values.keys())
        for cell in cells:
            for value in _contents(cell):
                cell.cell_contents = self._replaced(value, names)
        return copy

    def _replaced(self, value: Any, names: set[str]) -> Any:
        """Return what a name in a copy refers to, often the value itself; ``names``: all that the function has."""
        if id(value) in _REPLACED:
            return _REPLACED[id(value)]
        number = number_type(value)
        if number is not None:
            return number
        plain = python_function(value)
        if plain is not None:
            return self.of(plain)
        if isinstance(value, DeviceFunction):
            made = DeclaredFunction if value.signatures else DeviceFunction
            return made(self.of(value.function), value.signatures, value.options)
        if isinstance(value, np.ndarray | np.void):
            return value.copy()
        return self._module(value, names) if type(value) is ModuleType else value

    def _module(self, module: ModuleType, names: set[str]) -> ModuleType:
        """The module, or a copy if one of the names in it refers to something else, or to what may be assigned anew."""
        values = {name: vars(module)[name] for name in names & vars(module).keys()}
        others = {name: self._replaced(value, names - {name}) for name, value in values.items()}
        if not any(isinstance(value, _CONSTANTS) or others[name] is not value for name, value in values.items()):
            return module
        copy = ModuleType(module.__name__)
        vars(copy).update(others, __getattr__=partial(getattr, module))
        return copy


def _contents(cell: CellType) -> tuple[Any, ...]:
    """Return the content of an outer function's variable, as a tuple: empty if it is not assigned yet."""
    try:
        return (cell.cell_contents,)
    except ValueError:
        return ()


def _names(function: FunctionType) -> set[str]:
    """The names in a function's code, and in that of functions inside it."""
    found, waiting = set[str](), [function.__code__]
    while waiting:
        code = waiting.pop()
        found.update(code.co_names)
        waiting += [each for each in code.co_consts if hasattr(each, "co_names")]
    return found
