"""Many small host arrays packed into one run of bytes, as they are to lie in a block of device memory."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import numpy.typing as npt

from ...base.layout import like_strides
from ...copy.host_copy import raw

#: Each array begins at a multiple of this, as arrays of their own do.
ALIGNMENT = 256
#: Bytes that are packed at a time: when they are copied on, they are still in the processor's cache.
PACKED_BYTES = 4 << 20

Arrays = list[npt.NDArray[Any]]


def aligned_sizes(sizes: list[int]) -> list[int]:
    """Bytes from the beginning of each array to that of the next: the given list itself, where no size needs padding."""
    if not any(nbytes % ALIGNMENT for nbytes in set(sizes)):
        return sizes
    return [-(-nbytes // ALIGNMENT) * ALIGNMENT for nbytes in sizes]


def groups(steps: list[int], total: int) -> Iterator[slice]:
    """Neighbours that are packed together: `PACKED_BYTES` at most, of ``total``, or one array."""
    start = nbytes = 0
    for at, step in enumerate(steps if total > PACKED_BYTES else ()):
        if nbytes + step > PACKED_BYTES and at > start:
            yield slice(start, at)
            start, nbytes = at, 0
        nbytes += step
    yield slice(start, len(steps))


def join(arrays: Arrays, sizes: list[int], *, gaps: bool) -> tuple[bytes, bool]:
    """The elements of each array in its own order of axes; and whether all arrays were C-contiguous.

    With ``gaps`` each is padded up to its step. ``bytes.join`` asks each array for its buffer and nothing else: nothing that
    NumPy has is as fast for small ones. It refuses arrays that are not contiguous, and types that have no buffer.
    """
    padding = {nbytes: bytes(-nbytes % ALIGNMENT) for nbytes in set(sizes)} if gaps else {}

    def joined(ready: Arrays) -> bytes:
        if not gaps:
            return b"".join(ready)  # type: ignore[arg-type]  # an ndarray is a buffer
        padded: list[Any] = [
            part for array, nbytes in zip(ready, sizes, strict=True) for part in (array, padding[nbytes])
        ]
        return b"".join(padded)

    try:
        return joined(arrays), True
    except (BufferError, ValueError, TypeError):
        return joined([_bytes(array) for array in arrays]), False


def _bytes(array: npt.NDArray[Any]) -> npt.NDArray[np.uint8]:
    """The elements one behind the other, in the order in which the device has them."""
    if not array.nbytes:
        return np.empty(0, np.uint8)
    if not array.flags.c_contiguous:
        strides = like_strides(array.shape, array.strides, array.itemsize)
        axes = sorted(range(array.ndim), key=lambda axis: -strides[axis])
        array = np.ascontiguousarray(raw(array).transpose(axes))
    return array.reshape(-1).view(np.uint8)
