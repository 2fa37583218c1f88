"""A report of a device's memory from the heaps of open devices: a table for people, and blocks for tools.

Nothing is recorded for it: sizes come from the tables of live addresses that every heap keeps, and the lines of the program from
a `Statistics` with ``owners=True``, where one stands in the stack. Counted while other threads go on: a block that is allocated
or freed meanwhile is in the report or not.
"""

from __future__ import annotations

import html
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from ...spi.sizes import size_text
from ...spi.types import MemoryKind
from ..base.call_site import Site
from ..base.device_handle import CurrentDevice
from ..base.shown import html_table, text_table
from ..lifetime.allocation import Allocation
from ..memory.adaptor import chain, kept_by
from ..memory.heap import Heap
from ..pool.pinned_pool import PinnedPool
from ..pool.pool import PoolMemory
from ..telemetry.statistics import Statistics
from .open_device import OpenDevice

#: Upper bounds of the size classes of a summary, in bytes; the last class has none.
SIZE_CLASSES = (1 << 12, 1 << 16, 1 << 20, 1 << 24, 1 << 28)
#: What a file of a snapshot says that it is.
FORMAT = "devmem memory snapshot"


@dataclass(frozen=True, slots=True)
class SizeClass:
    """Live blocks of at most ``max_bytes`` bytes each, and above the class before; of any size, where that is None."""

    max_bytes: int | None
    blocks: int
    nbytes: int


@dataclass(frozen=True, slots=True)
class StackSummary:
    """The bytes that one memory stack of a device holds.

    ``peak_bytes``, the most that was in use, is None where no `Statistics` in the stack counts it. ``cached_bytes`` is what the
    whole stack keeps for reuse. ``peak_reserved_bytes`` is the most that its pool had taken, in use and cached; None without one.
    """

    stack: str
    kind: MemoryKind
    live_bytes: int
    live_blocks: int
    pending_bytes: int
    peak_bytes: int | None
    cached_bytes: int
    peak_reserved_bytes: int | None
    size_classes: tuple[SizeClass, ...]


@dataclass(frozen=True, slots=True)
class DeviceSummary:
    """The memory of one device, in bytes: ``total`` and ``free`` as the driver says, the rest as devmem counts.

    Page-locked memory, which is the host's, is in ``stacks`` alone, by its kind.
    """

    device: str
    name: str
    total_bytes: int
    free_bytes: int
    live_bytes: int
    pending_bytes: int
    cached_bytes: int
    stacks: tuple[StackSummary, ...]


@dataclass(frozen=True, slots=True, repr=False)
class MemorySummary:
    """The memory of the open devices. ``print`` shows a table, a notebook an HTML one; `to_json` is for programs."""

    devices: tuple[DeviceSummary, ...]

    def to_dict(self) -> dict[str, Any]:
        """The numbers, as JSON has them."""
        return {"devices": [asdict(device) for device in self.devices]}

    def to_json(self) -> str:
        """The numbers as text, one JSON object."""
        import json  # a tenth of what importing devmem takes

        return json.dumps(self.to_dict(), indent=2)

    def __str__(self) -> str:
        return "\n\n".join(_lines(device) for device in self.devices) or NO_DEVICE

    __repr__ = __str__

    def _repr_html_(self) -> str:
        return "".join(_html(device) for device in self.devices) or f"<p>{html.escape(NO_DEVICE)}</p>"


@dataclass(frozen=True, slots=True)
class LiveBlock:
    """A block that is in use. ``site``, (file, line, function), is the line that asked for it, where the stack counts owners."""

    device: str
    address: int
    nbytes: int
    kind: MemoryKind
    stack: str
    site: Site | None


