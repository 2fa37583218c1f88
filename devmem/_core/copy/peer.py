"""Copies from one device to another: directly where the hardware can, else by way of the destination's ring, in bounded memory.

What was enqueued on the source's stream comes first, and the source's memory stays until the copy has read it. Where the streams
of one device can wait for events of the other (`orders`), they do. The call waits where that cannot be, and where it promises
that the source has been read when it returns, as every verb but `copy_async` does.

An event of one driver cannot release a slot of another's ring, so staged copies use the destination's ring. A copy whose call
waits for no stream goes through slots of its growing ring: the source's device writes each slot behind its own stream's work, and
the destination's stream waits for that before it reads the slot.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from ...spi.errors import DevmemError, UnsupportedError
from ...spi.types import Capability, CopyKind
from ..base.address import address
from ..base.array_view import ArrayView, address_range, both_along_memory
from ..base.device_handle import CurrentDevice
from ..base.layout import Shape, contiguous_strides, new_host, overlap
from ..base.rows import Rows, calls, rows
from ..lifetime.allocation import Allocation, StreamUse
from ..ordering.event import orders
from ..ordering.stream import Stream
from ..telemetry.copy_statistics import begin
from .engine import CopyEngine, by_host
from .plan import MANY_CALLS, NEVER_WAITS, CopyPlan, Route
from .staging import Ring, upload
from .staging.blocks import Block, block_offset

D2H = CopyKind.D2H

PEER = "one device reaches the other's memory"
APART = "no device reaches the other's memory"
SYSTEM = "one side is the host's memory, used in place"
DISABLED = "access to the other's memory is disabled"
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
            self.engine.download_part(part, host, self.stream, True)

    def fetch_before(self, engine: CopyEngine, stream: Stream, part: ArrayView[Any], host: npt.NDArray[Any]) -> None:
        """Enqueue the download of a part into a slot, and let a stream of the other device, which is entered, wait for it."""
        plan = rows(part.shape, part.itemsize, host.strides, part.strides)
        try:
            with CurrentDevice(self.engine.handle), StreamUse(self.stream, self.allocation):
                self.engine.submitter.copy_rows(plan, address(host), part._ptr, D2H, self.stream, False)
            self.come_before(engine, stream)
        except BaseException:
            with suppress(DevmemError):  # the slot is about to be another copy's
                self.stream.synchronize()
            raise

    def come_before(self, engine: CopyEngine, stream: Stream) -> None:
        """Let a stream of the other device, which is entered, wait for what is on the source's stream now."""
        there = self.engine
        with CurrentDevice(there.handle), StreamUse(self.stream, self.allocation):
            event = there.completions.events.record(self.stream.handle)
        engine.handle.driver.stream_wait_peer(stream.handle, event, there.handle.info.ordinal)


def copy_from_peer(
    engine: CopyEngine, dst: ArrayView[Any], source: PeerSource, stream: Stream, *, blocking: bool, waits: bool = True
) -> None:
    """Copy between views of one shape and dtype on two devices, and count it; the destination's device is entered.

    It comes after the work that is on the stream, and after that on the source's own. On return the source was read, and may be
    written to or freed; the destination is complete, or, not ``blocking``, the rest of it is enqueued on the stream. Unless it
    ``waits``, the call waits for neither stream, where the devices can order them: then the source is not to be written to until
    the copy is complete.
    """
    if not dst.nbytes:
        return
    coherent = engine.handle.info.coherence and source.engine.handle.info.coherence
    if coherent and overlap(address_range(dst), address_range(source.view)):  # in the host's memory
        host = new_host(dst.shape, dst.dtype)
        source.fetch(source.view, host)
        engine.upload(dst, host, stream, blocking)
        return
    began, view = begin(), source.view
    dst, ordered_view = both_along_memory(dst, view)
    source = source._replace(view=ordered_view)
    stream.check_waitable()
    with CurrentDevice(source.engine.handle):
        source.stream.check_waitable()
    ordered = engine.can_grow and orders(engine.handle, source.engine.handle)
    waits = waits or not ordered
    plan = _plan(engine, dst, source, waits)
    if plan.path == "peer":
        assert plan.rows is not None
        _copy_directly(engine, dst, source, plan.rows, stream, waits)
    elif plan.route is Route.STAGED:
        ring, fetch = (
            (engine.ring, source.fetch)
            if waits
            else (engine.growing_ring, partial(source.fetch_before, engine, stream))
        )
        _copy_staged(engine, dst, source.view, stream, ring, fetch)
        if blocking:
            engine.wait_for(stream)
    else:
        by_host(engine, dst, stream, source.view, source.fetch)
        if blocking:
            engine.handle.driver.stream_synchronize(stream.handle)
    engine.statistics.count(plan.path, dst.nbytes, began, None, plan.why, view, stream, plan.rows)


