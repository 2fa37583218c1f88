"""Wrong calls are refused with a typed error and no harm done. Only for drivers that promise it: see `Harness.strict`."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import numpy as np
import pytest

from devmem.spi.errors import BackendError
from devmem.spi.types import LEGACY_STREAM, CopyKind, MemoryKind

from .driver_fixture import Harness, Rig, address, flip, pattern, same
from .driver_memory import described

#: No handle and no address: not canonical, not aligned.
NOWHERE = 0x00DE_AD00_0001


class ErrorChecks(Harness):
    @contextmanager
    def refused(self, rig: Rig) -> Iterator[None]:
        """The block raises a BackendError that is complete, and the device is as usable as before."""
        free, _ = rig.driver.memory_info()
        with pytest.raises(BackendError) as caught:
            yield
        described(caught.value, rig)
        assert rig.driver.memory_info()[0] == free
        data = pattern(1000)
        ptr = rig.device(data)
        assert same(rig.read(ptr, 1000), data)
        rig.free(ptr)

    @pytest.mark.parametrize("call", ["synchronize", "query", "copy", "fill", "record", "wait", "destroy"])
    @pytest.mark.parametrize("gone", [True, False], ids=["destroyed", "never made"])
    def test_unknown_stream(self, rig: Rig, call: str, gone: bool) -> None:
        rig.need_strict(self.checks_handles)
        driver, ptr, event, data = rig.driver, rig.alloc(100), rig.event(), pattern(100)
        stream = driver.stream_create(0, True) if gone else NOWHERE
        if gone:
            driver.stream_destroy(stream)
        rig.write(ptr, data)
        calls: dict[str, Callable[[], object]] = {
            "synchronize": lambda: driver.stream_synchronize(stream),
            "query": lambda: driver.stream_query(stream),
            "copy": lambda: driver.copy(ptr, address(flip(data)), 100, CopyKind.H2D, stream, blocking=True),
            "fill": lambda: driver.fill(ptr, 1, 1, 100, stream),
            "record": lambda: driver.event_record(event, stream),
            "wait": lambda: driver.stream_wait(stream, event),
            "destroy": lambda: driver.stream_destroy(stream),
        }
        with self.refused(rig):
            calls[call]()
        assert same(rig.read(ptr, 100), data)

    @pytest.mark.parametrize("call", ["synchronize", "query", "record", "wait", "destroy", "elapsed"])
    @pytest.mark.parametrize("gone", [True, False], ids=["destroyed", "never made"])
    def test_unknown_event(self, rig: Rig, call: str, gone: bool) -> None:
        rig.need_strict(self.checks_handles)
        driver, good, stream = rig.driver, rig.event(timing=True), rig.stream()
        driver.event_record(good, stream)
        event = driver.event_create(True) if gone else NOWHERE
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
        with self.refused(rig):
            calls[call]()

    @pytest.mark.parametrize("kind", list(MemoryKind))
    def test_free_twice(self, rig: Rig, kind: MemoryKind) -> None:
        rig.need_strict()
        rig.need_kind(kind)
        ptr = rig.driver.alloc(1000, LEGACY_STREAM, kind)
        rig.driver.free(ptr, 1000, LEGACY_STREAM, kind)
        with self.refused(rig):
            rig.driver.free(ptr, 1000, LEGACY_STREAM, kind)

    def test_free_of_what_was_never_allocated(self, rig: Rig) -> None:
        rig.need_strict()
        with self.refused(rig):
            rig.driver.free(NOWHERE, 1000, LEGACY_STREAM)

    def test_free_inside_of_a_block(self, rig: Rig) -> None:
        rig.need_strict(self.checks_addresses)
        ptr = rig.device(pattern(1000))
        with self.refused(rig):
            rig.driver.free(ptr + 256, 744, LEGACY_STREAM)
        assert same(rig.read(ptr, 1000), pattern(1000))

    @pytest.mark.parametrize("kind", list(CopyKind))
    @pytest.mark.parametrize("wrong", ["freed", "never allocated", "too long"])
    def test_copy_of_bad_addresses(self, rig: Rig, kind: CopyKind, wrong: str) -> None:
        rig.need_strict(self.checks_addresses)
        host, other = np.zeros(100_000, np.uint8), rig.alloc(100_000)
        if wrong == "freed":  # last, or the next allocation may be at the same address
            bad = rig.alloc(100_000)
            rig.free(bad)
        else:
            bad = rig.alloc(1000) if wrong == "too long" else NOWHERE
        dst, src = {
            CopyKind.H2D: (bad, address(host)),
            CopyKind.D2H: (address(host), bad),
            CopyKind.D2D: (other, bad),
        }[kind]
        with self.refused(rig):
            rig.driver.copy(dst, src, 100_000, kind, rig.side, blocking=True)
        assert not host.any()

    @pytest.mark.parametrize("wrong", ["freed", "never allocated", "too long"])
    def test_fill_of_bad_addresses(self, rig: Rig, wrong: str) -> None:
        rig.need_strict(self.checks_addresses)
        if wrong == "freed":
            bad = rig.alloc(100_000)
            rig.free(bad)
        else:
            bad = rig.alloc(1000) if wrong == "too long" else NOWHERE - 1
        with self.refused(rig):
            rig.driver.fill(bad, 0, 1, 100_000, rig.side)

    def test_elapsed_needs_recorded_events_with_timing(self, rig: Rig) -> None:
        rig.need_strict()
        good, unrecorded, untimed = rig.event(timing=True), rig.event(timing=True), rig.event(timing=False)
        rig.driver.event_record(good, rig.side)
        rig.driver.event_record(untimed, rig.side)
        rig.driver.stream_synchronize(rig.side)
        for other in (unrecorded, untimed):
            with self.refused(rig):
                rig.driver.event_elapsed(good, other)
            with self.refused(rig):
                rig.driver.event_elapsed(other, good)

    def test_elapsed_needs_completed_events(self, rig: Rig) -> None:
        rig.need_strict()
        stream, start, end = rig.stream(), rig.event(timing=True), rig.event(timing=True)
        rig.driver.event_record(start, stream)
        rig.driver.event_synchronize(start)
        with rig.hold(stream):
            rig.driver.event_record(end, stream)
            with pytest.raises(BackendError) as caught:
                rig.driver.event_elapsed(start, end)
        described(caught.value, rig)
