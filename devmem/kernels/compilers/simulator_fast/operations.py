"""Operations that numba's compiler for the host computes otherwise than a device: each as the simulator computes it.

A function here has no body: numba compiles what `_overload` registers for it, by the types of its arguments. The rules are those
of `simulator.conversions` (a float becomes an integer), `simulator.numbers` (a shift by any number of bits) and
`simulator.device_math` (``int``, ``float``, ``round``, ``min``, ``max``, ``floor``). A type that is not known here is refused.
"""

from __future__ import annotations

import ast
import builtins
import functools
import math
from collections.abc import Callable
from typing import Any

import numpy as np
from numba import njit, types
from numba.core.errors import TypingError
from numba.extending import overload

from ..simulator.plain_source import Operations

#: What a text of this module begins with, in the errors of numba.
MARK = "devmem: "
_BITS = {np.dtype(f"{sign}int{bits}").type for bits in (8, 16, 32, 64) for sign in ("", "u")}
#: The narrowest registers that floats are converted to.
_LEAST_BITS = 16


def _refused(told: str) -> TypingError:
    return TypingError(MARK + told)


def _named(name: str) -> Callable[..., Any]:
    """A function that numba knows, and Python does not run."""

    def function(*given: Any) -> Any:
        raise NotImplementedError(name)

    function.__name__ = function.__qualname__ = name
    return function


def _overload(made: Callable[..., Any], **options: Any) -> Callable[..., Any]:
    """Return numba's decorator, for functions with annotations: numba compares those of a function and its implementation."""

    def register(function: Callable[..., Any]) -> Any:
        @functools.wraps(function)
        def typed(*given: Any) -> Any:
            found = function(*given)
            found.__annotations__ = {}
            return found

        function.__annotations__ = typed.__annotations__ = {}
        return overload(made, jit_options={"boundscheck": True, "error_model": "numpy"}, **options)(typed)

    return register


def _is_integer(kind: Any) -> bool:
    return isinstance(kind, types.Integer | types.Boolean)


def _is_number(kind: Any) -> bool:
    return isinstance(kind, types.Integer) or kind in (types.float32, types.float64)


def _common(one: Any, other: Any) -> Any:
    """The type of floats that two numbers become, at least one of which is a float."""
    wide = any(
        kind is types.float64 or (isinstance(kind, types.Integer) and kind.bitwidth > 16) for kind in (one, other)
    )
    return types.float64 if wide else types.float32


def _is_real(kind: Any) -> bool:
    return _is_number(kind) or isinstance(kind, types.Boolean)


# -- conversions -------------------------------------------------------------------------------------------------------


@functools.cache
def _converter(to: Any, of: Any) -> Any:
    """A compiled function that converts a float to an integer type, as the instruction ``cvt`` does."""
    width = max(to.bitwidth, _LEAST_BITS)
    low, high = (-(1 << width - 1), (1 << width - 1) - 1) if to.signed else (0, (1 << width) - 1)
    beyond = float(high + 1)  # exact, as high itself is not
    register = types.int64 if to.signed else types.uint64
    nan = 0 if of is types.float32 and width < 64 else low if to.signed else 1 << width - 1
    middle = 2.0**63  # what an unsigned integer of 64 bits has beyond a signed one
    least, greatest, no_number = map(np.int64 if to.signed else np.uint64, (low, high, nan))
    half, is_wide = np.uint64(1 << 63), not to.signed and width == 64

    def convert(value: Any) -> Any:
        number = types.float64(value)
        if number != number:
            return to(no_number)
        if number <= low:
            return to(least)
        if number >= beyond:
            return to(greatest)
        if is_wide and number >= middle:
            return to(register(types.int64(number - middle)) ^ half)
        return to(register(types.int64(number)))

    return njit(convert)


def _integer(to: Any, of: Any) -> Callable[..., Any]:
    """An implementation for one argument, which becomes an integer of a type."""
    if isinstance(of, types.Float):
        convert = _converter(to, of)
        return lambda value: convert(value)
    if _is_integer(of):
        return lambda value: to(value)
    raise _refused(f"{of} becomes {to}")


def element(array: Any, value: Any) -> Any:
    """A value as an element of the array holds it."""


@_overload(element)
def _element(array: Any, value: Any) -> Any:
    held = array.dtype if isinstance(array, types.Array) else None
    if isinstance(held, types.Integer) and isinstance(value, types.Float):
        convert = _converter(held, value)
        return lambda array, value: convert(value)
    return _kept(array, held, value, lambda array, value: value)


def field(record: Any, name: Any, value: Any) -> Any:
    """A value as a field of the record holds it; ``name`` is a constant."""


