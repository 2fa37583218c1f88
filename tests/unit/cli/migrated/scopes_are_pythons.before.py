import numba

def host():
    return numba.njit

def device():
    import numba.roc
    def inner():
        return numba.roc.stream
    return inner

class Numba:
    numba = 3
    roc = numba.roc

def other(numba):
    return numba.roc
