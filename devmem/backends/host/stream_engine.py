"""The streams of a device: jobs in their order, the threads that run them, and the threads that wait for them.

Every stream has a thread, which starts with the first job that cannot run at once. Callers enqueue jobs; the thread runs them
one after the other, each when the jobs that it comes after are done. So the legacy stream waits for every blocking stream and
they for it, a stream for an event, and a stream for a hold, which is a job that never runs. A job only ever waits for jobs that
were enqueued before it: there is no cycle. A small job that has nothing to wait for runs on the calling thread instead, which
costs less than to wake another.

One lock guards the order of the jobs of all devices, as a stream may wait for an event of another device. Callers alone take it.
A stream's thread takes none, so a job can always be completed, also while a caller that holds the lock waits: in a signal's
handler, or in a finalizer that the garbage collector runs. Such code may come between any two lines of the caller, calls the
engine again; `_publish` sees that something has come between, and looks anew. Python lets it come behind calls, where a function
begins, and where a loop goes round: where a job is published, and where it ends, there is none of these between two lines. So an
interrupt leaves no job that others would wait for in vain.

Jobs of the backend do not fail; if one does, the device is lost. Host functions of the user do: what they raise is kept until
a call waits for their stream, and raised there. When such a wait is interrupted, so are the functions that it waits for, or an
endless one would block the stream for good. A device that closes and the child of a fork begin no more jobs, and a call that
needs one gets DEVICE_CLOSED. While the interpreter exits no thread can start, and none may run when it finalizes: the jobs are
run by the callers that wait for them, or ask.
"""

# Decision: docs/adr/0014-interrupts-and-handlers-may-come-anywhere.md
from __future__ import annotations

import atexit
import itertools
import math
import os
import threading
import time
import warnings
import weakref
from _thread import start_new_thread
from collections.abc import Callable, Iterable
from operator import attrgetter
from queue import SimpleQueue
from typing import cast

from devmem.spi.errors import DevmemWarning
from devmem.spi.types import LEGACY_STREAM, PER_THREAD_STREAM
from devmem.toolkit.exiting import is_exiting
from devmem.toolkit.host_functions import this_thread

from ...toolkit.locks import Rank, lock
from .error_codes import host_error
from .streams import Event, Job, Run, Stream, Use

#: Jobs of up to so many bytes run on the calling thread, which holds the lock. To wake the stream's thread takes about 20 µs, a
#: copy of so many bytes 30.
SMALL = 1 << 20
#: How long the interpreter's exit waits for jobs that are running, in seconds. Jobs that have not begun never do.
EXIT_WAIT = 1.0

_numbers = itertools.count(1)  # of jobs
_handles = itertools.count(0x1000)  # of streams, events and holds; no handle is used twice, on any device
_newest = [0]  # the number of the job that was published last
_lock = lock("order of jobs", Rank.WITHIN_DRIVER)
_events: weakref.WeakValueDictionary[int, Event] = weakref.WeakValueDictionary()  # of all devices
_engines: weakref.WeakSet[StreamEngine] = weakref.WeakSet()
_left_to_callers = False  # the program has ended: no thread begins a job any more
_none_starts = False  # the program ends: a thread could not be started, and callers run the jobs of its stream


