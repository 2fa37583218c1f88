"""Host memory that another library exports by DLPack: an array over it is read-only where it is, and keeps it alive."""

from __future__ import annotations

import gc
import weakref

import numpy as np
import pytest

from devmem._core.interop.foreign_arrays import host_tensor


class Exporter:
    """Exports memory that nothing but its capsule keeps."""

    def __init__(self, writable: bool) -> None:
        self.writable = writable

    def __dlpack_device__(self) -> tuple[int, int]:
        return 1, 0

    def __dlpack__(self, **options: object) -> object:
        made = np.arange(3.0)
        made.flags.writeable = self.writable
        self.made = weakref.ref(made)
        return made.__dlpack__(**options)


def test_an_array_over_exported_memory_keeps_it_alive():
    exporter = Exporter(writable=True)
    array = host_tensor(exporter)
    part = array[1:]
    del array
    gc.collect()
    assert exporter.made() is not None
    assert part.tolist() == [1.0, 2.0]
    del part
    gc.collect()
    assert exporter.made() is None


@pytest.mark.skipif(np.lib.NumpyVersion(np.__version__) < "2.1.0", reason="this NumPy exports no read-only arrays")
@pytest.mark.parametrize("writable", [True, False])
def test_an_array_over_exported_memory_is_read_only_where_that_is(writable):
    assert host_tensor(Exporter(writable)).flags.writeable is writable
