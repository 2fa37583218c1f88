"""State that all blocks of a simulated launch share."""

from __future__ import annotations

from collections.abc import Callable
from types import CodeType
from typing import Any

import numpy as np

from ...._core.base.simulation import Simulation
from ....spi.types import Extent
from ...work_items import Dim3
from .kernel_arrays import CONST, KernelArray, kernel_array
from .lost_updates import UpdateLog
from .reports import MemorySite

#: Constant arrays by the place in the kernel; the code is kept so that no other code gets its id.
Constants = dict[MemorySite, tuple[KernelArray, CodeType]]


class LaunchParameters:
    """The kernel, its arguments, its grid and the settings of the simulation."""

    def __init__(
        self,
        function: Callable[..., object],
        grid: Extent,
        block: Extent,
        shared_bytes: int,
        simulation: Simulation,
        constants: Constants,
        debug: bool,
    ) -> None:
        self.function = function
        self.arguments: tuple[object, ...] = ()
        self.grid_dim, self.block_dim = Dim3(*grid), Dim3(*block)
        self.work_dim = max((axis + 1 for axis in range(3) if grid[axis] * block[axis] > 1), default=1)
        self.shared_bytes = shared_bytes
        self.simulation = simulation
        self.updates = UpdateLog() if simulation.watches else None
        self.debug = debug
        self._constants = constants

    def wait_for_grid(self) -> object:
        """Let the other blocks come to the barrier of the grid; a text says why the caller's block can never go on."""
        raise NotImplementedError

    def constant(self, site: MemorySite, code: CodeType, array: Any) -> KernelArray:
        """The copy of a host array for a call in the kernel, made at the first call, as if it were compiled in."""
        found = self._constants.get(site)
        if found is None:
            data = np.array(array)
            data.flags.writeable = False
            found = self._constants.setdefault(site, (kernel_array(data, CONST), code))
        return found[0]
