"""What is said when memory has run out: what was asked for, and where the memory is."""

from __future__ import annotations

from ...spi.errors import BackendError, OutOfMemory
from ...spi.types import MemoryInfo, MemoryKind
from ...toolkit.host_limits import host_bytes
from ...toolkit.sizes import exact_size
from ..base.scopes import deferral
from ..memory.adaptor import cached_in, chain, largest_free_block
from ..memory.heap import Heap
from ..memory.statistics import Statistics
from .allocation import Allocation
from .deferred_free import DeferredFreeQueue

#: Lines of the program that the message names, where something counts them.
LARGEST_OWNERS = 5
#: Kinds of memory that is the host's, with its pages locked.
HOST_KINDS = frozenset({MemoryKind.PINNED, MemoryKind.MAPPED})


def out_of_memory(
    queue: DeferredFreeQueue,
    heaps: list[Heap],
    info: MemoryInfo,
    heap: Heap,
    nbytes: int,
    cause: MemoryError,
    capturing: bool,
) -> OutOfMemory:
    """The error to raise after everything was tried, or, while a graph is captured, nothing.

    ``heaps`` are all of the device, ``info`` is what it reports, ``heap`` is the one that has no ``nbytes`` bytes.
    """
    memory = "page-locked host memory for" if heap.kind in HOST_KINDS else "memory on"
    message = f"out of {memory} {queue.handle.device}: asked for {exact_size(nbytes)} ({cause})"
    message += "; " + _what_there_is(queue, heaps, info, heap.kind)
    largest = largest_free_block(heap.resource)
    if largest is not None:
        message += f", largest free block {exact_size(largest)}"
    if deferral.depth and queue.pending:
        message += f"; {exact_size(queue.pending_bytes)} cannot be freed inside defer_cleanup(): leave it"
    if capturing:
        message += "; nothing can be given back while a graph is captured: allocate before the capture begins"
    counting = [part for part in chain(heap.resource) if isinstance(part, Statistics)]
    owners = [owner for part in counting[:1] for owner in part.owners(LARGEST_OWNERS)]
    if owners:
        message += "; largest owners: " + "; ".join(map(str, owners))
    elif counting:
        message += "; Statistics(owners=True) names the lines that hold most"
    known = cause if isinstance(cause, BackendError) else None
    return OutOfMemory(
        message,
        backend=queue.handle.info.backend,
        call=known.call if known else type(heap.resource).__name__ + ".allocate",
        code=known.code if known else 0,
        name=known.name if known else type(cause).__name__,
    )


def _what_there_is(queue: DeferredFreeQueue, heaps: list[Heap], info: MemoryInfo, kind: MemoryKind) -> str:
    """Where memory of that kind is. Of the host's, no driver tells how much more can be locked."""
    pending = list(queue.pending)  # others may be dropping theirs
    waiting = [item for item in pending if isinstance(item, Allocation)]
    if kind not in HOST_KINDS:
        count = sum(len(each.live) for each in heaps) - len(waiting)
        return (
            f"free {exact_size(info.free)} of {exact_size(info.total)}, cached {exact_size(info.cached)}, "
            f"pending {exact_size(info.pending)}, live {exact_size(info.live)} in {count} blocks"
        )
    heaps = [each for each in heaps if each.kind in HOST_KINDS]
    waiting = [item for item in waiting if item.heap.kind in HOST_KINDS]
    dropped = sum(item.nbytes for item in waiting)
    live = sum(sum(list(each.live.values())) for each in heaps) - dropped
    cached = cached_in(each.resource for each in heaps)
    return (
        f"the host has {exact_size(host_bytes())}, of which devmem holds cached {exact_size(cached)}, "
        f"pending {exact_size(dropped)}, live {exact_size(live)} in {sum(len(each.live) for each in heaps) - len(waiting)} blocks"
    )
