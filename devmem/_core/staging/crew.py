"""Threads that move host bytes."""

from __future__ import annotations

import threading
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
        self._work: SimpleQueue[_Part] = SimpleQueue()
        self._started = threads <= 1
        self._starting = threading.Lock()

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
        for _ in others:
            problem = self._result(done) or problem
        if problem is not None:
            raise problem

    def _result(self, done: SimpleQueue[BaseException | None]) -> BaseException | None:
        """How one of our parts went. While the others are busy with other callers' parts, we do some ourselves."""
        while True:
            try:
                return done.get_nowait()
            except Empty:
                pass
            try:
                there, here, whose = self._work.get_nowait()
            except Empty:
                return done.get()
            whose.put(_try(there, here))

    def _start(self) -> None:
        with self._starting:
            if not self._started:
                for number in range(1, self.threads):
                    name = f"devmem-staging-{number}"
                    threading.Thread(target=_serve, args=(self._work,), name=name, daemon=True).start()
                self._started = True


def _serve(work: SimpleQueue[_Part]) -> None:
    while True:
        there, here, done = work.get()
        done.put(_try(there, here))
        del there, here, done  # parked, it keeps nothing of the user's alive


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
