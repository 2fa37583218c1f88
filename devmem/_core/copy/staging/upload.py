"""Host to device, through the ring."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

from ....spi.types import CopyKind
from ...base.layout import Shape
from ...ordering.stream import Stream
from ..rows import rows
from ..submit import Submitter
from .blocks import Block, block_offset, block_shape, blocks
from .ring import Ring


def upload(ring: Ring, submitter: Submitter, dst: int, strides: Shape, src: npt.NDArray[Any], stream: Stream) -> None:
    """Enqueue a copy of host elements, of any layout, to where ``dst`` and ``strides`` say; the device is entered.

    It returns when the last block is enqueued, and the source may be changed or dropped. Whatever is enqueued on the stream later
    comes after it.
    """
    workers = ring.workers
    upload_blocks(
        ring, submitter, dst, strides, src.shape, src.dtype, lambda block, slot: workers.copy(slot, src[block]), stream
    )


def upload_blocks(
    ring: Ring,
    submitter: Submitter,
    dst: int,
    strides: Shape,
    shape: Shape,
    dtype: np.dtype[Any],
    fill: Callable[[Block, npt.NDArray[Any]], object],
    stream: Stream,
) -> None:
    """Upload elements from any source: ``fill(block, slot)`` puts those of a block into a slot.

    The blocks come in C order. ``fill`` is called on this thread, with this device entered, while the device copies the block
    before. The slot is C-contiguous host memory: the ring's, or ordinary where that has none to give. No more of either is filled
    ahead of the device than the ring holds.
    """
    itemsize = dtype.itemsize
    with ring.lease(stream) as lease:
        for block in blocks(shape, itemsize, ring.block_bytes(math.prod(shape) * itemsize)):
            lengths = block_shape(shape, block)
            slot = ring.take(lease, math.prod(lengths) * itemsize)
            packed = slot.array(lengths, dtype)
            fill(block, packed)
            plan = rows(lengths, itemsize, strides, packed.strides)
            lease.begun = slot.in_ring
            there = dst + block_offset(strides, block)
            running = submitter.copy_rows(plan, there, slot.ptr, CopyKind.H2D, stream, False)
            if slot.in_ring:
                ring.enqueued(slot, lease)
            elif running:
                ring.completions.keep_until_complete(stream, packed)
