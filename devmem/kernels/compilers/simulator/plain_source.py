"""The source of a kernel without devmem's names, for a compiler of the host that knows none of them.

The position of the thread becomes the first parameter, ``_at``: a tuple of 13 integers (see `INDICES`). ``threadIdx.x`` becomes
``_at[0]``, and so on; a device function gets the same parameter, and its calls pass it on. An array from ``local.array`` becomes
an array of NumPy's, and ``const.array_like(a)`` is ``a``. What needs the other threads of the block has no such form, nor has
what orders memory: `Refused` says which name it was.
"""

from __future__ import annotations

import ast
import inspect
import math
import textwrap
from collections.abc import Callable
from types import BuiltinFunctionType, CodeType, FunctionType, ModuleType
from typing import Any

import numpy as np

from ... import names
from ...functions import DeviceFunction
from .device_code import python_function

AT = "_at"
#: What the tuple has, in order: three indices of each of these, and the number of threads of a wave.
INDICES = ("thread", "block", "block_dim", "grid_dim")
_WAVE = 3 * len(INDICES)
_LANE = f"(({AT}[2] * {AT}[7] + {AT}[1]) * {AT}[6] + {AT}[0]) % {AT}[{_WAVE}]"
_IDS = {
    names.get_local_id: "thread",
    names.get_group_id: "block",
    names.get_local_size: "block_dim",
    names.get_num_groups: "grid_dim",
}
#: Functions whose result is a float on devices, and an integer in Python and in numba's compiler for the host.
_ROUNDED: dict[Any, Any] = {math.floor: np.floor, math.ceil: np.ceil, math.trunc: np.trunc}
_UNKNOWN: Any = object()


class Refused(Exception):
    """Why a kernel cannot be compiled for the host."""


class PlainFunctions:
    """The functions of one kernel; ``finish`` makes what is called of each, such as a compiled function."""

    def __init__(self, finish: Callable[[FunctionType], Any]) -> None:
        self._finish = finish
        self._made: dict[int, Any] = {}

    def of(self, function: Any) -> Any:
        """The finished function, whose first parameter is the position; each function is made once.

        Raises
        ------
        Refused
            The function has no source, calls itself, or uses a name that has no such form.
        """
        if id(function) in self._made:
            found = self._made[id(function)]
            if found is None:
                raise Refused(f"{function.__qualname__} calls itself")
            return found
        self._made[id(function)] = None
        self._made[id(function)] = found = self._finish(self._plain(function))
        return found

    def _plain(self, function: Any) -> FunctionType:
        tree, code = _definition(function), function.__code__
        cells = {
            name: cell.cell_contents
            for name, cell in zip(code.co_freevars, function.__closure__ or (), strict=True)
            if _is_set(cell)
        }
        rewriter = _Rewriter(self, {**function.__globals__, **cells}, _bound(code))
        rewriter.give_position(tree)
        tree.body = [rewriter.visit(each) for each in tree.body]
        made = _made(tree, code, rewriter.values)
        made.__defaults__, made.__qualname__ = function.__defaults__, function.__qualname__
        return made


def _definition(function: Any) -> ast.FunctionDef:
    """The function's definition, without decorators, annotations and defaults; it has the function's names and constants."""
    code = function.__code__
    try:
        found = ast.parse(textwrap.dedent(inspect.getsource(function))).body[0]
    except (OSError, TypeError, SyntaxError, IndexError):
        raise Refused(f"the source of {function.__qualname__} cannot be read") from None
    if not isinstance(found, ast.FunctionDef):
        raise Refused(f"{function.__qualname__} is not defined with def")
    found.decorator_list, found.returns, found.args.defaults, found.args.kw_defaults = [], None, [], []
    for each in [*found.args.posonlyargs, *found.args.args, *found.args.kwonlyargs]:
        each.annotation = None
    if found.args.kwonlyargs:
        raise Refused(f"{function.__qualname__} has arguments that are given by name alone")
    ast.increment_lineno(found, code.co_firstlineno - 1)
    if _contents(_code(found, code)) != _contents(code):
        raise Refused(f"the source of {function.__qualname__} has changed since it was imported")
    return found


def _code(tree: ast.FunctionDef, like: CodeType) -> CodeType:
    """The code of a definition inside a function that has the free variables of ``like``."""
    module = ast.parse(f"def _outer({', '.join(like.co_freevars)}): pass")
    outer = module.body[0]
    assert isinstance(outer, ast.FunctionDef)
    outer.body = [tree]
    found = compile(module, like.co_filename, "exec", dont_inherit=True)
    made: CodeType = next(_codes(next(_codes(found))))
    return made


def _contents(code: CodeType) -> tuple[object, ...]:
    # Instructions differ between a function of a module and one inside a function.
    constants = [repr(each) for each in code.co_consts if not isinstance(each, CodeType)]
    return code.co_names, code.co_varnames, constants


def _codes(code: CodeType) -> Any:
    return (each for each in code.co_consts if isinstance(each, CodeType))


def _made(tree: ast.FunctionDef, like: CodeType, values: dict[str, Any]) -> FunctionType:
    module = ast.fix_missing_locations(ast.Module(body=[tree], type_ignores=[]))
    exec(compile(module, like.co_filename, "exec", dont_inherit=True), values)
    made: FunctionType = values[tree.name]
    return made