def _plan(engine: CopyEngine, dst: ArrayView[Any], source: PeerSource, waits: bool) -> CopyPlan:
    src = source.view
    plan = rows(dst.shape, dst.itemsize, dst.strides, src.strides)
    system = _is_system(engine, dst) or _is_system(source.engine, src)
    reaches, allowed = (
        not system and _reaches(engine, source.engine),
        source.engine.handle.info.ordinal not in engine.apart,
    )
    if reaches and allowed and (plan.calls * plan.height <= MANY_CALLS or not waits):
        return CopyPlan(Route.DIRECT, "peer", PEER, plan)
    if not waits:
        why = SYSTEM if system else APART if not reaches else DISABLED
        return CopyPlan(Route.STAGED, "peer staged", f"{why}, and {NEVER_WAITS}", plan)
    why = SYSTEM if system else APART if not reaches else ROW_BY_ROW if allowed else DISABLED
    if dst.nbytes < min(engine.staging_threshold, engine.slot_bytes) or dst.itemsize > engine.slot_bytes:
        return CopyPlan(Route.PACKED, "peer by the host", f"{why}, {SMALL}", plan)
    packed = contiguous_strides(dst.shape, dst.itemsize)
    few = (
        calls(engine.handle, rows(dst.shape, dst.itemsize, dst.strides, packed)) <= MANY_CALLS
        and calls(source.engine.handle, rows(dst.shape, dst.itemsize, packed, src.strides)) <= MANY_CALLS
    )
    if few:
        return CopyPlan(Route.STAGED, "peer staged", why, plan)
    return CopyPlan(Route.PACKED, "peer by the host", f"{why}, {NARROW}", plan)


def _is_system(engine: CopyEngine, view: ArrayView[Any]) -> bool:
    """Whether an array is in the host's memory, which the driver does not know: its copies between devices do not take that."""
    if not engine.coherent:
        return False
    with CurrentDevice(engine.handle):
        return engine.is_system(view)


def _reaches(here: CopyEngine, there: CopyEngine) -> bool:
    """Whether one device copies from the other's memory by itself."""
    same = here.handle.info.backend == there.handle.info.backend
    return same and here.handle.has(Capability.PEER) and here.handle.driver.can_access(there.handle.info.ordinal)


def can_access(engine: CopyEngine, there: CopyEngine) -> bool:
    """Whether work of one device could reach the other's memory by itself. It always reaches its own."""
    if engine is there:
        return True
    with CurrentDevice(engine.handle):
        return _reaches(engine, there)


def set_access(engine: CopyEngine, there: CopyEngine, enabled: bool) -> None:
    """Let work of one device reach the other's memory by itself, or no more. Waits for both devices.

    Raises
    ------
    UnsupportedError
        It cannot, or its backend does not tell access on or off.
    """
    here, ordinal = engine.handle, there.handle.info.ordinal
    if not can_access(engine, there):
        raise UnsupportedError(
            f"{here.device} cannot reach memory of {there.handle.device}: copies between them pass through the host"
        )
    here.require(
        Capability.PEER_ACCESS, "switch access to another device", "copies between the two choose for themselves"
    )
    for each in (there.handle, here):
        with CurrentDevice(each) as driver:
            driver.synchronize()
    with CurrentDevice(here) as driver:
        if not enabled:
            engine.apart.add(ordinal)  # first: no copy on another thread asks the driver for what it is about to forbid
        driver.peer_access(ordinal, enabled)
        if enabled:
            engine.apart.discard(ordinal)


def _copy_staged(
    engine: CopyEngine,
    dst: ArrayView[Any],
    src: ArrayView[Any],
    stream: Stream,
    ring: Ring,
    fetch: Callable[[ArrayView[Any], npt.NDArray[Any]], object],
) -> None:
    """Fetch each block into a slot of the destination's, while the destination's device reads the one before.

    A slot is page-locked for its own vendor's devices. Another vendor's driver takes it for pageable memory.
    """
    shape: Shape = dst.shape
    dtype, strides, origin_strides = dst.dtype, dst.strides, src.strides
    if dst.is_c_contiguous() and src.is_c_contiguous():
        shape, dtype, strides, origin_strides = (dst.nbytes,), np.dtype(np.uint8), (1,), (1,)

    def fill(block: Block, room: npt.NDArray[Any]) -> None:
        ptr = src._ptr + block_offset(origin_strides, block)
        fetch(ArrayView(ptr, room.shape, dtype, origin_strides), room)

    upload(ring, engine.submitter, ArrayView(dst._ptr, shape, dtype, strides), fill, stream)


def _copy_directly(
    engine: CopyEngine, dst: ArrayView[Any], source: PeerSource, plan: Rows, stream: Stream, waits: bool
) -> None:
    """Let the destination's device copy by itself. Both devices are inside a call meanwhile: neither is closed or opened anew."""
    there = source.engine.handle
    ordinals = engine.handle.info.ordinal, there.info.ordinal
    steps = [
        (dst._ptr + to + row * plan.dst_pitch, source.view._ptr + origin + row * plan.src_pitch)
        for to, origin in plan.offsets()
        for row in range(plan.height)
    ]
    with CurrentDevice(there):
        if waits:
            with StreamUse(source.stream, source.allocation), engine.statistics.waiting("the source's stream"):
                source.stream.synchronize()
        with CurrentDevice(engine.handle) as driver:
            if not waits:
                source.engine.readers[stream.device_handle.device] = engine
                source.come_before(engine, stream)
                source.allocation.before_peer_use(stream)
            try:
                for at, (to, origin) in enumerate(steps, 1):
                    last = waits and at == len(steps)
                    driver.copy_peer(to, ordinals[0], origin, ordinals[1], plan.width, stream.handle, blocking=last)
            except BaseException:
                with suppress(DevmemError):  # some may be on its way, and the source is about to be the caller's again
                    driver.stream_synchronize(stream.handle)
                raise
            finally:
                if not waits:
                    source.allocation.after_peer_use(stream, engine.completions)
