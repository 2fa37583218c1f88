"""The numbers that kernels see: NumPy's scalars, with the operators of compiled code.

By NumPy's own rules ``a[i] * 0.1`` would be rounded to single precision, the sum of two bools would be a bool, and an unsigned
element minus a greater constant would wrap around: silently, and unlike on a GPU.

Operators of real numbers are the compiled core's where there is one, which asks `_general` for what it leaves to Python.
"""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable
from typing import Any

import numpy as np

from ...._native import core
from ...work_items import this_thread
from .conversions import to_integer

ARITHMETIC = "add", "sub", "mul", "truediv", "floordiv", "mod", "pow"
SHIFTS = "lshift", "rshift"
BITWISE = "and", "or", "xor"
DIVISIONS = "truediv", "floordiv", "mod"
EQUALITY = "eq", "ne"
ORDER = "lt", "le", "gt", "ge"

_INTEGERS = "biu"
#: Above this exponent powers of integers are computed as floats.
_LONG_POWER = 0x10000
#: The bits of the amount of a shift that compiled code looks at: PTX's instructions take it in 32 bits.
_AMOUNT = 0xFFFFFFFF
_LOWEST = int(np.iinfo(np.int64).min)
#: What NumPy's floats and Python's have in common, but for division by zero.
_SIGNS = {"add": "+", "sub": "-", "mul": "*", "truediv": "/"}
#: A method of floats with Python's operator in its source: a call of `operator.add` would take longer than it. In float32 the
#: result is rounded twice, which changes nothing: first to more than twice the digits.
_OF_FLOATS = """
def method(self, other):
    try:
        return makers[type(other)]({})
    except (KeyError, ZeroDivisionError):
        return general(self, other)
"""
_PYTHON: dict[type, Any] = {bool: np.bool_, int: np.int64, float: np.float64, complex: np.complex128}


def result(name: str, left: Any, right: Any) -> Any:
    """The NumPy type of an operator's result for operands of two NumPy types; None: compilers refuse it.

    =============  =========================================  ================================================
    operator       integers                                   floats and complex numbers among them
    =============  =========================================  ================================================
    ``+ - *``      int64; uint64 if both are unsigned         as NumPy arrays: float32 with float32, bool, 8-bit
                                                              integers or int16 stays float32; float16 with
                                                              float16, bool or int8 stays float16
    ``// %``       the same                                   the same, of floats; float16 counts as float32
    ``/``          float64                                    as ``+``
    ``**``         as ``+``                                   as ``//``, but float32 to an integer is float32
    ``<< >>``      int64; uint64 if the left one is unsigned  none
    ``& | ^``      as ``+``; bool for two bools               none
    comparisons    bool, of the exact values                  bool, in the type of ``+``; order: not for complex
    =============  =========================================  ================================================

    Python's own numbers count as int64, float64 and complex128.
    """
    kinds = np.dtype(left).kind + np.dtype(right).kind
    if name in EQUALITY or (name in ORDER and "c" not in kinds):
        return np.bool_
    if set(kinds) <= set(_INTEGERS):
        if name in BITWISE and kinds == "bb":
            return np.bool_
        if name == "truediv":
            return np.float64
        return np.uint64 if kinds == "uu" or (name in SHIFTS and kinds[0] == "u") else np.int64
    if name not in ARITHMETIC or ("c" in kinds and name in ("floordiv", "mod")):
        return None
    if name in ("floordiv", "mod", "pow"):
        left, right = (np.float32 if each is np.float16 else each for each in (left, right))
    if name == "pow" and left is np.float32 and kinds[1] in _INTEGERS:
        return np.float32
    wider: dict[Any, Any] = {np.uint16: np.uint32}
    if np.float16 in (left, right):
        wider[np.uint8] = np.int16  # numba has no safe conversion of it to float16
    return np.result_type(*(wider.get(each, each) for each in (left, right))).type


