"""`devmem.compat.numba_cuda` without a device: names, signatures beside numba-cuda's own, layouts, what is imported."""

from __future__ import annotations

import importlib
import importlib.metadata
import inspect
import itertools
import subprocess
import sys
import warnings

import numpy as np
import pytest
from waits import patience

from devmem.compat import numba_cuda as cuda
from devmem.compat.numba_cuda import errors
from devmem.compat.numba_cuda.cudadrv import driver, dummyarray
from devmem.compat.numba_cuda.cudadrv.dummyarray import Array, Dim, Element

#: Names of numba.cuda that old code has, by module.
NAMES = {
    "": """
        to_device device_array device_array_like pinned pinned_array pinned_array_like mapped mapped_array mapped_array_like
        managed_array stream default_stream legacy_default_stream per_thread_default_stream external_stream event
        event_elapsed_time current_context gpus list_devices select_device get_current_device close synchronize detect
        is_available is_supported_version cuda_error require_context defer_cleanup profiling profile_start profile_stop
        as_cuda_array from_cuda_array_interface is_cuda_array open_ipc_array BaseCUDAMemoryManager HostOnlyCUDAMemoryManager
        GetIpcHandleMixin MemoryPointer MappedMemory PinnedMemory MemoryInfo IpcHandle set_memory_manager CudaSupportError
        KernelRuntimeError is_float16_supported is_bfloat16_supported is_fp8_supported jit shared local const atomic grid
        gridsize threadIdx blockIdx blockDim gridDim laneid warpsize syncthreads In Out InOut cudadrv devices devicearray driver
        runtime
        """,
    "cudadrv.devicearray": """
        DeviceNDArray DeviceNDArrayBase DeviceRecord MappedNDArray ManagedNDArray IpcArrayHandle from_record_like
        from_array_like auto_device array_core is_contiguous is_cuda_ndarray require_cuda_ndarray sentry_contiguous
        verify_cuda_ndarray_interface check_array_compatibility errmsg_contiguous_buffer
        """,
    "cudadrv.driver": """
        driver Driver Stream Event Context Device MemoryPointer AutoFreePointer OwnedPointer MappedMemory ManagedMemory
        PinnedMemory MappedOwnedPointer ManagedOwnedPointer IpcHandle host_to_device device_to_host device_to_device
        device_memset device_memory_size device_extents device_memory_depends host_memory_extents host_memory_size host_pointer
        device_pointer device_ctypes_pointer is_device_memory require_device_memory memory_size_from_info CudaAPIError
        CudaDriverError DeadMemoryError LinkerError MemoryInfo BaseCUDAMemoryManager HostOnlyCUDAMemoryManager
        GetIpcHandleMixin NumbaCUDAMemoryManager set_memory_manager event_elapsed_time get_version profile_start profile_stop
        profiling
        """,
    "cudadrv.devices": "gpus get_context require_context reset",
    "cudadrv.error": """
        CudaDriverError CudaRuntimeError CudaSupportError NvvmError NvvmSupportError NvvmWarning NvrtcError
        NvrtcCompilationError NvrtcBuiltinOperationFailure NvrtcSupportError CCSupportError
        """,
    "cudadrv.runtime": "runtime get_version",
    "cudadrv.dummyarray": "Array Dim Element Extent compute_index is_element_indexing",
    "devicearray": "DeviceNDArray from_array_like",
    "kernels.transpose": "transpose",
    "errors": "KernelRuntimeError UnsupportedBytecodeError CudaLoweringError normalize_kernel_dimensions",
}
#: Classes whose methods old code calls.
CLASSES = {
    "cudadrv.devicearray": {
        "DeviceNDArray": "copy_to_host copy_to_device getitem setitem reshape ravel transpose view squeeze split bind "
        "is_c_contiguous is_f_contiguous get_ipc_handle as_cuda_arg",
        "DeviceRecord": "copy_to_device getitem setitem",
        "IpcArrayHandle": "open close",
    },
    "cudadrv.driver": {
        "MemoryPointer": "own free memset view",
        "AutoFreePointer": "own free",
        "MappedMemory": "own free",
        "ManagedMemory": "own",
        "IpcHandle": "open open_staged open_direct open_array close can_access_peer",
        "Stream": "synchronize auto_synchronize add_callback async_done",
        "Event": "query record wait synchronize elapsed_time",
        "Context": "memalloc memallocmanaged memhostalloc mempin get_memory_info get_ipc_handle open_ipc_handle "
        "enable_peer_access can_access_peer create_stream create_external_stream create_event get_default_stream "
        "get_legacy_default_stream get_per_thread_default_stream synchronize defer_cleanup push pop reset prepare_for_use",
        "Device": "get_device_identity get_primary_context release_primary_context reset from_identity",
        "BaseCUDAMemoryManager": "memalloc memhostalloc mempin initialize get_ipc_handle get_memory_info reset defer_cleanup",
        "HostOnlyCUDAMemoryManager": "memhostalloc mempin memallocmanaged reset defer_cleanup",
        "GetIpcHandleMixin": "get_ipc_handle",
    },
}


