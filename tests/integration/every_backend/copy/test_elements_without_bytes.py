"""Elements without bytes, as text of length 0: ``numpy.empty`` makes one character of it, which no copy fills."""

from __future__ import annotations

import numpy as np
import pytest

import devmem as dm
from devmem.adapters import dask

pytestmark = pytest.mark.usefixtures("tidy")

DTYPES = ["S0", "<U0", ">U0", "V0"]
WAYS = {
    "copy_to_host": lambda d: d.copy_to_host(),
    "pinned": lambda d: d.copy_to_host(pinned=True),
    "numpy": np.asarray,
    "to_host_many": lambda d: dm.to_host_many([d])[0],
    "among others": lambda d: dm.to_host_many([dm.ones(3), d, dm.ones(3)])[1],
    "beside large ones": lambda d: dm.to_host_many([dm.ones(100_000), d])[1],
    "in page-locked memory": lambda d: dm.to_host_many([d, dm.ones(3)], pinned=True)[0],
    "gather": lambda d: dm.gather([d, d])[: len(d)],
    "gather pinned": lambda d: dm.gather([d, d], pinned=True)[: len(d)],
    "copy_async": lambda d: dm.copy_async(d).result(),
    "copy_async pinned": lambda d: dm.copy_async(d, pinned=True).result(),
    "pinned_array_like": lambda d: d.copy_to_host(dm.pinned_array_like(d)),
    "asarray": lambda d: np.asarray(dm.asarray(d)),
    "frames of dask": lambda d: dask.from_host_frames(*dask.to_host_frames(d)).copy_to_host(),
    "no frames on the device": lambda d: dask.from_device_frames(dask.to_host_frames(d)[0], []).copy_to_host(),
    "copy": lambda d: d.copy().copy_to_host(),
    "like": lambda d: dm.device_array_like(d).copy_to_host(),
}


@pytest.mark.parametrize("way", WAYS.values(), ids=WAYS)
@pytest.mark.parametrize("dtype", DTYPES)
def test_they_come_back_as_they_went(dtype, way):
    records = np.zeros((3, 2), [("first", dtype), ("second", "i4")])
    records["second"] = 0x41414141
    uploaded = dm.to_device(records)
    for given in (uploaded["first"], uploaded["first"].T, dm.to_device(records["first"])):
        found = way(given)
        assert (found.dtype, found.shape) == (np.dtype(dtype), given.shape)
        assert found.tobytes() == b""


@pytest.mark.parametrize("dtype", DTYPES)
def test_they_are_assigned_and_change_nothing(dtype):
    records = np.zeros((3, 2), [("first", dtype), ("second", "i4")])
    d = dm.to_device(records)
    for part in (d["first"], dm.to_device(records["first"])):
        part[...] = records["first"]
        if dtype[-2:] == "U0":
            part[...] = "text"
            part.fill("text")
    np.testing.assert_array_equal(d.copy_to_host(), records)


@pytest.mark.parametrize("dtype", DTYPES)
def test_a_file_and_a_store_keep_them(dtype, tmp_path):
    host = np.ndarray((3, 2), dtype)
    dm.save(dm.to_device(host), tmp_path / "a.npy")
    assert dm.load(tmp_path / "a.npy").dtype == np.load(tmp_path / "a.npy").dtype == host.dtype
