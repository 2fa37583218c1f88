"""What code reaches into: the device side of `devmem.compat.numba_cuda`, under numba.cuda's module names."""

from . import devicearray, devices, driver, dummyarray, error

__all__ = ["devicearray", "devices", "driver", "dummyarray", "error"]
