"""The host backend against the published suite: strict, as the executable specification, and plain."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest

from devmem.backends.host.hooks import HostBackend
from devmem.spi.driver import Backend, Driver
from devmem.testing import DriverTests, FaultyBackend


class Suite(DriverTests):
    @contextmanager
    def foreign_stream(self, driver: Driver) -> Iterator[tuple[object, Callable[[], object]]]:
        stream = driver.stream_create(0, True)  # its number is all that another library would have
        yield stream, lambda: driver.stream_synchronize(stream)
        driver.stream_destroy(stream)

    def test_a_foreign_stream_is_not_destroyed_with_the_device(self) -> None:
        pytest.skip("every stream of the host backend is a driver's, and ends with it")


class TestStrictHost(Suite):
    strict = True

    def make_backend(self) -> Backend:
        backend = HostBackend()
        backend.configure({"strict": True, "devices": 2})
        return backend


@pytest.mark.exhaustive  # it is as the first
class TestSecondStrictDevice(TestStrictHost):
    ordinal = 1


class TestPlainHost(Suite):
    def make_backend(self) -> Backend:
        backend = HostBackend()
        backend.configure({"strict": False, "devices": 2})
        return backend


class TestHostInsideFaulty(Suite):
    """A `FaultyBackend` with nothing armed passes for what it wraps, capabilities and all."""

    strict = True

    def make_backend(self) -> Backend:
        backend = FaultyBackend(HostBackend())
        backend.configure({"strict": True, "devices": 2})
        return backend
