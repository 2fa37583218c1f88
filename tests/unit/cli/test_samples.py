from __future__ import annotations

import importlib.util

import numpy as np
import pytest

from devmem.cli.array_files import Unreadable
from devmem.cli.roundtrip import layout
from devmem.cli.sample_arrays import samples


@pytest.fixture(scope="module")
def arrays():
    return {source.name: source.load()[0] for source in samples()}


def test_names_are_distinct(arrays):
    assert len(arrays) == len(list(samples()))


@pytest.mark.parametrize(
    "wanted", ["C", "F", "strided", "negative strides", "zero strides", "0-d", "empty", "C, unaligned"]
)
def test_every_layout_is_there(arrays, wanted):
    assert wanted in {layout(array) for array in arrays.values()}


@pytest.mark.parametrize(
    "wanted", ["|b1", "<f2", "<c16", "<M8[D]", "<M8[ns]", ">i4", ">i8", "<i2", "<u2", "<f4", "<f8"]
)
def test_every_dtype_is_there(arrays, wanted):
    assert wanted in {array.dtype.str for array in arrays.values()}


def test_records_with_and_without_padding(arrays):
    records = [array.dtype for array in arrays.values() if array.dtype.names]
    used = [sum(dtype[name].itemsize for name in dtype.names) for dtype in records]
    assert any(dtype.itemsize == fields for dtype, fields in zip(records, used, strict=True))
    assert any(dtype.itemsize > fields for dtype, fields in zip(records, used, strict=True))


def test_the_data_is_real(arrays):
    elevation = arrays["elevation"]
    assert elevation.shape == (344, 403)
    assert 200 < elevation.mean() < 1000
    assert np.isnan(arrays["heights, as payloads of NaN"]).all()
    assert len({bytes(row) for row in arrays["heights, as payloads of NaN"].view(np.uint8)}) > 1


def test_without_matplotlib_the_extra_is_named(monkeypatch):
    real = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == "matplotlib" else real(name))
    with pytest.raises(Unreadable, match=r"pip install 'devmem-arrays\[demo\]'"):
        list(samples())
