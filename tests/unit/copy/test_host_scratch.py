"""Host memory that copies of our own go through shares no page with anything."""

from __future__ import annotations

from mmap import PAGESIZE

import numpy as np
import pytest

from devmem._core.base.address import extent
from devmem._core.copy.host_copy import page_aligned_empty


@pytest.mark.parametrize("shape", [(), (1,), (0, 3), (PAGESIZE,), (3, PAGESIZE + 1, 2)])
@pytest.mark.parametrize("dtype", [np.uint8, np.dtype("f8"), np.dtype([("a", "u1"), ("b", "f4")])])
def test_it_begins_a_page_and_the_last_one_is_its_own_too(shape, dtype):
    made = page_aligned_empty(shape, dtype)
    assert (made.shape, made.dtype) == (shape, np.dtype(dtype))
    assert made.flags.c_contiguous and made.flags.writeable
    low, high = extent(made)
    if made.nbytes:
        assert low % PAGESIZE == 0
        whole, end = extent(made.base)
        assert whole <= low and high + (-high % PAGESIZE) <= end
