"""Expressions of one and of two numbers, and what they give at the limits of each type."""

from __future__ import annotations

import math
import warnings
import zlib
from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np

from devmem.kernels.compilers.simulator.conversions import stored
from devmem.kernels.compilers.simulator.device_math import REPLACED
from devmem.kernels.compilers.simulator.numbers import kernel_number, numpy_type, result

INTEGERS = [np.bool_, *(getattr(np, f"{sign}int{width}") for width in (8, 16, 32, 64) for sign in ("", "u"))]
FLOATS = [np.float16, np.float32, np.float64]
TYPES = [*INTEGERS, *FLOATS]
#: The operators, by the name of their method. Not the powers, which are loops, and functions of the library.
OPERATORS = {
    "add": "+",
    "sub": "-",
    "mul": "*",
    "truediv": "/",
    "floordiv": "//",
    "mod": "%",
    "lshift": "<<",
    "rshift": ">>",
    "and": "&",
    "or": "|",
    "xor": "^",
    "eq": "==",
    "ne": "!=",
    "lt": "<",
    "le": "<=",
    "gt": ">",
    "ge": ">=",
}
OF_TWO = {name: f"x {sign} y" for name, sign in OPERATORS.items()} | {name: f"{name}(x, y)" for name in ("min", "max")}
CONVERSIONS = [f"np.{np.dtype(each).name.replace('bool', 'bool_')}(x)" for each in TYPES]
_MATH = [f"math.{name}(x)" for name in ("floor", "ceil", "trunc", "fabs", "sqrt", "isnan", "isinf", "isfinite")]
OF_ONE = ["-x", "+x", "~x", "not x", "abs(x)", "int(x)", "float(x)", "bool(x)", "round(x)", *_MATH, *CONVERSIONS]
#: Of halves these are functions of CUDA's header, which PTX has as calls; numba-cuda has no code that makes a bool of a half.
NOT_OF_HALVES = {"-x", "+x", "~x", "abs(x)", *_MATH[:5], "bool(x)", "np.bool_(x)", "element of bool"}
#: What compilers take of no number of a type.
REFUSED = {np.bool_: {"float(x)"}, np.float16: NOT_OF_HALVES, np.float32: {"~x"}, np.float64: {"~x"}}
#: The assignment to an element of each type.
STORED = [f"element of {np.dtype(each).name}" for each in TYPES]
#: What a kernel finds under these names.
_KERNEL = {each.__name__: REPLACED.get(id(each), each) for each in (math, abs, bool, float, int, max, min, round)} | {
    "np": REPLACED[id(np)]
}


def values(kind: Any) -> list[Any]:
    """Numbers of a type, among them those at which results change."""
    if kind is np.bool_:
        return [kind(0), kind(1)]
    if issubclass(kind, np.integer):
        low, high = int(np.iinfo(kind).min), int(np.iinfo(kind).max)
        found = {0, 1, -1, 7, 31, 64, (1 << 32) + 1, high, high // 3, low, low // 7}
        return [kind(each) for each in sorted(found) if low <= each <= high]
    limits = np.finfo(kind)
    found = [0.0, -0.0, 1, -1, 0.1, 2.5, -7.75, 300.5, -129, limits.smallest_subnormal, limits.max, 2**limits.nmant + 1]
    return [kind(each) for each in (*found, np.inf, -np.inf, np.nan)]


def compared(name: str, left: Any, right: Any) -> bool:
    """Whether compilers take an expression of two types, and PTX has a rule of its own for it."""
    kinds = np.dtype(left).kind + np.dtype(right).kind
    if name in ("min", "max"):
        return "b" not in kinds and np.float16 not in (left, right)
    if name in ("floordiv", "mod") and "f" in kinds:
        return False  # the quotient is rounded before it is cut: devices differ, and the simulator computes as the host does
    if result("add", left, right) is np.float16:
        return False  # functions of CUDA's header, as `NOT_OF_HALVES`
    return result(name, left, right) is not None


def of_two(name: str, left: Any) -> Iterator[tuple[str, Any]]:
    """(what was computed, result) for all second operands."""
    evaluate = eval(f"lambda x, y: {OF_TWO[name]}", _KERNEL)
    for right in TYPES:
        if compared(name, left, right):
            for x in values(left):
                for y in values(right):
                    yield f"{x!r}, {y!r}", evaluate(kernel_number(x), kernel_number(y))


def of_one(expression: str, kind: Any) -> Iterator[tuple[str, Any]]:
    """The same for an expression of one number, or an element that it is assigned to."""
    for x in values(kind):
        if expression in STORED:
            dtype = np.dtype(TYPES[STORED.index(expression)])
            made = np.zeros(1, dtype)
            made[0] = stored(kernel_number(x), dtype)
            yield repr(x), made[0]
        else:
            yield repr(x), eval(expression, _KERNEL, {"x": kernel_number(x)})


def taken(expression: str, kind: Any) -> bool:
    """Whether it is compiled of a type to instructions of PTX."""
    return expression not in REFUSED.get(kind, ())


def told(number: Any) -> str:
    """The type and the bits of a result; all nan are one."""
    native = numpy_type(type(number))
    plain = np.asarray(native(number))
    if plain.dtype.kind == "f" and plain != plain:
        return f"{plain.dtype} nan"
    return f"{plain.dtype} {int(plain.view(f'u{plain.itemsize}')[()]):x}"


def silent(found: Iterable[tuple[str, Any]]) -> list[tuple[str, str]]:
    """What was computed and what it gave, as `told`, with no warnings: a kernel gives none."""
    with np.errstate(all="ignore"), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return [(what, told(number)) for what, number in found]


def digest(results: Iterable[str]) -> str:
    """A checksum of many results."""
    return f"{zlib.crc32(chr(10).join(results).encode()):08x}"
