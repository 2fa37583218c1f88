"""Mistakes in graphs, and the tests of `testing/driver_graphs.py` that find them."""

from __future__ import annotations

import contextlib
from functools import partial
from typing import Any

from devmem.spi.errors import BackendError
from devmem.spi.types import CopyKind

from .base import Broken


class GraphRunsWhenItIsMade(Broken):
    def spoil(self) -> None:
        def create(calls: Any, on: int) -> int:
            stream = self.sound.stream_create(0, True)
            for call in calls:
                call(self.sound, stream)
            self.sound.stream_synchronize(stream)
            self.sound.stream_destroy(stream)
            return int(self.sound.graph_create(calls, on))

        self.graph_create = create


class GraphRunsOnce(Broken):
    def spoil(self) -> None:
        launched: set[int] = set()

        def launch(graph: int, stream: int) -> None:
            if graph not in launched:
                self.sound.graph_launch(graph, stream)
            launched.add(graph)

        self.graph_launch = launch


class GraphRunsOnAStreamOfItsOwn(Broken):
    def spoil(self) -> None:
        def launch(graph: int, stream: int) -> None:
            own = self.sound.stream_create(0, True)
            self.sound.graph_launch(graph, own)
            self.sound.stream_synchronize(own)
            self.sound.stream_destroy(own)

        self.graph_launch = launch


class GraphLaunchWaits(Broken):
    def spoil(self) -> None:
        def launch(graph: int, stream: int) -> None:
            self.sound.graph_launch(graph, stream)
            self.sound.stream_synchronize(stream)

        self.graph_launch = launch


class GraphLosesItsLastCall(Broken):
    def spoil(self) -> None:
        self.graph_create = lambda calls, on: self.sound.graph_create(calls[:-1], on)


class GraphForgetsItsEvents(Broken):
    """A graph records and waits for events when it is made, as a captured stream does without the vendors' external flags."""

    def spoil(self) -> None:
        def create(calls: Any, on: int) -> int:
            return int(self.sound.graph_create([partial(self.without_events, call) for call in calls], on))

        self.graph_create = create

    @staticmethod
    def without_events(call: Any, driver: Any, stream: int) -> None:
        class Driver:
            graph_record_event = graph_wait_event = staticmethod(lambda *_: None)

            def __getattr__(self, name: str) -> Any:
                return getattr(driver, name)

        call(Driver(), stream)


class GraphMakesWhatItCan(Broken):
    """A call that fails ends the graph, which is handed out as it is."""

    def spoil(self) -> None:
        def create(calls: Any, on: int) -> int:
            good = []
            for call in calls:
                with contextlib.suppress(Exception):
                    self.sound.graph_destroy(self.sound.graph_create([call], on))
                    good.append(call)
            return int(self.sound.graph_create(good, on))

        self.graph_create = create


class GraphsShareOneHandle(Broken):
    def spoil(self) -> None:
        made: list[int] = []

        def create(calls: Any, on: int) -> int:
            made.append(int(self.sound.graph_create(calls, on)))
            return made[0]

        self.graph_create = create


class GraphMakingStopsTheDefaultStream(Broken):
    """While a graph is made nothing else may be enqueued, as in the vendors' default mode."""

    raises = True

    def spoil(self) -> None:
        self.making = False

        def create(calls: Any, on: int) -> int:
            self.making = True
            try:
                return int(self.sound.graph_create(calls, on))
            finally:
                self.making = False

        self.graph_create = create

    def copy(self, dst: int, src: int, nbytes: int, kind: CopyKind, stream: int, *, blocking: bool) -> bool:
        if self.making:
            raise BackendError("a graph is being made", backend="host", call="copy", code=906, name="IMPLICIT")
        return super().copy(dst, src, nbytes, kind, stream, blocking=blocking)


BROKEN: list[tuple[type[Broken], str, dict[str, Any]]] = [
    (GraphRunsWhenItIsMade, "test_a_graph_runs_when_it_is_launched_and_not_before", {}),
    (GraphRunsOnce, "test_each_launch_reads_its_sources_again", {}),
    (GraphRunsOnAStreamOfItsOwn, "test_a_graph_takes_its_place_in_the_order_of_the_stream", {}),
    (GraphLaunchWaits, "test_a_graph_takes_its_place_in_the_order_of_the_stream", {}),
    (GraphLosesItsLastCall, "test_rows_in_a_graph_keep_their_pitch", {}),
    (GraphForgetsItsEvents, "test_an_event_in_a_graph_is_recorded_by_each_launch", {}),
    (GraphForgetsItsEvents, "test_a_wait_in_a_graph_is_for_the_record_before_each_launch", {}),
    (GraphMakesWhatItCan, "test_a_call_that_fails_leaves_no_graph_and_nothing_enqueued", {}),
    (GraphsShareOneHandle, "test_graphs_are_distinct_and_destroyed_one_by_one", {}),
    (GraphMakingStopsTheDefaultStream, "test_making_a_graph_disturbs_no_other_stream", {}),
]
