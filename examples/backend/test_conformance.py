"""devmem's own suite, run on this plugin: all that the author of a backend has to write."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from devmem.spi.driver import Backend, Driver
from devmem.testing import DriverTests

from devmem_example_backend.backend import ExampleBackend
from devmem_example_backend.streams import Stream


class TestExampleDriver(DriverTests):
    strict = True  # wrong calls raise an error

    def make_backend(self) -> Backend:
        backend = ExampleBackend()
        backend.configure({"devices": 2})
        return backend

    @contextmanager
    def foreign_stream(self, driver: Driver) -> Iterator[tuple[object, Callable[[], object]]]:
        stream = Stream()
        yield stream, stream.wait
        stream.end()
