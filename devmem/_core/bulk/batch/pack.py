"""Many small host arrays as one run of bytes, as they are to lie in a block of device memory."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import numpy.typing as npt

from ...base.layout import like_strides
from ...copy.host_copy import raw

#: Each array begins at a multiple of this, as arrays of their own do.
ALIGNMENT = 256
#: Bytes that are gathered at a time: what is gathered is still in the processor's cache when it is copied on.
GATHERED = 4 << 20

Arrays = list[npt.NDArray[Any]]


def aligned(nbytes: int) -> int:
    """Bytes from the beginning of an array of so many to that of the next."""
    return (nbytes + ALIGNMENT - 1) // ALIGNMENT * ALIGNMENT


def steps(sizes: list[int], distinct: set[int]) -> list[int]:
    """The same for each: the very list that was given, where nothing has to be filled up. ``distinct``: the sizes, once each."""
    return [aligned(nbytes) for nbytes in sizes] if any(nbytes % ALIGNMENT for nbytes in distinct) else sizes


def parts(steps: list[int], total: int) -> Iterator[slice]:
    """Neighbours that are gathered together: `GATHERED` bytes at most, of ``total``, or one array."""
    if total <= GATHERED:
        yield slice(0, len(steps))
        return
    start = nbytes = 0
    for at, step in enumerate(steps):
        if nbytes + step > GATHERED and at > start:
            yield slice(start, at)
            start, nbytes = at, 0
        nbytes += step
    yield slice(start, len(steps))


def gathered(arrays: Arrays, sizes: list[int], *, gaps: bool) -> tuple[bytes, bool]:
    """The elements of each array in its own order of axes; and whether all were C-contiguous.

    With ``gaps`` each is filled up to its step. ``bytes.join`` asks each array for its buffer and nothing else: nothing that
    NumPy has is as fast for small ones.
    """
    padding = {nbytes: bytes(-nbytes % ALIGNMENT) for nbytes in set(sizes)} if gaps else {}
    for prepare in _PREPARATIONS:
        ready: list[Any] = arrays if prepare is None else list(map(prepare, arrays))
        if gaps:
            ready = [each for array, nbytes in zip(ready, sizes, strict=True) for each in (array, padding[nbytes])]
        try:
            return b"".join(ready), prepare is None
        except (BufferError, ValueError, TypeError):
            if prepare is _bytes:
                raise
    raise AssertionError("not reached")


def _packed(array: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """The elements one behind the other, in the order in which the device has them."""
    if array.flags.c_contiguous:
        return array
    strides = like_strides(array.shape, array.strides, array.itemsize)
    axes = sorted(range(array.ndim), key=lambda axis: -strides[axis])
    return np.ascontiguousarray(raw(array).transpose(axes))


def _bytes(array: npt.NDArray[Any]) -> npt.NDArray[np.uint8]:
    """The same as bytes: some types have no buffer, datetimes and those of extensions."""
    return _packed(array).reshape(-1).view(np.uint8)


#: What is done to arrays before they are joined, the next where that does not do.
_PREPARATIONS: tuple[Callable[[npt.NDArray[Any]], npt.NDArray[Any]] | None, ...] = (None, _packed, _bytes)
