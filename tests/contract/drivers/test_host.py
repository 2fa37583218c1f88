"""The host backend against the published suite: strict, as the executable specification, and plain."""

from __future__ import annotations

from devmem.backends.host.hooks import HostBackend
from devmem.spi.driver import Backend
from devmem.testing import DriverTests, FaultyBackend


class TestStrictHost(DriverTests):
    strict = True

    def make_backend(self) -> Backend:
        backend = HostBackend()
        backend.configure({"strict": True, "devices": 2})
        return backend


class TestSecondStrictDevice(TestStrictHost):
    ordinal = 1


class TestPlainHost(DriverTests):
    def make_backend(self) -> Backend:
        backend = HostBackend()
        backend.configure({"strict": False, "devices": 2})
        return backend


class TestHostInsideFaulty(DriverTests):
    """A `FaultyBackend` with nothing armed passes for what it wraps, capabilities and all."""

    strict = True

    def make_backend(self) -> Backend:
        backend = FaultyBackend(HostBackend())
        backend.configure({"strict": True, "devices": 2})
        return backend
