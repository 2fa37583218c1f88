"""Atomic operations. Operands are checked and converted before the lock is taken; nothing is called while it is held."""

from __future__ import annotations

import operator
from typing import Any

import numpy as np
import numpy.typing as npt

from ....toolkit.locks import Rank, lock
from . import advice
from .conversions import stored
from .numbers import INTEGRAL, REAL
from .reports import Misuse

#: The range of each integer type that devices have atomic operations for.
_LIMITS = {
    kind: (int(np.iinfo(kind).min), int(np.iinfo(kind).max)) for kind in (np.dtype(code).type for code in "iIlLqQ")
}
#: By the type of the elements: classes of operands that need no check, for operations on integers, and for the others.
_INTEGERS: dict[Any, frozenset[Any]] = dict.fromkeys(_LIMITS, INTEGRAL)
_NUMBERS = _INTEGERS | dict.fromkeys((np.float32, np.float64), REAL)
#: Operations on unsigned integers alone are checked each time.
_UNCHECKED = {"u": {}, "iu": _INTEGERS, "iuf": _NUMBERS}

# Around every atomic operation of every launch: two streams may work on the same array.
_lock = lock("simulator atomics", Rank.LEAF)


def converted(operation: str, array: object, dtype: np.dtype[Any], operands: tuple[Any, ...]) -> tuple[Any, ...]:
    """The operands of an operation as NumPy numbers of the array's dtype.

    Raises
    ------
    Misuse
        No device has the operation for this dtype, or it would do something other than intended.
    """
    native = dtype.type
    limits = _LIMITS.get(native)
    kinds = advice.ATOMIC_KINDS.get(operation, "iuf")
    if limits is not None and len(operands) == 1 and dtype.kind in kinds:
        value = operands[0]
        if type(value) is int and limits[0] <= value <= limits[1]:  # the common case
            return (native(value),)
    fit = _UNCHECKED[kinds].get(native)
    if fit is None or not fit.issuperset(map(type, operands)):
        why = advice.against_atomic(operation, dtype, operands)
        if why is not None:
            raise Misuse("misuse", f"{why} (in {array!r})")
    if limits is None:
        return tuple([native(each) for each in operands])
    return tuple([native(operator.index(stored(each, dtype))) for each in operands])


def exchange(data: npt.NDArray[Any], key: tuple[int, ...], operation: str, operands: tuple[Any, ...]) -> Any:
    """Do an operation on an element, with operands of its type; return the old value.

    CPython switches threads only at calls and loops, and there are none while the lock is held. A switch there would make other
    threads queue for the lock, and a queue persists: each operation would then cost two thread switches, ten times its own time.
    For the same reason no plain store of another thread is lost between the read and the write.
    """
    value = operands[0]
    with _lock:
        before = data[key]
        if operation == "add":
            data[key] = before + value
        elif operation == "sub":
            data[key] = before - value
        elif operation == "exch":
            data[key] = value
        elif operation == "and_":
            data[key] = before & value
        elif operation == "or_":
            data[key] = before | value
        elif operation == "xor":
            data[key] = before ^ value
        elif operation == "inc":
            data[key] = 0 if before >= value else before + 1
        elif operation == "dec":
            data[key] = value if before == 0 or before > value else before - 1
        elif operation == "nanmax":
            if value > before or before != before:
                data[key] = value
        elif operation == "nanmin":
            if value < before or before != before:
                data[key] = value
        elif operation == "cas":
            if before == value:
                data[key] = operands[1]
        elif operation == "max":
            if value > before:  # as compiled, a NaN on either side leaves the element
                data[key] = value
        elif value < before:
            data[key] = value
    return before
