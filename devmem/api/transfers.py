"""Copies that go on while the caller does something else."""

from __future__ import annotations

from typing import Any

from .._core import handle
from .._core.handle import Transfer


def copy_async(src: Any, dst: Any = None, *, stream: Any = None, device: Any = None) -> Transfer:
    """Begin a copy between host and device, or on a device, and return at once a handle that owns both sides.

    Parameters
    ----------
    src : array_like or DeviceNDArray
        What to copy. Of pageable memory a large part may still be read by the call itself; it is never read after the call.
        Page-locked memory must not be changed before the copy is done.
    dst : ndarray or DeviceNDArray, optional
        Where to: same shape and dtype. Not given: a new array on the other side, in the source's order of axes.
    stream : stream, optional
        Orders the copy; the array's own, the current or the default one, if not given.
    device : Device, int or str, optional
        Where a new device array is made; the current device, if not given.

    Returns
    -------
    Transfer
        ``wait``, ``result``, ``done``; it can be awaited, and used in ``with``. Dropping it is safe: the copy runs, and both
        sides live until it is done. A new host array is seen through ``result`` only. A large download into pageable memory
        is put there by whoever waits; the call returns when all of it is enqueued, so later work on the stream comes after.

    Raises
    ------
    LayoutError
        The destination has another shape or dtype, is read-only, or is on another device than ``device``.
    TypeError
        Both sides are on the host.
    BackendError
        Nothing could be enqueued. What the driver says later is raised by ``wait`` and ``result``.
    """
    return handle.copy_async(src, dst, stream, device)
