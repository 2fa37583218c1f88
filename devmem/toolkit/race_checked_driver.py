"""A driver whose operations are checked for races, and which is otherwise the one that it wraps.

The contract's integers are all that is looked at, so every backend can be checked, and an emulated driver as well as a real one.
What is found, and what is not, is said in `races`.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from operator import is_
from pathlib import Path
from threading import get_ident
from types import MethodType
from typing import Any, cast
from weakref import WeakValueDictionary

from ..spi.driver import Driver, FullDriver, GraphCall
from ..spi.types import LEGACY_STREAM, PER_THREAD_STREAM, Box, CopyKind, MemoryKind
from .driver_parts import CONTRACT, ComposedDriver
from .races import HOST, Access, Clock, RaceDetector, StreamClock, detector, join

#: Bytes that an operation accesses: from where, how many, whether it writes, and, of rows, as in `Access`.
Accessed = tuple[int, int, bool, tuple[int, tuple[tuple[int, int], ...]] | None]
#: What a call of a graph does to the clocks, on the stream where the graph is launched.
Step = Callable[[int], object]

_PACKAGE = str(Path(__file__).resolve().parents[1]) + os.sep


class RaceCheckedDriver(ComposedDriver):
    """A driver whose operations are checked against each other, and which is otherwise the one that it wraps."""

    def __init__(self, driver: Driver, detector: RaceDetector) -> None:
        self._driver, self._detector = cast(FullDriver, driver), detector
        self.compose(driver)
        self._device = f"{driver.info.backend}:{driver.info.ordinal}"
        self._captures = hasattr(driver, "capturing")
        _devices[self._device] = self
        self._legacy = detector.stream(f"legacy default stream of {self._device}", True)
        self._streams: dict[object, StreamClock] = {LEGACY_STREAM: self._legacy}
        self._events: dict[int, Clock] = {}
        #: What each graph does to the clocks, by its handle, and what does one that is being made, by its stream's.
        self._graphs: dict[int, list[Step]] = {}
        self._recording: dict[int, list[Step]] = {}
        for name in CONTRACT:
            if name in vars(_Checks) and hasattr(driver, name):
                setattr(self, name, MethodType(getattr(_Checks, name), self))

    def __getattr__(self, name: str) -> Any:
        return getattr(self.__dict__["_driver"], name)

    def run_declared(self, launch: Callable[[], object], stream: int, accesses: Sequence[Accessed]) -> None:
        """Launch a kernel, which accesses what the program has declared."""
        self._run("a kernel", launch, stream, accesses)

    def _stream(self, handle: int) -> StreamClock:
        """The clock of a stream, which has taken over from those that it waits for by itself. The lock is held."""
        key = (handle, get_ident()) if handle == PER_THREAD_STREAM else handle
        found = self._streams.get(key)
        if found is None:
            name = (
                f"per-thread default stream of thread {get_ident()}"
                if handle == PER_THREAD_STREAM
                else f"stream {handle:#x}"
            )
            # Of a stream of another library it is not known whether it waits for the legacy stream.
            found = self._streams[key] = self._detector.stream(f"{name} of {self._device}", True)
        if found is self._legacy:
            for each in list(self._streams.values()):
                if each.blocking:
                    join(found.clock, each.clock)
        elif found.blocking:
            join(found.clock, self._legacy.clock)
        return found

    def _snapshot(self, handle: int) -> Clock:
        with self._detector.lock:
            return dict(self._stream(handle).clock)

    def _run(
        self,
        what: str,
        call: Callable[[], Any],
        stream: int,
        accesses: Iterable[Accessed],
        host: bool | None = None,
        blocking: bool = False,
    ) -> Any:
        """Check and remember an operation's accesses, (start, bytes, writes, rows) each, and let the driver enqueue it.

        ``host``: whether those that write, or those that read, are of host memory, which is done with unless the driver says that
        the copy still runs.
        """
        if stream in self._recording:
            self._recording[stream].append(partial(self._enqueue, what, tuple(accesses)))
            return call()
        detector, (made, clock) = self._detector, self._enqueue(what, accesses, stream)
        try:
            result = call()
        except BaseException:
            self._take_back(made)
            raise
        if host is not None and not result:
            self._take_back([each for each in made if each.writes is host])
        if blocking or (host and not result):  # what the host has in its memory is complete
            detector.complete(clock)
        return result

    def _enqueue(self, what: str, accesses: Iterable[Accessed], stream: int) -> tuple[list[Access], Clock]:
        """Check and remember an operation's accesses; these, and what comes before the next operation."""
        detector, site = self._detector, caller()
        with detector.lock:
            detector.check_host()
            on = self._stream(stream)
            count = detector.enqueue(on)
            made = [
                Access(start, start + n, writes, what, on.name, on.number, count, site, rows)
                for start, n, writes, rows in accesses
            ]
            clock = dict(on.clock)
            captured = partial(self._driver.capturing, stream) if self._captures else None
            for each in made:
                if not detector.check(each, clock, captured):
                    return [], clock
            # Before the driver has it: an event that another thread records meanwhile may be behind it already.
            for each in made:
                detector.remember(each, clock)
        return made, clock

    def _record(self, steps: list[Step], at: int, call: GraphCall, stream: int, driver: FullDriver, on: int) -> object:
        """Make a call of a graph: where it is recorded, through the checks, which note it."""
        if on != stream:  # the driver makes the calls anew whenever the graph is launched
            return call(driver, on)
        if not at:
            steps.clear()
        return call(cast(FullDriver, self), on)

    def _keep_clock(self, event: int, stream: int) -> None:
        """Take note that an event is recorded now."""
        with self._detector.lock:
            clock = dict(self._stream(stream).clock)
            join(clock, self._detector.host)
            self._events[int(event)] = clock  # not the object, which goes back to the spare ones when it is dropped

    def _take_clock(self, event: int, stream: int) -> None:
        """Take note that a stream waits for an event from now on."""
        with self._detector.lock:
            join(self._stream(stream).clock, self._events.get(event, {}))

    def _take_back(self, made: list[Access]) -> None:
        for each in made:
            self._detector.forget(each.start, each.end, partial(is_, each))

    def _check_idle(self, what: str, start: int, nbytes: int) -> None:
        """Check that the host found all complete that touches a range which is given back."""
        detector = self._detector
        with detector.lock:
            detector.check_host()
            access = Access(start, start + nbytes, True, what, HOST, 0, 0, caller(), None)
            detector.check(access, detector.host)
            detector.forget(start, start + nbytes)

    def _allocated(self, ptr: int, nbytes: int, stream: int) -> int:
        """Note an allocation, which the driver orders behind the block's earlier life; other streams have to wait for it."""
        detector = self._detector
        if ptr:
            with detector.lock:
                on = self._stream(stream)
                count, what = detector.enqueue(on), "an allocation"
                detector.forget(ptr, ptr + nbytes)
                access = Access(ptr, ptr + nbytes, True, what, on.name, on.number, count, caller(), None)
                detector.remember(access, dict(on.clock))
        return ptr


