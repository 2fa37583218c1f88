"""A heap: a memory resource bound to a device, with the addresses that it has handed out."""

from __future__ import annotations

from ...spi.memory import MemoryResource
from ...spi.types import MemoryKind
from ..base.device_handle import DeviceHandle
from .adaptor import kept_by
from .foreign import Boundary, is_ours


class Heap:
    """A memory resource, bound to a device, with the live addresses, for one kind of memory."""

    __slots__ = (
        "__weakref__",
        "allocate",
        "deallocate",
        "device_handle",
        "kind",
        "lent",
        "live",
        "ordered",
        "resource",
        "scopes",
    )

    def __init__(self, handle: DeviceHandle, resource: MemoryResource, kind: MemoryKind = MemoryKind.DEVICE) -> None:
        self.device_handle = handle
        self.resource = resource
        self.kind = kind
        # Bound methods, looked up once: for a plain resource they are the driver's own.
        verbs = resource if is_ours(resource) else Boundary(resource, f" on {handle.device}")
        self.allocate = verbs.allocate
        self.deallocate = verbs.deallocate
        self.ordered = bool(getattr(resource, "stream_ordered", False))
        self.live: dict[int, int] = {}
        #: Live addresses that were given to another library, which may use them beyond the close of the device.
        self.lent: set[int] = set()
        #: How many ``with use_memory()`` blocks are open on it.
        self.scopes = 0

    @property
    def cached_bytes(self) -> int:
        """Bytes that the stack keeps for reuse."""
        return kept_by(self.resource)

    def trim(self, keep_bytes: int) -> None:
        """Ask the stack to give cached memory back."""
        trim = getattr(self.resource, "trim", None)
        if trim is not None:
            trim(keep_bytes)

    def forget_stream(self, handle: int) -> None:
        """Tell the stack that a stream is about to be destroyed, if it wants to know."""
        forget = getattr(self.resource, "forget_stream", None)
        if forget is not None:
            forget(handle)

    def give_back(self, ptr: int, nbytes: int, handle: int) -> None:
        """Return a block to the resource."""
        # Forgotten before it is freed: the other way round another thread can be given the address in between, and its
        # entry would be erased instead.
        if self.lent:
            self.lent.discard(ptr)
        if self.live.pop(ptr, None) is not None:
            self.deallocate(ptr, nbytes, handle)
