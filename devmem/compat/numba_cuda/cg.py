"""numba.cuda.cg: cooperative groups. Only the simulator has them, as compilers would have to link code for them."""

from __future__ import annotations

from ...kernels.names import GridGroup, this_grid

__all__ = ["GridGroup", "this_grid"]