def module(name, root="devmem.compat.numba_cuda"):
    return importlib.import_module(f"{root}.{name}" if name else root)


@pytest.mark.parametrize(("where", "name"), [(where, name) for where, names in NAMES.items() for name in names.split()])
def test_every_name_is_there(where, name):
    assert hasattr(module(where), name)


def test_all_says_what_there_is():
    assert sorted(set(cuda.__all__)) == sorted(cuda.__all__)
    assert all(hasattr(cuda, name) for name in cuda.__all__)
    public = {name for name in NAMES[""].split() if name != "cudadrv"}
    assert public <= set(cuda.__all__)
    with pytest.raises(AttributeError, match="nonsense"):
        cuda.nonsense  # noqa: B018


def test_importing_it_imports_neither_numba_nor_a_vendor():
    script = (
        "import sys, devmem; assert 'devmem.compat' not in sys.modules\n"
        "from devmem.compat import numba_cuda as cuda\n"
        "cuda.jit(lambda x: None); cuda.jit('void(float32[:])')(lambda x: None)\n"
        "hasattr(cuda, 'nonsense')\n"
        "print(sorted({m.partition('.')[0] for m in sys.modules} & {'numba', 'numba_cuda', 'cuda', 'hip', 'rocm', 'llvmlite'}))"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, timeout=patience(140), check=False
    )
    assert done.stdout.strip() == "[]", done.stderr


def test_names_of_the_compiler_ask_for_it():
    try:
        importlib.metadata.version("numba-cuda")
    except importlib.metadata.PackageNotFoundError:
        with pytest.raises(AttributeError, match="numba-cuda"):
            cuda.compile_ptx  # noqa: B018
    else:
        assert callable(cuda.compile_ptx)


# -- signatures --------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def theirs():
    """The installed numba-cuda's namespace."""
    try:
        importlib.metadata.version("numba-cuda")
    except importlib.metadata.PackageNotFoundError:
        pytest.skip("numba-cuda is not installed, to be compared with: `nox -s allocators` has it")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return lambda name: module(name, "numba.cuda")


def parameters(function):
    """Names, kinds and defaults."""
    found = inspect.signature(function).parameters.values()
    return [(each.name, each.kind, each.default) for each in found]


FUNCTIONS = [
    (where, name)
    for where, names in NAMES.items()
    for name in names.split()
    if inspect.isroutine(getattr(module(where), name, None))
]


@pytest.mark.parametrize(("where", "name"), FUNCTIONS)
def test_functions_have_numba_cudas_signatures(where, name, theirs):
    other = theirs("cudadrv.devicearray" if where == "devicearray" else where)
    if not hasattr(other, name) or not inspect.isroutine(getattr(other, name)):
        pytest.skip(f"numba.cuda has {name} of another kind")
    assert parameters(getattr(module(where), name)) == parameters(getattr(other, name))


