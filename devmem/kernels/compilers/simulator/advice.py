"""Advice for kernels that do what no compiler takes, or what is nearly always a mistake."""

from __future__ import annotations

import re
from typing import Any

import numpy as np

from ...names import Position
from .conversions import stored

#: For negative indices.
NEGATIVE = (
    ": compiled code counts from the end; if that is intended, write a[a.size - 1], or a[(i - 1) % n], or set "
    "DEVMEM_SIM_NEGATIVE=wrap"
)
#: For arrays in shared memory.
STATIC = "no GPU has that much for a block: most have 48 KiB for constant shapes, AMD's have 64 KiB"

#: The kinds of dtypes that an atomic operation takes, where these are not integers and floats.
ATOMIC_KINDS = {"cas": "iu", "and_": "iu", "or_": "iu", "xor": "iu", "inc": "u", "dec": "u"}

#: For operations on whole arrays.
WHOLE = (
    "kernels compute with elements, not with arrays or their rows: index along every axis, a[i] + b[i], or write a loop"
)
#: For exceptions, by patterns of their text.
_EXCEPTIONS = (
    (r"'\w*float\w*' object cannot be interpreted as an integer", "divide with //"),
    (
        r"cannot unpack non-iterable int",
        "devmem.grid(1) is a number; write x, y = devmem.grid(2) or x, y, z = devmem.grid(3)",
    ),
    (
        r"instances of '(tuple' and '\w*int\w*|\w*int\w*' and 'tuple)'",
        "devmem.grid(2) is a tuple: x, y = devmem.grid(2)",
    ),
    (r"'array in a kernel'", WHOLE),
    (r"^(Shared|Local)\.array\(\) missing", "write devmem.shared.array(shape, dtype)"),
    (r"element with a sequence", "an element takes one number"),
)


def on_exception(error: BaseException) -> str:
    """The advice to append to the text of an exception that a kernel raised; empty if there is none."""
    text = str(error)
    if isinstance(error, TypeError | ValueError):
        for pattern, told in _EXCEPTIONS:
            if re.search(pattern, text):
                return f": {told}"
    return ""


def on_index(index: Any) -> str:
    """Advice for an invalid index."""
    if isinstance(index, Position):
        return f": write {index.name}.x"
    return ": divide with //, or take int() of it" if isinstance(index, float | np.floating) else ""


def on_field(name: object, dtype: np.dtype[Any]) -> str:
    """The message for a missing field of a record."""
    return f"there is no field {name!r} in the record: it has {', '.join(dtype.names or ())}"


def against_storing(value: Any, dtype: np.dtype[Any]) -> str | None:
    """Why no compiler stores a value in an element of this dtype; None if one may."""
    if value is None:
        return "None is stored, which is no number: does a device function return nothing on some path?"
    if isinstance(value, str | bytes):
        return None if dtype.kind in "SU" else f"the text {value!r} is stored, which is no number"
    if dtype.kind in "iuf" and (isinstance(value, complex) or getattr(value, "dtype", dtype).kind == "c"):
        return "a complex number is stored in a real element: write value.real, or abs(value)"
    return None


def against_atomic(operation: str, dtype: np.dtype[Any], operands: tuple[Any, ...]) -> str | None:
    """Why no device does an atomic operation on this dtype, or not the intended one; None if one may."""
    kinds = ATOMIC_KINDS.get(operation, "iuf")
    if dtype.kind not in kinds or dtype.itemsize not in (4, 8):
        which = {"u": "unsigned integers", "iu": "integers", "iuf": "integers or floats"}[kinds]
        return f"devices have no atomic.{operation} for {dtype}: use {which} of 32 or 64 bits"
    for each in operands:
        if (why := against_storing(each, dtype)) is not None:
            return why
        if dtype.kind in "iu" and isinstance(each, float | np.floating) and not float(each).is_integer():
            return (
                f"compiled code truncates {each} to {stored(each, dtype)} before atomic.{operation}, as the array is of "
                f"integers"
            )
    return None
