"""Functions under ``numba.njit`` in kernels of the simulator."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest
from waits import patience

pytest.importorskip("numba", reason="numba is not installed")

PROGRAM = """
import math
import numba, numpy as np, types
import devmem as dm
from devmem.compat import numba_cuda as cuda

@numba.njit
def twice(x):
    return x * 2

@numba.njit(inline="always")
def weighted(row, by):
    found = 0.0
    for i in range(row.shape[0]):
        found += twice(row[i]) * by[0]
    return found + math.sqrt(by[1])

@numba.njit
def even(n):
    return n == 0 or odd(n - 1)

@numba.njit
def odd(n):
    return n != 0 and even(n - 1)

module = types.ModuleType("helpers")
module.weighted = weighted

@cuda.jit(device=True)
def device(a, i):
    return weighted(a[i], (1, 4.0))

def kernel_of(helper):
    @dm.kernel
    def kernel(a, o):
        i = dm.grid(1)
        if i < o.size:
            o[i] = device(a, i) + module.weighted(a[i], (3, 0.0)) + helper(i) + (1000 if even(i) else 0)
    return kernel

a, o = np.arange(12.0).reshape(4, 3), np.zeros(4)
d = dm.to_device(o)
kernel_of(twice)[1, 4](dm.to_device(a), d)
assert d.copy_to_host().tolist() == (a.sum(1) * 8 + 2 + 2 * np.arange(4) + [1000, 0, 1000, 0]).tolist()
if not numba.config.DISABLE_JIT:
    assert twice(2) == 4 and twice.signatures  # compiled for the host as before
"""


@pytest.mark.parametrize("disabled", ["0", "1"])
def test_they_run_as_device_functions_also_where_jit_is_disabled(disabled):
    environment = {**os.environ, "DEVMEM_BACKEND": "host", "NUMBA_DISABLE_JIT": disabled}
    subprocess.run([sys.executable, "-c", PROGRAM], env=environment, check=True, timeout=patience(120))
