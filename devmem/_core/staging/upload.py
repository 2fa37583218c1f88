"""Host to device, through the ring."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy.typing as npt

from ...spi.types import CopyKind
from ..layout import Shape, rows
from ..plans import run
from .blocks import block_offset, blocks

if TYPE_CHECKING:
    from ..context import Context
    from ..stream import Stream


def upload(context: Context, dst: int, strides: Shape, src: npt.NDArray[Any], stream: Stream, blocking: bool) -> None:
    """Copy host elements, of any layout, to where ``dst`` and ``strides`` say; the device is entered.

    It returns when the last block is enqueued, and the source may be changed or dropped; or, ``blocking``, when all is there.
    Whatever is enqueued on the stream later comes after it.
    """
    ring = context.ring
    itemsize = src.itemsize
    for block in blocks(src.shape, itemsize, ring.slot_bytes):
        part = src[block]
        slot = ring.take(stream, part.nbytes)
        packed = slot.array(part.shape, src.dtype)
        try:
            ring.crew.copy(packed, part)
        except BaseException:
            ring.put_back(slot)
            raise
        plan = rows(part.shape, itemsize, strides, packed.strides)
        try:
            running = run(context, plan, dst + block_offset(strides, block), slot.ptr, CopyKind.H2D, stream, False)
        except BaseException:
            ring.abandon(slot, stream)
            raise
        if slot.in_ring:
            ring.enqueued(slot, stream)
        elif running:
            context.reclaim.retire(stream, packed)
    if blocking:
        context.driver.stream_synchronize(stream.handle)
