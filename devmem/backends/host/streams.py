"""What a stream engine works on: streams, their jobs, and events."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from queue import SimpleQueue
from typing import Protocol

Run = Callable[..., object]


def nothing() -> None:
    """Do nothing: for a job that only takes a place in the order of its stream."""


class Engine(Protocol):
    """The stream engine, as far as its streams know it."""

    @property
    def pending(self) -> set[Stream]:
        """Streams with jobs that are not done."""


class Stream:
    """Jobs that run one after the other. Those that its thread runs come through ``queue``, where None ends the thread."""

    __slots__ = ("engine", "has_thread", "last", "non_blocking", "queue")

    def __init__(self, engine: Engine, non_blocking: bool) -> None:
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
    _gates: tuple[threading.Lock, ...] = ()

    def gate(self) -> threading.Lock:
        """Return a lock that opens when the job is done. Call it with the engine's lock held; acquire the gate after that.

        Not a `threading.Condition`: a wait for one that Ctrl-C interrupts can return without its lock.
        """
        gate = threading.Lock()
        gate.acquire()
        self._gates = *self._gates, gate
        return gate

    def finish(self, abandoned: bool = False) -> None:
        """Note that the job is done, with the engine's lock held, and let go of all that it refers to."""
        self.done, self.abandoned, self.seconds = True, abandoned, time.perf_counter()
        self.run, self.args, self.after, self.function = nothing, (), (), None
        if self.stream.last is self:
            self.stream.engine.pending.discard(self.stream)
        for gate in self._gates:
            gate.release()


@dataclass(slots=True, eq=False)
class Event:
    """The job after which it was recorded last."""

    timing: bool
    job: Job | None = None
