"""Statistics of copies: counted by path, always, and written to a trace where there is one.

Each copy that a caller asked for is counted once, however many parts it was done in: the sum over all paths is what was moved::

    began = begin()
    ...
    statistics.count("h2d staged", nbytes, began, why="...", array=source, stream=stream)

Direct copies of less than `TIMED_FROM` bytes are timed by sample: of every 4096 the first sixteen, whose mean stands for all.
No lock is taken where there is a GIL: between reading and writing an entry no function is called and no loop turns, so no other
thread runs. Without a GIL `LockedStatistics` count, and every copy is timed.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from time import perf_counter
from typing import TYPE_CHECKING, Any

from ...spi.sizes import size_text, time_text
from ...spi.types import CopyKind
from ..base.device_handle import DeviceHandle
from ..base.scopes import FREE_THREADED
from ..base.shown import html_table, text_table
from .submit import calls

if TYPE_CHECKING:
    import numpy.typing as npt

    from ..base.array_view import ArrayView
    from ..ordering.stream import Stream
    from .rows import Rows
    from .trace import TraceFile

#: Direct copies of at least so many bytes are timed one by one. Reading the clock twice and counting takes 0.1 to 2 us: 2 % of
#: the time of a copy of this size.
TIMED_FROM = 1 << 20
#: Smaller ones are timed when their number has none of these bits.
SAMPLED = 0 if FREE_THREADED else 0xFF0


class _Waits(threading.local):
    """Seconds that this thread has waited since its copy began."""

    seconds = 0.0


waits = _Waits()


def begin() -> float:
    """Return the start of a copy, for `CopyStatistics.count`; from here on this thread's waits are the copy's."""
    waits.seconds = 0.0
    return perf_counter()


class TransferStats(dict[str, dict[str, Any]]):
    """Copies, bytes and seconds by path: a dict that shows itself as a table."""

    __slots__ = ()

    def __repr__(self) -> str:
        return text_table(_COLUMNS, self._rows()) if self else "no copies"

    def _repr_html_(self) -> str:
        return html_table(_COLUMNS, self._rows())

    def _rows(self) -> Iterator[tuple[object, ...]]:
        for path, counted in self.items():
            seconds, nbytes = counted["seconds"], counted["bytes"]
            rate = f"{size_text(int(nbytes / seconds))}/s" if seconds else ""
            waited = time_text(counted["waited_seconds"])
            yield path, counted["copies"], size_text(nbytes), time_text(seconds), waited, rate


_COLUMNS = ("path", "copies", "moved", "time of the calls", "of it waiting", "rate")


class CopyStatistics:
    """Copies, bytes and seconds on one open device, by path.

    Attributes
    ----------
    trace : TraceFile or None
        Where each copy is written.
    timed_from : int
        Bytes from which each copy is timed, and traced.
    small : dict of list
        ``[copies, bytes, timed copies, their seconds]`` of small direct copies.
    compiled : callable or None
        Called with ``reset``, gives the same of the copies that the compiled core has made: of uploads, and of downloads.
    """

    __slots__ = ("_handle", "_paths", "compiled", "small", "timed_from", "trace")

    def __init__(self, handle: DeviceHandle, trace: TraceFile | None) -> None:
        self._handle = handle
        self.trace = trace
        self.timed_from = 0 if trace is not None else TIMED_FROM
        self.small: dict[str, list[Any]] = {path: [0, 0, 0, 0.0] for path in ("h2d direct", "d2h direct")}
        self.compiled: Callable[[bool], tuple[Sequence[Any], Sequence[Any]]] | None = None
        self._paths: dict[str, list[Any]] = {}

    def count(
        self,
        path: str,
        nbytes: int,
        began: float,
        waited: float | None = None,
        why: str = "",
        array: ArrayView[Any] | npt.NDArray[Any] | None = None,
        stream: Stream | None = None,
        plan: Rows | None = None,
    ) -> float:
        """Count a copy that is done, or enqueued, as far as its caller waits for it.

        Parameters
        ----------
        path : str
            Its path, a line of `devmem.transfer_stats`.
        nbytes : int
            What was to be moved, not what was touched on the way.
        began : float
            What `begin` returned, on this thread.
        waited : float, optional
            Seconds of it spent waiting; what this thread has waited in `waiting` blocks, if not given.
        why, array, stream, plan
            For the trace: the reason for the path, the array whose layout decided on it, the stream, and the rows.

        Returns
        -------
        float
            Seconds of it that were not spent waiting.
        """
        ended = perf_counter()
        if waited is None:
            waited = waits.seconds
        seconds = ended - began
        if nbytes < self.timed_from and path in self.small:
            counter = self.small[path]
            counter[0] += 1
            counter[1] += nbytes
            counter[2] += 1
            counter[3] += seconds
        else:
            self.add(path, 1, nbytes, seconds, waited)
        if self.trace is not None:
            args = self._facts(path, nbytes, waited, why, array, stream, plan)
            self.trace.span(path, "copy", began, ended, args)
        return seconds - waited

    def note(self, what: str, why: str, array: npt.NDArray[Any] | None = None) -> None:
        """Write to the trace what was decided, about the device or about an array that need not be copied."""
        if self.trace is not None:
            now, nbytes = perf_counter(), 0 if array is None else array.nbytes
            self.trace.span(what, "decision", now, now, self._facts(what, nbytes, 0.0, why, array, None, None))

    def count_more(self, path: str, began: float) -> None:
        """Add to a path what a copy that was counted when it began has taken since, on this thread."""
        ended = perf_counter()
        self.add(path, 0, 0, ended - began, waits.seconds)
        if self.trace is not None:
            self.trace.span(f"{path}: finished", "copy", began, ended, {"waited_us": round(waits.seconds * 1e6, 3)})

    def add(self, path: str, copies: int, nbytes: int, seconds: float, waited: float) -> None:
        """Count copies that were timed."""
        counter = self._paths.get(path) or self._paths.setdefault(path, [0, 0, 0.0, 0.0])
        counter[0] += copies
        counter[1] += nbytes
        counter[2] += seconds
        counter[3] += waited

    def waiting(self, what: str) -> Waiting:
        """``with statistics.waiting("a slot"):`` the time that the block takes is time that this thread's copy waits."""
        return Waiting(self.trace, what)

    def take(self, reset: bool) -> TransferStats:
        """Return the counts. ``reset`` subtracts just those, so that what other threads count meanwhile stays."""
        found: dict[str, dict[str, Any]] = {}
        compiled = self.compiled(reset) if self.compiled else ()
        counters = [(path, _take(counter, reset)) for path, counter in self.small.items()]
        for path, (copies, nbytes, timed, seconds) in [*counters, *zip(self.small, compiled, strict=False)]:
            _merge(found, path, copies, nbytes, seconds * copies / timed if timed else 0.0, 0.0)
        for path, counter in list(self._paths.items()):
            _merge(found, path, *_take(counter, reset))
        return TransferStats((path, numbers) for path, numbers in sorted(found.items()) if numbers["copies"])

    def _facts(
        self,
        path: str,
        nbytes: int,
        waited: float,
        why: str,
        array: ArrayView[Any] | npt.NDArray[Any] | None,
        stream: Stream | None,
        plan: Rows | None,
    ) -> dict[str, object]:
        facts: dict[str, object] = {
            "bytes": nbytes,
            "device": str(self._handle.device),
            "waited_us": round(waited * 1e6, 3),
        }
        if why:
            facts["why"] = why
        if stream is not None:
            facts["stream"] = f"{stream.handle:#x}"
        if array is not None:
            facts |= {"shape": list(array.shape), "strides": list(array.strides), "dtype": str(array.dtype)}
        if plan is not None:
            kind = CopyKind.D2D if path.startswith("d2d") else CopyKind.H2D
            facts |= {"rows": plan.height * plan.calls, "width": plan.width, "calls": calls(self._handle, plan, kind)}
        return facts