class Bool(int):
    """A bool whose ``~`` negates it; for Python's own, ``~True`` is -2."""

    __slots__ = ()
    native, base = np.bool_, int

    def __repr__(self) -> str:
        return "True" if self else "False"

    def __reduce__(self) -> Any:
        return bool, (int(self),)

    def __invert__(self) -> Any:
        return _truth(not self)


_TRUE, _FALSE = Bool(1), Bool(0)


def _truth(value: Any) -> Bool:
    return _TRUE if value else _FALSE


def _number(native: Any) -> Any:
    """The class of kernel numbers for a NumPy type; integers of all widths compute with 64 bits.

    It has one base class, as NumPy crashes when it converts a scalar with several.
    """
    kind = np.dtype(native).kind
    base = {"i": np.int64, "u": np.uint64}.get(kind, native)
    found: Any = None
    if core is not None and native in _COMPILED:
        found = core.number_class(
            native.__name__, base, _COMPILED[native], result("add", native, np.float32) is np.float32
        )
    if found is None:
        found = type(native.__name__, (base,), {"__slots__": ()})
        _IN_PYTHON.add(found)
    found.__name__, found.native, found.base = native.__name__, native, base  # by that name errors tell of it
    found.__repr__ = base.__str__  # as a tuple of them is printed by devices
    for part in "real", "imag":
        setattr(found, part, property(_of_part(getattr(base, part))))
    for method in "conjugate", "__round__":
        if hasattr(base, method):  # complex numbers are not rounded
            setattr(found, method, _of_method(getattr(base, method)))
    return found


def _general(name: str, left: Any, right: Any) -> Any:
    """Apply an operator of two operands, at least one of a compiled class, by the methods that Python would call."""
    for own, other, method in ((left, right, f"__{name}__"), (right, left, f"__r{name}__")):
        function = _METHODS.get((type(own), method))
        found = NotImplemented if function is None else function(own, other)
        if found is not NotImplemented:
            return found
    return NotImplemented


#: Methods that a compiled class leaves to Python, by class and name.
_METHODS: dict[tuple[type, str], Any] = {}
#: The classes whose operators are all methods in Python.
_IN_PYTHON: set[type] = set()
_LEFT_TO_PYTHON = {"__pow__", "__rpow__", "__pos__", "__invert__"}
#: The NumPy types whose operators the compiled core has, and what it calls them: 1 signed, 2 unsigned, 3 float32, 4 float64.
_COMPILED: dict[Any, int] = {np.float32: 3, np.float64: 4}
_COMPILED |= {np.dtype(f"{sign}int{bits}").type: 1 + bool(sign) for bits in (8, 16, 32, 64) for sign in ("", "u")}
if core is not None:
    core.number_results(_general, _FALSE, _TRUE)


def _of_part(part: Any) -> Callable[[Any], Any]:
    return lambda self: kernel_number(part.__get__(self))


def _of_method(method: Any) -> Callable[..., Any]:
    return lambda self, *options: kernel_number(method(self, *options))


#: Constructors of kernel numbers by NumPy type. Other types, such as float128, stay as they are.
TYPES: dict[Any, Any] = {np.bool_: _truth}
for _width in "8", "16", "32", "64":
    for _name in f"int{_width}", f"uint{_width}":
        TYPES[getattr(np, _name)] = _number(getattr(np, _name))
for _name in "float16", "float32", "float64", "complex64", "complex128":
    TYPES[getattr(np, _name)] = _number(getattr(np, _name))

_UINT64 = TYPES[np.uint64]
_CLASSES: set[Any] = {Bool, *TYPES.values()} - {_truth}
#: Classes of numbers that any array of numbers can store: kernel numbers that are not complex, Python's, NumPy's.
REAL: frozenset[Any] = frozenset(
    {
        *(kind for kind in _CLASSES if np.dtype(kind.native).kind != "c"),
        *(bool, int, float, np.bool_),
        *(np.dtype(code).type for code in "bBhHiIlLqQefdg"),
    }
)
#: The bools and integers among them.
INTEGRAL: frozenset[Any] = frozenset(kind for kind in REAL if issubclass(kind, int | np.integer | np.bool_))


