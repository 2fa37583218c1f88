"""The driver that does nothing is a driver: programs run over it, and it gives each thing an address of its own."""

from __future__ import annotations

import numpy as np
import pytest

import devmem as dm
from devmem.spi.driver import Driver
from devmem.spi.types import Capability
from devmem.testing import NullBackend, NullDriver


@pytest.mark.parametrize("capabilities", [{Capability.STREAM_ORDERED}, set()], ids=["stream-ordered", "plain"])
def test_a_program_runs_and_no_byte_moves(capabilities):
    made = []

    def driver(name, ordinal):
        made.append(NullDriver(name, ordinal, capabilities))
        return made[-1]

    dm.register_backend(NullBackend("idle", driver))
    try:
        with dm.use_backend("idle"):
            stream, out = dm.stream(), np.full(8, 7.0)
            one, two = dm.to_device(np.arange(8.0), stream), dm.to_device(np.arange(8.0))
            assert one.copy_to_host(out, stream) is out
            stream.synchronize()
            assert out.tolist() == [7.0] * 8
            assert one.ptr != two.ptr
    finally:
        dm.unregister_backend("idle")
    [driver] = made
    assert [name for name in vars(Driver) if not name.startswith("_") and not hasattr(driver, name)] == []
    assert driver.info.capabilities == capabilities
