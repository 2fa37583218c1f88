"""Graphs of a vendor whose functions are those of CUDA's driver and of the HIP runtime: the capability GRAPHS.

A graph is made by capturing a stream that the core has made for this, on which nothing else is ever enqueued. The capture is in
the relaxed mode and the stream does not block the legacy one, so the capture forbids nothing on other threads but to wait for
the whole device, which fails there and invalidates the capture. It lasts as long as the calls take that are recorded. A capture
that was invalidated is made again, and `Graphs.synchronize` waits for the device between captures.

An event ends one of the vendor's graphs, and what follows it begins another: the launch enqueues them and the events in their
order. The vendors have nodes for events, but those are young on AMD: waiting in one has failed with ROCm 7.2, and an event that
was recorded in one refers to the captured stream beyond its end.

To change the sides of copies, the calls are captured anew. The vendors can exchange the parameters of a copy in a graph that
exists only for the same kinds of memory, of the same contexts, in one dimension.
"""

# Decision: docs/adr/0017-plans-are-recorded-above-the-driver.md
from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from threading import get_ident
from typing import Any, cast

from ..spi.driver import FullDriver, GraphCall
from ..spi.errors import BackendError, UnsupportedError
from ..spi.types import Capability
from .driver_parts import DriverState, Part
from .vendor_functions import CAPTURE_STATUSES, CAPTURE_UNSUPPORTED, INVALID_HANDLE

#: One call of a launch: the vendor's function, and what it is given.
Piece = tuple[str, Any]
#: Handles of graphs, far from all addresses.
FIRST_HANDLE = 1 << 62
#: How often a graph is captured, or the device waited for, where one is in the other's way; and seconds to wait before.
TRIES, PATIENCE = 20, 1.0


def _itself(handle: Any) -> Any:
    return handle


def _launched(piece: Piece) -> Any:
    """The executable graph that a piece launches, or None."""
    return piece[1] if piece[0] == "GraphLaunch" else None


