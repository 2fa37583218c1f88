"""The source of a kernel without devmem's names, for a compiler of the host that knows none of them.

The position of the thread becomes the first parameter, ``_at``: a tuple of 13 integers (see `INDICES`). ``threadIdx.x`` becomes
``_at[0]``, and so on; a device function gets the same parameter, and its calls pass it on. An array from ``local.array`` becomes
an array of NumPy's, and ``const.array_like(a)`` is ``a``. What the compiler of the host computes otherwise than a device becomes
a call of one of `Operations`: ``a[i] = x`` converts ``x``, ``x << n`` takes any ``n``. An atomic operation whose result is not
used becomes a plain one; the caller keeps other threads away. A kernel with barriers becomes a generator, which yields the number
of each barrier that it comes to; its arrays in shared memory become parameters behind the position. What else needs the other
threads of the block has no such form, nor has what orders memory: `Refused` says which name it was.
"""

from __future__ import annotations

import ast
import builtins
import inspect
import math
import textwrap
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import CodeType, FunctionType, ModuleType
from typing import Any

import numpy as np

from ... import names
from ...functions import DeviceFunction
from .device_code import number_type, python_function
from .raw_arrays import dtype_of, shape_of

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
#: Constants by which numba shifts, and raises to powers, as a device does.
_ALIKE = range(64)
_UNKNOWN: Any = object()


class Refused(Exception):
    """Why a kernel cannot be compiled for the host."""


@dataclass(frozen=True)
class Operations:
    """Operations that a plain function calls where the compiler of the host would compute something else than a device."""

    #: ``(array, value)``: the value as an element of the array.
    element: Callable[..., Any]
    #: ``(record, name, value)``: the value as a field of the record.
    field: Callable[..., Any]
    #: Shifts and powers, by the class of the operator in the syntax tree.
    operators: Mapping[type[ast.operator], Callable[..., Any]]
    #: By the function or type that a kernel calls.
    calls: Mapping[Any, Callable[..., Any]]
    #: Atomic operations whose results do not depend on their order, by name.
    atomics: Mapping[str, Callable[..., Any]]


