"""Streams that are threads: what a vendor's runtime would bring."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from queue import SimpleQueue
from typing import Any


def nothing() -> None:
    """Do nothing: a job that only marks its place."""


class Job:
    """Something to do, and whether it is done."""

    def __init__(self, run: Callable[..., object] = nothing, *args: Any) -> None:
        self.run, self.args = run, args
        self.done = threading.Event()
        self.seconds = 0.0


class Stream:
    """Jobs that one thread does in the order in which they were enqueued."""

    def __init__(self) -> None:
        self._jobs: SimpleQueue[Job | None] = SimpleQueue()
        self._lock = threading.RLock()
        self.newest = Job()
        self.newest.done.set()
        threading.Thread(target=self._work, name="example-stream", daemon=True).start()

    def enqueue(self, job: Job) -> Job:
        """Give the thread another job."""
        with self._lock:  # the newest is the last in the queue
            self.newest = job
            self._jobs.put(job)
        return job

    def wait(self) -> None:
        """Wait until all jobs are done that are enqueued by now."""
        self.newest.done.wait()

    def end(self) -> None:
        """Let the thread end when its jobs are done."""
        self._jobs.put(None)

    def _work(self) -> None:
        while (job := self._jobs.get()) is not None:
            job.run(*job.args)
            job.seconds = time.perf_counter()
            job.run, job.args = nothing, ()
            job.done.set()
