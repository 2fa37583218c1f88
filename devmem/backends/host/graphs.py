"""Graphs of a host device: calls that are made again whenever the graph is launched.

A graph is made by a rehearsal: each call is given a stream that checks what it is asked, addresses and handles, and takes no job.
So what cannot be recorded raises then, with nothing enqueued.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import cast

from devmem.spi.driver import FullDriver, GraphCall

from .error_codes import host_error
from .stream_engine import StreamEngine

#: Handles of graphs, far from those of streams and events.
FIRST_HANDLE = 1 << 62


class Graphs:
    """The graphs of one device; ``driver`` is what their calls are given."""

    def __init__(self, driver: object, engine: StreamEngine) -> None:
        self._driver = cast(FullDriver, driver)
        self._engine = engine
        self._numbers = itertools.count(FIRST_HANDLE)
        self.graphs: dict[int, tuple[GraphCall, ...]] = {}

    def graph_create(self, calls: Sequence[GraphCall], stream: int) -> int:
        rehearsal = self._engine.stream(stream, "graph_create")
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
        if self._engine.stream(stream, "graph_record_event").records:
            self._engine.event(event, "graph_record_event")
        else:
            self._engine.event_record(event, stream)

    def graph_wait_event(self, stream: int, event: int) -> None:
        if self._engine.stream(stream, "graph_wait_event").records:
            self._engine.event(event, "graph_wait_event")
        else:
            self._engine.stream_wait(stream, event)

    def graph_launch(self, graph: int, stream: int) -> None:
        self._engine.stream(stream, "graph_launch")
        for call in self._find(graph, "graph_launch"):
            call(self._driver, stream)

    def graph_destroy(self, graph: int) -> None:
        self._find(graph, "graph_destroy")
        del self.graphs[graph]

    def _find(self, graph: int, call: str) -> tuple[GraphCall, ...]:
        found = self.graphs.get(graph)
        if found is None:
            raise host_error(call, "INVALID_HANDLE", f"{graph!r} is not a graph of this device")
        return found
