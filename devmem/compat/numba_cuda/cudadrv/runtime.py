"""``numba.cuda.cudadrv.runtime``: devmem calls the driver alone, so the version is the driver's."""

from __future__ import annotations

from .driver import driver


class Runtime:
    """The runtime's version, for programs that ask."""

    def get_version(self) -> tuple[int, int]:
        """(major, minor) of the CUDA version that the driver supports; (0, 0) if it is not a CUDA driver."""
        return driver.get_version()

    def is_supported_version(self) -> bool:
        """Whether a device is usable: unsupported drivers are refused."""
        return driver.is_available


runtime = Runtime()
get_version = runtime.get_version
