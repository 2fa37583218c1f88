"""Cutting arrays into blocks of bounded size."""

from __future__ import annotations

import math
from collections.abc import Iterator
from itertools import product

from ...base.layout import Shape, contiguous_strides

Block = tuple[slice, ...]

#: Runs of bytes are cut at multiples of this: a cache line, in which elements end too.
GRAIN = 64


def blocks(shape: Shape, itemsize: int, limit: int, strides: Shape | None = None) -> Iterator[Block]:
    """Indices of blocks that make up an array of this shape, each of ``limit`` bytes at most, in C order.

    Inner axes stay whole as far as they fit. A block has one element at least, however large that is. With ``strides``, which
    do not grow from one axis to the next, what counts are the bytes from a block's first to its last, gaps included.
    """
    steps = contiguous_strides(shape, itemsize) if strides is None else strides
    axis, inner = len(shape), itemsize
    while axis and (inner + (shape[axis - 1] - 1) * steps[axis - 1] <= limit or 0 in shape):
        axis -= 1
        inner += (shape[axis] - 1) * steps[axis]
    whole = (slice(None),) * (len(shape) - axis)
    if not axis:
        yield whole
        return
    axis -= 1
    length = shape[axis]
    most = max(1, (limit - inner) // steps[axis] + 1) if steps[axis] else length
    grain = GRAIN if inner == steps[axis] == 1 and most >= GRAIN else 1
    most -= most % grain
    count = -(-length // most)
    # Of much the same size: a last one of a few bytes would cost as much as the others.
    ends = [min(-(-length * at // (count * grain)) * grain, length) for at in range(count + 1)]
    cut = [slice(ends[at], ends[at + 1]) for at in range(count)]
    for outer in product(*map(range, shape[:axis])):
        for part in cut:
            yield (*(slice(at, at + 1) for at in outer), part, *whole)


def block_shape(shape: Shape, block: Block) -> Shape:
    """Lengths of a block's axes."""
    return tuple(
        length if part.stop is None else part.stop - part.start for length, part in zip(shape, block, strict=True)
    )


def block_offset(strides: Shape, block: Block) -> int:
    """Bytes from an array's first element to a block's."""
    return sum((part.start or 0) * stride for part, stride in zip(block, strides, strict=True))


def nearest(shape: Shape, strides: Shape) -> int:
    """The axis along which elements lie closest."""
    axes = [axis for axis, length in enumerate(shape) if length > 1]
    return min(axes, key=lambda axis: abs(strides[axis]), default=0)


def tiles(shape: Shape, itemsize: int, limit: int, long: set[int]) -> Iterator[Block]:
    """Indices of blocks of so many bytes at most that make up an array; some axes are cut only when the others are used up."""
    lengths = list(shape)
    while math.prod(lengths) * itemsize > limit and max(lengths, default=1) > 1:
        axes = [axis for axis, length in enumerate(lengths) if length > 1]
        axis = max(axes, key=lambda axis: (axis not in long, lengths[axis]))
        lengths[axis] = -(-lengths[axis] // 2)
    steps = [range(0, total, length) for total, length in zip(shape, lengths, strict=True)]
    for starts in product(*steps):
        yield tuple(
            slice(start, min(start + length, total))
            for start, length, total in zip(starts, lengths, shape, strict=True)
        )
