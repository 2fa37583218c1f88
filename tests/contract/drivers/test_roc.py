"""The ROCm backend against the published suite, through every provider that is installed: on whatever runtime there is."""

from __future__ import annotations

import os

import pytest

from devmem.backends.roc.binding import installed
from devmem.backends.roc.hooks import RocBackend
from devmem.spi.driver import Backend
from devmem.testing import DriverTests

_reason = RocBackend().unavailable()
pytestmark = pytest.mark.skipif(_reason is not None, reason=f"no HIP runtime, real or emulated: {_reason}")


class Suite(DriverTests):
    provider: str
    stream_ordered = False
    # A real runtime leaves most wrong calls undefined. The emulated one does as the real one: of handles and addresses that it
    # does not know it makes what memory makes of them. What the driver itself refuses is in roc/test_traps.py.
    strict = "DEVMEM_EMULATOR" in os.environ
    checks_handles = False
    checks_addresses = False

    def make_backend(self) -> Backend:
        backend = RocBackend()
        backend.configure({"provider": self.provider, "stream_ordered": self.stream_ordered})
        return backend

    def current(self) -> object:
        from devmem.backends.roc.runtime import runtime

        found = runtime("ctypes")
        return found.functions(found.errors()).GetDevice()


@pytest.mark.skipif(not installed("rocm"), reason="hip-python 10 is not installed")
class TestRocm(Suite):
    provider = "rocm"


@pytest.mark.skipif(not installed("hip"), reason="hip-python 7 is not installed")
class TestHip(Suite):
    provider = "hip"


class TestCtypes(Suite):
    provider = "ctypes"


class TestPool(Suite):
    """With hipMallocAsync, which is not the default."""

    provider = "auto"
    stream_ordered = True
