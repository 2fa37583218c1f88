"""numba-cuda-mlir as a compiler, over the emulated driver: types, parameters, and the PTX of well-known kernels."""

from __future__ import annotations

import collections
import ctypes
import enum
import importlib.util
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from waits import patience

import devmem as dm
from devmem import laneid
from devmem._core.base import config
from devmem.kernels.code import compilers_of

_spec = importlib.util.spec_from_file_location(
    "devmem_tests_kernels_all", Path(__file__).parents[2] / "helpers" / "kernels_all.py"
)
kernels_all = importlib.util.module_from_spec(_spec)
sys.modules.setdefault(_spec.name, kernels_all)
_spec.loader.exec_module(kernels_all)

CASES = kernels_all.cases()
PAIR = collections.namedtuple("Pair", "x scale rest")
SCALARS = ["int8", "uint8", "int16", "int32", "int64", "uint64", "float16", "float32", "float64", "boolean"]
SCALARS += ["complex64", "complex128"]
POINT = np.dtype([("x", "<i4"), ("y", "<f8")], align=True)


@pytest.fixture
def mlir(devmem_backend):
    """The adapter, with a device open; skips without numba-cuda-mlir, and without a driver of CUDA's."""
    pytest.importorskip("numba_cuda_mlir", reason="numba-cuda-mlir is not installed")
    if devmem_backend != "cuda":
        pytest.skip("numba-cuda-mlir asks the CUDA driver which device is current")
    from devmem.kernels.compilers.numba_cuda_mlir import compiler

    with dm.current_device().entered():
        yield compiler


def ptx(mlir, function, signature, chip="sm_90", **options):
    """The kernel's PTX, without the device functions that were inlined and are left behind it."""
    code = mlir.ptx_for(getattr(function, "function", function), mlir.typing.types_of(signature), chip, options)
    assert code.count(".entry") == 1
    head, _, rest = code.partition(".visible .entry")
    return re.sub(r"\.func.*?\n}\n", "", head, flags=re.DOTALL) + rest.partition("\n}\n")[0]