@dataclass(frozen=True, slots=True, repr=False)
class MemorySnapshot:
    """Every block of the open devices that is in use at one moment, and the summary of that moment.

    ``print`` shows a table of the lines of the program that asked for them, a notebook an HTML one.
    """

    #: Seconds since 1970.
    taken_at: float
    summary: MemorySummary
    blocks: tuple[LiveBlock, ...]

    def __str__(self) -> str:
        head = f"{len(self.blocks)} blocks, {size_text(sum(block.nbytes for block in self.blocks))}"
        dropped = sum(stack.pending_bytes for device in self.summary.devices for stack in device.stacks)
        if dropped:
            head += f"; of these {size_text(dropped)} were dropped and wait to be freed: call trim() first"
        return "\n".join([head, text_table(_PLACES, self._by_place())] if self.blocks else [head])

    __repr__ = __str__

    def _repr_html_(self) -> str:
        return html_table(_PLACES, self._by_place())

    def _by_place(self) -> list[tuple[str, str, int, str]]:
        """Blocks by device and by the line that asked for them, the largest sum first."""
        sums: dict[tuple[str, Site | None], list[int]] = {}
        for block in self.blocks:
            sums.setdefault((block.device, block.site), []).append(block.nbytes)
        ordered = sorted(sums.items(), key=lambda item: -sum(item[1]))
        return [
            (f"{site[0]}:{site[1]} in {site[2]}" if site else UNKNOWN_PLACE, device, len(sizes), size_text(sum(sizes)))
            for (device, site), sizes in ordered
        ]

    def to_dict(self) -> dict[str, Any]:
        """The snapshot as JSON has it."""
        return {
            "format": FORMAT,
            "taken_at": self.taken_at,
            **self.summary.to_dict(),
            "blocks": [asdict(block) for block in self.blocks],
        }

    def save(self, path: str | Path) -> None:
        """Write the snapshot to a file, which ``devmem view`` shows; OSError if that cannot be done."""
        import json  # a tenth of what importing devmem takes

        Path(path).write_text(json.dumps(self.to_dict()), encoding="utf-8")


_PLACES = ("asked for by", "device", "blocks", "in use")
#: Of blocks that no `Statistics` with owners counted.
UNKNOWN_PLACE = "not recorded: call memory_snapshot(record=True) before"
NO_DEVICE = "no device is open: devmem has no memory"


def summarize(devices: Iterable[OpenDevice]) -> MemorySummary:
    """The summary of some open devices."""
    return MemorySummary(tuple(map(_summary, devices)))


def snapshot(devices: Iterable[OpenDevice]) -> MemorySnapshot:
    """The summary, and every live block, of some open devices."""
    devices = list(devices)
    blocks = tuple(block for opened in devices for block in _blocks(opened))
    return MemorySnapshot(time.time(), summarize(devices), blocks)


def record_lines(opened: OpenDevice) -> None:
    """Have the stack that the whole device allocates from remember the line that asks for each block, from now on."""
    stacks = opened.memory.stacks
    if _counting_owners(stacks.heap) is None:
        with CurrentDevice(opened.handle):
            stacks.install(stacks.bind(Statistics(stacks.heap.resource, owners=True)))


def _summary(opened: OpenDevice) -> DeviceSummary:
    info = opened.memory.memory_info()
    pending: dict[int, int] = {}
    for item in (*opened.free_queue.dropped, *opened.free_queue.pending):
        if isinstance(item, Allocation):
            pending[item.ptr] = item.nbytes
    with CurrentDevice(opened.handle):  # pools ask their driver what it keeps
        stacks = tuple(_stack(heap, pending) for heap in opened.memory.stacks.all_heaps())
    return DeviceSummary(
        str(opened.device),
        opened.handle.info.name,
        info.total,
        info.free,
        info.live,
        info.pending,
        info.cached,
        tuple(stack for stack in stacks if stack.live_blocks or stack.cached_bytes or stack.pending_bytes),
    )


def _stack(heap: Heap, pending: dict[int, int]) -> StackSummary:
    live = {ptr: nbytes for ptr, nbytes, _ in heap.live.blocks()}
    waiting = sum(live.pop(ptr, 0) for ptr in pending)
    counting = _statistics(heap)
    pool = next((part for part in chain(heap.resource) if isinstance(part, PoolMemory | PinnedPool)), None)
    return StackSummary(
        repr(heap.resource),
        heap.kind,
        sum(live.values()),
        len(live),
        waiting,
        counting.peak_bytes if counting is not None else None,
        kept_by(heap.resource),
        pool.report().peak_reserved_bytes if pool is not None else None,
        tuple(_size_classes(live.values())),
    )


