"""What runs on the streams of a device: jobs in their order, each stream with a thread of its own, and who waits for them."""

from __future__ import annotations

import atexit
import itertools
import os
import threading
import time
import weakref
from collections.abc import Iterable

from devmem.spi.types import LEGACY_STREAM, PER_THREAD_STREAM

from .error_codes import host_error
from .functions import Functions, function_of
from .streams import Event, Job, Mark, Point, Run, Stream, nothing

#: Jobs of up to so many bytes are run inline while the lock is held: cheaper than to claim the stream for them.
SMALL = 64 * 1024

#: How long the interpreter's exit waits for jobs that are being run, in seconds. Those not begun are abandoned.
EXIT_WAIT = 1.0

_handles = itertools.count(0x1000)  # of streams, events and holds: never reused, never another device's
# One lock for all devices, because a stream may wait for an event of another one. It is never held across a wait, nor
# while more than SMALL bytes are copied.
_lock = threading.Lock()
_engines: weakref.WeakSet[Engine] = weakref.WeakSet()


class Engine(Functions):
    """All streams, events and holds of one device.

    A *point* is a stream and a number: it is reached when so many of the stream's jobs are complete. Whatever waits (a
    job, an event, a caller) waits for points, and a point only ever names jobs that were enqueued before.
    """

    def __init__(self) -> None:
        super().__init__()
        self.lock = _lock
        self.stopping = False
        self.lost = ""  # what a job raised: the device cannot be trusted after that
        self.legacy = Stream(self, non_blocking=False)
        self.streams: dict[int, Stream] = {LEGACY_STREAM: self.legacy}
        self.events: dict[int, Event] = {}
        self.pending: set[Stream] = set()  # streams with jobs that are not complete
        self.foreign: list[Point] = []  # jobs on streams of other devices that touch memory of this one
        self.at_exit: Run | None = None  # called when the interpreter leaves while a job is still being run
        self._threads: set[Stream] = set()
        self._holds: dict[int, Stream] = {}
        self._mine = threading.local()
        self._per_thread: list[tuple[threading.Thread, Stream]] = []
        _engines.add(self)

    # -- handles -----------------------------------------------------------------------------------------------------

    def stream(self, handle: int, call: str) -> Stream:
        """Look a stream up, on behalf of ``call``."""
        stream = self.streams.get(handle)
        if stream is not None:
            return stream
        if handle == PER_THREAD_STREAM:
            return self._stream_of_this_thread()
        raise host_error(call, "INVALID_HANDLE", f"{handle!r} is not a stream of this device")

    def event(self, handle: int, call: str) -> Event:
        """Look an event up, on behalf of ``call``."""
        event = self.events.get(handle)
        if event is None:
            raise host_error(call, "INVALID_HANDLE", f"{handle!r} is not an event of this device")
        return event

    def event_of_any(self, handle: int, call: str) -> Event:
        """Look an event of any device up."""
        for engine in list(_engines):
            if handle in engine.events:
                return engine.events[handle]
        raise host_error(call, "INVALID_HANDLE", f"{handle!r} is not an event")

    def create_stream(self, non_blocking: bool) -> int:
        """Return the handle of a new stream; its thread starts with the first job that cannot run inline."""
        handle = next(_handles)
        self.streams[handle] = Stream(self, non_blocking)
        return handle

    def destroy_stream(self, handle: int) -> None:
        """Forget the handle; the thread ends after what was enqueued."""
        stream = None if handle == LEGACY_STREAM else self.streams.pop(handle, None)
        if stream is None:
            raise host_error("stream_destroy", "INVALID_HANDLE", f"{handle!r} is not a stream that was created")
        with self.lock:
            stream.end()

    def create_event(self, timing: bool) -> int:
        """Return the handle of a new event."""
        handle = next(_handles)
        self.events[handle] = Event(timing)
        return handle

    def destroy_event(self, handle: int) -> None:
        """Forget the handle; who waits for its mark goes on waiting."""
        self.event(handle, "event_destroy")
        del self.events[handle]

    # -- running jobs ------------------------------------------------------------------------------------------------

    def attempt(self, stream: Stream, nbytes: int, run: Run, *args: object) -> bool:
        """Run the job here and now if nothing stands before it; else do nothing and return False."""
        claimed = False
        try:
            with self.lock:
                if self.stopping or self.lost:
                    raise self._refusal()
                if self.pending and not self._idle(stream):
                    return False
                if nbytes <= SMALL:
                    run(*args)
                    return True
                claimed = True
                stream.claim()
            run(*args)
        finally:
            if claimed:
                with self.lock:
                    stream.finish()
        return True

    def post(
        self, stream: Stream, run: Run, *args: object, after: Iterable[Point] = (), touches: Iterable[Engine] = ()
    ) -> Point:
        """Enqueue the job; return the point at which it is complete.

        It begins when the points ``after`` are reached too. The engines ``touches`` are other devices whose memory it
        uses, which will wait for it where they wait for their own.
        """
        with self.lock:
            point = self._append(stream, Job(run, args), after)
            for engine in touches:
                engine.foreign.append(point)
            return point

    def finish(self, stream: Stream, run: Run, *args: object) -> None:
        """Enqueue the job and wait for it. If the wait is interrupted, the job does not touch anything afterwards."""
        job = Job(run, args)
        with self.lock:
            point = self._append(stream, job, ())
        try:
            self._await(point)
        except BaseException:
            with self.lock:
                begun = job not in stream.queue
                job.run, job.args = nothing, ()
            if begun and not self.stopping:
                self._await(point)
            raise
        if self.failures:
            self.tell(*point)

    def wait(self, *points: Point) -> None:
        """Wait until the points are reached; raise what a job of the user's raised before one of them."""
        for point in points:
            self._await(point)
        if self.failures:
            for point in points:
                self.tell(*point)

    def drain(self) -> None:
        """Wait until all that was enqueued before is complete, on every stream; tell nothing, as blocks are freed behind it."""
        if self.pending or self.foreign:
            with self.lock:
                self.foreign = [(stream, count) for stream, count in self.foreign if stream.completed < count]
                points = [(stream, stream.enqueued) for stream in self.pending]
                points += self.foreign
            for point in points:
                self._await(point)

    # -- order -------------------------------------------------------------------------------------------------------

    def record(self, event: Event, stream: Stream) -> None:
        """Make the event stand for what is enqueued on the stream now."""
        mark = Mark(stream)
        with self.lock:
            if self.stopping or self.lost:
                raise self._refusal()
            if not self.pending or self._idle(stream):
                mark.count = stream.enqueued
                if event.timing:
                    mark.stamp()
            else:
                mark.count = self._append(stream, Job(mark.stamp, ()), ())[1]
            event.mark = mark

    def wait_for(self, stream: Stream, event: Event) -> None:
        """Make later jobs of the stream wait for what the event captured."""
        mark = event.mark
        if mark is not None and not mark.reached():
            self.post(stream, nothing, after=[(mark.stream, mark.count)])

    def hold(self, stream: Stream) -> int:
        """Make later jobs of the stream wait for `release`."""
        # A latch is a stream whose only job never ends by itself.
        latch = Stream(self, non_blocking=True)
        latch.enqueued = 1
        self.post(stream, nothing, after=[(latch, 1)])
        handle = next(_handles)
        self._holds[handle] = latch
        return handle

    def release(self, handle: int) -> None:
        """Open a latch."""
        latch = self._holds.pop(handle, None)
        if latch is None:
            raise host_error("release", "INVALID_HANDLE", f"{handle!r} is not a hold, or was released")
        with self.lock:
            latch.finish()

    # -- the end -----------------------------------------------------------------------------------------------------

    def stop(self) -> None:
        """Let no thread begin another job, and let all that wait know."""
        with self.lock:
            self.stopping = True
            for stream in self.pending | self._threads:
                stream.notify()

    def wait_for_running(self, deadline: float | None = None) -> bool:
        """Wait for the jobs that are being run just now; False if some still are at the deadline."""
        for stream in list(self.pending):
            while True:
                with self.lock:
                    if not stream.running:
                        break
                    gate = stream.gate()
                left = -1 if deadline is None else max(deadline - time.monotonic(), 0)
                try:
                    if not gate.acquire(timeout=left):
                        return False
                except BaseException as error:
                    self.interrupt((stream, stream.completed + 1), error)
                    raise
        return True

    def close(self) -> None:
        """Stop; jobs that were not begun are abandoned, and streams of other devices stop waiting for them."""
        self.stop()
        self.wait_for_running()
        with self.lock:
            for stream in list(self.pending) + list(self._holds.values()):
                stream.abandon()
            self.pending.clear()
        _engines.discard(self)

    def used_elsewhere(self) -> bool:
        """Whether a stream of another device may still touch memory of this one."""
        return any(stream.completed < count for stream, count in self.foreign)

    # -- inside the lock ---------------------------------------------------------------------------------------------

    def _idle(self, stream: Stream) -> bool:
        """Whether a job of the stream would have nothing to wait for."""
        pending = self.pending
        if stream in pending:
            return False
        if stream is self.legacy:
            return all(other.non_blocking for other in pending)
        return stream.non_blocking or self.legacy not in pending

    def _append(self, stream: Stream, job: Job, after: Iterable[Point]) -> Point:
        if self.stopping or self.lost:
            raise self._refusal()
        if stream not in self._threads:
            self._start(stream)
        job.after.extend(point for point in after if point[0].completed < point[1])
        if stream is self.legacy:
            job.after.extend((o, o.enqueued) for o in self.pending if not o.non_blocking and o is not stream)
        elif not stream.non_blocking and self.legacy in self.pending:
            job.after.append((self.legacy, self.legacy.enqueued))
        for other, _ in job.after:
            other.followers.add(stream)
        stream.enqueued += 1
        stream.queue.append(job)
        self.pending.add(stream)
        stream.notify()
        return stream, stream.enqueued

    def _refusal(self) -> BaseException:
        if self.lost:
            return host_error("a job", "LAUNCH_FAILED", f"failed earlier: {self.lost}")
        return host_error(
            "a call", "DEVICE_CLOSED", "the device was closed, or is a parent process's, or Python is exiting"
        )

    # -- waiting, outside the lock -----------------------------------------------------------------------------------

    def _await(self, point: Point) -> None:
        stream, count = point
        try:
            while True:
                with self.lock:
                    if stream.completed >= count:
                        break
                    if self.stopping:
                        raise self._refusal()
                    gate = stream.gate()
                gate.acquire()
        except BaseException as error:
            if not self.stopping:
                self.interrupt(point, error)
            raise
        # What was abandoned counts as complete to the streams of other devices, but not to a caller of this one.
        if self.lost or (stream.abandoned and stream.engine is self):
            raise self._refusal()

    def _next(self, stream: Stream) -> Job | None:
        """Wait for a job that may run and take it; None when there will be no more."""
        while True:
            with self.lock:
                if self.stopping or (stream.ended and not stream.queue):
                    self._threads.discard(stream)
                    return None
                if stream.queue and not stream.running:
                    job = stream.queue[0]
                    job.after = [(other, count) for other, count in job.after if other.completed < count]
                    if not job.after:
                        stream.running = True
                        stream.function = function_of(job)  # in the same breath, or an interrupt would miss it
                        return stream.queue.popleft()
                gate = stream.gate()
            gate.acquire()

    # -- threads -----------------------------------------------------------------------------------------------------

    def _start(self, stream: Stream) -> None:
        thread = threading.Thread(target=self._work, args=(stream,), name="devmem-host-stream", daemon=True)
        try:
            thread.start()
        except RuntimeError as error:  # no more threads, or the interpreter is going
            raise host_error("stream", "OPERATING_SYSTEM", f"cannot start a thread for the stream: {error}") from error
        self._threads.add(stream)

    def _work(self, stream: Stream) -> None:
        while True:
            job = self._next(stream)
            if job is None:
                return
            try:
                job.run(*job.args)
            except BaseException as error:  # nobody above: the next caller is told
                self.lost = repr(error)
            finally:
                del job  # what it keeps alive must not live until the next job comes
                with self.lock:
                    stream.finish()

    def _stream_of_this_thread(self) -> Stream:
        mine: Stream | None = getattr(self._mine, "stream", None)
        if mine is None:
            mine = self._mine.stream = Stream(self, non_blocking=False)
            with self.lock:
                for thread, stream in self._per_thread:
                    if not thread.is_alive():
                        stream.end()
                self._per_thread = [(thread, stream) for thread, stream in self._per_thread if not stream.ended]
                self._per_thread.append((threading.current_thread(), mine))
        return mine


@atexit.register
def _leave() -> None:
    """Keep the interpreter's end and the running jobs out of each other's way: begin none, give the others a second."""
    deadline = time.monotonic() + EXIT_WAIT
    engines = list(_engines)
    for engine in engines:
        engine.stop()
    for engine in engines:
        if not engine.wait_for_running(deadline) and engine.at_exit is not None:
            engine.at_exit()
    for engine in engines:
        engine.warn()


def _forget_parent() -> None:
    """In a forked child the parent's threads do not exist, and any of them may have held the lock.

    So the parent's engines refuse there what would wait for them, also when they are called past the library.
    """
    global _lock
    _lock = threading.Lock()
    for engine in list(_engines):
        engine.lock = _lock
        engine.stopping = True
    _engines.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget_parent)
