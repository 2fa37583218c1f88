"""devmem's stack as numba-hip's memory manager: ``NUMBA_CUDA_MEMORY_MANAGER=devmem.adapters.numba_hip``, or ``use()``.

As `devmem.adapters.numba`, on ROCm. numba-hip reads the same variable as numba-cuda; the two cannot share an environment.
"""

from __future__ import annotations

import ctypes
from functools import cache
from typing import Any

from .foreign_resource import import_library
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
    return import_library("numba.hip.hipdrv.driver", INSTALL, "devmem.adapters.numba_hip")


def __getattr__(name: str) -> Any:
    """``_numba_memory_manager``, which numba-hip reads, made at that time."""
    if name == "_numba_memory_manager":
        return manager()
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