class PlainFunctions:
    """The functions of one kernel; ``finish`` makes what is called of each, such as a compiled function.

    Attributes
    ----------
    made : list
        What ``finish`` made.
    updates : bool
        Whether one of them has atomic operations.
    barriers : int
        How many the kernel has; with one it is a generator.
    shared : list of (shape, dtype)
        Its arrays in shared memory.
    """

    def __init__(self, finish: Callable[[FunctionType], Any], operations: Operations) -> None:
        self._finish = finish
        self._made: dict[int, Any] = {}
        self.operations = operations
        self.made: list[Any] = []
        self.updates = False
        self.barriers = 0
        self.shared: list[tuple[tuple[int, ...], np.dtype[Any]]] = []

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
        self.made.append(found)
        return found

    def _plain(self, function: Any) -> FunctionType:
        tree, code = _definition(function), function.__code__
        cells = {
            name: cell.cell_contents
            for name, cell in zip(code.co_freevars, function.__closure__ or (), strict=True)
            if _is_set(cell)
        }
        rewriter = _Rewriter(self, {**function.__globals__, **cells}, _bound(code), is_kernel=len(self._made) == 1)
        tree.body = rewriter.statements(tree.body)
        rewriter.give_parameters(tree)
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
    def __init__(self, functions: PlainFunctions, values: dict[str, Any], bound: set[str], is_kernel: bool) -> None:
        self.values = values  #: the globals of the new function
        self._functions = functions
        self._operations = functions.operations
        self._bound = bound
        self._kept = 0  # values that are kept in a variable
        self._is_kernel = is_kernel  # and no function inside it

    def give_parameters(self, tree: ast.FunctionDef) -> None:
        shared = [_shared(place) for place in range(len(self._functions.shared))] if self._is_kernel else []
        if shared and not self._functions.barriers:
            raise Refused("it uses shared memory without a barrier")
        (tree.args.posonlyargs or tree.args.args)[:0] = [ast.arg(name) for name in (AT, *shared)]

    def statements(self, body: list[ast.stmt]) -> list[ast.stmt]:
        found: list[ast.stmt] = []
        for each in body:
            made = self.visit(each)
            found += made if isinstance(made, list) else [made]
        return found

    def visit(self, node: ast.AST) -> Any:
        made = super().visit(node)
        for each in made if isinstance(made, list) else [made]:
            ast.copy_location(each, node)
        return made

    # -- assignments ---------------------------------------------------------------------------------------------------

    def visit_Assign(self, node: ast.Assign) -> Any:
        value = self.visit(node.value)
        if len(node.targets) == 1 and not isinstance(node.targets[0], ast.Tuple | ast.List):
            return self._assigned(node.targets[0], value)
        found: list[ast.stmt] = []
        kept = self._keep(value, found)
        for target in node.targets:
            found += self._unpacked(target, kept)
        return found

    def visit_AnnAssign(self, node: ast.AnnAssign) -> Any:
        if node.value is None:
            return ast.Pass()
        return self._assigned(node.target, self.visit(node.value))

    def visit_AugAssign(self, node: ast.AugAssign) -> Any:
        value, target, found = self.visit(node.value), node.target, list[ast.stmt]()
        if isinstance(target, ast.Name):
            if type(node.op) not in self._operations.operators:
                return ast.AugAssign(target, node.op, value)
            old: ast.expr = ast.Name(target.id, ast.Load())
        else:  # Python evaluates the container and the index once, before the value
            container = self._keep(self.visit(target.value), found)
            if isinstance(target, ast.Attribute):
                old = ast.Attribute(container, target.attr, ast.Load())
                target = ast.Attribute(container, target.attr, ast.Store())
            else:
                index = target.slice
                if not isinstance(index, ast.Constant):
                    index = self._keep(self.visit(index), found)
                old = ast.Subscript(container, index, ast.Load())
                target = ast.Subscript(container, index, ast.Store())
        found += self._stored(target, self._operated(old, node.op, value))
        return found

    def visit_For(self, node: ast.For) -> Any:
        names = [each for each in ast.walk(node.target) if isinstance(each, ast.Subscript | ast.Attribute)]
        if names:
            raise Refused(f"a loop assigns to {ast.unparse(names[0])}")
        return self.generic_visit(node)

    def _assigned(self, target: ast.expr, value: ast.expr) -> Any:
        if isinstance(target, ast.Subscript | ast.Attribute):
            found = list[ast.stmt]()
            container = self.visit(target.value)
            if not isinstance(container, ast.Name):  # it stands in the statement twice
                value, container = self._keep(value, found), self._keep(container, found)
            if isinstance(target, ast.Subscript):
                target = ast.Subscript(container, self.visit(target.slice), ast.Store())
            else:
                target = ast.Attribute(container, target.attr, ast.Store())
            return found + self._stored(target, value)
        return self._stored(target, value)

    def _unpacked(self, target: ast.expr, value: ast.expr) -> list[ast.stmt]:
        """Statements that assign a value to a target, part by part where it is a tuple."""
        if not isinstance(target, ast.Tuple | ast.List):
            return self._assigned(target, value)  # type: ignore[no-any-return]
        if any(isinstance(each, ast.Starred) for each in target.elts):
            raise Refused(f"it assigns to {ast.unparse(target)}")
        parts = [self._name() for _ in target.elts]
        stores: list[ast.expr] = [ast.Name(each, ast.Store()) for each in parts]
        found: list[ast.stmt] = [ast.Assign([ast.Tuple(stores, ast.Store())], value)]
        for each, part in zip(target.elts, parts, strict=True):
            found += self._unpacked(each, ast.Name(part, ast.Load()))
        return found

    def _stored(self, target: ast.expr, value: ast.expr) -> list[ast.stmt]:
        """Convert a value to what an element or field holds; container and index are plain already."""
        if isinstance(target, ast.Attribute):
            value = self._call(self._operations.field, target.value, ast.Constant(target.attr), value)
        elif isinstance(target, ast.Subscript):
            index = target.slice
            if isinstance(index, ast.Constant) and isinstance(index.value, str):
                value = self._call(self._operations.field, target.value, index, value)
            else:
                value = self._call(self._operations.element, target.value, value)
        return [ast.Assign([target], value)]

    def _keep(self, value: ast.expr, found: list[ast.stmt]) -> ast.expr:
        """A name for the value, so that it is evaluated once."""
        name = self._name()
        found.append(ast.Assign([ast.Name(name, ast.Store())], value))
        return ast.Name(name, ast.Load())

    def _name(self) -> str:
        self._kept += 1
        return f"_kept_{self._kept}"

    # -- expressions ---------------------------------------------------------------------------------------------------

    def visit_BinOp(self, node: ast.BinOp) -> ast.AST:
        return self._operated(self.visit(node.left), node.op, self.visit(node.right))

    def _operated(self, left: ast.expr, operator: ast.operator, right: ast.expr) -> ast.expr:
        other = self._operations.operators.get(type(operator))
        if other is None or (isinstance(right, ast.Constant) and type(right.value) is int and right.value in _ALIKE):
            return ast.BinOp(left, operator, right)
        return self._call(other, left, right)

    def visit_FunctionDef(self, node: ast.FunctionDef) -> Any:
        before, self._is_kernel = self._is_kernel, False
        found = self.generic_visit(node)
        self._is_kernel = before
        return found

    def visit_Return(self, node: ast.Return) -> Any:
        is_none = node.value is None or (isinstance(node.value, ast.Constant) and node.value.value is None)
        if self._is_kernel and not is_none:
            raise Refused("it returns a value")
        return self.generic_visit(node)

    def visit_Expr(self, node: ast.Expr) -> ast.AST:
        call = node.value
        if isinstance(call, ast.Call) and self._is_kernel and self._waits(call):
            self._functions.barriers += 1
            return ast.Expr(ast.Yield(ast.Constant(self._functions.barriers)))
        if isinstance(call, ast.Call) and (made := self._update(call)) is not None:
            self._functions.updates = True
            return ast.Expr(self._call(made, *map(self.visit, call.args), named=call.keywords))
        return self.generic_visit(node)

    def visit_Call(self, node: ast.Call) -> ast.AST:
        if (name := self._atomic(node)) is not None:
            what = "the result of " * (name in self._operations.atomics)
            raise Refused(f"it uses {what}{ast.unparse(node.func)}, which depends on the order of threads")
        value = self._value(node.func)
        function = value.function if isinstance(value, DeviceFunction) else python_function(value)
        if isinstance(value, DeviceFunction) and value.signatures:
            raise Refused(f"it uses {ast.unparse(node.func)}, which has declared types")
        if function is not None:
            return self._call(
                self._functions.of(function),
                ast.Name(AT, ast.Load()),
                *map(self.visit, node.args),
                named=node.keywords,
            )
        if isinstance(value, names.BuiltinFunction):
            return _expression(self._position(value, node))
        owner = self._value(node.func.value) if isinstance(node.func, ast.Attribute) else None
        if owner is names.shared and self._is_kernel:
            return self._shared_array(node)
        if owner is names.const and node.args:
            if not isinstance(self._value(node.args[0]), np.ndarray) or len(node.args) > 1 or node.keywords:
                raise Refused(f"it uses {ast.unparse(node)}")
            return self.visit(node.args[0])  # type: ignore[no-any-return]
        if owner is names.local:
            return self._call(np.empty, *map(self.visit, node.args), named=node.keywords)
        kind = number_type(value)
        known = self._operations.calls
        other = next((known[each] for each in known if each is (value if kind is None else kind.native)), None)
        if other is not None:
            return self._call(other, *map(self.visit, node.args), named=node.keywords)
        return self.generic_visit(node)

    def _waits(self, node: ast.Call) -> bool:
        called = self._value(node.func)
        return called is names.barrier or called is names.syncthreads

    def _shared_array(self, node: ast.Call) -> ast.expr:
        """A parameter for an array in shared memory; each call has its own."""
        given = [*node.args, *(each.value for each in node.keywords if each.arg in ("shape", "dtype"))]
        named = [each.arg for each in node.keywords]
        used = {each.id for part in given for each in ast.walk(part) if isinstance(each, ast.Name)}
        if used & self._bound or len(given) != 2 or named not in ([], ["dtype"], ["shape", "dtype"]):
            raise Refused(f"it uses {ast.unparse(node)}")
        values = [eval(compile(ast.Expression(part), "<shape>", "eval"), self.values) for part in given]
        shape, dtype = shape_of(values[0]), dtype_of(values[1])
        if not math.prod(shape):
            raise Refused("it uses dynamic shared memory")
        self._functions.shared.append((shape, dtype))
        return ast.Name(_shared(len(self._functions.shared) - 1), ast.Load())

    def _update(self, node: ast.Call) -> Any:
        """The statement that replaces an atomic operation whose result is not used; None for any other call."""
        return self._operations.atomics.get(self._atomic(node) or "")

    def _atomic(self, node: ast.Call) -> str | None:
        """The name of an atomic operation; None for any other call."""
        called = node.func
        return called.attr if isinstance(called, ast.Attribute) and self._value(called.value) is names.atomic else None

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
        return None

    def _value(self, node: ast.expr) -> Any:
        """Return the value that a name, or an attribute of a module, has outside of the function."""
        if isinstance(node, ast.Name) and node.id not in self._bound:
            return self.values.get(node.id, getattr(builtins, node.id, _UNKNOWN))
        if isinstance(node, ast.Attribute) and isinstance(owner := self._value(node.value), ModuleType):
            return getattr(owner, node.attr, _UNKNOWN)
        return _UNKNOWN

    def _call(self, function: Any, *given: ast.expr, named: list[ast.keyword] | None = None) -> ast.Call:
        name = f"_given_{id(function)}"
        self.values[name] = function
        return ast.Call(ast.Name(name, ast.Load()), [*given], [self.visit(each) for each in named or ()])

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


def _shared(place: int) -> str:
    return f"_shared_{place}"


def _index(part: str, axis: int) -> str:
    return f"{AT}[{3 * INDICES.index(part) + axis}]"


def _place(axis: int) -> str:
    return f"{_index('block', axis)} * {_index('block_dim', axis)} + {_index('thread', axis)}"


def _length(axis: int) -> str:
    return f"{_index('grid_dim', axis)} * {_index('block_dim', axis)}"


def _expression(text: str) -> ast.expr:
    return ast.parse(text, mode="eval").body
