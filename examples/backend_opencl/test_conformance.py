"""devmem's conformance suite, and what this backend adds: a user's own queue."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import numpy as np
import pyopencl as cl
import pytest

import devmem
from devmem.spi.driver import Backend, Driver
from devmem.spi.errors import BackendError
from devmem.testing import DriverTests

from devmem_opencl import OpenCLBackend
from devmem_opencl.driver import context_of


class TestOpenCL(DriverTests):
    strict = True
    checks_addresses = False  # OpenCL leaves wrong addresses undefined

    def make_backend(self) -> Backend:
        return OpenCLBackend()

    @contextmanager
    def foreign_stream(self, driver: Driver) -> Iterator[tuple[object, Callable[[], object]]]:
        queue = cl.CommandQueue(context_of(OpenCLBackend()._devices()[self.ordinal]))
        yield queue, queue.finish


def test_a_queue_of_the_users_is_a_stream() -> None:
    with devmem.use_backend("opencl"):
        device = OpenCLBackend()._devices()[0]
        queue = cl.CommandQueue(context_of(device))
        with pytest.raises(TypeError):
            devmem.external_stream(object())
        with pytest.raises(BackendError, match="another device's or context's queue"):
            devmem.external_stream(cl.CommandQueue(cl.Context([device])))
        stream = devmem.external_stream(queue)
        array = devmem.to_device(np.arange(1000), stream=stream)
        assert array.copy_to_host(stream=queue).tolist() == list(range(1000))
        assert not hasattr(stream, "__cuda_stream__")
