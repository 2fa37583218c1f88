"""Which libraries have NVIDIA's CUDA runtime inside, by their binaries: what docs/reference/real-libraries.md says of each.

A library with the runtime inside links no ``libcudart``, and has the runtime's texts of errors in itself. Where the runtime is
linked, the emulated one takes its place; where it is inside, nothing can, and what calls it needs a GPU. ``nox -s judges``,
``nox -s allocators``.
"""

import os
from importlib import metadata
from pathlib import Path

import pytest

from devmem.testing.emulator import elf

#: The runtime's text of cudaErrorInsufficientDriver.
TEXT = b"CUDA driver version is insufficient for CUDA runtime version"

#: Distribution, file in it, and how it comes to the runtime. Nothing that the tables show of UCXX calls the runtime inside it.
BINARIES = [
    ("librmm-cu13", "librmm/lib64/librmm.so", "inside"),
    ("cupy-cuda13x", "cupy_backends/cuda/api/runtime.*.so", "inside"),
    ("cuda-bindings", "cuda/bindings/_internal/runtime.*.so", "inside"),
    ("libucxx-cu13", "libucxx/lib64/libucxx.so", "inside"),
    ("libkvikio-cu13", "libkvikio/lib64/libkvikio.so", "none"),
    ("libucx-cu13", "libucx/lib/ucx/libuct_cuda.so", "none"),
    ("torch", "torch/lib/libc10_cuda.so", "linked"),
]


@pytest.mark.parametrize(("distribution", "file", "how"), BINARIES, ids=[each[0] for each in BINARIES])
def test_the_runtime_is_inside_linked_or_absent(distribution, file, how):
    try:
        paths = list(Path(metadata.distribution(distribution).locate_file("")).glob(file))
    except metadata.PackageNotFoundError:
        paths = []
    if not paths:  # PyTorch's build for the host alone lacks the file
        assert distribution not in os.environ.get("JUDGES", "").split(), f"{distribution} is not installed"
        pytest.skip(f"{distribution} is not installed: nox -s judges, or allocators")
    [path] = paths
    linked = any(name.startswith("libcudart.so") for name in elf.read(path).needed)
    inside = TEXT in path.read_bytes()
    assert ("linked" if linked else "inside" if inside else "none") == how
