"""The emulated HIP runtime: versions and layouts, the null mode, both vendors in one process, and the real bindings."""

import importlib.util
import os
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest
from waits import patience

from devmem.testing import emulator

ROOT = Path(emulator.__file__).parents[3]
PRELUDE = """
import ctypes, os, time
from devmem.testing import emulator
u64, size = ctypes.c_uint64, ctypes.c_size_t
def opened(layout="full"):
    return ctypes.CDLL(str(emulator.library("roc", layout)))
"""


@pytest.fixture(scope="module", autouse=True)
def _needs_a_compiler():
    try:
        emulator.library("roc")
    except emulator.BuildError as error:
        pytest.skip(str(error))


def run(code, layout="full", **variables):
    """Run code in a new process that finds the emulated runtime."""
    environment = {**os.environ, **emulator.environment("roc", layout), "PYTHONPATH": str(ROOT), **variables}
    command = [sys.executable, "-c", PRELUDE + textwrap.dedent(code)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False, timeout=patience(140))
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_every_exported_function_is_described():
    run("""
    from devmem.testing.emulator.functions import listed, unsupported
    from devmem.testing.emulator.hip_functions import FUNCTIONS
    library = opened()
    described = [name for names in FUNCTIONS.values() for name in names] + unsupported("roc")
    names = emulator.control("roc").functions()
    assert sorted(described) == sorted(names), set(described) ^ set(names)
    assert all(hasattr(library, name) for name in described + listed("hip.h", "HIP_PER_THREAD"))
    """)


#: The status of calls for boxes that no memory holds.
TOO_LARGE = {
    "fills": """
    hipMemset2D(p, size(2**63), 7, size(100), size(3)) == 1
    hipMemset2D(p, size(2**32), 7, size(100), size(2**32 + 1)) == 1
    hipMemsetD16(p, 7, size(2**63 + 1)) == 1
    hipMemsetD32(p, 7, size(2**62 + 1)) == 1
    """,
    "fills of planes": """
    hipMemset3D(Pitched(p.value, 8, 8, 16), 7, Three(8, 16, 9)) == 1  # one plane too many
    hipMemset3D(Pitched(p.value, 2**63, 8, 2), 7, Three(8, 1, 3)) == 1
    hipMemset3D(Pitched(p.value, 8, 8, 0), 7, Three(8, 1, 2**40)) == 1
    """,
    "copies": """
    hipMemcpy2D(p, size(100), host, size(100), size(100), size(2**62), 1) == 1
    hipMemcpy2D(p, size(2**32), p, size(2**32), size(100), size(2**32 + 1), 3) == 1
    hipMemcpy3D(copy3d(x=2**64 - 8)) == 1
    hipMemcpy3D(copy3d(y=2**64 - 2)) == 1
    hipMemcpy3D(copy3d(z=2**64 - 1)) == 1
    """,
    "pitched": """
    hipMallocPitch(ctypes.byref(u64()), ctypes.byref(size()), size(2**64 - 1), size(2)) == 2
    hipMallocPitch(ctypes.byref(u64()), ctypes.byref(size()), size(2**20), size(2**44 + 1)) == 2
    hipMalloc3D(ctypes.byref(Pitched()), Three(2**20, 2**44 + 1, 1)) == 2
    """,
}


@pytest.mark.parametrize("calls", TOO_LARGE.values(), ids=TOO_LARGE)
def test_a_box_that_no_memory_holds_is_refused_before_a_byte_is_written(calls):
    run(f"""
    class Pitched(ctypes.Structure):
        _fields_ = [("at", u64), ("pitch", size), ("xsize", size), ("ysize", size)]

    class Three(ctypes.Structure):
        _fields_ = [("x", size), ("y", size), ("z", size)]

    class Copy(ctypes.Structure):
        _fields_ = [("src_array", u64), ("src_at", Three), ("src", Pitched), ("dst_array", u64), ("dst_at", Three),
                    ("dst", Pitched), ("extent", Three), ("kind", ctypes.c_int)]

    def copy3d(**at):
        source, target = Pitched(ctypes.addressof(host), 100, 100, 8), Pitched(p.value, 100, 100, 8)
        return ctypes.byref(Copy(0, Three(), source, 0, Three(**at), target, Three(16, 2, 1), 1))

    library = opened()
    library.hipMemset3D.argtypes = [Pitched, ctypes.c_int, Three]
    library.hipMalloc3D.argtypes = [ctypes.c_void_p, Three]
    p, host = u64(), ctypes.create_string_buffer(1 << 16)
    assert library.hipMalloc(ctypes.byref(p), size(1024)) == library.hipMemset(p, 1, size(1024)) == 0
    for call in {calls.split(chr(10))}:
        assert not call.strip() or eval("library." + call.strip()), call
        assert library.hipMemcpy(host, p, size(1024), 2) == 0
        assert host.raw[:1024] == bytes([1]) * 1024, call
    assert library.hipMemset3D(Pitched(p.value, 8, 8, 16), 7, Three(8, 16, 8)) == 0
    """)


def test_the_old_layout_lacks_newer_functions():
    run(
        """
    library = opened("old")
    assert library.hipInit(0) == 0
    for name in ("hipGetDevicePropertiesR0600", "hipMallocAsync", "hipExtGetLastError"):
        assert not hasattr(library, name), name
    assert hasattr(library, "hipMalloc")
    """,
        layout="old",
    )


