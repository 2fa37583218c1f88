"""The HIP runtime's functions as checked calls: one caller, by the table of `functions`."""

# Decision: docs/adr/0008-hip-through-three-providers.md
from __future__ import annotations

import ctypes
from collections.abc import Callable
from functools import partial
from typing import Any

from ...spi.errors import BackendError, UnsupportedError
from ...toolkit import ctypes_functions
from ...toolkit.libraries import Library
from ...toolkit.vendor_functions import Fail, StatusErrors, VendorFunctions
from .binding import Binding
from .functions import FUNCTIONS, STICKY, TYPES


class Runtime:
    """The loaded library, and its functions: through a binding where there is one, else through ctypes.

    ``passed_over``: why a binding that is installed is not used.
    """

    def __init__(self, library: Library, binding: Binding | None = None, passed_over: str = "") -> None:
        self.library = library
        #: Whether the runtime has a function.
        self.has = library.exports
        self.passed_over = passed_over
        self._binding = binding
        self.provider = binding.name if binding else "ctypes"
        self.version = binding.version if binding else f"ctypes {getattr(ctypes, '__version__', '')}"
        self.holds_gil = binding is not None and binding.holds_gil
        self._clear = self.bind("hipGetLastError", lambda *_: None)

    def bind(self, function: str, fail: Fail, recorded: bool = False) -> Callable[..., Any]:
        """A function that takes the small letters of its spec, and gives the capitals: one as it is, several as a tuple.

        Or in the form of `devmem.toolkit.vendor_functions.recorded`. Integers go in, and integers, bytes or text come out.
        """
        if not self.has(function):
            raise UnsupportedError(f"this HIP runtime has no {function}: it needs a newer ROCm")
        call = self._binding.bind(function, fail) if self._binding and not recorded else None
        if call is None:
            call = ctypes_functions.bind(function, self.library.handle, FUNCTIONS[function], fail, TYPES, recorded)
        return call

    def direction(self, number: int) -> Any:
        """The direction of a copy, as the functions take it."""
        return self._binding.direction(number) if self._binding else number

    def describe(self, code: int) -> tuple[str, str]:
        """The name of a status, and the runtime's sentence on it."""
        return self._text("hipGetErrorName", code) or str(code), self._text("hipGetErrorString", code)

    def errors(self) -> StatusErrors:
        """The errors of a device; other libraries that ask for the last error do not find devmem's."""
        return StatusErrors("roc", self.describe, STICKY, self._clear)

    def functions(self, errors: StatusErrors) -> VendorFunctions:
        """The runtime's functions, which raise by ``errors``."""
        bind = partial(self.bind, fail=errors.fail)
        return VendorFunctions("hip", bind, partial(bind, recorded=True))

    def count(self) -> int:
        """The number of devices."""
        return int(self.functions(self.errors()).GetDeviceCount())

    def probe(self) -> tuple[int, int]:
        """(devices, 0), or (0, status) where even that cannot be asked."""
        try:
            return self.count(), 0
        except BackendError as error:
            return 0, error.code

    def _text(self, function: str, code: int) -> str:
        ask = self.library.handle[function]
        ask.restype = ctypes.c_char_p
        return (ask(ctypes.c_int(code)) or b"").decode(errors="replace")
