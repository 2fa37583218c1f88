"""The compiled core remembers which device its thread has chosen, and never for longer than that is so.

In a process of its own each: where a ``with`` block was ever entered, the core asks in every call.
"""

from __future__ import annotations

import pytest
from own_process import check_ends

from devmem import _native

pytestmark = pytest.mark.skipif(_native.core is None, reason=_native.why)

BEGIN = """
import sys
sys.path.insert(0, "../../helpers")
import numpy as np
from table_driver import TableBackend
from waits import together
import devmem as dm
from devmem._core.ordering.stream import place

first, second, third = names = ["chosen-0", "chosen-1", "chosen-2"]
for name in names:
    dm.register_backend(TableBackend(name))
lasting = dm.use_backend(first)

def used():  # twice: the second time it is remembered
    at, again = (dm.to_device(np.arange(3.0)).device.backend for _ in range(2))
    assert at == again == dm.device_array(3).device.backend
    return at

assert used() == first
"""
PROGRAMS = {
    "each choice holds from its call to its end": """
        outer = dm.use_backend(second)
        assert used() == second
        inner = dm.use_backend(third)
        assert used() == third
        inner.close()
        assert used() == second
        outer.close()
        assert used() == first
        with dm.use_backend(second):
            assert used() == second
        assert used() == first
    """,
    "another thread takes a choice back": """
        chosen = dm.use_backend(second)
        assert used() == second
        together(chosen.close)
        assert used() == first
    """,
    "a device is closed and opened anew": """
        before = dm.to_device(np.arange(3.0)).allocation.device_handle
        dm.close()
        assert used() == first
        assert dm.to_device(np.arange(3.0)).allocation.device_handle is not before
    """,
    "each thread has its own": """
        def go_on(name):
            kept = dm.use_backend(name)
            assert {used() for _ in range(200)} == {name}

        together(*[lambda name=name: go_on(name) for name in names])
        assert used() == first
    """,
    "an exception comes into a choice": """
        told = place._changing

        def interrupted(begins):
            if not begins:
                raise KeyboardInterrupt
            told(begins)

        place._changing = interrupted
        try:
            dm.use_backend(second)
        except KeyboardInterrupt:
            place._changing = told
        assert used() == second
        last = dm.use_backend(third)
        assert used() == third
        last.close()
        assert used() == second
    """,
}


@pytest.mark.parametrize("program", PROGRAMS.values(), ids=PROGRAMS)
def test_the_device_is_the_one_in_force(program):
    lines = [line[8:] for line in program.splitlines()]
    check_ends("\n".join([BEGIN, *lines, 'print("ends")']), __file__.rpartition("/")[0])
