"""Loading and launching through the vendors' own bindings over the emulated drivers: what is called, and what is said.

The strict emulators launch nothing and say so; in their null mode launches are counted and dropped.
"""

from __future__ import annotations

import importlib.metadata
import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import pytest
from waits import patience

from devmem.testing import emulator

ROOT = Path(__file__).resolve().parents[4]

LAUNCHING = """
import devmem as dm
from devmem.spi.errors import BackendError
from devmem.testing.emulator import control
device = dm.current_device()
assert "launch" in device.info.capabilities
names = {names}
def count():
    calls = control().calls()
    return [calls.get(name, 0) for name in names]
with device.entered() as driver:
    one, other = driver.load(b"code", "first"), driver.load(b"code", "second")
    assert one != other
    for function in (one, other, one):
        driver.launch(function, (2, 3, 4), (8, 1, 1), 0, 1, 0x1000, ())
    assert count() == [2, 2, 3, 0], count()
    driver.unload(one)
    try:
        driver.launch(one, (1, 1, 1), (1, 1, 1), 0, 1, 0x1000, ())
    except (BackendError, KeyError):
        pass
    else:
        raise SystemExit("it launched what is gone")
    assert count() == [2, 2, 3, 1], count()
dm.close()
assert count() == [2, 2, 3, 2], "what was not unloaded goes with the device"
"""

STRICT = """
import devmem as dm
from devmem.testing.emulator import control
with dm.current_device().entered() as driver:
    try:
        driver.load(b"code", "name")
    except dm.UnsupportedError as error:
        assert "loads no kernels, as the emulated one of `devmem emulate` does not" in str(error), error
        assert "DEVMEM_BACKEND=host" in str(error), error
    control().fail({load!r}, 1, 209)
    try:
        driver.load(b"code", "name")
    except dm.BackendError as error:
        assert (error.call, error.code) == ({load!r}, 209), error
    else:
        raise SystemExit("it loaded what it had refused")
"""
SHARED = """
import devmem as dm
from devmem.testing.emulator import control
told = lambda: control().calls().get("cuFuncSetAttribute", 0)
with dm.current_device().entered() as driver:
    one, other = driver.load(b"code", "first"), driver.load(b"code", "second")
    def launch(function, shared_bytes):
        driver.launch(function, (1, 1, 1), (1, 1, 1), shared_bytes, 1, 0x1000, ())
        return told()
    # With what a function declares itself even a little may be more than it gets untold; never of less than before.
    assert [launch(one, n) for n in (0, 4096, 64, 4096, 99_000)] == [0, 1, 1, 1, 2]
    assert launch(other, 64) == 3
    functions = driver.state.functions
    real = functions.FuncSetAttribute
    functions.FuncSetAttribute = lambda *arguments: driver.state.errors.fail("cuFuncSetAttribute", 1)
    try:
        launch(one, 1 << 30)
    except dm.BackendError as error:
        assert "1.0 GiB (1,073,741,824 bytes) of dynamic shared memory are more than" in error.__notes__[0], error.__notes__
    else:
        raise SystemExit("it launched with more than there is")
    functions.FuncSetAttribute = real
    assert launch(one, 99_000) == 3, "it has been told of so many"
"""
FUNCTIONS = {
    "cuda": ("cuModuleLoadDataEx", "cuModuleGetFunction", "cuLaunchKernel", "cuModuleUnload"),
    "roc": ("hipModuleLoadData", "hipModuleGetFunction", "hipModuleLaunchKernel", "hipModuleUnload"),
}
BINDINGS = {"cuda": ("cuda.bindings",), "roc": ("ctypes", "rocm", "hip")}
PROVIDERS = [("cuda", "")] + [("roc", provider) for provider in BINDINGS["roc"]]


def run(backend, script, provider="", **variables):
    try:
        found = emulator.environment(backend)
    except emulator.BuildError as error:
        pytest.skip(str(error))
    environment = {**os.environ, **found, "DEVMEM_BACKEND": backend, "PYTHONPATH": str(ROOT), **variables}
    environment.pop("DEVMEM_ROC_PROVIDER", None)
    if provider:
        environment["DEVMEM_ROC_PROVIDER"] = provider
    return subprocess.run(
        [sys.executable, "-c", script],
        env=environment,
        capture_output=True,
        text=True,
        timeout=patience(110),
        check=False,
    )


