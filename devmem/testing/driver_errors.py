"""Wrong calls raise a typed error and change nothing. For strict drivers only: see `ConformanceSuite.strict`."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import numpy as np
import pytest

from devmem.spi.errors import BackendError
from devmem.spi.types import LEGACY_STREAM, CopyKind, MemoryKind

from .driver_fixture import ConformanceSuite, DriverFixture, address, flip, pattern, same
from .driver_memory import check_error

#: Neither a handle nor an address: not canonical and not aligned.
BAD_POINTER = 0x00DE_AD00_0001


class ErrorChecks(ConformanceSuite):
    @contextmanager
    def refused(self, fixture: DriverFixture) -> Iterator[None]:
        """The block raises a complete BackendError, and the device is usable afterwards."""
        free, _ = fixture.driver.memory_info()
        with pytest.raises(BackendError) as caught:
            yield
        check_error(caught.value, fixture)
        assert fixture.driver.memory_info()[0] == free
        data = pattern(1000)
        ptr = fixture.alloc_with(data)
        assert same(fixture.read(ptr, 1000), data)
        fixture.free(ptr)

    @pytest.mark.parametrize("call", ["synchronize", "query", "copy", "fill", "record", "wait", "destroy"])
    @pytest.mark.parametrize("gone", [True, False], ids=["destroyed", "never made"])
    def test_a_stream_unknown_or_destroyed_is_refused(self, fixture: DriverFixture, call: str, gone: bool) -> None:
        fixture.need_strict(self.checks_handles)
        driver, ptr, event, data = fixture.driver, fixture.alloc(100), fixture.event(), pattern(100)
        stream = driver.stream_create(0, True) if gone else BAD_POINTER
        if gone:
            driver.stream_destroy(stream)
        fixture.write(ptr, data)
        calls: dict[str, Callable[[], object]] = {
            "synchronize": lambda: driver.stream_synchronize(stream),
            "query": lambda: driver.stream_query(stream),
            "copy": lambda: driver.copy(ptr, address(flip(data)), 100, CopyKind.H2D, stream, blocking=True),
            "fill": lambda: driver.fill(ptr, 1, 1, 100, stream),
            "record": lambda: driver.event_record(event, stream),
            "wait": lambda: driver.stream_wait(stream, event),
            "destroy": lambda: driver.stream_destroy(stream),
        }
        with self.refused(fixture):
            calls[call]()
        assert same(fixture.read(ptr, 100), data)

    @pytest.mark.parametrize("call", ["synchronize", "query", "record", "wait", "destroy", "elapsed"])
    @pytest.mark.parametrize("gone", [True, False], ids=["destroyed", "never made"])
    def test_an_event_unknown_or_destroyed_is_refused(self, fixture: DriverFixture, call: str, gone: bool) -> None:
        fixture.need_strict(self.checks_handles)
        driver, good, stream = fixture.driver, fixture.event(timing=True), fixture.stream()
        driver.event_record(good, stream)
        event = driver.event_create(True) if gone else BAD_POINTER
        if gone:
            driver.event_destroy(event)
        calls: dict[str, Callable[[], object]] = {
            "synchronize": lambda: driver.event_synchronize(event),
            "query": lambda: driver.event_query(event),
            "record": lambda: driver.event_record(event, stream),
            "wait": lambda: driver.stream_wait(stream, event),
            "destroy": lambda: driver.event_destroy(event),
            "elapsed": lambda: driver.event_elapsed(good, event),
        }
        with self.refused(fixture):
            calls[call]()

    def test_errors_have_the_call_and_the_code(self, fixture: DriverFixture) -> None:
        """And the backend's name and the code's; an error of a free as much as one of an allocation."""
        fixture.need_strict()
        ptr = fixture.driver.alloc(1000, LEGACY_STREAM)
        fixture.driver.free(ptr, 1000, LEGACY_STREAM)
        wrong: list[Callable[[], object]] = [
            lambda: fixture.driver.free(ptr, 1000, LEGACY_STREAM),
            lambda: fixture.driver.alloc(fixture.driver.memory_info()[1] + (1 << 20), LEGACY_STREAM),
        ]
        for call in wrong:
            with pytest.raises(BackendError) as caught:
                call()
            check_error(caught.value, fixture)

    @pytest.mark.parametrize("kind", list(MemoryKind))
    def test_freeing_twice_is_refused(self, fixture: DriverFixture, kind: MemoryKind) -> None:
        fixture.need_strict()
        fixture.need_kind(kind)
        ptr = fixture.driver.alloc(1000, LEGACY_STREAM, kind)
        fixture.driver.free(ptr, 1000, LEGACY_STREAM, kind)
        with self.refused(fixture):
            fixture.driver.free(ptr, 1000, LEGACY_STREAM, kind)

    def test_free_of_what_was_never_allocated(self, fixture: DriverFixture) -> None:
        fixture.need_strict()
        with self.refused(fixture):
            fixture.driver.free(BAD_POINTER, 1000, LEGACY_STREAM)

    def test_free_inside_of_a_block(self, fixture: DriverFixture) -> None:
        fixture.need_strict(self.checks_addresses)
        ptr = fixture.alloc_with(pattern(1000))
        with self.refused(fixture):
            fixture.driver.free(ptr + 256, 744, LEGACY_STREAM)
        assert same(fixture.read(ptr, 1000), pattern(1000))

    @pytest.mark.parametrize("kind", list(CopyKind))
    @pytest.mark.parametrize("wrong", ["freed", "never allocated", "too long"])
    @pytest.mark.parametrize("blocking", [True, False], ids=["blocking", "not blocking"])
    def test_copy_of_bad_addresses(self, fixture: DriverFixture, kind: CopyKind, wrong: str, blocking: bool) -> None:
        fixture.need_strict(self.checks_addresses)
        host, other = np.zeros(100_000, np.uint8), fixture.alloc(100_000)
        if wrong == "freed":  # last, or the next allocation may be at the same address
            bad = fixture.alloc(100_000)
            fixture.free(bad)
        else:
            bad = fixture.alloc(1000) if wrong == "too long" else BAD_POINTER
        dst, src = {
            CopyKind.H2D: (bad, address(host)),
            CopyKind.D2H: (address(host), bad),
            CopyKind.D2D: (other, bad),
        }[kind]
        with self.refused(fixture):
            fixture.driver.copy(dst, src, 100_000, kind, fixture.unheld_stream, blocking=blocking)
        assert not host.any()

    @pytest.mark.parametrize("wrong", ["freed", "never allocated", "too long"])
    def test_fill_of_bad_addresses(self, fixture: DriverFixture, wrong: str) -> None:
        fixture.need_strict(self.checks_addresses)
        if wrong == "freed":
            bad = fixture.alloc(100_000)
            fixture.free(bad)
        else:
            bad = fixture.alloc(1000) if wrong == "too long" else BAD_POINTER - 1
        with self.refused(fixture):
            fixture.driver.fill(bad, 0, 1, 100_000, fixture.unheld_stream)

    def test_elapsed_needs_recorded_events_with_timing(self, fixture: DriverFixture) -> None:
        fixture.need_strict()
        good, unrecorded, untimed = fixture.event(timing=True), fixture.event(timing=True), fixture.event(timing=False)
        fixture.driver.event_record(good, fixture.unheld_stream)
        fixture.driver.event_record(untimed, fixture.unheld_stream)
        fixture.driver.stream_synchronize(fixture.unheld_stream)
        for other in (unrecorded, untimed):
            with self.refused(fixture):
                fixture.driver.event_elapsed(good, other)
            with self.refused(fixture):
                fixture.driver.event_elapsed(other, good)

    def test_elapsed_needs_completed_events(self, fixture: DriverFixture) -> None:
        fixture.need_strict()
        stream, start, end = fixture.stream(), fixture.event(timing=True), fixture.event(timing=True)
        fixture.driver.event_record(start, stream)
        fixture.driver.event_synchronize(start)
        with fixture.hold(stream):
            fixture.driver.event_record(end, stream)
            with pytest.raises(BackendError) as caught:
                fixture.driver.event_elapsed(start, end)
        check_error(caught.value, fixture)
