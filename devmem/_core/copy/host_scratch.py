"""Pageable host memory that copies go through."""

from __future__ import annotations

import math
from mmap import PAGESIZE
from typing import Any

import numpy as np
import numpy.typing as npt

from ..base.address import address
from ..base.layout import Shape


def scratch(shape: Shape, dtype: npt.DTypeLike) -> npt.NDArray[Any]:
    """A new C-contiguous array of undefined contents, on pages of its own.

    Memory beside it may be page-locked at any time, and drivers refuse a copy of memory that is page-locked in part.
    """
    kind = np.dtype(dtype)
    raw = np.empty(math.prod(shape) * kind.itemsize + 2 * PAGESIZE, np.uint8)
    return np.ndarray(shape, kind, raw, -address(raw) % PAGESIZE)
