"""Memory resources: where device memory comes from. Install one with :func:`devmem.use_memory`."""

from __future__ import annotations

from ._core.memory import DriverMemory, ManagedMemory, PinnedMemory, StreamOrderedMemory
from .spi.memory import MemoryResource

__all__ = ["DriverMemory", "ManagedMemory", "MemoryResource", "PinnedMemory", "StreamOrderedMemory"]
