"""What tests of memory that two processes use have in common: the beginning of the other's script, and the array."""

from __future__ import annotations

import numpy as np
import pytest

THERE = """
import dataclasses, gc, os, pickle, warnings
import numpy as np
import devmem as dm
from devmem.testing import emulator, hold

given = pickle.loads(bytes.fromhex({given!r}))

def live():
    dm.synchronize()
    dm.trim()
    return dm.memory_info().live

def controlled():
    "How to make the driver fail; None if it is a real one."
    try:
        return emulator.control(dm.current_device().backend)
    except emulator.EmulatorNotLoaded:
        return None

def raises(kind, text, call):
    try:
        call()
    except kind as error:
        assert text in str(error), error
    else:
        raise AssertionError(f"{{kind.__name__}} was not raised")

"""

#: For tests whose steps the driver takes by other functions where the memory is of its own pool.
of_both = pytest.mark.parametrize("shared", ["driver", "stream_ordered", "virtual"], indirect=True)


def data():
    return np.arange(24, dtype="f4").reshape(4, 6)
