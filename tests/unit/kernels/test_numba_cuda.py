"""numba-cuda as a compiler, with no GPU: types, and the PTX of well-known kernels."""

from __future__ import annotations

import collections
import enum
import importlib.util
import re
import sys
import threading
from pathlib import Path

import numpy as np
import pytest
from waits import patience

import devmem as dm
from devmem.compat import numba_cuda

_spec = importlib.util.spec_from_file_location(
    "devmem_tests_kernels_all", Path(__file__).parents[2] / "helpers" / "kernels_all.py"
)
kernels_all = importlib.util.module_from_spec(_spec)
sys.modules.setdefault(_spec.name, kernels_all)
_spec.loader.exec_module(kernels_all)

CASES = kernels_all.cases()
POINT = collections.namedtuple("Point", "x scale rest")
H100, NO_GPU = (9, 0), (99, 9)


@pytest.fixture(scope="module")
def numba():
    """The adapter; skips without numba-cuda, or where it has no CUDA to compile with."""
    pytest.importorskip("numba_cuda", reason="numba-cuda is not installed")
    from devmem.kernels.compilers.numba_cuda import compiler

    try:
        compiler.ptx_for(lambda array: None, compiler.typing.types_of("void(int8[::1])"), H100, {})
    except Exception as error:  # no NVVM, no NVRTC
        if isinstance(error, AssertionError | TypeError):
            raise
        pytest.skip(f"numba-cuda cannot compile here: {error}")
    return compiler


def ptx(numba, function, signature, **options):
    return numba.ptx_for(getattr(function, "function", function), numba.typing.types_of(signature), H100, options)


# -- code --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_the_kernels_that_everyone_knows(numba, case):
    code = ptx(numba, case.kernel, case.signature)
    assert [part for part in case.code if part not in code] == []
    assert len(re.findall(r"\.entry", code)) == 1
    assert ".target sm_90" in code


def test_names_are_the_same_without_the_module(numba):
    from devmem import (
        CLK_LOCAL_MEM_FENCE,
        atomic,
        barrier,
        get_global_id,
        get_work_dim,
        grid,
        gridDim,
        laneid,
        local,
        mem_fence,
        shared,
        threadIdx,
        warpsize,
        wavebarrier,
    )

    def kernel(out):
        near, mine = shared.array(32, np.int32), local.array(4, np.int32)
        mine[laneid % 4] = threadIdx.x
        near[threadIdx.x] = mine[laneid & 3] + warpsize
        barrier(scope=CLK_LOCAL_MEM_FENCE)
        mem_fence()
        wavebarrier()
        lane = laneid
        if lane > 3:
            lane += gridDim.x
        if laneid:
            atomic.add(out, get_global_id(0), get_work_dim())
        if laneid == 0:
            atomic.exch(out, grid(1), near[lane])
        out[grid(1)] = max(laneid, 5) + int(0.5 * laneid)

    code = ptx(numba, kernel, "void(int32[::1])")
    for part in (
        ".shared",
        ".local",
        "bar.sync",
        "bar.warp.sync",
        "membar",
        "%laneid",
        "%tid.x",
        "%nctaid.x",
        "WARP_SZ",
        "atom.",
    ):
        assert part in code, part


def test_all_atomic_operations(numba):
    def kernel(u, f):
        dm.atomic.sub(u, 0, 3)
        dm.atomic.and_(u, 1, 6)
        dm.atomic.or_(u, 2, 8)
        dm.atomic.xor(u, 3, 5)
        dm.atomic.inc(u, 4, 7)
        dm.atomic.dec(u, 5, 7)
        dm.atomic.compare_and_swap(u, 1, 2)
        dm.atomic.nanmax(f, 0, 2.0)
        dm.atomic.nanmin(f, 0, 2.0)

    code = ptx(numba, kernel, "void(uint32[::1], float64[::1])")
    for part in ("and", "or", "xor", "inc", "dec", "cas"):
        assert re.search(rf"(atom|red)\.\S*{part}\.", code), part


