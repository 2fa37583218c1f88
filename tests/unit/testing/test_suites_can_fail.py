"""The conformance suites find faults: each driver or resource here has one fault, and one named test must fail on it."""

from __future__ import annotations

import contextlib
import ctypes
import itertools
from collections.abc import Callable
from typing import Any, cast

import pytest

from devmem.backends.host.hooks import HostBackend
from devmem.spi.driver import Backend, Driver
from devmem.spi.errors import BackendError, OutOfMemory
from devmem.spi.memory import MemoryResource
from devmem.spi.types import LEGACY_STREAM, PER_THREAD_STREAM, CopyKind, MemoryKind
from devmem.testing import DriverTests, FaultyDriver, MemoryResourceTests

#: What a failing test raises. Another error would be a fault of the test.
FAILURES = (AssertionError, pytest.fail.Exception)


class Broken(FaultyDriver):
    """The strict host driver; each subclass adds one fault. Optional methods are instance attributes: see `spoil`."""

    def __init__(self, inner: Driver) -> None:
        super().__init__(inner)
        self.sound: Any = inner
        self.spoil()

    def spoil(self) -> None:
        """Replace optional methods."""


class CopiesNothing(Broken):
    def copy(self, dst: int, src: int, nbytes: int, kind: CopyKind, stream: int, *, blocking: bool) -> bool:
        return False


class CopiesOneByteLess(Broken):
    def copy(self, dst: int, src: int, nbytes: int, kind: CopyKind, stream: int, *, blocking: bool) -> bool:
        return nbytes > 1 and super().copy(dst, src, nbytes - 1, kind, stream, blocking=blocking)


class CopiesTooMuch(Broken):
    def copy(self, dst: int, src: int, nbytes: int, kind: CopyKind, stream: int, *, blocking: bool) -> bool:
        more = nbytes + 1 if nbytes % 2 and kind is CopyKind.D2H and nbytes < 20_000 else nbytes
        try:
            return super().copy(dst, src, more, kind, stream, blocking=blocking)
        except BackendError:
            return super().copy(dst, src, nbytes, kind, stream, blocking=blocking)


class AlwaysBlocks(Broken):
    def copy(self, dst: int, src: int, nbytes: int, kind: CopyKind, stream: int, *, blocking: bool) -> bool:
        return super().copy(dst, src, nbytes, kind, stream, blocking=True)


class NeverBlocks(Broken):
    def copy(self, dst: int, src: int, nbytes: int, kind: CopyKind, stream: int, *, blocking: bool) -> bool:
        # The tests read memory on the stream that they created first; that one must work.
        if blocking and stream != min(self._streams):
            super().copy(dst, src, nbytes, kind, stream, blocking=False)
            return False
        return super().copy(dst, src, nbytes, kind, stream, blocking=blocking)


class SaysThatNothingRuns(Broken):
    def copy(self, dst: int, src: int, nbytes: int, kind: CopyKind, stream: int, *, blocking: bool) -> bool:
        super().copy(dst, src, nbytes, kind, stream, blocking=blocking)
        return False


class SaysThatAllRuns(Broken):
    def copy(self, dst: int, src: int, nbytes: int, kind: CopyKind, stream: int, *, blocking: bool) -> bool:
        super().copy(dst, src, nbytes, kind, stream, blocking=blocking)
        return True


class IgnoresStreams(Broken):
    """Work runs at once, without waiting for its stream."""

    def copy(self, dst: int, src: int, nbytes: int, kind: CopyKind, stream: int, *, blocking: bool) -> bool:
        own = self.sound.stream_create(0, True)
        super().copy(dst, src, nbytes, kind, own, blocking=True)
        self.sound.stream_destroy(own)
        return not blocking and kind is not CopyKind.D2D


