"""numba.cuda.fp16: functions of half precision. Only the simulator has them, as compilers would have to link code for them."""

from __future__ import annotations

from ...kernels.compilers.simulator.half_precision import FUNCTIONS
from .device_functions import CudaFunction

__all__ = sorted(FUNCTIONS)

globals().update((name, CudaFunction(f"fp16.{name}")) for name in FUNCTIONS)
