"""NVIDIA's libdevice functions, as the simulator computes them.

Functions of single precision are computed in double precision and rounded once: they are nearer to the true value than a
device's, whose error NVIDIA bounds by a few units in the last place. The ``fast_`` ones are as accurate as the others. What
returns several numbers in C returns a tuple, as in numba.cuda. The Bessel functions of the second kind are missing.
"""

# Rules: https://docs.nvidia.com/cuda/libdevice-users-guide
from __future__ import annotations

import math
from collections.abc import Callable
from fractions import Fraction
from functools import partial
from statistics import NormalDist
from typing import Any

import numpy as np

from .conversions import stored, to_integer
from .exact import bits_of, brev, clz, ffs, fma, larger, popc, rounded, smaller

FUNCTIONS: dict[str, Callable[..., Any]] = {}

_F32, _F64, _I32, _I64 = np.float32, np.float64, np.int32, np.int64


def _cast(value: Any, kind: Any) -> Any:
    return kind(stored(value, np.dtype(kind)))


def _add(name: str, function: Callable[..., Any], result: Any, *arguments: Any) -> None:
    """Register a function: its arguments are converted, and its result, or each part of that."""
    results = result if isinstance(result, tuple) else (result,)

    def convert(*given: Any) -> Any:
        if len(given) != len(arguments):
            raise TypeError(f"libdevice.{name} takes {len(arguments)} arguments, and was given {len(given)}")
        found = function(*[_cast(value, kind) for value, kind in zip(given, arguments, strict=True)])
        if result is None:
            return found
        parts = [
            _cast(value, kind) for value, kind in zip(found if len(results) > 1 else (found,), results, strict=True)
        ]
        return tuple(parts) if len(parts) > 1 else parts[0]

    FUNCTIONS[name] = convert


def _floats(name: str, function: Callable[..., Any], count: int = 1, also_fast: bool = False) -> None:
    """Register a function of floats in double precision, and in single precision under the name with an f."""
    _add(name, function, _F64, *[_F64] * count)

    def single(*given: Any) -> Any:
        return function(*map(_F64, given))

    for each in (f"{name}f", *([f"fast_{name}f"] if also_fast else [])):
        _add(each, single, _F32, *[_F32] * count)


# -- functions of floats -----------------------------------------------------------------------------------------------


def _careful(function: Callable[[float], float], outside: Callable[[float], float]) -> Callable[[Any], float]:
    """A function of `math`; ``outside`` gives the value where that raises."""

    def compute(x: Any) -> float:
        try:
            return function(float(x))
        except (OverflowError, ValueError):
            return outside(float(x))

    return compute


def _reduced(function: Callable[[float], float]) -> Callable[[Any], float]:
    """A function of pi times the argument, of period 2."""
    return lambda x: function(math.pi * math.remainder(x, 2.0)) if math.isfinite(x) else math.nan


def _inverse_normal(p: Any) -> float:
    if not 0 < p < 1:
        return {0.0: -math.inf, 1.0: math.inf}.get(float(p), math.nan)
    return NormalDist().inv_cdf(float(p))


def _inverse_erf(x: Any) -> float:
    if not -1 < x < 1:
        return math.copysign(math.inf, x) if abs(x) == 1 else math.nan
    y = _inverse_normal((x + 1) / 2) / math.sqrt(2)
    for _ in range(2):  # Newton's method, as the sum above rounds
        y -= (math.erf(y) - x) * math.sqrt(math.pi) / 2 * math.exp(y * y)
    return y


def _inverse_erfc(x: Any) -> float:
    if not 0 < x < 2:
        return {0.0: math.inf, 2.0: -math.inf}.get(float(x), math.nan)
    y = -_inverse_normal(x / 2) / math.sqrt(2)
    if abs(y) < 25:
        for _ in range(2):
            y += (math.erfc(y) - x) * math.sqrt(math.pi) / 2 * math.exp(y * y)
    return y


def _scaled_erfc(x: Any) -> float:
    if x < 25:
        return math.exp(x * x) * math.erfc(x) if x > -26 else math.inf
    term, total = 1.0, 1.0
    for k in range(1, 20):
        term *= -(2 * k - 1) / (2 * x * x)
        total += term
    return float(total / (x * math.sqrt(math.pi)))


def _bessel(n: int, x: Any) -> float:
    """Integrate a Bessel function over a period, for which the trapezoidal rule converges faster than any power."""
    if not math.isfinite(x):
        return 0.0 if math.isinf(x) else math.nan
    angles = np.arange(count := int(abs(x)) + abs(n) + 64) * (2 * np.pi / count)
    return float(np.mean(np.cos(n * angles - x * np.sin(angles))))


