"""Device to host, through the ring."""

from __future__ import annotations

import threading
import weakref
from typing import TYPE_CHECKING, Any

import numpy.typing as npt

from ...spi.types import CopyKind
from ..layout import Shape, rows
from ..plans import run
from .blocks import block_offset, blocks

if TYPE_CHECKING:
    from ..context import Context
    from ..stream import Stream
    from .ring import Slot


class Download:
    """A copy from a device to a host array, block by block; the array holds the elements when `finish` has returned.

    `start` enqueues everything on the stream, on the caller's thread, so that nothing later overtakes a block. It returns when
    the last block is enqueued; those that the ring is too small for were taken out on the way. A download that is dropped, or
    has failed, leaves its blocks where they are: nothing is written to the destination any more.
    """

    def __init__(self, context: Context, dst: npt.NDArray[Any]) -> None:
        self.context = context
        self.dst = dst
        self._changed = threading.Condition()
        self._emptying = threading.Lock()
        #: Slots with blocks of ours, each with the part of the destination that its elements belong in.
        self._slots: dict[Slot, npt.NDArray[Any]] = {}
        self._error: BaseException | None = None

    def start(self, src: int, strides: Shape, stream: Stream) -> None:
        """Enqueue the copy of what ``src`` and ``strides`` say; the device is entered."""
        try:
            self._start(src, strides, stream)
        except BaseException as error:
            self.fail(error)
            raise

    def _start(self, src: int, strides: Shape, stream: Stream) -> None:
        context, dst = self.context, self.dst
        ring = context.ring
        me = weakref.ref(self)
        for block in blocks(dst.shape, dst.itemsize, ring.slot_bytes):
            part = dst[block]
            slot = ring.take(stream, part.nbytes)
            packed = slot.array(part.shape, dst.dtype)
            plan = rows(part.shape, dst.itemsize, packed.strides, strides)
            try:
                run(context, plan, slot.ptr, src + block_offset(strides, block), CopyKind.D2H, stream, not slot.in_ring)
            except BaseException:
                ring.abandon(slot, stream)
                raise
            if slot.in_ring:
                with self._changed:
                    self._slots[slot] = part
                slot.fetched = me
                ring.enqueued(slot, stream)
            else:
                ring.crew.copy(part, packed)

    def finish(self) -> None:
        """Wait for the blocks that are under way, and take them out; the device is entered.

        Raises
        ------
        DevmemError
            The wait for a block failed. The destination holds what came before.
        """
        ring = self.context.ring
        with self._changed:
            slots = list(self._slots)
        for slot in slots:
            if ring.claim(slot):
                try:
                    if slot.wanted_by() is self:
                        ring.settle(slot)
                finally:
                    ring.put_back(slot)
        with self._changed:
            self._changed.wait_for(lambda: not self._slots or self._error is not None)
        if self._error is not None:
            raise self._error

    def take_out(self, slot: Slot) -> None:
        """Put the elements in a slot where they belong. Called once for each block, by whoever has the slot."""
        part = self._slots[slot]
        try:
            with self._emptying:
                if self._error is None:
                    self.context.ring.crew.copy(part, slot.array(part.shape, part.dtype))
        except BaseException as error:
            self.fail(error)
            raise
        with self._changed:
            del self._slots[slot]
            self._changed.notify_all()

    def fail(self, error: BaseException) -> None:
        """Take note that a block will not come, or is not wanted any more. Later nobody writes to the destination."""
        with self._changed:
            self._error = self._error or error
            self._changed.notify_all()
        with self._emptying:
            pass  # another thread may be writing there
