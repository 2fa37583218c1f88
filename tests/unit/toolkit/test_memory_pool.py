"""A device's own pools."""

from types import SimpleNamespace

import pytest

from devmem.spi.errors import BackendError
from devmem.toolkit.memory import MemoryPool


def test_where_one_pool_cannot_be_destroyed_the_other_is():
    pool, asked = MemoryPool.__new__(MemoryPool), []

    def destroy(handle):
        asked.append(handle)
        raise BackendError("it fails", backend="x", call="MemPoolDestroy", code=1, name="FAILS")

    pool._functions, pool.handle, pool.decompressible = SimpleNamespace(MemPoolDestroy=destroy), "own", "second"
    with pytest.raises(BackendError, match="it fails"):
        pool.destroy()
    assert asked == ["own", "second"]
    pool.destroy()
    assert len(asked) == 2
