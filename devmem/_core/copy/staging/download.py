"""Device to host, through the ring.

`Download.start` enqueues every block on the stream, so that no later work overtakes one, and returns when the last is enqueued;
blocks for which the ring is too small are stored on the way. `Download.finish` stores the rest. A block may also be stored by
another copy that needs its slot, on that copy's thread: an error of storing belongs to the download all the same, and is raised
by its `finish`.

A download that was dropped, cancelled or has failed stores nothing any more: its slots only refer to it weakly, and `cancel`
and `fail` return when no thread is storing a block of it. Storing that was interrupted is repeated, by whichever copy takes the
slot next.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, NoReturn

import numpy.typing as npt

from ....spi.errors import LayoutError
from ....spi.types import CopyKind
from ....toolkit.deferred_errors import fresh_copy
from ....toolkit.locks import Rank, lock
from ...base.array_view import ArrayView
from ...base.layout import span
from ...base.rows import rows
from ...ordering.stream import Stream
from ..submit import Submitter
from .blocks import Block, block_offset, block_shape, blocks
from .ring import Ring, Slot


class Download:
    """A copy of device elements to any destination, block by block.

    ``store(block, elements)`` writes the elements of a block to the destination: in any order, on any thread, one block at a
    time.
    """

    def __init__(self, ring: Ring, submitter: Submitter, store: Callable[[Block, npt.NDArray[Any]], object]) -> None:
        self._ring = ring
        self._submitter = submitter
        self._store = store
        self._storing = lock("download", Rank.DRIVER)  # entered again by a finalizer that copies, on the same thread
        #: Slots whose block is not stored yet: the block, and its elements in the slot.
        self._blocks: dict[Slot, tuple[Block, npt.NDArray[Any]]] = {}
        self.failed = False
        #: What the next `finish` raises.
        self._error: BaseException | None = None

    def start(self, src: ArrayView[Any], stream: Stream, gaps: bool = False) -> None:
        """Enqueue the copy; the device is entered.

        With ``gaps`` a block is fetched in one run of bytes, with all that lies between its elements: for rows that are too
        narrow to be fetched one by one. The strides then do not grow from one axis to the next.
        """
        try:
            self._start(src, stream, gaps)
        except BaseException:
            self.cancel()
            raise

    def _start(self, src: ArrayView[Any], stream: Stream, gaps: bool) -> None:
        ring, strides, itemsize = self._ring, src.strides, src.itemsize
        slot_strides = strides if gaps else None
        with ring.lease(stream) as lease:
            for block in blocks(src.shape, itemsize, ring.block_bytes(src.nbytes), slot_strides):
                shape = block_shape(src.shape, block)
                nbytes = span(shape, strides, itemsize)[1] if gaps else math.prod(shape) * itemsize
                slot = ring.take(lease, nbytes)
                if self.failed:  # a block was stored just now, here or on another thread
                    self._raise()
                elements = slot.array(shape, src.dtype, slot_strides)
                plan = rows((nbytes,), 1, (1,), (1,)) if gaps else rows(shape, itemsize, elements.strides, strides)
                lease.in_flight = slot.in_ring
                ptr = src._ptr + block_offset(strides, block)
                kept = None if slot.in_ring else elements  # a slot of the ring is the lease's to give back
                self._submitter.copy_rows(plan, slot.ptr, ptr, CopyKind.D2H, stream, not slot.in_ring, kept)
                if slot.in_ring:
                    self._blocks[slot] = block, elements
                    slot.reader = self
                    ring.enqueued(slot, lease)
                else:
                    self._store(block, elements)

    def finish(self) -> None:
        """Wait for the blocks in flight, and store them; the device is entered.

        Raises
        ------
        DevmemError
            The wait for a block failed. The destination holds the blocks that were stored before.
        OSError
            The destination is a file that cannot be written to.
        """
        ring = self._ring
        while self._blocks and not self.failed:
            with ring.lease(ring.streams.legacy) as lease:
                for slot in list(self._blocks):
                    if ring.claim(slot, lease):
                        if slot.reader is self:
                            ring.drain(slot)
                        ring.give_back(lease)
            ring.wait_until(self._can_go_on)
        if self.failed:
            self._raise()

    def deliver(self, slot: Slot) -> None:
        """Store the elements of a slot. Called by the holder of the slot, which is not concerned by an error."""
        try:
            with self._storing:
                block = self._blocks.get(slot)
                if block is not None and not self.failed:
                    self._store(*block)
        except Exception as error:
            self.fail(error)
        else:
            self._blocks.pop(slot, None)
            self._ring.wake()

    def cancel(self) -> None:
        """Store nothing any more: the caller knows what happened, or drops the download."""
        self.fail(None)

    def fail(self, error: BaseException | None) -> None:
        """Store nothing any more, and let `finish` raise this."""
        if not self.failed:
            self._error = None if error is None else fresh_copy(error)
        self.failed = True
        self._ring.wake()
        with self._storing:
            pass  # another thread may be storing a block

    # -- below ---------------------------------------------------------------------------------------------------------

    def _can_go_on(self) -> bool:
        return self.failed or not self._blocks or any(slot.holder is None for slot in list(self._blocks))

    def _raise(self) -> NoReturn:
        error, self._error = self._error, None
        try:
            raise error or LayoutError("this copy has failed, and its error was raised: make it anew")
        finally:
            del error  # or its traceback and this frame would keep each other
