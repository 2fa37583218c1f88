"""Copies in strips: the same bytes as NumPy's own, and none between them."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from devmem._core.copy import host_copy


@pytest.fixture(autouse=True, scope="module")
def short():
    """Rows of four elements are long, and one line is enough."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(host_copy, "LONG", 4)
        patch.setattr(host_copy, "STRIP", 3)
        patch.setattr(host_copy, "LINE", 5)
        yield


@given(st.data())
def test_a_copy_by_strips_agrees_with_numpys(data):
    shape = tuple(data.draw(st.lists(st.integers(0, 9), min_size=0, max_size=4)))
    dtype = np.dtype(data.draw(st.sampled_from(["u1", "V3", "f4", "c16"])))
    sides = []
    for seed in (1, 2):
        axes = data.draw(st.permutations(range(len(shape))))
        steps = [data.draw(st.sampled_from([1, 1, 2, -1])) for _ in shape]
        lengths = [shape[axis] * abs(step) for axis, step in zip(axes, steps, strict=True)]
        raw = np.random.default_rng(seed).integers(0, 256, int(np.prod(lengths)) * dtype.itemsize, np.uint8)
        base = raw.view(dtype).reshape(lengths)
        view = base[(*(slice(None, None, step) for step in steps), ...)].transpose(np.argsort(axes).tolist())
        sides.append((base, view))
    (base, dst), (_, src) = sides
    assert dst.shape == src.shape == shape
    expected = base.copy()
    place = np.ndarray(shape, dtype, expected, dst.ctypes.data - base.ctypes.data, dst.strides) if dst.size else dst
    place[...] = src
    host_copy.copy_elements(dst, src)
    assert base.tobytes() == expected.tobytes()


def test_transposed_rows_are_cut_and_others_are_not():
    assert host_copy._long_axis((50, 60), (240, 4), (4, 200)) == 1
    assert host_copy._long_axis((50, 60), (4, 200), (240, 4)) == 0
    assert host_copy._long_axis((50, 60), (240, 4), (240, 4)) is None
    assert host_copy._long_axis((50, 3), (12, 4), (4, 200)) is None  # short rows
    assert host_copy._long_axis((50, 60), (240, 4), (0, 0)) is None  # one element, everywhere
    assert host_copy._long_axis((4, 60), (240, 4), (1, 4)) is None  # a line is used up at once
    assert host_copy._long_axis((0, 60), (240, 4), (4, 200)) is None
    assert host_copy._long_axis((60,), (4,), (200,)) is None