def kernel_number(value: Any) -> Any:
    """A number of Python's or NumPy's as a kernel number; any other value unchanged."""
    kind = type(value)
    native = numpy_type(kind)
    if native is None or kind in _CLASSES:
        return value
    if kind is native:
        value = value.item()  # constructing from a Python number takes half the time
    try:
        return TYPES[native](value)
    except OverflowError:  # a constant that needs all 64 bits
        return _UINT64(value)


def _numpy_type(kind: type) -> Any:
    if kind in _CLASSES:
        return kind.native  # type: ignore[attr-defined]  # all of `_CLASSES` have one
    if issubclass(kind, np.generic):
        native = np.dtype(kind).type if issubclass(kind, np.number | np.bool_) else None
        return next((each for each in TYPES if native is not None and np.dtype(each) == native), None)
    return next((native for python, native in _PYTHON.items() if issubclass(kind, python)), None)


#: The NumPy type for a class of numbers; None for other classes.
numpy_type: Callable[[Any], Any] = functools.cache(_numpy_type)


def numpy_number(value: Any) -> Any:
    """A kernel number as a plain NumPy number; any other value unchanged."""
    native = numpy_type(type(value))
    try:
        return value if native is None else native(value)
    except OverflowError:
        return np.uint64(value)


def _power(base: Any, exponent: Any) -> Any:
    """The power, as numba's `int_power_impl` computes it where the exponent is an integer."""
    if isinstance(exponent, int):
        return _product(base, exponent)
    if not isinstance(base, np.integer):
        return base**exponent
    if abs(int(exponent)) > _LONG_POWER and base:
        return base.dtype.type(to_integer(np.float64(base) ** np.float64(exponent), base.dtype))
    if exponent >= 0:
        return base**exponent
    # The fraction is truncated, and what has no value is the lowest integer.
    return base ** (exponent & 1) if base in (1, -1) else np.int64(0 if base else _LOWEST)


def _product(base: Any, exponent: int) -> Any:
    """The power of a float, by squares."""
    count = abs(exponent)
    if count > _LONG_POWER:
        return np.float64(base) ** np.float64(exponent)
    found = type(base)(1)
    while count:
        if count & 1:
            found *= base
        count >>= 1
        base *= base
    return 1.0 / found if exponent < 0 else found


def _shifted(shift: Callable[[Any, Any], Any]) -> Callable[[Any, Any], Any]:
    return lambda value, amount: shift(value, type(amount)(int(amount) & _AMOUNT))


def _quotient(x: Any, y: Any) -> Any:
    """The quotient of integers, rounded down; 0 where no int64 holds it, as of numba's `int_divmod`."""
    return np.int64(0) if isinstance(x, np.integer) and y == -1 and x == _LOWEST else x // y


#: The operators of integers that are not NumPy's.
_OF_INTEGERS: dict[str, Callable[[Any, Any], Any]] = {
    "pow": _power,
    "floordiv": _quotient,
    "lshift": _shifted(operator.lshift),
    "rshift": _shifted(operator.rshift),
}


def _case(name: str, mine: Any, kind: type, reflected: bool) -> tuple[Any, Any]:
    """Constructor of the result for the other operand's type, None if refused; and the type to convert both to first, or None."""
    other = numpy_type(kind)
    left, right = (other, mine.native) if reflected else (mine.native, other)
    if other is None and issubclass(kind, np.generic):  # such as float128: NumPy's own rules
        return kernel_number, numpy_number
    found = None if other is None else result(name, left, right)
    if found is None:
        return None, None
    cast = found
    if name in EQUALITY + ORDER:
        cast = result("add", left, right)
        if np.dtype(cast).kind in _INTEGERS:
            return _truth, int  # Python compares ints of any width
    # NumPy's own operator gives the same result, faster.
    same = cast is mine.base and (issubclass(kind, mine.base) or kind in (int, float, complex))
    exact = name in _OF_INTEGERS and np.dtype(found).kind in _INTEGERS
    if cast is np.float64 and name in ("add", "sub", "mul"):
        cast = float  # the same arithmetic, twice as fast, and none of it raises
    elif name == "pow" and np.dtype(found).kind == "f" and np.dtype(right).kind in _INTEGERS:
        return TYPES[found], lambda each: int(each) if isinstance(each, int | np.integer) else cast(each)
    return TYPES[found], None if same and not exact else cast


