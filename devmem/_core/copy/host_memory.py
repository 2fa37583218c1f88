"""Sorts of host memory, as far as copies differ by them."""

from __future__ import annotations

import mmap
from enum import StrEnum
from typing import Any

import numpy as np
import numpy.typing as npt

from ...spi.types import MemoryKind
from ..base.address import extent
from ..base.device_handle import DeviceHandle
from ..lifetime.allocation import Allocation
from ..lifetime.page_locks import PageLockTable


class HostMemory(StrEnum):
    """Sorts of host memory."""

    PAGEABLE = "pageable"
    LOCKED = "page-locked"
    MANAGED = "managed"
    FILE = "file-backed"


def host_memory_of(
    handle: DeviceHandle, page_locks: PageLockTable, host: npt.NDArray[Any], *, ask: bool = True
) -> HostMemory:
    """Find the sort of an array's memory by its maker, by registrations, by its base array, and by asking the driver.

    Unless ``ask``, the driver is left alone: memory that only the driver knows counts as pageable.
    """
    base: object = host
    while isinstance(base, np.ndarray):
        base = base.base
    allocation = getattr(base, "allocation", None)
    # Page-locked memory of another vendor's driver is pageable for this one.
    if isinstance(allocation, Allocation) and allocation.device_handle.info.backend == handle.info.backend:
        return HostMemory.MANAGED if allocation.heap.kind is MemoryKind.MANAGED else HostMemory.LOCKED
    if isinstance(base, memoryview):
        base = base.obj
    low, high = extent(host)
    if page_locks.segments and page_locks.is_registered(low, high):
        return HostMemory.LOCKED
    if isinstance(base, mmap.mmap):
        return HostMemory.FILE
    # Page-locked by another library: the driver knows. Ordinary memory is in none of its allocations, unless it shares pages with
    # what is registered: it may change as soon as a call has returned.
    if ask and handle.knows_pointers and not page_locks.shares(low, high):
        device_of = handle.driver.pointer_device
        if device_of(low) is not None and device_of(high - 1) is not None:
            return HostMemory.LOCKED
    return HostMemory.PAGEABLE
