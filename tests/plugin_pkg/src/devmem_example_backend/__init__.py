"""An example plugin: a backend and a memory resource. The functions below are devmem's hooks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from devmem.spi.driver import Backend
from devmem.spi.memory import ResourceFactory

from .backend import ExampleBackend
from .memory import BumpMemory


def devmem_backends() -> Sequence[Backend]:
    """Supply the backend ``example``."""
    return [ExampleBackend()]


def devmem_memory_resources() -> Mapping[str, ResourceFactory]:
    """Supply the memory resource ``example-bump``."""
    return {"example-bump": BumpMemory}