def need_binding(backend, provider):
    names = {"cuda": "cuda.bindings", "rocm": "rocm.bindings", "hip": "hip.chip"}
    name = names.get(provider or backend)
    try:
        if name and importlib.util.find_spec(name) is None:
            pytest.skip(f"{name} is not installed")
    except ModuleNotFoundError:
        pytest.skip(f"{name} is not installed")


@pytest.mark.parametrize(("backend", "provider"), PROVIDERS)
def test_functions_are_loaded_launched_and_unloaded(backend, provider):
    need_binding(backend, provider)
    done = run(backend, LAUNCHING.format(names=FUNCTIONS[backend]), provider, DEVMEM_EMULATOR_MODE="null")
    assert done.returncode == 0, done.stderr


def test_functions_are_told_of_dynamic_shared_memory():
    need_binding("cuda", "")
    done = run("cuda", SHARED, DEVMEM_EMULATOR_MODE="null")
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(("backend", "provider"), PROVIDERS)
def test_what_is_refused_is_said(backend, provider):
    need_binding(backend, provider)
    done = run(backend, STRICT.format(load=FUNCTIONS[backend][0]), provider, DEVMEM_EMULATOR_MODE="strict")
    assert done.returncode == 0, done.stderr


NUMBA = """
import gc, warnings
import numpy as np
import devmem as dm
from devmem.testing.emulator import control

@dm.kernel
def add(a, b, out):
    near = dm.shared.array(64, np.float32)
    near[dm.threadIdx.x] = a[dm.grid(1)]
    dm.barrier()
    out[dm.grid(1)] = near[dm.threadIdx.x] + b[dm.grid(1)]

a, b, out = (dm.to_device(np.zeros(64, np.float32)) for _ in range(3))
stream = dm.stream()
launches = lambda: control().calls().get("cuLaunchKernel", 0)
add[1, 64](a, b, out)
add[(1, 1), (8, 8), stream, 100_000](a, b, out)
add.forall(64)(dm.In(np.zeros(64, np.float32)), b, dm.Out(np.zeros(64, np.float32)))
assert launches() == 3
assert control().calls()["cuModuleLoadDataEx"] == 1
assert control().calls()["cuFuncSetAttribute"] == 1
assert stream in a.allocation.uses()
try:
    add[1, 64](a, b, "out")
except TypeError as error:
    assert "argument 2 of <kernel add>, 'out'" in str(error), error
del add
gc.collect()
dm.trim()
assert control().calls()["cuModuleUnload"] == 1
"""

PLAIN = """
import numpy as np
import devmem as dm
from numba import cuda

@cuda.jit
def reverse(a):
    near = dm.shared.array(64, np.float32)
    near[dm.threadIdx.x] = a[dm.grid(1)]
    dm.barrier()
    a[dm.grid(1)] = near[63 - dm.threadIdx.x]

reverse[1, 64](cuda.to_device(np.zeros(64, np.float32)))
[code] = reverse.inspect_asm().values()
assert ".shared" in code and "bar.sync" in code
"""


@pytest.fixture
def numba_cuda():
    pytest.importorskip("numba_cuda", reason="numba-cuda is not installed")
    if importlib.util.find_spec("cuda.bindings") is None:
        pytest.skip("cuda-bindings is not installed")
    reason = run("cuda", "from numba import cuda; cuda.compile_ptx(lambda: None, ())").stderr
    if "NotFoundError" in reason or "NvvmSupportError" in reason:
        pytest.skip(reason.strip().splitlines()[-1])


def test_a_kernel_of_ours_reaches_the_driver(numba_cuda):
    done = run("cuda", NUMBA, DEVMEM_EMULATOR_MODE="null")
    assert done.returncode == 0, done.stderr


def test_the_names_work_under_numbas_own_decorator(numba_cuda):
    points = importlib.metadata.entry_points(group="numba_cuda_extensions", name="init")
    if not any(each.value.startswith("devmem.") for each in points):
        pytest.skip("devmem was installed before it had the entry point: install it again")
    done = run("cuda", PLAIN, DEVMEM_EMULATOR_MODE="null")
    assert done.returncode == 0, done.stderr


def test_over_the_strict_driver_it_is_said_that_nothing_is_launched(numba_cuda):
    done = run("cuda", NUMBA, DEVMEM_EMULATOR_MODE="strict")
    assert "UnsupportedError: this driver loads no kernels" in done.stderr
    assert "while numba_cuda compiled <kernel add> for cuda:0" in done.stderr