METHODS = [
    (where, kind, method)
    for where, kinds in CLASSES.items()
    for kind, methods in kinds.items()
    for method in ["__init__", *methods.split()]
]


@pytest.mark.parametrize(("where", "kind", "method"), METHODS)
def test_methods_have_numba_cudas_signatures(where, kind, method, theirs):
    ours, other = getattr(module(where), kind), getattr(theirs(where), kind)
    mine, given = parameters(getattr(ours, method)), parameters(getattr(other, method))
    if method == "__init__" and any(each[1] is inspect.Parameter.VAR_POSITIONAL for each in given):
        pytest.skip("numba.cuda's takes anything")
    assert mine == given


# -- layouts without memory --------------------------------------------------------------------------------------------

BASE = np.arange(120, dtype="i4").reshape(4, 5, 6)


@pytest.mark.parametrize("source", [BASE, np.asfortranarray(BASE), BASE[::2, 1:, ::3], BASE.transpose(2, 0, 1)])
@pytest.mark.parametrize(
    "key",
    [0, -1, (1, 2), np.s_[1:], np.s_[:, 1], np.s_[::2, :, 1], np.s_[:, :, ::-1], np.s_[1:, -1], np.s_[9:]],
    ids=str,
)
def test_slicing_a_layout(source, key):
    found, wanted = Array.from_desc(0, source.shape, source.strides, 4)[key], source[key]
    assert found.shape == wanted.shape
    assert (found.is_c_contig, found.is_f_contig) == (wanted.flags.c_contiguous, wanted.flags.f_contiguous)
    if wanted.size:
        assert found.strides == wanted.strides
        assert sum(dim.start for dim in found.dims) == wanted.ctypes.data - source.ctypes.data


@pytest.mark.parametrize("key", [(0, 0, 0), (1, 2, 1), (-1, -1, -1)])
def test_one_element_of_a_layout(key):
    found = Array.from_desc(0, BASE.shape, BASE.strides, 4)[key]
    assert isinstance(found, Element)
    at = BASE[key] * 4  # each element says where it is
    assert found.extent == (at, at + 4)
    assert list(found.iter_contiguous_extent()) == [(at, at + 4)]


