"""What a stream engine works on: streams, events, and jobs: copies, fills and host functions.

The functions that jobs call are given addresses that can be touched, never a device's. Those of ctypes and NumPy release the
GIL, so streams run beside each other and beside the caller.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Sequence
from ctypes import memmove, string_at
from dataclasses import dataclass
from functools import partial
from queue import SimpleQueue

import numpy as np
import numpy.typing as npt

from devmem.toolkit.host_functions import this_thread

Run = Callable[..., object]
#: The address of the first row, the bytes from one row to the next, and from one slice of rows to the next.
Rows = tuple[int, int, int]
#: Bytes of a row, rows of a slice, slices.
Shape = tuple[int, int, int]


def nothing() -> None:
    """Do nothing: for a job that only takes a place in the order of its stream."""


class Stream:
    """Jobs that run one after the other. Those that its thread runs come through ``queue``, where None ends the thread."""

    __slots__ = ("engine", "has_thread", "last", "non_blocking", "queue")

    def __init__(self, engine: object, non_blocking: bool) -> None:
        self.engine = engine
        self.non_blocking = non_blocking
        self.queue: SimpleQueue[Job | None] = SimpleQueue()
        self.has_thread = False
        self.last = Job(self, done=True)  # the job that was enqueued last

    def end(self) -> None:
        """Let the thread end after the jobs that are enqueued, with the engine's lock held."""
        self.has_thread = False
        self.queue.put(None)


@dataclass(slots=True, eq=False)
class Job:
    """Something to run on a stream once the jobs in ``after`` are done.

    ``function`` is the host function that it calls, if any. An ``abandoned`` job is done, but never ran.
    """

    stream: Stream
    run: Run = nothing
    args: Sequence[object] = ()
    after: Sequence[Job] = ()
    function: object = None
    number: int = 0  # jobs of one stream run in the order of their numbers
    running: bool = False
    done: bool = False
    abandoned: bool = False
    seconds: float = 0.0  # when it was done
    gates: tuple[threading.Lock, ...] = ()

    def gate(self) -> threading.Lock:
        """Return a lock that opens when the job is done. Call it with the engine's lock held; acquire the gate after that.

        Not a `threading.Condition`: a wait for one that Ctrl-C interrupts can return without its lock.
        """
        gate = threading.Lock()
        gate.acquire()
        self.gates = *self.gates, gate
        return gate


@dataclass(slots=True, eq=False)
class Event:
    """The job after which it was recorded last."""

    timing: bool
    job: Job | None = None


def copy_rows(to: Rows, source: Rows, shape: Shape) -> None:
    """Copy rows of bytes."""
    _rows(to, shape)[...] = _rows(source, shape)


def fill_words(ptr: int, value: int, width: int, count: int) -> None:
    """Store a word of ``width`` bytes ``count`` times."""
    words = value.to_bytes(width, sys.byteorder) * min(count, 1 << 14)  # they stay in the processor's cache
    nbytes = width * count
    for at in range(0, nbytes, len(words)):
        memmove(ptr + at, words, min(len(words), nbytes - at))


def call_function(function: Callable[[Sequence[int]], None], places: Sequence[int]) -> None:
    """Call a host function, and mark the thread meanwhile."""
    with this_thread.running_host_function():
        function(places)


def read_bytes(to: int, source: int, nbytes: int) -> Run:
    """Read the source of a `memmove` now; return what writes it."""
    return partial(memmove, to, string_at(source, nbytes), nbytes)


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
