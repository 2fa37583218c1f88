"""The example backend against the published suite, from its sources."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from devmem.spi.driver import Backend, Driver
from devmem.testing import DriverTests, FaultyBackend

sys.path.insert(0, str(Path(__file__).parents[3] / "examples" / "backend" / "src"))
try:
    from devmem_example_backend.backend import ExampleBackend
    from devmem_example_backend.streams import Stream
finally:
    sys.path.pop(0)


class TestExampleDriver(DriverTests):
    strict = True

    def make_backend(self) -> Backend:
        backend = ExampleBackend()
        backend.configure({"devices": 2})
        return backend

    @contextmanager
    def foreign_stream(self, driver: Driver) -> Iterator[tuple[object, Callable[[], object]]]:
        stream = Stream()
        yield stream, stream.wait
        stream.end()


class TestExampleInsideFaulty(TestExampleDriver):
    """`FaultyBackend` with nothing armed is a backend like any other."""

    def make_backend(self) -> Backend:
        return FaultyBackend(super().make_backend())