@pytest.mark.parametrize("source", [BASE, np.asfortranarray(BASE), BASE[::2], BASE[:, :, ::2], BASE[:1, :, :3]])
@pytest.mark.parametrize("order", "CF")
def test_reshaping_a_layout(source, order):
    layout = Array.from_desc(0, source.shape, source.strides, 4)
    size = source.size
    for shape in {(size,), (-1,), (1, size), (size // 3, 3), (3, size // 3), (2, -1, 1), source.shape[::-1]}:
        try:
            wanted = source.reshape(shape, order=order)
        except ValueError:
            continue
        try:
            found = layout.reshape(*shape, order=order)[0]
        except NotImplementedError:
            assert not np.shares_memory(wanted, source)
            continue
        assert np.shares_memory(wanted, source)
        assert found.shape == wanted.shape
        long = [at for at, count in enumerate(wanted.shape) if count > 1]
        assert [found.strides[at] for at in long] == [wanted.strides[at] for at in long]


@pytest.mark.parametrize(
    ("call", "error"),
    [
        (lambda a: a.reshape(7), ValueError),
        (lambda a: a.reshape(-1, -1), ValueError),
        (lambda a: a.reshape(-1, 7), ValueError),
        (lambda a: a.reshape(120, order="X"), ValueError),
        (lambda a: a.reshape(120, nonsense=1), TypeError),
        (lambda a: a.ravel("X"), ValueError),
        (lambda a: a[:, ::2].ravel(), NotImplementedError),
        (lambda a: a.squeeze(1), ValueError),
        (lambda a: a[0, 0, 0, 0], IndexError),
        (lambda a: a[4], IndexError),
        (lambda a: Array.from_desc(0, (2.5,), (4,), 4), TypeError),
    ],
)
def test_what_layouts_there_are_not(call, error):
    with pytest.raises(error):
        call(Array.from_desc(0, BASE.shape, BASE.strides, 4))


def test_other_facts_of_a_layout():
    layout = Array.from_desc(0, BASE.shape, BASE.strides, 4)
    assert layout.reshape(*BASE.shape) == (layout, None)
    assert layout.ravel()[0].shape == (120,)
    assert layout.extent == (0, 480)
    assert list(layout.iter_contiguous_extent()) == [(0, 480)]
    rows = layout[:, 1:3]
    assert len(list(layout[:, :, 0].iter_contiguous_extent())) == 20
    covered = sum(end - begin for begin, end in rows.iter_contiguous_extent())
    assert covered == 4 * 2 * 6 * 4
    one = Array.from_desc(0, (1, 5, 1), (20, 4, 4), 4)
    assert one.squeeze()[0].shape == (5,)
    assert one.squeeze((0,))[0].shape == (5, 1)
    repeated = Array.from_desc(0, (3, 5), (0, 4), 4)
    assert not repeated.is_c_contig
    assert Dim(0, 20, 5, 4, False).is_contiguous(4)
    assert dummyarray.compute_index((1, 2, 3), layout.dims) == 1 * 120 + 2 * 24 + 3 * 4
    for item, ndim, single in [
        (0, 1, True),
        ((0, 1), 2, True),
        ((0,), 2, False),
        (slice(1), 1, False),
        ((0, slice(1)), 2, False),
    ]:
        assert dummyarray.is_element_indexing(item, ndim) is single
    for shape in itertools.product((0, 1, 2), repeat=2):
        assert Array.from_desc(0, shape, (8, 4), 4).size == shape[0] * shape[1]


# -- the rest ----------------------------------------------------------------------------------------------------------


def test_drvapi_warns_as_it_does_in_numba_cuda():
    sys.modules.pop("devmem.compat.numba_cuda.cudadrv.drvapi", None)
    with pytest.warns(DeprecationWarning, match="drvapi"):
        found = importlib.import_module("devmem.compat.numba_cuda.cudadrv.drvapi")
    assert found.cu_device_ptr(5).value == 5
    assert len(bytes(found.cu_ipc_mem_handle())) == 64
    assert (found.CU_STREAM_DEFAULT, found.CU_STREAM_LEGACY, found.CU_STREAM_PER_THREAD) == (0, 1, 2)


@pytest.mark.parametrize(
    ("grid", "block", "error"),
    [
        (None, 1, ValueError),
        (1, None, ValueError),
        ((1, 2, 3, 4), 1, ValueError),
        (1.5, 1, TypeError),
        (1, ("a",), TypeError),
    ],
)
def test_launch_configurations_that_are_none(grid, block, error):
    with pytest.raises(error):
        errors.normalize_kernel_dimensions(grid, block)


def test_launch_configurations():
    assert errors.normalize_kernel_dimensions(4, (8, np.int64(2))) == ((4, 1, 1), (8, 2, 1))
    error = errors.KernelRuntimeError("it broke", (1, 0, 0), (2, 0, 0))
    assert (error.tid, error.ctaid, error.msg) == ((1, 0, 0), (2, 0, 0), "it broke")
    assert "it broke" in str(error)
    assert "line 3" in str(errors.UnsupportedBytecodeError("no", loc="line 3"))


def test_sizes_of_host_memory_need_no_device():
    host = np.arange(24.0).reshape(4, 6)
    assert driver.host_memory_size(host[:, ::2]) == 184
    assert driver.memory_size_from_info((4, 3), (48, 16), 8) == 184
    with pytest.raises(AssertionError):
        driver.memory_size_from_info((4, 3), (48,), 8)
    with pytest.raises(ValueError, match="read-only"):
        driver.host_pointer(np.broadcast_to(host, (4, 6)))
    assert driver.host_pointer(np.broadcast_to(host, (4, 6)), readonly=True) == host.ctypes.data