class _Checks(RaceCheckedDriver):
    """The methods of the contract that are checked; each is taken where the driver has it."""

    def copy(self, dst: int, src: int, nbytes: int, kind: CopyKind, stream: int, *, blocking: bool) -> bool:
        call = partial(self._driver.copy, dst, src, nbytes, kind, stream, blocking=blocking)
        both = ((dst, nbytes, True, None), (src, nbytes, False, None))
        return cast(bool, self._run(f"a copy ({kind})", call, stream, both, on_host(kind), blocking))

    def copy_strided(self, box: Box, kind: CopyKind, stream: int, *, blocking: bool) -> bool:
        call = partial(self._driver.copy_strided, box, kind, stream, blocking=blocking)
        return cast(bool, self._run(f"a copy of rows ({kind})", call, stream, _sides(box), on_host(kind), blocking))

    def copy_batch(
        self, dsts: Sequence[int], srcs: Sequence[int], sizes: Sequence[int], kind: CopyKind, stream: int
    ) -> bool:
        call = partial(self._driver.copy_batch, dsts, srcs, sizes, kind, stream)
        each = [(to, n, True, None) for to, n in zip(dsts, sizes, strict=True)]
        each += [(origin, n, False, None) for origin, n in zip(srcs, sizes, strict=True)]
        return cast(bool, self._run(f"a batch of copies ({kind})", call, stream, each, on_host(kind)))

    def copy_3d_batch(self, boxes: Sequence[Box], kind: CopyKind, stream: int) -> bool:
        call = partial(self._driver.copy_3d_batch, boxes, kind, stream)
        each = [side for box in boxes for side in _sides(box)]
        return cast(bool, self._run(f"a batch of copies of rows ({kind})", call, stream, each, on_host(kind)))

    def copy_peer(self, *sides: Any, blocking: bool) -> None:
        dst, _, src, _, nbytes, stream = sides
        call = partial(self._driver.copy_peer, *sides, blocking=blocking)
        both = ((dst, nbytes, True, None), (src, nbytes, False, None))
        self._run("a copy between devices", call, stream, both, None, blocking)

    def fill(self, dst: int, value: int, width: int, count: int, stream: int) -> None:
        call = partial(self._driver.fill, dst, value, width, count, stream)
        self._run("a fill", call, stream, ((dst, width * count, True, None),))

    def discard(self, ptrs: Sequence[int], sizes: Sequence[int], stream: int) -> None:
        call = partial(self._driver.discard, ptrs, sizes, stream)
        self._run("a discard", call, stream, [(ptr, n, True, None) for ptr, n in zip(ptrs, sizes, strict=True)])

    def launch_host_function(self, function: Any, ranges: Sequence[tuple[int, int]], stream: int) -> None:
        call = partial(self._driver.launch_host_function, function, ranges, stream)
        self._run("a kernel", call, stream, [(start, n, False, None) for start, n in ranges if n])

    # -- graphs --------------------------------------------------------------------------------------------------------

    def graph_create(self, calls: Sequence[GraphCall], stream: int) -> int:
        """Note what each call accesses; the driver may call them again, and then from the first on."""
        steps = self._recording[stream] = []
        try:
            recorded = [partial(self._record, steps, at, call, stream) for at, call in enumerate(calls)]
            graph = self._driver.graph_create(recorded, stream)
        finally:
            del self._recording[stream]
        self._graphs[graph] = steps
        return graph

    def graph_record_event(self, event: int, stream: int) -> None:
        if stream in self._recording:
            self._recording[stream].append(partial(self._keep_clock, event))
        self._driver.graph_record_event(event, stream)

    def graph_wait_event(self, stream: int, event: int) -> None:
        if stream in self._recording:
            self._recording[stream].append(partial(self._take_clock, event))
        self._driver.graph_wait_event(stream, event)

    def graph_launch(self, graph: int, stream: int) -> None:
        """Check what the graph holds as if it were enqueued now, call by call."""
        detector = self._detector
        with detector.lock:
            on = self._stream(stream)
            before = on.clock.get(on.number, 0)
        try:
            for step in self._graphs.get(graph, ()):
                step(stream)
            self._driver.graph_launch(graph, stream)
        except BaseException:
            detector.forget_stream(on.number, before)
            raise

    def graph_destroy(self, graph: int) -> None:
        self._graphs.pop(graph, None)
        self._driver.graph_destroy(graph)

    # -- memory --------------------------------------------------------------------------------------------------------

    def alloc_async(self, nbytes: int, stream: int) -> int:
        return self._allocated(self._driver.alloc_async(nbytes, stream), nbytes, stream)

    def alloc_shared(self, nbytes: int, stream: int) -> int:
        return self._allocated(self._driver.alloc_shared(nbytes, stream), nbytes, stream)

    def alloc_decompressible(self, nbytes: int, stream: int) -> int:
        return self._allocated(self._driver.alloc_decompressible(nbytes, stream), nbytes, stream)

    def free_async(self, ptr: int, nbytes: int, stream: int) -> None:
        call = partial(self._driver.free_async, ptr, nbytes, stream)
        if not ptr:
            call()
            return
        self._run("a free", call, stream, ((ptr, nbytes, True, None),))
        self._detector.forget(ptr, ptr + nbytes)

    def free(self, ptr: int, nbytes: int, stream: int, kind: MemoryKind = MemoryKind.DEVICE) -> None:
        if ptr and nbytes:
            self._check_idle("a free", ptr, nbytes)
        self._driver.free(ptr, nbytes, stream, kind)

    def host_unregister(self, ptr: int, nbytes: int) -> None:
        if nbytes:
            self._check_idle("the end of a registration", ptr, nbytes)
        self._driver.host_unregister(ptr, nbytes)

    # -- order ---------------------------------------------------------------------------------------------------------

    def stream_create(self, priority: int, non_blocking: bool) -> int:
        handle = self._driver.stream_create(priority, non_blocking)
        self._streams[handle] = self._detector.stream(f"stream {handle:#x} of {self._device}", not non_blocking)
        return handle

    def stream_destroy(self, stream: int) -> None:
        with self._detector.lock:
            ended = self._streams.pop(stream, None)
            if ended is not None and ended.blocking:
                join(self._legacy.clock, ended.clock)
        self._driver.stream_destroy(stream)

    def stream_synchronize(self, stream: int) -> None:
        clock = self._snapshot(stream)
        self._driver.stream_synchronize(stream)
        self._detector.complete(clock)

    def stream_query(self, stream: int) -> bool:
        clock = self._snapshot(stream)
        done = self._driver.stream_query(stream)
        if done:
            self._detector.complete(clock)
        return done

    def stream_wait(self, stream: int, event: int) -> None:
        self._take_clock(event, stream)
        self._driver.stream_wait(stream, event)

    def stream_wait_peer(self, stream: int, event: int, ordinal: int) -> None:
        with self._detector.lock:
            peer = _devices.get(f"{self._driver.info.backend}:{ordinal}")
            if peer is not None:
                join(self._stream(stream).clock, peer._events.get(event, {}))
        self._driver.stream_wait_peer(stream, event, ordinal)

    def event_record(self, event: int, stream: int) -> None:
        self._driver.event_record(event, stream)
        self._keep_clock(event, stream)

    def event_query(self, event: int) -> bool:
        clock = dict(self._events.get(event, {}))
        done = self._driver.event_query(event)
        if done:
            self._detector.complete(clock)
        return done

    def event_synchronize(self, event: int) -> None:
        clock = dict(self._events.get(event, {}))
        self._driver.event_synchronize(event)
        self._detector.complete(clock)

    def event_destroy(self, event: int) -> None:
        self._events.pop(event, None)
        self._driver.event_destroy(event)

    def synchronize(self) -> None:
        with self._detector.lock:
            clock: Clock = {}
            for each in list(self._streams.values()):
                join(clock, each.clock)
        self._driver.synchronize()
        self._detector.complete(clock)

    def capturing(self, stream: int) -> bool:
        captured = bool(self._driver.capturing(stream))
        if captured:  # a graph may run at any time: nothing is said of what it touches
            with self._detector.lock:
                self._detector.forget_stream(self._stream(stream).number)
        return captured

    def close(self) -> None:
        try:
            self._detector.complete({})  # what the host has done since the last call
        finally:
            for each in list(self._streams.values()):
                self._detector.forget_stream(each.number)
            self._driver.close()


