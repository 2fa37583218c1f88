"""Blocks of devmem's memory stack that another library uses.

Other libraries free memory from any thread, also in the garbage collector, where devmem must not call the driver. So a returned
block only joins the device's queue of deferred frees, behind the work of the stream that the library named. The next allocation
from devmem frees it, or the queue's limit does (DEVMEM_MAX_PENDING_DEALLOCS_COUNT).
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

from .._core.lifetime.allocation import Allocation
from .._core.ordering.stream import Stream
from ..api.devices import device as device_of
from ..spi.errors import DevmemError, DevmemWarning, UnsupportedError
from ..spi.sizes import exact_size
from ..spi.types import LEGACY_STREAM, AllocFlags, MemoryKind
from .foreign_resource import allocating

#: Blocks whose lender was dropped: they are never freed, as their addresses may still be in use.
_leaked: list[object] = []


class LentBlocks:
    """The blocks of one device's memory stack that are lent to another library.

    Each block is allocated from the stack installed at the time, returns to that stack, and counts as live in ``memory_info()``.
    When memory runs out, devmem frees what it can, as for its own arrays, before the library gets an OutOfMemory.

    Parameters
    ----------
    device : Device, int or str, optional
        The device; by default the current one.
    """

    def __init__(self, device: Any = None) -> None:
        self.device = device_of(device)
        self._lent: dict[int, Allocation] = {}

    def __repr__(self) -> str:
        return f"<{len(self._lent)} lent blocks of {self.device}>"

    def __len__(self) -> int:
        return len(self._lent)

    def __del__(self) -> None:
        # The library may still use the addresses: the blocks are leaked rather than allocated a second time.
        if getattr(self, "_lent", None):
            _leaked.append(self._lent)

    def lend(self, nbytes: int, stream: int = 0) -> int:
        """Allocate a block for work on a stream handle (0: the legacy default stream); return its address, 0 for no bytes.

        Raises
        ------
        OutOfMemory
            It does not fit, even after everything that could be freed was freed.
        UnsupportedError
            The stream is another library's and is capturing a graph.
        """
        if not nbytes:
            return 0
        block = self.block(nbytes, stream)
        self._lent[block.ptr] = block
        return block.ptr

    def take_back(self, ptr: int, stream: int = 0) -> None:
        """Take a block back. Work now on the stream may still use it; work on other streams must be ordered before that.

        It never waits. If the device was reset or closed meanwhile, it does nothing.

        Raises
        ------
        DevmemError
            The address was not lent by this object, or was taken back already.
        """
        if not ptr:
            return
        block = self._lent.pop(ptr, None)
        if block is None:
            raise DevmemError(f"the address {ptr:#x} was not lent by {self.device}, or was taken back already")
        handle, streams = block.device_handle, block.queue.streams
        if handle.dead:
            return
        behind = streams.external_stream(stream)
        if behind.external:
            # The owner may destroy the stream as soon as this returns, so an event is recorded. That is not possible on a stream
            # that is capturing a graph.
            with self.device.entered():
                if handle.capturing(behind.handle):
                    behind = AllStreams(streams, LEGACY_STREAM)
                else:
                    block.after_use(behind)
                    behind = streams.legacy
        block.home = behind

    def take_back_or_warn(self, ptr: int, stream: int, who: str) -> None:
        """`take_back` for callers that cannot pass on exceptions: errors become a DevmemWarning."""
        try:
            self.take_back(ptr, stream)
        except Exception as error:
            warn(f"{who} gave back {ptr:#x} on stream {stream:#x} of {self.device}: {error}")

    def block(self, nbytes: int, stream: int = 0, keep: object = None) -> Allocation:
        """A block as an object that returns it when it dies, for libraries that keep an owner.

        ``keep``: an object that keeps a foreign stream alive. The block keeps it, and is freed behind the stream's work.
        """
        opened = self._open_device()
        home = opened.streams.external_stream(stream) if keep is None else _kept(opened.streams, stream, keep)
        with self.device.entered():
            if home.external and opened.handle.capturing(home.handle):
                raise UnsupportedError(
                    f"{home!r} is capturing a graph, and {exact_size(nbytes)} of devmem's memory cannot belong to one: allocate "
                    f"before the capture, or use the library's own allocator for it"
                )
            found: Allocation = opened.memory.allocate(nbytes, home)
        return found

    def block_for_all_streams(self, nbytes: int, kind: MemoryKind = MemoryKind.DEVICE, flags: int = 0) -> Allocation:
        """A block for a library without streams: it is freed once all work now on the device is done."""
        opened = self._open_device()
        block: Allocation
        with self.device.entered():
            if kind is MemoryKind.DEVICE:
                block = opened.memory.allocate(nbytes, opened.streams.legacy)
            else:
                opened.handle.require_kind(kind)
                block = opened.memory.allocate_host(nbytes, kind, AllocFlags(flags), opened.streams.legacy)
        block.home = AllStreams(opened.streams, LEGACY_STREAM)
        return block

    def _open_device(self) -> Any:
        opened = self.device.opened()
        if allocating.driver is opened.handle.driver:
            raise DevmemError(
                f"{self.device} takes its memory from a library that takes it from {self.device} again: use another allocator "
                f"for one of the two, for example devmem.use_memory(devmem.memory.DriverMemory())"
            )
        return opened


def lend(nbytes: int, stream: int = 0, device: Any = None) -> tuple[int, Callable[[], None]]:
    """Lend one block of a device's current memory stack; return its address, and a function that takes it back.

    Parameters
    ----------
    nbytes : int
        Size of the block; for 0 the address is 0.
    stream : int
        Handle of the stream that uses the memory; it must exist until the block is taken back.
    device : Device, int or str, optional
        The device; by default the current one.
    """
    lent = LentBlocks(device)
    ptr = lent.lend(nbytes, stream)
    return ptr, lambda: lent.take_back(ptr, stream)


class KeptStream(Stream):
    """A foreign stream that this object keeps alive."""

    __slots__ = ("keep",)

    def __init__(self, streams: Any, handle: int, keep: object) -> None:
        super().__init__(streams, handle, external=True)
        self.keep = keep

    def order_handle(self) -> int:
        """The legacy stream, ordered behind this one's work: memory stacks keep no handles of foreign streams."""
        self.services.order(LEGACY_STREAM, self.handle)
        return LEGACY_STREAM


class AllStreams(Stream):
    """Stands for every stream of a device."""

    __slots__ = ()

    def __init__(self, streams: Any, handle: int) -> None:
        super().__init__(streams, handle)
        self.simple = False  # has every free of such a block call order_handle()

    def order_handle(self) -> int:
        """The legacy stream, after waiting for the device."""
        self.device_handle.driver.synchronize()
        return LEGACY_STREAM


def _kept(streams: Any, handle: int, keep: object) -> Stream:
    known: Stream = streams.external_stream(handle)
    return KeptStream(streams, handle, keep) if known.external else known


def warn(message: str) -> None:
    """Warn where no exception can be raised; a warning that filters turn into an error is dropped."""
    try:
        warnings.warn(message, DevmemWarning, stacklevel=3)
    except DevmemWarning:
        pass