def test_functions_of_numba_cuda_through_the_drop_in(numba):
    from devmem.compat import numba_cuda as cuda

    def kernel(a, f, out):
        i = cuda.grid(1)
        mask = cuda.ballot_sync(0xFFFFFFFF, a[i] > 0)
        value = cuda.shfl_down_sync(0xFFFFFFFF, a[i], 1)
        out[i] = cuda.popc(mask) + value + cuda.clz(a[i]) + cuda.brev(a[i]) + cuda.ffs(a[i])
        out[i] += cuda.syncthreads_count(a[i])
        cuda.syncwarp()
        cuda.threadfence_system()
        pair = cuda.float32x2(f[i], 2.5)
        f[i] = cuda.libdevice.rsqrtf(f[i]) + cuda.fma(f[i], pair.x, cuda.float4(pair, pair).w)

    code = ptx(numba, kernel, "void(int32[::1], float32[::1], int32[::1])")
    for part in ("vote.", "shfl.", "popc.", "clz.", "brev.", "membar.sys", "bar.red", "rsqrt.", "fma."):
        assert part in code, part


def test_random_numbers_are_device_functions(numba):
    from devmem.compat.numba_cuda import random

    def kernel(states, out):
        i = dm.grid(1)
        out[i] = random.xoroshiro128p_uniform_float64(states, i) + random.xoroshiro128p_normal_float32(states, i)

    types = (numba.typing.from_dtype(random.xoroshiro128p_dtype)[::1], numba.typing.types.float64[::1])
    code = numba.ptx_for(kernel, types, H100, {})
    assert "cos" in code or "st.global" in code


def test_arrays_in_tuples_are_arguments(numba):
    def kernel(pair, out):
        i = dm.grid(1)
        if i < out.size:
            out[i] = pair.x[i] * pair.scale + pair.rest[0][i]

    types, array = numba.typing.types, numba.typing.types.float64[::1]
    pair = types.NamedTuple((array, types.float64, types.UniTuple(array, 1)), POINT)
    code = numba.ptx_for(kernel, (pair, array), H100, {})
    assert ".entry" in code


@pytest.mark.parametrize(("axis", "register"), [(0, "x"), (1, "y"), (2, "z")], ids=["x", "y", "z"])
@pytest.mark.parametrize(
    ("name", "registers"),
    [
        ("get_global_id", ("ctaid", "ntid", "tid")),
        ("get_local_id", ("tid",)),
        ("get_group_id", ("ctaid",)),
        ("get_local_size", ("ntid",)),
        ("get_num_groups", ("nctaid",)),
        ("get_global_size", ("nctaid", "ntid")),
    ],
)
def test_where_a_thread_is_along_an_axis(numba, name, registers, axis, register):
    function = getattr(dm, name)

    def kernel(out):
        out[0] = function(axis)

    code = ptx(numba, kernel, "void(int64[::1])")
    assert set(re.findall(r"%(n?c?t[a-z]*id)\.([xyz])", code)) == {(each, register) for each in registers}


def test_barriers_are_one_instruction_and_fences_another(numba):
    def several(out):
        dm.barrier()
        dm.barrier(dm.CLK_LOCAL_MEM_FENCE)
        dm.syncthreads()

    assert ptx(numba, several, "void(int32[::1])").count("bar.sync") == 3

    def fences(out):
        dm.mem_fence(dm.CLK_LOCAL_MEM_FENCE)
        out[0] = 1
        dm.mem_fence(dm.CLK_GLOBAL_MEM_FENCE)

    code = ptx(numba, fences, "void(int32[::1])")
    assert re.findall(r"membar\.(\w+)", code) == ["cta", "gl"]


def test_dynamic_shared_memory_is_extern(numba):
    code = ptx(numba, kernels_all.sum_of_blocks, "void(float32[::1], float32[::1])")
    assert re.search(r"\.extern \.shared", code)


