"""Host to device, through the ring."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from ....spi.types import CopyKind
from ...base.layout import Shape, rows
from ..statistics import Waiting
from ..submit import run
from .blocks import Block, block_offset, block_shape, blocks

if TYPE_CHECKING:
    from ...device.open_device import Context
    from ...ordering.stream import Stream


def upload(context: Context, dst: int, strides: Shape, src: npt.NDArray[Any], stream: Stream, blocking: bool) -> None:
    """Copy host elements, of any layout, to where ``dst`` and ``strides`` say; the device is entered.

    It returns when the last block is enqueued, and the source may be changed or dropped; or, ``blocking``, when all is there.
    Whatever is enqueued on the stream later comes after it.
    """
    crew = context.ring.crew
    feed(context, dst, strides, src.shape, src.dtype, lambda block, slot: crew.copy(slot, src[block]), stream, blocking)


def feed(
    context: Context,
    dst: int,
    strides: Shape,
    shape: Shape,
    dtype: np.dtype[Any],
    fill: Callable[[Block, npt.NDArray[Any]], object],
    stream: Stream,
    blocking: bool,
) -> None:
    """Upload elements as `upload` does, wherever they come from: ``fill(block, slot)`` puts those of a block into a slot.

    The blocks come in C order. ``fill`` is called on this thread, with this device entered, while the device copies the block
    before. The slot is C-contiguous host memory: the ring's, or ordinary where that has none to give. No more of either is filled
    ahead of the device than the ring holds.
    """
    ring = context.ring
    itemsize = dtype.itemsize
    with ring.taking(stream) as taking:
        for block in blocks(shape, itemsize, ring.block_bytes(math.prod(shape) * itemsize)):
            lengths = block_shape(shape, block)
            slot = ring.take(taking, math.prod(lengths) * itemsize)
            packed = slot.array(lengths, dtype)
            fill(block, packed)
            plan = rows(lengths, itemsize, strides, packed.strides)
            taking.begun = slot.in_ring
            running = run(context, plan, dst + block_offset(strides, block), slot.ptr, CopyKind.H2D, stream, False)
            if slot.in_ring:
                ring.enqueued(slot, taking)
            elif running:
                context.reclaim.retire(stream, packed)
    if blocking:
        with Waiting(context, "the stream"):
            context.driver.stream_synchronize(stream.handle)
