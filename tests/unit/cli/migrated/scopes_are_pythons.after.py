import numba

def host():
    return numba.njit

def device():
    from devmem.compat import numba_roc
    def inner():
        return numba_roc.stream
    return inner

class Numba:
    numba = 3
    roc = numba.roc

def other(numba):
    return numba.roc
