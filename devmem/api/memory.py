"""Verbs that choose where device memory comes from, measure it, and give it back."""

from __future__ import annotations

import sys

from .._core.base.arguments import integer_of
from .._core.base.device_handle import CurrentDevice
from .._core.device.device import DeviceLike, open_device_of
from .._core.device.open_device import finish_closing
from .._core.device.opening import check_not_left_behind, open_devices
from .._core.stacks.installed import MemoryScope
from .._core.telemetry.copy_statistics import TransferStats
from ..spi.errors import ConfigError, PluginError
from ..spi.memory import MemoryResource
from ..spi.types import MemoryInfo, MemoryKind
from ..toolkit.deferred_errors import FirstError


def memory_info(device: DeviceLike = None) -> MemoryInfo:
    """Bytes ``(free, total, live, pending, cached, host)`` of a device; the current one, if none is named.

    ``free`` and ``total`` are the driver's; ``live`` is what devmem handed out, ``pending`` what was dropped and waits in the
    queue, ``cached`` what memory stacks keep for reuse. Page-locked memory is the host's: ``host`` has its ``(live, pending,
    cached)``.

    Examples
    --------
    >>> d = dm.zeros(1000)
    >>> dm.memory_info().live >= d.nbytes
    True
    """
    return open_device_of(device).memory.memory_info()


def use_memory(resource: MemoryResource | str, device: DeviceLike = None, *, kind: str = "device") -> MemoryScope:
    """Choose where a device's memory comes from: from now on, or in ``with`` for this thread or task until the end of the block.

    From now on means: in all threads, until another choice, or ``close()`` of the result; what a block says goes before it. A
    block takes back its own choice alone, in whatever order, thread or task it is left, and ends then for tasks, too, that were
    begun inside.

    Parameters
    ----------
    resource : MemoryResource or str
        An object with ``allocate`` and ``deallocate``, or a stack as text: names separated by commas, outermost first, each
        with its arguments behind a colon (``"limit:4GiB,statistics,pool"``), or ``"module:attribute"``. Blocks go back to
        the resource that they came from, so it may change at any time. A text means the same stack each time, one for
        each device.
    device : Device, int or str, optional
        Whose memory; the current device's, if not given.
    kind : str
        Which memory: ``"device"``, that of device arrays; ``"pinned"``, ``"mapped"`` or ``"managed"``, that of `pinned_array`,
        `mapped_array` and `managed_array`. Requests for flags that the stack's memory does not have (``wc=True``, say) are
        served by plain memory beside it.

    Raises
    ------
    ConfigError
        No resource has that name, it does not take these arguments, or its memory is of another kind.
    PluginError
        The object is not a resource, or cannot be loaded.
    ClosedError
        The object was in use on the device before that was reset or closed: make a new one.
    DevmemError
        The object is in use on another device.
    UnsupportedError
        The device has no such memory, or cannot do what the resource needs.

    Examples
    --------
    >>> with dm.use_memory("limit:1MiB,pool"):
    ...     dm.empty(1 << 20)
    Traceback (most recent call last):
        ...
    devmem.OutOfMemory: ...
    """
    opened = open_device_of(device)
    try:
        wanted = MemoryKind(kind)
    except ValueError:
        raise ConfigError(f"use_memory(kind={kind!r}): give one of {', '.join(MemoryKind)}") from None
    opened.handle.require_kind(wanted)
    try:
        found = opened.memory.stacks.resource(resource, wanted)
    except (ConfigError, PluginError) as error:
        if not isinstance(resource, str):
            raise
        raise type(error)(f"use_memory({resource!r}): {error}") from error
    return MemoryScope(opened.memory.stacks, opened.memory.stacks.bind(found, wanted))


def trim(keep_bytes: int = 0, device: DeviceLike = None) -> None:
    """Free what waits in the queue, then give cached memory back to the driver until at most ``keep_bytes`` are kept.

    Of every open device, unless one is named. Frees nothing inside ``defer_cleanup()``. What still runs is waited for only where
    freeing waits anyway: by a pool, which keeps blocks, and by memory without a stream's order.

    Examples
    --------
    >>> d = dm.zeros(1000)
    >>> del d
    >>> dm.trim()                               # what was dropped is freed, what is cached goes back
    >>> dm.memory_info().pending
    0
    """
    keep_bytes = integer_of(keep_bytes, "trim(keep_bytes=): what is kept is a whole number of bytes")
    if keep_bytes < 0:
        raise ConfigError(f"trim(keep_bytes={keep_bytes}): what is kept is a number of bytes, from 0 on")
    keep_bytes = min(keep_bytes, sys.maxsize)  # drivers count in 64 bits
    chosen = open_devices() if device is None else [open_device_of(device)]
    if not chosen:
        check_not_left_behind()
    with FirstError() as first:
        for opened in chosen:
            try:
                with CurrentDevice(opened.handle):
                    opened.trim(keep_bytes)
            except Exception as error:  # one that is lost, or whose plugin fails, must not keep the others' memory
                first.put(error)
        first.attempt(finish_closing)  # last: an array of an open device may be what kept memory of a closed one


def transfer_stats(reset: bool = False, device: DeviceLike = None) -> TransferStats:
    """Count what was copied on a device since it was opened, or since the last ``reset``, by path.

    Parameters
    ----------
    reset : bool
        Start anew. What other threads count meanwhile is in the next answer.
    device : Device, int or str, optional
        Whose copies; the current device's, if not given. A copy between devices is its destination's.

    Returns
    -------
    TransferStats
        ``{"h2d direct": {"copies": 3, "bytes": 384, "seconds": 2.1e-05, "waited_seconds": 0.0}}``, of the paths that were taken;
        a dict, which prints as a table.
        Each copy is counted once, however many parts it was done in, so the bytes of all paths are the bytes that were moved.
        ``seconds`` is what the calls took on the host: with a stream named, until the copy was enqueued. Of direct copies of
        less than 1 MiB the first sixteen of every 4096 are timed, and their mean stands for the others. ``waited_seconds``
        is the part that the host stood still for slots of the ring and for streams; where the driver's own call waits, that
        cannot be told apart.

    Examples
    --------
    >>> before = dm.transfer_stats(reset=True)
    >>> d = dm.to_device(np.zeros(1000))
    >>> sum(path["bytes"] for path in dm.transfer_stats().values())
    8000
    """
    return open_device_of(device).statistics.take(reset)