@_overload(field, prefer_literal=True)
def _field(record: Any, name: Any, value: Any) -> Any:
    held = record.typeof(name.literal_value) if isinstance(record, types.Record) else None
    if isinstance(held, types.Integer) and isinstance(value, types.Float):
        convert = _converter(held, value)
        return lambda record, name, value: convert(value)
    return _kept(record, held, value, lambda record, name, value: value)


def _kept(container: Any, held: Any, value: Any, implementation: Any) -> Any:
    """The implementation, if numba itself converts the value to what the container holds as a device does."""
    if not (isinstance(value, types.Number | types.Boolean) and isinstance(held, types.Number | types.Boolean)):
        raise _refused(f"{value} is stored in {container}")
    return implementation


def _cast(native: Any) -> Callable[..., Any]:
    made, to = _named(native.__name__), types.Integer(native.__name__)

    @_overload(made)
    def implementation(value: Any) -> Any:
        return _integer(to, value)

    return made


_int, _float, _round = map(_named, ("int", "float", "round"))


@_overload(_int)
def _as_int(value: Any) -> Any:
    if isinstance(value, types.Integer):
        return lambda value: value
    return _integer(types.int64, value)


@_overload(_float)
def _as_float(value: Any) -> Any:
    if value in (types.float32, types.float64):
        return lambda value: value
    if _is_integer(value):
        return lambda value: types.float64(value)
    raise _refused(f"float() of {value}")


@_overload(_round)
def _as_round(value: Any) -> Any:
    if isinstance(value, types.Integer) and value.bitwidth < 64:  # exact as a float64, by way of which it is rounded
        return lambda value: types.int64(value)
    if value not in (types.float32, types.float64):
        raise _refused(f"round() of {value}")
    convert = _converter(types.int64, types.float64)
    return lambda value: convert(np.rint(types.float64(value)))


def _whole(name: str) -> Callable[..., Any]:
    """Return ``math.floor`` or its like: the result is a float on devices, and an integer in Python and for numba."""
    made, of_float = _named(name), getattr(np, name)

    @_overload(made)
    def implementation(value: Any) -> Any:
        if isinstance(value, types.Float):
            return lambda value: of_float(value)
        if _is_integer(value):
            return lambda value: types.float64(value)
        raise _refused(f"{name}() of {value}")

    return made


# -- numbers -----------------------------------------------------------------------------------------------------------


def left_shift(value: Any, by: Any) -> Any:
    """``value << by``; the instruction looks at 32 bits of the amount, and 64 or more of it leave nothing."""


def right_shift(value: Any, by: Any) -> Any:
    """``value >> by``, likewise; of a negative value -1 is left."""


@_overload(left_shift)
def _left_shift(value: Any, by: Any) -> Any:
    if not (_is_integer(value) and _is_integer(by)):
        raise _refused(f"{value} << {by}")

    def shift(value: Any, by: Any) -> Any:
        amount = types.uint32(by)
        found = value << types.int64(amount & 63)
        return found if amount < 64 else found - found

    return shift


@_overload(right_shift)
def _right_shift(value: Any, by: Any) -> Any:
    if not (_is_integer(value) and _is_integer(by)):
        raise _refused(f"{value} >> {by}")
    keeps_sign = getattr(value, "signed", False)

    def shift(value: Any, by: Any) -> Any:
        amount = types.uint32(by)
        found = value >> types.int64(amount & 63)
        if amount < 64:
            return found
        return value >> 63 if keeps_sign else found - found

    return shift


#: Above this exponent powers of integers are computed as floats.
_LONG_POWER = 0x10000


def power(base: Any, exponent: Any) -> Any:
    """``base ** exponent``; an integer to a negative power is truncated, and lowest for 0."""


@_overload(power)
def _power(base: Any, exponent: Any) -> Any:
    if not (_is_number(base) and _is_number(exponent)):
        raise _refused(f"{base} ** {exponent}")
    if isinstance(exponent, types.Float):
        to = _common(base, exponent)
        return lambda base, exponent: to(base) ** to(exponent)
    if isinstance(base, types.Float):
        of = base

        def of_float(base: Any, exponent: Any) -> Any:
            number, found, count = base, of(1), abs(types.int64(exponent))
            if count > _LONG_POWER:
                return of(types.float64(base) ** types.float64(exponent))
            while count > 0:
                if count & 1:
                    found = of(found * number)
                number = of(number * number)
                count >>= 1
            return of(1) / found if exponent < 0 else found

        return of_float
    to = types.int64 if base.signed or exponent.signed else types.uint64
    convert, lowest = _converter(to, types.float64), to.minval if to.signed else 1 << 63

    def of_integers(base: Any, exponent: Any) -> Any:
        number, found = to(base), to(1)
        if (exponent > _LONG_POWER or exponent < -_LONG_POWER) and base != 0:
            return convert(types.float64(base) ** types.float64(exponent))
        if exponent < 0:
            if base == 0:
                return to(lowest)
            if base != 1 and base != -1:
                return to(0)
            return number if exponent & 1 else found
        count = types.int64(exponent)
        while count > 0:
            if count & 1:
                found = to(found * number)
            number = to(number * number)
            count >>= 1
        return found

    return of_integers


