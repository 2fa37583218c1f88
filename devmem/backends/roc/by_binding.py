"""Calling the runtime through AMD's binding: hip-python 10 (`rocm.bindings.hip`) or 7 (`hip.hip`).

What the two do differently, and what both do that C does not, is known here and nowhere else.
"""

from __future__ import annotations

import ctypes
import importlib
import re
from collections.abc import Callable
from typing import Any

from ...spi.errors import BackendUnavailable, UnsupportedError
from .by_ctypes import ByCtypes
from .finder import Library
from .functions import FUNCTIONS, IPC_HANDLE_BYTES, NOT_READY, PROPERTIES_BYTES, TEXT_BYTES, UUID_BYTES, WAITING, Fail

#: How a binding reports a status that its enum has not got: by not returning it.
_UNKNOWN_STATUS = re.compile(r"(-?\d+) is not a valid (?:\w+\.)*hipError_t")
#: Functions that are called without the binding, in the same library, because of what it makes of them.
_DIRECT = frozenset(
    {
        "hipMemcpyBatchAsync",  # outputs where inputs belong
        "hipStreamIsCapturing",  # of a failed call, that wrote no output, it makes an enum's member: the status is lost
        "hipPointerGetAttributes",  # a struct, which each series hands out in a way of its own
    }
)
#: The symbol's suffix names the layout of its struct; the bindings always mean this one.
_LAYOUT = "R0600"


class ByBinding:
    """A binding over the library that was found."""

    def __init__(self, name: str, library: Library) -> None:
        self.name = name
        self.library = library
        self.holds_gil = name == "hip"
        self.module: Any = importlib.import_module("rocm.bindings.hip" if name == "rocm" else "hip.hip")
        self.version = f"hip-python {_version(name)}"
        self.direct = _DIRECT | WAITING if self.holds_gil else _DIRECT
        if not _point_at(name, library.path):
            raise BackendUnavailable(
                f"{self.version} cannot be pointed at {library.path}: it has changed inside; "
                f"set DEVMEM_ROC_PROVIDER=ctypes, or leave it at auto"
            )

    def has(self, function: str) -> bool:
        """Whether it can be called; asking does not call it, as the call of a missing one would load or raise."""
        callable_there = function in self.direct or hasattr(self.module, function.removesuffix(_LAYOUT))
        return callable_there and self.library.exports(function)

    def bind(self, function: str, fail: Fail) -> Callable[..., Any]:
        """A function of the table, checked."""
        if function in self.direct:
            return ByCtypes(self.library).bind(function, fail)
        spec = FUNCTIONS[function]
        raw = getattr(self.module, function.removesuffix(_LAYOUT))
        if "T" in spec:
            return _call(function, lambda *args: raw(TEXT_BYTES, *args), fail, str)
        if "D" in spec:
            asked = raw if self.name == "rocm" else self._older_properties(raw)
            return _call(function, asked, fail, lambda found: ctypes.string_at(int(found), PROPERTIES_BYTES))
        if "Q" in spec or "q" in spec:
            return _by_address(function, raw, fail)
        sizes = {"U": UUID_BYTES, "H": IPC_HANDLE_BYTES}
        for letter, size in sizes.items():
            if letter in spec:
                return _call(function, raw, fail, lambda found, size=size: ctypes.string_at(int(found), size))
        if spec.endswith("?"):
            return _question(function, raw, fail)
        given = sum(letter.isupper() for letter in spec)
        convert = {0: None, 1: float if "F" in spec else _integer}.get(given, _integers)
        return _call(function, raw, fail, convert, whole=given > 1)

    def member(self, enum: str, value: int) -> Any:
        """A member of the binding's own enum: it takes nothing else."""
        return getattr(self.module, enum)(value)

    def describe(self, code: int) -> tuple[str, str]:
        """The binding's name of a status, and the runtime's sentence on it."""
        try:
            status = self.module.hipError_t(code)
            return status.name, str(self.module.hipGetErrorString(status)[-1])
        except ValueError:
            return str(code), f"{self.version} does not know this status"

    def _older_properties(self, raw: Any) -> Callable[[int], tuple[Any, ...]]:
        def ask(device: int) -> tuple[Any, ...]:
            found = self.module.hipDeviceProp_t()
            return *raw(found, device), found

        return ask


def installed(name: str) -> bool:
    """Whether a binding of that series is there to be imported."""
    try:
        importlib.import_module("rocm.bindings.hip" if name == "rocm" else "hip.chip")
    except ImportError:
        return False
    return True


def _call(function: str, raw: Any, fail: Fail, convert: Any, whole: bool = False) -> Callable[..., Any]:
    def call(*args: Any) -> Any:
        try:
            result = raw(*args)
        except (ValueError, RuntimeError) as error:
            return _broken(function, error, fail)
        if result[0]:
            return fail(function, int(result[0]))
        return convert(result[1:] if whole else result[1]) if convert is not None else None

    return call


def _question(function: str, raw: Any, fail: Fail) -> Callable[..., bool]:
    def call(*args: Any) -> bool:
        try:
            (status,) = raw(*args)
        except (ValueError, RuntimeError) as error:
            return bool(_broken(function, error, fail))
        if status and int(status) != NOT_READY:
            fail(function, int(status))
        return not status

    return call


def _by_address(function: str, raw: Any, fail: Fail) -> Callable[..., Any]:
    """Pool attributes: 64 bits at an address, whichever way they go."""
    gives = "Q" in FUNCTIONS[function]

    def call(pool: int, attribute: Any, value: int = 0) -> int | None:
        word = ctypes.c_uint64(value)
        checked(pool, attribute, word)
        return word.value if gives else None

    checked = _call(function, raw, fail, None)
    return call


def _integer(found: Any) -> int:
    return 0 if found is None else int(found)  # a binding says None for NULL


def _integers(found: tuple[Any, ...]) -> tuple[int, ...]:
    return tuple(map(_integer, found))


def _broken(function: str, error: Exception, fail: Fail) -> Any:
    """What the binding raised instead of returning a status."""
    unknown = _UNKNOWN_STATUS.search(str(error))
    if unknown:
        return fail(function, int(unknown[1]))
    if isinstance(error, RuntimeError) and "dlsym" in str(error):
        raise UnsupportedError(f"this HIP runtime has no {function}: it needs a newer ROCm ({error})") from error
    if isinstance(error, RuntimeError) and "dlopen" in str(error):
        raise BackendUnavailable(f"{function}: the HIP runtime could not be loaded ({error})") from error
    raise error


def _point_at(name: str, path: str) -> bool:
    """Make a binding load this file at its first call; False where it has no such place any more."""
    if name == "hip":
        inside: Any = importlib.import_module("hip.chip")
        if not isinstance(getattr(inside, "DLL", None), bytes):
            return False
        inside.DLL = path.encode()
        return True
    try:
        inside = importlib.import_module("rocm.bindings.util.paths")
        search = inside.get_library_path
    except (ImportError, AttributeError):
        return False
    inside.get_library_path = _Answer(path, getattr(search, "search", search))
    return True


class _Answer:
    """Stands where the binding searches for libraries: answers for the runtime, asks on for all others."""

    def __init__(self, path: str, search: Callable[..., bytes]) -> None:
        self.path = path
        self.search = search

    def __call__(self, shortname: str, *args: Any, **keywords: Any) -> bytes:
        return self.path.encode() if shortname == "amdhip64" else self.search(shortname, *args, **keywords)


def _version(name: str) -> str:
    return str(importlib.import_module("rocm.version" if name == "rocm" else "hip._version").__version__)
