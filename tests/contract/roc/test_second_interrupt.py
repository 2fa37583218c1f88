"""Two interrupts while pages are unlocked: the table of locked pages says what the runtime does."""

from __future__ import annotations

import mmap
import os

import numpy as np
import pytest
from interrupts import AtPoint, interrupt

from devmem.backends.roc import memory
from devmem.backends.roc.hooks import RocBackend
from devmem.toolkit import memory as holdings
from devmem.toolkit import ranges

_reason = RocBackend().unavailable()
pytestmark = [
    pytest.mark.skipif(_reason is not None, reason=f"no HIP runtime, real or emulated: {_reason}"),
    pytest.mark.skipif("DEVMEM_EMULATOR" not in os.environ, reason="interrupts calls of the emulated runtime"),
    pytest.mark.own_thread,
]
WATCHED = {memory.__file__, holdings.__file__, ranges.__file__}


def watched(code):
    return code.co_filename in WATCHED


def test_pages_that_stay_locked_stay_in_the_table():
    driver = RocBackend().open(0)
    pages = np.frombuffer(mmap.mmap(-1, 2 * mmap.PAGESIZE), np.uint8)
    start, still_locked, number, left = pages.ctypes.data, 0, 0, 0
    driver.host_register(start, pages.size, False)
    while not left:
        number += 1
        for second in range(1, 12):
            with AtPoint(number, interrupt, watched, (second, watched)) as at:
                driver.host_unregister(start, pages.size)
            left = max(at.left, 0)
            is_locked = driver.is_out(start)
            still_locked += is_locked
            assert (memory.page_locked.containing(start, start + 1) is not None) == is_locked, at.where
            if not is_locked:
                driver.host_register(start, pages.size, False)
    driver.host_unregister(start, pages.size)
    assert number > 8
    assert still_locked > 20
    driver.close()
