"""What all blocks of a simulated launch share."""

from __future__ import annotations

from collections.abc import Callable
from types import CodeType
from typing import Any

import numpy as np

from ...._core.base.simulation import Simulation
from ....spi.types import Extent
from ...work_items import Dim3
from .kernel_arrays import CONST, Checked, checked
from .lost_updates import Updates
from .reports import Site

#: Constant arrays by the place in the kernel; the code is kept so that no other code gets its id.
Constants = dict[Site, tuple[Checked, CodeType]]


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
    ) -> None:
        self.function = function
        self.arguments: tuple[object, ...] = ()
        self.grid_dim, self.block_dim = Dim3(*grid), Dim3(*block)
        self.work_dim = max((axis + 1 for axis in range(3) if grid[axis] * block[axis] > 1), default=1)
        self.shared_bytes = shared_bytes
        self.simulation = simulation
        self.updates = Updates() if simulation.watches else None
        self._constants = constants

    def constant(self, site: Site, code: CodeType, array: Any) -> Checked:
        """A copy of a host array for a place in the kernel, made when it is first asked for: as if it had been compiled in."""
        found = self._constants.get(site)
        if found is None:
            data = np.array(array)
            data.flags.writeable = False
            found = self._constants.setdefault(site, (checked(data, CONST), code))
        return found[0]
