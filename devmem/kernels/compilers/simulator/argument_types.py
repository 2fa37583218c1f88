"""The types of arguments and signatures, as far as the simulator checks one against the other."""

from __future__ import annotations

import enum
import re
from dataclasses import dataclass
from typing import Any

import numpy as np

from ...._core.arrays.ndarray import DeviceRecord
from ...._core.base.layout import is_contiguous
from ...array_layout import type_text
from .numbers import kernel_number

#: Numba's type names that differ from NumPy's.
NAMES = {
    "boolean": "bool",
    "bool_": "bool",
    "int_": "int64",
    "uint": "uint64",
    "float_": "float64",
    "double": "float64",
}
NAMES |= {"intc": "int32", "uintc": "uint32", "byte": "uint8", "char": "int8", "f4": "float32", "f8": "float64"}

#: The kinds of numbers that are converted to a declared kind, whatever their widths.
CONVERTIBLE = {"b": "b", "i": "biu", "u": "biu", "f": "biuf", "c": "biufc"}


@dataclass(frozen=True, slots=True)
class ArrayType:
    """An array: ``layout`` is C or F if it is contiguous in that order, else A."""

    dtype: np.dtype[Any]
    ndim: int
    layout: str

    def __str__(self) -> str:
        return type_text(self.dtype, self.ndim, self.layout)

    def accepts(self, given: object) -> bool:
        """Whether an argument of the other type can be passed as this one."""
        if not isinstance(given, ArrayType) or (given.dtype, given.ndim) != (self.dtype, self.ndim):
            return False
        return self.layout in ("A", given.layout) or (self.ndim < 2 and given.layout != "A")


@dataclass(frozen=True, slots=True)
class ScalarType:
    """A number."""

    dtype: np.dtype[Any]

    def __str__(self) -> str:
        return str(self.dtype)

    def accepts(self, given: object) -> bool:
        """Whether an argument of the other type can be converted to this one; as in compilers, not to a narrower kind."""
        if not isinstance(given, ScalarType):
            return False
        return given == self or given.dtype.kind in CONVERTIBLE.get(self.dtype.kind, "")

    def convert(self, value: Any) -> Any:
        """The value as a kernel number of this type; conversions wrap, as on a device."""
        with np.errstate(all="ignore"):
            return kernel_number(np.asarray(value).astype(self.dtype)[()])


@dataclass(frozen=True, slots=True)
class RecordType:
    """One record."""

    dtype: np.dtype[Any]

    def __str__(self) -> str:
        return f"record {self.dtype}"

    def accepts(self, given: object) -> bool:
        """Whether it is a record with the same fields."""
        return given == self


@dataclass(frozen=True, slots=True)
class TupleType:
    """A tuple of numbers, arrays, records, or tuples of them; ``kind`` is the class, if it is a named tuple."""

    parts: tuple[Type, ...]
    kind: type = tuple

    def __str__(self) -> str:
        return f"({', '.join(map(str, self.parts))})"

    def accepts(self, given: object) -> bool:
        """Whether the other has as many parts, and each can be converted."""
        if not isinstance(given, TupleType) or (len(given.parts), given.kind) != (len(self.parts), self.kind):
            return False
        return all(part.accepts(other) for part, other in zip(self.parts, given.parts, strict=True))


@dataclass(frozen=True, slots=True)
class EnumType:
    """A member of an enumeration, which kernels compare."""

    kind: type[enum.Enum]

    def __str__(self) -> str:
        return self.kind.__name__

    def accepts(self, given: object) -> bool:
        """Whether it is a member of the same enumeration."""
        return given == self


Type = ArrayType | ScalarType | RecordType | TupleType | EnumType

_BOOL, _INT, _UINT, _FLOAT, _COMPLEX = (ScalarType(np.dtype(name)) for name in ("?", "i8", "u8", "f8", "c16"))


def type_of(argument: object) -> Type:
    """The type of an argument of a launch; TypeError if no kernel takes it."""
    if isinstance(argument, bool):
        return _BOOL
    if isinstance(argument, int):
        if not -(1 << 63) <= argument < 1 << 64:
            raise TypeError(f"{argument} is no argument for a kernel: it does not fit in 64 bits")
        return _INT if argument < 1 << 63 else _UINT
    if isinstance(argument, float) and not isinstance(argument, np.generic):
        return _FLOAT
    if isinstance(argument, complex) and not isinstance(argument, np.generic):
        return _COMPLEX
    if isinstance(argument, np.void):
        return RecordType(argument.dtype)
    if isinstance(argument, np.generic):
        return ScalarType(argument.dtype)
    if isinstance(argument, enum.Enum):
        return EnumType(type(argument))
    if isinstance(argument, tuple):
        return TupleType(tuple(map(type_of, argument)), type(argument))
    return _type_of_memory(argument)


