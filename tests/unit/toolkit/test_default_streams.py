"""Default streams built of created streams and events: the order that is implied, over a driver that writes down its calls."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
from waits import together

from devmem.spi.driver import REQUIRED
from devmem.spi.errors import BackendError
from devmem.spi.types import LEGACY_STREAM, PER_THREAD_STREAM, DeviceInfo
from devmem.toolkit.default_streams import PLACES, with_default_streams


class Calls:
    """A driver whose streams are numbers from 16 on, and its events from 100 on."""

    def __init__(self) -> None:
        self.info = DeviceInfo("calls", 0, "Calls", "uuid", 1 << 20)
        self.seen: list[tuple[Any, ...]] = []
        self.streams, self.events = itertools.count(16), itertools.count(100)
        for name in REQUIRED:
            if not hasattr(self, name):
                setattr(
                    self, name, lambda *args, name=name, **keywords: self.seen.append((name, *args, *keywords.items()))
                )

    def stream_create(self, priority: int, non_blocking: bool) -> int:
        return next(self.streams)

    def event_create(self, timing: bool) -> int:
        return next(self.events)

    def stream_query(self, stream: int) -> bool:
        self.seen.append(("stream_query", stream))
        return stream != 17

    def take(self) -> list[tuple[Any, ...]]:
        seen, self.seen = self.seen, []
        return seen


@pytest.fixture
def below() -> Calls:
    return Calls()


def fill(driver: Any, stream: int) -> None:
    driver.fill(0x1000, 0, 1, 8, stream)


def filled(stream: int) -> tuple[Any, ...]:
    return "fill", 0x1000, 0, 1, 8, stream


def waited(below: Calls) -> list[tuple[int, int]]:
    """(later, earlier) of the waits that were inserted."""
    seen = below.take()
    records = [call for call in seen if call[0] == "event_record"]
    waits = [call for call in seen if call[0] == "stream_wait"]
    assert [call[1] for call in records] == [call[2] for call in waits]
    return [(wait[1], record[2]) for wait, record in zip(waits, records, strict=True)]


def test_every_method_with_a_stream_is_known() -> None:
    assert {"copy", "fill", "event_record", "stream_wait", "hold", "launch", "copy_batch", "prefetch"} <= PLACES.keys()
    assert PLACES["fill"] == 4


def test_a_wait_is_inserted_once_and_only_for_what_is_new(below: Calls) -> None:
    driver = with_default_streams(below)
    blocking = driver.stream_create(0, False)
    fill(driver, blocking)
    assert below.take() == [filled(blocking)]
    fill(driver, LEGACY_STREAM)
    assert waited(below) == [(17, blocking)]
    fill(driver, LEGACY_STREAM)
    assert waited(below) == []
    fill(driver, blocking)
    assert waited(below) == [(blocking, 17)]
    fill(driver, blocking)
    assert waited(below) == []
    fill(driver, LEGACY_STREAM)
    assert waited(below) == [(17, blocking)]


def test_non_blocking_and_unknown_streams_pass_as_they_are(below: Calls) -> None:
    driver = with_default_streams(below)
    fill(driver, LEGACY_STREAM)
    below.take()
    apart = driver.stream_create(0, True)
    for stream in (apart, 0xABC000):
        fill(driver, stream)
        assert below.take() == [filled(stream)]


def test_streams_may_be_named(below: Calls) -> None:
    driver = with_default_streams(below)
    driver.fill(0x1000, 0, 1, 8, stream=LEGACY_STREAM)
    assert below.take() == [("fill", 0x1000, 0, 1, 8, ("stream", 16))]


def test_asking_inserts_nothing_and_asks_all_blocking_streams(below: Calls) -> None:
    driver = with_default_streams(below)
    fill(driver, LEGACY_STREAM)
    below.take()
    assert driver.stream_query(LEGACY_STREAM) is True
    pending, apart = driver.stream_create(0, False), driver.stream_create(0, True)
    assert (pending, apart) == (17, 18)
    assert driver.stream_query(LEGACY_STREAM) is False
    assert driver.stream_query(apart) is True
    assert {call[0] for call in below.take()} == {"stream_query"}


def test_work_of_a_destroyed_stream_comes_before_the_legacy_stream(below: Calls) -> None:
    driver = with_default_streams(below)
    fill(driver, LEGACY_STREAM)
    gone = driver.stream_create(0, False)
    fill(driver, gone)
    below.take()
    driver.stream_destroy(gone)
    assert [call[0] for call in below.seen] == ["event_record", "stream_wait", "stream_destroy"]
    assert waited(below) == [(16, gone)]
    fill(driver, LEGACY_STREAM)
    assert below.take() == [filled(16)]


def test_each_thread_has_a_stream_until_it_ends(below: Calls) -> None:
    driver = with_default_streams(below)
    fill(driver, PER_THREAD_STREAM)
    for _ in range(2):
        together(lambda: fill(driver, PER_THREAD_STREAM))
    seen = below.take()
    assert [call for call in seen if call[0] == "fill"] == [filled(16), filled(17), filled(19)]
    assert ("stream_destroy", 17) in seen
    fill(driver, PER_THREAD_STREAM)
    assert filled(16) in below.take()


def test_a_call_that_fails_still_counts_as_enqueued(below: Calls) -> None:
    """Some of it may be on its way."""
    driver = with_default_streams(below)

    def broken(*args: Any) -> None:
        raise OSError

    below.fill = broken  # type: ignore[attr-defined]
    driver = with_default_streams(below)
    blocking = driver.stream_create(0, False)
    with pytest.raises(OSError):
        fill(driver, blocking)
    driver.copy(0x1000, 0x2000, 8, "d2d", LEGACY_STREAM, blocking=False)
    assert waited(below) == [(17, blocking)]


@pytest.mark.parametrize("verb", ["stream_query", "stream_synchronize", "fill"])
def test_a_stream_that_is_destroyed_meanwhile_is_not_asked_in_vain(below: Calls, verb: str) -> None:
    """Another thread destroys it while the legacy stream's work waits for all streams."""
    driver: Any = with_default_streams(below)
    stream = driver.stream_create(0, False)
    fill(driver, stream)
    record, calls = below.event_record, {}  # type: ignore[attr-defined]

    def gone(function: Any) -> Any:
        def call(*args: Any, **keywords: Any) -> Any:
            if stream in args and not calls.setdefault("destroyed", False):
                calls["destroyed"] = True
                driver.stream_destroy(stream)
                raise BackendError(f"the stream {stream} was destroyed", backend="calls", call="", code=1)
            return function(*args, **keywords)

        return call

    below.event_record = gone(record)  # type: ignore[attr-defined]
    for name in ("stream_query", "stream_synchronize"):
        setattr(below, name, gone(getattr(below, name)))
    driver = with_default_streams(below)
    stream = driver.stream_create(0, False)
    fill(driver, stream)
    if verb == "fill":
        fill(driver, LEGACY_STREAM)
    else:
        getattr(driver, verb)(LEGACY_STREAM)
    assert calls["destroyed"]
