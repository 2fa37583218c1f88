"""What to write instead, where a kernel does what no compiler takes, or what is nearly always a mistake."""

from __future__ import annotations

import re
from typing import Any

import numpy as np

from ...names import Position

#: Of an index below 0.
NEGATIVE = (
    ": compiled code counts from the end there, which is nearly always a mistake in a kernel; where it is meant, write "
    "a[a.size - 1], or a[(i - 1) % n]"
)
#: Of arrays in shared memory.
STATIC = "no GPU has so much for a block: on most 48 KiB can be had by constant shapes, and on AMD's 64"

#: Of what is done to an array as a whole.
WHOLE = (
    "kernels compute with elements, not with arrays or their rows: index along every axis, a[i] + b[i], or write a loop"
)
#: Of exceptions, by their text.
_EXCEPTIONS = (
    (r"'\w*float\w*' object cannot be interpreted as an integer", "divide with //"),
    (
        r"cannot unpack non-iterable int",
        "devmem.grid(1) is a number; there are x, y = devmem.grid(2) and x, y, z = devmem.grid(3)",
    ),
    (
        r"instances of '(tuple' and '\w*int\w*|\w*int\w*' and 'tuple)'",
        "devmem.grid(2) is a tuple, x, y = devmem.grid(2)",
    ),
    (r"'array in a kernel'", WHOLE),
    (r"^(Shared|Local)\.array\(\) missing", "write devmem.shared.array(shape, dtype)"),
    (r"element with a sequence", "an element takes one number"),
)


def on_exception(error: BaseException) -> str:
    """What to append to the text of an exception that a kernel raised: nothing, where it says enough."""
    text = str(error)
    if isinstance(error, TypeError | ValueError):
        for pattern, told in _EXCEPTIONS:
            if re.search(pattern, text):
                return f": {told}"
    return ""


def on_index(index: Any) -> str:
    """What to write in place of an index that is none."""
    if isinstance(index, Position):
        return f": write {index.name}.x"
    return ": divide with //, or take int() of it" if isinstance(index, float | np.floating) else ""


def on_field(name: object, dtype: np.dtype[Any]) -> str:
    """That a record has no such field, and which it has."""
    return f"there is no field {name!r} in the record: there are {', '.join(dtype.names or ())}"


def against_storing(value: Any, dtype: np.dtype[Any]) -> str | None:
    """Why no compiler stores a value in an element of a type; None if one may."""
    if value is None:
        return "None is stored, which is no number: has a device function returned nothing on some path?"
    if isinstance(value, str | bytes):
        return None if dtype.kind in "SU" else f"the text {value!r} is stored, which is no number"
    if dtype.kind in "iuf" and (isinstance(value, complex) or getattr(value, "dtype", dtype).kind == "c"):
        return "a complex number is stored where there is room for a real one: write value.real, or abs(value)"
    return None


def against_atomic(operation: str, dtype: np.dtype[Any], operands: tuple[Any, ...]) -> str | None:
    """Why no device does an atomic operation on an element of a type, or another one than is meant; None if one may do it."""
    kinds = "iu" if operation == "cas" else "iuf"
    if dtype.kind not in kinds or dtype.itemsize not in (4, 8):
        floats = "" if operation == "cas" else " or floats"
        return f"devices have no atomic.{operation} for {dtype}: take integers{floats} of 32 or 64 bits"
    for each in operands:
        if (why := against_storing(each, dtype)) is not None:
            return why
        if dtype.kind in "iu" and isinstance(each, float | np.floating) and not float(each).is_integer():
            return f"compiled code cuts {each} to {_cut(each)} before atomic.{operation}, for the array is of integers"
    return None


def _cut(value: Any) -> str:
    return str(int(value)) if np.isfinite(value) else "any integer"
