"""Mistakes in streams, and the tests of `testing/driver_streams.py` that find them."""

from __future__ import annotations

import contextlib
import ctypes
from typing import Any

from devmem.spi.errors import BackendError
from devmem.spi.types import LEGACY_STREAM, PER_THREAD_STREAM, Capability, CopyKind, DeviceInfo

from .base import Broken, Tells
from .copies import FillWaitsForNoStream, IgnoresStreams, RunsBackwards
from .errors import AcceptsADestroyedStreamAgain


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


class StreamsAreAlwaysDone(Broken):
    def stream_query(self, stream: int) -> bool:
        return True


class SynchronizeIsNothing(Broken):
    def synchronize(self) -> None:
        pass


class StreamSynchronizeIsTheDevice(Broken):
    def stream_synchronize(self, stream: int) -> None:
        self.sound.synchronize()


class HandsOutOneStreamTwice(AcceptsADestroyedStreamAgain):
    def stream_create(self, priority: int, non_blocking: bool) -> int:
        made = super().stream_create(priority, non_blocking)
        return min(self._streams) if len(self._streams) % 2 else made


class PerThreadIsLegacy(Broken):
    """Takes the number of the per-thread default stream for that of the legacy one."""

    def stream_synchronize(self, stream: int) -> None:
        super().stream_synchronize(LEGACY_STREAM if stream == PER_THREAD_STREAM else stream)

    def copy(self, dst: int, src: int, nbytes: int, kind: CopyKind, stream: int, *, blocking: bool) -> bool:
        stream = LEGACY_STREAM if stream == PER_THREAD_STREAM else stream
        return super().copy(dst, src, nbytes, kind, stream, blocking=blocking)


class SynchronizeForgetsDefaultStreams(Broken):
    def synchronize(self) -> None:
        for stream in self._streams:
            self.sound.stream_synchronize(stream)


class SynchronizeForgetsDestroyedStreams(Broken):
    def synchronize(self) -> None:
        for stream in (LEGACY_STREAM, PER_THREAD_STREAM, *self._streams):
            self.sound.stream_synchronize(stream)


class SynchronizeForgetsBlockingStreams(Broken):
    def stream_create(self, priority: int, non_blocking: bool) -> int:
        made = super().stream_create(priority, non_blocking)
        self.__dict__.setdefault("ordinary", []).extend([made] * non_blocking)
        return made

    def synchronize(self) -> None:
        for stream in self.ordinary:
            with contextlib.suppress(BackendError):
                self.sound.stream_synchronize(stream)


class WaitsWithTheGil(Broken):
    """Each wait for work that is not done keeps the GIL; `test_suites_can_fail.py` has a process for each."""

    def stream_synchronize(self, stream: int) -> None:
        while not self.sound.stream_query(stream):
            ctypes.PyDLL(None).sleep(3600)
        super().stream_synchronize(stream)

    def event_synchronize(self, event: int) -> None:
        while not self.sound.event_query(event):
            ctypes.PyDLL(None).sleep(3600)
        super().event_synchronize(event)

    def synchronize(self) -> None:
        while not all(map(self.sound.stream_query, self._streams)):
            ctypes.PyDLL(None).sleep(3600)
        super().synchronize()

    def copy(self, dst: int, src: int, nbytes: int, kind: CopyKind, stream: int, *, blocking: bool) -> bool:
        while blocking and not self.sound.stream_query(stream):
            ctypes.PyDLL(None).sleep(3600)
        return super().copy(dst, src, nbytes, kind, stream, blocking=blocking)


class HoldsNothing(Broken):
    def spoil(self) -> None:
        self.hold, self.release = (lambda stream: 1), (lambda hold: None)


class HoldsTheDevice(Broken):
    def spoil(self) -> None:
        def hold(stream: int) -> Any:
            return [self.sound.hold(each) for each in self._streams]

        self.hold = hold
        self.release = lambda holds: [self.sound.release(each) for each in holds]


class ReleasesEveryHold(Broken):
    def spoil(self) -> None:
        held: list[int] = []

        def hold(stream: int) -> int:
            held.append(self.sound.hold(stream))
            return held[-1]

        def release(token: int) -> None:
            while held:
                self.sound.release(held.pop())

        self.hold, self.release = hold, release


class Captures(Tells):
    """Sound: no stream of the host driver ever captures."""

    def difference(self, info: DeviceInfo) -> dict[str, Any]:
        return {"capabilities": info.capabilities | {Capability.CAPTURE}}

    def capturing(self, stream: int) -> bool:
        return False


class CapturesAlways(Captures):
    sound_driver = Captures

    def capturing(self, stream: int) -> bool:
        return True


class OwnLegacyStream(Broken):
    """Sound, but for functions of the host: the legacy stream is made of a created one and of events.

    Each subclass leaves streams out of `awaited`.
    """

    def spoil(self) -> None:
        self.legacy: int = self.sound.stream_create(0, True)
        self.blocking: list[int] = []
        self.hold = lambda stream: self.sound.hold(self.in_order(stream))

    def awaited(self) -> list[int]:
        """What the legacy stream waits for."""
        return [*self.blocking, PER_THREAD_STREAM]

    def stream_create(self, priority: int, non_blocking: bool) -> int:
        stream = super().stream_create(priority, non_blocking)
        self.blocking += [] if non_blocking else [stream]
        return stream

    def in_order(self, stream: int) -> int:
        """The stream that stands for this one, once it waits for what the contract says."""
        stream = self.legacy if stream == LEGACY_STREAM else stream
        ordered = [self.legacy] if stream in (*self.blocking, PER_THREAD_STREAM) else []
        for earlier in self.awaited() if stream == self.legacy else ordered:
            event = self.sound.event_create(False)
            self.sound.event_record(event, earlier)
            self.sound.stream_wait(stream, event)
            self.sound.event_destroy(event)
        return stream

    def copy(self, dst: int, src: int, nbytes: int, kind: CopyKind, stream: int, *, blocking: bool) -> bool:
        return super().copy(dst, src, nbytes, kind, self.in_order(stream), blocking=blocking)

    def stream_wait(self, stream: int, event: int) -> None:
        super().stream_wait(self.in_order(stream), event)

    def event_record(self, event: int, stream: int) -> None:
        super().event_record(event, self.in_order(stream))

    def stream_query(self, stream: int) -> bool:
        return super().stream_query(self.legacy if stream == LEGACY_STREAM else stream)

    def stream_synchronize(self, stream: int) -> None:
        super().stream_synchronize(self.legacy if stream == LEGACY_STREAM else stream)


