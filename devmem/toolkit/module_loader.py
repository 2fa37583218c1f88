"""Compiled code on a device: loading a module, finding its function, and unloading it.

The loader loads an image, which has one function, as a module, finds the function, and keeps both under the function's handle
until `ModuleLoader.unload`. It refuses handles that are not live: some vendors' libraries crash on them. ``launch`` is the name
of the vendor's function for launching; a backend whose launch does more overrides the method.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any

from ..spi.errors import BackendError, LayoutError, UnsupportedError
from ..spi.types import Extent
from .driver_parts import DriverState, Part
from .handles import Handles
from .vendor_functions import NOT_SUPPORTED


class ModuleLoader(Part):
    """Loaded functions; ``load_module`` takes a list for the module and an image, ``find_function`` a module and a name.

    ``most_threads``: how many the runtime takes along one axis of a grid.
    """

    def __init__(
        self,
        state: DriverState,
        load_module: Callable[[list[Any], bytes], object],
        find_function: Callable[[Any, str], Any],
        launch: str = "LaunchKernel",
        most_threads: float = math.inf,
    ) -> None:
        super().__init__(state)
        self._most_threads = most_threads
        self._load_module, self._find_function, self._launch = load_module, find_function, launch
        self._modules: dict[int, Any] = {}
        self.functions: Handles[Any] = Handles(int, refuse=state.errors.refuse, what="function", foreign=False)

    def load(self, image: bytes, name: str) -> int:
        made: list[Any] = []
        try:
            self._load_module(made, image)
            found = self._find_function(made[0], name)
            [self._modules[int(found)]] = made
            return self.functions.add(found)
        except BaseException as error:
            for module in made:
                with suppress(BackendError):  # the error above is the one to be raised
                    self._functions.ModuleUnload(module)
            if made or not isinstance(error, BackendError) or error.code != NOT_SUPPORTED:
                raise
            raise UnsupportedError(
                f"this driver loads no kernels, as the emulated one of `devmem emulate` does not: {error}; without a GPU, "
                f"kernels run in the simulator, DEVMEM_BACKEND=host"
            ) from error

    def launch(
        self,
        function: int,
        grid: Extent,
        block: Extent,
        shared_bytes: int,
        stream: int,
        params: int,
        sizes: Sequence[int],
    ) -> None:
        known, on = self.functions[function], self._streams[stream]
        if max(grid[0] * block[0], grid[1] * block[1], grid[2] * block[2]) > self._most_threads:
            raise LayoutError(
                f"a grid of {grid} blocks of {block} threads: this runtime takes at most {self._most_threads} threads along an "
                f"axis; launch fewer blocks, and let each thread do more"
            )
        getattr(self._functions, self._launch)(known, *grid, *block, shared_bytes, on, params, 0)

    def unload(self, function: int) -> None:
        self.functions.take(function)
        self._functions.ModuleUnload(self._modules.pop(function))
