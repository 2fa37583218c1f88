"""Calling the runtime through ctypes: needs no package, releases the GIL, and costs the least."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from typing import Any

from .finder import Library
from .functions import (
    FUNCTIONS,
    IPC_HANDLE_BYTES,
    NOT_READY,
    POINTER_BYTES,
    PROPERTIES_BYTES,
    TEXT_BYTES,
    UUID_BYTES,
    Fail,
)


class _Handle(ctypes.Structure):
    _fields_ = (("reserved", ctypes.c_char * IPC_HANDLE_BYTES),)


_TAKEN: dict[str, Any] = {
    "p": ctypes.c_void_p,
    "n": ctypes.c_size_t,
    "i": ctypes.c_int,
    "u": ctypes.c_uint,
    "b": ctypes.c_ubyte,
    "s": ctypes.c_ushort,
    "e": ctypes.c_int,
    "h": _Handle,
    "q": ctypes.c_void_p,
}
_GIVEN: dict[str, Any] = {
    "P": ctypes.c_size_t,  # not c_void_p, whose value is None for NULL
    "N": ctypes.c_size_t,
    "I": ctypes.c_int,
    "F": ctypes.c_float,
    "Q": ctypes.c_uint64,
    "T": ctypes.c_char * TEXT_BYTES,
    "U": ctypes.c_ubyte * UUID_BYTES,
    "H": ctypes.c_ubyte * IPC_HANDLE_BYTES,
    "D": ctypes.c_ubyte * PROPERTIES_BYTES,
    "A": ctypes.c_ubyte * POINTER_BYTES,
}


class ByCtypes:
    """The runtime as it is."""

    name = "ctypes"
    version = f"ctypes {getattr(ctypes, '__version__', '')}"
    holds_gil = False

    def __init__(self, library: Library) -> None:
        self.library = library

    def has(self, function: str) -> bool:
        """Whether the runtime exports it."""
        return self.library.exports(function)

    def bind(self, function: str, fail: Fail) -> Callable[..., Any]:
        """A function of the table, checked."""
        spec = FUNCTIONS[function]
        raw = self.library.handle[function]  # a new object each time, so its types are this call's alone
        raw.argtypes = [kind for letter in spec.rstrip("?") for kind in _types(letter)]
        given = [letter for letter in spec if letter.isupper()]
        if spec.endswith("?"):
            return _question(function, raw, fail)
        if not given:
            return _plain(function, raw, fail) if "h" not in spec and "q" not in spec else _any(function, raw, fail)
        if given == [spec[0]] and spec[0] in "PNIF" and "h" not in spec:
            return _one_result(function, raw, fail, _GIVEN[spec[0]])
        return _any(function, raw, fail)

    def member(self, enum: str, value: int) -> Any:
        """Itself: C does not mind."""
        return value

    def describe(self, code: int) -> tuple[str, str]:
        """As the runtime says."""
        return self._text("hipGetErrorName", code) or str(code), self._text("hipGetErrorString", code)

    def _text(self, function: str, code: int) -> str:
        ask = self.library.handle[function]
        ask.restype = ctypes.c_char_p
        return (ask(ctypes.c_int(code)) or b"").decode(errors="replace")


def _types(letter: str) -> tuple[Any, ...]:
    if letter.isupper():
        return (ctypes.c_void_p, ctypes.c_int) if letter == "T" else (ctypes.c_void_p,)
    return (_TAKEN[letter],)


def _plain(function: str, raw: Any, fail: Fail) -> Callable[..., None]:
    def call(*args: Any) -> None:
        code = raw(*args)
        if code:
            fail(function, code)

    return call


def _question(function: str, raw: Any, fail: Fail) -> Callable[..., bool]:
    def call(*args: Any) -> bool:
        code = raw(*args)
        if code and code != NOT_READY:
            fail(function, code)
        return not code

    return call


def _one_result(function: str, raw: Any, fail: Fail, kind: Any) -> Callable[..., Any]:
    byref = ctypes.byref

    def call(*args: Any) -> Any:
        out = kind()
        code = raw(byref(out), *args)
        if code:
            fail(function, code)
        return out.value

    return call


def _any(function: str, raw: Any, fail: Fail) -> Callable[..., Any]:
    spec = FUNCTIONS[function]

    def call(*args: Any) -> Any:
        left, outs = list(args), []
        passed: list[Any] = []
        for letter in spec:
            if letter.isupper():
                outs.append((letter, _GIVEN[letter]()))
                passed.append(ctypes.byref(outs[-1][1]))
                passed += [TEXT_BYTES] if letter == "T" else []
            elif letter == "h":
                passed.append(_Handle.from_buffer_copy(left.pop(0)))
            elif letter == "q":
                passed.append(ctypes.byref(ctypes.c_uint64(left.pop(0))))
            else:
                passed.append(left.pop(0))
        code = raw(*passed)
        if code:
            fail(function, code)
        found = tuple(_value(letter, out) for letter, out in outs)
        return found[0] if len(found) == 1 else found or None

    return call


def _value(letter: str, out: Any) -> Any:
    if letter == "T":
        return out.value.decode(errors="replace")
    return bytes(out) if letter in "UHDA" else out.value
