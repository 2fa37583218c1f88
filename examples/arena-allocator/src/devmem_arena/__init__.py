"""An arena allocator for devmem, found by its entry point under the name ``arena``."""

from __future__ import annotations

from collections.abc import Callable

from devmem.errors import ConfigError
from devmem.memory import DriverMemory, MemoryResource

from .arena import CHUNK_BYTES, Arena

__all__ = ["Arena", "devmem_memory_resources"]

UNITS = {"KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30}


def devmem_memory_resources() -> dict[str, Callable[..., MemoryResource]]:
    """Tell devmem what this package supplies. Called once, when somebody asks for a name that is not devmem's own."""
    return {"arena": make}


def make(argument: str = "", upstream: MemoryResource | None = None) -> Arena:
    """Make the arena of one device.

    Called without arguments for ``arena`` alone; in a stack that is written as text with what stands behind the colon and the
    resource that is written behind the comma, if any.
    """
    return Arena(upstream or DriverMemory(), chunk_bytes=parsed(argument) if argument else CHUNK_BYTES)


def parsed(text: str) -> int:
    """Read ``64MiB`` or a number of bytes; ConfigError, which devmem passes on as it is, for anything else."""
    number, factor = text, 1
    for unit, size in UNITS.items():
        if text.endswith(unit):
            number, factor = text.removesuffix(unit), size
    if not number.isdecimal() or not int(number):
        raise ConfigError(f"arena:{text}: give the size of a chunk, such as 64MiB")
    return int(number) * factor