def test_a_device_function_is_compiled_with_its_kernel_and_no_device(numba):
    @dm.kernel(device=True)
    def twice(value):
        return value + value

    @dm.kernel(device=True)
    def fourfold(value):
        return twice(twice(value))

    def kernel(out, number):
        i = dm.grid(1)
        out[i] = fourfold(out[i]) + fourfold(number)

    assert ".entry" in ptx(numba, kernel, "void(float32[::1], int64)")
    assert ".entry" in ptx(numba, kernel, "void(float64[::1], float32)")


def test_a_kernel_of_the_drop_in_is_a_function_of_kernels_too(numba):
    from devmem.compat import numba_cuda as cuda

    @cuda.jit
    def double(value):
        return value * 2

    @cuda.jit(launch_bounds=64)
    def store(array, value):
        array[0] = double(value)

    @cuda.jit
    def kernel(array, value):
        store(array, value)

    for each in (store, kernel):
        assert ptx(numba, each, "void(float32[::1], float32)").count(".entry") == 1


def test_globals_and_functions_are_left_alone(numba):
    before = dict(vars(kernels_all))
    code = kernels_all.block_reverse.function.__code__
    ptx(numba, kernels_all.block_reverse, "void(float32[::1])")
    assert {name: value for name, value in vars(kernels_all).items() if before.get(name) is not value} == {}
    assert kernels_all.block_reverse.function.__code__ is code
    with pytest.raises(dm.UnsupportedError):
        dm.barrier()


def test_options_change_the_ptx(numba):
    def kernel(out, x):
        out[0] = out[1] / x

    slow = ptx(numba, kernel, "void(float32[::1], float32)")
    fast = ptx(numba, kernel, "void(float32[::1], float32)", fastmath=True)
    assert "div.rn.f32" in slow
    assert "div.rn.f32" not in fast
    with pytest.raises(TypeError, match="no option speed: its options are debug, fastmath"):
        ptx(numba, kernel, "void(float32[::1], float32)", speed=11)


def test_what_has_to_be_linked_in_is_refused(numba):
    def kernel(out):
        out.reshape((2, 2))[1, 1] = 1

    with pytest.raises(dm.UnsupportedError, match=r"calls numba_attempt_nocopy_reshape.*linked in"):
        ptx(numba, kernel, "void(float32[::1])")


def test_a_grid_takes_a_constant(numba):
    def kernel(out):
        out[dm.grid(out.size)] = 1

    with pytest.raises(Exception, match=r"devmem\.grid\(ndim\) takes a constant: 1, 2 or 3"):
        ptx(numba, kernel, "void(float32[::1])")


def test_a_newer_device_gets_the_newest_code_that_there_is(numba):
    code = numba.ptx_for(lambda array: None, numba.typing.types_of("void(int8[::1])"), NO_GPU, {})
    assert re.search(r"\.target sm_(\d+)", code)


# -- types -------------------------------------------------------------------------------------------------------------


def test_types_of_device_arrays(numba, devmem_backend):
    base = dm.to_device(np.zeros((4, 6), np.float32))
    assert str(numba.typing.type_of(base)) == "array(float32, 2d, C)"
    assert str(numba.typing.type_of(base.T)) == "array(float32, 2d, F)"
    assert str(numba.typing.type_of(base[:, ::2])) == "array(float32, 2d, A)"
    assert str(numba.typing.type_of(base[0])) == "array(float32, 1d, C)"
    assert numba.typing.type_of(base) == numba.typing.types_of("void(float32[:, ::1])")[0]
    record = dm.to_device(np.zeros(2, [("x", "<i4"), ("y", "<f8")]))
    assert "Record" in str(numba.typing.type_of(record[0]))
    assert "Record" in str(numba.typing.type_of(record))


