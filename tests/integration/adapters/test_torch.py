"""PyTorch itself, as far as it goes without a GPU: its own classes with our C library, and builds that know the host only."""

from __future__ import annotations

import ctypes
import sys
import textwrap

import numpy as np
import pytest

import devmem as dm
from devmem import memory
from devmem.adapters import torch as ours
from devmem.spi.types import CopyKind

torch = pytest.importorskip("torch", reason="PyTorch is not installed", exc_type=ImportError)

pytestmark = [
    pytest.mark.usefixtures("tidy"),
    pytest.mark.skipif(not sys.platform.startswith("linux"), reason="the C library is for Linux"),
]

#: The types of PyTorch's own header, CUDAPluggableAllocator.h.
ALLOCATE = ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_void_p)
FREE = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_void_p)

host_only = pytest.mark.skipif(
    torch.version.cuda is not None or torch.version.hip is not None, reason="this PyTorch was built for a GPU"
)


@pytest.fixture
def given(monkeypatch):
    """The two functions that PyTorch's CUDAPluggableAllocator hands to its C++ side, which a build for the host lacks."""
    monkeypatch.setattr(ours, "_shim", None)
    monkeypatch.setattr(torch.version, "cuda", torch.version.cuda or "13.0")
    seen = []
    # Looked up by the class when it is made.
    monkeypatch.setattr(torch._C, "_cuda_customAllocator", lambda *functions: seen.append(functions), raising=False)
    made = ours.pluggable_allocator()
    assert type(made) is torch.cuda.memory.CUDAPluggableAllocator
    [(allocate, release)] = seen
    yield ALLOCATE(allocate), FREE(release)
    ours._shim._library.devmem_disconnect()


def test_what_pytorch_finds_in_the_library_is_memory_of_the_stack(given, device):
    allocate, release = given
    counting, lent = memory.Statistics(), ours._shim.lent(device.ordinal)
    before, after = torch.arange(1000, dtype=torch.float64), torch.zeros(1000, dtype=torch.float64)
    side = dm.stream(non_blocking=True)
    with dm.use_memory(counting):
        for stream in (0, side.handle):
            ptr = allocate(8000, device.ordinal, stream)
            assert ptr % 256 == 0
            assert (counting.current_bytes, len(lent)) == (8000, 1)
            with device.entered() as driver:
                on = stream or 1
                driver.copy(ptr, before.data_ptr(), 8000, CopyKind.H2D, on, blocking=True)
                driver.copy(after.data_ptr(), ptr, 8000, CopyKind.D2H, on, blocking=True)
            assert torch.equal(before, after)
            after.zero_()
            release(ptr, 8000, device.ordinal, stream)
            dm.trim()
            assert (counting.current_bytes, len(lent)) == (0, 0)
        assert not allocate(0, device.ordinal, 0)


def test_tensors_go_to_the_device_and_back(device):
    tensor = torch.arange(24, dtype=torch.float32).reshape(4, 6)
    d = dm.to_device(tensor)
    assert torch.equal(torch.from_numpy(d.copy_to_host()), tensor)
    assert np.array_equal(dm.to_device(tensor.T).copy_to_host(), tensor.T.numpy())


def test_pytorch_in_the_process_is_a_catcher_for_the_exception(python):
    """What is thrown here is never caught, so the process says what it was."""
    done = python(
        textwrap.dedent(
            """
            import ctypes, resource, torch
            import devmem as dm
            from devmem.adapters import torch as ours
            resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
            shim = ours.shim(dm.current_device().backend)
            print("asks", flush=True)
            ctypes.CDLL(str(shim.path)).devmem_allocate(ctypes.c_ssize_t(1 << 60), 0, None)
            print("was given nothing")
            """
        )
    )
    assert done.stdout == "asks\n", done.stdout
    assert "c10::OutOfMemoryError" in done.stderr or "std::bad_alloc" in done.stderr  # of builds that do not export it
    assert "PyTorch asked devmem for 1048576.0 TiB (1,152,921,504,606,846,976 bytes)" in done.stderr


@host_only
@pytest.mark.parametrize(
    "ask", [ours.pluggable_allocator, lambda: dm.use_memory("torch")], ids=["ours as theirs", "theirs as ours"]
)
def test_a_build_for_the_host_is_named(ask):
    with pytest.raises(dm.BackendUnavailable, match=r"built for CUDA or ROCm; the one that is installed, .*host only"):
        ask()
    assert dm.zeros(3).tolist() == [0, 0, 0]
