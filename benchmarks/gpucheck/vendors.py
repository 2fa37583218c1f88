"""The differences between vendors: names, test files and tools."""

from __future__ import annotations

import contextlib
import shutil
import subprocess
from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True)
class Vendor:
    """One backend: its names, its tests and its tool."""

    backend: str
    gpu: str
    driver: str
    look: str
    hooks: str
    suite: str
    truth: tuple[str, ...]
    versions: tuple[str, ...]
    tool: Callable[[], dict[str, str]]
    #: Whether the vendor has a memory checker.
    sanitizer: bool

    def resources(self) -> str:
        """A test file that runs the conformance suite on devmem's memory resources over this driver."""
        module, _, name = self.hooks.partition(":")
        return RESOURCES.format(module=module, name=name, driver=self.driver)


RESOURCES = '''"""The conformance suite on devmem's memory resources over the {driver}."""

from devmem import memory
from {module} import {name}
from devmem.testing import MemoryResourceTests


class OnDevice(MemoryResourceTests):
    def make_backend(self):
        return {name}()


class TestDriverMemory(OnDevice):
    def make_resource(self, driver):
        return memory.DriverMemory()


class TestStreamOrderedMemory(OnDevice):
    def make_resource(self, driver):
        return memory.StreamOrderedMemory()


class TestPoolMemory(OnDevice):
    def make_resource(self, driver):
        return memory.PoolMemory()


class TestPinnedPool(OnDevice):
    def make_resource(self, driver):
        return memory.PinnedPool()


class TestAdaptorsOverPoolMemory(OnDevice):
    def make_resource(self, driver):
        return memory.Limit(memory.Statistics(memory.Scrub(memory.PoolMemory()), owners=True), "50%")


class TestGuardOverDriverMemory(OnDevice):
    def make_resource(self, driver):
        return memory.Guard(memory.DriverMemory(), quarantine_bytes="1MiB")
'''


def nvidia_smi() -> dict[str, str]:
    """The driver version and the bus, from the driver's tool."""
    asked = [
        "driver_version",
        "pcie.link.gen.max",
        "pcie.link.gen.current",
        "pcie.link.width.current",
        "persistence_mode",
    ]
    lines = _said("nvidia-smi", f"--query-gpu={','.join(asked)}", "--format=csv,noheader,nounits", "--id=0")
    return dict(zip(asked, (part.strip() for part in lines[0].split(",")), strict=False)) if lines else {}


def rocm() -> dict[str, str]:
    """The kernel driver and the ROCm release, from files of the installation."""
    found = {}
    for name, path in {"driver_version": "/sys/module/amdgpu/version", "rocm": "/opt/rocm/.info/version"}.items():
        with contextlib.suppress(OSError), open(path, encoding="utf-8") as file:  # noqa: PTH123
            found[name] = file.read().strip()
    return found


def _said(tool: str, *arguments: str) -> list[str]:
    found = shutil.which(tool)
    if found is not None:
        with contextlib.suppress(OSError, subprocess.SubprocessError):
            done = subprocess.run([found, *arguments], capture_output=True, text=True, timeout=20, check=True)
            return done.stdout.splitlines()
    return []


VENDORS = {
    "cuda": Vendor(
        backend="cuda",
        gpu="NVIDIA GPU",
        driver="CUDA driver",
        look="check nvidia-smi and CUDA_VISIBLE_DEVICES",
        hooks="devmem.backends.cuda.hooks:CudaBackend",
        suite="tests/contract/drivers/test_cuda.py",
        truth=(
            "tests/contract/emulator/test_truth_cuda.py",
            "tests/contract/emulator/test_truth_cuda_runtime.py",
        ),
        versions=(
            *("cuda-bindings", "cuda-core", "numba-cuda", "numba", "torch"),
            *("cupy-cuda13x", "cupy-cuda12x", "rmm-cu13", "rmm-cu12"),
        ),
        tool=nvidia_smi,
        sanitizer=True,
    ),
    "roc": Vendor(
        backend="roc",
        gpu="AMD GPU",
        driver="HIP runtime",
        look="check rocminfo, HIP_VISIBLE_DEVICES and ROCR_VISIBLE_DEVICES",
        hooks="devmem.backends.roc.hooks:RocBackend",
        suite="tests/contract/drivers/test_roc.py",
        truth=("tests/contract/emulator/test_truth_roc.py",),
        versions=("hip-python", "rocm-bindings-hip", "numba-hip", "cupy-rocm-7-0", "torch"),
        tool=rocm,
        sanitizer=False,
    ),
}
