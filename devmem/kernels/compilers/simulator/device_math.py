"""``math``, NumPy's types and some built-ins in kernels: functions compute in the type of their argument, and raise nothing.

Compiled, ``math.sqrt`` of a float32 is a float32, of an integer a float64, and of a negative number nan; ``math.floor`` gives a
float; ``np.uint8(250) + np.uint8(10)`` is 260, as both are integers of 64 bits before they are added.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Iterator, Sequence
from types import ModuleType
from typing import Any

import numpy as np

from .conversions import stored, to_integer
from .exact import larger, smaller
from .half_precision import FUNCTIONS as HALF_PRECISION
from .libdevice import FUNCTIONS as LIBDEVICE
from .numbers import INTEGRAL, TYPES, kernel_number, numpy_type

_HALF, _SINGLE, _DOUBLE = TYPES[np.float16], TYPES[np.float32], TYPES[np.float64]
_HALVES = {_HALF, np.float16}
#: A half is promoted to single precision where there is no function for halves.
_SINGLES = {_SINGLE, np.float32} | _HALVES

#: The functions of `math` that compilers have, by their names in libdevice where these differ.
_UNARY = dict.fromkeys(
    """
    acos acosh asin asinh atan atanh cos cosh erf erfc exp exp2 expm1 fabs lgamma log log10 log1p log2 sin sinh sqrt tan tanh
    """.split()  # noqa: SIM905  (as a list, four times as long)
) | {"ceil": None, "floor": None, "trunc": None, "gamma": "tgamma"}
_BINARY = ("atan2", "copysign", "fmod", "hypot", "nextafter", "pow", "remainder")
_PREDICATES = ("isfinite", "isinf", "isnan")


def _unary(name: str, device: Callable[[Any], Any]) -> Callable[[Any], Any]:
    plain = getattr(math, name)
    rounds = name in ("ceil", "floor", "trunc")
    of_halves = HALF_PRECISION.get("habs" if name == "fabs" else f"h{name}")

    def function(x: Any) -> Any:
        if of_halves is not None and type(x) in _HALVES:
            return _HALF(of_halves(x))
        try:
            # Python's integer has no sign if it is 0.
            found = math.copysign(plain(float(x)), x) if rounds else plain(x)
        except (OverflowError, ValueError):
            found = float(device(np.float64(x)))
        return _SINGLE(found) if type(x) in _SINGLES else _DOUBLE(found)

    return function


def _binary(name: str) -> Callable[[Any, Any], Any]:
    plain, device = getattr(math, name), LIBDEVICE[name]
    of_singles = LIBDEVICE["nextafterf"] if name == "nextafter" else plain

    def function(x: Any, y: Any) -> Any:
        single = type(x) in _SINGLES and (type(y) in _SINGLES or (name == "pow" and type(y) in INTEGRAL))
        try:
            found = of_singles(x, y) if single else plain(x, y)
        except (OverflowError, ValueError):
            found = float(device(x, y))
        return _SINGLE(found) if single else _DOUBLE(found)

    return function


def _predicate(name: str) -> Callable[[Any], Any]:
    plain = getattr(math, name)
    return lambda x: kernel_number(plain(x))


def _parts(name: str) -> Callable[[Any], Any]:
    def function(x: Any) -> Any:
        return tuple(map(kernel_number, LIBDEVICE[f"{name}f" if type(x) in _SINGLES else name](x)))

    return function


def _ldexp(x: Any, n: Any) -> Any:
    return kernel_number(LIBDEVICE["ldexpf" if type(x) in _SINGLES else "ldexp"](x, n))


#: By the function of `math`: what a kernel calls instead.
MATH: dict[Any, Any] = {getattr(math, name): _predicate(name) for name in _PREDICATES}
MATH |= {
    getattr(math, name): _unary(name, LIBDEVICE[other or name]) for name, other in _UNARY.items() if hasattr(math, name)
}
MATH |= {getattr(math, name): _binary(name) for name in _BINARY}
MATH |= {math.frexp: _parts("frexp"), math.modf: _parts("modf"), math.ldexp: _ldexp}
MATH |= {math.degrees: _unary("degrees", np.degrees), math.radians: _unary("radians", np.radians)}


class NumberType:
    """A type of NumPy's in a kernel: calling it converts to a kernel number, and it is a dtype everywhere else."""

    def __init__(self, native: Any) -> None:
        self.native = native
        self.dtype = np.dtype(native)
        self.__name__ = native.__name__

    def __repr__(self) -> str:
        return repr(self.native)

    def __call__(self, value: Any = 0) -> Any:
        """The value in this type."""
        return kernel_number(self.native(stored(value, self.dtype)))

    def __instancecheck__(self, instance: object) -> bool:
        return numpy_type(type(instance)) is self.native

    def __eq__(self, other: object) -> bool:
        return self.dtype == other or (isinstance(other, NumberType) and self.dtype == other.dtype)

    def __hash__(self) -> int:
        return hash(self.dtype)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.native, name)


class _Int(NumberType):
    """Python's ``int`` in a kernel."""

    def __init__(self) -> None:
        super().__init__(np.int64)

    def __call__(self, value: Any = 0) -> Any:
        if isinstance(value, np.integer):
            return kernel_number(value)  # it keeps its type
        return kernel_number(to_integer(value) if isinstance(value, float | np.floating) else int(value))

    def __instancecheck__(self, instance: object) -> bool:
        return isinstance(instance, int | np.integer)


