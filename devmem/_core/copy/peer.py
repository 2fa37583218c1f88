"""Copies from one device to another: directly where the hardware can, else by way of the destination's ring, in bounded memory.

The source's stream knows nothing of the destination's: what was enqueued on the source has to be done first, so the
host waits for it. As the source's memory is given back in its own streams' order alone, a direct copy is waited for
too. An event of one driver cannot release a slot of another's ring, so staged copies use the destination's ring.
"""

from __future__ import annotations

from contextlib import suppress
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from ...spi.errors import DevmemError
from ...spi.types import Capability
from ..base.array_view import ArrayView, along_memory
from ..base.device_handle import CurrentDevice
from ..base.layout import Shape, contiguous_strides
from ..lifetime.allocation import Allocation, StreamUse
from ..ordering.stream import Stream
from .engine import CopyEngine, by_host, in_order_of_view
from .plan import MANY_CALLS, CopyPlan, Route
from .rows import Rows, rows
from .staging import upload
from .staging.blocks import Block, block_offset
from .statistics import begin
from .submit import calls

PEER = "one device reaches the other's memory"
APART = "no device reaches the other's memory"
ROW_BY_ROW = f"{PEER}, but only in more than {MANY_CALLS} calls of the driver"
SMALL = "and it is too small for the slots to pay"
NARROW = f"and blocks of it would take more than {MANY_CALLS} calls of a driver each"


class PeerSource(NamedTuple):
    """The source of a copy between devices: its engine and view, the allocation to keep, and the stream that orders it."""

    engine: CopyEngine
    view: ArrayView[Any]
    allocation: Allocation
    stream: Stream

    def fetch(self, part: ArrayView[Any], host: npt.NDArray[Any]) -> None:
        """Download a part of the source."""
        with CurrentDevice(self.engine.handle), StreamUse(self.stream, self.allocation):
            self.engine.get(part, host, self.stream, True)


def copy_from_peer(
    engine: CopyEngine, dst: ArrayView[Any], source: PeerSource, stream: Stream, *, blocking: bool
) -> None:
    """Copy between views of one shape and dtype on two devices, and count it; the destination's device is entered.

    It comes after the work that is on the stream, and after that on the source's own. On return the source was read, and may be
    written to or freed; the destination is complete, or, not ``blocking``, the rest of it is enqueued on the stream.
    """
    if not dst.nbytes:
        return
    began = begin()
    stream.check_waitable()
    with CurrentDevice(source.engine.handle):
        source.stream.check_waitable()
    plan = _plan(engine, dst, source)
    if plan.path == "peer":
        assert plan.rows is not None
        _copy_directly(engine, dst, source, plan.rows, stream)
    elif plan.route is Route.STAGED:
        _copy_staged(engine, dst, source, stream)
        if blocking:
            engine.wait_for(stream)
    else:
        by_host(engine, dst, stream, source.view, source.fetch)
        if blocking:
            engine.handle.driver.stream_synchronize(stream.handle)
    engine.statistics.count(plan.path, dst.nbytes, began, None, plan.why, source.view, stream, plan.rows)


def _plan(engine: CopyEngine, dst: ArrayView[Any], source: PeerSource) -> CopyPlan:
    src = source.view
    plan = rows(dst.shape, dst.itemsize, dst.strides, src.strides)
    reaches = _reaches(engine, source.engine)
    if reaches and plan.calls * plan.height <= MANY_CALLS:
        return CopyPlan(Route.DIRECT, "peer", PEER, plan)
    why = ROW_BY_ROW if reaches else APART
    if dst.nbytes < min(engine.staging_threshold, engine.slot_bytes) or dst.itemsize > engine.slot_bytes:
        return CopyPlan(Route.PACKED, "peer by the host", f"{why}, {SMALL}", plan)
    there, here = along_memory(dst), in_order_of_view(dst, src)
    packed = contiguous_strides(there.shape, dst.itemsize)
    few = (
        calls(engine.handle, rows(there.shape, dst.itemsize, there.strides, packed)) <= MANY_CALLS
        and calls(source.engine.handle, rows(there.shape, dst.itemsize, packed, here.strides)) <= MANY_CALLS
    )
    if few:
        return CopyPlan(Route.STAGED, "peer staged", why, plan)
    return CopyPlan(Route.PACKED, "peer by the host", f"{why}, {NARROW}", plan)


def _reaches(here: CopyEngine, there: CopyEngine) -> bool:
    """Whether one device copies from the other's memory by itself."""
    same = here.handle.info.backend == there.handle.info.backend
    return same and here.handle.has(Capability.PEER) and here.handle.driver.can_access(there.handle.info.ordinal)


def _copy_staged(engine: CopyEngine, dst: ArrayView[Any], source: PeerSource, stream: Stream) -> None:
    """Fetch each block into a slot of the destination's ring, while the destination's device reads the one before.

    A slot is page-locked for its own vendor's devices. Another vendor's driver takes it for pageable memory.
    """
    there, here = along_memory(dst), in_order_of_view(dst, source.view)
    shape: Shape = there.shape
    dtype, strides, origin_strides = dst.dtype, there.strides, here.strides
    if there.is_c_contiguous() and here.is_c_contiguous():
        shape, dtype, strides, origin_strides = (dst.nbytes,), np.dtype(np.uint8), (1,), (1,)

    def fetch(block: Block, room: npt.NDArray[Any]) -> None:
        ptr = here._ptr + block_offset(origin_strides, block)
        source.fetch(ArrayView(ptr, room.shape, dtype, origin_strides), room)

    upload(engine.ring, engine.submitter, ArrayView(there._ptr, shape, dtype, strides), fetch, stream)


def _copy_directly(engine: CopyEngine, dst: ArrayView[Any], source: PeerSource, plan: Rows, stream: Stream) -> None:
    there = source.engine.handle
    with (
        CurrentDevice(there),
        StreamUse(source.stream, source.allocation),
        engine.statistics.waiting("the source's stream"),
    ):
        source.stream.synchronize()
    driver, ordinals = engine.handle.driver, (engine.handle.info.ordinal, there.info.ordinal)
    steps = [
        (dst._ptr + to + row * plan.dst_pitch, source.view._ptr + origin + row * plan.src_pitch)
        for to, origin in plan.offsets()
        for row in range(plan.height)
    ]
    try:
        for at, (to, origin) in enumerate(steps, 1):
            driver.copy_peer(to, ordinals[0], origin, ordinals[1], plan.width, stream.handle, blocking=at == len(steps))
    except BaseException:
        with suppress(DevmemError):  # some of it may be on its way, and the source is about to be the caller's again
            driver.stream_synchronize(stream.handle)
        raise