class LegacyWaitsForTheNewestOnly(OwnLegacyStream):
    """Of the streams that were created as blocking."""

    sound_driver = OwnLegacyStream

    def awaited(self) -> list[int]:
        return [*self.blocking[-1:], PER_THREAD_STREAM]


class LegacyDoesNotWaitForPerThread(OwnLegacyStream):
    sound_driver = OwnLegacyStream

    def awaited(self) -> list[int]:
        return self.blocking


class SynchronizeForgetsFills(Broken):
    """Streams on which nothing but fills was enqueued."""

    def spoil(self) -> None:
        self.filled: set[int] = set()

    def fill(self, dst: int, value: int, width: int, count: int, stream: int) -> None:
        self.filled.add(stream)
        super().fill(dst, value, width, count, stream)

    def copy(self, dst: int, src: int, nbytes: int, kind: CopyKind, stream: int, *, blocking: bool) -> bool:
        self.filled.discard(stream)
        return super().copy(dst, src, nbytes, kind, stream, blocking=blocking)

    def synchronize(self) -> None:
        if not self.filled:
            super().synchronize()
        for stream in {LEGACY_STREAM, PER_THREAD_STREAM, *self._streams} - self.filled:
            self.sound.stream_synchronize(stream)


class SmallWorkOvertakes(FillWaitsForNoStream):
    """At most 64 bytes, within the device."""

    def fill(self, dst: int, value: int, width: int, count: int, stream: int) -> None:
        (super() if width * count <= 64 else self.sound).fill(dst, value, width, count, stream)

    def copy(self, dst: int, src: int, nbytes: int, kind: CopyKind, stream: int, *, blocking: bool) -> bool:
        own = self.sound.stream_create(0, True) if kind is CopyKind.D2D and nbytes <= 64 else stream
        return super().copy(dst, src, nbytes, kind, own, blocking=blocking or own != stream)


BROKEN: list[tuple[type[Broken], str, dict[str, Any]]] = [
    (IgnoresStreams, "test_held_work_is_pending_until_it_is_released", {"which": "created"}),
    (IgnoresStreams, "test_held_work_runs_in_order", {}),
    (RunsBackwards, "test_work_runs_in_order", {}),
    (
        LegacyIsAnOrdinaryStream,
        "test_legacy_and_blocking_streams_wait_for_each_other",
        {"earlier": "blocking", "later": "legacy"},
    ),
    (
        LegacyIsAnOrdinaryStream,
        "test_legacy_and_blocking_streams_wait_for_each_other",
        {"earlier": "legacy", "later": "blocking"},
    ),
    (
        LegacyIsAnOrdinaryStream,
        "test_legacy_and_blocking_streams_wait_for_each_other",
        {"earlier": "legacy", "later": "per-thread"},
    ),
    (NonBlockingMeansNothing, "test_other_streams_do_not_wait_for_each_other", {"held": "legacy", "free": "created"}),
    (OnePerThreadStreamForAll, "test_per_thread_streams_are_one_for_each_thread", {}),
    (StreamsAreAlwaysDone, "test_held_work_is_pending_until_it_is_released", {"which": "legacy"}),
    (SynchronizeIsNothing, "test_device_synchronize_waits_for_a_held_stream", {"which": "created"}),
    (StreamSynchronizeIsTheDevice, "test_streams_are_independent", {}),
    (HandsOutOneStreamTwice, "test_streams_are_distinct", {}),
    (PerThreadIsLegacy, "test_per_thread_streams_are_one_for_each_thread", {}),
    (SynchronizeForgetsDefaultStreams, "test_device_synchronize_waits_for_a_held_stream", {"which": "legacy"}),
    (SynchronizeForgetsDefaultStreams, "test_device_synchronize_waits_for_a_held_stream", {"which": "per-thread"}),
    (SynchronizeForgetsBlockingStreams, "test_device_synchronize_waits_for_a_held_stream", {"which": "blocking"}),
    (SynchronizeForgetsDestroyedStreams, "test_device_synchronize_waits_for_a_destroyed_stream", {}),
    (HoldsNothing, "test_held_work_is_pending_until_it_is_released", {"which": "created"}),
    (HoldsTheDevice, "test_streams_are_independent", {}),
    (ReleasesEveryHold, "test_holds_nest", {}),
    (CapturesAlways, "test_streams_do_not_capture_by_themselves", {"which": "created"}),
    (LegacyWaitsForTheNewestOnly, "test_legacy_stream_waits_for_every_blocking_stream", {}),
    (
        LegacyDoesNotWaitForPerThread,
        "test_legacy_and_blocking_streams_wait_for_each_other",
        {"earlier": "per-thread", "later": "legacy"},
    ),
    (SynchronizeForgetsFills, "test_device_synchronize_waits_for_a_fill", {}),
    (SmallWorkOvertakes, "test_small_work_waits_for_its_stream", {"nbytes": 64}),
]