def test_the_versioned_layout_has_no_plain_name():
    run(
        """
    try: ctypes.CDLL("libamdhip64.so")
    except OSError: pass
    else: raise AssertionError
    assert ctypes.CDLL("libamdhip64.so.7").hipInit(0) == 0
    assert emulator.control("roc").calls() == {"hipInit": 1}
    """,
        layout="versioned",
    )


def test_the_null_mode_counts_and_does_nothing():
    code = """
    library, one = opened(), u64()
    assert library.hipMalloc(ctypes.byref(one), size(64)) == 0 and one.value
    assert library.hipMemcpyAsync_spt(u64(1), u64(2), size(3), 1, u64(0)) == 0
    assert library.hipMemcpyAsync(u64(1), u64(2), size(3), 1, u64(0)) == 0
    assert library.hipModuleLaunchKernel() == 0
    calls = emulator.control("roc").calls()
    assert calls == {"hipMalloc": 1, "hipMemcpyAsync": 2, "hipModuleLaunchKernel": 1}, calls
    made = [u64() for _ in range(6)]
    for each in made[:3]: assert library.hipEventCreateWithFlags(ctypes.byref(each), 0) == 0
    for each in made[3:]: assert library.hipStreamCreateWithFlags(ctypes.byref(each), 0) == 0
    assert len({each.value for each in made}) == 6 and min(each.value for each in made) > 2
    """
    run(code, DEVMEM_EMULATOR_MODE="null")


def test_both_vendors_work_in_one_process():
    code = """
    cuda, hip = ctypes.CDLL("libcuda.so.1"), ctypes.CDLL("libamdhip64.so")
    assert cuda.cuInit(0) == 0
    context, one, two = u64(), u64(), u64()
    assert cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0) == 0
    assert cuda.cuCtxSetCurrent(context) == 0
    assert cuda.cuMemAlloc_v2(ctypes.byref(one), size(1000)) == 0
    assert hip.hipMalloc(ctypes.byref(two), size(77)) == 0
    assert hip.hipFree(one) == 1 and cuda.cuMemFree_v2(two) == 1
    assert emulator.control("cuda").live()[0] == 1000
    assert emulator.control("roc").live()[0] == 77
    emulator.control("roc").fail("hipFree", 1, 719)
    assert cuda.cuMemFree_v2(one) == 0
    assert hip.hipFree(two) == 719
    """
    run(code, **emulator.environment("cuda,roc"))


def test_the_emulated_version_is_reported():
    for version, number in (("6.4", 60400000), ("7.2", 70200000), ("10.0", 71526333)):
        code = f"""
        number = ctypes.c_int()
        assert opened().hipRuntimeGetVersion(ctypes.byref(number)) == 0
        assert number.value == {number}
        """
        run(code, DEVMEM_EMULATOR_ROCM=version)


bindings = pytest.mark.skipif(importlib.util.find_spec("hip") is None, reason="needs hip-python")


@bindings
def test_the_bindings_load_it():
    run("""
    from hip import hip
    import numpy as np
    assert hip.hipGetDeviceCount() == (0, 2)
    source, back = np.arange(1024, dtype=np.int32), np.zeros(1024, np.int32)
    status, there = hip.hipMalloc(4096)
    assert status == 0
    assert hip.hipMemcpy(there, source, 4096, hip.hipMemcpyKind.hipMemcpyHostToDevice) == (0,)
    assert hip.hipMemcpy(back, there, 4096, hip.hipMemcpyKind.hipMemcpyDeviceToHost) == (0,)
    assert (back == source).all()
    assert hip.hipFree(there) == (0,)
    assert emulator.control("roc").live() == (0, 0)
    """)


@bindings
def test_the_bindings_read_the_properties():
    run("""
    from hip import hip
    try: status, found = hip.hipGetDeviceProperties(1)
    except TypeError: status, found = hip.hipGetDeviceProperties(properties := hip.hipDeviceProp_t(), 1)[0], properties
    text = lambda value: value.decode() if isinstance(value, bytes) else str(value)
    assert (status, text(found.name)) == (0, "devmem emulated HIP device 1")
    assert text(found.gcnArchName).startswith("gfx90a")
    assert (found.warpSize, found.pciBusID, found.totalGlobalMem) == (64, 2, 8 << 30)
    assert (found.l2CacheSize, found.hostRegisterSupported, found.memoryPoolsSupported) == (8 << 20, 1, 1)
    """)


@bindings
def test_a_code_that_the_bindings_do_not_know_raises_there():
    run("""
    from hip import hip
    assert hip.hipDeviceSynchronize() == (0,)
    emulator.control("roc").fail("hipDeviceSynchronize", 1, 4242)
    try: hip.hipDeviceSynchronize()
    except ValueError as error: assert "4242" in str(error)
    else: raise AssertionError
    """)


@bindings
def test_the_bindings_miss_the_plain_name_and_newer_functions():
    code = """
    from hip import hip
    try: print(hip.{call})
    except RuntimeError as error: assert "{said}" in str(error), error
    else: raise AssertionError
    """
    run(code.format(call="hipGetDeviceCount()", said="dlopen"), layout="versioned")
    run(code.format(call="hipMemPoolTrimTo(0, 0)", said="dlsym"), layout="old")
