"""Memory resources: where device memory, and page-locked memory, comes from. Install one with :func:`devmem.use_memory`."""

from ._core.memory.adaptor import Adaptor
from ._core.memory.direct import (
    DriverMemory,
    ManagedMemory,
    MappedMemory,
    PinnedMemory,
    StreamOrderedMemory,
    VirtualMemory,
)
from ._core.memory.failing import FailIf, FailNth
from ._core.memory.guard import Guard
from ._core.memory.limit import Limit
from ._core.memory.on_out_of_memory import OnOutOfMemory
from ._core.memory.prefetch import Prefetch
from ._core.memory.scrub import Scrub
from ._core.pool.pinned_pool import PinnedPool, PinnedReport
from ._core.pool.pool import PoolMemory, PoolReport
from ._core.telemetry.log import Log
from ._core.telemetry.statistics import Owner, Snapshot, Statistics
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
    "VirtualMemory",
]
