"""Loading code objects."""

from __future__ import annotations

import ctypes

from ...toolkit.driver_parts import DriverState
from ...toolkit.module_loader import ModuleLoader


def kernel_loader(state: DriverState) -> ModuleLoader:
    """The loader of a device; the runtime takes code and names by address."""

    def load_module(image: bytes) -> int:
        code = ctypes.create_string_buffer(image)
        return int(state.functions.ModuleLoadData(ctypes.addressof(code)))

    def find_function(module: int, name: str) -> int:
        text = ctypes.create_string_buffer(name.encode())
        return int(state.functions.ModuleGetFunction(module, ctypes.addressof(text)))

    return ModuleLoader(state, load_module, find_function, "ModuleLaunchKernel")
