"""Parts of arrays that the compiled core makes: what they are, and that it copies the contiguous ones."""

from __future__ import annotations

import numpy as np
import pytest
from table_driver import TableBackend

import devmem as dm
from devmem import _native
from devmem._core.device.device import current_open_device

pytestmark = pytest.mark.skipif(_native.core is None, reason=_native.why)

MATRIX = np.arange(24, dtype="i4").reshape(4, 6)
CUBE = np.arange(24, dtype="f8").reshape(2, 3, 4)


@pytest.fixture
def backend():
    made = TableBackend("parts")
    dm.register_backend(made)
    try:
        with dm.use_backend(made.name):
            yield made
    finally:
        dm.unregister_backend(made.name)


def compiled():
    """Copies that the core has made."""
    opened = current_open_device()
    return sum(each[0] for each in opened.statistics.compiled(False))


@pytest.mark.parametrize("host", [MATRIX, CUBE], ids=["matrix", "cube"])
@pytest.mark.parametrize(
    "key", [0, 1, -1, -2, slice(1, 2), slice(None), slice(1, None), slice(None, None, -1)], ids=str
)
def test_a_part_is_what_numpys_is(backend, host, key):
    array = dm.to_device(host)
    part, wanted = array[key], host[key]
    assert _native.core.part(array, key) is not None
    assert (part.shape, part.strides, part.dtype) == (wanted.shape, wanted.strides, wanted.dtype)
    assert part.is_c_contiguous() == wanted.flags.c_contiguous
    assert part.ptr - array.ptr == wanted.ctypes.data - host.ctypes.data
    assert part.copy_to_host().tolist() == wanted.tolist()


@pytest.mark.parametrize("key", [4, -5, 1 << 70, -(1 << 70), True, np.int64(1), "x", None, (0, 1), 2.0])
def test_other_keys_are_pythons(backend, key):
    array = dm.to_device(MATRIX)
    assert _native.core.part(array, key) is None
    if key in (4, -5):
        with pytest.raises(IndexError):
            array[key]


def test_one_element_is_pythons(backend):
    array = dm.to_device(MATRIX[0])
    assert _native.core.part(array, 2) is None
    assert array[2] == MATRIX[0, 2]


def test_contiguous_parts_are_copied_by_the_core(backend):
    array = dm.to_device(MATRIX)
    parts = [array[2], array[1:3], array[:], array.reshape(2, 12)[1], array.reshape(-1)[3:9], array[1:][1]]
    before = compiled()
    for part in parts:
        part.copy_to_device(np.full(part.shape, 7, "i4"))
        assert part.copy_to_host().tolist() == np.full(part.shape, 7).tolist()
    assert compiled() == before + 2 * len(parts)
    array[::2].copy_to_host()
    assert compiled() == before + 2 * len(parts)


def test_a_part_of_a_part_with_strides_keeps_them(backend):
    array, host = dm.to_device(MATRIX), MATRIX
    for of, numpys in [(array[::2], host[::2]), (array[::-1], host[::-1])]:
        for key in (0, -1, slice(1, 2), slice(None)):
            assert of[key].strides == numpys[key].strides
            assert of[key].copy_to_host().tolist() == numpys[key].tolist()
