"""devmem's names in numba-cuda's own simulator (``NUMBA_ENABLE_CUDASIM=1``), where each thread of a block is a Python thread."""

from __future__ import annotations

import sys
import threading
from typing import Any

import numpy as np
from numba.cuda.simulator import kernel as simulator
from numba.cuda.simulator.kernelapi import FakeCUDAModule

from ....spi.errors import UnsupportedError
from ...work_items import Dim3, WorkItem, this_thread


class SimulatedThread:
    """A thread of numba's simulator as a `WorkItem`."""

    debug = False  # numba's simulator checks divisions itself

    def __init__(self, thread: simulator.BlockThread, launch: FakeCUDAModule) -> None:
        self.runner = thread
        self.launch = launch
        self.thread = Dim3(*thread.threadIdx)
        self.block = Dim3(*thread.blockIdx)
        self.block_dim = Dim3(*launch.blockDim)
        self.grid_dim = Dim3(*launch.gridDim)
        sizes = [blocks * threads for blocks, threads in zip(self.grid_dim, self.block_dim, strict=True)]
        self.work_dim = max([axis for axis, size in enumerate(sizes, 1) if size > 1], default=1)
        self.wave_size: int = launch.warpsize
        self.lane: int = thread.thread_id % self.wave_size

    def barrier(self, scope: int) -> None:
        """Call numba's barrier."""
        self.runner.syncthreads()

    def wave_barrier(self) -> None:
        """Wait for the whole block: the simulator has no smaller barrier."""
        self.runner.syncthreads()

    def grid_barrier(self) -> None:
        """Raise UnsupportedError: blocks run one after the other."""
        raise UnsupportedError("numba's simulator has no barrier of the grid: use devmem's, on the host backend")

    def call(self, name: str, arguments: tuple[Any, ...]) -> Any:
        """Call numba's function."""
        return getattr(self.launch, name)(*arguments)

    def fence(self, scope: int) -> None:
        """Do nothing: Python threads see each other's writes."""

    def shared_array(self, shape: Any, dtype: Any) -> Any:
        """The array for the calling line of the kernel. Numba's own method takes the line of its caller, which is in devmem."""
        if shape == 0:
            return self.launch.shared.array(0, np.dtype(dtype))
        frame = sys._getframe(1)
        while frame.f_back is not None and frame.f_globals.get("__name__", "").startswith("devmem."):
            frame = frame.f_back
        place = frame.f_code.co_filename, frame.f_lineno
        arrays = self.launch.shared._allocations
        # In one step: threads of the block come here together.
        return arrays[place] if place in arrays else arrays.setdefault(place, np.empty(shape, dtype))

    def local_array(self, shape: Any, dtype: Any) -> Any:
        """An array of this thread alone."""
        return np.empty(shape, dtype)

    def const_array(self, ary: Any) -> Any:
        """The array itself."""
        return ary

    def atomic(self, operation: str, ary: Any, index: Any, *operands: Any) -> Any:
        """Call numba's operation."""
        return getattr(self.launch.atomic, operation)(ary, index, *operands)


def find() -> WorkItem | None:
    """The work-item of this thread, if the simulator runs it; it is stored for later lookups."""
    thread = threading.current_thread()
    if not isinstance(thread, simulator.BlockThread):
        return None
    this_thread.item = SimulatedThread(thread, simulator._get_kernel_context())
    return this_thread.item
