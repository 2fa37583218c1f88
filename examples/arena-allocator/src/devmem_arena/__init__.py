"""An arena allocator for devmem, found by its entry point under the name ``arena``."""

from __future__ import annotations

from collections.abc import Callable

from devmem.errors import ConfigError
from devmem.memory import DriverMemory, MemoryResource

from .arena import CHUNK_BYTES, Arena

__all__ = ["Arena", "devmem_memory_resources"]

UNITS = {"KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30}


def devmem_memory_resources() -> dict[str, Callable[..., MemoryResource]]:
    """The resources that this package offers. devmem calls this once, when a program uses a name that is not built in."""
    return {"arena": make}


def make(argument: str = "", upstream: MemoryResource | None = None) -> Arena:
    """Make the arena of one device.

    devmem calls this without arguments for ``arena`` alone. In a stack written as text, ``argument`` is the text after the colon
    and ``upstream`` the resource that the next part describes, if there is one.
    """
    return Arena(upstream or DriverMemory(), chunk_bytes=parsed(argument) if argument else CHUNK_BYTES)


def parsed(text: str) -> int:
    """Parse ``64MiB`` or a number of bytes; raise ConfigError, which devmem passes on unchanged, for anything else."""
    number, factor = text, 1
    for unit, size in UNITS.items():
        if text.endswith(unit):
            number, factor = text.removesuffix(unit), size
    if not number.isdecimal() or not int(number):
        raise ConfigError(f"arena:{text}: give the size of a chunk, such as 64MiB")
    return int(number) * factor
