"""What a driver is asked to do for a strided copy: its plan, in as few calls as the device can do it in."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial
from itertools import pairwise
from typing import TYPE_CHECKING

from ...spi.errors import DevmemError
from ...spi.types import Capability, CopyKind
from ..base.layout import Rows

if TYPE_CHECKING:
    from ..device.open_device import Context
    from ..ordering.stream import Stream

H2D, D2D = CopyKind.H2D, CopyKind.D2D  # an enum's attribute takes as long as a call


def run(context: Context, plan: Rows, dst: int, src: int, kind: CopyKind, stream: Stream, blocking: bool) -> bool:
    """Do what the plan says. Whether the host side may still be touched."""
    steps = list(_copies(context, plan, dst, src, kind, stream.handle))
    running = False
    # Only the last has to wait: those before it are on the same stream.
    try:
        for step in steps[:-1]:
            running |= step(blocking=False)
        running |= steps[-1](blocking=blocking)
    except BaseException:
        if len(steps) > 1:  # some of it may be on its way, and the caller is about to let go of both sides
            with suppress(DevmemError):
                context.driver.stream_synchronize(stream.handle)
        raise
    return running and not blocking


def calls(context: Context, plan: Rows, kind: CopyKind = H2D) -> int:
    """Driver calls that a plan takes on this device: between it and the host, either way, or on it."""
    if not strided(context, plan, kind):
        return plan.calls * plan.height
    slices = plan.slices() if context.has(Capability.VOLUME_COPY) else None
    return plan.calls if slices is None else len(slices.offsets)


def strided(context: Context, plan: Rows, kind: CopyKind = H2D) -> bool:
    """Whether the device copies these rows in one call, and better so than one by one."""
    multiple = 1 if kind is D2D else context.info.strided_pitch_multiple
    return context.has(Capability.STRIDED_COPY) and not (plan.dst_pitch % multiple or plan.src_pitch % multiple)


# -- below -------------------------------------------------------------------------------------------------------------


def _copies(
    context: Context, plan: Rows, dst: int, src: int, kind: CopyKind, handle: int
) -> Iterator[Callable[..., bool]]:
    """The driver calls of a plan, in as many dimensions as the device copies in."""
    driver, width, height, pitches = context.driver, plan.width, plan.height, (plan.dst_pitch, plan.src_pitch)
    pitched = strided(context, plan, kind)
    slices = plan.slices() if plan.outer and pitched and context.has(Capability.VOLUME_COPY) else None
    if slices is not None:
        depth, dst_rows, src_rows, offsets = slices
        for to, origin in offsets:
            sides = (dst + to, pitches[0], dst_rows, src + origin, pitches[1], src_rows)
            yield partial(driver.copy_3d, *sides, width, height, depth, kind, handle)
    elif height > 1 and pitched:
        for to, origin in plan.offsets():
            yield partial(driver.copy_2d, dst + to, pitches[0], src + origin, pitches[1], width, height, kind, handle)
    else:
        for to, origin in plan.offsets():
            for row in range(height):
                there, here = dst + to + row * pitches[0], src + origin + row * pitches[1]
                for offset, nbytes in _pieces(context, there, here, width, kind):
                    yield partial(driver.copy, there + offset, here + offset, nbytes, kind, handle)


def _pieces(context: Context, dst: int, src: int, nbytes: int, kind: CopyKind) -> list[tuple[int, int]]:
    """(offset, bytes) of the parts of a run; cut where page-locked memory begins or ends, because CUDA refuses a copy that
    lies half in it.
    """
    if kind is D2D or not context.registry.segments:
        return [(0, nbytes)]
    host = src if kind is H2D else dst
    ends = [0, *(cut - host for cut in context.registry.cuts(host, host + nbytes)), nbytes]
    return [(start, end - start) for start, end in pairwise(ends)]
