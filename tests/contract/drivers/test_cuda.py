"""The CUDA backend against the published suite: on whatever driver the process has, emulated or real."""

from __future__ import annotations

import os

import pytest

from devmem.backends.cuda.hooks import CudaBackend
from devmem.spi.driver import Backend
from devmem.testing import DriverTests

_reason = CudaBackend().unavailable()
pytestmark = pytest.mark.skipif(_reason is not None, reason=f"no CUDA driver, real or emulated: {_reason}")


class TestCuda(DriverTests):
    # A real driver leaves the use of handles that it never gave out undefined.
    strict = "DEVMEM_EMULATOR" in os.environ

    def make_backend(self) -> Backend:
        return CudaBackend()
