"""Where device memory comes from, how much there is, and giving it back."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path
from typing import Any

from .._core import scopes
from .._core.device import context_of, open_contexts
from .._core.entered import Entered
from .._core.memory import fresh, resource_of, trace
from .._core.memory.foreign import Boundary, bind_down, is_ours
from ..spi.errors import ConfigError, DevmemError, PluginError
from ..spi.memory import SupportsTrim
from ..spi.types import MemoryInfo, MemoryKind


def memory_info(device: Any = None) -> MemoryInfo:
    """Bytes ``(free, total, live, pending, cached)`` of a device; the current one, if none is named.

    ``free`` and ``total`` are the driver's; ``live`` is what devmem handed out, ``pending`` what was dropped and waits in the
    queue, ``cached`` what the memory stack keeps for reuse.
    """
    return context_of(device).memory_info()


def use_memory(resource: Any, device: Any = None, *, kind: str = "device") -> scopes.Scope[Any]:
    """Choose where a device's memory comes from: from now on, or in ``with`` for this thread or task until the end of the block.

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
    UnsupportedError
        The device has no such memory, or cannot do what the resource needs.
    """
    context = context_of(device)
    try:
        wanted = MemoryKind(kind)
    except ValueError:
        raise ConfigError(f"use_memory(kind={kind!r}): give one of {', '.join(MemoryKind)}") from None
    context.require_kind(wanted)
    try:
        found = resource_of(resource, context, wanted)
    except (ConfigError, PluginError) as error:
        if not isinstance(resource, str):
            raise
        raise type(error)(f"use_memory({resource!r}): {error}") from error
    return scopes.MemoryScope(context, context.bind(found, wanted))


def replay(log: str | Path, resource: str, device: Any = None) -> dict[str, Any]:
    """Do with a stack what a trace says that was written by `devmem.memory.Log`, and tell what it cost.

    The stack is a fresh one, with nothing in it; streams of the trace are stood for by streams of the device.

    Parameters
    ----------
    log : str or Path
        The file.
    resource : str
        A stack as text, as for `use_memory`.
    device : Device, int or str, optional
        Where; the current device, if none is given.

    Returns
    -------
    dict
        ``stack``, ``device``; ``calls`` of the stack with their ``seconds`` and ``us_per_call``; ``driver_calls`` and
        ``driver_seconds``; ``peak_live_bytes`` as asked for, ``peak_reserved_bytes`` as taken from the driver, and their
        ``ratio``; ``failed`` allocations with the first ``errors``; ``left_over``: blocks that the trace never gave back.

    Raises
    ------
    ConfigError
        A line of the file is no record, or the text means no stack.
    OSError
        The file cannot be read.
    """
    context = context_of(device)
    records = list(trace.read(log))
    stack = fresh(resource.strip(), context)
    with Entered(context) as driver, ExitStack() as after:
        meter, streams = trace.Meter(driver), trace.Streams(driver)
        after.callback(streams.close)
        bind_down(stack, meter)
        if isinstance(stack, SupportsTrim):
            after.callback(stack.trim, 0)
        after.callback(driver.synchronize)
        result = trace.replay(records, stack if is_ours(stack) else Boundary(stack), stream=streams)
    return {
        "stack": repr(stack),
        "device": str(context.device),
        "calls": result.calls,
        "seconds": result.seconds,
        "us_per_call": 1e6 * result.seconds / result.calls if result.calls else 0.0,
        "driver_calls": meter.calls,
        "driver_seconds": meter.seconds,
        "peak_live_bytes": result.peak_live_bytes,
        "peak_reserved_bytes": meter.peak_reserved_bytes,
        "ratio": meter.peak_reserved_bytes / result.peak_live_bytes if result.peak_live_bytes else 0.0,
        "failed": result.failed,
        "errors": result.errors,
        "left_over": result.left_over,
    }


def trim(keep_bytes: int = 0, device: Any = None) -> None:
    """Free what waits in the queue, then give cached memory back to the driver until at most ``keep_bytes`` are kept.

    Of every open device, unless one is named. Frees nothing inside ``defer_cleanup()``.
    """
    if keep_bytes < 0:
        raise ConfigError(f"trim(keep_bytes={keep_bytes}): what is kept is a number of bytes, from 0 on")
    problem: DevmemError | None = None
    for context in open_contexts() if device is None else [context_of(device)]:
        try:
            with Entered(context):
                context.reclaim.trim(keep_bytes)
        except DevmemError as error:  # one device that is lost must not keep the others' memory
            problem = problem or error
    if problem is not None:
        raise problem


def transfer_stats(reset: bool = False, device: Any = None) -> dict[str, dict[str, Any]]:
    """Count what was copied on a device since it was opened, or since the last ``reset``, by path.

    Parameters
    ----------
    reset : bool
        Start anew. What other threads count meanwhile is in the next answer.
    device : Device, int or str, optional
        Whose copies; the current device's, if not given. A copy between devices is its destination's.

    Returns
    -------
    dict
        ``{"h2d direct": {"copies": 3, "bytes": 384, "seconds": 2.1e-05, "waited_seconds": 0.0}}``, of the paths that were taken.
        Each copy is counted once, however many parts it was done in, so the bytes of all paths are the bytes that were moved.
        ``seconds`` is what the calls took on the host: with a stream named, until the copy was enqueued. Of direct copies of
        less than 1 MiB the first sixteen of every 4096 are timed, and their mean stands for the others. ``waited_seconds``
        is the part that the host stood still for slots of the ring and for streams; where the driver's own call waits, that
        cannot be told apart.
    """
    return context_of(device).stats.take(reset)
