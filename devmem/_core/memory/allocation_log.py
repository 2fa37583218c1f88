"""Traces of allocations: what `Log` writes, read back and replayed against any stack."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from ...spi.driver import PROTOCOLS, Driver
from ...spi.errors import ConfigError
from ...spi.memory import MemoryResource
from ...spi.types import LEGACY_STREAM, PER_THREAD_STREAM
from .statistics import Site


class Record(NamedTuple):
    """One line of a trace: ``op`` is "allocate" or "deallocate", ``t`` seconds since the trace began.

    ``frames`` are lines of the program that led to it, innermost first, where they were recorded.
    """

    op: str
    address: int
    nbytes: int
    stream: int
    t: float
    frames: tuple[Site, ...] = ()

    def line(self) -> bytes:
        """The record as `Log` writes it."""
        return (
            f'{{"op": "{self.op}", "address": {self.address}, "nbytes": {self.nbytes}, "stream": {self.stream}, '
            f'"t": {self.t:.6f}{self._frames_text()}}}\n'
        ).encode()

    def _frames_text(self) -> str:
        if not self.frames:
            return ""
        import json  # a tenth of what importing devmem takes, for those who record frames

        return f', "frames": {json.dumps(self.frames)}'


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


def read(path: str | Path) -> Iterator[Record]:
    """The records of a trace, in order.

    A last line that was cut off, as by a process that was killed, is left out.

    Raises
    ------
    ConfigError
        A line is no record; names the file and the line.
    """
    import json  # a tenth of what importing devmem takes, for those who have a trace

    with Path(path).open("rb") as file:
        for number, line in enumerate(file, 1):
            try:
                entry = json.loads(line)
                record = Record(
                    entry["op"],
                    int(entry["address"]),
                    int(entry["nbytes"]),
                    int(entry["stream"]),
                    float(entry["t"]),
                    tuple((str(file), int(line), str(name)) for file, line, name in entry.get("frames", ())),
                )
                if record.op not in ("allocate", "deallocate") or record.nbytes < 0:
                    raise ValueError(record.op)
            except (AttributeError, ValueError, KeyError, TypeError, OverflowError, RecursionError) as error:
                if not line.endswith(b"\n"):
                    return
                raise ConfigError(
                    f"{path}, line {number}: not a record of an allocation ({error}); a line is a JSON object with "
                    f"op (allocate or deallocate), address, nbytes, stream and t"
                ) from None
            yield record


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
