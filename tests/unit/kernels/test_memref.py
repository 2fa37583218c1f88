"""Arrays as MLIR describes them."""

from __future__ import annotations

import numpy as np

import devmem as dm
from devmem.kernels.compilers.abi import Frame, memref


def test_whole_arrays_and_contiguous_parts_have_strides_too():
    array = dm.to_device(np.zeros((4, 6)))
    for each, lengths in ((array, [4, 6]), (array[1:3], [2, 6]), (array.reshape(4, 6), [4, 6]), (array[:, :], [4, 6])):
        frame = Frame([memref(2, 8)])
        frame.fill([each])
        assert list(frame.words[:7]) == [each.ptr, each.ptr, 0, *lengths, 6, 1]
