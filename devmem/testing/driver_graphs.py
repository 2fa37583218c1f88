"""Optional: work that is recorded once, and enqueued by one call as often as is wanted."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from devmem.spi.driver import FullDriver, GraphCall, SupportsGraphs
from devmem.spi.errors import BackendError
from devmem.spi.types import Box, Capability, CopyKind

from .driver_fixture import Bytes, ConformanceSuite, DriverFixture, address, flip, pattern, same

NBYTES = 5000


def copy(dst: int, src: int, kind: CopyKind, nbytes: int = NBYTES) -> GraphCall:
    return lambda driver, stream: driver.copy(dst, src, nbytes, kind, stream, blocking=False)


def fill(dst: int, value: int, nbytes: int = NBYTES) -> GraphCall:
    return lambda driver, stream: driver.fill(dst, value, 1, nbytes, stream)


class Upload:
    """A page-locked source, two blocks of device memory, and a page-locked destination."""

    def __init__(self, fixture: DriverFixture) -> None:
        self.source, self.result = fixture.pinned(NBYTES), fixture.pinned(NBYTES)
        self.source[:], self.result[:] = pattern(NBYTES), 0
        self.first, self.second = fixture.alloc_with(np.zeros(NBYTES, np.uint8)), fixture.alloc(NBYTES)

    @property
    def calls(self) -> list[GraphCall]:
        """Up, on the device, and down again, with the first ten bytes filled in between."""
        return [
            copy(self.first, address(self.source), CopyKind.H2D),
            copy(self.second, self.first, CopyKind.D2D),
            fill(self.second, 0x5A, 10),
            copy(address(self.result), self.second, CopyKind.D2H),
        ]

    def expected(self) -> Bytes:
        found = self.source.copy()
        found[:10] = 0x5A
        return found


class GraphChecks(ConformanceSuite):
    def graphs(self, fixture: DriverFixture) -> SupportsGraphs:
        fixture.need(Capability.GRAPHS)
        assert isinstance(fixture.driver, SupportsGraphs)
        return fixture.driver

    def made(self, fixture: DriverFixture, calls: list[GraphCall]) -> tuple[SupportsGraphs, int]:
        graphs = self.graphs(fixture)
        graph = graphs.graph_create(calls, fixture.stream())
        return graphs, graph

    def test_a_graph_runs_when_it_is_launched_and_not_before(self, fixture: DriverFixture) -> None:
        self.graphs(fixture)
        work, stream = Upload(fixture), fixture.stream()
        graphs, graph = self.made(fixture, work.calls)
        fixture.driver.synchronize()
        assert not work.result.any() and not fixture.read(work.first, NBYTES).any()
        graphs.graph_launch(graph, stream)
        fixture.driver.stream_synchronize(stream)
        assert same(work.result, work.expected())
        graphs.graph_destroy(graph)

    def test_each_launch_reads_its_sources_again(self, fixture: DriverFixture) -> None:
        self.graphs(fixture)
        work, stream = Upload(fixture), fixture.stream()
        graphs, graph = self.made(fixture, work.calls)
        for turn in range(3):
            work.source[:] = flip(pattern(NBYTES), turn)
            graphs.graph_launch(graph, stream)
            fixture.driver.stream_synchronize(stream)
            assert same(work.result, work.expected()), f"launch {turn}"
        graphs.graph_destroy(graph)

    def test_a_graph_takes_its_place_in_the_order_of_the_stream(self, fixture: DriverFixture) -> None:
        self.graphs(fixture)
        work, stream, after = Upload(fixture), fixture.stream(), fixture.pinned(NBYTES)
        graphs, graph = self.made(fixture, work.calls)
        after[:] = 0
        with fixture.hold(stream) as hold:
            graphs.graph_launch(graph, stream)
            fixture.driver.copy(address(after), work.second, NBYTES, CopyKind.D2H, stream, blocking=False)
            assert not hold.expired, "graph_launch waited"
            assert not work.result.any() and not after.any()
            work.source[:] = flip(work.source)  # read when the stream comes to it
            hold.release()
            fixture.driver.stream_synchronize(stream)
        assert same(work.result, work.expected()), (
            "a launch is behind what is on the stream, and reads its sources then"
        )
        assert same(after, work.expected()), "later work is behind the whole graph"
        graphs.graph_destroy(graph)

    def test_a_graph_is_launched_on_any_stream(self, fixture: DriverFixture) -> None:
        self.graphs(fixture)
        work, one, two = Upload(fixture), fixture.stream(), fixture.stream()
        graphs, graph = self.made(fixture, work.calls)
        with fixture.hold(one):
            graphs.graph_launch(graph, two)
            fixture.driver.stream_synchronize(two)
            assert same(work.result, work.expected())
        graphs.graph_destroy(graph)

    def test_rows_in_a_graph_keep_their_pitch(self, fixture: DriverFixture) -> None:
        self.graphs(fixture)
        fixture.need(Capability.STRIDED_COPY)
        stream, host = fixture.stream(), fixture.pinned(64 * 100)
        host[:] = pattern(64 * 100)
        there = fixture.alloc_with(np.zeros(128 * 100, np.uint8))
        box = Box(there, 128, 100, address(host), 64, 100, 64, 100, 1)

        def rows(driver: FullDriver, on: int) -> object:
            return driver.copy_strided(box, CopyKind.H2D, on, blocking=False)

        graphs, graph = self.made(fixture, [rows])
        graphs.graph_launch(graph, stream)
        fixture.driver.stream_synchronize(stream)
        found = fixture.read(there, 128 * 100).reshape(100, 128)
        assert same(found[:, :64].ravel(), host) and not found[:, 64:].any()
        graphs.graph_destroy(graph)

    def test_an_event_in_a_graph_is_recorded_by_each_launch(self, fixture: DriverFixture) -> None:
        self.graphs(fixture)
        work, stream, event = Upload(fixture), fixture.stream(), fixture.event()
        calls = work.calls
        calls.insert(3, lambda driver, on: driver.graph_record_event(event, on))
        graphs, graph = self.made(fixture, calls)
        for turn in range(2):
            work.result[:] = 0
            with fixture.hold(stream) as hold:
                graphs.graph_launch(graph, stream)
                assert not fixture.driver.event_query(event), f"launch {turn}"
                hold.release()
                fixture.driver.event_synchronize(event)
            fixture.driver.stream_synchronize(stream)
            assert same(work.result, work.expected())
        graphs.graph_destroy(graph)

    def test_a_wait_in_a_graph_is_for_the_record_before_each_launch(self, fixture: DriverFixture) -> None:
        self.graphs(fixture)
        work, stream, other, event = Upload(fixture), fixture.stream(), fixture.stream(), fixture.event()
        fixture.driver.event_record(event, other)
        calls = [lambda driver, on: driver.graph_wait_event(on, event), *work.calls]
        graphs, graph = self.made(fixture, calls)
        with fixture.hold(other) as hold:
            fixture.driver.event_record(event, other)
            graphs.graph_launch(graph, stream)
            assert fixture.stays_pending(stream) and not work.result.any()
            hold.release()
            fixture.driver.stream_synchronize(stream)
        assert same(work.result, work.expected())
        graphs.graph_destroy(graph)

    def test_a_call_that_fails_leaves_no_graph_and_nothing_enqueued(self, fixture: DriverFixture) -> None:
        graphs = self.graphs(fixture)
        work, stream = Upload(fixture), fixture.stream()

        class Stopped(Exception):
            pass

        def stop(driver: FullDriver, on: int) -> object:
            raise Stopped

        on = fixture.stream()
        for calls in ([stop], [*work.calls, stop]):
            with pytest.raises(Stopped):
                graphs.graph_create(calls, fixture.stream())
        fixture.driver.synchronize()
        assert not work.result.any() and not fixture.read(work.first, NBYTES).any()
        graph = graphs.graph_create(work.calls, on)
        graphs.graph_launch(graph, stream)
        fixture.driver.stream_synchronize(stream)
        assert same(work.result, work.expected()), "the next graph is made as ever"
        graphs.graph_destroy(graph)

    def test_graphs_are_distinct_and_destroyed_one_by_one(self, fixture: DriverFixture) -> None:
        self.graphs(fixture)
        work, stream = Upload(fixture), fixture.stream()
        graphs, one = self.made(fixture, work.calls)
        calls = [fill(work.first, 7), copy(address(work.result), work.first, CopyKind.D2H)]
        two = graphs.graph_create(calls, fixture.stream())
        assert one != two
        graphs.graph_destroy(one)
        graphs.graph_launch(two, stream)
        fixture.driver.stream_synchronize(stream)
        assert set(work.result.tolist()) == {7}
        graphs.graph_destroy(two)
        if fixture.suite.strict:
            wrong: list[Callable[[], object]] = [
                lambda: graphs.graph_launch(one, stream),
                lambda: graphs.graph_destroy(one),
            ]
            for again in wrong:
                with pytest.raises(BackendError):
                    again()

    def test_making_a_graph_disturbs_no_other_stream(self, fixture: DriverFixture) -> None:
        graphs = self.graphs(fixture)
        work, data, back = Upload(fixture), pattern(NBYTES), np.zeros(NBYTES, np.uint8)

        def elsewhere(driver: FullDriver, on: int) -> object:
            # What another thread might do at this moment, on the default stream and without one.
            block = fixture.alloc(NBYTES)
            fixture.write(block, data)
            back[:] = fixture.read(block, NBYTES)
            return None

        graph = graphs.graph_create([work.calls[0], elsewhere, *work.calls[1:]], fixture.stream())
        assert same(back, data)
        stream = fixture.stream()
        graphs.graph_launch(graph, stream)
        fixture.driver.stream_synchronize(stream)
        assert same(work.result, work.expected())
        graphs.graph_destroy(graph)
