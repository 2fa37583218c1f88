"""Where device memory comes from, how much there is, and giving it back."""

from __future__ import annotations

from typing import Any

from .._core import scopes
from .._core.device import context_of, current_context, open_contexts
from .._core.entered import Entered
from .._core.memory import resource_of
from ..spi.errors import DevmemError
from ..spi.types import MemoryInfo


def memory_info(device: Any = None) -> MemoryInfo:
    """Bytes ``(free, total, live, pending, cached)`` of a device; the current one, if none is named.

    ``free`` and ``total`` are the driver's; ``live`` is what devmem handed out, ``pending`` what was dropped and waits in the
    queue, ``cached`` what the memory stack keeps for reuse.
    """
    return context_of(device).memory_info()


def use_memory(resource: Any, device: Any = None) -> scopes.Scope[Any]:
    """Choose where a device's memory comes from: from now on, or in ``with`` for this thread or task until the end of the block.

    Parameters
    ----------
    resource : MemoryResource or str
        An object with ``allocate`` and ``deallocate``, the name of one, or ``"module:attribute"``. Blocks go back to the
        resource that they came from, so it may change at any time.
    device : Device, int or str, optional
        Whose memory; the current device's, if not given.

    Raises
    ------
    ConfigError
        No resource has that name.
    PluginError
        The object is not a resource, or cannot be loaded.
    """
    context = context_of(device)
    chosen = context.bind(resource_of(resource, context))
    return scopes.MemoryScope(context, chosen)


def trim(keep_bytes: int = 0, device: Any = None) -> None:
    """Free what waits in the queue, then give cached memory back to the driver until at most ``keep_bytes`` are kept.

    Of every open device, unless one is named. Frees nothing inside ``defer_cleanup()``.
    """
    problem: DevmemError | None = None
    for context in open_contexts() if device is None else [context_of(device)]:
        try:
            with Entered(context):
                context.reclaim.trim(keep_bytes)
        except DevmemError as error:  # one device that is lost must not keep the others' memory
            problem = problem or error
    if problem is not None:
        raise problem


def transfer_stats(reset: bool = False, device: Any = None) -> dict[str, dict[str, int]]:
    """What was copied on a device since it was opened, by path: ``{"h2d direct": {"copies": 3, "bytes": 384}}``."""
    stats = current_context().stats if device is None else context_of(device).stats
    found = {path: {"copies": copies, "bytes": nbytes} for path, (copies, nbytes) in list(stats.items()) if copies}
    if reset:
        for counter in stats.values():
            counter[:] = [0, 0]  # in place: the context keeps hold of some
    return found
