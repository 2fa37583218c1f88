"""Look at a compiled function's statements, with the types that numba has found, for what is not known to be right.

Numba's compiler for the host takes more than those for devices: arithmetic with whole arrays, lists, texts. And it has functions
of whole arrays that do not check indices. So only what is listed here is let pass: elements of arrays, records and tuples,
arithmetic with numbers, and functions of numbers that the tests compare with the simulator's.
"""

from __future__ import annotations

import builtins
import math
import operator
from collections.abc import Iterable
from typing import Any

import numpy as np
from numba import types
from numba.core import ir

from ..simulator.plain_source import Refused
from .operations import FUNCTIONS

_ARRAY_ATTRIBUTES = {"T", "dtype", "itemsize", "nbytes", "ndim", "shape", "size", "strides"}
#: Operators of complex numbers that the simulator and numba compute alike.
_OF_COMPLEX = {operator.add, operator.sub, operator.mul, operator.neg, operator.pos, operator.eq, operator.ne}
_OF_COMPLEX |= {operator.iadd, operator.isub, operator.imul}
_OPERATORS = {
    getattr(operator, name)
    for line in (
        "add sub mul truediv floordiv mod pow and_ or_ xor lshift rshift eq ne lt le gt ge neg pos invert not_",
        "iadd isub imul itruediv ifloordiv imod ipow iand ior ixor ilshift irshift",
    )
    for name in line.split()
}
_TRIGONOMETRIC = ("cos", "cosh", "sin", "sinh", "tan", "tanh")
_LOGARITHMS = ("exp", "expm1", "log", "log10", "log1p", "log2")
_PREDICATES = ("isfinite", "isinf", "isnan")
#: Functions of a float, or of an integer, which becomes a float64.
_MATH: tuple[str, ...] = (
    *_TRIGONOMETRIC,
    *_LOGARITHMS,
    *_PREDICATES,
    "acos",
    "acosh",
    "asin",
    "asinh",
    "atan",
    "atanh",
)
_MATH += ("degrees", "erf", "erfc", "exp2", "fabs", "radians", "sqrt")
#: Functions of floats of NumPy's, which compute in the type of their argument.
_NUMPY: tuple[str, ...] = (
    *_TRIGONOMETRIC,
    *_LOGARITHMS,
    *_PREDICATES,
    "arccos",
    "arccosh",
    "arcsin",
    "arcsinh",
    "arctan",
    "arctanh",
)
_NUMPY += ("abs", "absolute", "ceil", "fabs", "floor", "rint", "sqrt", "square", "trunc")
_OF_REALS = {getattr(math, name) for name in _MATH if hasattr(math, name)} | {builtins.abs}
_OF_FLOATS = {getattr(np, name) for name in _NUMPY} | {math.atan2, math.copysign, math.hypot}
_FLOATS = (types.float32, types.float64)
#: Statements that need no look.
_PLAIN = (ir.Del, ir.Jump, ir.Branch, ir.Return, ir.StaticRaise)
_PLAIN_EXPRESSIONS = {"build_tuple", "exhaust_iter", "getiter", "iternext", "pair_first", "pair_second", "phi", "undef"}


def check(annotation: Any, compiled: Iterable[Any]) -> None:
    """Check a function; ``compiled`` are the functions of the kernel, each of which is checked by itself.

    Raises
    ------
    Refused
        Something in it is not known to give the simulator's result.
    """
    _Check(annotation, frozenset(map(id, compiled))).run()


