"""AMD's Python binding of the HIP runtime: hip-python 10 (`rocm.bindings.hip`) or 7 (`hip.hip`).

The differences between the two, and between both and C, are known here alone.
"""

# Decision: docs/adr/0008-hip-through-three-providers.md
from __future__ import annotations

import importlib
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

from ...spi.errors import BackendUnavailable
from ...toolkit.vendor_functions import Fail, checked, checked_query, unknown_status
from .functions import FUNCTIONS

UPGRADE = "pip install 'devmem-arrays[rocm]'"


class Series(NamedTuple):
    """The modules with a series' functions and with its version, and how it is installed."""

    functions: str
    version: str
    install: str
    #: Whether other Python threads stand still during its calls: functions that may wait are then called through ctypes.
    holds_gil: bool


#: In the order in which they are tried.
SERIES = {
    "rocm": Series("rocm.bindings.hip", "rocm.version", UPGRADE, False),
    "hip": Series("hip.hip", "hip._version", "pip install 'hip-python>=7,<8'", True),
}


class Binding:
    """The binding of a series, made to load the library of ``path``."""

    def __init__(self, name: str, path: str) -> None:
        functions, version, install, self.holds_gil = SERIES[name]
        if not installed(name):
            raise ImportError(f"hip-python of that series is not installed: {install}")
        self.name = name
        self._module: Any = importlib.import_module(functions)
        self.version = f"hip-python {importlib.import_module(version).__version__}"
        if not _point_at(name, path):
            raise BackendUnavailable(
                f"{self.version} cannot be pointed at {path}: it has changed inside; "
                f"set DEVMEM_ROC_PROVIDER=ctypes, or leave it at auto"
            )

    def bind(self, function: str, fail: Fail) -> Callable[..., Any] | None:
        """The checked call, as `Runtime.bind` says; None where the function is called through ctypes."""
        spec, raw = FUNCTIONS[function], getattr(self._module, function, None)
        if raw is None or "+" not in spec or (self.holds_gil and "!" in spec):
            return None
        status_of = partial(unknown_status, enum="hipError_t")
        if spec.endswith("?"):
            return checked_query(function, raw, fail, status_of)
        given = sum(letter.isupper() for letter in spec)
        convert: Callable[[Any], Any] = _integers if given > 1 else float if "F" in spec else _integer
        return checked(function, raw, fail, status_of, convert)

    def direction(self, number: int) -> Any:
        """The direction of a copy, as the binding wants it."""
        return self._module.hipMemcpyKind(number)


def installed(name: str) -> bool:
    """Whether a binding of that series can be imported."""
    try:
        importlib.import_module(SERIES[name].functions)
    except ImportError:
        return False
    return True


def _integer(found: Any) -> int:
    return 0 if found is None else int(found)  # a binding says None for NULL


def _integers(found: tuple[Any, ...]) -> tuple[int, ...]:
    return tuple(map(_integer, found))


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

    def get_library_path(shortname: str, *arguments: Any, **keywords: Any) -> Any:
        return path.encode() if shortname == "amdhip64" else search(shortname, *arguments, **keywords)

    inside.get_library_path = get_library_path
    return True
