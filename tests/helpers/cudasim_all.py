"""The kernels of `kernels_all` in numba-cuda's own simulator: a program, as the simulator is chosen before numba is imported."""

import sys
from pathlib import Path

import numpy as np
from numba import cuda

sys.path.insert(0, str(Path(__file__).parent))
import kernels_all

from devmem.kernels.functions import DeviceFunction

assert isinstance(kernels_all.clipped, DeviceFunction)
for case in kernels_all.cases():
    given = [each.copy() if isinstance(each, np.ndarray) else each for each in case.arguments]
    on_device = [cuda.to_device(each) if isinstance(each, np.ndarray) else each for each in given]
    cuda.jit(case.kernel.function)[case.launch](*on_device)
    for place, expected in case.expected(*given).items():
        np.testing.assert_allclose(on_device[place].copy_to_host(), expected, rtol=1e-5, atol=1e-6, err_msg=case.name)
    print(case.name)
