"""Trees of any arrays, up and down together, on streams that are late, against NumPy."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import array_shapes

import devmem as dm
from devmem._core.bulk.batch import download, pack, upload

Array = np.ndarray[Any, Any]

DTYPES = ["?", "u1", "<i2", ">i4", "<f8", "<c16", "<M8[ns]", "S3", "V7", "i1,f4"]
SHAPES = array_shapes(min_dims=0, max_dims=3, min_side=0, max_side=9)


@pytest.fixture(scope="module", autouse=True)
def small_parts() -> Iterator[None]:
    """Few bytes are many here, so that every way is taken: together in several parts, by the driver's batch, alone, staged."""
    dm.close()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(upload, "LARGE", 200)
        patch.setattr(download, "LARGE", 300)
        patch.setattr(pack, "PACKED_BYTES", 1000)
        patch.setenv("DEVMEM_STAGING_THRESHOLD", "400")
        patch.setenv("DEVMEM_STAGING_SLOT_BYTES", "150")
        yield
    dm.close()


@st.composite
def leaves(draw: st.DrawFn) -> Array:
    """An array of any dtype, in any layout, of pageable or page-locked memory."""
    shape, dtype = draw(SHAPES), np.dtype(draw(st.sampled_from(DTYPES)))
    nbytes = int(np.prod(shape)) * dtype.itemsize
    raw = np.random.default_rng(draw(st.integers(0, 999))).integers(
        0, 2 if dtype.kind == "b" else 256, nbytes, np.uint8
    )
    array = raw.view(dtype).reshape(shape, order=draw(st.sampled_from("CF")))
    if nbytes and draw(st.booleans()):
        locked = dm.pinned_array(shape, dtype)
        locked.view(np.ndarray).view(f"V{dtype.itemsize}")[...] = array.view(f"V{dtype.itemsize}")
        array = locked.view(np.ndarray)
    steps = [draw(st.sampled_from([1, 1, 2, -1])) for _ in shape]
    return array.transpose(draw(st.permutations(range(array.ndim))))[
        (*(slice(None, None, step) for step in steps), ...)
    ]


trees = st.recursive(
    leaves(),
    lambda inner: st.one_of(
        st.lists(inner, max_size=6),
        st.lists(inner, max_size=4).map(tuple),
        st.dictionaries(st.text(max_size=3), inner, max_size=4),
    ),
    max_leaves=20,
)


def same(tree: Any, other: Any) -> bool:
    if isinstance(tree, dict):
        return type(other) is dict and list(tree) == list(other) and all(same(tree[key], other[key]) for key in tree)
    if isinstance(tree, (list, tuple)):
        return type(tree) is type(other) and len(tree) == len(other) and all(map(same, tree, other))
    found = other.copy_to_host() if isinstance(other, dm.DeviceNDArray) else other
    if (found.shape, found.dtype) != (tree.shape, tree.dtype):
        return False
    raw = f"V{tree.itemsize}"
    return not tree.size or bool(found.view(raw).tobytes() == tree.view(raw).tobytes())


@given(st.data(), trees, st.booleans())
def test_a_tree_comes_back_unchanged(late: Any, data: st.DataObject, tree: Any, named: bool) -> None:
    stream = dm.stream() if named else 0
    with late(stream, data):
        there = dm.to_device_many(tree, stream)
        back = dm.to_host_many(there, stream)
    assert same(tree, there)
    assert same(tree, back)


@given(st.data(), st.lists(leaves(), max_size=12), st.booleans())
def test_arrays_of_their_own_and_parts_of_them(late: Any, data: st.DataObject, hosts: list[Array], named: bool) -> None:
    stream = dm.stream() if named else 0
    arrays: list[Any] = [dm.to_device(host, stream if data.draw(st.booleans()) else 0) for host in hosts]
    for at, host in enumerate(hosts):
        if host.ndim and data.draw(st.booleans()):
            key = slice(None, None, data.draw(st.sampled_from([2, -1, 3])))
            arrays.append(arrays[at][key])
            hosts = [*hosts, host[key]]
    with late(stream, data):
        assert same(hosts, dm.to_host_many(arrays, stream))
