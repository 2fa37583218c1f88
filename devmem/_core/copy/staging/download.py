"""Device to host, through the ring."""

from __future__ import annotations

import math
import threading
import weakref
from typing import TYPE_CHECKING, Any, NoReturn

import numpy as np
import numpy.typing as npt

from ....spi.errors import DevmemError, LayoutError
from ....spi.types import CopyKind
from ....toolkit.deferred_errors import fresh_copy
from ...base.layout import Shape, span
from ..rows import rows
from ..submit import Submitter
from .blocks import Block, block_offset, block_shape, blocks

if TYPE_CHECKING:
    from ...ordering.stream import Stream
    from .ring import Ring, Slot, SlotReader


class Download:
    """A copy from a device to a host array, block by block; the array holds the elements when `finish` has returned.

    A subclass may put them elsewhere: `layout` says what comes, `put` takes each block.

    `start` enqueues everything on the stream, on the caller's thread, so that nothing later overtakes a block. It returns when
    the last block is enqueued; those that the ring is too small for were taken out on the way. A download that is dropped, or
    has failed, leaves its blocks where they are: nothing is written to the destination any more.
    """

    def __init__(self, ring: Ring, submitter: Submitter, dst: npt.NDArray[Any]) -> None:
        self.ring = ring
        self.submitter = submitter
        self.dst = dst
        self._changed = threading.Condition()
        self._emptying = threading.RLock()  # a finalizer of the user's, run by the collector in between, may copy
        #: Slots with blocks of ours: which, and its elements as they lie there.
        self._slots: dict[Slot, tuple[Block, npt.NDArray[Any]]] = {}
        #: How often a slot with a block of ours was put back.
        self._returned = 0
        self._failed = False
        #: What who waits is still to be told.
        self._error: BaseException | None = None

    @property
    def layout(self) -> tuple[Shape, np.dtype[Any]]:
        """Shape and dtype of what comes."""
        return self.dst.shape, self.dst.dtype

    def put(self, block: Block, elements: npt.NDArray[Any]) -> None:
        """Put a block's elements where they belong. Called in any order, on any thread, for one block at a time."""
        self.ring.workers.copy(self.dst[block], elements)

    def start(self, src: int, strides: Shape, stream: Stream, gaps: bool = False) -> None:
        """Enqueue the copy of what ``src`` and ``strides`` say; the device is entered.

        With ``gaps`` all that lies between a block's first and last element is fetched with it, in one run of bytes: for
        rows that are too narrow to be fetched one by one. The strides then do not grow from one axis to the next.
        """
        try:
            self._start(src, strides, stream, gaps)
        except BaseException:
            self.give_up()
            raise

    def _start(self, src: int, strides: Shape, stream: Stream, gaps: bool) -> None:
        (shape, dtype), ring = self.layout, self.ring
        itemsize = dtype.itemsize
        me: weakref.ref[SlotReader] = weakref.ref(self)
        limit = ring.block_bytes(math.prod(shape) * itemsize)
        with ring.lease(stream) as lease:
            for block in blocks(shape, itemsize, limit, strides if gaps else None):
                lengths = block_shape(shape, block)
                nbytes = span(lengths, strides, itemsize)[1] if gaps else math.prod(lengths) * itemsize
                slot = ring.take(lease, nbytes)
                if self._failed:  # a block that was taken out just now, here or by another thread
                    self._tell()
                elements = slot.array(lengths, dtype, strides if gaps else None)
                plan = rows((nbytes,), 1, (1,), (1,)) if gaps else rows(lengths, itemsize, elements.strides, strides)
                lease.begun = slot.in_ring
                there = src + block_offset(strides, block)
                self.submitter.copy_rows(plan, slot.ptr, there, CopyKind.D2H, stream, not slot.in_ring)
                if slot.in_ring:
                    with self._changed:
                        self._slots[slot] = block, elements
                    slot.fetched = me
                    ring.enqueued(slot, lease)
                else:
                    self.put(block, elements)

    def finish(self) -> None:
        """Wait for the blocks that are under way, and take them out; the device is entered.

        Raises
        ------
        DevmemError
            The wait for a block failed. The destination holds what came before.
        OSError
            The destination is a file, and cannot be written to.
        """
        while self._take_out_more():
            pass
        if self._failed:
            self._tell()

    def returned(self) -> None:
        """A slot with a block of ours was put back, perhaps by one who was interrupted: whoever waits for us may have it."""
        with self._changed:
            self._returned += 1
            self._changed.notify_all()

    def take_out(self, slot: Slot) -> None:
        """Put the elements in a slot where they belong. Called by whoever has the slot; again, if it was interrupted.

        What goes wrong is told to who waits for the download; who only needs the slot has nothing to do with it.
        """
        try:
            with self._emptying:
                block = self._slots.get(slot)
                if block is not None and not self._failed:
                    self.put(*block)
        except Exception as error:
            self.fail(error)
            return
        with self._changed:
            self._slots.pop(slot, None)
            self._changed.notify_all()

    def fail(self, error: BaseException) -> None:
        """Take note that a block will not come, for who waits. Later nobody writes to the destination."""
        self._end(error)

    def give_up(self) -> None:
        """The same, where who waits knows what happened, or nobody waits any more."""
        self._end(None)

    # -- below ---------------------------------------------------------------------------------------------------------

    def _end(self, error: BaseException | None) -> None:
        with self._changed:
            if not self._failed:
                self._error = None if error is None else fresh_copy(error)
            self._failed = True
            self._changed.notify_all()
        with self._emptying:
            pass  # another thread may be writing there

    def _tell(self) -> NoReturn:
        """Raise what went wrong, once."""
        error, self._error = self._error, None
        try:
            raise error or LayoutError("this copy has failed, and was told of: make it anew")
        finally:
            del error  # or its traceback and this frame would keep each other

    def _take_out_more(self) -> bool:
        """Take out what can be had, and wait for what others are at; whether there is more."""
        ring = self.ring
        with self._changed:
            slots, returned = list(self._slots), self._returned
        with ring.lease(self.ring.streams.legacy) as lease:
            for slot in slots:
                if ring.claim(slot, lease):
                    if slot.wanted_by() is self:
                        self._settle(slot)
                    ring.put_back(slot, lease)
        with self._changed:
            if self._slots and not self._failed:
                with self.ring.statistics.waiting("a block that another thread takes out"):
                    self._changed.wait_for(lambda: not self._slots or self._failed or self._returned != returned)
            return bool(self._slots) and not self._failed

    def _settle(self, slot: Slot) -> None:
        """Have a block of ours taken out. If the wait for it fails, who called is told of that now, and not once more."""
        known = self._failed
        try:
            self.ring.settle(slot)
        except DevmemError:
            if not known:
                self._error = None
            raise