#: The checked devices, by name.
_devices: WeakValueDictionary[str, RaceCheckedDriver] = WeakValueDictionary()


def race_checked(driver: Driver) -> Driver:
    """The driver, with its operations checked against those of all other drivers that this was called for."""
    detector.watch_host()
    return cast(Driver, RaceCheckedDriver(driver, detector))


def on_host(kind: CopyKind) -> bool | None:
    """Whether the side of a copy that is on the host is written (True) or read; None within a device."""
    return None if kind is CopyKind.D2D else kind is CopyKind.D2H


def caller() -> str:
    """The line of the program that made the call: the innermost one outside of devmem."""
    frame = sys._getframe(1)
    while frame.f_code.co_filename.startswith(_PACKAGE):
        if frame.f_back is None:
            return "a thread of devmem's"
        frame = frame.f_back
    return f"{frame.f_code.co_filename}:{frame.f_lineno}"


def _sides(box: Box) -> list[Any]:
    """Return the accesses of a strided copy: the bytes that it writes and reads."""
    dst, dst_pitch, dst_rows, src, src_pitch, src_rows, width, height, depth = box
    return [
        (
            start,
            (depth - 1) * rows * pitch + (height - 1) * pitch + width,
            writes,
            (width, ((depth, rows * pitch), (height, pitch))),
        )
        for start, pitch, rows, writes in ((dst, dst_pitch, dst_rows, True), (src, src_pitch, src_rows, False))
    ]
