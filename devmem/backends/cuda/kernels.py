"""Loading PTX and cubins, and launching their functions."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

from cuda.bindings import driver as cu

from ...spi.errors import BackendError
from ...spi.sizes import exact_size
from ...spi.types import Extent
from ...toolkit.driver_parts import DriverState
from ...toolkit.locks import Rank, lock
from ...toolkit.module_loader import ModuleLoader
from ...toolkit.vendor_functions import VendorFunctions
from .binding import code_of

#: CUDA_ERROR_UNSUPPORTED_PTX_VERSION.
TOO_NEW = 222
LOG_BYTES = 8192
_MOST_SHARED = cu.CUfunction_attribute.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
# Called as it is: a checked call would cost a frame in every launch.
_launch = cu.cuLaunchKernel


class Kernels(ModuleLoader):
    """Loaded functions."""

    def __init__(self, state: DriverState) -> None:
        super().__init__(
            state,
            partial(_load_module, state.functions),
            lambda module, name: state.functions.ModuleGetFunction(module, name.encode()),
        )
        #: The most dynamic shared memory that the driver was told of, for each function.
        self._shared: dict[int, int] = {}
        self._shared_lock = lock("sizes of shared memory", Rank.WITHIN_DRIVER)

    def unload(self, function: int) -> None:
        self._shared.pop(function, None)
        super().unload(function)

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
        known = self.functions[function]
        if shared_bytes and shared_bytes > self._shared.get(function, 0):
            self._allow_shared(function, shared_bytes)
        try:
            (error,) = _launch(known, *grid, *block, shared_bytes, self._streams[stream], params, 0)
        except ValueError as unknown:
            error = code_of(unknown)
        if error:
            self._errors.fail("cuLaunchKernel", int(error))

    def _allow_shared(self, function: int, shared_bytes: int) -> None:
        """Tell the driver how much dynamic shared memory a function is launched with, and never of less than before.

        With what the function declares itself, even a little may be more than the driver allows without being told.
        """
        with self._shared_lock:
            if shared_bytes <= self._shared.get(function, 0):
                return
            try:
                self._functions.FuncSetAttribute(self.functions[function], _MOST_SHARED, shared_bytes)
            except BackendError as error:
                error.add_note(
                    f"{exact_size(shared_bytes)} of dynamic shared memory are more than a block of this function can have here, "
                    f"beside what it declares itself: ask for less"
                )
                raise
            self._shared[function] = shared_bytes


def _load_module(functions: VendorFunctions, made: list[Any], image: bytes) -> None:
    """Load a module; a refusal carries what the driver's own compiler said."""
    log, options = bytearray(LOG_BYTES), cu.CUjit_option
    asked = [options.CU_JIT_ERROR_LOG_BUFFER, options.CU_JIT_ERROR_LOG_BUFFER_SIZE_BYTES]
    try:
        functions.recorded.ModuleLoadDataEx(made, image, len(asked), asked, [log, len(log)])
    except BackendError as error:
        if error.code == TOO_NEW:
            error.add_note("the compiler is of a newer CUDA than the driver: update the driver")
        if said := log.partition(b"\0")[0].decode(errors="replace").strip():
            error.add_note(said)
        raise
