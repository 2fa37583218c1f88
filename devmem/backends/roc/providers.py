"""The ways to call the HIP runtime: through ctypes, or through one of AMD's bindings."""

# Decision: docs/adr/0008-hip-through-three-providers.md
from __future__ import annotations

import ctypes
import importlib
from collections.abc import Callable
from functools import partial
from typing import Any, Protocol

from ...spi.errors import BackendUnavailable, UnsupportedError
from ...toolkit import ctypes_functions
from ...toolkit.libraries import Library
from ...toolkit.memory import IPC_HANDLE_BYTES
from ...toolkit.vendor_functions import Fail, checked, checked_query, unknown_status
from .functions import FUNCTIONS, POINTER_BYTES, PROPERTIES_BYTES, TEXT_BYTES, UUID_BYTES

#: Structs, text and buffers, which each series hands out in a way of its own. Functions that have one are called through ctypes,
#: in the same library, as those marked ``*`` are; a binding is asked for what is numbers only.
_SHAPED = frozenset("TDUHhAm*")


class Provider(Protocol):
    """One way to call the runtime. All have the same surface: integers (and bytes, and text) in and out."""

    name: str
    version: str
    #: Whether other Python threads stand still during its calls; functions that may wait are then called without it.
    holds_gil: bool

    def has(self, function: str) -> bool:
        """Whether the runtime has a function, in a form that can be called."""

    def bind(self, function: str, fail: Fail, recorded: bool = False) -> Callable[..., Any]:
        """A function that takes the small letters, and gives the capitals: one as it is, several as a tuple.

        Or in the form of `devmem.toolkit.vendor_functions.recorded`.
        """

    def member(self, enum: str, value: int) -> Any:
        """A member of an enum as the provider wants it; ValueError if it does not know the number."""

    def describe(self, code: int) -> tuple[str, str]:
        """The name of a status, and the runtime's sentence on it."""


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
    """The runtime through ctypes: needs no package, releases the GIL, and costs the least."""

    name = "ctypes"
    version = f"ctypes {getattr(ctypes, '__version__', '')}"
    holds_gil = False

    def __init__(self, library: Library) -> None:
        self.library = library

    def has(self, function: str) -> bool:
        return self.library.exports(function)

    def bind(self, function: str, fail: Fail, recorded: bool = False) -> Callable[..., Any]:
        return ctypes_functions.bind(function, self.library.handle, FUNCTIONS[function], fail, TYPES, recorded)

    def member(self, enum: str, value: int) -> Any:
        return value  # C takes any int

    def describe(self, code: int) -> tuple[str, str]:
        return self._text("hipGetErrorName", code) or str(code), self._text("hipGetErrorString", code)

    def _text(self, function: str, code: int) -> str:
        ask = self.library.handle[function]
        ask.restype = ctypes.c_char_p
        return (ask(ctypes.c_int(code)) or b"").decode(errors="replace")


class HipPython:
    """The runtime through AMD's binding: hip-python 10 (`rocm.bindings.hip`) or 7 (`hip.hip`).

    The differences between the two, and between both and C, are known in this class and its helpers alone.
    """

    def __init__(self, name: str, library: Library) -> None:
        self.name = name
        self.library = library
        self.holds_gil = name == "hip"
        self.module: Any = importlib.import_module("rocm.bindings.hip" if name == "rocm" else "hip.hip")
        version = importlib.import_module("rocm.version" if name == "rocm" else "hip._version")
        self.version = f"hip-python {version.__version__}"
        by_ctypes = _SHAPED | {"!"} if self.holds_gil else _SHAPED
        self.direct = {function for function, spec in FUNCTIONS.items() if by_ctypes.intersection(spec)}
        if not _point_at(name, library.path):
            raise BackendUnavailable(
                f"{self.version} cannot be pointed at {library.path}: it has changed inside; "
                f"set DEVMEM_ROC_PROVIDER=ctypes, or leave it at auto"
            )

    def has(self, function: str) -> bool:
        # It is not called to find out, as the call of a missing one would load a library, or raise.
        return (function in self.direct or hasattr(self.module, function)) and self.library.exports(function)

    def bind(self, function: str, fail: Fail, recorded: bool = False) -> Callable[..., Any]:
        if (
            recorded or function in self.direct
        ):  # bindings run Python behind the call, where its record could be interrupted
            return CtypesCalls(self.library).bind(function, fail, recorded)
        spec, raw, status_of = FUNCTIONS[function], getattr(self.module, function), partial(_status_of, function)
        if spec.endswith("?"):
            return checked_query(function, raw, fail, status_of)
        given = sum(letter.isupper() for letter in spec)
        convert: Callable[[Any], Any] = _integers if given > 1 else float if "F" in spec else _integer
        return checked(function, raw, fail, status_of, convert)

    def member(self, enum: str, value: int) -> Any:
        return getattr(self.module, enum)(value)

    def describe(self, code: int) -> tuple[str, str]:
        try:
            status = self.module.hipError_t(code)
            return status.name, str(self.module.hipGetErrorString(status)[-1])
        except ValueError:
            return str(code), f"{self.version} does not know this status"


def installed(name: str) -> bool:
    """Whether a binding of that series can be imported."""
    try:
        importlib.import_module("rocm.bindings.hip" if name == "rocm" else "hip.chip")
    except ImportError:
        return False
    return True


def _integer(found: Any) -> int:
    return 0 if found is None else int(found)  # a binding says None for NULL


def _integers(found: tuple[Any, ...]) -> tuple[int, ...]:
    return tuple(map(_integer, found))


def _status_of(function: str, error: Exception) -> int:
    """The status that the binding raised an error for instead of returning it."""
    if isinstance(error, RuntimeError) and "dlsym" in str(error):
        raise UnsupportedError(f"this HIP runtime has no {function}: it needs a newer ROCm ({error})") from error
    if isinstance(error, RuntimeError) and "dlopen" in str(error):
        raise BackendUnavailable(f"{function}: the HIP runtime could not be loaded ({error})") from error
    return unknown_status(error, "hipError_t")


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
    inside.get_library_path = _Search(path, getattr(search, "search", search))
    return True


class _Search:
    """Replaces the binding's search for libraries: answers for the runtime, and asks ``search`` for all others."""

    def __init__(self, path: str, search: Callable[..., bytes]) -> None:
        self.path = path
        self.search = search

    def __call__(self, shortname: str, *arguments: Any, **keywords: Any) -> bytes:
        return self.path.encode() if shortname == "amdhip64" else self.search(shortname, *arguments, **keywords)
