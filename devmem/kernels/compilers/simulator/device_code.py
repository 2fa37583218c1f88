"""The functions that the simulator runs: kernels and what they call, with other globals where Python's would do something else.

Compilers take functions under ``numba.njit`` as device functions, and have their own ``math``. A compiled function does not take
the arrays of the simulator, and `math` raises where a device gives nan. So a kernel that refers to either runs as a copy with
the same code, whose globals have the Python function, and the functions of `device_math`; and so do the functions that it calls.
`print` writes its line in pieces, between which a block on another thread may write: copies have one that writes it at once.
"""

from __future__ import annotations

import builtins
import os
import sys
from collections.abc import Callable
from types import CellType, FunctionType, ModuleType
from typing import Any

from ...functions import DeviceFunction
from .device_math import REPLACED

Function = Callable[..., Any]


def _print(*values: object, sep: str = " ", end: str = "\n", **options: Any) -> None:
    print(sep.join(map(str, values)) + end, end="", **options)  # noqa: T201


_REPLACED = REPLACED | {id(print): _print}
_BUILTINS = vars(builtins)


def python_function(value: object) -> Function | None:
    """The function that ``numba.njit`` or ``numba.jit`` has decorated; None for anything else."""
    kind = type(value)
    if kind.__module__.startswith("numba.core.") and kind.__name__ == "CPUDispatcher":
        found: Function = value.py_func  # type: ignore[attr-defined]
        return found
    return None


def jit_is_disabled() -> bool:
    """Whether NUMBA_DISABLE_JIT makes ``njit`` return plain functions, which cannot be told from others."""
    return "numba" in sys.modules and os.environ.get("NUMBA_DISABLE_JIT", "0") not in ("", "0")


def in_python(function: Function) -> Function:
    """The function itself, or a copy with the globals that it has on a device."""
    return _Copies().of(function)


class _Copies:
    """The copies for one kernel."""

    def __init__(self) -> None:
        self._made: dict[int, Any] = {}
        self._kept: list[object] = []  # so that no other object gets the id of one of them

    def of(self, function: Function) -> Function:
        """A function, or its copy."""
        if not isinstance(function, FunctionType):
            return function
        found = self._made.get(id(function))
        if found is not None:
            return found  # type: ignore[no-any-return]
        names = function.__globals__
        copy = FunctionType(
            function.__code__, dict(names), function.__name__, function.__defaults__, function.__closure__
        )
        copy.__kwdefaults__, copy.__qualname__ = function.__kwdefaults__, function.__qualname__
        self._kept.append(function)
        self._made[id(function)] = copy  # functions may call each other
        changed = False
        for name in _names(function):
            value = names.get(name, _BUILTINS.get(name))
            if (other := self._replaced(value)) is not value:
                copy.__globals__[name] = other
                changed = True
        cells = tuple(self._cell(cell) for cell in function.__closure__ or ())
        if any(one is not other for one, other in zip(cells, function.__closure__ or (), strict=True)):
            with_cells = FunctionType(copy.__code__, copy.__globals__, copy.__name__, copy.__defaults__, cells)
            with_cells.__kwdefaults__, with_cells.__qualname__ = copy.__kwdefaults__, copy.__qualname__
            copy, changed = with_cells, True
        self._made[id(function)] = copy if changed else function
        return copy if changed else function

    def _replaced(self, value: Any) -> Any:
        """What a name in a copy refers to instead of a value: often the value itself."""
        if id(value) in _REPLACED:
            return _REPLACED[id(value)]
        plain = python_function(value)
        if plain is not None:
            return self.of(plain)
        if isinstance(value, DeviceFunction):
            function = self.of(value.function)
            return value if function is value.function else DeviceFunction(function, value.signatures, value.options)
        if isinstance(value, ModuleType) and any(python_function(each) is not None for each in vars(value).values()):
            copy = ModuleType(value.__name__)
            vars(copy).update(
                (name, self._replaced(each)) for name, each in vars(value).items() if python_function(each)
            )
            for name, each in vars(value).items():
                vars(copy).setdefault(name, each)
            return copy
        return value

    def _cell(self, cell: CellType) -> CellType:
        try:
            value = cell.cell_contents
        except ValueError:  # not assigned yet
            return cell
        other = self._replaced(value)
        return cell if other is value else CellType(other)


def _names(function: FunctionType) -> set[str]:
    """The names in a function's code, and in that of functions inside it."""
    found, waiting = set[str](), [function.__code__]
    while waiting:
        code = waiting.pop()
        found.update(code.co_names)
        waiting += [each for each in code.co_consts if hasattr(each, "co_names")]
    return found
