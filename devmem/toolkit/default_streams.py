"""The legacy and the per-thread default streams, for a runtime that has no such thing: built from created streams and events.

`with_default_streams` makes a driver of one whose streams are all independent. `LEGACY_STREAM` and `PER_THREAD_STREAM` become
streams of that driver, made at their first use, and the waits that the contract implies are inserted: work on the legacy stream
comes after all that is on blocking streams, and work on a blocking stream after all that is on the legacy one. A wait is inserted
only where something was enqueued since the last one.

No lock is taken: each step on the tables is atomic, and a wait that is inserted twice is harmless. What two threads enqueue at
once has no order that could be lost.
"""

from __future__ import annotations

import inspect
import itertools
import threading
from collections.abc import Callable
from functools import partial
from typing import Any, cast

from ..spi.driver import PROTOCOLS, Driver
from ..spi.errors import BackendError
from ..spi.types import LEGACY_STREAM, PER_THREAD_STREAM
from .driver_parts import ComposedDriver

#: The methods of the contract that are about a stream, and the place of that argument.
PLACES = {
    name: list(inspect.signature(method).parameters).index("stream") - 1
    for protocol in (Driver, *PROTOCOLS.values())
    for name, method in vars(protocol).items()
    if not name.startswith("_") and callable(method) and "stream" in inspect.signature(method).parameters
}
#: Methods for which it does not matter what else is enqueued.
UNORDERED = {"alloc", "free", "capturing"}
#: Methods that enqueue nothing; for the legacy stream they ask all streams that it is ordered with.
ASKING = {"stream_query", "stream_synchronize"}


def with_default_streams(driver: Any) -> Driver:
    """The driver, with a legacy and a per-thread default stream. ``open()`` of a backend returns it."""
    return cast(Driver, _WithDefaultStreams(driver))


class _WithDefaultStreams(ComposedDriver):
    def __init__(self, driver: Any) -> None:
        order = _Order(driver)
        self.compose(driver, order)
        for name in PLACES.keys() - {"stream_destroy", "stream_from", "stream_refusal"}:
            if hasattr(driver, name):
                setattr(self, name, order.in_order(name, getattr(driver, name)))


class _Order:
    """The streams that are ordered with the legacy stream, and what they wait for already."""

    def __init__(self, driver: Driver) -> None:
        self._driver = driver
        self._numbers = itertools.count(1)
        #: The streams that stand for the default ones: the legacy one, and that of each thread.
        self._defaults: dict[object, int] = {}
        #: For the legacy stream and each blocking one, a number that is another after each time that something was enqueued.
        self._newest: dict[int, int] = {}
        #: What was the newest on a stream (second) when another one (first) was made to wait for it.
        self._awaited: dict[tuple[int, int], int] = {}
        self._spare_events: list[int] = []

    def stream_create(self, priority: int, non_blocking: bool) -> int:
        stream = self._driver.stream_create(priority, non_blocking)
        if not non_blocking:
            self._newest[stream] = 0
        return stream

    def stream_destroy(self, stream: int) -> None:
        try:
            if self._newest.get(stream):
                self._wait(self._default(LEGACY_STREAM), stream)
        finally:
            self._newest.pop(stream, None)
            for pair in [pair for pair in list(self._awaited) if stream in pair]:
                self._awaited.pop(pair, None)
            self._driver.stream_destroy(stream)

    def in_order(self, name: str, method: Callable[..., Any]) -> Callable[..., Any]:
        """A method of the driver, with the streams that stand for the default ones, and the waits that are implied."""
        place, asks, ordered = PLACES[name], name in ASKING, name not in UNORDERED
        newest = self._newest

        def call(*args: Any, **keywords: Any) -> Any:
            if len(args) > place:
                stream = self._stream(args[place])
                args = (*args[:place], stream, *args[place + 1 :])
            else:
                stream = keywords["stream"] = self._stream(keywords["stream"])
            if not ordered or stream not in newest:
                return method(*args, **keywords)
            legacy = self._defaults.get(LEGACY_STREAM)
            if asks:
                return all(self._of_each(method) if stream == legacy else [method(stream)])
            if stream == legacy:
                self._of_each(partial(self._wait, stream))
            elif legacy is not None:
                self._wait(stream, legacy)
            try:
                return method(*args, **keywords)
            finally:  # not before: a wait that is inserted meanwhile need not cover it
                newest[stream] = next(self._numbers)

        return call

    def _of_each(self, function: Callable[[int], Any]) -> list[Any]:
        """Return a function's answers for the legacy and each blocking stream, except those that are destroyed meanwhile."""
        answers = []
        for stream in list(self._newest):
            try:
                answers.append(function(stream))
            except BackendError:
                if stream in self._newest:  # else another thread has waited for its work, and destroys it
                    raise
        return answers

    def _wait(self, later: int, earlier: int) -> None:
        """Make one stream wait for what is on another, unless it does already."""
        now = self._newest.get(earlier, 0)
        if later == earlier or self._awaited.get((later, earlier), 0) == now:
            return
        try:
            event = self._spare_events.pop()
        except IndexError:
            event = self._driver.event_create(False)
        self._driver.event_record(event, earlier)
        self._driver.stream_wait(later, event)
        self._spare_events.append(event)
        self._awaited[later, earlier] = now

    def _stream(self, stream: int) -> int:
        return self._default(stream) if stream in (LEGACY_STREAM, PER_THREAD_STREAM) else stream

    def _default(self, number: int) -> int:
        """The stream that stands for a default one; one of a thread that has ended is destroyed when another makes its first."""
        key = LEGACY_STREAM if number == LEGACY_STREAM else threading.current_thread()
        found = self._defaults.get(key)
        if found is None:
            for ended in list(self._defaults):
                if isinstance(ended, threading.Thread) and not ended.is_alive():
                    self.stream_destroy(self._defaults.pop(ended))
            made = self.stream_create(0, False)
            found = self._defaults.setdefault(key, made)
            if found != made:
                self.stream_destroy(made)
        return found