class Graphs(Part):
    """Graphs; ``driver`` is what their calls are given.

    Attributes
    ----------
    graphs : dict
        By handle, the pieces of each graph in their order.
    """

    def __init__(self, state: DriverState, driver: object) -> None:
        super().__init__(state)
        self._driver = cast(FullDriver, driver)
        self._mode = state.relaxed_capture.relaxed
        self._refuse = state.errors.refuse
        self._numbers = itertools.count(FIRST_HANDLE)
        #: By handle of the captured stream, the graph that is being made.
        self._being_made: dict[int, _Capture] = {}
        #: The graph whose making was begun last, behind its entry there and before its capture.
        self._begun = 0
        self.graphs: dict[int, list[Piece]] = state.graphs
        #: What was captured and instantiated, or given up, and has to be destroyed.
        self.captured: list[Any] = []
        #: What was instantiated, and the vendor did not destroy.
        self.undestroyed: list[Any] = []

    def graph_create(self, calls: Sequence[GraphCall], stream: int) -> int:
        for _ in range(TRIES - 1):
            try:
                return self._create(calls, stream)
            except BackendError as error:
                if error.code not in CAPTURE_STATUSES:
                    raise
        return self._create(calls, stream)

    def synchronize(self, wait: Callable[[], object]) -> None:
        """Wait for the device by the vendor's function, once no other thread makes a graph.

        The vendors refuse that wait, and drop the graph, while a stream is captured in any mode. So it is not made while another
        library captures one of the driver's own.
        """
        for last in range(TRIES):
            ended = time.monotonic() + PATIENCE
            while self._others_make_graphs() and time.monotonic() < ended:
                time.sleep(0.0001)
            self._check_not_captured()
            try:
                wait()
                return
            except BackendError as error:
                if error.code != CAPTURE_UNSUPPORTED or last == TRIES - 1:
                    raise

    def _check_not_captured(self) -> None:
        info = getattr(self._driver, "info", None)  # None where the device could not be opened
        for stream in self._streams.each() if info is not None and Capability.CAPTURE in info.capabilities else ():
            begun = self._begun
            try:
                captured = stream not in self._being_made and self._driver.capturing(stream)
            except BackendError:
                if self._streams.holds(stream):
                    raise
                continue  # another thread has given it up meanwhile
            if captured and self._begun == begun:  # else it may be a graph of ours, begun meanwhile, that was seen
                raise UnsupportedError(
                    f"the stream {stream:#x}, or one that it waits for, is capturing a graph, which a wait for the whole "
                    f"device would end: call it outside of the capture"
                )

    def _others_make_graphs(self) -> bool:
        me = get_ident()
        return any(each.thread != me for each in list(self._being_made.values()))

    def _create(self, calls: Sequence[GraphCall], stream: int) -> int:
        capture = self._being_made[stream] = _Capture(self, self._streams[stream])
        graph = self._begun = next(self._numbers)
        try:
            for call in calls:
                capture.add(call, self._driver, stream)
            capture.end()
            self.graphs[graph] = capture.pieces
            self._being_made.pop(stream, None)
            return graph
        except BaseException:
            capture.give_up()
            self.graphs.pop(graph, None)
            self._being_made.pop(stream, None)
            raise

    def graph_record_event(self, event: int, stream: int) -> None:
        self._being_made[stream].between(("EventRecord", self._events[event]))

    def graph_wait_event(self, stream: int, event: int) -> None:
        self._being_made[stream].between(("StreamWaitEvent", self._events[event]))

    def graph_launch(self, graph: int, stream: int) -> None:
        on, functions = self._streams[stream], self._functions
        for call, what in self._find(graph):
            if call == "GraphLaunch":
                functions.GraphLaunch(what, on)
            elif call == "EventRecord":
                functions.EventRecord(what, on)
            else:
                functions.StreamWaitEvent(on, what, 0)

    def graph_destroy(self, graph: int) -> None:
        pieces = self._find(graph)
        try:
            self._destroy_all(self._recorded.GraphExecDestroy, pieces, _launched)
        except BackendError:
            self.undestroyed += [what for what in map(_launched, pieces) if what is not None]
            del self.graphs[graph]
            raise
        del self.graphs[graph]  # last: what an interrupt leaves is destroyed with the device
        with suppress(BackendError):  # of another graph: it was told when that one was destroyed
            self.destroy_captured()

    def destroy(self, pieces: list[Piece]) -> None:
        """Destroy what pieces refer to; what is left, the next graph that is made or destroyed tries again."""
        try:
            self._destroy_all(self._recorded.GraphExecDestroy, pieces, _launched)
        finally:
            self.undestroyed += [what for what in map(_launched, pieces) if what is not None]

    def destroy_captured(self) -> None:
        """Destroy what was captured; what an interrupt or the vendor kept from it, the next call does."""
        self._destroy_all(self._recorded.GraphExecDestroy, self.undestroyed)
        self._destroy_all(self._recorded.GraphDestroy, self.captured)

    def _destroy_all(
        self, destroy: Callable[..., object], waiting: list[Any], handle_of: Callable[[Any], Any] = _itself
    ) -> None:
        """Destroy what lists have; each is taken out, and comes back unless it was destroyed."""
        for each in list(waiting):
            destroyed: list[Any] = []
            try:
                try:
                    waiting.remove(each)
                except ValueError:  # another thread took it
                    continue
                if (handle := handle_of(each)) is not None:
                    destroy(destroyed, handle)
            except BaseException:
                if not destroyed and each not in waiting:
                    waiting.append(each)
                raise

    def _find(self, graph: int) -> list[Piece]:
        found = self.graphs.get(graph)
        if found is None:
            self._refuse("graph", INVALID_HANDLE, f"the graph {graph:#x} was destroyed, or never made here")
        return found


class _Capture:
    """A graph that is being made, piece by piece, on one captured stream."""

    def __init__(self, owner: Graphs, on: Any) -> None:
        self.owner, self.on, self.thread = owner, on, get_ident()
        self.pieces: list[Piece] = []
        #: Whether the stream is capturing, and whether anything has been captured since it began to.
        self._capturing = self._filled = False
        self._functions, self._recorded = owner._functions, owner._recorded

    def add(self, call: Callable[[FullDriver, int], object], driver: FullDriver, stream: int) -> None:
        """Capture what a call enqueues."""
        if not self._capturing:
            self._capturing = True
            self._functions.StreamBeginCapture(self.on, self.owner._mode)
        call(driver, stream)
        self._filled = self._capturing  # not if the call was an event, which ended the piece

    def between(self, piece: Piece) -> None:
        """Put a call behind what has been captured so far."""
        self.end()
        self.pieces.append(piece)

    def end(self) -> None:
        """End a piece of the graph."""
        if not self._capturing:
            return
        filled, self._filled = self._filled, False
        captured: list[Any] = []
        made: list[Any] = []
        try:
            self._recorded.StreamEndCapture(captured, self.on)
            self._capturing = False
            if filled:
                self._recorded.GraphInstantiateWithFlags(made, captured[0], 0)
        finally:
            if made:
                self.pieces += [("GraphLaunch", made[0])]
            self.owner.captured += captured
        self.owner.destroy_captured()

    def give_up(self) -> None:
        """End the capture, and destroy what was made."""
        if self._capturing:
            with suppress(BackendError):  # it may be over; what came first is the one to be told
                self._recorded.StreamEndCapture(self.owner.captured, self.on)
            self._capturing = False
        with suppress(BackendError):
            self.owner.destroy_captured()
        with suppress(BackendError):
            self.owner.destroy(self.pieces)
