"""Cutting arrays into blocks of bounded size."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product

Block = tuple[slice, ...]

#: Runs of bytes are cut at multiples of this: a cache line, in which elements end too.
GRAIN = 64


def blocks(shape: tuple[int, ...], itemsize: int, limit: int) -> Iterator[Block]:
    """Indices of blocks that make up an array of this shape, each of ``limit`` bytes at most, in C order.

    Inner axes stay whole as far as they fit. A block has one element at least, however large that is.
    """
    axis, inner = len(shape), itemsize
    while axis and inner * shape[axis - 1] <= limit:
        axis -= 1
        inner *= shape[axis]
    whole = (slice(None),) * (len(shape) - axis)
    if not axis:
        yield whole
        return
    axis -= 1
    length = shape[axis]
    most = max(1, limit // inner)
    grain = GRAIN if inner == 1 and most >= GRAIN else 1
    most -= most % grain
    count = -(-length // most)
    # Of much the same size: a last one of a few bytes would cost as much as the others.
    ends = [min(-(-length * at // (count * grain)) * grain, length) for at in range(count + 1)]
    cut = [slice(ends[at], ends[at + 1]) for at in range(count)]
    for outer in product(*map(range, shape[:axis])):
        for part in cut:
            yield (*(slice(at, at + 1) for at in outer), part, *whole)


def block_shape(shape: tuple[int, ...], block: Block) -> tuple[int, ...]:
    """Lengths of a block's axes."""
    return tuple(
        length if part.stop is None else part.stop - part.start for length, part in zip(shape, block, strict=True)
    )


def block_offset(strides: tuple[int, ...], block: Block) -> int:
    """Bytes from an array's first element to a block's."""
    return sum((part.start or 0) * stride for part, stride in zip(block, strides, strict=True))
