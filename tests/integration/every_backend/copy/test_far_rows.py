"""Rows that lie further apart than a driver's pitches reach: arrays of 6 GiB, of which nothing but these rows is ever touched."""

from __future__ import annotations

import numpy as np
import pytest

import devmem as dm

#: The memory of arrays of 6 GiB is never touched, but a machine has to promise it.
pytestmark = [pytest.mark.usefixtures("tidy"), pytest.mark.exhaustive]

PITCH = (1 << 31) + 4096
WIDTH = 65536


@pytest.fixture
def host(tmp_path):
    """Three rows on the host, in a sparse file."""
    file = tmp_path / "sparse"
    with file.open("wb") as sparse:
        sparse.truncate(3 * PITCH)
    rows = np.memmap(file, np.uint8, "r+", shape=(3, PITCH))[:, :WIDTH]
    rows[...] = np.random.default_rng(5).integers(0, 256, rows.shape, np.uint8)
    return rows


@pytest.fixture
def apart():
    """Three rows on the device."""
    try:
        return dm.device_array((3, PITCH), "u1")[:, :WIDTH]
    except dm.OutOfMemory:
        pytest.skip("the device has no 6 GiB")


def test_rows_far_apart_on_the_host_are_copied(host):
    array = dm.to_device(host)
    assert np.array_equal(array.copy_to_host(), host)
    array.fill(3)
    array.copy_to_host(host)
    assert (host == 3).all()


def test_rows_far_apart_on_the_device_are_copied(host, apart):
    packed = np.ascontiguousarray(host)
    apart.copy_to_device(packed)
    assert np.array_equal(apart.copy_to_host(), packed)
    together = apart.copy()
    assert np.array_equal(together.copy_to_host(), packed)
    together.fill(4)
    apart[...] = together
    apart.copy_to_host(host)
    assert (host == 4).all()
