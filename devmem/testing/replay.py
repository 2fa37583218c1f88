"""Logs of allocations, replayed on any memory stack: what ``devmem replay`` does.

`measure` replays a log on a stack as text. `replay` does what records say with a resource, `Meter` counts what the resource asks
of its driver meanwhile, and `Streams` stand for the streams of the log.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from ..api.devices import device as device_of
from ..api.stacks import Record, allocations, new_stack
from ..memory import Adaptor
from ..spi.driver import PROTOCOLS, Driver
from ..spi.memory import MemoryResource
from ..spi.types import LEGACY_STREAM, PER_THREAD_STREAM


class Measured(Adaptor):
    """A memory stack whose own verbs are called, without a frame of this class: those are timed."""

    def bind(self, driver: Driver) -> None:
        """Bind the stack."""
        super().bind(driver)
        self.allocate, self.deallocate = self._allocate, self._deallocate  # type: ignore[method-assign, assignment]


@dataclass(slots=True)
class Replay:
    """The result of a replay: calls of the stack, their time, and bytes. ``failed`` allocations raised MemoryError."""

    allocations: int = 0
    deallocations: int = 0
    failed: int = 0
    seconds: float = 0.0
    peak_live_bytes: int = 0
    #: Blocks that the trace never gave back; they are given back at the end, and not timed.
    left_over: int = 0
    errors: list[str] = field(default_factory=list)

    @property
    def calls(self) -> int:
        """Calls of the two verbs, those that failed too."""
        return self.allocations + self.failed + self.deallocations


def measure(log: str | Path, resource: str, device: Any = None) -> dict[str, Any]:
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
    chosen = device_of(device)
    records = list(allocations(log))
    stack = Measured(new_stack(resource, chosen))
    with chosen.entered() as driver, ExitStack() as after:
        meter, streams = Meter(driver), Streams(driver)
        after.callback(streams.close)
        stack.bind(meter)
        after.callback(stack.trim, 0)
        after.callback(driver.synchronize)
        result = replay(records, stack, stream=streams)
    return {
        "stack": repr(stack.upstream),
        "device": str(chosen),
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


def replay(
    records: Iterable[Record],
    resource: MemoryResource,
    *,
    stream: Callable[[int], int] = lambda handle: handle,
    after: Callable[[Record], object] | None = None,
) -> Replay:
    """Do what a trace says, in its order, with a resource that is bound to its device, which is entered.

    The trace is read in one go first, so that reading is not timed. ``stream`` gives the stream that stands for a recorded one:
    a handle of another process means nothing here. ``after`` is called after each call, outside the time that is taken. All
    blocks are back when this returns or raises.
    """
    result = Replay()
    live: dict[int, tuple[int, int, int]] = {}
    clock = time.perf_counter
    bytes_live = 0
    try:
        for record in list(records):
            handle = stream(record.stream)
            if record.op == "allocate":
                began = clock()
                try:
                    ptr = resource.allocate(record.nbytes, handle)
                except MemoryError as error:
                    result.seconds += clock() - began
                    result.failed += 1
                    if len(result.errors) < 10:
                        result.errors.append(str(error))
                    continue
                result.seconds += clock() - began
                result.allocations += 1
                if record.address in live:  # handed out twice: the trace misses a line
                    bytes_live -= live[record.address][1]
                    _give_back(resource, live, record.address)
                live[record.address] = ptr, record.nbytes, handle
                bytes_live += record.nbytes
                result.peak_live_bytes = max(result.peak_live_bytes, bytes_live)
            elif record.address in live:  # else it came from before the trace, or its allocation failed here
                ptr, nbytes, _ = live.pop(record.address)
                began = clock()
                resource.deallocate(ptr, nbytes, handle)
                result.seconds += clock() - began
                result.deallocations += 1
                bytes_live -= nbytes
            if after is not None:
                after(record)
    finally:
        result.left_over = len(live)
        with ExitStack() as rest:  # all of them, also where one fails
            for address in live:
                rest.callback(_give_back, resource, live, address)
    return result


#: The memory verbs of drivers: what they add to the reserved bytes, and which argument has the bytes.
_MEMORY_VERBS = {"alloc": (1, 0), "alloc_async": (1, 0), "free": (-1, 1), "free_async": (-1, 1)}


class Meter:
    """A driver that counts what a stack asks of it: give it to ``bind`` in place of the driver."""

    def __init__(self, driver: Driver) -> None:
        self.driver = driver
        self.reserved_bytes = self.peak_reserved_bytes = 0
        #: Calls of the driver's memory verbs that were made, and the time in those that returned.
        self.calls, self.seconds = 0, 0.0
        # Instance attributes, not __getattr__: from Python 3.12 on a runtime protocol is looked up statically.
        for name in {name for protocol in (Driver, *PROTOCOLS.values()) for name in vars(protocol)}:
            if not name.startswith("_") and hasattr(driver, name):
                verb = getattr(driver, name)
                setattr(
                    self, name, partial(self._measured, verb, *_MEMORY_VERBS[name]) if name in _MEMORY_VERBS else verb
                )

    def __getattr__(self, name: str) -> Any:
        if name == "driver" or name.startswith("__"):
            raise AttributeError(name)
        return getattr(self.driver, name)

    def _measured(self, verb: Callable[..., Any], sign: int, argument: int, *arguments: int, **options: object) -> Any:
        self.calls += 1
        if sign < 0:
            self.reserved_bytes -= arguments[argument]
        began = time.perf_counter()
        found = verb(*arguments, **options)
        self.seconds += time.perf_counter() - began
        if sign > 0:
            self.reserved_bytes += arguments[argument]
            self.peak_reserved_bytes = max(self.peak_reserved_bytes, self.reserved_bytes)
        return found


class Streams:
    """Streams of a device that stand for those of a trace: the default ones for themselves, else one for each handle."""

    def __init__(self, driver: Driver) -> None:
        self.driver = driver
        self.made: dict[int, int] = {}

    def __call__(self, handle: int) -> int:
        if handle in (LEGACY_STREAM, PER_THREAD_STREAM):
            return handle
        if handle not in self.made:
            self.made[handle] = self.driver.stream_create(0, True)
        return self.made[handle]

    def close(self) -> None:
        """Destroy the streams; what is on them still runs."""
        for handle in self.made.values():
            self.driver.stream_destroy(handle)
        self.made.clear()


def _give_back(resource: MemoryResource, live: dict[int, tuple[int, int, int]], address: int) -> None:
    ptr, nbytes, handle = live.pop(address)
    resource.deallocate(ptr, nbytes, handle)