def parse_signature(signature: str) -> tuple[Type, ...]:
    """The types of a signature such as ``void(float32[::1], int64)``; TypeError if it is invalid."""
    found = re.fullmatch(r"\s*(?:void|none)?\s*\((.*)\)\s*", signature, re.DOTALL)
    if found is None:
        raise TypeError(f"{signature!r} is no signature of a kernel: write void(float32[::1], int64)")
    return tuple(_parse(part, signature) for part in _parts(found[1]))


def parse_device_signature(signature: str) -> tuple[tuple[Type | None, ...], Type | None]:
    """The types of a device function's arguments and of its result; None for what is no number and no array."""
    text, depth, at = signature.strip(), 1, -1
    while depth and text.endswith(")") and -at < len(text):  # up to the parenthesis that opens the arguments
        at -= 1
        depth += (text[at] == ")") - (text[at] == "(")
    if depth:
        raise TypeError(f"{signature!r} is no signature of a device function: write float32(float32, int64[:])")
    return tuple(_parse_any(part, signature) for part in _parts(text[at + 1 : -1])), _parse_any(text[:at], signature)


def _parts(arguments: str) -> list[str]:
    """The arguments of a signature: split at commas outside of brackets and parentheses."""
    depth, found = 0, [""]
    for letter in arguments:
        depth += (letter in "[(") - (letter in "])")
        if letter == "," and not depth:
            found.append("")
        else:
            found[-1] += letter
    return [part.strip() for part in found if part.strip()]


def _parse_any(text: str, signature: str) -> Type | None:
    try:
        return _parse(text, signature)
    except TypeError:
        return None


def _parse(text: str, signature: str) -> Type:
    if text.startswith("CPointer("):
        raise TypeError(
            f"{text} in {signature!r}: the simulator takes no addresses, whose lengths it cannot know: declare an array, "
            f"{text[9:-1]}[:], and pass one"
        )
    if (made := re.fullmatch(r"(Uni)?Tuple\((.*)\)", text, re.DOTALL)) is not None:
        parts = _parts(made[2] if made[1] else made[2].strip().removeprefix("(").removesuffix(")"))
        if made[1]:
            parts = parts[:1] * int(parts[1])
        return TupleType(tuple(_parse(part, signature) for part in parts))
    found = re.fullmatch(r"(\w+)\s*(?:\[([\s:,1]*)\])?", text)
    try:
        dtype = np.dtype(NAMES.get(found[1], found[1])) if found else None
    except TypeError:
        dtype = None
    if found is None or dtype is None or dtype.hasobject:
        raise TypeError(f"{text!r} in {signature!r} is no type: write types such as float32, int64[:], float64[:, ::1]")
    if found[2] is None:
        return ScalarType(dtype)
    axes = [axis.replace(" ", "") for axis in found[2].split(",")]
    steady = [number for number, axis in enumerate(axes) if axis == "::1"]
    if any(axis not in (":", "::1") for axis in axes) or len(steady) > 1 or not {*steady} <= {0, len(axes) - 1}:
        raise TypeError(f"{text!r} in {signature!r}: one axis, the last or the first, may be ::1, and the others are :")
    layout = "A" if not steady else "C" if steady[0] == len(axes) - 1 else "F"
    return ArrayType(dtype, len(axes), layout)


def _type_of_memory(argument: Any) -> Type:
    """The type of a device array or record; a record is a `DeviceRecord`, or an object without a shape."""
    try:
        dtype, _ = argument.dtype, argument.ptr
    except AttributeError:
        raise TypeError(
            f"{type(argument).__name__} is no argument for a kernel: those are arrays, records, numbers and tuples of them"
        ) from None
    shape = None if isinstance(argument, DeviceRecord) else getattr(argument, "shape", None)
    if shape is None:
        return RecordType(dtype)
    contiguous = [order for order in "CF" if is_contiguous(shape, argument.strides, dtype.itemsize, order)]
    return ArrayType(dtype, len(shape), contiguous[0] if contiguous else "A")
