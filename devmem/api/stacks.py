"""New memory stacks of a text, and the logs of allocations that they are compared by."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from .._core.device.device import DeviceLike, open_device_of
from .._core.stacks import stack_spec
from .._core.stacks.resolve import fresh
from .._core.telemetry import allocation_log
from .._core.telemetry.allocation_log import Record as Record
from ..spi.memory import MemoryResource


def allocations(log: str | Path) -> Iterator[Record]:
    """The records of a file that `devmem.memory.Log` wrote, in order.

    Raises
    ------
    ConfigError
        A line of the file is no record.
    OSError
        The file cannot be read.
    """
    return allocation_log.read(log)


def stack_parts() -> list[str]:
    """The names of the parts that a stack as text may have."""
    return stack_spec.names()


def new_stack(text: str, device: DeviceLike = None) -> MemoryResource:
    """A memory stack that keeps nothing yet, and is not bound to the device: ``text`` as for `use_memory`.

    Raises
    ------
    ConfigError
        The text means no stack.
    """
    return fresh(text.strip(), open_device_of(device).handle)
