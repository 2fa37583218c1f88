"""Host to device, through the ring."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy.typing as npt

from ....spi.types import CopyKind
from ...base.array_view import ArrayView
from ...base.rows import rows
from ...ordering.stream import Stream
from ..submit import Submitter
from .blocks import Block, block_offset, block_shape, blocks
from .ring import Ring


def upload(
    ring: Ring,
    submitter: Submitter,
    dst: ArrayView[Any],
    fill: Callable[[Block, npt.NDArray[Any]], object],
    stream: Stream,
) -> None:
    """Enqueue an upload of elements from any source: ``fill(block, slot)`` writes those of a block into C-contiguous host memory.

    The blocks come in C order. ``fill`` is called on this thread, with the device entered, while the device copies the block
    before. On return the last block is enqueued, and the source may be changed.
    """
    strides, itemsize = dst.strides, dst.itemsize
    with ring.lease(stream) as lease:
        for block in blocks(dst.shape, itemsize, ring.block_bytes(dst.nbytes)):
            shape = block_shape(dst.shape, block)
            slot = ring.take(lease, math.prod(shape) * itemsize)
            packed = slot.array(shape, dst.dtype)
            fill(block, packed)
            plan = rows(shape, itemsize, strides, packed.strides)
            lease.in_flight = slot.in_ring
            ptr = dst._ptr + block_offset(strides, block)
            kept = None if slot.in_ring else packed  # a slot of the ring is the lease's to give back
            submitter.copy_rows(plan, ptr, slot.ptr, CopyKind.H2D, stream, False, kept)
            if slot.in_ring:
                ring.enqueued(slot, lease)
