"""What copies did: counted by path, always, and told to a trace, where there is one.

Who copies on a path that is not one of the two commonest does this::

    began = telemetry.begin()
    ...
    telemetry.count(context, "h2d staged", nbytes, began, why="...", array=source, stream=stream)

once for each copy that somebody asked for, however many parts it was done in: the sum over all paths is what was moved.
"""

from __future__ import annotations

import threading
from time import perf_counter
from typing import TYPE_CHECKING, Any

from ...spi.types import CopyKind
from .submit import calls

if TYPE_CHECKING:
    from ..base.layout import Rows
    from ..device.open_device import Context
    from ..ordering.stream import Stream

#: Direct copies of at least so many bytes are timed one by one. Reading the clock twice and taking it down takes 0.1 us at the
#: best, and 2 us as it is done: of a copy of a few bytes that is more than all else, of one of this size 2 % of its time.
TIMED_FROM = 1 << 20
#: Of the smaller ones the first sixteen of every 4096 are timed, whose numbers have none of these bits; they stand for all.
SAMPLED = 0xFF0


class _Waits(threading.local):
    """Seconds that this thread has waited since its copy began."""

    seconds = 0.0


waits = _Waits()


class Stats:
    """Copies, bytes and seconds on one device, by path.

    No lock is taken. A thread gives up the GIL where a function is called or a loop turns, and between reading and writing
    an entry neither happens.

    Attributes
    ----------
    small : dict of list
        ``[copies, bytes, timed copies, their seconds]`` of small direct copies. The hottest paths keep hold of these lists.
    """

    __slots__ = ("_paths", "small")

    def __init__(self) -> None:
        self.small: dict[str, list[Any]] = {path: [0, 0, 0, 0.0] for path in ("h2d direct", "d2h direct")}
        self._paths: dict[str, list[Any]] = {}

    def add(self, path: str, copies: int, nbytes: int, seconds: float, waited: float) -> None:
        """Count copies that were timed."""
        counter = self._paths.get(path) or self._paths.setdefault(path, [0, 0, 0.0, 0.0])
        counter[0] += copies
        counter[1] += nbytes
        counter[2] += seconds
        counter[3] += waited

    def add_small(self, path: str, nbytes: int, seconds: float) -> None:
        """Count a small direct copy that was timed."""
        counter = self.small[path]
        counter[0] += 1
        counter[1] += nbytes
        counter[2] += 1
        counter[3] += seconds

    def take(self, reset: bool) -> dict[str, dict[str, Any]]:
        """What was counted; ``reset`` takes just that off, and not what others count meanwhile."""
        found: dict[str, dict[str, Any]] = {}
        for path, counter in self.small.items():
            taken = _take(counter, reset)
            copies, nbytes, timed, seconds = taken
            _merge(found, path, copies, nbytes, seconds * copies / timed if timed else 0.0, 0.0)
        for path, counter in list(self._paths.items()):
            _merge(found, path, *_take(counter, reset))
        return {path: numbers for path, numbers in sorted(found.items()) if numbers["copies"]}


def begin() -> float:
    """When a copy begins, for `count`; from here on this thread's waits are the copy's."""
    waits.seconds = 0.0
    return perf_counter()


def count(
    context: Context,
    path: str,
    nbytes: int,
    began: float,
    waited: float | None = None,
    why: str = "",
    array: Any = None,
    stream: Stream | None = None,
    plan: Rows | None = None,
) -> float:
    """Count a copy that is done, or enqueued, as far as its caller waits for it.

    Parameters
    ----------
    path : str
        Where it went, and how: ``"h2d staged"``. Any name; it becomes a line of `devmem.transfer_stats`.
    nbytes : int
        What was to be moved, not what was touched on the way.
    began : float
        What `begin` said, on this thread.
    waited : float, optional
        Seconds of it spent waiting; what this thread has waited for slots and streams (`Waiting`), if not given.
    why : str, optional
        Why it took this path, for the trace.
    array : ndarray or DeviceNDArray, optional
        The side whose shape and strides the trace tells; the one that decided on the path.
    stream : Stream, optional
        What it is on, for the trace.
    plan : Rows, optional
        What it had to be cut into, for the trace.

    Returns
    -------
    float
        Seconds of it that were not spent waiting.
    """
    ended = perf_counter()
    if waited is None:
        waited = waits.seconds
    seconds, stats = ended - began, context.stats
    if nbytes < context.timed_from and path in stats.small:
        stats.add_small(path, nbytes, seconds)
    else:
        stats.add(path, 1, nbytes, seconds, waited)
    if context.trace is not None:
        args = _facts(context, path, nbytes, waited, why, array, stream, plan)
        context.trace.span(path, "copy", began, ended, args)
    return seconds - waited


def more(context: Context, path: str, began: float) -> None:
    """Add to the copies of a path what one that was counted when it began has taken since, on this thread."""
    ended = perf_counter()
    context.stats.add(path, 0, 0, ended - began, waits.seconds)
    if context.trace is not None:
        context.trace.span(f"{path}: taken out", "copy", began, ended, {"waited_us": round(waits.seconds * 1e6, 3)})


class Waiting:
    """``with Waiting(context, "a slot"):`` what the block takes is time that this thread's copy waits."""

    __slots__ = ("_began", "_trace", "_what")

    def __init__(self, context: Context, what: str) -> None:
        self._trace = context.trace
        self._what = what

    def __enter__(self) -> None:
        self._began = perf_counter()

    def __exit__(self, *error: object) -> None:
        ended = perf_counter()
        waits.seconds += ended - self._began
        if self._trace is not None:
            self._trace.span(f"wait for {self._what}", "wait", self._began, ended, {})


def _facts(
    context: Context,
    path: str,
    nbytes: int,
    waited: float,
    why: str,
    array: Any,
    stream: Stream | None,
    plan: Rows | None,
) -> dict[str, object]:
    """What the trace tells of a copy."""
    facts: dict[str, object] = {"bytes": nbytes, "device": str(context.device), "waited_us": round(waited * 1e6, 3)}
    if why:
        facts["why"] = why
    if stream is not None:
        facts["stream"] = f"{stream.handle:#x}"
    if array is not None:
        facts |= {"shape": list(array.shape), "strides": list(array.strides), "dtype": str(array.dtype)}
    if plan is not None:
        kind = CopyKind.D2D if path.startswith("d2d") else CopyKind.H2D
        facts |= {"rows": plan.height * plan.calls, "width": plan.width, "calls": calls(context, plan, kind)}
    return facts


def _take(counter: list[Any], reset: bool) -> list[Any]:
    taken = counter[:]
    if reset:
        counter[0] -= taken[0]
        counter[1] -= taken[1]
        counter[2] -= taken[2]
        counter[3] -= taken[3]
    return taken


def _merge(
    found: dict[str, dict[str, Any]], path: str, copies: int, nbytes: int, seconds: float, waited: float
) -> None:
    entry = found.setdefault(path, {"copies": 0, "bytes": 0, "seconds": 0.0, "waited_seconds": 0.0})
    entry["copies"] += copies
    entry["bytes"] += nbytes
    entry["seconds"] += seconds
    entry["waited_seconds"] += waited