def test_elements_that_are_not_aligned_are_read_in_pieces(numba, devmem_backend):
    """A device faults where it is told to read eight bytes at an odd address."""
    packed, aligned = np.dtype([("x", "i1"), ("y", "<f8")]), np.dtype([("x", "i1"), ("y", "<f8")], align=True)

    def kernel(out):
        out[0] = 1.5

    for dtype, wide in ((packed, False), (aligned, True)):
        field = numba.typing.type_of(dm.to_device(np.zeros(4, dtype))["y"])
        assert field.aligned is wide
        assert ("st.global.u64" in numba.ptx_for(kernel, (field,), H100, {})) is wide
    [declared] = numba.typing.types_of("void(float64[:])")
    assert numba.typing.fits(declared, field)
    assert not numba.typing.fits(declared, numba.typing.type_of(dm.to_device(np.zeros(4, packed))["y"]))


def test_a_member_of_an_enumeration_goes_by_its_value(numba):
    kind = enum.IntEnum("kind", {"SEVEN": 7})
    slot = numba.typing.slot(numba.typing.type_of(kind.SEVEN))
    words = memoryview(bytearray(8))
    slot.put(kind.SEVEN, words, 0)
    assert int.from_bytes(words, "little") == 7


@pytest.mark.parametrize(
    "spelling", ["float32[::1]", "float64[:, ::1]", "int8[::1, :]", "int64[:, :]", "complex64", "uint16", "boolean"]
)
def test_types_are_spelled_as_signatures_have_them(numba, spelling):
    [kind] = numba.typing.types_of(f"void({spelling})")
    assert numba.typing.spelled(kind) == {"boolean": "bool"}.get(spelling, spelling)


def test_what_no_signature_can_say_of_an_array(numba, devmem_backend):
    records = dm.to_device(np.zeros(4, np.dtype([("x", "i1"), ("y", "<f8")])))
    assert numba.typing.spelled(numba.typing.type_of(records["y"])) == "float64[:] not aligned"


def test_a_dtype_that_numba_has_not_is_named(numba, devmem_backend):
    with pytest.raises(TypeError, match="numba-cuda takes no DeviceNDArray of dtype >f4"):
        numba.typing.type_of(dm.to_device(np.zeros(3, ">f4")))


def test_who_comes_while_the_names_are_registered_waits(numba, monkeypatch):
    from devmem.kernels.compilers.numba_cuda.device_names import NAMES

    begun, go_on, found = threading.Event(), threading.Event(), []

    def registering():
        NAMES.kinds["one"] = 1
        begun.set()
        assert go_on.wait(patience())
        NAMES.kinds["other"] = 2

    def second():
        NAMES.register()
        found.append(dict(NAMES.kinds))

    monkeypatch.setattr(NAMES, "kinds", {})
    monkeypatch.setattr(NAMES, "_register_all", registering)
    threads = [threading.Thread(target=NAMES.register), threading.Thread(target=second)]
    threads[0].start()
    assert begun.wait(patience())
    threads[1].start()
    threads[1].join(0.2)  # time enough to go wrong
    go_on.set()
    for each in threads:
        each.join(patience())
    assert found == [{"one": 1, "other": 2}]


@pytest.mark.parametrize(
    ("value", "name"),
    [
        (True, "bool"),
        (3, "int64"),
        (2**63, "uint64"),
        (2.5, "float64"),
        (1j, "complex128"),
        (np.int8(1), "int8"),
        (np.float16(1), "float16"),
        (np.complex64(1), "complex64"),
        (np.datetime64("2020-01-01"), "datetime64[D]"),
        ((1, 2), "UniTuple(int64 x 2)"),
    ],
)
def test_types_of_scalars(numba, value, name):
    assert str(numba.typing.type_of(value)) == name


@pytest.mark.parametrize("value", ["text", [1], {1: 2}, object(), 2**65, (1, "a")])
def test_what_numba_takes_not(numba, value):
    with pytest.raises(TypeError, match="numba-cuda takes no"):
        numba.typing.type_of(value)


