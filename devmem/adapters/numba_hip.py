"""Our stack as the memory manager of numba-hip: ``NUMBA_CUDA_MEMORY_MANAGER=devmem.adapters.numba_hip``, or ``use()``.

As `devmem.adapters.numba`, on ROCm. numba-hip reads the variable that numba-cuda reads; the two cannot share an environment.
"""

from __future__ import annotations

import ctypes
from functools import cache
from typing import Any

from .foreign_resource import load
from .numba import make_manager

INSTALL = "numba-hip"


def use() -> None:
    """Make devmem numba-hip's memory manager, before numba-hip has opened any device.

    Raises
    ------
    BackendUnavailable
        numba-hip is not installed.
    """
    _driver().set_memory_manager(manager())


@cache
def manager() -> Any:
    """The class that numba-hip's ``set_memory_manager`` takes."""
    driver = _driver()
    return make_manager(driver.HostOnlyHIPMemoryManager, driver, "roc", ctypes.c_uint64)


def _driver() -> Any:
    return load("numba.hip.hipdrv.driver", INSTALL, "devmem.adapters.numba_hip")


def __getattr__(name: str) -> Any:
    """``_numba_memory_manager``, which numba-hip looks for, made when it does."""
    if name == "_numba_memory_manager":
        return manager()
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
