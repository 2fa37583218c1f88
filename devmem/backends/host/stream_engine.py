"""The streams of a device: jobs in their order, the threads that run them, and the threads that wait for them.

Every stream has a thread, which starts with the first job that cannot run at once. Callers enqueue jobs; the thread runs them
one after the other, each when the jobs that it comes after are done. So the legacy stream waits for every blocking stream and
they for it, a stream for an event, and a stream for a hold, which is a job that never runs. A job only ever waits for jobs that
were enqueued before it: there is no cycle. A job that has nothing to wait for may run on the calling thread instead, which costs
less than to wake another.

One lock guards the streams of all devices, as a stream may wait for an event of another device. No thread holds it while it
waits, nor while it copies more than `SMALL` bytes. A thread that waits for a job takes a *gate* of it under the lock: a lock of
its own, which opens when the job is done.

Jobs of the backend do not fail; if one does, the device is lost. Host functions of the user do: what they raise is kept until
a call waits for their stream, and raised there. When such a wait is interrupted, so are the functions that it waits for, or an
endless one would block the stream for good. A device that closes, an interpreter that ends and the child of a fork begin no more
jobs, and a call that needs one gets DEVICE_CLOSED.
"""

from __future__ import annotations

import atexit
import itertools
import math
import os
import threading
import time
import warnings
import weakref
from collections.abc import Callable, Iterable
from operator import attrgetter

from devmem.spi.errors import DevmemWarning
from devmem.spi.types import LEGACY_STREAM, PER_THREAD_STREAM

from .error_codes import host_error
from .streams import Event, Job, Run, Stream, nothing

#: Jobs of up to so many bytes run on the calling thread while the lock is held: cheaper than to claim the stream for them.
SMALL = 64 * 1024
#: How long the interpreter's exit waits for jobs that are running, in seconds. Jobs that have not begun never do.
EXIT_WAIT = 1.0

_numbers = itertools.count(1)  # of jobs
_handles = itertools.count(0x1000)  # of streams, events and holds; no handle is used twice, on any device
_lock = threading.Lock()
_engines: weakref.WeakSet[StreamEngine] = weakref.WeakSet()


