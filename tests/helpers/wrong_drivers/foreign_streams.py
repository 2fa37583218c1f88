"""Mistakes in streams of other libraries, and the tests of `testing/driver_foreign_streams.py` that find them."""

from __future__ import annotations

import contextlib
from typing import Any

from devmem.spi.errors import BackendError
from devmem.spi.types import LEGACY_STREAM, PER_THREAD_STREAM

from .base import Broken


class TheirStream:
    """A stream of another library, over the driver without the mistake: a queue on its device."""

    def __init__(self, driver: Any) -> None:
        self.driver = driver.sound
        self.handle: int = self.driver.stream_create(0, True)
        self.alive = True

    def wait(self) -> None:
        assert self.alive, "the stream was destroyed"
        with contextlib.suppress(BackendError):  # the device is closed: nothing is pending
            self.driver.stream_synchronize(self.handle)


class TakesTheirStreams(Broken):
    """Sound: takes streams by the objects of their library."""

    def spoil(self) -> None:
        self.theirs: list[TheirStream] = []
        self.stream_from = self.take

    def take(self, stream: Any) -> int:
        if isinstance(stream, TheirStream):
            self.theirs.append(stream)
            return stream.handle
        return int(self.sound.stream_from(stream))


class RefusesTheirStreams(TakesTheirStreams):
    sound_driver = TakesTheirStreams
    raises = True

    def take(self, stream: Any) -> int:
        raise BackendError("no stream", backend="host", call="stream_from", code=1, name="INVALID_HANDLE")


class GivesTheirStreamsAnothersHandle(TakesTheirStreams):
    sound_driver = TakesTheirStreams

    def take(self, stream: Any) -> int:
        return max(self._streams) if isinstance(stream, TheirStream) else super().take(stream)


class GivesTheirStreamsAHandleEachTime(TakesTheirStreams):
    sound_driver = TakesTheirStreams

    def take(self, stream: Any) -> int:
        return int(self.sound.stream_create(0, True)) if isinstance(stream, TheirStream) else super().take(stream)


class WorksBesideTheirStreams(TakesTheirStreams):
    """On a stream of its own for each of theirs."""

    sound_driver = TakesTheirStreams

    def spoil(self) -> None:
        super().spoil()
        self.own: dict[object, int] = {}

    def take(self, stream: Any) -> int:
        if not isinstance(stream, TheirStream):
            return super().take(stream)
        if stream not in self.own:
            self.own[stream] = self.sound.stream_create(0, True)
        return self.own[stream]


class ForgetsTheirStreamsInOrder(TakesTheirStreams):
    """Events record nothing of them."""

    sound_driver = TakesTheirStreams

    def event_record(self, event: int, stream: int) -> None:
        if stream not in [theirs.handle for theirs in self.theirs]:
            super().event_record(event, stream)


class SynchronizeForgetsTheirStreams(TakesTheirStreams):
    sound_driver = TakesTheirStreams

    def synchronize(self) -> None:
        for stream in {LEGACY_STREAM, PER_THREAD_STREAM, *self._streams}:
            self.sound.stream_synchronize(stream)


class DestroysTheirStreams(TakesTheirStreams):
    """With the device."""

    sound_driver = TakesTheirStreams

    def close(self) -> None:
        for theirs in self.theirs:
            theirs.alive = False
        super().close()


class TakesAnythingForAStream(TakesTheirStreams):
    sound_driver = TakesTheirStreams

    def take(self, stream: Any) -> int:
        return int(stream) if isinstance(stream, int) else 0x1234


BROKEN: list[tuple[type[Broken], str, dict[str, Any]]] = [
    (RefusesTheirStreams, "test_a_foreign_stream_is_taken", {}),
    (GivesTheirStreamsAnothersHandle, "test_a_foreign_stream_is_taken", {}),
    (GivesTheirStreamsAHandleEachTime, "test_a_foreign_stream_is_taken", {}),
    (WorksBesideTheirStreams, "test_work_on_a_foreign_stream_is_waited_for_by_its_library", {}),
    (ForgetsTheirStreamsInOrder, "test_a_foreign_stream_is_ordered_with_the_drivers_own", {}),
    (SynchronizeForgetsTheirStreams, "test_device_synchronize_waits_for_a_foreign_stream", {}),
    (DestroysTheirStreams, "test_a_foreign_stream_is_not_destroyed_with_the_device", {}),
    (TakesAnythingForAStream, "test_every_number_is_not_a_stream", {}),
]