class RunsBackwards(Broken):
    """Work is queued until a call waits, and then runs last to first."""

    def spoil(self) -> None:
        self.queue: list[Callable[[], object]] = []

    def copy(self, dst: int, src: int, nbytes: int, kind: CopyKind, stream: int, *, blocking: bool) -> bool:
        if not blocking:
            self.queue.append(lambda: self.sound.copy(dst, src, nbytes, kind, stream, blocking=True))
            return True
        self.stream_synchronize(stream)
        return super().copy(dst, src, nbytes, kind, stream, blocking=True)

    def fill(self, dst: int, value: int, width: int, count: int, stream: int) -> None:
        self.queue.append(lambda: self.sound.fill(dst, value, width, count, stream))

    def stream_synchronize(self, stream: int) -> None:
        while self.queue:
            self.queue.pop()()
        super().stream_synchronize(stream)


class LegacyIsAnOrdinaryStream(Broken):
    """The legacy stream waits for no other stream, and no other stream waits for it."""

    def spoil(self) -> None:
        legacy = self.sound.stream_create(0, True)
        inner = self.inner

        class Proxy:
            def __getattr__(self, name: str) -> Any:
                method = getattr(inner, name)
                if not callable(method):
                    return method
                return lambda *a, **k: method(*(legacy if x is LEGACY_STREAM else x for x in a), **k)

        self.inner = Proxy()


class NonBlockingMeansNothing(Broken):
    def stream_create(self, priority: int, non_blocking: bool) -> int:
        return super().stream_create(priority, False)


class OnePerThreadStreamForAll(Broken):
    def spoil(self) -> None:
        shared = self.sound.stream_create(0, False)
        inner = self.inner

        class Proxy:
            def __getattr__(self, name: str) -> Any:
                method = getattr(inner, name)
                if not callable(method):
                    return method
                # By the position of the argument: the value 2 may also be a width or a count.
                place = {"copy": 4, "stream_synchronize": 0, "stream_query": 0, "hold": 0}.get(name)

                def call(*args: Any, **keywords: Any) -> Any:
                    if place is not None and args[place] == PER_THREAD_STREAM:
                        args = (*args[:place], shared, *args[place + 1 :])
                    return method(*args, **keywords)

                return call

        self.inner = Proxy()


class OverlappingAddresses(Broken):
    """A bump allocator that ignores the size of the previous block."""

    def spoil(self) -> None:
        self.arena: int = self.sound.alloc(8 << 20, LEGACY_STREAM)
        self.next = itertools.count(0, 256)

    def alloc(self, nbytes: int, stream: int, kind: MemoryKind = MemoryKind.DEVICE, *flags: Any) -> int:
        if kind is not MemoryKind.DEVICE or nbytes > 1 << 20:
            return super().alloc(nbytes, stream, kind, *flags)
        return self.arena + next(self.next)

    def free(self, ptr: int, nbytes: int, stream: int, kind: MemoryKind = MemoryKind.DEVICE) -> None:
        if not self.arena <= ptr < self.arena + (8 << 20):
            super().free(ptr, nbytes, stream, kind)


class Unaligned(Broken):
    def alloc(self, nbytes: int, stream: int, kind: MemoryKind = MemoryKind.DEVICE, *flags: Any) -> int:
        return super().alloc(nbytes + 64, stream, kind, *flags) + 64

    def free(self, ptr: int, nbytes: int, stream: int, kind: MemoryKind = MemoryKind.DEVICE) -> None:
        super().free(ptr - 64, nbytes + 64, stream, kind)


class FreesNothing(Broken):
    def free(self, ptr: int, nbytes: int, stream: int, kind: MemoryKind = MemoryKind.DEVICE) -> None:
        pass


class LosesMemoryWhenFull(Broken):
    def alloc(self, nbytes: int, stream: int, kind: MemoryKind = MemoryKind.DEVICE, *flags: Any) -> int:
        try:
            return super().alloc(nbytes, stream, kind, *flags)
        except OutOfMemory:
            super().alloc(1 << 20, stream)
            raise


class SaysOnlyThatItFailed(Broken):
    def alloc(self, nbytes: int, stream: int, kind: MemoryKind = MemoryKind.DEVICE, *flags: Any) -> int:
        try:
            return super().alloc(nbytes, stream, kind, *flags)
        except OutOfMemory as error:
            raise BackendError(str(error)) from error


class FillIgnoresWidth(Broken):
    def fill(self, dst: int, value: int, width: int, count: int, stream: int) -> None:
        super().fill(dst, value & 0xFF, 1, width * count, stream)


