"""The message of an OutOfMemory: the request, and the memory in use."""

from __future__ import annotations

from ...spi.errors import BackendError, OutOfMemory
from ...spi.sizes import exact_size
from ...spi.types import HostMemoryInfo, MemoryInfo
from ...toolkit.host_limits import host_bytes
from ..base.scopes import deferral
from ..memory.adaptor import chain, largest_free_block
from ..memory.heap import Heap
from ..memory.statistics import Statistics
from .allocation import Allocation
from .deferred_free import DeferredFreeQueue

#: Lines of the program that the message names, where something counts them.
LARGEST_OWNERS = 5


def out_of_memory(
    queue: DeferredFreeQueue,
    heaps: list[Heap],
    info: MemoryInfo,
    heap: Heap,
    nbytes: int,
    cause: MemoryError,
    capturing: bool,
    text: str,
) -> OutOfMemory:
    """The error to raise after everything was tried, or, while a graph is captured, nothing.

    ``heaps`` are all of the device, ``info`` is what it reports, ``heap`` is the one that has no ``nbytes`` bytes.
    ``text``: what its stack was named by, which is the same stack for all who name it so.
    """
    limit: int | None = getattr(cause, "limit", None)
    free: int | None = getattr(cause, "free", None)
    inner: int | None = getattr(cause, "requested", None)
    asked = f"asked for {exact_size(nbytes)}"
    if inner not in (None, nbytes):
        asked += f", and then for {exact_size(inner)}"
    message = f"out of {'page-locked host memory for' if heap.is_host else 'memory on'} {queue.handle.device}: "
    message += f"{asked} ({cause})" if limit is None else f"{cause}; {asked}"
    if limit is not None and text:
        message += f"; all use_memory({text!r}) share this stack"
    message += "; " + _what_there_is(queue, heaps, info, heap.is_host)
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
    elif not heap.is_host:
        message += (
            "; memory_snapshot(record=True) shows from then on which lines hold it, devmem.spill moves arrays away"
        )
    known = cause if isinstance(cause, BackendError) else None
    return OutOfMemory(
        message,
        backend=queue.handle.info.backend,
        call=known.call if known else type(heap.resource).__name__ + ".allocate",
        code=known.code if known else 0,
        name=known.name if known else type(cause).__name__,
        requested=nbytes,
        free=info.free if free is None and not heap.is_host else free,
        limit=limit,
    )


def _what_there_is(queue: DeferredFreeQueue, heaps: list[Heap], info: MemoryInfo, on_host: bool) -> str:
    """Describe the memory of the device, or of the host, of which no driver tells how much more can be locked."""
    waiting = [item for item in list(queue.pending) if isinstance(item, Allocation) and item.heap.is_host == on_host]
    count = sum(len(each.live) for each in heaps if each.is_host == on_host) - len(waiting)
    held: MemoryInfo | HostMemoryInfo
    if on_host:
        there, held = f"the host has {exact_size(host_bytes())}, of which devmem holds", info.host
    else:
        there, held = f"the device has {exact_size(info.free)} free of {exact_size(info.total)},", info
    return (
        f"{there} cached {exact_size(held.cached)}, pending {exact_size(held.pending)}, live {exact_size(held.live)} "
        f"in {count} {'block' if count == 1 else 'blocks'}"
    )