_pow = _named("pow")


@_overload(_pow)
def _math_pow(x: Any, y: Any) -> Any:
    if not (_is_number(x) and _is_number(y)):
        raise _refused(f"pow() of {x} and {y}")
    to = types.float32 if x is types.float32 and (isinstance(y, types.Integer) or y is x) else types.float64
    return lambda x, y: to(to(x) ** to(y))


def _extreme(name: str, is_larger: bool) -> Callable[..., Any]:
    """``max`` or ``min`` of two numbers; of two floats nan is none, and 0.0 is larger than -0.0."""
    made = _named(name)

    @_overload(made)
    def implementation(one: Any, other: Any) -> Any:
        kinds = (one, other)
        if not all(map(_is_number, kinds)):
            raise _refused(f"{name}() of {one} and {other}")
        if all(isinstance(each, types.Integer) for each in kinds):
            if one.signed != other.signed:
                raise _refused(f"{name}() of {one} and {other}")
            to = types.Integer(("int" if one.signed else "uint") + str(max(one.bitwidth, other.bitwidth)))
        else:
            to = _common(one, other)
        if all(isinstance(each, types.Float) for each in kinds):

            def of_floats(one: Any, other: Any) -> Any:
                x, y = to(one), to(other)
                if x == 0 and y == 0:
                    return x + y if is_larger else -(-x + -y)
                if x != x:
                    return y
                if y != y or (x >= y) == is_larger:
                    return x
                return y

            return of_floats

        def choose(one: Any, other: Any) -> Any:
            x, y = to(one), to(other)
            if is_larger:
                return y if y > x else x
            return y if y < x else x

        return choose

    return made


# -- atomic operations -------------------------------------------------------------------------------------------------
# Those that lead to the same whatever their order is. No other thread of Python runs meanwhile: see `compiler`.

_UPDATES = {
    "add": "before + value",
    "sub": "before - value",
    "and_": "before & value",
    "or_": "before | value",
    "xor": "before ^ value",
    "max": "value if value > before else before",
    "min": "value if value < before else before",
    "nanmax": "value if value > before or before != before else before",
    "nanmin": "value if value < before or before != before else before",
}
_UPDATE = """
def update(ary, idx, val):
    before, value = ary[idx], to(val)
    ary[idx] = to({})
"""


def _update(name: str, expression: str) -> Callable[..., Any]:
    made, selects = _named(name), name[-3:] in ("max", "min")

    @_overload(made)
    def implementation(ary: Any, idx: Any, val: Any) -> Any:
        held: Any = ary.dtype if isinstance(ary, types.Array) else types.none
        is_float = selects and held in (types.float32, types.float64)
        if not (is_float or isinstance(held, types.Integer)) or held.bitwidth < 32:
            raise _refused(f"it uses atomic.{name} on {held}, whose result depends on the order of threads")
        if not (_is_real(val) if is_float else _is_integer(val)):
            raise _refused(f"it uses atomic.{name} of {val} on {held}")
        found: dict[str, Any] = {"to": held}
        exec(_UPDATE.format(expression), found)
        return found["update"]

    return made


_CASTS = {native: _cast(native) for native in _BITS}
OPERATIONS = Operations(
    element=element,
    field=field,
    operators={ast.LShift: left_shift, ast.RShift: right_shift, ast.Pow: power},
    calls={
        **_CASTS,
        **{each: _CASTS[np.dtype(np.dtype(each).str).type] for each in (np.longlong, np.ulonglong)},
        builtins.int: _int,
        builtins.float: _float,
        builtins.round: _round,
        builtins.pow: power,
        math.pow: _pow,
        builtins.max: _extreme("max", is_larger=True),
        builtins.min: _extreme("min", is_larger=False),
        **{getattr(math, name): _whole(name) for name in ("floor", "ceil", "trunc")},
    },
    atomics={name: _update(name, expression) for name, expression in _UPDATES.items()},
)
#: All functions of this module that kernels call.
FUNCTIONS: frozenset[Any] = frozenset(
    {
        OPERATIONS.element,
        OPERATIONS.field,
        *OPERATIONS.operators.values(),
        *OPERATIONS.calls.values(),
        *OPERATIONS.atomics.values(),
    }
)