def _fdim(x: Any, y: Any) -> Any:
    return math.nan if x != x or y != y else x - y if x > y else 0.0


def _remquo(x: Any, y: Any) -> tuple[Any, int]:
    if not (math.isfinite(x) and y and y == y):
        return math.nan, 0
    found = math.remainder(x, y)
    quotient = round((Fraction(float(x)) - Fraction(found)) / Fraction(float(y))) if math.isfinite(y) else 0
    return found, int(math.copysign(abs(quotient) % 8, quotient))


def _remainder(x: Any, y: Any) -> float:
    return float(_remquo(x, y)[0])


def _ilogb(x: Any) -> int:
    if x == 0 or x != x:
        return -(1 << 31)
    return (1 << 31) - 1 if math.isinf(x) else math.frexp(x)[1] - 1


def _logb(x: Any) -> float:
    return -math.inf if x == 0 else abs(x) if not math.isfinite(x) else float(_ilogb(x))


def _ldexp(x: Any, n: Any) -> float:
    try:
        return math.ldexp(x, int(n))
    except OverflowError:
        return math.copysign(math.inf, x)


def _round_away(x: Any) -> Any:
    """To the nearest integer, halves away from zero."""
    return np.copysign(
        np.floor(np.abs(x) + 0.5) if abs(x) < 2**52 and abs(x) != 0.49999999999999994 else np.trunc(x), x
    )


for _name in "ceil", "cosh", "exp2", "expm1", "fabs", "floor", "log1p", "rint", "sinh", "sqrt", "tanh", "trunc", "cbrt":
    _floats(_name, getattr(np, _name))
for _name in "cos", "exp", "log", "log10", "log2", "sin", "tan":
    _floats(_name, getattr(np, _name), also_fast=True)
for _name in "cos", "cosh", "sin", "sinh", "tan", "tanh":
    _floats(f"a{_name}", getattr(np, f"arc{_name}"))
_floats("atan2", np.arctan2, 2)
_floats("copysign", np.copysign, 2)
_floats("fdim", _fdim, 2)
_floats("fma", lambda x, y, z: fma(x, y, z), 3)
_add("fmaf", fma, _F32, _F32, _F32, _F32)
_floats("fmax", larger, 2)
_floats("fmin", smaller, 2)
for _name in "fmod", "hypot":
    _floats(_name, getattr(np, _name), 2)
_floats("pow", np.power, 2, also_fast=True)
_add("fast_fdividef", lambda x, y: x / y, _F32, _F32, _F32)
_add("nextafter", np.nextafter, _F64, _F64, _F64)
_add("nextafterf", np.nextafter, _F32, _F32, _F32)
_floats("remainder", _remainder, 2)
_floats("exp10", lambda x: np.power(10.0, x), also_fast=True)
_floats("cospi", _reduced(math.cos))
_floats("sinpi", _reduced(math.sin))
_floats("rsqrt", lambda x: 1 / np.sqrt(x))
_floats("rcbrt", lambda x: 1 / np.cbrt(x))
_floats("erf", lambda x: math.erf(x))
_floats("erfc", lambda x: math.erfc(x))
_floats("erfcx", _scaled_erfc)
_floats("erfinv", _inverse_erf)
_floats("erfcinv", _inverse_erfc)
_floats("normcdf", lambda x: math.erfc(-x / math.sqrt(2)) / 2)
_floats("normcdfinv", _inverse_normal)
_floats("lgamma", _careful(math.lgamma, lambda x: math.inf))
_floats("tgamma", _careful(math.gamma, lambda x: math.copysign(math.inf, x) if x == 0 or x > 0 else math.nan))
_floats("j0", lambda x: _bessel(0, x))
_floats("j1", lambda x: _bessel(1, x))
_floats("logb", _logb)
_floats("nearbyint", np.rint)
_floats("round", _round_away)
for _suffix, _kind in ("", _F64), ("f", _F32):
    _add(f"jn{_suffix}", lambda n, x: _bessel(int(n), float(x)), _kind, _I32, _kind)
    _add(f"ilogb{_suffix}", _ilogb, _I32, _kind)
    _add(f"powi{_suffix}", lambda x, n: np.power(_F64(x), _F64(n)), _kind, _kind, _I32)
    for _name in "ldexp", "scalbn":
        _add(f"{_name}{_suffix}", _ldexp, _kind, _kind, _I32)
    _add(f"frexp{_suffix}", math.frexp, (_kind, _I32), _kind)
    _add(f"modf{_suffix}", math.modf, (_kind, _kind), _kind)
    _add(f"remquo{_suffix}", _remquo, (_kind, _I32), _kind, _kind)
    _add(f"sincos{_suffix}", lambda x: (np.sin(_F64(x)), np.cos(_F64(x))), (_kind, _kind), _kind)
    _add(f"sincospi{_suffix}", lambda x: (_reduced(math.sin)(x), _reduced(math.cos)(x)), (_kind, _kind), _kind)