def parameters(code):
    """The bytes of each parameter of the kernel in a PTX text."""
    code = code.partition(".entry")[2] or code
    found = re.findall(r"\.param (?:\.align \d+ )?\.[a-z]+(\d+) \S+_param_\d+(?:\[(\d+)\])?", code)
    return [int(many or 1) * int(bits) // 8 for bits, many in found]


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_the_kernels_that_everyone_knows(mlir, case):
    code = ptx(mlir, case.kernel, case.signature)
    assert [part for part in case.code if part not in code] == []
    slots = [mlir.typing.slot(each) for each in mlir.typing.types_of(case.signature)]
    assert parameters(code) == [size for slot in slots for size in slot.sizes]


def test_the_architecture_is_the_one_that_was_asked_for(mlir):
    assert ".target sm_80" in ptx(mlir, lambda array: None, "void(int8[::1])", "sm_80")
    image, name = mlir.image_for(lambda array: None, mlir.typing.types_of("void(int8[::1])"), driver("sm_90"), {})
    assert image.startswith(b"\x7fELF")
    assert name.encode() in image
    with pytest.raises(dm.UnsupportedError, match="'gfx90a' of stand-in is not a CUDA architecture"):
        mlir.architecture(driver("gfx90a"))


def driver(arch):
    info = collections.namedtuple("Info", "arch name")(arch, "stand-in")
    return collections.namedtuple("Driver", "info")(info)


def test_names_are_the_same_without_the_module_and_as_globals(mlir):
    def kernel(out):
        i = dm.grid(1)
        if laneid == 0:
            out[i] = dm.warpsize * 2
        if laneid:
            out[laneid] += dm.laneid % dm.warpsize + float(laneid) + min(laneid, 3) + (1 << laneid)
        for k in range(laneid):
            out[k] = -laneid
        pair = (laneid, i)
        out[1] = pair[0]

    code = ptx(mlir, kernel, "void(float32[::1])")
    assert "%laneid" in code
    assert "WARP_SZ" in code


def test_in_its_own_kernels_too(mlir):
    """In a fresh process, whose first name registers all others."""
    script = """
import devmem as dm
from devmem import barrier, laneid
from numba_cuda_mlir import cuda, types

def kernel(array):
    near = dm.shared.array(32, types.float32)
    near[laneid] = array[dm.get_global_id(0)]
    barrier()
    array[dm.threadIdx.x] = near[31 - dm.laneid]

with dm.current_device().entered():
    made = cuda.jit(types.void(types.float32[::1]))(kernel)
    [found] = made.overloads.values()
assert "%laneid" in found.ptx and "bar.sync" in found.ptx and ".shared" in found.ptx, found.ptx
"""
    subprocess.run([sys.executable, "-c", script], check=True, timeout=patience(140))


def test_barriers_are_one_instruction_and_fences_another(mlir):
    def several(out):
        dm.barrier()
        dm.barrier(dm.CLK_LOCAL_MEM_FENCE)
        dm.syncthreads()

    assert ptx(mlir, several, "void(int32[::1])").count("bar.sync") == 3

    def fences(out):
        dm.mem_fence(dm.CLK_LOCAL_MEM_FENCE)
        out[0] = 1
        dm.mem_fence(dm.CLK_GLOBAL_MEM_FENCE)
        out[1] = 1
        dm.mem_fence()

    assert re.findall(r"membar\.(\w+)", ptx(mlir, fences, "void(int32[::1])")) == ["cta", "gl", "gl"]


@pytest.mark.parametrize("axis", range(3))
@pytest.mark.parametrize(
    ("name", "registers"),
    [
        ("get_global_id", {"ctaid", "ntid", "tid"}),
        ("get_local_id", {"tid"}),
        ("get_group_id", {"ctaid"}),
        ("get_local_size", {"ntid"}),
        ("get_num_groups", {"nctaid"}),
        ("get_global_size", {"nctaid", "ntid"}),
    ],
)
def test_where_a_thread_is_along_an_axis(mlir, name, registers, axis):
    function = getattr(dm, name)

    def kernel(out):
        out[0] = function(axis)

    found = set(re.findall(r"%(n?c?t[a-z]*id)\.([xyz])", ptx(mlir, kernel, "void(int64[::1])")))
    assert found == {(each, "xyz"[axis]) for each in registers}


def test_a_grid_takes_a_constant(mlir):
    def kernel(out):
        out[dm.grid(out.size)] = 1

    with pytest.raises(Exception, match=r"devmem\.grid\(ndim\) takes a constant: 1, 2 or 3"):
        ptx(mlir, kernel, "void(float32[::1])")


def test_device_functions_call_each_other(mlir):
    @dm.kernel(device=True)
    def twice(value):
        return value + value

    @dm.kernel(device=True)
    def fourfold(value):
        return twice(twice(value))

    def kernel(out, number):
        i = dm.grid(1)
        out[i] = fourfold(out[i]) + fourfold(number)

    assert ptx(mlir, kernel, "void(float32[::1], int64)").count("add.") >= 4


def test_functions_that_only_cuda_has(mlir):
    from devmem.compat import numba_cuda as cuda
    from devmem.compat.numba_cuda import libdevice, random

    def kernel(whole, real, out):
        i = dm.grid(1)
        out[i] = cuda.popc(whole[i]) + cuda.clz(whole[i]) + cuda.brev(whole[i]) + cuda.ffs(whole[i])
        out[i] += cuda.shfl_down_sync(0xFFFFFFFF, whole[i], 1) + cuda.selp(whole[i] > 0, 1, 2)
        out[i] += cuda.ballot_sync(0xFFFFFFFF, whole[i] > 3) + cuda.syncthreads_count(whole[i])
        real[i] = libdevice.rsqrtf(real[i]) + cuda.fma(real[i], real[i], real[i])
        cuda.syncwarp()
        cuda.threadfence_system()

    code = ptx(mlir, kernel, "void(int32[::1], float32[::1], int32[::1])")
    for part in ("shfl.", "popc.", "clz.", "brev.", "vote", "membar.sys", "bar.red", "rsqrt.", "fma."):
        assert part in code, part

    def drawing(states, out):
        i = dm.grid(1)
        out[i] = random.xoroshiro128p_uniform_float64(states, i) + random.xoroshiro128p_normal_float32(states, i)

    types = mlir.typing.from_dtype(random.xoroshiro128p_dtype)[::1], mlir.types.float64[::1]
    assert "st.global" in mlir.ptx_for(drawing, types, "sm_90", {})


@pytest.mark.parametrize("name", ["max", "min", "nanmax", "nanmin"])
def test_atomic_operations_that_it_would_do_wrongly_are_refused(mlir, name):
    operation = getattr(dm.atomic, name)
    made: dict = {"dm": dm}
    exec(f"def kernel(array):\n    dm.atomic.{operation.__name__}(array, 0, array[1])", made)
    with pytest.raises(Exception, match="compares unsigned integers of atomic"):
        ptx(mlir, made["kernel"], "void(uint32[::1])")
    assert "atom.global" in ptx(mlir, made["kernel"], "void(int32[::1])")


def test_options_change_the_code(mlir):
    def kernel(out, x):
        out[0] = out[1] / x

    assert ".loc" not in ptx(mlir, kernel, "void(float32[::1], float32)")
    assert ".loc" in ptx(mlir, kernel, "void(float32[::1], float32)", lineinfo=True)
    assert ".maxntid 64" in ptx(mlir, kernel, "void(float32[::1], float32)", launch_bounds=64)
    with pytest.raises(TypeError, match="numba-cuda-mlir has no option speed: its options are debug, fastmath"):
        ptx(mlir, kernel, "void(float32[::1], float32)", speed=11)


# -- types and parameters ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", SCALARS)
def test_a_scalar_is_one_parameter(mlir, kind):
    def kernel(array, x):
        array[0] = x

    array = "float32[::1]" if kind == "float16" else f"{kind}[::1]"
    code = ptx(mlir, kernel, f"void({array}, {kind})")
    slots = [mlir.typing.slot(each) for each in mlir.typing.types_of(f"void({array}, {kind})")]
    assert parameters(code) == [size for slot in slots for size in slot.sizes]


def test_tuples_records_and_enumerations(mlir):
    Colour = enum.IntEnum("Colour", {"RED": 7})
    types, array = mlir.types, mlir.types.float64[::1]
    pair = types.BaseTuple.from_types((array, types.float64, types.UniTuple(array, 1)), PAIR)
    record = mlir.typing.from_dtype(POINT)
    kinds = pair, record, types.Array(record, 1, "A"), mlir.typing.type_of(Colour.RED), array

    def kernel(pair, record, records, colour, out):
        i = dm.grid(1)
        out[i] = pair.x[i] * pair.scale + pair.rest[0][i] + record.y + records[i].y
        if colour == Colour.RED:
            out[0] = 1

    code = mlir.ptx_for(kernel, kinds, "sm_90", {})
    assert parameters(code) == [size for kind in kinds for size in mlir.typing.slot(kind).sizes]


def test_the_words_of_an_array(mlir):
    """Twice the address, an offset of 0, the lengths, and the strides in elements: in bytes where these are records."""
    from devmem.kernels.compilers.abi import Frame

    plain = dm.to_device(np.zeros((4, 6), np.float32))[1:, ::2]
    records = dm.to_device(np.zeros(4, POINT))[::2]
    slots = [mlir.typing.slot(mlir.typing.type_of(each)) for each in (plain, records)]
    frame = Frame([*slots, mlir.typing.slot(mlir.types.complex128), mlir.typing.slot(mlir.types.int8)])
    frame.fill([plain, records, 1 + 2j, -1])
    words = list(frame.words[:12])
    assert words == [plain.ptr, plain.ptr, 0, 3, 3, 6, 2, records.ptr, records.ptr, 0, 2, 32]
    assert frame.bytes[12 * 8 : 14 * 8].cast("d").tolist() == [1.0, 2.0]
    at = [(pointer or 0) - ctypes.addressof(frame.store) for pointer in frame.pointers]
    assert at == [*range(0, 13 * 8, 8), 14 * 8], "a complex number is one parameter of two words"


def test_arrays_that_it_would_address_wrongly_are_refused(mlir):
    packed = dm.to_device(np.zeros(4, [("x", "i1"), ("y", "<f8")]))
    with pytest.raises(TypeError, match=r"its strides are \(9,\), its items have 8 bytes: copy it"):
        mlir.typing.type_of(packed["y"])
    records = dm.to_device(np.zeros(4, np.dtype([("x", "<f4"), ("y", "<f4"), ("z", "<f4")])))
    assert str(mlir.typing.type_of(records["y"])) == "array(float32, 1d, A)"


def test_devmem_arrays_are_arguments_of_its_own_kernels(mlir):
    from numba_cuda_mlir.numba_cuda.typing.typeof import typeof

    host = np.zeros((4, 6), np.float32)
    array = dm.to_device(host)
    for each in (array, array.T, array[:, ::2], array[0]):
        assert typeof(each) == mlir.typing.type_of(each)


# -- choosing ----------------------------------------------------------------------------------------------------------


@pytest.fixture
def choose(monkeypatch):
    yield lambda name: (monkeypatch.setenv("DEVMEM_KERNEL_COMPILER", name), config.forget())
    monkeypatch.undo()
    config.forget()


def test_a_setting_chooses_it(choose):

    names = [each.name for each in compilers_of("cuda")]
    assert names[:2] == ["numba_cuda", "numba_cuda_mlir"]
    choose("numba_cuda_mlir")
    assert [each.name for each in compilers_of("cuda")] == ["numba_cuda_mlir"]
    assert [each.name for each in compilers_of("host")] == ["simulator"], "the setting names none of this backend's"
    choose("nvcc")
    with pytest.raises(dm.ConfigError, match="DEVMEM_KERNEL_COMPILER is 'nvcc', and no such compiler is known"):
        compilers_of("cuda")


def test_it_is_looked_for_and_not_imported():
    script = (
        "import sys; from devmem.kernels.compilers.numba_cuda_mlir import NumbaCudaMlir; NumbaCudaMlir().unavailable(); "
        "assert not [name for name in sys.modules if name.startswith('numba')]"
    )
    subprocess.run([sys.executable, "-c", script], check=True, timeout=patience(140))


def test_without_it_the_command_that_installs_it_is_told(monkeypatch):
    from devmem.kernels.compilers import numba_cuda_mlir

    monkeypatch.setattr(numba_cuda_mlir, "find_spec", lambda name: None)
    told = numba_cuda_mlir.NumbaCudaMlir().unavailable()
    assert "pip install 'devmem-arrays[cuda-kernels-mlir]'" in told
