"""A vendor's C functions as checked calls through ctypes, by a table of specs: needs no package, and releases the GIL.

A spec has one letter for each argument of the C function, in its order. Small letters are given by the caller: ``p`` address or
handle, ``n`` size, ``i`` int, ``u`` unsigned, ``b`` byte, ``s`` 16 bits. Capitals come back, by address: ``P``, ``N``, ``I``, and
``F`` for float. ``m`` is an int by address that is given and comes back. A backend adds letters of its own; buffers come back as
bytes. At the end, ``?``: the function asks whether work is done, and "not ready" is False; other marks are the backend's.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Mapping
from itertools import starmap
from typing import Any

from .vendor_functions import NOT_READY, Fail

TYPES: Mapping[str, Any] = {
    "p": ctypes.c_void_p,
    "n": ctypes.c_size_t,
    "i": ctypes.c_int,
    "u": ctypes.c_uint,
    "b": ctypes.c_ubyte,
    "s": ctypes.c_ushort,
    "P": ctypes.c_size_t,  # not c_void_p, whose value is None for NULL
    "N": ctypes.c_size_t,
    "I": ctypes.c_int,
    "F": ctypes.c_float,
}


def bind(
    name: str, library: ctypes.CDLL, spec: str, fail: Fail, types: Mapping[str, Any] = TYPES, recorded: bool = False
) -> Callable[..., Any]:
    """A function that takes the small letters and returns the capitals: none, one, or a tuple.

    In the ``recorded`` form it is as `devmem.toolkit.vendor_functions.recorded` says; it has at most one output.
    """
    letters = "".join(filter(str.isalpha, spec))
    raw = library[name]  # a new object each time, so its types are this call's alone
    raw.argtypes = [ctypes.c_void_p if letter.isupper() or letter == "m" else types[letter] for letter in letters]
    outputs = [types[letter] if letter.isupper() else None for letter in letters]
    if recorded:
        return _recorded(name, raw, fail, outputs)
    if spec.endswith("?"):
        return _query(name, raw, fail)
    if letters == "m":
        return _exchange(name, raw, fail)
    if not any(outputs):
        return _plain(name, raw, fail)
    if letters[0] in "PNIF" and not any(outputs[1:]):
        return _one_result(name, raw, fail, types[letters[0]])
    return _any(name, raw, fail, outputs)


def _plain(name: str, raw: Any, fail: Fail) -> Callable[..., None]:
    def call(*arguments: Any) -> None:
        code = raw(*arguments)
        if code:
            fail(name, code)

    return call


def _query(name: str, raw: Any, fail: Fail) -> Callable[..., bool]:
    def call(*arguments: Any) -> bool:
        code = raw(*arguments)
        if code and code != NOT_READY:
            fail(name, code)
        return not code

    return call


def _exchange(name: str, raw: Any, fail: Fail) -> Callable[[int], tuple[int, int]]:
    def call(value: int) -> tuple[int, int]:
        word = ctypes.c_int(value)
        code = raw(ctypes.byref(word))
        if code:
            fail(name, code)
        return 0, word.value

    return call


def _one_result(name: str, raw: Any, fail: Fail, kind: Any) -> Callable[..., Any]:
    byref = ctypes.byref

    def call(*arguments: Any) -> Any:
        output = kind()
        code = raw(byref(output), *arguments)
        if code:
            fail(name, code)
        return output.value

    return call


def _recorded(name: str, raw: Any, fail: Fail, outputs: list[Any]) -> Callable[..., None]:
    byref = ctypes.byref
    at = next((at for at, kind in enumerate(outputs) if kind), 0)
    kind: Any = outputs[at] if outputs else None

    def call(record: list[Any], *arguments: Any) -> None:
        output, codes = kind and kind(), list[int]()
        given = (*arguments[:at], byref(output), *arguments[at:]) if kind else arguments
        try:
            codes += starmap(raw, (given,))  # stored before an interrupt can come
            if codes[0]:
                fail(name, codes[0])
        finally:
            if codes == [0]:
                record.append(output.value if kind else arguments[0])

    return call


def _any(name: str, raw: Any, fail: Fail, outputs: list[Any]) -> Callable[..., Any]:
    def call(*arguments: Any) -> Any:
        given = iter(arguments)
        made = [kind and kind() for kind in outputs]
        code = raw(*(next(given) if output is None else ctypes.byref(output) for output in made))
        if code:
            fail(name, code)
        found = [bytes(each) if isinstance(each, ctypes.Array) else each.value for each in made if each is not None]
        return found[0] if len(found) == 1 else tuple(found)

    return call
