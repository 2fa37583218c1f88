"""Calling the runtime through AMD's binding: hip-python 10 (`rocm.bindings.hip`) or 7 (`hip.hip`).

What the two do differently, and what both do that C does not, is known here and nowhere else.
"""

from __future__ import annotations

import importlib
import re
from collections.abc import Callable
from typing import Any

from ...spi.errors import BackendUnavailable, UnsupportedError
from .by_ctypes import ByCtypes
from .finder import Library
from .functions import FUNCTIONS, NOT_READY, WAITING, Fail

#: How a binding reports a status that its enum has not got: by not returning it.
_UNKNOWN_STATUS = re.compile(r"(-?\d+) is not a valid (?:\w+\.)*hipError_t")
#: Arguments and results that each series hands out in a way of its own: structs, text, untyped memory. Functions that have one
#: are called without the binding, in the same library; it is asked for what is numbers only.
_SHAPED = frozenset("TDUHhAQq")
#: And so are these, because of what a binding makes of them.
_DIRECT = frozenset(
    {
        "hipMemcpyBatchAsync",  # outputs where inputs belong
        # Addresses of text, of code and of arguments, for which each series has types of its own.
        "hipModuleLoadData",
        "hipModuleGetFunction",
        "hipModuleLaunchKernel",
        "hipModuleUnload",  # which may wait
        "hipThreadExchangeStreamCaptureMode",  # one argument that comes and goes
        "hipStreamIsCapturing",  # of a failed call, that wrote no output, it makes an enum's member: the status is lost
    }
)


class ByBinding:
    """A binding over the library that was found."""

    def __init__(self, name: str, library: Library) -> None:
        self.name = name
        self.library = library
        self.holds_gil = name == "hip"
        self.module: Any = importlib.import_module("rocm.bindings.hip" if name == "rocm" else "hip.hip")
        self.version = f"hip-python {_version(name)}"
        shaped = {name for name, spec in FUNCTIONS.items() if _SHAPED.intersection(spec)}
        self.direct = shaped | _DIRECT | (WAITING if self.holds_gil else frozenset())
        if not _point_at(name, library.path):
            raise BackendUnavailable(
                f"{self.version} cannot be pointed at {library.path}: it has changed inside; "
                f"set DEVMEM_ROC_PROVIDER=ctypes, or leave it at auto"
            )

    def has(self, function: str) -> bool:
        """Whether it can be called; asking does not call it, as the call of a missing one would load or raise."""
        return (function in self.direct or hasattr(self.module, function)) and self.library.exports(function)

    def bind(self, function: str, fail: Fail) -> Callable[..., Any]:
        """A function of the table, checked."""
        if function in self.direct:
            return ByCtypes(self.library).bind(function, fail)
        spec, raw = FUNCTIONS[function], getattr(self.module, function)
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
    try:
        raise error
    finally:
        del error  # or its traceback and this frame would keep each other


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
