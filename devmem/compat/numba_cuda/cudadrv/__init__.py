"""numba.cuda's ``cudadrv`` modules, under their names there, for code that imports from them."""

from . import devicearray, devices, driver, dummyarray, error, runtime

__all__ = ["devicearray", "devices", "driver", "dummyarray", "error", "runtime"]
