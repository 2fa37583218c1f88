"""Data on its way to a device while the program works."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Never, TypeVar, overload

import numpy as np
import numpy.typing as npt

from .._core.arrays.ndarray import ArrayTree, DeviceNDArray
from .._core.base.advice import refuse_keywords
from .._core.bulk.prefetch import Prefetcher
from .._core.device.device import DeviceLike
from .._core.ordering.event import StreamLike

S = TypeVar("S", bound=np.generic)
U = TypeVar("U", bound=np.generic)


@overload
def prefetch(
    iterable: Iterable[npt.NDArray[S]], depth: int = 2, *, stream: StreamLike = 0, device: DeviceLike = None
) -> Prefetcher[DeviceNDArray[S]]: ...


@overload
def prefetch(
    iterable: Iterable[tuple[npt.NDArray[S], npt.NDArray[U]]],
    depth: int = 2,
    *,
    stream: StreamLike = 0,
    device: DeviceLike = None,
) -> Prefetcher[tuple[DeviceNDArray[S], DeviceNDArray[U]]]: ...


@overload
def prefetch(
    iterable: Iterable[ArrayTree], depth: int = 2, *, stream: StreamLike = 0, device: DeviceLike = None
) -> Prefetcher[Any]: ...


def prefetch(
    iterable: Iterable[ArrayTree],
    depth: int = 2,
    *,
    stream: StreamLike = 0,
    device: DeviceLike = None,
    **others: Never,
) -> Prefetcher[Any]:
    """Upload the items of an iterable in the background, and iterate over them in order.

    A thread takes items from the iterable, reads or makes them there, and uploads them on a stream of its own, while the caller
    works on the ones before::

        for images, labels in devmem.prefetch(batches, depth=2):
            step(images, labels)

    Parameters
    ----------
    iterable : iterable
        Of arrays, or of trees of them as for `to_device_many`: tuples, lists and dicts. It is advanced on another thread, in a
        copy of the caller's context. Page-locked arrays are read until their item is handed over and its copies are done;
        pageable ones have been read before the iterable is asked for the next item.
    depth : int
        How many items are uploaded at most, and not handed over yet: 1 to 65,536.
    stream : stream, optional
        Where the caller uses the arrays, which are bound to it. Not given: the stream that is current at each step.
    device : Device, int or str, optional
        Where to; the current device, if not given.

    Returns
    -------
    Prefetcher
        An iterator, for ``for``, ``async for`` and ``with``. The items are the caller's. The copies of an item may still be under
        way: the caller's stream waits for them, the host does not; what is given ``d.ptr`` has to run on that stream.
        ``close``, dropping it, or leaving ``with`` stops the thread, closes the iterable and drops what was not handed over.

    Raises
    ------
    LayoutError
        ``depth`` is less than 1, or more than 65,536.
    TypeError
        It is no iterable of batches, but one batch in a mapping, or text; or an item is text, as a file's name is.
    Exception
        What the iterable raised, or the upload of an item, after the items before it; then the iteration is over.

    Examples
    --------
    >>> batches = (np.full(1000, n) for n in range(3))
    >>> [int(batch[0]) for batch in dm.prefetch(batches, depth=2)]
    [0, 1, 2]
    """
    if others:
        refuse_keywords("prefetch()", others)
    return Prefetcher(iterable, depth, stream, device)


__all__ = ["prefetch"]
