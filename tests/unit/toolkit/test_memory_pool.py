"""A device's own pools."""

from types import SimpleNamespace

import pytest

from devmem.spi.errors import BackendError
from devmem.toolkit.driver_parts import Taken
from devmem.toolkit.memory import MemoryPool


def test_where_one_pool_cannot_be_destroyed_the_other_is():
    handles, asked = iter([1, 2]), []

    def create(record, properties):
        record.append(next(handles))

    def destroy(record, handle):
        asked.append(handle)
        raise BackendError("it fails", backend="x", call="MemPoolDestroy", code=1, name="FAILS")

    pool = MemoryPool.__new__(MemoryPool)
    pool._recorded, pool._taken = SimpleNamespace(MemPoolCreate=create, MemPoolDestroy=destroy), Taken()
    pool._pool, pool.pool_threshold, pool._kept = int, lambda nbytes: None, 0
    pool.create(None)
    pool.create(None, "decompressible")
    with pytest.raises(BackendError, match="it fails"):
        pool.destroy()
    assert asked == [1, 2]
    pool.destroy()
    assert len(asked) == 2
