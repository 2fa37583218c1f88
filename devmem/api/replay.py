"""A trace of allocations, done again: what ``devmem replay`` does."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path
from typing import Any

from .._core.base.device_handle import CurrentDevice
from .._core.device.device import open_device_of
from .._core.memory import allocation_log, fresh
from .._core.memory.foreign import Boundary, bind_down, is_ours
from ..spi.memory import SupportsTrim


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
    opened = open_device_of(device)
    records = list(allocation_log.read(log))
    stack = fresh(resource.strip(), opened.handle)
    with CurrentDevice(opened.handle) as driver, ExitStack() as after:
        meter, streams = allocation_log.Meter(driver), allocation_log.Streams(driver)
        after.callback(streams.close)
        bind_down(stack, meter)
        if isinstance(stack, SupportsTrim):
            after.callback(stack.trim, 0)
        after.callback(driver.synchronize)
        result = allocation_log.replay(records, stack if is_ours(stack) else Boundary(stack), stream=streams)
    return {
        "stack": repr(stack),
        "device": str(opened.device),
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
