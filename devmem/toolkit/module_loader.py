"""Compiled code on a device: loading a module, finding its function, and unloading it.

The loader loads an image, which has one function, as a module, finds the function, and keeps both under the function's handle
until `ModuleLoader.unload`. It refuses handles that are not live: some vendors' libraries crash on them. ``launch`` is the name
of the vendor's function for launching; a backend whose launch does more overrides the method.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import Any

from ..spi.errors import BackendError, UnsupportedError
from ..spi.types import Extent
from .driver_parts import DriverState, Part
from .handles import Handles
from .vendor_functions import NOT_SUPPORTED


class ModuleLoader(Part):
    """Loaded functions; ``load_module`` takes an image, ``find_function`` a module and the name of its function."""

    def __init__(
        self,
        state: DriverState,
        load_module: Callable[[bytes], Any],
        find_function: Callable[[Any, str], Any],
        launch: str = "LaunchKernel",
    ) -> None:
        super().__init__(state)
        self._load_module, self._find_function, self._launch = load_module, find_function, launch
        self._modules: dict[int, Any] = {}
        self.functions: Handles[Any] = Handles(int, refuse=state.errors.refuse, what="function", foreign=False)

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
            function = self.functions.add(self._find_function(module, name))
        except BaseException:
            with suppress(BackendError):  # the error above is the one to be raised
                self._functions.ModuleUnload(module)
            raise
        self._modules[function] = module
        return function

    def launch(self, function: int, grid: Extent, block: Extent, shared_bytes: int, stream: int, params: int) -> None:
        known, on = self.functions[function], self._streams[stream]
        getattr(self._functions, self._launch)(known, *grid, *block, shared_bytes, on, params, 0)

    def unload(self, function: int) -> None:
        self.functions.take(function)
        self._functions.ModuleUnload(self._modules.pop(function))