def _binary(mine: Any, name: str, reflected: bool = False) -> Callable[[Any, Any], Any]:
    operation = _OF_INTEGERS.get(name) or getattr(operator, f"__{name}__")
    direct = getattr(mine.base, f"__{'r' if reflected else ''}{name}__")
    divides, shifts = name in DIVISIONS, name in SHIFTS and not reflected
    cases: dict[type, tuple[Any, Any]] = {}
    makers: dict[type, Any] = {}  # of `cases`, those whose result is a float

    def method(self: Any, other: Any) -> Any:
        try:
            make, cast = cases[type(other)]
        except KeyError:
            make, cast = cases[type(other)] = _case(name, mine, type(other), reflected)
            if make in (TYPES[np.float32], TYPES[np.float64]):
                makers[type(other)] = make
        if make is None:
            return NotImplemented
        if divides and not (self if reflected else other) and (item := this_thread.item) is not None and item.debug:
            raise ZeroDivisionError("division by zero")
        if shifts and type(other) is int:
            other &= _AMOUNT
        try:
            if cast is None:
                return make(direct(self, other))
            if reflected:
                return make(operation(cast(other), cast(self)))
            return make(operation(cast(self), cast(other)))
        except OverflowError:
            if type(other) is not int:
                raise
        unsigned = _UINT64(other)  # as compilers take a constant that needs all 64 bits
        return operation(unsigned, self) if reflected else operation(self, unsigned)

    if name not in _SIGNS or not issubclass(mine.base, np.floating):
        return method
    values: dict[str, Any] = {"__name__": __name__, "makers": makers, "general": method}
    operands = "float(other)", "float(self)"
    exec(_OF_FLOATS.format(f" {_SIGNS[name]} ".join(operands if reflected else operands[::-1])), values)
    return values["method"]  # type: ignore[no-any-return]


def _unary(mine: Any, name: str) -> Callable[[Any], Any]:
    # Compiled, an integer is negated and inverted in its own width, and widened then: minus an uint8 of 1 is 255.
    native = mine.native
    direct, make = getattr(native, f"__{name}__"), TYPES[mine.base]
    return lambda self: make(direct(native(self)))


def _absolute(self: Any) -> Any:
    return kernel_number(abs(self.native(self)))  # the one operator that keeps the width of integers


def _bool_operator(name: str) -> Callable[[Any, Any], Any]:
    direct, as_integer = getattr(int, f"__{name}__"), _bool_arithmetic(f"__{name}__")

    def method(self: Any, other: Any) -> Any:
        if name in BITWISE and not isinstance(other, bool | Bool):
            return as_integer(self, other)
        found = direct(self, other)
        return as_integer(self, other) if found is NotImplemented else _truth(found)

    return method


def _bool_arithmetic(method: str) -> Callable[..., Any]:
    """Make a method that computes with a bool as an integer of 64 bits; other numbers of kernels do it themselves."""

    def compute(self: Any, *others: Any) -> Any:
        if not all(isinstance(other, int) or type(other) in _PYTHON for other in others):
            return NotImplemented
        operands = [int(other) if isinstance(other, int) else other for other in others]
        return getattr(TYPES[np.int64](int(self)), method)(*operands)

    return compute


def _array_ufunc(self: Any, ufunc: np.ufunc, method: str, *inputs: Any, **options: Any) -> Any:
    """NumPy functions get NumPy numbers; results become kernel numbers. Operators with NumPy on the left come here too."""
    if ufunc in _UFUNCS and method == "__call__" and not options:
        operands = [kernel_number(each) for each in inputs]
        if all(type(each) in _CLASSES for each in operands):
            return _UFUNCS[ufunc](*operands)
    found = getattr(ufunc, method)(*map(numpy_number, inputs), **options)
    return tuple(map(kernel_number, found)) if isinstance(found, tuple) else kernel_number(found)