class LockedStatistics(CopyStatistics):
    """The same where threads run Python at the same time."""

    __slots__ = ("lock",)

    def __init__(self, handle: DeviceHandle, trace: TraceFile | None, lock: threading.RLock) -> None:
        super().__init__(handle, trace)
        self.lock = lock

    def count(self, *copy: Any, **more: Any) -> float:
        """Count a copy."""
        with self.lock:
            return super().count(*copy, **more)

    def add(self, *copies: Any) -> None:
        """Count copies that were timed."""
        with self.lock:
            super().add(*copies)

    def take(self, reset: bool) -> TransferStats:
        """Return the counts, under the lock."""
        with self.lock:
            return super().take(reset)


def copy_statistics(handle: DeviceHandle, trace: TraceFile | None, lock: threading.RLock) -> CopyStatistics:
    """Those that are exact in this interpreter; the lock is the device's."""
    return LockedStatistics(handle, trace, lock) if FREE_THREADED else CopyStatistics(handle, trace)


class Waiting:
    """See `CopyStatistics.waiting`."""

    __slots__ = ("_began", "_trace", "_what")

    def __init__(self, trace: TraceFile | None, what: str) -> None:
        self._trace = trace
        self._what = what

    def __enter__(self) -> None:
        self._began = perf_counter()

    def __exit__(self, *error: object) -> None:
        ended = perf_counter()
        waits.seconds += ended - self._began
        if self._trace is not None:
            self._trace.span(f"wait for {self._what}", "wait", self._began, ended, {})


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
