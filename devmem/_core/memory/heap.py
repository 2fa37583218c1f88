"""A heap: a memory resource bound to a device, with the addresses that it has handed out."""

from __future__ import annotations

from collections.abc import Callable

from ...spi.memory import MemoryResource
from ...spi.types import MemoryKind
from ..base.device_handle import DeviceHandle
from .adaptor import kept_by
from .foreign import check_address, explain, is_ours


class Heap:
    """A memory resource, bound to a device, with the addresses that are out, for one kind of memory."""

    __slots__ = (
        "__weakref__",
        "allocate",
        "deallocate",
        "device_handle",
        "foreign",
        "kind",
        "live",
        "ordered",
        "resource",
        "scopes",
    )

    deallocate: Callable[[int, int, int], None]

    def __init__(self, handle: DeviceHandle, resource: MemoryResource, kind: MemoryKind = MemoryKind.DEVICE) -> None:
        self.device_handle = handle
        self.resource = resource
        self.kind = kind
        # Bound methods, looked up once: for a plain resource they are the driver's own.
        self.allocate = resource.allocate
        self.deallocate = resource.deallocate
        self.ordered = bool(getattr(resource, "stream_ordered", False))
        # What a resource of ours returns is an address: where it stands over a plugin's, it looks at that itself (see
        # `foreign.Boundary`). What a plugin returns is looked at, and what it raises is explained.
        self.foreign = not is_ours(resource)
        if self.foreign:
            self.deallocate = self._deallocate_foreign
        self.live: dict[int, int] = {}
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
        # Erased before it is freed: the other way round another thread can be given the address in between, and its
        # entry would be erased instead.
        if self.live.pop(ptr, None) is not None:
            self.deallocate(ptr, nbytes, handle)

    def check_address(self, ptr: object, nbytes: int) -> int:
        """What a third-party resource returned, if it can be an address that is not out already."""
        return check_address(self.resource, ptr, nbytes, self.live)

    def explain(self, error: Exception, nbytes: int) -> None:
        """Add what devmem knows to an exception of a third-party resource's ``allocate``."""
        if self.foreign:
            explain(error, self.resource, f"allocate of {nbytes} bytes on {self.device_handle.device}")

    def _deallocate_foreign(self, ptr: int, nbytes: int, handle: int) -> None:
        try:
            self.resource.deallocate(ptr, nbytes, handle)
        except Exception as error:
            explain(error, self.resource, f"deallocate of {nbytes} bytes on {self.device_handle.device}")
            raise
