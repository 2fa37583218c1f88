"""A heap: a memory resource bound to a device, with the addresses that it has handed out."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from ...spi.memory import MemoryResource
from ...spi.types import MemoryKind
from ..base.device_handle import DeviceHandle
from ..base.hot_state import AllocationState, new_live_blocks
from ..base.interrupts import CannotWait
from .adaptor import kept_by, part_with
from .foreign import Boundary, is_ours, tell

#: Kinds of memory that is the host's, with its pages locked.
HOST_KINDS = frozenset({MemoryKind.PINNED, MemoryKind.MAPPED})


class Block(AllocationState):
    """A block that no allocation refers to."""

    __slots__ = ()

    def __init__(self, ptr: int, nbytes: int, place: int) -> None:
        self.ptr = ptr
        self.nbytes = nbytes
        self.place = place


class Heap:
    """A memory resource, bound to a device, with the live addresses, for one kind of memory."""

    __slots__ = (
        "__weakref__",
        "allocate",
        "deallocate",
        "forget_stream",
        "kind",
        "lent",
        "live",
        "ordered",
        "resource",
        "scopes",
        "trim",
    )

    def __init__(self, handle: DeviceHandle, resource: MemoryResource, kind: MemoryKind = MemoryKind.DEVICE) -> None:
        self.resource = resource
        self.kind = kind
        # Bound methods, looked up once: for a plain resource they are the driver's own.
        verbs = resource if is_ours(resource) else Boundary(resource, f" on {handle.device}", handle.driver)
        self.allocate = verbs.allocate
        self.deallocate = verbs.deallocate
        self.trim: Callable[[int], object] = partial(tell, resource, "trim")
        self.forget_stream: Callable[[int], object] = partial(
            tell, part_with(resource, "forget_stream"), "forget_stream"
        )
        self.ordered = bool(getattr(resource, "stream_ordered", False))
        self.live = new_live_blocks()
        #: Live addresses that were given to another library, which may use them beyond the close of the device.
        self.lent: set[int] = set()
        #: How many ``with use_memory()`` blocks are open on it.
        self.scopes = 0

    @property
    def is_host(self) -> bool:
        """Whether its memory is the host's."""
        return self.kind in HOST_KINDS

    @property
    def cached_bytes(self) -> int:
        """Bytes that the stack keeps for reuse."""
        return kept_by(self.resource)

    def give_back(self, block: AllocationState, handle: int) -> None:
        """Return a block to the resource; its address is 0 from then on, unless that raises CannotWait."""
        ptr = block.ptr
        if self.lent:
            self.lent.discard(ptr)
        # Forgotten before it is freed: after an interrupt between the two nothing frees it; else it would be freed twice.
        block.ptr = 0
        if not self.live.take(block.place, ptr):
            return
        try:
            self.deallocate(ptr, block.nbytes, handle)
        except CannotWait:
            block.ptr = ptr
            self.live.enter(block)
            raise
