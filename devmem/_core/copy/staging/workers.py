"""Threads that move host bytes."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from itertools import pairwise
from queue import SimpleQueue
from time import perf_counter
from typing import TYPE_CHECKING, Any

import numpy.typing as npt

from ....toolkit.deferred_errors import FirstError
from ..host_copy import copy_elements
from .blocks import blocks

if TYPE_CHECKING:
    from ..trace import TraceFile

#: Below this many bytes for each thread, waking another takes longer than it saves.
PART = 1 << 20
_PAGE = 4096

Step = Callable[[], object]


class CopyWorkers:
    """Moves host bytes by several threads at once, the caller's among them.

    NumPy lets go of the GIL while it copies, so no compiled code of our own is needed. The threads are daemons that are parked
    on a queue: at the interpreter's end, and in the child of a fork, nothing waits for them. They never call a driver.

    Parameters
    ----------
    threads : int
        How many copy at once; one means the caller alone.
    trace : TraceFile, optional
        Where what each does is written.
    """

    def __init__(self, threads: int, trace: TraceFile | None = None) -> None:
        self.threads = threads
        self._trace = trace
        self._work: SimpleQueue[_Job | None] = SimpleQueue()
        self._started = threads <= 1
        self._serving = 0
        self._starting = threading.RLock()  # a finalizer of the user's, run by the collector in between, may copy

    def __del__(self) -> None:
        try:
            self.close()
        except AttributeError:
            pass  # never finished __init__

    def copy(self, dst: npt.NDArray[Any], src: npt.NDArray[Any]) -> None:
        """Copy elements between arrays of one shape and dtype, in any layout; they do not overlap.

        Pages of a fresh destination are touched first by the thread that copies there, so the system makes them in parallel.
        """
        count = self.share(dst.nbytes)
        if count <= 1 and self._trace is None:
            copy_elements(dst, src)
        else:
            self.run([partial(copy_elements, there, here) for there, here in _parts(dst, src, count)])

    def share(self, nbytes: int) -> int:
        """How many threads so many bytes are worth; 1 at least."""
        return max(1, min(self.threads, nbytes // PART))

    def run(self, steps: list[Step]) -> None:
        """Take steps at the same time, some of them on the calling thread, and return when all are done.

        They must not call a driver, and do not wait for one another. The error of one is raised when the others are done.
        Whatever comes in between (a KeyboardInterrupt), nobody may go on while others still write there.
        """
        if not self._started:
            self._start()
        if self._trace is not None:
            steps = [partial(_traced, self._trace, step) for step in steps]
        with FirstError() as first:
            job = _Job(steps, first)
            try:
                for _ in range(min(len(steps) - 1, self._serving)):
                    self._work.put(job)
                job.work()
                job.wait()
            except BaseException:
                job.abandon()
                raise

    def close(self) -> None:
        """Let the threads end. A copy that is made later starts others."""
        serving, self._serving, self._started = self._serving, 0, self.threads <= 1
        for _ in range(serving):
            self._work.put(None)

    def _start(self) -> None:
        with self._starting:
            if self._started:
                return
            self._started = True
        # Where the system gives no more threads, those that there are do the work, or the caller alone.
        with suppress(RuntimeError):
            for number in range(1, self.threads):
                name = f"devmem-staging-{number}"
                threading.Thread(target=_serve, args=(self._work,), name=name, daemon=True).start()
                self._serving += 1


class _Job:
    """The steps of one call. A thread that is free takes the next: the caller's, or a worker.

    Of them only the caller can be interrupted, and that anywhere. So it takes no lock, and counts nothing: it looks at how many
    others are at work, and a sign that it took and did not act upon is not missed.
    """

    __slots__ = ("_at_work", "_ended", "_first", "_lock", "_steps")

    def __init__(self, steps: list[Step], first: FirstError) -> None:
        self._first = first
        self._steps = deque(steps)
        #: Workers that have come, and not gone; the lock is theirs.
        self._at_work = 0
        self._lock = threading.Lock()
        #: One sign of each that has gone.
        self._ended: SimpleQueue[None] = SimpleQueue()

    def work(self) -> None:
        """Take steps until none is left."""
        while True:
            try:
                step = self._steps.popleft()
            except IndexError:
                return
            try:
                step()
            except Exception as error:
                self._first.put(error)

    def help(self) -> None:
        """Take steps on a worker until none is left."""
        with self._lock:
            self._at_work += 1  # before the first is taken: who waits must not look in between
        try:
            self.work()
        except BaseException as error:
            self._first.put(error)
        with self._lock:
            self._at_work -= 1
        self._ended.put(None)

    def wait(self) -> None:
        """Wait for the steps that workers have begun."""
        while self._at_work:
            self._ended.get()

    def abandon(self) -> None:
        """Let nobody begin another step, and wait for the others, come what may."""
        while True:
            try:
                self._steps.clear()
                return self.wait()
            except BaseException:  # interrupted once more: the first is about to be raised
                continue


def _serve(work: SimpleQueue[_Job | None]) -> None:
    while (job := work.get()) is not None:
        job.help()
        del job  # parked, it keeps nothing of the user's alive


def _traced(trace: TraceFile, step: Step) -> None:
    began = perf_counter()
    step()
    trace.span("host copy", "staging", began, perf_counter(), {})


def _parts(dst: npt.NDArray[Any], src: npt.NDArray[Any], count: int) -> list[tuple[npt.NDArray[Any], npt.NDArray[Any]]]:
    """Much the same work for each of so many threads, cut at pages where both sides are runs of bytes."""
    if dst.ndim == 1 and dst.itemsize == 1:
        step = -(-dst.size // count // _PAGE) * _PAGE
        ends = [*range(0, dst.size, step), dst.size]
        return [(dst[low:high], src[low:high]) for low, high in pairwise(ends)]
    return [(dst[at], src[at]) for at in blocks(dst.shape, dst.itemsize, -(-dst.nbytes // count))]
