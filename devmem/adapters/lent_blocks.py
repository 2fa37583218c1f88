"""Ours as theirs: blocks of devmem's memory stack that another library holds."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

from .._core.lifetime.allocation import Allocation
from .._core.ordering.stream import Stream
from ..api.devices import device as device_of
from ..spi.errors import DevmemError, DevmemWarning, UnsupportedError
from ..spi.types import LEGACY_STREAM, AllocFlags, MemoryKind
from .foreign_resource import asked

#: Blocks that nobody can give back any more.
_lost: list[object] = []


class LentBlocks:
    """What one device's memory stack has lent to another library.

    Each block is allocated by the stack that is in force at the time, goes back to that stack, and counts as live in
    ``memory_info()``. When memory runs out, devmem does what it does for its own arrays before the library sees an OutOfMemory.

    Libraries give blocks back wherever the collector runs, so nothing is freed there: the block joins the device's queue, behind
    the work of the stream that the library named, and is freed at the next safe point (the next allocation from devmem, at the
    latest when more than DEVMEM_MAX_PENDING_DEALLOCS_COUNT wait).

    Parameters
    ----------
    device : Device, int or str, optional
        Whose memory; the current device's, if not given.
    """

    def __init__(self, device: Any = None) -> None:
        self.device = device_of(device)
        self._out: dict[int, Allocation] = {}

    def __repr__(self) -> str:
        return f"<{len(self._out)} blocks of {self.device} on loan>"

    def __len__(self) -> int:
        return len(self._out)

    def __del__(self) -> None:
        # Whoever has the addresses may use them still: they are lost rather than handed out a second time.
        if getattr(self, "_out", None):
            _lost.append(self._out)

    def lend(self, nbytes: int, stream: int = 0) -> int:
        """The address of a new block for work on a stream, by its handle; 0 is the legacy default stream. Zero bytes: 0.

        Raises
        ------
        OutOfMemory
            It does not fit, after everything that could be given back was given back.
        UnsupportedError
            The stream is another library's and is capturing a graph.
        """
        if not nbytes:
            return 0
        block = self.block(nbytes, stream)
        self._out[block.ptr] = block
        return block.ptr

    def take_back(self, ptr: int, stream: int = 0) -> None:
        """Take a block back. Work that is on the stream now may still use it; work on other streams must be ordered before.

        Never waits. Of a device that was reset or closed meanwhile nothing is left to take back, and nothing happens.

        Raises
        ------
        DevmemError
            The address was not lent here, or came back already.
        """
        if not ptr:
            return
        block = self._out.pop(ptr, None)
        if block is None:
            raise DevmemError(f"the address {ptr:#x} was not lent by {self.device}, or came back already")
        handle, streams = block.device_handle, block.queue.streams
        if handle.dead:
            return
        behind = streams.external_stream(stream)
        if behind.external:
            # The owner may destroy the stream as soon as we return: an event stands for it. A stream that is capturing a graph
            # cannot be asked for one.
            with self.device.entered():
                if handle.capturing(behind.handle):
                    behind = AllStreams(streams, LEGACY_STREAM)
                else:
                    block.after_use(behind)
                    behind = streams.legacy
        block.home = behind

    def take_back_or_tell(self, ptr: int, stream: int, who: str) -> None:
        """`take_back` for callers through which nothing can be raised: what is wrong comes as a DevmemWarning."""
        try:
            self.take_back(ptr, stream)
        except Exception as error:
            tell(f"{who} gave back {ptr:#x} on stream {stream:#x} of {self.device}: {error}")

    def block(self, nbytes: int, stream: int = 0, keep: object = None) -> Allocation:
        """A block as an object whose death gives it back, for libraries that hold on to an owner.

        ``keep``: what keeps a foreign stream in existence. The block holds on to it, and is given back behind the stream's work.
        """
        opened = self._open_device()
        home = opened.streams.external_stream(stream) if keep is None else _kept(opened.streams, stream, keep)
        with self.device.entered():
            if home.external and opened.handle.capturing(home.handle):
                raise UnsupportedError(
                    f"{home!r} is capturing a graph, and {nbytes} bytes of devmem's memory cannot belong to one: allocate "
                    f"before the capture, or let the library's own allocator serve it"
                )
            found: Allocation = opened.memory.allocate(nbytes, home)
        return found

    def block_for_all(self, nbytes: int, kind: MemoryKind = MemoryKind.DEVICE, flags: int = 0) -> Allocation:
        """A block for a library that says nothing of streams: it is freed when the device has done all that it had to do."""
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
        if asked.driver is opened.handle.driver:
            raise DevmemError(
                f"{self.device} takes its memory from a library that takes it from {self.device} again: give one of the two "
                f"another allocator, devmem.use_memory(devmem.memory.DriverMemory()) say"
            )
        return opened


def lend(nbytes: int, stream: int = 0, device: Any = None) -> tuple[int, Callable[[], None]]:
    """Lend one block of a device's current memory stack: its address, and a function that takes it back.

    Parameters
    ----------
    nbytes : int
        How many; of none the address is 0.
    stream : int
        Handle of the stream that the memory is used on; it must exist until the block is taken back.
    device : Device, int or str, optional
        Whose memory; the current device's, if not given.
    """
    loans = LentBlocks(device)
    ptr = loans.lend(nbytes, stream)
    return ptr, lambda: loans.take_back(ptr, stream)


class KeptStream(Stream):
    """A foreign stream that exists for as long as this object does."""

    __slots__ = ("keep",)

    def __init__(self, streams: Any, handle: int, keep: object) -> None:
        super().__init__(streams, handle, external=True)
        self.keep = keep

    def order_handle(self) -> int:
        """The legacy stream, behind all that is on this one now: memory stacks keep no handle that is not devmem's own."""
        self.services.order(LEGACY_STREAM, self.handle)
        return LEGACY_STREAM


class AllStreams(Stream):
    """Stands for every stream of a device."""

    __slots__ = ()

    def __init__(self, streams: Any, handle: int) -> None:
        super().__init__(streams, handle)
        self.simple = False  # a block whose home is all streams is never freed without asking for the order

    def order_handle(self) -> int:
        """The legacy stream of a device that is idle."""
        self.device_handle.driver.synchronize()
        return LEGACY_STREAM


def _kept(streams: Any, handle: int, keep: object) -> Stream:
    known: Stream = streams.external_stream(handle)
    return KeptStream(streams, handle, keep) if known.external else known


def tell(message: str) -> None:
    """Warn where nothing can be raised, not even a warning that somebody has made an error."""
    try:
        warnings.warn(message, DevmemWarning, stacklevel=3)
    except DevmemWarning:
        pass
