"""The streams of a device and the events recorded on them: what each is, and how far it has come."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .stream_engine import Engine

Run = Callable[..., object]


class Stream:
    """A queue of jobs that run one after the other. Its methods are called inside the engine's lock."""

    __slots__ = (
        "_gates",
        "abandoned",
        "completed",
        "ended",
        "engine",
        "enqueued",
        "followers",
        "function",
        "non_blocking",
        "queue",
        "running",
    )

    def __init__(self, engine: Engine, non_blocking: bool) -> None:
        self.engine = engine
        self.non_blocking = non_blocking
        self.queue: deque[Job] = deque()
        self.enqueued = 0
        self.completed = 0
        self.running = False
        self.function: object = None  # the user's that runs
        self.ended = False
        self.abandoned = False
        self.followers: set[Stream] = set()  # streams with a job that waits for one of ours
        self._gates: list[threading.Lock] = []

    def gate(self) -> threading.Lock:
        """Return a lock that opens when anything about this stream changes; to be acquired outside the engine's lock.

        A `threading.Condition` would do, but for Ctrl-C: interrupted at the wrong moment it leaves its lock released.
        """
        gate = threading.Lock()
        gate.acquire()
        self._gates.append(gate)
        return gate

    def notify(self) -> None:
        """Wake whoever waits for this stream."""
        for gate in self._gates:
            gate.release()
        self._gates.clear()

    def claim(self) -> None:
        """Begin a job in the calling thread."""
        self.enqueued += 1
        self.running = True
        self.engine.pending.add(self)

    def finish(self) -> None:
        """Count a job as complete and wake whoever waits for it."""
        self.running = False
        self.completed += 1
        drained = self.completed == self.enqueued
        if drained:
            self.engine.pending.discard(self)
        self.notify()
        for stream in self.followers:
            stream.notify()
        if drained:
            self.followers.clear()

    def end(self) -> None:
        """Let the thread end when the queue is empty."""
        self.ended = True
        self.notify()

    def abandon(self) -> None:
        """Drop the jobs that were not begun and count them as complete."""
        self.abandoned = True
        self.queue.clear()
        self.completed = self.enqueued - 1
        self.finish()


class Event:
    """A mark that can be set again."""

    __slots__ = ("mark", "timing")

    def __init__(self, timing: bool) -> None:
        self.timing = timing
        self.mark: Mark | None = None


class Mark:
    """A point of a stream, and when it was passed. A new one for each record: the job of an old one may still come."""

    __slots__ = ("count", "seconds", "stream")

    def __init__(self, stream: Stream) -> None:
        self.stream = stream
        self.count = 0
        self.seconds = 0.0

    def reached(self) -> bool:
        """Whether the stream has passed it."""
        return self.stream.completed >= self.count

    def stamp(self) -> None:
        """Note the time."""
        self.seconds = time.perf_counter()


class Job:
    """Something to run, once the points in ``after`` are reached."""

    __slots__ = ("after", "args", "run")

    def __init__(self, run: Run, args: tuple[object, ...]) -> None:
        self.run = run
        self.args = args
        self.after: list[Point] = []


Point = tuple[Stream, int]


def nothing() -> None:
    """Take a place in the order of a stream."""