class _Float(NumberType):
    """Python's ``float`` in a kernel; a number of half or single precision keeps its type."""

    def __init__(self) -> None:
        super().__init__(np.float64)

    def __call__(self, value: Any = 0) -> Any:
        if type(value) in _SINGLES:
            return kernel_number(value)
        return _DOUBLE(float(value))

    def __instancecheck__(self, instance: object) -> bool:
        return isinstance(instance, float | np.floating)


def _round(x: Any, ndigits: Any = None) -> Any:
    if ndigits is not None:
        return _rounded(x, int(ndigits))
    return kernel_number(to_integer(float(x), rounding=round))  # that of an integer too, by way of a float64


def _rounded(x: Any, ndigits: int) -> Any:
    """A number to so many decimal digits, as numba-cuda computes it: in double precision, by `_round` of a multiple."""
    result = _SINGLE if type(x) in _SINGLES else _DOUBLE
    value = np.float64(x)
    power, rest = np.float64(10) ** abs(ndigits), 1.0
    if ndigits > 22:  # neither factor alone is infinite
        power, rest = np.float64(10) ** (ndigits - 22), 1e22
    scaled = value * power * rest if ndigits >= 0 else value / power
    if not np.isfinite(value) or (ndigits >= 0 and np.isinf(scaled)):
        return result(value)
    whole = float(_round(scaled))
    if abs(scaled - whole) == 0.5:
        whole = 2.0 * float(_round(scaled / 2.0))
    return result(np.float64(whole) / rest / power if ndigits >= 0 else whole * power)


def _extreme(
    plain: Callable[..., Any], is_better: Callable[[Any, Any], Any], of_floats: Callable[[Any, Any], Any]
) -> Any:
    """``max`` or ``min``: the result has the type that NumPy promotes all operands to, and of two floats nan is none."""

    def choose(*given: Any, **options: Any) -> Any:
        values = given[0] if len(given) == 1 and isinstance(given[0], tuple) else given
        natives = {numpy_type(type(each)) for each in values}
        if options or not natives <= _COMPARED or (len(natives) < 2 and not natives <= _FLOATS):
            return plain(*given, **options)
        if len(given) == 2 and natives <= _FLOATS:
            return TYPES[np.float64 if np.float64 in natives else np.float32](of_floats(*map(float, given)))
        found, *others = values
        for each in others:
            common = np.promote_types(numpy_type(type(found)), numpy_type(type(each))).type
            found, other = TYPES[common](found), TYPES[common](each)
            found = other if is_better(other, found) else found
        return found

    return choose


class _UnsignedRange(Sequence[Any]):
    """A ``range`` of which the numbers are uint64."""

    def __init__(self, numbers: range) -> None:
        self._numbers = numbers
        self.start, self.stop, self.step = map(_UINT64, (numbers.start, numbers.stop, numbers.step))

    def __len__(self) -> int:
        return len(self._numbers)

    def __getitem__(self, index: Any) -> Any:
        return _UINT64(self._numbers[index])

    def __iter__(self) -> Iterator[Any]:
        return map(_UINT64, self._numbers)

    def __contains__(self, value: object) -> bool:
        return value in self._numbers


def _range(*ends: Any) -> Any:
    """``range``; compiled, it counts in uint64 if all its arguments are unsigned, and else in int64."""
    found = range(*ends)
    return _UnsignedRange(found) if all(numpy_type(type(each)) in _UNSIGNED for each in ends) else found


_UINT64 = TYPES[np.uint64]
_UNSIGNED = {native for native in TYPES if np.dtype(native).kind == "u"}
_FLOATS = {np.float32, np.float64}
_COMPARED = {native for native in TYPES if np.dtype(native).kind in "iuf"}
_BUILTINS: dict[Any, Any] = {
    int: _Int(),
    float: _Float(),
    max: _extreme(max, operator.gt, larger),
    min: _extreme(min, operator.lt, smaller),
    range: _range,
    round: _round,
}

#: By the type of NumPy's: the one that a kernel calls instead. C's types are NumPy's of the same width.
NUMBER_TYPES: dict[Any, Any] = {native: NumberType(native) for native in TYPES}
NUMBER_TYPES |= {each: NUMBER_TYPES[np.dtype(np.dtype(each).str).type] for each in (np.longlong, np.ulonglong)}


def _module(theirs: ModuleType, replaced: dict[Any, Any]) -> ModuleType:
    found = ModuleType(theirs.__name__)
    for name, value in vars(theirs).items():
        try:
            vars(found)[name] = replaced.get(value, value)
        except TypeError:  # cannot be a key
            vars(found)[name] = value
    return found


class _Lazy(ModuleType):
    """NumPy with other types; its lazy attributes are NumPy's."""

    def __getattr__(self, name: str) -> Any:
        return NUMBER_TYPES.get(found := getattr(np, name), found)


_numpy = _Lazy("numpy")
vars(_numpy).update((native.__name__, made) for native, made in NUMBER_TYPES.items())

#: By the id of a value that a kernel refers to: what it finds there instead.
REPLACED: dict[int, Any] = {
    id(math): _module(math, MATH),
    id(np): _numpy,
    **{id(each): made for each, made in (MATH | NUMBER_TYPES | _BUILTINS).items()},
}
