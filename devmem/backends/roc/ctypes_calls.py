"""Calling the runtime through ctypes: needs no package, releases the GIL, and costs the least."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from typing import Any

from ...toolkit import ctypes_functions
from ...toolkit.foreign_memory import IPC_HANDLE_BYTES
from ...toolkit.libraries import Library
from ...toolkit.vendor_functions import Fail
from .functions import FUNCTIONS, POINTER_BYTES, PROPERTIES_BYTES, TEXT_BYTES, UUID_BYTES


class IpcHandle(ctypes.Structure):
    """The handle of an allocation, which is given by value."""

    _fields_ = (("reserved", ctypes.c_char * IPC_HANDLE_BYTES),)


TYPES = {
    **ctypes_functions.TYPES,
    "e": ctypes.c_int,
    "h": IpcHandle,
    "T": ctypes.c_char * TEXT_BYTES,
    "U": ctypes.c_ubyte * UUID_BYTES,
    "H": ctypes.c_ubyte * IPC_HANDLE_BYTES,
    "D": ctypes.c_ubyte * PROPERTIES_BYTES,
    "A": ctypes.c_ubyte * POINTER_BYTES,
}


class CtypesCalls:
    """The runtime as it is."""

    name = "ctypes"
    version = f"ctypes {getattr(ctypes, '__version__', '')}"
    holds_gil = False

    def __init__(self, library: Library) -> None:
        self.library = library

    def has(self, function: str) -> bool:
        return self.library.exports(function)

    def bind(self, function: str, fail: Fail) -> Callable[..., Any]:
        return ctypes_functions.bind(function, self.library.handle, FUNCTIONS[function], fail, TYPES)

    def member(self, enum: str, value: int) -> Any:
        return value  # C takes any int

    def describe(self, code: int) -> tuple[str, str]:
        return self._text("hipGetErrorName", code) or str(code), self._text("hipGetErrorString", code)

    def _text(self, function: str, code: int) -> str:
        ask = self.library.handle[function]
        ask.restype = ctypes.c_char_p
        return (ask(ctypes.c_int(code)) or b"").decode(errors="replace")
