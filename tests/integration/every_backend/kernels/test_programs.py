"""Well-known kernels, executed on the device under test and compared; by numba-cuda's own simulator, too."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from waits import patience

import devmem as dm

_spec = importlib.util.spec_from_file_location(
    "devmem_tests_kernels_all", Path(__file__).parents[3] / "helpers" / "kernels_all.py"
)
kernels_all = importlib.util.module_from_spec(_spec)
sys.modules[_spec.name] = kernels_all  # kernels are found by their module
_spec.loader.exec_module(kernels_all)

CASES = kernels_all.cases()
ROOT = Path(__file__).resolve().parents[4]


@pytest.fixture
def runs(device):
    """Skip where nothing compiles for the device, or its driver launches nothing, or takes launches and drops them."""
    one, out = dm.to_device(np.ones(4, np.float32)), dm.zeros(4, np.float32)
    try:
        kernels_all.vector_add[1, 4](one, one, out)
    except dm.UnsupportedError as error:
        pytest.skip(str(error))
    if os.environ.get("DEVMEM_EMULATOR_MODE") == "null":
        pytest.skip("launches are taken and dropped")


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_a_kernel_that_everyone_knows(runs, case):
    given = [each.copy() if isinstance(each, np.ndarray) else each for each in case.arguments]
    on_device = [dm.to_device(each) if isinstance(each, np.ndarray) else each for each in given]
    case.kernel[case.launch](*on_device)
    for place, expected in case.expected(*given).items():
        np.testing.assert_allclose(on_device[place].copy_to_host(), expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_with_host_arrays(runs, case):
    given = [each.copy() if isinstance(each, np.ndarray) else each for each in case.arguments]
    arguments = [each.copy() if isinstance(each, np.ndarray) else each for each in case.arguments]
    case.kernel[case.launch](*[dm.InOut(each) if isinstance(each, np.ndarray) else each for each in arguments])
    for place, expected in case.expected(*given).items():
        np.testing.assert_allclose(arguments[place], expected, rtol=1e-5, atol=1e-6)


def test_arrays_dropped_right_after_a_launch(runs, need, hold, with_settings):
    """Their memory is not reused before the launch has completed, however eagerly dropped memory is given back."""
    need("hold", "stream_ordered")
    with_settings(MAX_PENDING_DEALLOCS_COUNT="0")
    stream, side = dm.stream(non_blocking=True), dm.stream(non_blocking=True)
    host = np.arange(64, dtype=np.float32)
    a, b, out = dm.to_device(host), dm.to_device(host), dm.zeros(64, np.float32)
    kernels_all.vector_add[1, 64, stream](a, b, out)  # compiled by now
    stream.synchronize()
    with hold(stream) as latch:
        kernels_all.vector_add[1, 64, stream](a, b, out)
        assert not stream.query()
        del a, b
        others = [dm.device_array(64, np.float32, stream=side) for _ in range(4)]
        for each in others:
            each.fill(-1, stream=side)
        side.synchronize()
        latch.release()
    stream.synchronize()
    np.testing.assert_array_equal(out.copy_to_host(), host + host)


@pytest.mark.skipif(importlib.util.find_spec("numba_cuda") is None, reason="numba-cuda is not installed")
def test_in_the_simulator_of_numba_cuda():
    """A process of its own: the simulator is chosen before numba is imported, and needs neither a GPU nor a driver."""
    program = Path(__file__).parents[3] / "helpers" / "cudasim_all.py"
    environment = {**os.environ, "NUMBA_ENABLE_CUDASIM": "1", "PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        [sys.executable, "-W", "ignore", str(program)],
        env=environment,
        capture_output=True,
        text=True,
        timeout=patience(110),
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == [case.name for case in CASES]
