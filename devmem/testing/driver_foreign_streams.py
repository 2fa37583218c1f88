"""Optional: streams of another library, with one that an author gives by `ConformanceSuite.foreign_stream`."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager

import pytest

from devmem.spi.driver import Driver, SupportsForeignStreams, SupportsStreamOrigin
from devmem.spi.errors import BackendError
from devmem.spi.types import LEGACY_STREAM, PER_THREAD_STREAM, Capability

from .driver_fixture import RETURN_TIMEOUT, ConformanceSuite, DriverFixture
from .driver_streams import Upload
from .stream_hold import entered


class ForeignStreamChecks(ConformanceSuite):
    @contextmanager
    def foreign(self, driver: Driver) -> Iterator[tuple[SupportsForeignStreams, object, Callable[[], object]]]:
        """The driver, a stream of another library, and that library's wait for it."""
        assert isinstance(driver, SupportsForeignStreams)
        with self.foreign_stream(driver) as made:
            if made is None:
                pytest.skip(
                    "'foreign_streams' is declared and not tested: foreign_stream() of the test class has to yield one"
                )
            yield driver, *made

    def test_a_foreign_stream_is_taken(self, fixture: DriverFixture) -> None:
        fixture.need(Capability.FOREIGN_STREAMS)
        upload, own = Upload(fixture), [fixture.stream() for _ in range(20)]
        with self.foreign(fixture.driver) as (driver, theirs, _):
            handle = driver.stream_from(theirs)
            assert isinstance(handle, int)
            assert handle not in (0, LEGACY_STREAM, PER_THREAD_STREAM, *own), "another stream's handle"
            assert driver.stream_from(theirs) == handle, "one stream has one handle"
            upload.enqueue(handle)
            fixture.driver.stream_synchronize(handle)
            assert upload.arrived
            limit = (
                time.monotonic() + RETURN_TIMEOUT
            )  # a driver may have to ask by a marker, which is done a moment later
            while not fixture.driver.stream_query(handle):
                assert time.monotonic() < limit, "idle, and never said to be"

    def test_work_on_a_foreign_stream_is_waited_for_by_its_library(self, fixture: DriverFixture) -> None:
        """It is on that stream, and not on one of the driver's own."""
        fixture.need(Capability.FOREIGN_STREAMS)
        upload = Upload(fixture)
        with self.foreign(fixture.driver) as (driver, theirs, wait):
            handle = driver.stream_from(theirs)
            with fixture.hold(handle) as hold:
                upload.enqueue(handle)
                waiting = fixture.run_in_thread(wait)
                assert not waiting.done.wait(self.grace), "the stream's library sees no work on it"
                assert not upload.arrived
                hold.release()
                waiting.finish()
            assert upload.arrived

    def test_a_foreign_stream_is_ordered_with_the_drivers_own(self, fixture: DriverFixture) -> None:
        """The order is by events, in both directions."""
        fixture.need(Capability.FOREIGN_STREAMS)
        own, event = fixture.stream(), fixture.event()
        with self.foreign(fixture.driver) as (driver, theirs, _):
            handle = driver.stream_from(theirs)
            for first, second in ((handle, own), (own, handle)):
                early, late = Upload(fixture, seed=1), Upload(fixture, seed=2)
                with fixture.hold(first) as hold:
                    early.enqueue(first)
                    fixture.driver.event_record(event, first)
                    fixture.driver.stream_wait(second, event)
                    late.enqueue(second)
                    assert fixture.driver.stream_query(first) is False
                    assert fixture.stays_pending(second)
                    assert not early.arrived and not late.arrived
                    hold.release()
                    fixture.driver.stream_synchronize(second)
                assert early.arrived and late.arrived

    def test_device_synchronize_waits_for_a_foreign_stream(self, fixture: DriverFixture) -> None:
        fixture.need(Capability.FOREIGN_STREAMS)
        upload = Upload(fixture)
        with self.foreign(fixture.driver) as (driver, theirs, _):
            handle = driver.stream_from(theirs)
            with fixture.hold(handle) as hold:
                upload.enqueue(handle)
                waiting = fixture.run_in_thread(fixture.driver.synchronize)
                assert not waiting.done.wait(self.grace), "returned while a foreign stream was busy"
                hold.release()
                waiting.finish()
            assert upload.arrived

    def test_a_foreign_stream_is_not_destroyed_with_the_device(self) -> None:
        with ExitStack() as library:
            with self.opened() as fixture:
                fixture.need(Capability.FOREIGN_STREAMS)
                driver, theirs, wait = library.enter_context(self.foreign(fixture.driver))
                upload, handle = Upload(fixture), driver.stream_from(theirs)
                upload.enqueue(handle)
                fixture.driver.stream_synchronize(handle)
                assert upload.arrived
            wait()  # by its own library

    def test_every_number_is_not_a_stream(self, fixture: DriverFixture) -> None:
        fixture.need(Capability.FOREIGN_STREAMS)
        assert isinstance(fixture.driver, SupportsForeignStreams)
        with pytest.raises(TypeError):
            fixture.driver.stream_from(object())
        with pytest.raises(BackendError):
            fixture.driver.stream_from(0x0DEA_D000)
        assert fixture.driver.stream_query(fixture.stream())

    def test_a_stream_tells_whether_it_is_the_devices(self, fixture: DriverFixture) -> None:
        fixture.need(Capability.STREAM_ORIGIN)
        driver = fixture.driver
        assert isinstance(driver, SupportsStreamOrigin)
        assert driver.stream_refusal(fixture.stream()) == ""
        other = fixture.other_device()
        with entered(other.driver):
            foreign = other.stream()
        assert driver.stream_refusal(foreign), "a stream of another device"
