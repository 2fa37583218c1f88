#!/usr/bin/env python
# A header, with   its spaces.
'''Docs.'''

# about the GPU
from numba import (
    cuda as cu,  # the device
    njit,  # the host
    vectorize,
)
from numba.roc import (  # all of it
    to_device,  # up

    # and this one
    stream as make,
)

try:
    from numba import roc  # noqa: F401
except ImportError:
    roc = None


def f( a,b ):
    import numba.roc   # here

    return (numba  .  roc).stream( )  # there