def test_signatures_are_parsed_into_numbas_types(numba):
    assert [str(each) for each in numba.typing.types_of("void(float32[::1], int64, boolean)")] == [
        "array(float32, 1d, C)",
        "int64",
        "bool",
    ]
    with pytest.raises(TypeError, match=r"a kernel returns nothing, but .* says float32"):
        numba.typing.types_of("float32(float32)")
    with pytest.raises(TypeError, match="is no signature"):
        numba.typing.types_of("void(")
    with pytest.raises(TypeError, match="is no signature"):
        numba.typing.types_of("void(unheard_of)")


def test_an_address_is_an_integer_of_64_bits(numba, devmem_backend):
    def kernel(where, n):
        i = cuda.grid(1)
        if i < n:
            where[i] = 2 * i

    from numba import cuda, types

    signature = types.void(types.CPointer(types.float32), types.int32)
    text = numba_cuda.kernel._signature_text(signature)
    assert text == "void(CPointer(float32), int32)"
    assert numba.typing.types_of(text) == signature.args
    code = ptx(numba, kernel, text)
    assert len(re.findall(r"\.param \.u64", code)) == 1 and re.search(r"\bst\.(global\.)?[fb]32\b", code)
    slot, words = numba.typing.slot(signature.args[0]), memoryview(bytearray(8))
    slot.put(0x7F00_1234_5678_9ABC, words, 0)
    assert int.from_bytes(words, "little") == 0x7F00_1234_5678_9ABC
    assert numba.typing.fits(signature.args[0], types.int64)
    assert not numba.typing.fits(signature.args[0], types.float32[::1])
    if devmem_backend == "host":  # the simulator runs it there
        with pytest.raises(
            TypeError, match=r"CPointer\(float32\) in .* the simulator takes no addresses.* float32\[:\]"
        ):
            numba_cuda.jit(signature)(kernel)[1, 1](dm.to_device(np.zeros(4, "f4")), 4)


@pytest.mark.parametrize(
    ("declared", "given", "fits"),
    [
        ("float32[::1]", "float32[::1]", True),
        ("float32[:]", "float32[::1]", True),
        ("float32[::1]", "float32[:]", False),
        ("float32[:]", "float64[:]", False),
        ("float32[:,:]", "float32[:]", False),
        ("float32", "int64", True),
        ("float32", "float64", True),
        ("int32", "int64", True),
        ("int32", "float64", False),
        ("complex64", "float64", True),
        ("float64", "complex128", False),
        ("int8", "boolean", True),
        ("float32[::1]", "float32", False),
    ],
)
def test_what_code_takes_what_arguments(numba, declared, given, fits):
    [one], [other] = numba.typing.types_of(f"void({declared})"), numba.typing.types_of(f"void({given})")
    assert numba.typing.fits(one, other) is fits


def test_a_read_only_array_fits_no_code_that_writes(numba):
    from numba.cuda import types

    writable = types.Array(types.float32, 1, "C")
    protected = types.Array(types.float32, 1, "C", readonly=True)
    assert numba.typing.fits(protected, writable)
    assert not numba.typing.fits(writable, protected)


def test_it_is_looked_for_and_not_imported():
    import subprocess

    script = (
        "import sys; from devmem.kernels.compilers.numba_cuda import NumbaCuda; NumbaCuda().unavailable(); "
        "assert not [name for name in sys.modules if name.startswith('numba')]"
    )
    subprocess.run([sys.executable, "-c", script], check=True, timeout=patience(140))


def test_where_numba_cuda_is_something_else_it_knows_no_names(monkeypatch):
    """numba's own, old one, or numba-hip posing as it."""
    from devmem.kernels.compilers import extensions, numba_cuda

    monkeypatch.setitem(sys.modules, "numba.cuda", sys)
    monkeypatch.delitem(sys.modules, "numba.hip", raising=False)
    monkeypatch.setattr(numba_cuda, "find_spec", lambda name: None)
    assert numba_cuda.type_of_name(dm.barrier) is None
    with pytest.raises(AttributeError):
        extensions.type_of(dm.barrier)
    assert not hasattr(dm.barrier, "_numba_type_")
