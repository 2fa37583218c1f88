"""Many managed arrays at once."""

from __future__ import annotations

import reprlib
from collections.abc import Iterable

from .._core.arrays import managed
from .._core.arrays.managed import ManagedNDArray
from .._core.device.device import DeviceLike
from .._core.ordering.event import StreamLike


def prefetch_managed(
    arrays: Iterable[ManagedNDArray],
    to_host: bool = False,
    stream: StreamLike = 0,
    *,
    device: DeviceLike = None,
    numa_node: int | None = None,
    discard: bool = False,
) -> None:
    """Move the pages of managed arrays ahead of use, ordered on the stream: by one driver call where the driver has it (CUDA 13).

    Parameters
    ----------
    arrays : iterable of managed arrays, or one
        Views count with all bytes that they span.
    to_host : bool
        To the host; to the device that made them, unless anything else is named.
    stream : stream, optional
        A stream of the arrays' device.
    device : Device, str or int, optional
        To another device of the backend.
    numa_node : int, optional
        To one NUMA node of the host, by the system's number.
    discard : bool
        The elements are not needed: nothing has to be moved, and they are undefined until they are written.

    A hint: nothing but time depends on it, unless ``discard`` is given.

    Raises
    ------
    UnsupportedError
        The device has no managed memory that moves, or its driver cannot name the place, or cannot discard.
    LayoutError
        More than one place is named, or an array that is to be discarded has gaps.

    Examples
    --------
    >>> a, b = dm.managed_array(1000), dm.managed_array(1000)
    >>> dm.prefetch_managed([a, b])
    >>> dm.prefetch_managed([a, b], numa_node=0)
    """
    managed.prefetch(_managed(arrays), to_host, stream, device, numa_node, discard)


def discard_managed(arrays: Iterable[ManagedNDArray], stream: StreamLike = 0) -> None:
    """Say that the elements of managed arrays are not needed any more, in stream order: their pages need not be moved or kept.

    The elements are undefined until they are written; the arrays stay valid.

    Raises
    ------
    UnsupportedError
        The driver cannot: CUDA can from 13.0 on, HIP from ROCm 10 on, where the device supports it.
    LayoutError
        An array has gaps between its elements, which would be discarded too.

    Examples
    --------
    >>> a = dm.managed_array(1000)
    >>> dm.discard_managed([a])
    >>> dm.synchronize()
    >>> a[...] = 1
    """
    managed.discard(_managed(arrays), stream)


def _managed(arrays: Iterable[ManagedNDArray]) -> list[ManagedNDArray]:
    if isinstance(arrays, ManagedNDArray):  # iterable, too: by rows, or elements
        return [arrays]
    if not isinstance(arrays, Iterable):
        raise TypeError(f"give the managed arrays in a list, not {reprlib.repr(arrays)}")
    found: list[ManagedNDArray] = []
    for array in arrays:
        if not isinstance(array, ManagedNDArray):  # as they come: there may be no end of others
            raise TypeError(
                f"these are hints for managed arrays, not for a {type(array).__name__}: managed_array() makes one"
            )
        found.append(array)
    return found


__all__ = ["discard_managed", "prefetch_managed"]