def _selection(ufunc: np.ufunc) -> Callable[[Any, Any], Any]:
    """A function that selects one of two numbers: compiled, of two that are equal the first, which shows by the sign of zero."""

    def select(one: Any, other: Any) -> Any:
        return kernel_number(ufunc(numpy_number(one), numpy_number(one if one == other else other)))

    return select


def _divmod(self: Any, other: Any) -> Any:
    natives = numpy_type(type(self)), numpy_type(type(other))
    kinds = {np.dtype(each).kind for each in natives if each is not None}
    if np.uint64 in natives and "i" in kinds:
        common: Any = np.float64  # numba chooses among divmod() of two int64, two uint64 and two float64
    elif kinds == {"b", "u"}:
        common = np.uint64
    else:
        return self // other, self % other
    self, other = TYPES[common](self), TYPES[common](other)
    return self // other, self % other


def _rdivmod(self: Any, other: Any) -> Any:
    return _divmod(kernel_number(other), self)


for _name in ARITHMETIC + SHIFTS + ("divmod",):
    for _method in f"__{_name}__", f"__r{_name}__":
        setattr(Bool, _method, _bool_arithmetic(_method))
for _name in "neg", "pos", "round":
    setattr(Bool, f"__{_name}__", _bool_arithmetic(f"__{_name}__"))
Bool.__abs__ = lambda self: TYPES[np.int8](int(self))  # type: ignore[method-assign]  # the type that numba gives it
for _name in BITWISE + EQUALITY + ORDER:
    setattr(Bool, f"__{_name}__", _bool_operator(_name))
for _name in BITWISE:  # the order of the operands does not matter
    setattr(Bool, f"__r{_name}__", getattr(Bool, f"__{_name}__"))
for _native, _kind in TYPES.items():
    if _native is np.bool_:
        continue
    _methods: dict[str, Any] = {
        f"__{_name}__": _binary(_kind, _name) for _name in ARITHMETIC + SHIFTS + BITWISE + EQUALITY + ORDER
    }
    for _name in ARITHMETIC + SHIFTS + BITWISE:
        _methods[f"__r{_name}__"] = _binary(_kind, _name, reflected=True)
    for _name in ("neg", "pos", "invert") if np.dtype(_native).kind in _INTEGERS else ("neg", "pos"):
        _methods[f"__{_name}__"] = _unary(_kind, _name)
    for _name, _method in _methods.items():
        narrow = _name == "__neg__" and _native is not _kind.base
        if _kind in _IN_PYTHON or _name in _LEFT_TO_PYTHON or narrow:
            setattr(_kind, _name, _method)
        else:
            _METHODS[_kind, _name] = _method
    _kind.__abs__, _kind.__divmod__, _kind.__rdivmod__ = _absolute, _divmod, _rdivmod
for _kind in _CLASSES:
    _kind.__array_ufunc__ = _array_ufunc

_UFUNCS: dict[np.ufunc, Any] = {
    np.add: operator.add,
    np.subtract: operator.sub,
    np.multiply: operator.mul,
    np.true_divide: operator.truediv,
    np.floor_divide: operator.floordiv,
    np.remainder: operator.mod,
    np.power: operator.pow,
    np.left_shift: operator.lshift,
    np.right_shift: operator.rshift,
    np.bitwise_and: operator.and_,
    np.bitwise_or: operator.or_,
    np.bitwise_xor: operator.xor,
    np.equal: operator.eq,
    np.not_equal: operator.ne,
    np.less: operator.lt,
    np.less_equal: operator.le,
    np.greater: operator.gt,
    np.greater_equal: operator.ge,
}
_UFUNCS |= {each: _selection(each) for each in (np.maximum, np.minimum, np.fmax, np.fmin)}
