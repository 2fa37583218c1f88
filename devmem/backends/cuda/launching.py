"""Code that a kernel compiler made: loading it, and launching."""

from __future__ import annotations

import threading
from contextlib import suppress
from typing import Any

from cuda.bindings import driver as binding

from ...spi.errors import BackendError, UnsupportedError
from ...spi.types import Extent
from .calls import Calls
from .library import code_of, cu, name_of

#: CUDA_ERROR_UNSUPPORTED_PTX_VERSION and CUDA_ERROR_NOT_SUPPORTED.
TOO_NEW, NOT_SUPPORTED = 222, 801
LOG_BYTES = 8192
# Called as it is, because a frame more would be felt.
_launch = binding.cuLaunchKernel


class Launching(Calls):
    """Functions are known by the driver's own handles; the module of each is kept to be unloaded with it."""

    def __init__(self, ordinal: int) -> None:
        super().__init__(ordinal)
        self.functions: dict[int, Any] = {}
        self.modules: dict[int, Any] = {}
        #: The most dynamic shared memory that functions were told of. With what they declare themselves it may need telling long
        #: before it is much.
        self.shared: dict[int, int] = {}
        self._sharing = threading.Lock()

    def load(self, image: bytes, name: str) -> int:
        """Load PTX or a cubin; what the driver's own compiler said of it is told where it refuses."""
        log, options = bytearray(LOG_BYTES), cu.CUjit_option
        asked = [options.CU_JIT_ERROR_LOG_BUFFER, options.CU_JIT_ERROR_LOG_BUFFER_SIZE_BYTES]
        error, module = cu.cuModuleLoadDataEx(image, len(asked), asked, [log, len(log)])
        if error:
            self._refused(error, log)
        try:
            function = self.check("cuModuleGetFunction", cu.cuModuleGetFunction(module, name.encode()))
        except BaseException:
            with suppress(BackendError):
                cu.cuModuleUnload(module)  # the error to be told is the one above
            raise
        handle = int(function)
        self.functions[handle], self.modules[handle] = function, module
        return handle

    def unload(self, function: int) -> None:
        """Unload the function's module."""
        module = self.modules.pop(function)
        self.functions.pop(function)
        self.shared.pop(function, None)
        self.check("cuModuleUnload", cu.cuModuleUnload(module))

    def unload_all(self) -> None:
        """Unload what was not: the context may outlive this driver."""
        for function in list(self.modules):
            self.unload(function)

    def launch(self, function: int, grid: Extent, block: Extent, shared_bytes: int, stream: int, params: int) -> None:
        """Enqueue a function; the driver copies its arguments before it returns."""
        known = self.functions[function]
        if shared_bytes and shared_bytes > self.shared.get(function, 0):
            self._announce(function, shared_bytes)
        try:
            (error,) = _launch(known, *grid, *block, shared_bytes, self.streams[stream], params, 0)
        except ValueError as unknown:
            error = code_of(unknown)
        if error:
            self.fail("cuLaunchKernel", error)

    def _announce(self, function: int, shared_bytes: int) -> None:
        """Tell the driver how much dynamic shared memory a function is launched with; it must not hear of less later."""
        with self._sharing:
            if shared_bytes <= self.shared.get(function, 0):
                return
            most = cu.CUfunction_attribute.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
            try:
                self.check("cuFuncSetAttribute", cu.cuFuncSetAttribute(self.functions[function], most, shared_bytes))
            except BackendError as error:
                error.add_note(
                    f"{shared_bytes} bytes of dynamic shared memory are more than a block of this function can have here, "
                    f"beside what it declares itself: ask for less"
                )
                raise
            self.shared[function] = shared_bytes

    def _refused(self, error: Any, log: bytearray) -> None:
        said = log.partition(b"\0")[0].decode(errors="replace").strip()
        if int(error) == NOT_SUPPORTED:
            raise UnsupportedError(
                f"this driver loads no kernels, as the emulated one of `devmem emulate` does not: cuModuleLoadDataEx says "
                f"{name_of(error)}; without a GPU, kernels run in the simulator, DEVMEM_BACKEND=host"
            )
        try:
            self.fail("cuModuleLoadDataEx", error)
        except BackendError as refused:
            if int(error) == TOO_NEW:
                refused.add_note("the compiler is of a newer CUDA than the driver: update the driver")
            if said:
                refused.add_note(said)
            raise
