"""Compiled code on a device: loading a module, finding its function, and unloading it.

A kernel compiler hands over an image with one function. The loader loads the image as a module, finds the function, and keeps
both under the function's handle; `ModuleLoader.unload` unloads the module. Handles that are not live are refused, because some
vendors' libraries crash on them.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import Any, NoReturn

from ..spi.errors import BackendError, UnsupportedError
from .driver_state import DriverState, Part
from .status_errors import INVALID_HANDLE, NOT_SUPPORTED


class ModuleLoader(Part):
    """Loaded functions.

    Parameters
    ----------
    state : DriverState
    load_module : callable
        Load an image: the vendor's module.
    find_function : callable
        The vendor's function in a module, by its name.

    Attributes
    ----------
    functions : dict
        The vendor's function of each live handle. A handle that is not live raises BackendError.
    """

    def __init__(
        self, state: DriverState, load_module: Callable[[bytes], Any], find_function: Callable[[Any, str], Any]
    ) -> None:
        super().__init__(state)
        self._load_module = load_module
        self._find_function = find_function
        self._modules: dict[int, Any] = {}
        self.functions: dict[int, Any] = _Functions(state.errors.refuse)

    def load(self, image: bytes, name: str) -> int:
        try:
            module = self._load_module(image)
        except BackendError as error:
            if error.code != NOT_SUPPORTED:
                raise
            raise UnsupportedError(
                f"this driver loads no kernels, as the emulated one of `devmem emulate` does not: {error}; without a GPU, "
                f"kernels run in the simulator, DEVMEM_BACKEND=host"
            ) from error
        try:
            function = self._find_function(module, name)
        except BaseException:
            with suppress(BackendError):  # the error above is the one to be raised
                self._functions.ModuleUnload(module)
            raise
        handle = int(function)
        self.functions[handle], self._modules[handle] = function, module
        return handle

    def unload(self, function: int) -> None:
        self.functions[function]
        del self.functions[function]
        self._functions.ModuleUnload(self._modules.pop(function))


class _Functions(dict[int, Any]):
    def __init__(self, refuse: Callable[[str, int, str], NoReturn]) -> None:
        self.refuse = refuse

    def __missing__(self, function: int) -> NoReturn:
        self.refuse("launch", INVALID_HANDLE, f"{function:#x} is no function of this device, or was unloaded")