def _size_classes(sizes: Iterable[int]) -> Iterator[SizeClass]:
    """The classes that have blocks, smallest first."""
    left = sorted(sizes)
    for bound in (*SIZE_CLASSES, None):
        found = [size for size in left if bound is None or size <= bound]
        left = left[len(found) :]
        if found:
            yield SizeClass(bound, len(found), sum(found))


def _blocks(opened: OpenDevice) -> Iterator[LiveBlock]:
    device = str(opened.device)
    for heap in opened.memory.stacks.all_heaps():
        counting, stack = _counting_owners(heap), repr(heap.resource)
        site_of: Callable[[int], Site | None] = counting.site_of if counting is not None else lambda ptr: None
        for ptr, nbytes, _ in sorted(heap.live.blocks()):
            yield LiveBlock(device, ptr, nbytes, heap.kind, stack, site_of(ptr))


def _statistics(heap: Heap) -> Statistics | None:
    """The outermost part of a stack that counts."""
    return next((part for part in chain(heap.resource) if isinstance(part, Statistics)), None)


def _counting_owners(heap: Heap) -> Statistics | None:
    """The outermost part of a stack that remembers who asked for its blocks."""
    return next((part for part in chain(heap.resource) if isinstance(part, Statistics) and part.counts_owners), None)


# -- for people --------------------------------------------------------------------------------------------------------

_COLUMNS = ("memory", "live", "blocks", "pending", "peak in use", "cached", "peak reserved")


def _facts(device: DeviceSummary) -> str:
    return (
        f"{device.device} ({device.name}): {size_text(device.free_bytes)} free of {size_text(device.total_bytes)}; "
        f"live {size_text(device.live_bytes)}, pending {size_text(device.pending_bytes)}, "
        f"cached {size_text(device.cached_bytes)}"
    )


def _rows(device: DeviceSummary) -> Iterator[tuple[tuple[str, ...], list[str]]]:
    """The cells of each stack, and the lines about its blocks."""
    for stack in device.stacks:
        cells = (
            str(stack.kind),
            size_text(stack.live_bytes),
            str(stack.live_blocks),
            size_text(stack.pending_bytes),
            "not counted" if stack.peak_bytes is None else size_text(stack.peak_bytes),
            size_text(stack.cached_bytes),
            "no pool" if stack.peak_reserved_bytes is None else size_text(stack.peak_reserved_bytes),
        )
        yield cells, [stack.stack, *map(_class_text, stack.size_classes)]


def _class_text(group: SizeClass) -> str:
    bound = f"up to {size_text(group.max_bytes)}" if group.max_bytes else f"above {size_text(SIZE_CLASSES[-1])}"
    return f"blocks of {bound}: {group.blocks}, {size_text(group.nbytes)}"


def _lines(device: DeviceSummary) -> str:
    rows = list(_rows(device))
    widths = [max(map(len, column)) for column in zip(_COLUMNS, *(cells for cells, _ in rows), strict=True)]

    def aligned(cells: tuple[str, ...]) -> str:
        first, *numbers = (cell.rjust(width) for cell, width in zip(cells, widths, strict=True))
        return "  ".join([first.strip().ljust(widths[0]), *numbers])

    lines = [_facts(device)]
    for at, (cells, details) in enumerate(rows):
        lines += ["  " + aligned(_COLUMNS)] if not at else []
        lines += ["  " + aligned(cells), *(f"    {detail}" for detail in details)]
    return "\n".join(lines)


def _html(device: DeviceSummary) -> str:
    rows = ((*cells, "; ".join(details)) for cells, details in _rows(device))
    return html_table((*_COLUMNS, "stack and sizes"), rows, _facts(device))
