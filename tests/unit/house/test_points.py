"""`interrupts.watch`: what is called at the points of watched code."""

from __future__ import annotations

import gc
import sys
import weakref

import pytest
from interrupts import AtPoint, interrupt


@pytest.mark.skipif(sys.version_info >= (3, 12), reason="the interpreter's monitoring keeps what it calls")
def test_what_traces_lives_until_the_end_of_the_block():
    """Whatever the collector runs as it is about to be called, CPython calls it: it must not be freed by then."""
    with AtPoint(1 << 40, interrupt, lambda code: False):
        traces = weakref.ref(sys.gettrace())
        sys.settrace(None)
        gc.collect()
        assert traces() is not None
    assert sys.gettrace() is None
    assert traces() is None
