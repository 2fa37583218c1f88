"""devmem's own suites, run on this plugin: all that a plugin author has to write."""

from __future__ import annotations

from devmem.spi.driver import Backend, Driver
from devmem.spi.memory import MemoryResource
from devmem.testing import DriverTests, MemoryResourceTests

from devmem_example_backend.backend import ExampleBackend
from devmem_example_backend.memory import BumpMemory


class TestExampleDriver(DriverTests):
    strict = True

    def make_backend(self) -> Backend:
        return ExampleBackend()


class TestBumpMemory(MemoryResourceTests):
    def make_backend(self) -> Backend:
        return ExampleBackend()

    def make_resource(self, driver: Driver) -> MemoryResource:
        return BumpMemory()