class _Check:
    def __init__(self, annotation: Any, compiled: frozenset[int]) -> None:
        self._annotation = annotation
        self._types = annotation.typemap
        self._compiled = compiled

    def run(self) -> None:
        for block in self._annotation.blocks.values():
            for statement in block.body:
                try:
                    self._statement(statement)
                except Refused as error:
                    raise Refused(f"{error}, in line {statement.loc.line}") from None

    def _of(self, variable: Any) -> Any:
        return self._types[variable.name]

    def _statement(self, statement: Any) -> None:
        if isinstance(statement, ir.Assign):
            self._assignment(statement.target, statement.value)
        elif isinstance(statement, ir.SetItem | ir.StaticSetItem):
            index = statement.index_var if isinstance(statement, ir.StaticSetItem) else statement.index
            if isinstance(self._of(statement.target), types.Array):
                self._index(self._of(index))
        elif not isinstance(statement, (*_PLAIN, ir.SetAttr)):
            raise Refused(f"it uses {statement}")

    def _assignment(self, target: Any, value: Any) -> None:
        kind = self._of(target)
        if isinstance(value, ir.Var):
            self._unified(self._of(value), kind)
        elif isinstance(value, ir.Expr):
            self._expression(value, kind)
        elif not isinstance(value, ir.Yield | ir.Arg | ir.Const | ir.Global | ir.FreeVar):
            raise Refused(f"it uses {value}")

    def _unified(self, given: Any, kind: Any) -> None:
        """Refuse a variable of one type for all, where the simulator's has several and computes with other numbers."""
        is_literal = isinstance(given, types.Literal)
        if isinstance(given, types.Integer) and isinstance(kind, types.Float) and not is_literal:
            raise Refused(f"a variable is {given} on one way, and {kind} on another")
        if isinstance(types.unliteral(given), types.Boolean) and isinstance(types.unliteral(kind), types.Number):
            raise Refused(f"a variable is {given} on one way, and {kind} on another")

    def _expression(self, value: Any, kind: Any) -> None:
        name = value.op
        if name in ("getitem", "static_getitem", "typed_getitem"):
            index = value.index_var if name == "static_getitem" else value.index
            self._element(self._of(value.value), None if index is None else self._of(index))
        elif name == "getattr":
            self._attribute(self._of(value.value), value.attr, kind)
        elif name == "getiter":
            self._no_records_of_constants(self._of(value.value))
        elif name == "call":
            self._call(self._of(value.func), [self._of(each) for each in [*value.args, *dict(value.kws).values()]])
        elif name in ("binop", "inplace_binop"):
            self._operator(value.immutable_fn if name == "inplace_binop" else value.fn, value.lhs, value.rhs)
        elif name == "unary":
            self._operator(value.fn, value.value)
        elif name == "cast":
            self._unified(self._of(value.value), kind)
        elif name not in _PLAIN_EXPRESSIONS:
            raise Refused(f"it uses {value}")

    def _no_records_of_constants(self, container: Any) -> None:
        """Refuse records of a read-only array: to numba they can be written."""
        if isinstance(container, types.Array) and not container.mutable and isinstance(container.dtype, types.Record):
            raise Refused("it takes a record of a read-only array")

    def _element(self, container: Any, index: Any) -> None:
        self._no_records_of_constants(container)
        if isinstance(container, types.Array) and index is not None:
            self._index(index)
        elif not isinstance(container, types.BaseTuple | types.Record):
            raise Refused(f"it indexes {container}")

    def _index(self, index: Any) -> None:
        for each in index if isinstance(index, types.BaseTuple) else (index,):
            if not isinstance(each, types.Integer | types.SliceType | types.EllipsisType | types.StringLiteral):
                raise Refused(f"it has {each} for an index")

    def _attribute(self, owner: Any, name: str, kind: Any) -> None:
        if isinstance(owner, types.Module | types.BaseNamedTuple | types.Complex):
            return
        if isinstance(owner, types.Array) and name in _ARRAY_ATTRIBUTES:
            return
        if isinstance(owner, types.Record) and name in owner.fields and not isinstance(kind, types.NestedArray):
            return
        raise Refused(f"it uses .{name} of {owner}")

    def _operator(self, function: Any, *operands: Any) -> None:
        kinds = [self._of(each) for each in operands]
        known = function in _OPERATORS and all(map(_is_number, kinds))
        if any(isinstance(each, types.Complex) for each in kinds):
            known = function in _OF_COMPLEX
        if not known:
            raise Refused(f"it uses {function.__name__} of {' and '.join(map(str, kinds))}")

    def _call(self, function: Any, given: list[Any]) -> None:
        if isinstance(function, types.Dispatcher):
            known = id(function.dispatcher) in self._compiled
        elif isinstance(function, types.NumberClass):
            known = all(map(_is_number, given))
        else:
            called = getattr(function, "typing_key", None)
            known = _knows(called, given)
        if not known:
            raise Refused(f"it calls {function} with ({', '.join(map(str, given))})")


def _knows(called: Any, given: list[Any]) -> bool:
    if called in FUNCTIONS or called is np.empty:  # which stands for devmem.local.array alone: see `plain_source`
        return True
    if called is builtins.range:
        # Of ends of both kinds numba takes int64 or uint64, by their widths.
        return all(isinstance(each, types.Integer) for each in given) and len({each.signed for each in given}) == 1
    if called is builtins.len:
        return isinstance(given[0], types.Array | types.BaseTuple)
    if called is builtins.bool or called is operator.truth:
        return all(map(_is_number, given))
    if called is builtins.slice:
        return all(isinstance(each, types.Integer | types.NoneType) for each in given)
    if called in _OF_REALS:
        return all(isinstance(each, types.Integer) or each in _FLOATS for each in given)
    return called in _OF_FLOATS and all(each in _FLOATS for each in given)


def _is_number(kind: Any) -> bool:
    return isinstance(types.unliteral(kind), types.Number | types.Boolean)
