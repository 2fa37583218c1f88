"""Replay a trace of allocations on a memory stack: what ``devmem replay`` does."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from .._core.base.device_handle import CurrentDevice
from .._core.device.device import DeviceLike, open_device_of
from .._core.memory.foreign import Boundary, is_ours, tell
from .._core.stacks import stack_spec
from .._core.stacks.resolve import fresh
from .._core.telemetry import allocation_log
from ..spi.memory import SupportsTrim


def allocations(log: str | Path) -> Iterator[allocation_log.Record]:
    """The records of a file that `devmem.memory.Log` wrote, in order.

    Raises
    ------
    ConfigError
        A line of the file is no record.
    OSError
        The file cannot be read.
    """
    return allocation_log.read(log)


def stack_parts() -> list[str]:
    """The names of the parts that a stack as text may have."""
    return stack_spec.names()


def replay(log: str | Path, resource: str, device: DeviceLike = None) -> dict[str, Any]:
    """Replay a trace that `devmem.memory.Log` wrote on a memory stack, and measure what the stack costs.

    The stack is a new one that keeps nothing yet. Each stream of the trace is replaced by a stream of the device.

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
        tell(stack, "bind", meter)
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