def _is_set(cell: Any) -> bool:
    try:
        return cell.cell_contents is not cell
    except ValueError:
        return False


def _bound(code: CodeType) -> set[str]:
    """The names that a code, or a function inside it, assigns to."""
    found = {*code.co_varnames, *code.co_cellvars}
    return found.union(*(_bound(each) for each in _codes(code)))


class _Rewriter(ast.NodeTransformer):
    def __init__(self, functions: PlainFunctions, values: dict[str, Any], bound: set[str]) -> None:
        self.values = values  #: the globals of the new function
        self._functions = functions
        self._bound = bound

    def give_position(self, tree: ast.FunctionDef) -> None:
        (tree.args.posonlyargs or tree.args.args).insert(0, ast.arg(AT))

    def visit_Call(self, node: ast.Call) -> ast.AST:
        value = self._value(node.func)
        function = value.function if isinstance(value, DeviceFunction) else python_function(value)
        if isinstance(value, DeviceFunction) and value.signatures:
            raise Refused(f"it uses {ast.unparse(node.func)}, which has declared types")
        if function is not None:
            given = [ast.Name(AT, ast.Load()), *(self.visit(each) for each in node.args)]
            named = [self.visit(each) for each in node.keywords]
            return ast.Call(self._global(self._functions.of(function)), given, named)
        if isinstance(value, names.BuiltinFunction):
            return _expression(self._position(value, node))
        owner = self._value(node.func.value) if isinstance(node.func, ast.Attribute) else None
        if owner is names.const and node.args:
            return self.visit(node.args[0])  # type: ignore[no-any-return]
        if owner is names.local:
            return ast.Call(
                self._global(np.empty),
                [self.visit(each) for each in node.args],
                [self.visit(each) for each in node.keywords],
            )
        return self.generic_visit(node)

    def visit_Attribute(self, node: ast.Attribute) -> ast.AST:
        owner = self._value(node.value)
        if isinstance(owner, names.Position) and node.attr in "xyz":
            return _expression(_index(owner.part, "xyz".index(node.attr)))
        return self._replaced(node) or self.generic_visit(node)

    def visit_Name(self, node: ast.Name) -> ast.AST:
        return self._replaced(node) or node

    def _replaced(self, node: ast.expr) -> ast.AST | None:
        value = self._value(node)
        if value is names.warpsize:
            return _expression(f"{AT}[{_WAVE}]")
        if value is names.laneid:
            return _expression(_LANE)
        if isinstance(value, int | float | str | ModuleType) or value is _UNKNOWN:
            return None
        if type(value).__module__.partition(".")[0] == "devmem" or python_function(value) is not None:
            raise Refused(f"it uses {ast.unparse(node)}")
        rounded = _ROUNDED.get(value) if isinstance(value, BuiltinFunctionType) else None
        return None if rounded is None else self._global(rounded)

    def _value(self, node: ast.expr) -> Any:
        """Return the value that a name, or an attribute of a module, has outside of the function."""
        if isinstance(node, ast.Name) and node.id not in self._bound:
            return self.values.get(node.id, _UNKNOWN)
        if isinstance(node, ast.Attribute) and isinstance(owner := self._value(node.value), ModuleType):
            return getattr(owner, node.attr, _UNKNOWN)
        return _UNKNOWN

    def _global(self, value: Any) -> ast.Name:
        name = f"_given_{id(value)}"
        self.values[name] = value
        return ast.Name(name, ast.Load())

    def _position(self, value: Any, node: ast.Call) -> str:
        """The expression for a call of ``grid``, ``get_global_id`` and their like."""
        if value is names.get_work_dim:
            lengths = [f"{_index('block_dim', axis)} * {_index('grid_dim', axis)} > 1" for axis in range(3)]
            return f"3 if {lengths[2]} else 2 if {lengths[1]} else 1"
        axis = node.args[0].value if len(node.args) == 1 and isinstance(node.args[0], ast.Constant) else None
        if isinstance(axis, int) and not isinstance(axis, bool):
            if value in _IDS and 0 <= axis < 3:
                return _index(_IDS[value], axis)
            if value is names.get_global_id and 0 <= axis < 3:
                return _place(axis)
            if value is names.get_global_size and 0 <= axis < 3:
                return _length(axis)
            if value in (names.grid, names.gridsize) and 1 <= axis <= 3:
                part = _place if value is names.grid else _length
                parts = [part(each) for each in range(axis)]
                return parts[0] if axis == 1 else f"({', '.join(parts)})"
        raise Refused(f"it uses {ast.unparse(node)}")


def _index(part: str, axis: int) -> str:
    return f"{AT}[{3 * INDICES.index(part) + axis}]"


def _place(axis: int) -> str:
    return f"{_index('block', axis)} * {_index('block_dim', axis)} + {_index('thread', axis)}"


def _length(axis: int) -> str:
    return f"{_index('grid_dim', axis)} * {_index('block_dim', axis)}"


def _expression(text: str) -> ast.expr:
    return ast.parse(text, mode="eval").body