FUNCTIONS["fast_sincosf"] = FUNCTIONS["sincosf"]
_add("saturatef", lambda x: min(max(x, 0), 1) if x == x else 0, _F32, _F32)
for _suffix, _kind in ("d", _F64), ("f", _F32):
    _add(f"isinf{_suffix}", np.isinf, _I32, _kind)
    _add(f"isnan{_suffix}", np.isnan, _I32, _kind)
    _add(f"signbit{_suffix}", np.signbit, _I32, _kind)
_add("isfinited", np.isfinite, _I32, _F64)
_add("finitef", np.isfinite, _I32, _F32)

# -- directed rounding -------------------------------------------------------------------------------------------------

#: To the nearest, towards zero, up, down.
_MODES = "rn", "rz", "ru", "rd"


def _directed(exact: Fraction, kind: Any, mode: str) -> Any:
    near = rounded(exact, kind)
    if mode == "rn" or not exact:
        return near
    infinite = bool(np.isinf(near))
    above = near > 0 if infinite else Fraction(float(near)) > exact
    below = near < 0 if infinite else Fraction(float(near)) < exact
    down = mode == "rd" or (mode == "rz" and exact > 0)
    if above and down:
        return np.nextafter(near, kind(-math.inf))
    return np.nextafter(near, kind(math.inf)) if below and not down else near


def _square_root(x: Any, kind: Any, mode: str) -> Any:
    near = np.sqrt(x)
    if mode == "rn" or not np.isfinite(near):
        return near
    square, exact = Fraction(float(near)) ** 2, Fraction(float(x))
    if square > exact and mode in ("rd", "rz"):
        return np.nextafter(near, kind(-math.inf))
    return np.nextafter(near, kind(math.inf)) if square < exact and mode == "ru" else near


def _arithmetic(kind: Any, mode: str, plain: Callable[..., Any], exact: Callable[..., Fraction]) -> Callable[..., Any]:
    """An operation of finite numbers, rounded in a direction; for others ``plain``."""

    def compute(*given: Any) -> Any:
        with np.errstate(all="ignore"):
            found = plain(*given)
        if not all(map(math.isfinite, given)) or (plain in (_quotient, _reciprocal) and not given[-1]):
            return found
        value = exact(*[Fraction(float(each)) for each in given])
        return _directed(value, kind, mode) if value else found  # a zero has a sign

    return compute


def _quotient(x: Any, y: Any) -> Any:
    return x / y


def _reciprocal(x: Any) -> Any:
    return type(x)(1) / x


for _letter, _kind, _fma in ("d", _F64, "fma"), ("f", _F32, "fmaf"):
    for _mode in _MODES:
        for _name, _plain, _count in (
            ("add", lambda x, y: x + y, 2),
            ("sub", lambda x, y: x - y, 2),
            ("mul", lambda x, y: x * y, 2),
            ("div", _quotient, 2),
            ("rcp", _reciprocal, 1),
        ):
            if _letter == "d" and _name == "sub":
                continue
            _exact: Callable[..., Fraction] = (lambda x: 1 / x) if _name == "rcp" else _plain
            _add(f"{_letter}{_name}_{_mode}", _arithmetic(_kind, _mode, _plain, _exact), _kind, *[_kind] * _count)
        _add(f"{_letter}sqrt_{_mode}", lambda x, k=_kind, m=_mode: _square_root(x, k, m), _kind, _kind)
        _add(f"{_fma}_{_mode}", _arithmetic(_kind, _mode, fma, lambda x, y, z: x * y + z), _kind, _kind, _kind, _kind)
_add("frsqrt_rn", lambda x: 1 / np.sqrt(_F64(x)), _F32, _F32)

# -- conversions -------------------------------------------------------------------------------------------------------

_INTEGRAL: dict[str, Callable[[float], int]] = {"rn": round, "rz": math.trunc, "ru": math.ceil, "rd": math.floor}


