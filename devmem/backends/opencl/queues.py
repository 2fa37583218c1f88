"""Streams, which are queues, and events, which are commands on them.

Queues are in order, and independent of each other. What is the newest command on a queue is known here, so a question or a wait
enqueues nothing; a queue that a user made may have newer commands, and is given a marker of its own.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import pyopencl as cl

from ...spi.errors import DeviceLost
from ...toolkit.deferred_errors import fresh_copy
from ...toolkit.handles import Handles
from ...toolkit.host_calls import HostCall, HostFunction, Worker, finish, still_of_use, tell
from ...toolkit.host_functions import this_thread
from ...toolkit.locks import Rank, lock
from .runtime import CODE, LOST, LOST_IN_WAIT, checked, is_done, refuse, refuse_handle

#: What enqueues a command on a queue that it is given, and returns its event.
Enqueue = Callable[[Any], Any]
IN_ORDER = cl.command_queue_properties.PROFILING_ENABLE
#: The handles of all devices, so that none means something on two; far below all addresses, which are those of users' queues.
HANDLES = itertools.count(16)


@dataclass(slots=True)
class Queue:
    """A queue, its newest command, and the host functions on it or before it that may still have something to tell."""

    on: Any
    newest: Any
    foreign: bool = False
    calls: list[HostCall] = field(default_factory=list)
    worker: Worker = field(default_factory=Worker)
    records: bool = False  #: a graph is made on it: calls are checked, and enqueue nothing


@dataclass(slots=True)
class Event:
    """An event, and what it was recorded as last."""

    timing: bool
    marker: Any
    calls: list[HostCall] = field(default_factory=list)


class Queues:
    """The streams, events and holds of a device."""

    def __init__(self, context: Any, device: Any) -> None:
        self.context, self._device = context, device
        self._lock = lock("OpenCL queues", Rank.WITHIN_DRIVER)
        self._queues: Handles[Any] = Handles(int, (), refuse_handle, foreign=False)
        self._ended: list[Queue] = []
        self._events: Handles[Any] = Handles(int, (), refuse_handle, what="event", foreign=False)
        self._holds: dict[int, Any] = {}
        self._lost: DeviceLost | None = None
        self._done = cl.UserEvent(context)  # stands for what was never enqueued
        self._done.set_status(cl.command_execution_status.COMPLETE)

    def enter(self) -> None:
        """Refuse a lost device, and host functions; OpenCL has no current device."""
        if self._lost is not None:
            raise fresh_copy(self._lost)
        if this_thread.runs_host_function:
            refuse("enter", CODE.INVALID_OPERATION, "a host function must not use a device")

    def exit(self, token: object) -> None:
        pass

    def find(self, stream: int) -> Queue:
        """A live stream."""
        found: Queue = self._queues[stream]
        return found

    def enqueue(self, queue: Queue, name: str, *calls: Enqueue) -> tuple[Any, list[HostCall]]:
        """Make calls that enqueue commands; the last command, and the host functions before it."""
        if queue.records:
            return self._done, []
        with self._lock:  # what is newest is the last in the queue, whatever other threads enqueue
            with self._calling(name):
                try:
                    for call in calls:
                        queue.newest = call(queue.on)
                finally:
                    queue.on.flush()  # or a command of another queue might wait for it forever
            queue.calls = still_of_use(queue.calls)
            return queue.newest, queue.calls

    def wait(self, event: Any, calls: Iterable[HostCall]) -> None:
        """Wait for a command and the host functions before it, and raise what the first of these has raised."""
        finish(calls)
        with self._calling("clWaitForEvents", LOST_IN_WAIT):
            event.wait()  # a blocking call of pyopencl's would keep the GIL
        tell(calls)

    @contextmanager
    def _calling(self, name: str, lost: frozenset[int] = LOST) -> Iterator[None]:
        try:
            with checked(name, lost):
                yield
        except DeviceLost as error:
            self._lost = fresh_copy(error)
            raise

    def before(self, queue: Queue, own: bool = False) -> tuple[Any, list[HostCall]]:
        """Return what is complete when all on a queue is: the newest command, or one of its own; and host functions before it."""
        if own or queue.foreign:
            return self.enqueue(queue, "clEnqueueMarkerWithWaitList", cl.enqueue_marker)
        with self._lock:
            return queue.newest, still_of_use(queue.calls)

    def stream_create(self, priority: int, non_blocking: bool) -> int:
        with checked("clCreateCommandQueue"):
            queue = Queue(cl.CommandQueue(self.context, properties=IN_ORDER), self._done)
        return self._queues.add(queue, next(HANDLES))

    def stream_destroy(self, stream: int) -> None:
        queue = self._queues.take(stream)
        queue.worker.end()
        with self._lock:  # what is enqueued runs, and `synchronize` waits for it
            self._ended = [
                each for each in [*self._ended, queue] if still_of_use(each.calls) or not is_done(each.newest)
            ]

    def stream_synchronize(self, stream: int) -> None:
        self.wait(*self.before(self.find(stream)))

    def stream_query(self, stream: int) -> bool:
        queue = self.find(stream)
        marker, limit = self.before(queue)[0], time.monotonic() + 1e-3
        while queue.foreign and not is_done(marker) and time.monotonic() < limit:
            pass  # its marker is a new one, which on an idle queue is done in a moment
        return is_done(marker)

    def stream_wait(self, stream: int, event: int) -> None:
        queue, captured = self.find(stream), self._events[event]
        with self._lock:
            self.enqueue(queue, "clEnqueueBarrierWithWaitList", partial(cl.enqueue_barrier, wait_for=[captured.marker]))
            queue.calls = list(dict.fromkeys([*queue.calls, *still_of_use(captured.calls)]))

    def stream_from(self, stream: object) -> int:
        if isinstance(stream, int):
            self.find(stream)
            return stream
        if not isinstance(stream, cl.CommandQueue):
            raise TypeError(f"a stream of another library is a pyopencl.CommandQueue, not {stream!r}")
        with checked("clGetCommandQueueInfo"):
            out_of_order = stream.properties & cl.command_queue_properties.OUT_OF_ORDER_EXEC_MODE_ENABLE
            ours = stream.device == self._device and stream.context == self.context
        if out_of_order or not ours:
            refuse("stream_from", CODE.INVALID_COMMAND_QUEUE, "another device's or context's queue, or out of order")
        handle = int(stream.int_ptr)
        if handle not in self._queues:
            self._queues.add(Queue(stream, self._done, foreign=True), handle)
        return handle

    def synchronize(self) -> None:
        states = [self.before(each) for each in self._every()]
        before = dict.fromkeys(call for _, calls in states for call in calls)
        finish(before)
        for event, _ in states:
            self.wait(event, [])
        tell(before)

    def event_create(self, timing: bool) -> int:
        return self._events.add(Event(timing, self._done), next(HANDLES))

    def event_destroy(self, event: int) -> None:
        self._events.take(event)

    def event_record(self, event: int, stream: int) -> None:
        recorded = self._events[event]
        recorded.marker, recorded.calls = self.before(self.find(stream), recorded.timing)

    def event_query(self, event: int) -> bool:
        return is_done(self._events[event].marker)

    def event_synchronize(self, event: int) -> None:
        recorded = self._events[event]
        self.wait(recorded.marker, recorded.calls)

    def event_elapsed(self, start: int, end: int) -> float:
        begun, ended = self._events[start], self._events[end]
        if not (begun.timing and ended.timing):
            refuse("event_elapsed", CODE.PROFILING_INFO_NOT_AVAILABLE, "an event has no timing")
        with checked("clGetEventProfilingInfo"):  # an error until both are done
            return float(ended.marker.profile.end - begun.marker.profile.end) * 1e-6

    def hold(self, stream: int) -> int:
        latch = self.latch()
        self.enqueue(self.find(stream), "clEnqueueBarrierWithWaitList", partial(cl.enqueue_barrier, wait_for=[latch]))
        hold = next(HANDLES)
        self._holds[hold] = latch
        return hold

    def release(self, hold: int) -> None:
        with checked("clSetUserEventStatus"):
            self._holds.pop(hold).set_status(cl.command_execution_status.COMPLETE)

    def latch(self) -> Any:
        """An event that is done when the host says so."""
        with checked("clCreateUserEvent"):
            return cl.UserEvent(self.context)

    def launch(
        self, queue: Queue, function: HostFunction, places: Sequence[int], maps: Iterable[tuple[Enqueue, Enqueue]]
    ) -> None:
        """Enqueue a host function. What maps memory for it comes first; what unmaps it comes last, also where a call fails."""
        tell(queue.calls)
        if queue.records:
            return
        latch = self.latch()
        call = HostCall(function, places, partial(latch.set_status, cl.command_execution_status.COMPLETE))
        queue.worker.begin(self._lock)
        with self._lock:
            try:
                with ExitStack() as behind:
                    for begin, end in maps:
                        self.enqueue(queue, "clEnqueueSVMMap", begin)
                        behind.callback(self.enqueue, queue, "clEnqueueSVMUnmap", end)
                    ready, _ = self.enqueue(queue, "clEnqueueMarkerWithWaitList", cl.enqueue_marker)
                    until = partial(cl.enqueue_barrier, wait_for=[latch])
                    self.enqueue(queue, "clEnqueueBarrierWithWaitList", until)
            except BaseException:
                call.go_on()
                raise
            queue.calls = [*queue.calls, call]
            queue.worker.waiting.put((ready.wait, call))

    def end(self) -> None:
        """Let everything run to its end."""
        for hold in list(self._holds):
            self.release(hold)
        for queue in self._every():
            finish(queue.calls)
            queue.worker.end()
            if self._lost is None:
                self.wait(self.before(queue)[0], [])

    def untold(self) -> list[BaseException]:
        """The errors of host functions that no call has raised."""
        calls = dict.fromkeys(call for queue in self._every() for call in queue.calls)
        return [error for call in calls for error in call.errors]

    def _every(self) -> list[Queue]:
        return [*self._queues.values(), *self._ended]
