"""Which way a large copy between host and device goes: a table of rules, the first of which that holds decides.

Copies smaller than the device's staging threshold never get here: they go directly, whatever their memory is.
"""

from __future__ import annotations

import mmap
from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import numpy.typing as npt

from ...spi.types import Capability, MemoryKind
from ..base.layout import extent
from ..lifetime.allocation import Allocation

if TYPE_CHECKING:
    from ..device.open_device import Context
    from ..ordering.stream import Stream


class Path(StrEnum):
    """Ways from one side to the other."""

    DIRECT = "direct"
    STAGED = "staged"


class Sort(StrEnum):
    """What host memory is, as far as a copy is concerned."""

    PAGEABLE = "pageable"
    LOCKED = "page-locked"
    MANAGED = "managed"
    FILE = "file-backed"


@dataclass(slots=True)
class Case:
    """One copy. What takes time to find out is asked for by the rule that needs it."""

    context: Context
    host: npt.NDArray[Any]
    stream: Stream
    _sort: Sort | None = None

    @property
    def sort(self) -> Sort:
        """What the host side is; found out once."""
        if self._sort is None:
            self._sort = sort_of(self.context, self.host)
        return self._sort

    @property
    def capturing(self) -> bool:
        """Whether a graph is captured on the stream."""
        context, stream = self.context, self.stream
        return not stream.simple and context.has(Capability.CAPTURE) and context.driver.capturing(stream.handle)


class Rule(NamedTuple):
    """A path, and when and why it is taken."""

    path: Path
    why: str
    holds: Callable[[Case], bool]


#: Why smaller ones go directly.
BELOW = "too small for the way through page-locked slots to pay"

RULES = (
    Rule(
        Path.DIRECT, "elements do not fit into a slot", lambda case: case.host.itemsize > case.context.ring.slot_bytes
    ),
    Rule(Path.DIRECT, "no page-locked memory was to be had", lambda case: not case.context.ring.most),
    # What a graph copies, it copies whenever it is launched: from where the user's array is, not from a slot.
    Rule(Path.DIRECT, "a graph is captured on the stream", lambda case: case.capturing),
    Rule(Path.DIRECT, "the device reaches the memory", lambda case: case.sort in (Sort.LOCKED, Sort.MANAGED)),
    Rule(Path.STAGED, "a mapped file, whose pages several threads fetch", lambda case: case.sort is Sort.FILE),
    Rule(Path.STAGED, "pageable memory, copied by the driver, leaves most of the bus unused", lambda case: True),
)


def choose(context: Context, host: npt.NDArray[Any], stream: Stream) -> Rule:
    """The rule for a large copy; the device is entered."""
    case = Case(context, host, stream)
    return next(rule for rule in RULES if rule.holds(case))


def sort_of(context: Context, host: npt.NDArray[Any], *, ask: bool = True) -> Sort:
    """What an array's memory is: by who made it, by what is registered, by what it is a view of, by asking the driver.

    Unless ``ask``, the driver is left alone: what only it knows counts as pageable.
    """
    base: Any = host
    while isinstance(base, np.ndarray):
        base = base.base
    allocation = getattr(base, "allocation", None)
    # Another vendor's driver knows nothing of it.
    if isinstance(allocation, Allocation) and allocation.context.registry is context.registry:
        return Sort.MANAGED if allocation.heap.kind is MemoryKind.MANAGED else Sort.LOCKED
    if isinstance(base, memoryview):
        base = base.obj
    low, high = extent(host)
    if context.registry.covers(low, high):
        return Sort.LOCKED
    if isinstance(base, mmap.mmap):
        return Sort.FILE
    # Page-locked by another library: it is the driver who knows. Ordinary memory is in none of its allocations.
    if ask and context.knows_pointers:
        whose = context.driver.pointer_device
        if whose(low) is not None and whose(high - 1) is not None:
            return Sort.LOCKED
    return Sort.PAGEABLE
