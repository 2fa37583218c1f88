"""``devmem simulate`` with numba, numba-cuda and its successor really installed: ``nox -s programs kernels_mlir``."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest
from waits import patience

pytest.importorskip("numba", reason="numba is not installed: nox -s programs")
pytest.importorskip("numba_cuda", reason="numba-cuda is not installed: nox -s programs")

ROOT = Path(__file__).parents[2]


def run(code: str, folder: Path, *options: str) -> str:
    """What a program prints that is run with ``python -m devmem.simulate``."""
    (folder / "program.py").write_text(textwrap.dedent(code))
    command = [sys.executable, "-W", "error::ImportWarning", "-m", "devmem.simulate", *options, "program.py"]
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("DEVMEM_", "NUMBA_"))}
    environment["PYTHONPATH"] = str(ROOT)
    limit = patience(280)
    done = subprocess.run(command, capture_output=True, text=True, cwd=folder, env=environment, timeout=limit)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.timeout(300)
def test_numba_stays_and_its_redirector_does_not_come_first(tmp_path):
    code = """
        import numba, numba.cuda
        from numba import cuda, config, njit, float32
        assert "_numba_cuda_redirector" in __import__("sys").modules
        assert cuda.implementation == "devmem" and numba.cuda is cuda
        assert not config.ENABLE_CUDASIM and not cuda.config.ENABLE_CUDASIM
        assert njit(lambda x: x + 1)(1) == 2
        assert cuda.float32 is cuda.types.float32 and cuda.HAS_NUMBA
        print(cuda.is_available())
    """
    assert run(code, tmp_path) == "True\n"


@pytest.mark.timeout(300)
def test_submodules_that_the_drop_in_has_not_are_numba_cudas(tmp_path):
    code = """
        import importlib
        from numba import cuda
        names = "types compiler extending deviceufunc simulator tests np.numpy_support cudadrv.nvvm cudadrv.linkable_code"
        for name in names.split():
            module = importlib.import_module(f"numba.cuda.{name}")
            assert "numba_cuda" in module.__file__ and "devmem" not in module.__file__, module
            assert getattr(cuda, name.partition(".")[0]) is importlib.import_module(f"numba.cuda.{name.partition('.')[0]}")
        assert cuda.runtime is cuda.cudadrv.runtime.runtime
        assert cuda.cudadrv.driver.driver.get_device_count() == 1
        print("done")
    """
    assert run(code, tmp_path) == "done\n"


@pytest.mark.timeout(300)
@pytest.mark.parametrize("options", [(), ("--fast",)], ids=["exact", "fast"])
def test_functions_of_arrays_and_helpers_of_numbas(tmp_path, options):
    code = """
        import numpy as np
        from numba import cuda, float32, float64, guvectorize, njit, vectorize

        @njit
        def twice(x):
            return x * 2

        @vectorize([float32(float32, float32), "float64(float64, float64)"], target="cuda")
        def added(x, y):
            return x + y

        @guvectorize(["void(float64[:], float64[:])"], "(n)->()", target="cuda")
        def total(array, out):
            out[0] = 0.0
            for i in range(array.shape[0]):
                out[0] += array[i]

        @cuda.jit("void(float32[:], float32)")
        def scaled(x, by):
            i = cuda.grid(1)
            if i < x.size:
                x[i] = twice(float32(x[i] * by))

        x = cuda.to_device(np.ones(3, np.float32))
        scaled[1, 4](x, 1.5)
        print(x.copy_to_host().tolist(), added(np.arange(3.0), 1).tolist(), total(np.ones((2, 3))).tolist())
    """
    assert run(code, tmp_path, *options) == "[3.0, 3.0, 3.0] [1.0, 2.0, 3.0] [3.0, 3.0]\n"


@pytest.mark.timeout(300)
def test_the_successor_is_replaced_and_its_types_stay(tmp_path):
    pytest.importorskip("numba_cuda_mlir", reason="numba-cuda-mlir is not installed: nox -s kernels_mlir")
    code = """
        import numpy as np
        from numba_cuda_mlir import cuda, types

        @cuda.jit
        def turned(x, y):
            s, t = cuda.shared.array(32, types.float64), cuda.threadIdx.x
            s[t] = x[cuda.grid(1)]
            cuda.syncthreads()
            y[cuda.grid(1)] = s[31 - t]

        x = cuda.to_device(np.arange(32.0))
        y = cuda.device_array_like(x)
        turned[1, 32](x, y)
        print(cuda.implementation, y.copy_to_host()[:3].tolist())
    """
    assert run(code, tmp_path) == "devmem [31.0, 30.0, 29.0]\n"
