"""A vendor's functions as checked calls: Python values in, outputs back, `BackendError` for a status that is not success.

`VendorFunctions` binds a function at its first use and keeps it as an attribute, under its name without the vendor's prefix:
``functions.StreamSynchronize`` is ``cuStreamSynchronize`` for CUDA and ``hipStreamSynchronize`` for HIP. The vendors' functions
have mostly the same names and arguments, so a part that is written once (`devmem.toolkit.streams`) serves several vendors.

How a function is bound is the backend's affair. For Python bindings which return tuples ``(status, *outputs)``, as cuda-bindings
and hip-python do, `checked` and `checked_query` make the call.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable
from typing import Any

from .status_errors import NOT_READY

#: Called with a function's name and a status that is not success; raises.
Fail = Callable[[str, int], Any]
#: Called with what a binding raised instead of returning a status: the status, or raises.
StatusOf = Callable[[Exception], int]


class VendorFunctions:
    """The functions of one open device. ``bind`` makes the checked call of a full name, or raises `UnsupportedError`."""

    def __init__(self, prefix: str, bind: Callable[[str], Callable[..., Any]]) -> None:
        self._prefix = prefix
        self._bind = bind

    def __getattr__(self, name: str) -> Any:
        # Interned: Python's cache of attribute lookups keeps a name for each string object that it is asked for.
        call = self._bind(sys.intern(self._prefix + name))
        setattr(self, name, call)
        return call


def checked(
    name: str, call: Callable[..., Any], fail: Fail, status_of: StatusOf, convert: Callable[[Any], Any] | None = None
) -> Callable[..., Any]:
    """The function of a binding, checked: returns None, the one output, or a tuple of them; converted if there are any."""

    def checked_call(*arguments: Any) -> Any:
        try:
            result = call(*arguments)
        except (ValueError, RuntimeError) as error:
            result = (status_of(error),)
        if result[0]:
            fail(name, int(result[0]))
        if len(result) == 1:
            return None
        outputs = result[1] if len(result) == 2 else result[1:]
        return outputs if convert is None else convert(outputs)

    return checked_call


def checked_query(name: str, call: Callable[..., Any], fail: Fail, status_of: StatusOf) -> Callable[..., bool]:
    """The function of a binding that asks whether work is done: True, or False for the status "not ready"."""

    def checked_call(*arguments: Any) -> bool:
        try:
            (status,) = call(*arguments)
        except (ValueError, RuntimeError) as error:
            status = status_of(error)
        if status and int(status) != NOT_READY:
            fail(name, int(status))
        return not status

    return checked_call


def unknown_status(error: Exception, enum: str) -> int:
    """The status that a binding raises ValueError for, because its enum has no member for it; any other error is raised."""
    found = re.match(rf"(-?\d+) is not a valid (?:\w+\.)*{enum}", str(error)) if isinstance(error, ValueError) else None
    if found is None:
        try:
            raise error
        finally:
            del error  # or its traceback and this frame would keep each other
    return int(found[1])
