"""Threads that move host bytes."""

from __future__ import annotations

import threading
from contextlib import suppress
from itertools import pairwise
from queue import Empty, SimpleQueue
from typing import Any

import numpy as np
import numpy.typing as npt

from .blocks import blocks

#: Below this many bytes for each thread, waking another takes longer than it saves.
PART = 1 << 20
_PAGE = 4096

_Part = tuple[npt.NDArray[Any], npt.NDArray[Any], "SimpleQueue[BaseException | None]"]


class Crew:
    """Copies between host arrays by several threads at once, the caller's among them.

    NumPy lets go of the GIL while it copies, so no compiled code of our own is needed. The threads are daemons that are parked
    on a queue: at the interpreter's end, and in the child of a fork, nothing waits for them. They never call a driver.

    Parameters
    ----------
    threads : int
        How many copy at once; one means the caller alone.
    """

    def __init__(self, threads: int) -> None:
        self.threads = threads
        self._work: SimpleQueue[_Part | None] = SimpleQueue()
        self._started = threads <= 1
        self._serving = 0
        self._starting = threading.Lock()

    def __del__(self) -> None:
        try:
            self.close()
        except AttributeError:
            pass  # never finished __init__

    def copy(self, dst: npt.NDArray[Any], src: npt.NDArray[Any]) -> None:
        """Copy elements between arrays of one shape and dtype, in any layout; they do not overlap.

        Pages of a fresh destination are touched first by the thread that copies there, so the system makes them in parallel.
        """
        count = min(self.threads, dst.nbytes // PART)
        if count <= 1:
            np.copyto(dst, src, casting="no")
            return
        if not self._started:
            self._start()
        first, *others = _parts(dst, src, count)
        done: SimpleQueue[BaseException | None] = SimpleQueue()
        for there, here in others:
            self._work.put((there, here, done))
        problem = _try(*first)
        left = len(others)
        while left:
            # Whatever comes in between (a KeyboardInterrupt), nobody may go on while others still write there.
            try:
                problem = self._result(done) or problem
                left -= 1
            except BaseException as error:
                problem = error
        if problem is not None:
            raise problem

    def close(self) -> None:
        """Let the threads end. A copy that is made later starts others."""
        serving, self._serving, self._started = self._serving, 0, self.threads <= 1
        for _ in range(serving):
            self._work.put(None)

    def _result(self, done: SimpleQueue[BaseException | None]) -> BaseException | None:
        """How one of our parts went. While the others are busy with other callers' parts, we do some ourselves."""
        while True:
            try:
                return done.get_nowait()
            except Empty:
                pass
            try:
                part = self._work.get_nowait()
            except Empty:
                return done.get()
            if part is None:  # one thread's sign to end, which is not ours to take
                self._work.put(None)
                return done.get()
            there, here, whose = part
            whose.put(_try(there, here))

    def _start(self) -> None:
        with self._starting:
            if not self._started:
                # Where the system gives no more threads, those that there are do the work, or the caller alone.
                with suppress(RuntimeError):
                    for number in range(1, self.threads):
                        name = f"devmem-staging-{number}"
                        threading.Thread(target=_serve, args=(self._work,), name=name, daemon=True).start()
                        self._serving += 1
                self._started = True


def _serve(work: SimpleQueue[_Part | None]) -> None:
    while (part := work.get()) is not None:
        there, here, done = part
        done.put(_try(there, here))
        del part, there, here, done  # parked, it keeps nothing of the user's alive


def _try(dst: npt.NDArray[Any], src: npt.NDArray[Any]) -> BaseException | None:
    try:
        np.copyto(dst, src, casting="no")
    except BaseException as error:
        return error
    return None


def _parts(dst: npt.NDArray[Any], src: npt.NDArray[Any], count: int) -> list[tuple[npt.NDArray[Any], npt.NDArray[Any]]]:
    """Much the same work for each of so many threads, cut at pages where both sides are runs of bytes."""
    if dst.ndim == 1 and dst.itemsize == 1:
        step = -(-dst.size // count // _PAGE) * _PAGE
        ends = [*range(0, dst.size, step), dst.size]
        return [(dst[low:high], src[low:high]) for low, high in pairwise(ends)]
    return [(dst[at], src[at]) for at in blocks(dst.shape, dst.itemsize, -(-dst.nbytes // count))]