class StreamEngine:
    """All streams, events and holds of one device, with the driver's methods for them.

    ``check`` raises for a driver call unless the device is current. ``at_exit`` is called if a job is running when the
    interpreter ends.
    """

    def __init__(self, check: Callable[[str], None], at_exit: Run) -> None:
        self.lock = _lock
        self.stopping = False
        self.lost = ""  # the error of a job that failed: after that the device cannot be trusted
        self.legacy = Stream(self, non_blocking=False)
        self.streams: dict[int, Stream] = {LEGACY_STREAM: self.legacy}  # by handle, until it is destroyed
        self.events: dict[int, Event] = {}
        self.pending: set[Stream] = set()  # streams with jobs that are not done
        self.foreign: list[Job] = []  # jobs on streams of other devices that touch memory of this one
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
        destroyed = None if stream == LEGACY_STREAM else self.streams.pop(stream, None)
        if destroyed is None:
            raise host_error("stream_destroy", "INVALID_HANDLE", f"{stream!r} is not a stream that was created")
        with self.lock:
            destroyed.end()

    def stream_synchronize(self, stream: int) -> None:
        self.wait(self.stream(stream, "stream_synchronize").last)

    def stream_query(self, stream: int) -> bool:
        return self.stream(stream, "stream_query").last.done

    def stream_wait(self, stream: int, event: int) -> None:
        on = self.stream(stream, "stream_wait")
        found = (engine.events.get(event) for engine in [self, *_engines])
        job = (next(filter(None, found), None) or self.event(event, "stream_wait")).job
        if job is not None and not job.done:
            self.enqueue(Job(on, after=[job]))

    def event_create(self, timing: bool) -> int:
        self._check("event_create")
        handle = next(_handles)
        self.events[handle] = Event(timing)
        return handle

    def event_destroy(self, event: int) -> None:
        self.event(event, "event_destroy")
        del self.events[event]

    def event_record(self, event: int, stream: int) -> None:
        on, recorded = self.stream(stream, "event_record"), self.event(event, "event_record")
        with self.lock:
            if self.stopping or self.lost:
                raise self._refusal()
            last, idle = on.last, not self.pending or self._idle(on)
        if idle and recorded.timing:
            recorded.job = Job(on, number=last.number, done=True, seconds=time.perf_counter())
        else:
            recorded.job = last if idle else self.enqueue(Job(on))

    def event_query(self, event: int) -> bool:
        job = self.event(event, "event_query").job
        return job is None or job.done

    def event_synchronize(self, event: int) -> None:
        job = self.event(event, "event_synchronize").job
        if job is not None:
            self.wait(job)

    def event_elapsed(self, start: int, end: int) -> float:
        seconds = []
        for handle in (start, end):
            event = self.event(handle, "event_elapsed")
            job = event.job
            if job is None or not event.timing:
                why = f"event {handle} was not recorded, or not for timing"
                raise host_error("event_elapsed", "INVALID_HANDLE", why)
            if not job.done:
                raise host_error("event_elapsed", "NOT_READY", f"event {handle} is not complete")
            seconds.append(job.seconds)
        return 1000.0 * (seconds[1] - seconds[0])

    def synchronize(self) -> None:
        self._check("synchronize")
        self.drain()
        self.raise_failure()

    def hold(self, stream: int) -> int:
        on = self.stream(stream, "hold")
        latch, handle = Job(on), next(_handles)
        self.enqueue(Job(on, after=[latch]))
        self._holds[handle] = latch
        return handle

    def release(self, hold: int) -> None:
        self._check("release")
        latch = self._holds.pop(hold, None)
        if latch is None:
            raise host_error("release", "INVALID_HANDLE", f"{hold!r} is not a hold, or was released")
        with self.lock:
            self._finish(latch)

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
        """Run a job on this thread if it has nothing to wait for; else do nothing and return False."""
        job = None
        try:
            with self.lock:
                if self.stopping or self.lost:
                    raise self._refusal()
                if self.pending and not self._idle(stream):
                    return False
                if nbytes <= SMALL:
                    run(*args)
                    return True
                job = Job(stream, running=True)
                self._append(job)
            run(*args)
        finally:
            if job is not None:
                with self.lock:
                    self._finish(job)
        return True

    def start(self, stream: Stream, nbytes: int, run: Run, *args: object) -> None:
        """Run a small job on this thread if it has nothing to wait for; else enqueue it."""
        if nbytes > SMALL or not self.run_if_idle(stream, nbytes, run, *args):
            self.enqueue(Job(stream, run, args))

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
        job = self.enqueue(Job(stream, run, args))
        try:
            self._await(job)
        except BaseException:
            with self.lock:
                if not job.running:
                    job.run, job.args = nothing, ()
            if job.running and not self.stopping:
                self._await(job)
            raise
        if self.failures:
            self.raise_failure(stream, job.number)

    def enqueue(self, job: Job, touches: Iterable[StreamEngine] = ()) -> Job:
        """Give a job to the thread of its stream, and return it.

        ``touches``: engines of other devices whose memory it uses, and which wait for it where they wait for all of their jobs.
        """
        stream = job.stream
        with self.lock:
            if self.stopping or self.lost:
                raise self._refusal()
            if not stream.has_thread:
                self._start_thread(stream)
            self._append(job)
            stream.queue.put(job)
            for engine in touches:
                engine.foreign.append(job)
        return job

    def wait(self, job: Job) -> None:
        """Wait until a job is done; raise what a host function before it has raised."""
        self._await(job)
        if self.failures:
            self.raise_failure(job.stream, job.number)

    def drain(self) -> None:
        """Wait until every job enqueued before is done, on every stream. Raises no error of a host function."""
        if self.pending or self.foreign:
            with self.lock:
                self.foreign = [job for job in self.foreign if not job.done]
                jobs = [stream.last for stream in self.pending] + self.foreign
            for job in jobs:
                self._await(job)

    # -- host functions ----------------------------------------------------------------------------------------------

    def raise_failure(self, stream: Stream | None = None, number: float = math.inf) -> None:
        """Raise the first error of a host function: on any stream, or of one stream's jobs up to a number.

        A wait for the legacy stream is a wait for the blocking streams, and raises their errors.
        """
        with self.lock:
            for at, (on, failed, _) in enumerate(self.failures):
                every_job = stream is None or (stream is self.legacy and not on.non_blocking)
                if every_job or (on is stream and failed <= number):
                    error = self.failures.pop(at)[2]
                    break
            else:
                return
        try:
            raise error
        finally:
            del error  # or its traceback and this frame would keep each other, and the caller, alive

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
        with self.lock:
            functions = [each.function for each in sorted(_unfinished([job]), key=attrgetter("running"))]
        for function in functions:
            end = getattr(function, "interrupt", None)
            if end is not None and (note := end()):
                error.add_note(note)

    # -- the end -----------------------------------------------------------------------------------------------------

    def stop(self) -> None:
        """Begin no more jobs, wait for those that are running, and abandon the rest: no other device waits for them."""
        self.stopping = True
        self.wait_for_running()
        with self.lock:
            for job in _unfinished([*self._holds.values(), *(stream.last for stream in self.pending)]):
                if job.stream.engine is self:
                    self._finish(job, abandoned=True)
            for stream in (*self.streams.values(), *self._per_thread.values()):
                stream.end()
        _engines.discard(self)

    def wait_for_running(self, deadline: float = math.inf) -> bool:
        """Wait for the jobs that are running; return False if one still is at the deadline."""
        with self.lock:
            jobs = [job for job in _unfinished(stream.last for stream in self.pending) if job.stream.engine is self]
        return all(self._reach(job, True, deadline) for job in jobs if job.running)

    def _idle(self, stream: Stream) -> bool:
        """Return whether a job of the stream would have nothing to wait for; the lock is held."""
        if stream is self.legacy:
            return all(other.non_blocking for other in self.pending)
        return stream.last.done and (stream.non_blocking or self.legacy.last.done)

    def _append(self, job: Job) -> None:
        """Make the job the last of its stream; the lock is held."""
        stream = job.stream
        if stream is self.legacy:
            before = [other.last for other in self.pending if not other.non_blocking]
        else:
            before = [stream.last] if stream.non_blocking else [stream.last, self.legacy.last]
        job.after = [*job.after, *before]
        job.number = next(_numbers)
        self.pending.add(stream)
        stream.last = job

    def _finish(self, job: Job, abandoned: bool = False) -> None:
        """Note that the job is done, and let go of all that it refers to; the lock is held."""
        job.done, job.abandoned, job.seconds = True, abandoned, time.perf_counter()
        job.run, job.args, job.after, job.function = nothing, (), (), None
        if job.stream.last is job:
            self.pending.discard(job.stream)
        for gate in job.gates:
            gate.release()

    def _refusal(self) -> BaseException:
        if self.lost:
            return host_error("a job", "LAUNCH_FAILED", f"failed earlier: {self.lost}")
        return host_error(
            "a call", "DEVICE_CLOSED", "the device was closed, or is a parent process's, or Python is exiting"
        )

    # -- waiting, and the streams' threads ---------------------------------------------------------------------------

    def _await(self, job: Job) -> None:
        """Wait until a job is done; raise if it never will be."""
        # An abandoned job is done for the streams of other devices, but not for a caller of this one.
        if not self._reach(job) or self.lost or (job.abandoned and job.stream.engine is self):
            raise self._refusal()

    def _reach(self, job: Job, stopping_too: bool = False, deadline: float = math.inf) -> bool:
        """Wait until a job is done; False at the deadline, or at once if the engine is stopping."""
        try:
            with self.lock:
                if job.done:
                    return True
                if self.stopping and not stopping_too:
                    return False
                gate = job.gate()
            return gate.acquire(timeout=-1 if deadline == math.inf else max(deadline - time.monotonic(), 0))
        except BaseException as error:
            self.interrupt(job, error)
            raise

    def _start_thread(self, stream: Stream) -> None:
        thread = threading.Thread(target=self._work, args=(stream,), name="devmem-host-stream", daemon=True)
        try:
            thread.start()
        except RuntimeError as error:  # no more threads, or the interpreter is ending
            raise host_error("stream", "OPERATING_SYSTEM", f"cannot start a thread for the stream: {error}") from error
        stream.has_thread = True

    def _work(self, stream: Stream) -> None:
        while (job := stream.queue.get()) is not None:
            for earlier in job.after:
                self._reach(earlier, stopping_too=True)
            with self.lock:
                if self.stopping or job.done:
                    continue
                job.running = True
            try:
                job.run(*job.args)
            except BaseException as error:  # no caller on this thread: the next call that waits raises it
                if job.function is None:
                    self.lost = repr(error)
                else:
                    self.failures.append((stream, job.number, error))
            finally:
                with self.lock:
                    self._finish(job)

    def _add_thread(self, thread: threading.Thread) -> Stream:
        """Make the per-thread stream of a thread, and end those of threads that have ended."""
        with self.lock:
            for ended in [each for each in self._per_thread if not each.is_alive()]:
                self._per_thread.pop(ended).end()
            return self._per_thread.setdefault(thread, Stream(self, non_blocking=False))


def _unfinished(jobs: Iterable[Job]) -> list[Job]:
    """Return the jobs that are not done among these and all that they come after; the engine's lock is held."""
    found: dict[Job, None] = {}
    left = list(jobs)
    while left:
        job = left.pop()
        if not job.done and job not in found:
            found[job] = None
            left += job.after
    return list(found)


@atexit.register
def _stop_at_exit() -> None:
    """Begin no more jobs, and give those that are running a second: they must not meet the interpreter's end."""
    deadline = time.monotonic() + EXIT_WAIT
    engines = list(_engines)
    for engine in engines:
        engine.stopping = True
    for engine in engines:
        if not engine.wait_for_running(deadline):
            engine.at_exit()
    for engine in engines:
        engine.warn_of_failures()


def _forget_parent() -> None:
    """In the child of a fork no stream has a thread, and one may have held the lock: let the parent's engines refuse."""
    global _lock
    _lock = threading.Lock()
    for engine in list(_engines):
        engine.lock = _lock
        engine.stopping = True
    _engines.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget_parent)
