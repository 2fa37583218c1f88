"""The example plugin's backend and memory resource against the published suites, from its sources."""

from __future__ import annotations

import sys
from pathlib import Path

from devmem.spi.driver import Backend, Driver
from devmem.spi.memory import MemoryResource
from devmem.testing import DriverTests, FaultyBackend, MemoryResourceTests

sys.path.insert(0, str(Path(__file__).parents[2] / "plugin_pkg" / "src"))
try:
    from devmem_example_backend.backend import ExampleBackend
    from devmem_example_backend.memory import BumpMemory
finally:
    sys.path.pop(0)


class TestExampleDriver(DriverTests):
    strict = True

    def make_backend(self) -> Backend:
        return ExampleBackend()


class TestExampleInsideFaulty(TestExampleDriver):
    """`FaultyBackend` with nothing armed is a backend like any other."""

    def make_backend(self) -> Backend:
        return FaultyBackend(ExampleBackend())


class TestBumpMemory(MemoryResourceTests):
    def make_backend(self) -> Backend:
        return ExampleBackend()

    def make_resource(self, driver: Driver) -> MemoryResource:
        return BumpMemory()
