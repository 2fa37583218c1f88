"""Python functions that run when a stream comes to them, for a runtime that has no such call, or one that allows little.

The driver enqueues something for which a thread can wait, and behind it something that waits until the host says so: in OpenCL a
marker, and a barrier behind a user event. A thread of the stream's waits for the first, calls the function, and ends the second.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager, suppress
from functools import partial
from queue import SimpleQueue

from .host_functions import this_thread
from .threads import run_apart

#: What a host function is given: the addresses of its ranges.
HostFunction = Callable[[Sequence[int]], None]


class HostCall:
    """A call of a function, and what it has raised; ``go_on`` lets the stream go on behind it."""

    def __init__(self, function: HostFunction, places: Sequence[int], go_on: Callable[[], object]) -> None:
        self._function: HostFunction | None = function
        self._places, self.go_on = places, go_on
        self._interrupted = False
        self.done = threading.Event()
        self.errors: list[BaseException] = []  #: the one error, until it is told

    def run(self, wait: Callable[[], object]) -> None:
        """Call the function when the stream has come to it."""
        try:
            wait()
            assert self._function is not None
            with this_thread.running_host_function():
                self._function(self._places)
        except BaseException as error:
            if not self._interrupted:
                self.errors.append(error)
        finally:
            self._function = None  # and with it what it refers to
            with suppress(Exception):  # of a lost device, for whose streams nothing waits
                self.go_on()
            self.done.set()

    def interrupt(self, error: BaseException) -> None:
        """End the function, as a wait for it was interrupted by an error; the error says what it was doing."""
        end = getattr(self._function, "interrupt", None)
        if end is not None and not self.done.is_set():
            self._interrupted = True
            if told := end():
                error.add_note(told)


class Worker:
    """The thread that calls the functions of one stream, from the first one on.

    ``waiting`` has the others, each with what waits until the stream has come to it.
    """

    def __init__(self) -> None:
        self.waiting: SimpleQueue[tuple[Callable[[], object], HostCall] | None] = SimpleQueue()
        self._begun = False

    def begin(self, starting: AbstractContextManager[object]) -> None:
        """Start the thread, unless it runs; under a lock that the caller does not hold, as other threads may come first."""
        if not self._begun:
            run_apart(partial(self._start, starting))

    def end(self) -> None:
        """Let it end when it has made all calls."""
        self.waiting.put(None)

    def _start(self, starting: AbstractContextManager[object]) -> None:
        with starting:
            if not self._begun:
                threading.Thread(target=_work, args=(self.waiting,), name="devmem host functions", daemon=True).start()
                self._begun = True


def _work(waiting: SimpleQueue[tuple[Callable[[], object], HostCall] | None]) -> None:
    while (item := waiting.get()) is not None:
        wait, call = item
        call.run(wait)
        del item, wait, call  # not kept until the next one comes


def still_of_use(calls: Iterable[HostCall]) -> list[HostCall]:
    """Those that run, or have something to tell."""
    return [call for call in calls if call.errors or not call.done.is_set()]


def finish(calls: Iterable[HostCall]) -> None:
    """Wait until some calls are made. If the wait is interrupted they are ended."""
    calls = list(calls)
    try:
        for call in calls:
            call.done.wait()
    except BaseException as error:
        for call in reversed(calls):  # the next would begin as soon as one ends
            call.interrupt(error)
        raise


def tell(calls: Iterable[HostCall]) -> None:
    """Raise the first error that has not been raised."""
    for call in list(calls):
        try:
            error = call.errors.pop()
        except IndexError:  # there is none, or another thread raises it
            continue
        try:
            raise error
        finally:
            del error
