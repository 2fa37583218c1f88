"""Memory resources: where device memory, and page-locked memory, comes from. Install one with :func:`devmem.use_memory`."""

from __future__ import annotations

from ._core.memory import (
    Adaptor,
    DriverMemory,
    FailIf,
    FailNth,
    Guard,
    Limit,
    Log,
    ManagedMemory,
    MappedMemory,
    OnOutOfMemory,
    Owner,
    PinnedMemory,
    PinnedPool,
    PinnedReport,
    PoolMemory,
    PoolReport,
    Prefetch,
    Scrub,
    Snapshot,
    Statistics,
    StreamOrderedMemory,
)
from .spi.memory import MemoryResource

__all__ = [
    "Adaptor",
    "DriverMemory",
    "FailIf",
    "FailNth",
    "Guard",
    "Limit",
    "Log",
    "ManagedMemory",
    "MappedMemory",
    "MemoryResource",
    "OnOutOfMemory",
    "Owner",
    "PinnedMemory",
    "PinnedPool",
    "PinnedReport",
    "PoolMemory",
    "PoolReport",
    "Prefetch",
    "Scrub",
    "Snapshot",
    "Statistics",
    "StreamOrderedMemory",
]
