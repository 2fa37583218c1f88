"""The addresses of live blocks, which the compiled core keeps: none is lost, and each is given back once."""

from __future__ import annotations

import numpy as np
import pytest
from table_driver import TableBackend

import devmem as dm
from devmem import _native
from devmem._core.device.device import current_open_device

pytestmark = pytest.mark.skipif(_native.core is None, reason=_native.why)
HOST = np.arange(16.0)


@pytest.fixture
def backend():
    made = TableBackend("live-blocks")
    dm.register_backend(made)
    try:
        with dm.use_backend(made.name):
            yield made
    finally:
        dm.unregister_backend(made.name)


def test_an_interrupt_while_a_device_is_closed_leaves_no_block_of_the_core_s(backend):
    arrays = [dm.to_device(HOST) for _ in range(3)]
    addresses = {array.ptr for array in arrays}
    heap, freed = current_open_device().memory.stacks.heap, []

    def interrupted(ptr, nbytes, stream):
        backend.driver.free_async(ptr, nbytes, stream)
        freed.append(ptr)
        if len(freed) == 1:
            raise KeyboardInterrupt

    heap.deallocate = interrupted
    with pytest.raises(KeyboardInterrupt):
        dm.close()
    assert len(freed) == len(addresses) and set(freed) == addresses
    assert backend.driver.memory == {}
