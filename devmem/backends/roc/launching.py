"""Code that a kernel compiler made: loading it, and launching."""

from __future__ import annotations

import ctypes
from contextlib import suppress

from ...spi.errors import BackendError, UnsupportedError
from ...spi.types import Extent
from .extras import Extras
from .functions import INVALID_HANDLE, NOT_SUPPORTED
from .runtime import Runtime


class Launching(Extras):
    """Functions are known by the runtime's own handles; it crashes on those that are gone, so they are remembered."""

    def __init__(self, found: Runtime, ordinal: int) -> None:
        super().__init__(found, ordinal)
        #: The module of each function, to be unloaded with it.
        self.modules: dict[int, int] = {}

    def load(self, image: bytes, name: str) -> int:
        """Load a code object."""
        code, text = ctypes.create_string_buffer(image), ctypes.create_string_buffer(name.encode())
        try:
            module: int = self.hip.hipModuleLoadData(ctypes.addressof(code))
        except BackendError as error:
            if error.code != NOT_SUPPORTED:
                raise
            raise UnsupportedError(
                f"this HIP runtime loads no kernels, as the emulated one of `devmem emulate` does not: {error}; without a GPU, "
                f"kernels run in the simulator, DEVMEM_BACKEND=host"
            ) from error
        try:
            function: int = self.hip.hipModuleGetFunction(module, ctypes.addressof(text))
        except BaseException:
            with suppress(BackendError):
                self.hip.hipModuleUnload(module)  # the error to be told is the one above
            raise
        self.modules[function] = module
        return function

    def unload(self, function: int) -> None:
        """Unload the function's module."""
        self._check_function("hipModuleUnload", function)
        self.hip.hipModuleUnload(self.modules.pop(function))

    def launch(self, function: int, grid: Extent, block: Extent, shared_bytes: int, stream: int, params: int) -> None:
        """Enqueue a function; the runtime copies its arguments before it returns."""
        self._check_function("hipModuleLaunchKernel", function)
        self.hip.hipModuleLaunchKernel(function, *grid, *block, shared_bytes, self.streams[stream], params, 0)

    def _check_function(self, call: str, function: int) -> None:
        if function not in self.modules:
            self.refuse(call, INVALID_HANDLE, f"{function:#x} is no function of this device, or was unloaded")