class FillCountsBytes(Broken):
    def fill(self, dst: int, value: int, width: int, count: int, stream: int) -> None:
        super().fill(dst, value, width, max(1, count // width), stream)


class FillOverruns(Broken):
    def fill(self, dst: int, value: int, width: int, count: int, stream: int) -> None:
        super().fill(dst, value, width, count + 1, stream)


class EventsAreAlwaysDone(Broken):
    def event_query(self, event: int) -> bool:
        return True


class UnrecordedEventsAreNotDone(Broken):
    def event_query(self, event: int) -> bool:
        return self.calls["event_record"] > 0 and super().event_query(event)


class EventsAreRecordedOnce(Broken):
    def event_record(self, event: int, stream: int) -> None:
        if event not in self.__dict__.setdefault("once", set()):
            self.once.add(event)
            super().event_record(event, stream)


class EventsWaitForNothing(Broken):
    def event_synchronize(self, event: int) -> None:
        pass


class StreamsDoNotWait(Broken):
    def stream_wait(self, stream: int, event: int) -> None:
        pass


class StreamsAreAlwaysDone(Broken):
    def stream_query(self, stream: int) -> bool:
        return True


class ElapsedInSeconds(Broken):
    def event_elapsed(self, start: int, end: int) -> float:
        return super().event_elapsed(start, end) / 1000


class SynchronizeIsNothing(Broken):
    def synchronize(self) -> None:
        pass


class StreamSynchronizeIsTheDevice(Broken):
    def stream_synchronize(self, stream: int) -> None:
        self.sound.synchronize()


class RowsTouchGaps(Broken):
    def spoil(self) -> None:
        def copy_2d(
            dst: int,
            to: int,
            src: int,
            pitch: int,
            width: int,
            height: int,
            kind: CopyKind,
            stream: int,
            *,
            blocking: bool,
        ) -> bool:
            wide = min(width + 1, to, pitch) if height > 1 else width
            self.sound.copy_2d(dst, to, src, pitch, wide, height - 1 or 1, kind, stream, blocking=blocking)
            return bool(self.sound.copy_2d(dst, to, src, pitch, width, height, kind, stream, blocking=blocking))

        self.copy_2d = copy_2d


class RowsShareAPitch(Broken):
    def spoil(self) -> None:
        def copy_2d(dst: int, to: int, src: int, pitch: int, *rest: Any, blocking: bool) -> bool:
            return bool(self.sound.copy_2d(dst, pitch, src, pitch, *rest, blocking=blocking))

        self.copy_2d = copy_2d


class FreesAsyncAtOnce(Broken):
    """The pool reuses freed memory at once, before the stream reaches the free."""

    def spoil(self) -> None:
        spare: dict[int, list[int]] = {}

        def alloc_async(nbytes: int, stream: int) -> int:
            kept = spare.get(nbytes)
            return kept.pop() if kept else self.sound.alloc_async(nbytes, stream)

        self.alloc_async = alloc_async
        self.free_async = lambda ptr, nbytes, stream: spare.setdefault(nbytes, []).append(ptr)


class FreesAsyncWaits(Broken):
    def spoil(self) -> None:
        def free_async(ptr: int, nbytes: int, stream: int) -> None:
            self.sound.stream_synchronize(stream)
            self.sound.free_async(ptr, nbytes, stream)

        self.free_async = free_async


class RegistersNothing(Broken):
    def spoil(self) -> None:
        self.host_register = self.host_unregister = lambda *args: None


class PeerCopiesToItself(Broken):
    def spoil(self) -> None:
        def copy_peer(dst: int, there: int, src: int, here: int, nbytes: int, stream: int, *, blocking: bool) -> None:
            pass

        self.copy_peer = copy_peer


class DeclaresTooMuch(Broken):
    def spoil(self) -> None:
        del self.copy_2d
        self.inner = cast(Driver, object())

    def enter(self) -> object:
        return self.sound.enter()

    def exit(self, token: object) -> None:
        self.sound.exit(token)

    def synchronize(self) -> None:
        self.sound.synchronize()

    def close(self) -> None:
        self.sound.close()


class ExecutesAtOnce(Broken):
    def spoil(self) -> None:
        self.launch_host_function = lambda function, ranges, stream: function([])


class ExecutesAndWaits(Broken):
    def spoil(self) -> None:
        def launch_host_function(function: Any, ranges: Any, stream: int) -> None:
            self.sound.launch_host_function(function, ranges, stream)
            self.sound.stream_synchronize(stream)

        self.launch_host_function = launch_host_function


class ExecutesSilently(Broken):
    def spoil(self) -> None:
        def launch_host_function(function: Any, ranges: Any, stream: int) -> None:
            def quiet(places: Any) -> None:
                with contextlib.suppress(Exception):
                    function(places)

            self.sound.launch_host_function(quiet, ranges, stream)

        self.launch_host_function = launch_host_function


class ExecutesElsewhere(Broken):
    def spoil(self) -> None:
        def launch_host_function(function: Any, ranges: Any, stream: int) -> None:
            # In bounds, but a block that the caller did not name.
            elsewhere = [self.sound.alloc(nbytes, stream) for _, nbytes in ranges]
            moved = [(ptr, nbytes) for ptr, (_, nbytes) in zip(elsewhere, ranges, strict=True)]
            self.sound.launch_host_function(function, moved, stream)

        self.launch_host_function = launch_host_function


class NoDetails(Broken):
    def free(self, ptr: int, nbytes: int, stream: int, kind: MemoryKind = MemoryKind.DEVICE) -> None:
        try:
            super().free(ptr, nbytes, stream, kind)
        except BackendError as error:
            raise BackendError(str(error)) from error


class AcceptsAnyStream(Broken):
    def stream_query(self, stream: int) -> bool:
        try:
            return super().stream_query(stream)
        except BackendError:
            return True


BROKEN: list[tuple[type[Broken], str, dict[str, Any]]] = [
    (CopiesNothing, "test_round_trip", {"nbytes": 4096}),
    (CopiesNothing, "test_device_to_device", {"nbytes": 1}),
    (CopiesOneByteLess, "test_round_trip", {"nbytes": 257}),
    (CopiesTooMuch, "test_inside_of_blocks", {"kind": CopyKind.D2H, "to": 1, "start": 0, "nbytes": 4095}),
    (AlwaysBlocks, "test_pinned_source_is_read_later", {"nbytes": 4096}),
    (NeverBlocks, "test_blocking_waits_for_earlier_work", {"kind": CopyKind.H2D}),
    (SaysThatNothingRuns, "test_pinned_source_is_read_later", {"nbytes": 4096}),
    (SaysThatNothingRuns, "test_pinned_destination_is_written_later", {"nbytes": 1}),
    (SaysThatAllRuns, "test_device_to_device_has_no_host_side", {}),
    (SaysThatAllRuns, "test_blocking_is_complete_on_return", {"kind": CopyKind.H2D, "where": "pinned"}),
    (IgnoresStreams, "test_query_and_synchronize", {"which": "created"}),
    (IgnoresStreams, "test_stream_waits_for_another", {"waiter": "created"}),
    (IgnoresStreams, "test_held_work_runs_in_order", {}),
    (IgnoresStreams, "test_pinned_destination_is_written_later", {"nbytes": 4096}),
    (RunsBackwards, "test_work_runs_in_order", {}),
    (RunsBackwards, "test_round_trip_without_blocking", {"nbytes": 4096}),
    (LegacyIsAnOrdinaryStream, "test_implied_waits", {"earlier": "blocking", "later": "legacy"}),
    (LegacyIsAnOrdinaryStream, "test_implied_waits", {"earlier": "legacy", "later": "blocking"}),
    (LegacyIsAnOrdinaryStream, "test_implied_waits", {"earlier": "legacy", "later": "per-thread"}),
    (NonBlockingMeansNothing, "test_no_implied_wait", {"held": "legacy", "free": "created"}),
    (OnePerThreadStreamForAll, "test_per_thread_streams_are_one_for_each_thread", {}),
    (OverlappingAddresses, "test_alloc_gives_distinct_memory", {"kind": MemoryKind.DEVICE}),
    (OverlappingAddresses, "test_alloc_keeps_blocks_apart", {}),
    (Unaligned, "test_alloc_is_aligned", {"kind": MemoryKind.DEVICE}),
    (FreesNothing, "test_memory_info_follows_allocations", {}),
    (LosesMemoryWhenFull, "test_out_of_memory_hands_nothing_out", {"kind": MemoryKind.DEVICE}),
    (SaysOnlyThatItFailed, "test_out_of_memory_hands_nothing_out", {"kind": MemoryKind.PINNED}),
    (FillIgnoresWidth, "test_fill", {"width": 2, "count": 255}),
    (FillIgnoresWidth, "test_fill_value", {"width": 4, "extreme": "one"}),
    (FillCountsBytes, "test_fill", {"width": 4, "count": 255}),
    (FillOverruns, "test_fill_touches_nothing_else", {"width": 1}),
    (EventsAreAlwaysDone, "test_captures_what_was_enqueued", {"which": "created"}),
    (UnrecordedEventsAreNotDone, "test_unrecorded_event_is_done", {"timing": True}),
    (EventsAreRecordedOnce, "test_can_be_recorded_again", {}),
    (EventsAreRecordedOnce, "test_recorded_again_forgets_what_it_captured", {}),
    (EventsWaitForNothing, "test_captures_what_was_enqueued", {"which": "legacy"}),
    (StreamsDoNotWait, "test_stream_waits_for_another", {"waiter": "blocking"}),
    (StreamsDoNotWait, "test_destroyed_event_does_not_disturb_waiters", {}),
    (StreamsAreAlwaysDone, "test_query_and_synchronize", {"which": "legacy"}),
    (ElapsedInSeconds, "test_elapsed_is_in_milliseconds", {}),
    (SynchronizeIsNothing, "test_device_synchronize_waits_for_a_held_stream", {}),
    (StreamSynchronizeIsTheDevice, "test_streams_are_independent", {}),
    (
        RowsTouchGaps,
        "test_copy_2d",
        {"kind": CopyKind.H2D, "width": 100, "height": 33, "dst_pitch": 101, "src_pitch": 200},
    ),
    (
        RowsShareAPitch,
        "test_copy_2d",
        {"kind": CopyKind.D2D, "width": 8, "height": 500, "dst_pitch": 1000, "src_pitch": 24},
    ),
    (FreesAsyncAtOnce, "test_freed_memory_reaches_no_other_stream_early", {}),
    (FreesAsyncWaits, "test_alloc_async_and_free_async_do_not_wait", {}),
    (RegistersNothing, "test_registered_memory_is_pinned", {}),
    (RegistersNothing, "test_registered_for_every_device", {}),
    (PeerCopiesToItself, "test_copy_peer", {"outwards": True, "blocking": True}),
    (DeclaresTooMuch, "test_declared_capability_has_its_methods", {"capability": "strided_copy"}),
    (ExecutesAtOnce, "test_launch_host_function_waits_behind_a_held_stream", {}),
    (ExecutesAndWaits, "test_launch_host_function_is_ordered_on_its_stream", {}),
    (ExecutesSilently, "test_an_error_of_a_function_is_raised_once", {"how": "copy"}),
    (ExecutesSilently, "test_an_error_of_a_destroyed_stream_is_raised_by_the_device", {}),
    (ExecutesElsewhere, "test_launch_host_function_reaches_device_memory", {"which": "created"}),
    (NoDetails, "test_free_twice", {"kind": MemoryKind.DEVICE}),
    (AcceptsAnyStream, "test_unknown_stream", {"call": "query", "gone": True}),
]


class Suite(DriverTests):
    """`DriverTests`, called directly; pytest does not collect a class of this name."""

    strict = True

    def __init__(self, wrapper: Callable[[Driver], Driver]) -> None:
        self.wrapper = wrapper
        if wrapper is not FaultyDriver:
            self.grace = 0.5  # on a busy machine a fault may take a moment to show

    def make_backend(self) -> Backend:
        backend = HostBackend()
        backend.configure({"strict": True, "devices": 2})
        return backend

    def wrap(self, driver: Driver) -> Driver:
        token = driver.enter()  # `spoil` may call the driver
        try:
            return self.wrapper(driver)
        finally:
            driver.exit(token)


@pytest.fixture
def short_patience(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let holds expire soon: faulty drivers wait where they must not."""
    from devmem.testing.driver_fixture import DriverFixture
    from devmem.testing.stream_hold import StreamHold

    monkeypatch.setattr(
        DriverFixture,
        "hold",
        lambda self, stream, **options: StreamHold(self.driver, stream, **{**options, "patience": 0.8}),
    )


def failures(broken: type) -> tuple[type[BaseException], ...]:
    """Two faults show as an error of the driver."""
    return (*FAILURES, BackendError) if broken in (SaysOnlyThatItFailed, WrongSize) else FAILURES


def run(suite: Any, test: str, arguments: dict[str, Any]) -> None:
    with suite.opened() as fixture:
        getattr(suite, test)(fixture, **arguments)


CASES = [pytest.param(*case, id=f"{case[0].__name__}-{case[1]}") for case in BROKEN]


@pytest.mark.usefixtures("short_patience")
@pytest.mark.parametrize(("broken", "test", "arguments"), CASES)
def test_a_broken_driver_fails(broken: type[Broken], test: str, arguments: dict[str, Any]) -> None:
    with pytest.raises(failures(broken)):
        run(Suite(broken), test, arguments)


@pytest.mark.parametrize(("test", "arguments"), [pytest.param(*case[1:], id=case[1]) for case in BROKEN])
def test_a_sound_driver_does_not(test: str, arguments: dict[str, Any]) -> None:
    """The same tests pass without the fault."""
    run(Suite(FaultyDriver), test, arguments)


# -- resources ---------------------------------------------------------------------------------------------------------


class Sound:
    """A correct resource that caches freed blocks by stream. Each subclass adds one fault."""

    stream_ordered = True

    def __init__(self) -> None:
        self.driver: Any = None
        self.kept: dict[tuple[int, int], list[int]] = {}

    def bind(self, driver: Driver) -> None:
        self.driver = driver

    def allocate(self, nbytes: int, stream: int) -> int:
        if nbytes == 0:
            return 0
        kept = self.kept.get((nbytes, stream))
        return kept.pop() if kept else self.driver.alloc(nbytes, stream)

    def deallocate(self, ptr: int, nbytes: int, stream: int) -> None:
        if ptr:
            self.kept.setdefault((nbytes, stream), []).append(ptr)

    @property
    def cached_bytes(self) -> int:
        return sum(nbytes * len(kept) for (nbytes, _), kept in self.kept.items())

    def trim(self, keep_bytes: int) -> None:
        self.driver.synchronize()
        for (nbytes, stream), kept in self.kept.items():
            while kept:
                self.driver.free(kept.pop(), nbytes, stream)
        self.kept = {}


class ForgetsStreams(Sound):
    def allocate(self, nbytes: int, stream: int) -> int:
        return super().allocate(nbytes, 0) if self.kept.get((nbytes, 0)) else super().allocate(nbytes, stream)

    def deallocate(self, ptr: int, nbytes: int, stream: int) -> None:
        super().deallocate(ptr, nbytes, 0)


class Waits(Sound):
    def deallocate(self, ptr: int, nbytes: int, stream: int) -> None:
        self.driver.stream_synchronize(stream)
        super().deallocate(ptr, nbytes, stream)


class NeverTrims(Sound):
    def trim(self, keep_bytes: int) -> None:
        pass


class Leaks(Sound):
    def deallocate(self, ptr: int, nbytes: int, stream: int) -> None:
        pass


class SharesBlocks(Sound):
    last = 0

    def allocate(self, nbytes: int, stream: int) -> int:
        if self.last and nbytes == 5000:
            return self.last
        self.last = super().allocate(nbytes, stream)
        return self.last


class MisalignsBlocks(Sound):
    def allocate(self, nbytes: int, stream: int) -> int:
        return super().allocate(nbytes + 8, stream) + 8

    def deallocate(self, ptr: int, nbytes: int, stream: int) -> None:
        super().deallocate(ptr - 8, nbytes + 8, stream)


class TakesZero(Sound):
    def allocate(self, nbytes: int, stream: int) -> int:
        return super().allocate(max(nbytes, 1), stream)


class WrongSize(Sound):
    def trim(self, keep_bytes: int) -> None:
        self.driver.synchronize()
        for (nbytes, stream), kept in self.kept.items():
            for ptr in kept:
                self.driver.free(ptr, nbytes + 1, stream)
        self.kept = {}


class LosesWhatFailed(Sound):
    def allocate(self, nbytes: int, stream: int) -> int:
        ptr = super().allocate(nbytes, stream)
        if ptr:
            self.driver.fill(ptr, 0, 1, nbytes, stream)  # if this fails, the block is lost
        return ptr


BROKEN_RESOURCES: list[tuple[type[Sound], str, dict[str, Any]]] = [
    (ForgetsStreams, "test_stream_ordered_memory_reaches_no_other_stream_early", {"other": "created"}),
    (Waits, "test_stream_ordered_deallocate_does_not_wait", {}),
    (NeverTrims, "test_trim", {}),
    (Leaks, "test_deallocate_then_allocate", {}),
    (SharesBlocks, "test_out_of_memory_leaves_it_usable", {}),
    (MisalignsBlocks, "test_allocate_and_deallocate", {"nbytes": 1000}),
    (TakesZero, "test_zero_bytes_are_address_zero", {}),
    (WrongSize, "test_allocate_and_deallocate", {"nbytes": 1000}),
    (LosesWhatFailed, "test_every_failure_of_the_driver", {"repeat": False}),
]


class ResourceSuite(MemoryResourceTests):
    def __init__(self, resource: Callable[[], MemoryResource]) -> None:
        self.resource = resource

    def make_backend(self) -> Backend:
        backend = HostBackend()
        backend.configure({"strict": True})
        return backend

    def make_resource(self, driver: Driver) -> MemoryResource:
        return self.resource()


@pytest.mark.usefixtures("short_patience")
@pytest.mark.parametrize(
    ("broken", "test", "arguments"), [pytest.param(*case, id=case[0].__name__) for case in BROKEN_RESOURCES]
)
def test_a_broken_resource_fails(broken: type[Sound], test: str, arguments: dict[str, Any]) -> None:
    with pytest.raises(failures(broken)):
        run(ResourceSuite(broken), test, arguments)


@pytest.mark.parametrize(("test", "arguments"), [pytest.param(*case[1:], id=case[1]) for case in BROKEN_RESOURCES])
def test_a_sound_resource_does_not(test: str, arguments: dict[str, Any]) -> None:
    run(ResourceSuite(Sound), test, arguments)


# -- the suites as classes ---------------------------------------------------------------------------------------------


def test_a_driver_that_keeps_source_addresses_fails() -> None:
    """Such a driver passes every plain round trip: a download reads the source of the upload again."""

    class Remembers(Broken):
        def spoil(self) -> None:
            self.sources: dict[int, int] = {}

        def copy(self, dst: int, src: int, nbytes: int, kind: CopyKind, stream: int, *, blocking: bool) -> bool:
            if kind is CopyKind.H2D:
                self.sources[dst] = src
            elif kind is CopyKind.D2H and src in self.sources:
                ctypes.memmove(dst, self.sources[src], nbytes)
                return False
            return super().copy(dst, src, nbytes, kind, stream, blocking=blocking)

    with pytest.raises(FAILURES):
        run(Suite(Remembers), "test_uploads_are_snapshots", {})


def test_the_base_class_is_not_collected() -> None:
    assert not DriverTests.__name__.startswith("Test")
    assert not MemoryResourceTests.__name__.startswith("Test")


@pytest.mark.parametrize("suite", [DriverTests, MemoryResourceTests])
def test_no_test_hides_another(suite: type) -> None:
    names = [name for base in suite.__mro__ for name in vars(base) if name.startswith("test_")]
    assert len(names) == len(set(names)), [name for name in names if names.count(name) > 1]


def test_hooks_must_be_filled_in() -> None:
    with pytest.raises(NotImplementedError, match="make_backend"):
        DriverTests().make_backend()
    with pytest.raises(NotImplementedError, match="make_resource"):
        MemoryResourceTests().make_resource(None)  # type: ignore[arg-type]
