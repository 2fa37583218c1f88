"""Graphs of a runtime that has none: calls that are made again whenever the graph is launched.

A graph is made by a rehearsal: each call is given a stream that checks what it is asked, addresses and handles, and takes no
work. So what cannot be recorded raises then, with nothing enqueued.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from typing import Protocol, cast

from ..spi.driver import FullDriver, GraphCall

#: Handles of graphs, far from those of streams and events.
FIRST_HANDLE = 1 << 62


class Rehearses(Protocol):
    """A driver's own object for a stream, which takes no work while ``records`` is set."""

    records: bool


class ReplayedGraphs:
    """The graphs of one device; ``driver`` is what their calls are given, ``error`` makes what a wrong handle raises.

    ``stream_of`` finds a live stream, by its handle and the name of the call for messages.
    """

    def __init__(
        self, driver: object, stream_of: Callable[[int, str], Rehearses], error: Callable[[str, str], Exception]
    ) -> None:
        self._driver = cast(FullDriver, driver)
        self._stream_of, self._error = stream_of, error
        self._numbers = itertools.count(FIRST_HANDLE)
        self.graphs: dict[int, tuple[GraphCall, ...]] = {}

    def graph_create(self, calls: Sequence[GraphCall], stream: int) -> int:
        rehearsal = self._stream_of(stream, "graph_create")
        rehearsal.records = True
        try:
            for call in calls:
                call(self._driver, stream)
        finally:
            rehearsal.records = False
        graph = next(self._numbers)
        self.graphs[graph] = tuple(calls)
        return graph

    def graph_record_event(self, event: int, stream: int) -> None:
        if self._stream_of(stream, "graph_record_event").records:
            self._driver.event_query(event)  # which refuses what is no event
        else:
            self._driver.event_record(event, stream)

    def graph_wait_event(self, stream: int, event: int) -> None:
        if self._stream_of(stream, "graph_wait_event").records:
            self._driver.event_query(event)
        else:
            self._driver.stream_wait(stream, event)

    def graph_launch(self, graph: int, stream: int) -> None:
        self._stream_of(stream, "graph_launch")
        for call in self._find(graph, "graph_launch"):
            call(self._driver, stream)

    def graph_destroy(self, graph: int) -> None:
        self._find(graph, "graph_destroy")
        del self.graphs[graph]

    def _find(self, graph: int, call: str) -> tuple[GraphCall, ...]:
        found = self.graphs.get(graph)
        if found is None:
            raise self._error(call, f"{graph!r} is not a graph of this device")
        return found