class StreamEngine:
    """All streams, events and holds of one device, with the driver's methods for them.

    ``check`` raises for a driver call unless the device is current. ``at_exit`` is called as the interpreter
    exits.
    """

    def __init__(self, check: Callable[[str], None], at_exit: Run) -> None:
        self.lock = _lock
        self.stopping = False
        self.lost = ""  # the error of a job that failed: after that the device cannot be trusted
        self.legacy = Stream(self, non_blocking=False)
        self.streams: dict[int, Stream] = {LEGACY_STREAM: self.legacy}  # by handle, until it is destroyed
        self.events: dict[int, Event] = {}
        self.busy: dict[Stream, Job] = {}  # the last job of each stream that may have jobs that are not done
        self.foreign: set[Job] = set()  # jobs on no stream of this device that touch its memory
        self.failures: list[tuple[Stream, int, BaseException]] = []  # what host functions raised: stream, job
        self.at_exit = at_exit
        self._check = check
        self._holds: dict[int, Job] = {}
        self._per_thread: dict[threading.Thread, Stream] = {}
        _engines.add(self)

    # -- the driver's methods ----------------------------------------------------------------------------------------

    def stream_create(self, priority: int, non_blocking: bool) -> int:
        self._check("stream_create")
        handle = next(_handles)
        self.streams[handle] = Stream(self, non_blocking)
        return handle

    def stream_destroy(self, stream: int) -> None:
        self._check("stream_destroy")
        with self.lock:
            destroyed = self.streams.get(stream)
            if destroyed is None or destroyed is self.legacy:
                why = f"{stream!r} is not a stream that was created"
                raise host_error("stream_destroy", "INVALID_HANDLE", why)
            destroyed.end()
            self.streams.pop(stream, None)

    def stream_synchronize(self, stream: int) -> None:
        on = self.stream(stream, "stream_synchronize")
        for job in self._last(on) or [None]:
            self._await(job)
        if self.failures:
            self.raise_failure(on)

    def stream_query(self, stream: int) -> bool:
        last = self._last(self.stream(stream, "stream_query"))
        self._help(last, wait=False)
        return all(job is None or job.done for job in last)

    def stream_wait(self, stream: int, event: int) -> None:
        on = self.stream(stream, "stream_wait")
        recorded = _events.get(event) or self.event(event, "stream_wait")
        if recorded.job is not None and not recorded.job.done:
            self.enqueue(Job(on, after=[recorded.job]))

    def stream_wait_peer(self, stream: int, event: int, ordinal: int) -> None:
        self.stream_wait(stream, event)  # no handle is used twice, on any device

    def event_create(self, timing: bool) -> int:
        self._check("event_create")
        handle = next(_handles)
        _events[handle] = self.events[handle] = Event(timing)
        return handle

    def event_destroy(self, event: int) -> None:
        self.event(event, "event_destroy")
        del self.events[event]
        _events.pop(event, None)

    def event_record(self, event: int, stream: int) -> None:
        on, recorded = self.stream(stream, "event_record"), self.event(event, "event_record")
        with self.lock:
            if self.stopping or self.lost:
                raise self._refusal()
            idle = not self.busy or not self._before(on)
            job, number, seconds = None, _newest[0], time.perf_counter() if recorded.timing else 0.0
        if not idle:
            job = self.enqueue(Job(on))
            number = job.number
        recorded.stream, recorded.job, recorded.number, recorded.seconds = on, job, number, seconds

    def event_query(self, event: int) -> bool:
        recorded = self.event(event, "event_query")
        self._help([recorded.job], wait=False)
        return recorded.done

    def event_synchronize(self, event: int) -> None:
        recorded = self.event(event, "event_synchronize")
        if recorded.stream is not None:
            self._await(recorded.job)
            if self.failures:
                self.raise_failure(recorded.stream, recorded.number)

    def event_elapsed(self, start: int, end: int) -> float:
        seconds = []
        for handle in (start, end):
            event = self.event(handle, "event_elapsed")
            if event.stream is None or not event.timing:
                why = f"event {handle} was not recorded, or not for timing"
                raise host_error("event_elapsed", "INVALID_HANDLE", why)
            if not event.done:
                raise host_error("event_elapsed", "NOT_READY", f"event {handle} is not complete")
            seconds.append(event.seconds if event.job is None else event.job.seconds)
        return 1000.0 * (seconds[1] - seconds[0])

    def synchronize(self) -> None:
        self._check("synchronize")
        self.drain()
        self.raise_failure()

    def stream_from(self, stream: object) -> int:
        if not isinstance(stream, int):
            raise TypeError(f"a host device's streams are known by their handles, not as {stream!r}")
        self.stream(stream, "stream_from")
        return stream

    def hold(self, stream: int) -> int:
        on = self.stream(stream, "hold")
        latch, handle = Job(on), next(_handles)
        self._holds[handle] = latch
        try:
            self.enqueue(Job(on, after=[latch]))
        except BaseException:
            latch.abandon()
            self._holds.pop(handle, None)
            raise
        return handle

    def release(self, hold: int) -> None:
        self._check("release")
        latch = self._holds.get(hold)
        is_released = latch is not None and latch.abandon()
        self._holds.pop(hold, None)
        if not is_released:
            raise host_error("release", "INVALID_HANDLE", f"{hold!r} is not a hold, or was released")

    # -- jobs --------------------------------------------------------------------------------------------------------

    def stream(self, handle: int, call: str) -> Stream:
        self._check(call)
        stream = self.streams.get(handle)
        if stream is None:
            if handle != PER_THREAD_STREAM:
                raise host_error(call, "INVALID_HANDLE", f"{handle!r} is not a stream of this device")
            thread = threading.current_thread()
            stream = self._per_thread.get(thread) or self._add_thread(thread)
        return stream

    def event(self, handle: int, call: str) -> Event:
        self._check(call)
        event = self.events.get(handle)
        if event is None:
            raise host_error(call, "INVALID_HANDLE", f"{handle!r} is not an event of this device")
        return event

    def run_if_idle(self, stream: Stream, nbytes: int, run: Run, *args: object) -> bool:
        """Run a small job on this thread if it has nothing to wait for; else do nothing and return False."""
        if stream.records:
            why = "a graph copies between device memory and page-locked memory of the host, and waits for nothing"
            raise host_error("graph_create", "NOT_PERMITTED", why)
        with self.lock:
            if self.stopping or self.lost:
                raise self._refusal()
            if nbytes > SMALL or (self.busy and self._before(stream)):
                return False
            run(*args)
            return True

    def start(self, stream: Stream, nbytes: int, run: Run, *args: object) -> None:
        """Run a small job on this thread if it has nothing to wait for; else enqueue it."""
        if stream.records or not self.run_if_idle(stream, nbytes, run, *args):
            self.enqueue(Job(stream, run, args))

    def run_if_first(self, stream: Stream, nbytes: int, run: Run, *args: object) -> bool:
        """Run a job and return when it is done, if it has nothing to wait for; else do nothing and return False."""
        return self.run_if_idle(stream, nbytes, run, *args) or self._complete(Job(stream, run, args), if_first=True)

    def run_and_wait(self, stream: Stream, nbytes: int, run: Run, *args: object) -> None:
        """Run a job at its place in the order, and return when it is done.

        Raise what a host function before it has raised. If the wait is interrupted, the job touches nothing afterwards.
        """
        if self.failures:
            self.raise_failure(stream)
        if self.run_if_idle(stream, nbytes, run, *args):
            if self.failures:  # of a function that was still running a moment ago
                self.raise_failure(stream)
            return
        job = Job(stream, run, args)
        self._complete(job)
        if self.failures:
            self.raise_failure(stream, job.number)

    def enqueue(self, job: Job) -> Job:
        """Give a job to the thread of its stream, and return it."""
        with self.lock:
            if self.stopping or self.lost:
                raise self._refusal()
            if job.stream.records:
                return job
            if not job.stream.has_thread and not _left_to_callers:
                self._start_thread(job.stream)
            try:
                for jobs in job.touches:
                    jobs.add(job)
                self._publish(job)
            except BaseException:
                if not job.number:
                    job.abandon()
                raise
        return job

    def wait(self, job: Job) -> None:
        """Wait until a job is done; raise what a host function before it has raised."""
        self._await(job)
        if self.failures:
            self.raise_failure(job.stream, job.number)

    def drain(self) -> bool:
        """Wait until every job enqueued before is done, on every stream. Raises no error of a host function.

        False where this thread is itself in the middle of a `Use`, as in the handler of a signal.
        """
        is_drained = True
        if self.busy or self.foreign:
            for job in (*list(self.busy.values()), *list(self.foreign)):
                if isinstance(job, Use) and job.thread == threading.get_ident():
                    is_drained = False
                elif isinstance(job, Use) or job.number:  # not one that a caller is about to publish
                    self._await(job)
        return is_drained

    # -- host functions ----------------------------------------------------------------------------------------------

    def raise_failure(self, stream: Stream | None = None, number: float = math.inf) -> None:
        """Raise the first error of a host function: on any stream, or of one stream's jobs up to a number.

        A wait for the legacy stream is a wait for the blocking streams, and raises their errors.
        """
        for failure in list(self.failures):
            on, failed, error = failure
            every_job = stream is None or (stream is self.legacy and not on.non_blocking)
            if every_job or (on is stream and failed <= number):
                try:
                    self.failures.remove(failure)
                except ValueError:  # another thread raises it
                    continue
                try:
                    raise error
                finally:
                    del failure, error  # or its traceback and this frame would keep each other, and the caller, alive

    def warn_of_failures(self) -> None:
        """Give as warnings the errors that no call can raise any more."""
        failures, self.failures = self.failures, []
        for _, _, error in failures:
            why = f"a function that a stream ran failed, and no call waited for it: {type(error).__name__}: {error}"
            warnings.warn(why, DevmemWarning, stacklevel=3)

    def interrupt(self, job: Job, error: BaseException) -> None:
        """Interrupt the host functions that a wait for a job waits for; what they were doing becomes a note of the error.

        Those that have not begun come first, as they would begin when the one before them ends.
        """
        functions = [each.function for each in sorted(_unfinished([job]), key=attrgetter("running"))]
        for function in functions:
            end = getattr(function, "interrupt", None)
            if end is not None and (note := end()):
                error.add_note(note)

    # -- the end -----------------------------------------------------------------------------------------------------

    def stop(self) -> None:
        """Begin no more jobs, wait for those that are running, and abandon the rest: no other device waits for them."""
        self.stopping = True
        with self.lock:  # no caller is about to enqueue a job
            jobs = self._unfinished()
        for job in jobs:
            if not job.abandon():
                job.wait()
        for stream in (*list(self.streams.values()), *list(self._per_thread.values())):
            stream.end()
        _engines.discard(self)

    def wait_for_running(self, deadline: float) -> None:
        """Wait for the jobs that are running, until the deadline."""
        for job in self._unfinished():
            if job.running and job.gate.acquire(timeout=max(deadline - time.monotonic(), 0)):
                job.gate.release()

    def _unfinished(self) -> list[Job]:
        jobs = _unfinished([*list(self._holds.values()), *list(self.busy.values())])
        return [job for job in jobs if job.stream.engine is self]

    def _before(self, stream: Stream) -> list[Job]:
        """Return the jobs that are not done and that a job of the stream, enqueued now, comes after."""
        if stream is self.legacy:
            before = [job for on, job in list(self.busy.items()) if not on.non_blocking]
        else:
            streams = (stream,) if stream.non_blocking else (stream, self.legacy)
            before = [job for on in streams if (job := self.busy.get(on)) is not None]
        return [job for job in before if not job.done]

    def _last(self, stream: Stream) -> list[Job | None]:
        """Return the jobs that a wait for the stream waits for: that for the legacy stream waits for the blocking ones, too."""
        if stream is self.legacy and self.busy:
            return [*self._before(stream)]
        return [self.busy.get(stream)]

    def _publish(self, job: Job) -> None:
        """Make the job the last of its stream; the lock is held."""
        stream, first = job.stream, job.after
        while True:
            newest, number = _newest[0], next(_numbers)
            job.after = [*first, *self._before(stream)]
            if _newest[0] == newest:
                break
        job.number = _newest[0] = number
        self.busy[stream] = job
        stream.queue.put(job)

    def _refusal(self) -> BaseException:
        if self.lost:
            return host_error("a job", "LAUNCH_FAILED", f"failed earlier: {self.lost}")
        return host_error("a call", "DEVICE_CLOSED", "the device was closed, or is a parent process's")

    # -- waiting, and the streams' threads ---------------------------------------------------------------------------

    def _await(self, job: Job | None) -> None:
        """Wait until a job is done; raise if it never will be."""
        if job is not None and not job.done and not self.stopping:
            try:
                self._help([job], wait=True)
                job.wait()
            except BaseException as error:
                self.interrupt(job, error)
                raise
        # An abandoned job is done for the streams of other devices, but not for a caller of this one.
        abandoned = job is not None and (not job.done or (job.abandoned and job.stream.engine is self))
        if abandoned or self.lost:
            raise self._refusal()

    def _complete(self, job: Job, if_first: bool = False) -> bool:
        """Enqueue a job and wait until it is done; if the wait is interrupted, the job touches nothing afterwards.

        False, and nothing is enqueued, if it had to be ``if_first`` and has jobs to wait for.
        """
        try:
            with self.lock:
                if if_first and self.busy and self._before(job.stream):
                    return False
                self.enqueue(job)
            self._await(job)
        except BaseException:
            if not job.withdraw() and job.running and not self.stopping:
                self._await(job)
            raise
        return True

    def _start_thread(self, stream: Stream) -> None:
        # Not by `threading.Thread`, whose `start` waits in Python: an interrupt there breaks the new thread.
        global _none_starts
        stream.has_thread = True
        try:
            start_new_thread(self._work, (stream.queue,))
        except RuntimeError as error:
            stream.has_thread = False
            if is_exiting():
                _none_starts = True
                return
            raise host_error("stream", "OPERATING_SYSTEM", f"cannot start a thread for the stream: {error}") from error

    def _work(self, jobs: SimpleQueue[Job | None]) -> None:
        this_thread.runs_host_function = True
        while (job := jobs.get()) is not None:
            if not _left_to_callers:
                self._run(job)
            del job

    def _help(self, wanted: Iterable[Job | None], wait: bool) -> None:
        """While Python exits, run on this thread what these jobs come after, and them: all, or what need not ``wait``.

        A stream may have no thread then, and from our handler of `atexit` on no thread begins a job.
        """
        # Not by `is_exiting`: before Python 3.13 an interrupt in `is_alive` of the main thread lets it count as ended.
        if _left_to_callers or _none_starts:
            jobs = _unfinished(job for job in wanted if job is not None)
            for job in sorted(jobs, key=attrgetter("number")):
                # One without a number is no stream's: a hold, or what a thread does by itself.
                if job.number and (wait or all(earlier.done for earlier in job.after)):
                    with this_thread.running_host_function():
                        cast(StreamEngine, job.stream.engine)._run(job)

    def _run(self, job: Job) -> None:
        for earlier in job.after:
            earlier.wait()
        try:
            run = None if self.stopping else job.work.pop()
        except IndexError:  # abandoned
            run = None
        if run is None:
            return
        try:
            run()
        except BaseException as error:  # no caller on this thread: the next call that waits raises it
            if job.function is None:
                self.lost = repr(error)
            else:
                self.failures.append((job.stream, job.number, error))
        # No call stands between the question and the deletion, so no caller publishes a job between them.
        if job.stream in self.busy and self.busy[job.stream] is job:
            del self.busy[job.stream]
        job.complete()

    def _add_thread(self, thread: threading.Thread) -> Stream:
        """Make the per-thread stream of a thread, and end those of threads that have ended."""
        for ended, stream in list(self._per_thread.items()):
            if not ended.is_alive():
                stream.end()
                self._per_thread.pop(ended, None)
        return self._per_thread.setdefault(thread, Stream(self, non_blocking=False))


def _unfinished(jobs: Iterable[Job]) -> list[Job]:
    """Return the jobs that are not done among these and all that they come after."""
    found: dict[Job, None] = {}
    left = list(jobs)
    while left:
        job = left.pop()
        if not job.done and job not in found:
            found[job] = None
            left += job.after
    return list(found)


@atexit.register
def _leave_to_callers() -> None:
    """Leave the jobs to handlers of `atexit` that were registered before, and give those that are running a second.

    None must be running on a thread when the interpreter finalizes. Where one is even so, or a daemon thread copies, the memory
    is still mapped.
    """
    global _left_to_callers
    _left_to_callers = True
    deadline = time.monotonic() + EXIT_WAIT
    engines = list(_engines)
    for engine in engines:
        engine.wait_for_running(deadline)
        engine.at_exit()
    for engine in engines:
        engine.warn_of_failures()


def _forget_parent() -> None:
    """In the child of a fork no stream has a thread: let the parent's engines refuse."""
    for engine in list(_engines):
        engine.stopping = True
    _engines.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget_parent)
