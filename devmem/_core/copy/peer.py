"""From one device to another: directly where the hardware can, else by way of the destination's ring, in bounded memory."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from ...spi.errors import DevmemError
from ...spi.types import Capability
from ..base.current_device import Entered
from ..base.layout import Rows, Shape, contiguous_strides, is_contiguous, memory_order, rows, span
from ..lifetime.allocation import Using
from . import host_device
from .host_device import MANY_CALLS, Way
from .staging.blocks import Block, block_offset, nearest, tiles
from .staging.upload import feed
from .statistics import Waiting, begin, count
from .submit import calls

if TYPE_CHECKING:
    from ..arrays.ndarray import DeviceNDArray
    from ..device.open_device import Context
    from ..ordering.stream import Stream

#: Why it goes as it does, for the trace.
PEER = "one device reaches the other's memory"
APART = "no device reaches the other's memory"
ROW_BY_ROW = f"{PEER}, but only in more than {MANY_CALLS} calls of the driver"
SMALL = "and it is too small for the slots to pay"
NARROW = f"and blocks of it would take more than {MANY_CALLS} calls of a driver each"


def move(dst: DeviceNDArray[Any], src: DeviceNDArray[Any], stream: Stream, *, blocking: bool) -> None:
    """Copy between arrays of one shape and dtype on two devices; the destination's is entered.

    It comes after what is on the stream, and after what is on the source's own. On return the source was read, and may be written
    to or given back; the destination is complete, or, not ``blocking``, the rest of it is enqueued on the stream.
    """
    if not dst.nbytes:
        return
    began = begin()
    way = _move(dst, src, stream, blocking)
    count(dst.context, way.path, dst.nbytes, began, None, way.why, src, stream, way.plan)


def _move(dst: DeviceNDArray[Any], src: DeviceNDArray[Any], stream: Stream, blocking: bool) -> Way:
    here, there = dst.context, src.context
    stream.check_waitable(here.driver)
    origin = src.stream_in_force()
    plan = rows(dst.shape, dst.itemsize, dst.strides, src.strides)
    reaches = _reaches(here, there)
    if reaches and plan.calls * plan.height <= MANY_CALLS:
        _move_directly(dst, src, plan, origin, stream)
        return Way("peer", PEER, plan)
    why = ROW_BY_ROW if reaches else APART
    with Entered(there) as driver:
        origin.check_waitable(driver)
    if dst.nbytes >= min(here.staged_from, here.ring.slot_bytes) and dst.itemsize <= here.ring.slot_bytes:
        steps = _Steps(dst, src)
        if steps.few():
            steps.take(origin, stream, blocking)
            return Way("peer staged", why, plan)
        why = f"{why}, {NARROW}"
    else:
        why = f"{why}, {SMALL}"
    _move_in_tiles(dst, src, origin, stream)
    if blocking:
        here.driver.stream_synchronize(stream.handle)
    return Way("peer by the host", why, plan)


def _move_in_tiles(dst: DeviceNDArray[Any], src: DeviceNDArray[Any], origin: Stream, stream: Stream) -> None:
    """By host arrays, none of them larger than a slot, in tiles that are as wide as can be on both sides."""
    limit = dst.context.ring.slot_bytes
    for tile in tiles(dst.shape, dst.itemsize, limit, {nearest(side.shape, side.strides) for side in (dst, src)}):
        part = src._at(tile)
        host = np.empty(part.shape, part.dtype)
        with Entered(src.context), Using(origin, src.allocation):
            host_device.get(part, host, origin, True)
        host_device.put(dst._at(tile), host, stream, False)
        dst.context.ring.hold_back(stream)  # what the driver has yet to read stays, and would soon be the whole


class _Steps:
    """Two arrays on two devices in the destination's order of memory: blocks of one side are runs of bytes there, or rows."""

    def __init__(self, dst: DeviceNDArray[Any], src: DeviceNDArray[Any]) -> None:
        axes, flipped = memory_order(dst.shape, dst.strides)
        self.dst, self.src = dst, src
        self.dtype = dst.dtype
        self.shape: Shape = tuple(dst.shape[axis] for axis in axes)
        self.strides, self.origin_strides = (
            tuple(-side.strides[axis] if axis in flipped else side.strides[axis] for axis in axes)
            for side in (dst, src)
        )
        self.low = dst.ptr + span(dst.shape, dst.strides, dst.itemsize)[0]
        self.origin = src.ptr + sum((src.shape[axis] - 1) * src.strides[axis] for axis in flipped)
        if all(is_contiguous(self.shape, strides, dst.itemsize) for strides in (self.strides, self.origin_strides)):
            self.shape, self.dtype = (dst.nbytes,), np.dtype(np.uint8)
            self.strides = self.origin_strides = (1,)

    def few(self) -> bool:
        """Whether a few calls of each driver copy a block."""
        size = self.dtype.itemsize
        packed = contiguous_strides(self.shape, size)
        return (
            calls(self.dst.context, rows(self.shape, size, self.strides, packed)) <= MANY_CALLS
            and calls(self.src.context, rows(self.shape, size, packed, self.origin_strides)) <= MANY_CALLS
        )

    def take(self, origin: Stream, stream: Stream, blocking: bool) -> None:
        """Fetch each block into a slot of the destination's ring, while the destination's device reads the one before.

        A slot is page-locked for its own vendor's devices. To another's it is memory like any other, so its driver goes by the
        rules that hold for that: by way of slots of its own.
        """
        src, strides = self.src, self.origin_strides

        def fetch(block: Block, room: npt.NDArray[Any]) -> None:
            part = src._view(self.origin + block_offset(strides, block), room.shape, strides, self.dtype)
            with Entered(src.context), Using(origin, src.allocation):
                host_device.get(part, room, origin, True)

        feed(self.dst.context, self.low, self.strides, self.shape, self.dtype, fetch, stream, blocking)


def _reaches(here: Context, there: Context) -> bool:
    """Whether one device copies from the other's memory by itself."""
    same = here.info.backend == there.info.backend
    return same and here.has(Capability.PEER) and bool(here.driver.can_access(there.info.ordinal))


def _move_directly(
    dst: DeviceNDArray[Any], src: DeviceNDArray[Any], plan: Rows, origin: Stream, stream: Stream
) -> None:
    # The source's stream knows nothing of the destination's: what was enqueued there has to be done first. And as the source's
    # memory is given back in its own streams' order alone, the copy is waited for.
    with Entered(src.context), Using(origin, src.allocation), Waiting(dst.context, "the source's stream"):
        origin.synchronize()
    here, there = dst.context, src.context
    steps = [
        (to + row * plan.dst_pitch, origin_offset + row * plan.src_pitch)
        for to, origin_offset in plan.offsets()
        for row in range(plan.height)
    ]
    ordinals = here.info.ordinal, there.info.ordinal
    try:
        for at, (to, from_) in enumerate(steps, 1):
            here.driver.copy_peer(
                dst.ptr + to,
                ordinals[0],
                src.ptr + from_,
                ordinals[1],
                plan.width,
                stream.handle,
                blocking=at == len(steps),
            )
    except BaseException:
        with suppress(DevmemError):  # some of it may be on its way, and the source is about to be the caller's again
            here.driver.stream_synchronize(stream.handle)
        raise