for _mode in _MODES:
    for _name, _kind in ("double", _F64), ("float", _F32):
        for _what, _result, _integer in (
            ("int", _I32, np.int32),
            ("uint", _I32, np.uint32),
            ("ll", _I64, np.int64),
            ("ull", _I64, np.uint64),
        ):
            _convert = partial(to_integer, dtype=np.dtype(_integer), rounding=_INTEGRAL[_mode])
            _add(f"{_name}2{_what}_{_mode}", _convert, _result, _kind)
            if _name == "double" and _mode != "rn" and _what in ("int", "uint"):
                continue  # exact, and has one name
            _mask = (1 << np.dtype(_result).itemsize * 8) - 1 if _what.startswith("u") else 0

            def _float_of(n: Any, kind: Any = _kind, mode: str = _mode, mask: int = _mask) -> Any:
                return _directed(Fraction(int(n) & mask if mask else int(n)), kind, mode)

            _add(f"{_what}2{_name}_{_mode}", _float_of, _kind, _result)
    _add(
        f"double2float_{_mode}",
        lambda x, mode=_mode: _directed(Fraction(float(x)), _F32, mode) if math.isfinite(x) and x else _F32(x),
        _F32,
        _F64,
    )


def _bits(from_: Any, to: Any) -> Callable[[Any], Any]:
    return lambda x: from_(x).view(to)


_add("double_as_longlong", _bits(_F64, _I64), _I64, _F64)
_add("longlong_as_double", _bits(_I64, _F64), _F64, _I64)
_add("float_as_int", _bits(_F32, _I32), _I32, _F32)
_add("int_as_float", _bits(_I32, _F32), _F32, _I32)
_add("double2hiint", lambda x: int(_F64(x).view(_I64)) >> 32, _I32, _F64)
_add("double2loint", lambda x: int(_F64(x).view(_I64)), _I32, _F64)
_add("hiloint2double", lambda x, y: _cast(int(x) << 32 | int(y) & 0xFFFFFFFF, _I64).view(_F64), _F64, _I32, _I32)
_add("float2half_rn", lambda x: np.float16(x).view(np.int16), None, _F32)
_add("half2float", lambda h: _cast(int(h), np.int16).view(np.float16), _F32, _I32)

# -- integers ----------------------------------------------------------------------------------------------------------


def _low24(value: Any, signed: bool) -> int:
    found = int(value) & 0xFFFFFF
    return found - (1 << 24) if signed and found >> 23 else found


def _permuted(x: Any, y: Any, selector: Any) -> int:
    taken = bits_of(y, 32) << 32 | bits_of(x, 32)
    found = 0
    for place in range(4):
        choice = int(selector) >> 4 * place & 0xF
        byte = taken >> 8 * (choice & 7) & 0xFF
        found |= (0xFF * (byte >> 7) if choice & 8 else byte) << 8 * place
    return found


for _suffix, _whole, _width in ("", _I32, 32), ("ll", _I64, 64):
    _add(f"brev{_suffix}", lambda x, w=_width: brev(x, w), _whole, _whole)
    for _counted in clz, ffs, popc:
        _add(f"{_counted.__name__}{_suffix}", lambda x, f=_counted, w=_width: f(x, w), _I32, _whole)
    _add(f"{_suffix}abs", lambda x: abs(int(x)), _whole, _whole)
    for _name, _choose in ("max", max), ("min", min):
        _add(f"{_suffix}{_name}", lambda x, y, f=_choose: f(int(x), int(y)), _whole, _whole, _whole)
        _add(
            f"u{_suffix}{_name}",
            lambda x, y, f=_choose, w=_width: f(bits_of(x, w), bits_of(y, w)),
            _whole,
            _whole,
            _whole,
        )
    _high_name = "mulhi" if _width == 32 else "mul64hi"
    _add(_high_name, lambda x, y, w=_width: int(x) * int(y) >> w, _whole, _whole, _whole)
    _add(f"u{_high_name}", lambda x, y, w=_width: bits_of(x, w) * bits_of(y, w) >> w, _whole, _whole, _whole)
for _name, _of in ("", int), ("u", lambda x: bits_of(x, 32)):
    _add(f"{_name}sad", lambda x, y, z, f=_of: abs(f(x) - f(y)) + int(z), _I32, _I32, _I32, _I32)
    _add(f"{_name}hadd", lambda x, y, f=_of: f(x) + f(y) >> 1, _I32, _I32, _I32)
    _add(f"{_name}rhadd" if not _name else "urhadd", lambda x, y, f=_of: f(x) + f(y) + 1 >> 1, _I32, _I32, _I32)
    _add(
        f"{_name}mul24",
        lambda x, y, signed=not _name: _low24(x, signed) * _low24(y, signed),
        _I32,
        _I32,
        _I32,
    )
_add("byte_perm", _permuted, _I32, _I32, _I32, _I32)
for _suffix, _kind in ("", _F64), ("f", _F32):
    _add(f"llrint{_suffix}", partial(to_integer, rounding=round), _I64, _kind)
    _add(f"llround{_suffix}", lambda x: to_integer(_round_away(_F64(x))), _I64, _kind)
