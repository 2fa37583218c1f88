"""Atomic operations: what can be looked at and converted before the lock is, and under it nothing is called."""

from __future__ import annotations

import threading
from typing import Any

import numpy as np
import numpy.typing as npt

from . import advice
from .numbers import INTEGRAL, REAL, stored
from .reports import Misuse

#: The least and the greatest of each type of integers that devices do them with.
_LIMITS = {
    kind: (int(np.iinfo(kind).min), int(np.iinfo(kind).max)) for kind in (np.dtype(code).type for code in "iIlLqQ")
}
#: By the type of the elements: classes of operands to which there is nothing to be said.
_COMPARED: dict[Any, frozenset[Any]] = dict.fromkeys(_LIMITS, INTEGRAL)
_COMBINED = _COMPARED | dict.fromkeys((np.float32, np.float64), REAL)

# Around every atomic operation of every launch: two streams may work on the same array.
_lock = threading.Lock()


def converted(operation: str, array: object, dtype: np.dtype[Any], operands: tuple[Any, ...]) -> tuple[Any, ...]:
    """The operands of an operation on an array as NumPy's numbers of the type of its elements.

    Raises
    ------
    Misuse
        No device does it, or another one than is meant.
    """
    native = dtype.type
    limits = _LIMITS.get(native)
    if limits is not None and len(operands) == 1:
        value = operands[0]
        if type(value) is int and limits[0] <= value <= limits[1]:  # as nearly always
            return (native(value),)
    fit = (_COMPARED if operation == "cas" else _COMBINED).get(native)
    if fit is None or not fit.issuperset(map(type, operands)):
        why = advice.against_atomic(operation, dtype, operands)
        if why is not None:
            raise Misuse("misuse", f"{why} (in {array!r})")
    if limits is None:
        return tuple([native(each) for each in operands])
    low, high = limits
    return tuple([native(n) if low <= (n := int(each)) <= high else _cut(each, dtype) for each in operands])


def exchange(data: npt.NDArray[Any], key: tuple[int, ...], operation: str, operands: tuple[Any, ...]) -> Any:
    """Do an operation on an element, with operands of its type; the value from before.

    CPython lets other threads run at calls and at loops, of which there are none under the lock. A thread that is held up
    while it has the lock makes the others queue for it, and a queue stays: each operation would then cost two changes of
    threads, ten times what it takes. Nor is a plain store of another thread lost between the reading and the writing.
    """
    value = operands[0]
    with _lock:
        before = data[key]
        if operation == "add":
            data[key] = before + value
        elif operation == "exch":
            data[key] = value
        elif operation == "cas":
            if before == value:
                data[key] = operands[1]
        elif operation == "max":
            if value > before or value != value:  # not a number, and that stays
                data[key] = value
        elif value < before or value != value:
            data[key] = value
    return before


def _cut(value: Any, dtype: np.dtype[Any]) -> Any:
    """A number that is none of an integer type, as that."""
    if isinstance(value, float | np.floating):
        return np.float64(value).astype(dtype)
    return dtype.type(stored(value, dtype))
