"""Programs in the ways that numba's users write them: what `devmem migrate` says of each, and that the silent ones run."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

pytest.importorskip("libcst", reason="the extra 'migrate' is not installed")

from devmem.cli.import_rewriter import rewrite

ROOT = Path(__file__).parents[3]
ENVIRONMENT = {**os.environ, "DEVMEM_BACKEND": "host", "PYTHONPATH": str(ROOT)}

#: Nothing is said of these, and migrated they run on the host backend as they are.
RUN = {
    "copies there and back": """
        import numpy as np
        from numba import cuda

        ary = np.arange(10)
        stream = cuda.stream()
        d_ary = cuda.to_device(ary, stream=stream)
        hary = np.empty(shape=d_ary.shape, dtype=d_ary.dtype)
        d_ary.copy_to_host(hary, stream=stream)
        stream.synchronize()
        assert (hary == ary).all()
        assert d_ary.reshape(2, 5, order="C").ravel().is_c_contiguous()
        """,
    "pinned, mapped, managed": """
        import numpy as np
        import numba.cuda

        page_locked = numba.cuda.pinned_array(8, dtype=np.float32)
        page_locked[:] = 3
        with numba.cuda.pinned(np.ones(4)), numba.cuda.defer_cleanup():
            device = numba.cuda.to_device(page_locked)
        assert device.copy_to_host().sum() == 24
        assert numba.cuda.mapped_array_like(page_locked).shape == (8,)
        assert numba.cuda.managed_array(3).size == 3
        """,
    "events": """
        from numba import cuda as cu

        start, end = cu.event(), cu.event(timing=True)
        start.record()
        end.record()
        end.synchronize()
        assert cu.event_elapsed_time(start, end) >= 0
        """,
    "devices": """
        from numba import cuda
        from numba.cuda.cudadrv import devices
        from numba.cuda.cudadrv.driver import driver, host_to_device

        with cuda.gpus[0]:
            context = cuda.current_context()
            assert context.get_memory_info().total > 0
        assert len(cuda.gpus.lst) == len(cuda.list_devices())
        assert cuda.get_current_device().id == devices.get_context().device.id
        assert driver.is_available
        """,
    "a kernel": """
        import math
        import numpy as np
        from numba import cuda

        @cuda.jit
        def increase(array, by):
            tx, bx, width = cuda.threadIdx.x, cuda.blockIdx.x, cuda.blockDim.x
            at = tx + bx * width
            if at < array.size:
                array[at] += by

        array = cuda.to_device(np.zeros(100, np.float32))
        increase[math.ceil(100 / 32), 32](array, 2.0)
        increase.forall(100)(array, 1.0)
        assert (array.copy_to_host() == 3).all()
        assert increase.py_func.__name__ == "increase"
        """,
    "a product in tiles": """
        import numpy as np
        from numba import cuda

        TILE = 4

        @cuda.jit("void(float32[:,:], float32[:,:], float32[:,:])")
        def product(A, B, C):
            mine = cuda.shared.array(shape=(TILE, TILE), dtype=np.float32)
            other = cuda.shared.array((TILE, TILE), "float32")
            x, y = cuda.grid(2)
            tx, ty = cuda.threadIdx.x, cuda.threadIdx.y
            total = np.float32(0)
            for tile in range(2):
                mine[tx, ty] = A[x, ty + tile * TILE]
                other[tx, ty] = B[tx + tile * TILE, y]
                cuda.syncthreads()
                for k in range(TILE):
                    total += mine[tx, k] * other[k, ty]
                cuda.syncthreads()
            C[x, y] = total

        a = np.arange(64, dtype=np.float32).reshape(8, 8)
        c = cuda.device_array((8, 8), np.float32)
        product[(2, 2), (TILE, TILE)](cuda.to_device(a), cuda.to_device(a), c)
        assert (c.copy_to_host() == a @ a).all()
        """,
    "a histogram": """
        import numpy as np
        from numba import cuda

        @cuda.jit
        def histogram(x, low, high, counts):
            step = cuda.gridsize(1)
            for i in range(cuda.grid(1), x.shape[0], step):
                bin = int((x[i] - low) / (high - low) * counts.shape[0])
                if 0 <= bin < counts.shape[0]:
                    cuda.atomic.add(counts, bin, 1)
                    cuda.atomic.max(counts, bin, 0)

        x = np.linspace(0, 0.999, 64)
        counts = cuda.to_device(np.zeros(4, np.int64))
        histogram[2, 16](cuda.to_device(x), 0.0, 1.0, counts)
        assert counts.copy_to_host().tolist() == [16, 16, 16, 16]
        """,
    "device functions and constants": """
        import numpy as np
        from numba import cuda

        TABLE = np.arange(4.0)

        @cuda.jit(device=True, inline=True)
        def square(x):
            return x * x

        @cuda.jit(fastmath=True, cache=True)
        def kernel(out):
            table = cuda.const.array_like(TABLE)
            scratch = cuda.local.array(2, np.float64)
            i = cuda.grid(1)
            scratch[0] = square(table[i])
            out[i] = scratch[0]

        out = np.zeros(4)
        kernel[1, 4](cuda.to_device(out))
        """,
    "it asks whether there is one": """
        try:
            from numba import cuda
        except ImportError:
            cuda = None
        import numba.cuda.cudadrv.error

        if cuda is not None and cuda.is_available():
            try:
                cuda.select_device(99)
            except numba.cuda.cudadrv.error.CudaSupportError:
                raise SystemExit(1)
            except (ValueError, IndexError):
                pass
        has_warps = hasattr(cuda, "shfl_sync") and False
        fma = getattr(cuda, "nothing_of_this_name", None)
        assert fma is None
        """,
    "short names for parts": """
        import numpy as np
        from numba import cuda

        to, grid, atomic = cuda.to_device, cuda.grid, cuda.atomic
        device = cuda
        shared = device.shared
        at = getattr(device, "threadIdx")

        @device.jit
        def kernel(total):
            part = shared.array(1, np.int64)
            if at.x == 0:
                part[0] = 0
            device.syncthreads()
            atomic.add(part, 0, grid(1))
            device.syncthreads()
            if at.x == 0:
                total[0] = part[0]

        total = to(np.zeros(1, np.int64))
        kernel[1, 8](total)
        assert total.copy_to_host()[0] == 28
        """,
    "quiet logs": """
        import logging
        from numba import cuda

        logging.getLogger("numba.cuda.cudadrv.driver").setLevel(logging.WARNING)
        cuda.synchronize()
        """,
    "foreign arrays": """
        from numba import cuda

        class Foreign:
            def __init__(self, base):
                self.__cuda_array_interface__ = base.__cuda_array_interface__

        made = cuda.device_array(3, "f8")
        assert cuda.is_cuda_array(Foreign(made))
        assert cuda.as_cuda_array(Foreign(made)).shape == (3,)
        """,
    "roc arrays and a kernel": """
        import numpy as np
        from numba import roc

        @roc.jit
        def copy(destination, source):
            tile = roc.shared.array(4, np.float64)
            tile[roc.get_local_id(0)] = source[roc.get_global_id(0)]
            roc.barrier(roc.CLK_LOCAL_MEM_FENCE)
            destination[roc.get_global_id(0)] = tile[roc.get_local_id(0)]

        source = np.arange(8.0)
        destination = roc.device_array_like(source)
        copy[2, 4](destination, roc.to_device(source))
        assert (destination.copy_to_host() == source).all()
        stream = roc.stream()
        with stream.auto_synchronize():
            assert roc.to_device(source, stream=stream).copy_to_host(stream=stream).shape == (8,)
        assert roc.agents
        """,
}

#: What is said of these: its kind and the name, by line.
SAID = {
    "atomics that are not there": (
        """
        from numba import cuda

        @cuda.jit
        def kernel(a):
            cuda.atomic.add(a, 0, 1)
            cuda.atomic.swap(a, 0, 1)
            cuda.atomic.compare_and_set(a, 0, 1)
            cuda.atomic.nanswap(a, 0, 1)
            cuda.atomic.incr(a, 0, 1)
        """,
        {
            6: "look numba.cuda.atomic.swap",
            7: "look numba.cuda.atomic.compare_and_set",
            8: "look numba.cuda.atomic.nanswap",
            9: "look numba.cuda.atomic.incr",
        },
    ),
    "an atomic of another name": (
        """
        from numba.cuda import atomic, jit as compiled
        less = atomic

        @compiled
        def kernel(a):
            atomic.nand(a, 0, 1)
            less.xnor(a, 0, 1)
        """,
        {6: "look numba.cuda.atomic.nand", 7: "look numba.cuda.atomic.xnor"},
    ),
    "warps": (
        """
        from numba import cuda

        @cuda.jit
        def total(a):
            value = a[cuda.laneid]
            value += cuda.shfl_down_sync(0xFFFFFFFF, value, 16)
            if cuda.any_sync(cuda.activemask(), value > cuda.warpsize):
                cuda.syncwarp()
            a[0] = cuda.popc(cuda.ballot_sync(0xFFFFFFFF, value > 0))
        """,
        {
            6: "cuda numba.cuda.shfl_down_sync",
            7: "cuda numba.cuda.activemask, cuda numba.cuda.any_sync",
            8: "cuda numba.cuda.syncwarp",
            9: "cuda numba.cuda.ballot_sync, cuda numba.cuda.popc",
        },
    ),
    "fences, and functions of the processor": (
        """
        import numba.cuda as cu
        @cu.jit
        def kernel(a):
            cu.threadfence()
            cu.threadfence_system()
            a[0] = cu.fma(a[0], a[1], cu.cbrt(a[2]))
            a[1] = cu.libdevice.rsqrt(a[1])
            cu.nanosleep(10)
        """,
        {
            4: "cuda numba.cuda.threadfence",
            5: "cuda numba.cuda.threadfence_system",
            6: "cuda numba.cuda.cbrt, cuda numba.cuda.fma",
            7: "cuda numba.cuda.libdevice",
            8: "cuda numba.cuda.nanosleep",
        },
    ),
    "groups that work together": (
        """
        from numba import cuda

        @cuda.jit
        def kernel(M):
            g = cuda.cg.this_grid()
            g.sync()
        """,
        {5: "look numba.cuda.cg"},
    ),
    "half precision": (
        "from numba.cuda import fp16, jit\n",
        {1: "look numba.cuda.fp16"},
    ),
    "reductions": (
        """
        from numba import cuda

        @cuda.reduce
        def total(a, b):
            return a + b

        product = cuda.Reduce(lambda a, b: a * b)
        """,
        {},
    ),
    "universal functions": (
        """
        import numpy as np
        from numba import vectorize, guvectorize, cuda

        @vectorize(["float32(float32, float32)"], target="cuda")
        def add(a, b):
            return a + b

        @guvectorize(["void(float32[:], float32[:])"], "(n)->(n)", target='cuda')
        def double(a, out):
            out[0] = 2 * a[0]

        device = cuda.to_device(np.ones(3, np.float32))
        """,
        {
            2: "numba numba",
            4: "cuda numba.vectorize(target='cuda')",
            8: "cuda numba.guvectorize(target='cuda')",
        },
    ),
    "universal functions for other targets": (
        """
        import numba
        from numba import cuda
        @numba.vectorize("f8(f8)", target="parallel")
        def one(x): return x
        @numba.vectorize("f8(f8)", target="roc")
        def two(x): return x
        @numba.guvectorize("f8(f8)", "(n)->(n)")
        def three(x): return x
        """,
        {1: "numba numba", 5: "look numba.vectorize(target='roc')"},
    ),
    "universal functions of roc": ("from numba.roc import vectorize, jit\n", {1: "look numba.roc.vectorize"}),
    "random numbers": (
        """
        from numba import cuda
        from numba.cuda.random import create_xoroshiro128p_states, xoroshiro128p_uniform_float32

        states = create_xoroshiro128p_states(64, seed=1)
        """,
        {},
    ),
    "modules that are not there": (
        """
        from numba.cuda.libdevice import sqrtf
        from numba.cuda.testing import CUDATestCase
        import numba.cuda.simulator
        from numba.cuda.cudadrv import nvvm
        from numba.cuda.cudadrv.driver import driver
        from numba.cuda import compile_ptx
        """,
        {
            1: "cuda numba.cuda.libdevice",
            2: "look numba.cuda.testing",
            3: "look numba.cuda.simulator",
            4: "look numba.cuda.cudadrv.nvvm",
            6: "cuda numba.cuda.compile_ptx",
        },
    ),
    "types": (
        """
        from numba import cuda, float32, void, njit

        @cuda.jit(void(float32[:]))
        def kernel(a):
            tile = cuda.shared.array(8, float32)
        """,
        {1: "numba numba"},
    ),
    "types of the module's own": (
        """
        import numba
        from numba import cuda, types as nbt
        a = cuda.local.array(3, cuda.types.float32) if numba.njit else cuda.float32x4
        """,
        {1: "numba numba", 2: "numba numba", 3: "cuda numba.cuda.float32x4, cuda numba.cuda.types"},
    ),
    "vectors": (
        "from numba import cuda\nv = cuda.float32x3(1, 2, 3)\n",
        {2: "cuda numba.cuda.float32x3"},
    ),
    "code that is linked in": (
        """
        from numba import cuda

        mul = cuda.declare_device("mul", "float32(float32, float32)")

        @cuda.jit(link=["mul.cu"])
        def kernel(a): ...

        @cuda.jit(link=[], boundscheck=False)
        def other(a): ...

        @cuda.jit("void(f4[:])", debug=True, opt=False, boundscheck=True)
        def third(a): ...
        """,
        {
            3: "look numba.cuda.declare_device",
            5: "look numba.cuda.jit(link=...)",
            11: "look numba.cuda.jit(boundscheck=...)",
        },
    ),
    "what is asked of kernels": (
        """
        from numba import cuda

        @cuda.jit
        def kernel(a):
            a[0] = part(a)

        @cuda.jit(device=True)
        def part(a):
            return a[0]

        def host():
            kernel.forall(3)(1)
            kernel.configure(1, 1)
            print(kernel.inspect_asm(), kernel.signatures)
            kernel.overloads
            return part.inspect_llvm
        """,
        {14: "look kernel.inspect_asm", 15: "look kernel.overloads", 16: "look part.inspect_llvm"},
    ),
    "what is reached by a text": (
        """
        import importlib
        import numba
        from numba import cuda

        device = getattr(numba, "cuda")
        again = importlib.import_module("numba.cuda")
        third = importlib.import_module(".cuda", "numba")
        fourth = __import__("numba.cuda")
        fifth = __import__("numba").cuda
        sixth = importlib.import_module(f"numba.{device}")
        seventh = importlib.import_module("numba." + "roc")
        """,
        {
            2: "numba numba",
            5: "look numba.cuda",
            6: "look numba.cuda",
            7: "look numba.cuda",
            8: "look numba.cuda",
            9: "look numba.cuda",
            10: "look importlib.import_module(...)",
            11: "look importlib.import_module(...)",
        },
    ),
    "names by a text": (
        """
        from numba import cuda

        def kernel_name(operation):
            shuffle = getattr(cuda, "shfl_sync")
            sub = getattr(cuda.atomic, "swap")
            return getattr(cuda.atomic, operation)(shuffle), getattr(cuda, "add", None)
        """,
        {
            4: "cuda numba.cuda.shfl_sync",
            5: "look numba.cuda.atomic.swap",
            6: "look getattr(numba.cuda.atomic, ...)",
        },
    ),
    "numba under another name": (
        "import numba\nnb = numba\nx = nb.cuda.to_device(3)\ny = nb.cuda.popc\nnumba.cuda.close()\n",
        {1: "numba numba", 3: "look numba.cuda", 4: "cuda numba.cuda.popc, look numba.cuda"},
    ),
    "in scopes": (
        """
        def host():
            from numba import cuda
            cuda.syncwarp()

        def other(cuda):
            cuda.syncwarp()

        class Stub:
            cuda = object()
            cuda.atomic.swap()
        """,
        {3: "cuda numba.cuda.syncwarp"},
    ),
    "all at once": ("from numba.cuda import *\n", {1: "look numba.cuda.*"}),
    "first releases": (
        "from numba import cuda\n@cuda.autojit\ndef f(a): ...\n",
        {2: "look numba.cuda.autojit"},
    ),
    "first releases of roc": (
        """
        from numba import hsa
        hsa.jit
        hsa.ds_permute(1, 2)
        hsa.atomic.swap
        """,
        {
            1: "look numba.hsa",
            3: "look numba.hsa.ds_permute",
            4: "look numba.hsa.atomic.swap",
        },
    ),
    "more of the first releases": (
        "from numba.hsa import stream\nimport numba.hsa\nnumba.hsa.jit\n",
        {1: "look numba.hsa", 2: "look numba.hsa", 3: "look numba.hsa"},
    ),
    "settings": (
        """
        import os
        os.environ["NUMBA_ENABLE_CUDASIM"] = "1"
        os.environ.setdefault("NUMBA_CUDA_MAX_PENDING_DEALLOCS_COUNT", "1")
        """,
        {2: "look NUMBA_ENABLE_CUDASIM"},
    ),
    "what the memory of roc means": (
        "from numba import roc\na = roc.finegrain_array(3)\nroc.hsadrv.devices.get_context\nroc.gcn_occupancy\n",
        {2: "look numba.roc.finegrain_array", 4: "look numba.roc.gcn_occupancy"},
    ),
    "arrays on both sides": ("import numba\nx = numba.SmartArray([1])\n", {2: "look numba.SmartArray"}),
    "moved already": (
        """
        from devmem.compat import numba_cuda as cuda, numba_roc as roc
        from numba import float32

        def kernel(a):
            cuda.atomic.swap(a, 0, 1)
            cuda.syncwarp()
            roc.finegrain_array(3)
        """,
        {
            2: "numba numba",
            5: "look devmem.compat.numba_cuda.atomic.swap",
            6: "cuda devmem.compat.numba_cuda.syncwarp",
        },
    ),
    "a plugin of memory": (
        """
        from numba import cuda

        class Manager(cuda.HostOnlyCUDAMemoryManager):
            interface_version = 1

            def memalloc(self, size):
                return cuda.cudadrv.driver.AutoFreePointer(None, 0, size)

        cuda.set_memory_manager(Manager)
        """,
        {},
    ),
    "it stays numba's alone": ("from numba import njit, prange  # no cuda\nimport numba.typed\n", {}),
}


def program(source: str) -> str:
    return textwrap.dedent(source).lstrip("\n")


def said(source: str) -> dict[int, str]:
    found: dict[int, list[str]] = {}
    for each in rewrite(program(source).encode()).findings:
        found.setdefault(each.line, []).append(f"{each.kind} {each.name}")
    return {line: ", ".join(sorted(names)) for line, names in found.items()}


@pytest.mark.parametrize("name", SAID)
def test_each_program_is_told_what_the_table_says(name):
    source, expected = SAID[name]
    assert said(source) == expected


@pytest.mark.parametrize("name", RUN)
def test_what_runs_as_it_is_is_silent(name):
    assert said(RUN[name]) == {}


@pytest.mark.parametrize("name", RUN)
def test_what_is_silent_runs_on_the_host(name):
    pytest.importorskip("greenlet", reason="the extra 'sim' is not installed")
    moved = rewrite(program(RUN[name]).encode()).after
    assert b"from devmem" in moved
    result = subprocess.run(
        [sys.executable, "-c", "import sys; sys.modules['numba'] = None; exec(sys.stdin.read())"],
        input=moved,
        capture_output=True,
        env=ENVIRONMENT,
    )
    assert result.returncode == 0, result.stderr.decode()
