"""Moving bytes on one device, in any layout: between arrays, and one value into every element.

As in `transfer`: the device is entered, the regions have one shape and dtype, no byte between the elements of a destination is
written, and each copy is counted once.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

import numpy as np

from ...spi.errors import LayoutError
from ...spi.types import CopyKind
from ..base.arguments import assignable
from ..base.layout import address, is_contiguous, overlap, rows, span
from ..lifetime.allocation import Using
from .device_scratch import unpacking
from .host_device import FEWER, MANY, MANY_CALLS, ONE_RUN, ROWS, Way, get, put
from .host_scratch import scratch
from .staging.blocks import nearest, tiles
from .statistics import Waiting, begin, count
from .submit import calls, run

if TYPE_CHECKING:
    from ..arrays.ndarray import DeviceNDArray
    from ..device.open_device import Context
    from ..ordering.stream import Stream

#: Bytes of a fill pattern that are made on the host before doubling on the device begins.
PATTERN_BYTES = 4096

H2D, D2D = CopyKind.H2D, CopyKind.D2D


def move(dst: DeviceNDArray[Any], src: DeviceNDArray[Any], stream: Stream, *, blocking: bool) -> None:
    """Copy between arrays of one shape and dtype on one device; right also where they overlap. `across.move`: on two."""
    if not dst.nbytes:
        return
    if not overlap(_range(dst), _range(src)):
        began = begin()
        way = place(dst, src, stream, blocking)
    elif (dst.ptr, dst.strides) != (src.ptr, src.strides):
        began = begin()
        way = _move_overlapping(dst, src, stream, blocking)
    else:
        return  # onto itself
    count(dst.context, way.path, dst.nbytes, began, None, way.why, src, stream, way.plan)


def place(dst: DeviceNDArray[Any], src: DeviceNDArray[Any], stream: Stream, blocking: bool) -> Way:
    """What `move` does, between regions that have no byte in common, as a part of a copy that somebody else counts."""
    context = dst.context
    plan = rows(dst.shape, dst.itemsize, dst.strides, src.strides)
    taken = calls(context, plan, D2D)
    # Where the destination is what takes so many, they would not be fewer.
    if taken > MANY_CALLS and taken > FEWER * calls(context, unpacking(dst), D2D):
        _by_the_host(dst, src, stream, blocking)
        return Way("d2d staged", MANY, plan)
    run(context, plan, dst.ptr, src.ptr, D2D, stream, blocking)
    return Way("d2d direct", ONE_RUN) if plan.calls == plan.height == 1 else Way("d2d 2d", ROWS, plan)


def fill(dst: DeviceNDArray[Any], value: object, stream: Stream, *, blocking: bool) -> None:
    """Store one value in every element."""
    if not dst.nbytes:
        return
    context = dst.context
    began = begin()
    cast = assignable(value, dst.dtype)
    if cast.size != 1:
        raise LayoutError(
            f"fill() stores one value, not {cast.size} of shape {cast.shape}: assign them, d[...] = values"
        )
    item = cast.reshape(())
    pattern = item.tobytes()
    if not is_contiguous(dst.shape, dst.strides, dst.itemsize) and not is_contiguous(
        dst.shape, dst.strides, dst.itemsize, "F"
    ):
        way = put(dst, np.broadcast_to(item, dst.shape), stream, blocking)
        count(context, "fill", dst.nbytes, began, None, way.why, dst, stream, way.plan)
        return
    width = next((width for width in (1, 2, 4) if _repeats(pattern, width)), 0)
    if width and dst.ptr % width == 0:
        word = int.from_bytes(pattern[:width], sys.byteorder)
        context.driver.fill(dst.ptr, word, width, dst.nbytes // width, stream.handle)
    else:
        _double(context, dst.ptr, pattern, dst.nbytes, stream)
    if blocking:
        with Waiting(context, "the stream"):
            context.driver.stream_synchronize(stream.handle)
    count(context, "fill", dst.nbytes, began, None, ONE_RUN, dst, stream)


# -- below -------------------------------------------------------------------------------------------------------------


def _by_the_host(dst: DeviceNDArray[Any], src: DeviceNDArray[Any], stream: Stream, blocking: bool) -> None:
    """By host arrays, none of them larger than a slot, in tiles that are as wide as can be on both sides."""
    context = src.context
    stream.check_waitable(context.driver)
    long = {nearest(side.shape, side.strides) for side in (dst, src)}
    for tile in tiles(dst.shape, dst.itemsize, context.ring.slot_bytes, long):
        part = src._at(tile)
        host = np.empty(part.shape, part.dtype)
        get(part, host, stream, True)
        put(dst._at(tile), host, stream, False)
        context.ring.hold_back(stream)  # what the driver has yet to read stays, and would soon be the whole
    if blocking:
        with Waiting(context, "the stream"):
            context.driver.stream_synchronize(stream.handle)


def _move_overlapping(dst: DeviceNDArray[Any], src: DeviceNDArray[Any], stream: Stream, blocking: bool) -> Way:
    """As if the source had been copied away first: it is."""
    aside = src.like(stream)
    with Using(stream, aside.allocation):
        place(aside, src, stream, False)
        place(dst, aside, stream, blocking)
    return Way("d2d aside", "source and destination overlap")


def _range(array: DeviceNDArray[Any]) -> tuple[int, int]:
    low, high = span(array.shape, array.strides, array.itemsize)
    return array.ptr + low, array.ptr + high


def _repeats(pattern: bytes, width: int) -> bool:
    return len(pattern) % width == 0 and pattern == pattern[:width] * (len(pattern) // width)


def _double(context: Context, ptr: int, pattern: bytes, nbytes: int, stream: Stream) -> None:
    """Fill with a pattern of any length: some of it from the host, then each copy doubles what is there."""
    repeats = max(1, min(PATTERN_BYTES, nbytes) // len(pattern))
    first = scratch((repeats * len(pattern),), np.uint8)
    first[:] = np.frombuffer(pattern * repeats, np.uint8)
    driver, handle = context.driver, stream.handle
    if driver.copy(ptr, address(first), first.nbytes, H2D, handle, blocking=False):
        context.reclaim.retire(stream, first)
    done = first.nbytes
    while done < nbytes:
        step = min(done, nbytes - done)
        driver.copy(ptr + done, ptr, step, D2D, handle, blocking=False)
        done += step
