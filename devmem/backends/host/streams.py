"""The objects of a stream engine: streams, events, and jobs: copies, fills and host functions.

The functions that jobs call are given addresses that can be touched, never a device's. Those of ctypes and NumPy release the
GIL, so streams run beside each other and beside the caller.
"""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable, Sequence
from ctypes import c_void_p, memmove
from dataclasses import dataclass
from functools import partial
from queue import SimpleQueue

import numpy as np
import numpy.typing as npt

Run = Callable[..., object]
#: The address of the first row, the bytes from one row to the next, and from one slice of rows to the next.
Rows = tuple[int, int, int]
#: Bytes of a row, rows of a slice, slices.
Shape = tuple[int, int, int]


def no_work() -> None:
    """Do nothing: for a job that only takes a place in the order of its stream."""


class Stream:
    """Jobs that its thread runs one after the other. They come through ``queue``, where None ends the thread.

    One that ``records`` takes no job: what is enqueued there is only checked, for a graph.
    """

    __slots__ = ("engine", "has_thread", "non_blocking", "queue", "records")

    def __init__(self, engine: object, non_blocking: bool) -> None:
        self.engine = engine
        self.non_blocking = non_blocking
        self.records = False
        self.queue: SimpleQueue[Job | None] = SimpleQueue()
        self.has_thread = False

    def end(self) -> None:
        """Let the thread end after the jobs that are enqueued."""
        if self.has_thread:
            self.has_thread = False
            self.queue.put(None)


class Job:
    """Something to run on a stream once the jobs in ``after`` are done.

    ``function`` is the host function that it calls, if any. ``touches`` are the ``foreign`` jobs of other devices whose memory it
    uses; it is one of them until it is done. ``work`` holds what is to run until a thread takes it out, and only that thread
    completes the job. An ``abandoned`` job is done, but never ran. ``gate`` is locked until the job is done: a wait passes it.

    No call stands between the lines that end a job, behind which a signal's handler could raise: others wait at its gate.
    """

    __slots__ = ("abandoned", "after", "done", "function", "gate", "number", "seconds", "stream", "touches", "work")

    def __init__(
        self,
        stream: Stream,
        run: Run = no_work,
        args: Sequence[object] = (),
        after: Sequence[Job] = (),
        function: object = None,
        touches: Sequence[set[Job]] = (),
    ) -> None:
        self.stream, self.after, self.function, self.touches = stream, after, function, touches
        self.work: list[Run] = [partial(run, *args)]
        self.number = 0  # jobs of one stream run in the order of their numbers
        self.done = self.abandoned = False
        self.seconds = 0.0  # when it was done
        self.gate = threading.Lock()
        self.gate.acquire()

    @property
    def running(self) -> bool:
        """Whether a thread has taken the work, and is not done with it."""
        return not self.work and not self.done

    def wait(self) -> None:
        """Wait until the job is done."""
        with self.gate:
            pass

    def withdraw(self) -> bool:
        """Let the job only keep its place in the order. False if its work has begun."""
        try:
            self.work[0] = no_work
        except IndexError:
            return False
        return True

    def abandon(self) -> bool:
        """End the job before it begins. False if its work has begun."""
        try:
            del self.work[0]
        except IndexError:
            return False
        self.abandoned = self.done = True
        self.gate.release()
        self._let_go()
        return True

    def complete(self) -> None:
        """End the job, whose work has run."""
        self.after, self.function, self.seconds = (), None, time.perf_counter()
        self.done = True
        self.gate.release()
        self._let_go()

    def _let_go(self) -> None:
        for jobs in self.touches:
            jobs.discard(self)


class Use(Job):
    """Work of a caller on its own thread, with memory of the device whose ``foreign`` jobs these are."""

    __slots__ = ("freed", "ptr", "thread")

    def __init__(self, stream: Stream, foreign: set[Job], ptr: int) -> None:
        super().__init__(stream, touches=[foreign])
        self.thread, self.ptr = threading.get_ident(), ptr
        #: Blocks around ``ptr`` that were freed meanwhile in a stream's order, and their ends: they are recycled behind it.
        self.freed: list[tuple[int, object]] = []

    def end(self) -> None:
        """End it, unless it has ended."""
        if not self.done:
            self.done = True
            self.gate.release()
        self._let_go()


@dataclass(slots=True, eq=False, weakref_slot=True)
class Event:
    """A recorded event: the last job that was enqueued on a stream then, or None if all its jobs were done."""

    timing: bool
    stream: Stream | None = None
    job: Job | None = None
    number: int = 0  # of the job, or the highest number of the moment
    seconds: float = 0.0  # when it was recorded, if no job was left

    @property
    def done(self) -> bool:
        return self.job is None or self.job.done


def copy_rows(to: Rows, source: Rows, shape: Shape) -> None:
    """Copy rows of bytes."""
    _rows(to, shape)[...] = _rows(source, shape)


def fill_words(ptr: int, value: int, width: int, count: int) -> None:
    """Store a word of ``width`` bytes ``count`` times."""
    words = value.to_bytes(width, sys.byteorder) * min(count, 1 << 14)  # they stay in the processor's cache
    nbytes = width * count
    for at in range(0, nbytes, len(words)):
        memmove(ptr + at, words, min(len(words), nbytes - at))


def read_bytes(to: int, source: int, nbytes: int) -> Run:
    """Read the source of a `memmove` now; return what writes it."""
    # Not a bytes object: ctypes would hold the GIL while it makes one. The pointer keeps the array.
    kept = np.empty(nbytes, np.uint8).ctypes.data_as(c_void_p)
    memmove(kept, source, nbytes)
    return partial(memmove, to, kept, nbytes)


def read_rows(to: Rows, source: Rows, shape: Shape) -> Run:
    """Read the source of a `copy_rows` now; return what writes it."""
    return partial(np.copyto, _rows(to, shape), _rows(source, shape).copy())


def _rows(at: Rows, shape: Shape) -> npt.NDArray[np.void]:
    # One void element a row: NumPy then moves a row at a time, ten times faster for narrow rows than an array of bytes.
    (ptr, pitch, slice_pitch), (width, height, depth) = at, shape
    return np.asarray(_Memory(ptr, f"|V{width}", (depth, height), (slice_pitch, pitch)))


class _Memory:
    """Memory as NumPy asks for it."""

    __slots__ = ("__array_interface__",)

    def __init__(self, ptr: int, typestr: str, shape: tuple[int, ...], strides: tuple[int, ...]) -> None:
        data = ptr, False
        self.__array_interface__ = {"version": 3, "data": data, "typestr": typestr, "shape": shape, "strides": strides}
