#!/usr/bin/env python
# A header, with   its spaces.
'''Docs.'''

# about the GPU
from numba import (
    njit,  # the host
    vectorize,
)
from devmem.compat import (
    numba_cuda as cu,  # the device
)
from devmem.compat.numba_roc import (  # all of it
    to_device,  # up

    # and this one
    stream as make,
)

try:
    from devmem.compat import numba_roc as roc  # noqa: F401
except ImportError:
    roc = None


def f( a,b ):
    from devmem.compat import numba_roc   # here

    return (numba_roc).stream( )  # there
