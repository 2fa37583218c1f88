"""Functions of the user's that streams run: nobody knows what they do, how long they take, and what they raise."""

from __future__ import annotations

import itertools
import threading
import warnings
from typing import Any

from devmem.spi.errors import DevmemWarning
from devmem.toolkit.host_functions import this_thread

from .streams import Job, Point, Run, Stream


class Functions:
    """What they raised, and nobody was told; the engine is the rest."""

    lock: threading.Lock
    legacy: Stream

    def __init__(self) -> None:
        #: The stream, which of its jobs it was, and what that raised.
        self.failures: list[tuple[Stream, int, BaseException]] = []

    def protect(self, stream: Stream, run: Run, *args: object) -> None:
        """Run a job of the user's: what it raises is for whoever waits for the stream, and no reason to distrust the device.

        Which function that is the stream has been told when the job was taken: see `function_of`.
        """
        try:
            with this_thread.running_host_function():
                run(*args)
        except BaseException as error:
            with self.lock:
                self.failures.append((stream, stream.completed + 1, error))
        finally:
            stream.function = None

    def interrupt(self, point: Point, error: BaseException) -> None:
        """End the jobs of the user's that a wait for the point waits for, if they can be; what they were at becomes a note.

        Ctrl-C would otherwise leave a loop without end on the stream, and everybody who comes behind it waiting. Those not begun
        yet are told first: they would run as soon as the one before them ends.
        """
        points, seen = [point], set[Point]()
        running, queued = list[Any](), list[Any]()
        with self.lock:
            while points:
                stream, count = reached = points.pop()
                if reached in seen or stream.completed >= count:
                    continue
                seen.add(reached)
                running.append(stream.function)
                for job in itertools.islice(stream.queue, count - stream.completed - stream.running):
                    queued.append(function_of(job))
                    points += job.after
        for function in queued + running:
            end = getattr(function, "interrupt", None)
            told = end() if end is not None else None
            if told:
                error.add_note(told)

    def tell(self, stream: Stream | None = None, count: int | None = None) -> None:
        """Raise the first thing that a job raised and nobody was told: of a stream, up to a point of it; or of any.

        Who waits for the legacy stream waits for the blocking ones, and is told of theirs.
        """
        with self.lock:
            found = [
                each
                for each in self.failures
                if stream is None
                or (each[0] is stream and (count is None or each[1] <= count))
                or (stream is self.legacy and not each[0].non_blocking)
            ]
            if not found:
                return
            self.failures.remove(found[0])
        error = found[0][2]
        try:
            raise error
        finally:
            del error, found  # or this frame and the traceback, with whoever called, would keep each other

    def warn(self) -> None:
        """Tell as a warning what nobody can be told otherwise any more."""
        failures, self.failures = self.failures, []
        for _, _, error in failures:
            told = f"a function that a stream ran failed, and nobody waited for it: {type(error).__name__}: {error}"
            warnings.warn(told, DevmemWarning, stacklevel=3)


def function_of(job: Job) -> object:
    """The function of the user's that a job runs, if that is what it does."""
    return job.args[1] if getattr(job.run, "__func__", None) is Functions.protect else None
