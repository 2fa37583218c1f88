"""Threads that copy host memory.

The steps of one call are taken by the caller's thread and by whichever worker is free; NumPy releases the GIL while it copies.
The call returns, or raises, only when no thread is at work on a step: after that the memory is the caller's. That holds also
for a KeyboardInterrupt, which can come between any two lines of the caller. So the caller takes no lock and counts nothing: it
looks at how many workers are at work, and each that stops adds a token to a queue on which the caller waits; the count is
looked at again after each.

Workers are daemon threads that wait on a queue: the interpreter's end and the child of a fork do not wait for them. They never
call a driver.
"""

from __future__ import annotations

import itertools
import threading
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from mmap import PAGESIZE
from queue import SimpleQueue
from time import perf_counter
from typing import Any

import numpy.typing as npt

from ....toolkit.deferred_errors import FirstError
from ....toolkit.threads import run_apart
from ..host_copy import copy_elements
from ..trace import TraceFile
from .blocks import blocks

#: Below this many bytes for each thread, waking another takes longer than it saves.
PART = 1 << 20

Step = Callable[[], object]


class CopyWorkers:
    """Copy host memory on several threads at once, the caller's among them; with a trace, each copy is written there."""

    def __init__(self, threads: int, trace: TraceFile | None = None) -> None:
        self.threads = threads
        self._trace = trace
        self._jobs: SimpleQueue[_Job | None] = SimpleQueue()
        self._started = threads <= 1
        #: An entry for each thread that is to be started yet, and for each that runs.
        self._missing, self._running = deque(itertools.repeat(None, threads - 1)), deque[None]()
        self._numbers = itertools.count(1)
        self._closes = 0

    def __del__(self) -> None:
        with suppress(AttributeError):  # never finished __init__
            self.close()

    def copy(self, dst: npt.NDArray[Any], src: npt.NDArray[Any]) -> None:
        """Copy elements between arrays of one shape and dtype, in any layout, that do not overlap.

        The thread that copies to a page touches it first, so the system makes fresh pages in parallel.
        """
        count = self._share(dst.nbytes)
        if count <= 1 and self._trace is None:
            copy_elements(dst, src)
            return
        if dst.ndim == dst.itemsize == 1:
            keys: list[Any] = [slice(low, high) for low, high in self.split(dst.nbytes)]
        else:
            keys = list(blocks(dst.shape, dst.itemsize, -(-dst.nbytes // count)))
        self.run([partial(copy_elements, dst[key], src[key]) for key in keys])

    def split(self, nbytes: int) -> list[tuple[int, int]]:
        """Ranges of bytes of much the same size, cut at pages, for as many threads as they are worth."""
        step = -(-nbytes // self._share(nbytes) // PAGESIZE) * PAGESIZE
        return list(itertools.pairwise([*range(0, nbytes, step or 1), nbytes]))

    def run(self, steps: list[Step]) -> None:
        """Take steps at the same time, and return when all are done; then the first error of one is raised.

        Steps must not call a driver, and do not wait for one another.
        """
        if not self._started:
            with suppress(RuntimeError):  # the system gives no more threads: the caller works alone
                run_apart(partial(self._start, self._closes))
            self._started = True
        if self._trace is not None:
            steps = [partial(_traced, self._trace, step) for step in steps]
        with FirstError() as first:
            job = _Job(steps, first)
            try:
                for _ in range(min(len(steps) - 1, len(self._running))):
                    self._jobs.put(job)
                job.work()
                job.wait()
            except BaseException:
                job.stop()
                raise

    def close(self) -> None:
        """Let the threads end. A later copy starts new ones."""
        self._started = self.threads <= 1
        self._closes += 1  # a call that starts threads just now starts no more of them
        with suppress(IndexError):  # none runs any more
            while True:
                self._running.popleft()
                self._jobs.put(None)
                self._missing.append(None)

    def _share(self, nbytes: int) -> int:
        """Return the number of threads that pay for a copy of so many bytes."""
        return max(1, min(self.threads, nbytes // PART))

    def _start(self, closes: int) -> None:
        """Start the threads that are missing; `run_apart` does, so that each is counted, whatever interrupts the caller.

        ``closes`` is how many there were when it was asked for: behind an interrupt of the caller this may run after the next.
        It takes no lock: a finalizer of the user's, run by the collector in between, may copy.
        """
        with suppress(IndexError, RuntimeError):  # no more threads can be had: use the threads that did start
            while True:
                self._missing.popleft()
                if self._closes != closes:
                    self._missing.append(None)
                    return
                # Counted first: a thread that `close` did not know of would never end.
                self._running.append(None)
                name = f"devmem-staging-{next(self._numbers)}"
                try:
                    threading.Thread(target=_serve, args=(self._jobs,), name=name, daemon=True).start()
                except RuntimeError:
                    self._running.pop()
                    self._missing.append(None)
                    raise


class _Job:
    """The steps of one call."""

    __slots__ = ("_first", "_steps", "_stopped", "_working")

    def __init__(self, steps: list[Step], first: FirstError) -> None:
        self._first = first
        self._steps = deque(steps)
        #: Has one element for each worker that is at work.
        self._working: list[None] = []
        #: A token of each worker that has stopped.
        self._stopped: SimpleQueue[None] = SimpleQueue()

    def work(self) -> None:
        """Take steps until none is left."""
        with suppress(IndexError):
            while True:
                self._take(self._steps.popleft())

    def help(self) -> None:
        """Take steps on a worker."""
        self._working.append(None)  # before the first step is taken: the caller must not look in between
        try:
            self.work()
        except BaseException as error:
            self._first.put(error)
        self._working.pop()
        self._stopped.put(None)

    def wait(self) -> None:
        """Wait for the steps that workers have begun."""
        while self._working:
            self._stopped.get()

    def stop(self) -> None:
        """Let no step begin any more, and wait for those that have, whatever interrupts that."""
        while True:
            try:
                self._steps.clear()
                return self.wait()
            except BaseException:  # interrupted once more: the first interrupt is about to be raised
                continue

    def _take(self, step: Step) -> None:
        try:
            step()
        except Exception as error:
            self._first.put(error)


def _serve(jobs: SimpleQueue[_Job | None]) -> None:
    while (job := jobs.get()) is not None:
        job.help()
        del job  # while the thread waits for the next one, it keeps nothing of the user's alive


def _traced(trace: TraceFile, step: Step) -> None:
    began = perf_counter()
    step()
    trace.span("host copy", "staging", began, perf_counter(), {})
