"""numba.cuda.libdevice: NVIDIA's library of functions for kernels, compiled by numba-cuda and computed by the simulator."""

from __future__ import annotations

from ...kernels.compilers.simulator.libdevice import FUNCTIONS
from .device_functions import CudaFunction

__all__ = sorted(FUNCTIONS)

globals().update((name, CudaFunction(f"libdevice.{name}")) for name in FUNCTIONS)
