"""Why CUDA cannot be used here: each reason has a sentence of its own, raises nothing and prints nothing.

Each case is a world of its own, so each runs in a fresh interpreter.
"""

from __future__ import annotations

import importlib
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from waits import patience

from devmem.backends.cuda.hooks import CudaBackend
from devmem.testing import emulator

ROOT = Path(__file__).resolve().parents[3]

_reason = CudaBackend().unavailable()
pytestmark = [
    pytest.mark.skipif(_reason is not None, reason=f"no CUDA driver, real or emulated: {_reason}"),
    pytest.mark.skipif("DEVMEM_EMULATOR" not in os.environ, reason="needs an emulated driver, which can be taken away"),
]

#: The major version of CUDA that the binding is made for.
SERIES = importlib.import_module("cuda.bindings.driver").CUDA_VERSION // 1000 if _reason is None else 0

STATUS = """
import json
import devmem
(found,) = [each for each in devmem.backends() if each.name == "cuda"]
again = [each for each in devmem.backends() if each.name == "cuda"]
assert again == [found], "asked twice, answered differently"
print(json.dumps({"usable": found.usable, "reason": found.reason, "devices": found.devices}))
"""

#: The driver is there, and one function of it fails at once.
FAILING = """
from devmem.testing import emulator
emulator.load("cuda")
emulator.control("cuda").fail({function!r}, 1, {code}, repeat=True)
"""


def plain(**more: str) -> dict[str, str]:
    """An environment without the emulator, and whatever else is wanted."""
    folder = str(emulator.library("cuda").parent)
    paths = [path for path in os.environ.get("LD_LIBRARY_PATH", "").split(os.pathsep) if path and path != folder]
    kept = {
        name: value
        for name, value in os.environ.items()
        if name not in ("LD_LIBRARY_PATH", "CUDA_VISIBLE_DEVICES") and not name.startswith("DEVMEM_")
    }
    if paths:
        kept["LD_LIBRARY_PATH"] = os.pathsep.join(paths)
    return {**kept, "PYTHONPATH": str(ROOT), **more}


def emulated(**more: str) -> dict[str, str]:
    """An environment with the emulator."""
    chosen = emulator.environment("cuda")
    return {**plain(), "LD_LIBRARY_PATH": chosen["LD_LIBRARY_PATH"], **more}


def run(script: str, environment: dict[str, str]) -> str:
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", script],
        env=environment,
        capture_output=True,
        text=True,
        timeout=patience(140),
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stderr == "", "something was printed"
    return done.stdout


def status(environment: dict[str, str], before: str = "") -> dict[str, object]:
    lines = run(before + STATUS, environment).splitlines()
    assert len(lines) == 1, f"something was printed: {lines}"
    found = json.loads(lines[0])
    assert isinstance(found, dict)
    return found


def refusal(environment: dict[str, str], before: str = "") -> str:
    found = status(environment, before)
    assert found["usable"] is False
    assert found["devices"] == 0
    assert isinstance(found["reason"], str)
    assert "\n" not in found["reason"]
    return found["reason"]


def has_driver() -> bool:
    return status(plain())["usable"] is True


def test_with_a_driver_and_devices_cuda_is_usable() -> None:
    assert status(emulated()) == {"usable": True, "reason": None, "devices": 2}


@pytest.mark.parametrize("missing", ["cuda", "cuda.bindings", "cuda.bindings.driver"])
def test_bindings_that_are_not_installed(missing: str) -> None:
    blocker = f"""
import sys
class Blocker:
    def find_spec(self, name, path=None, target=None):
        if name == {missing!r}:
            raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)
for name in [each for each in sys.modules if each.partition(".")[0] == "cuda"]:
    del sys.modules[name]  # a .pth file may have brought it in
sys.meta_path.insert(0, Blocker())
"""
    reason = refusal(emulated(), blocker)
    assert reason.startswith("cuda-bindings is not installed")
    assert missing.rpartition(".")[2] in reason
    assert "pip install 'devmem-arrays[cuda13]'" in reason
    assert "devmem-arrays[cuda12]" in reason


@pytest.mark.parametrize("error", ["ImportError", "RuntimeError", "AttributeError"])
def test_bindings_that_cannot_be_loaded(error: str) -> None:
    """A broken installation: the module is there, and its own import fails."""
    blocker = f"""
import sys
class Blocker:
    def find_spec(self, name, path=None, target=None):
        if name == "cuda.bindings.driver":
            raise {error}("libsomething.so: cannot open shared object file")
sys.meta_path.insert(0, Blocker())
"""
    reason = refusal(emulated(), blocker)
    assert "libsomething.so" in reason
    assert "pip install" in reason


def test_no_driver_library() -> None:
    if has_driver():
        # The real one is there as soon as the emulator is not. Then the binding is made to say what it says without.
        before = """
from cuda.bindings import driver
def absent(*_):
    raise RuntimeError("Failed to dlopen libcuda.so.1")
driver.cuInit = absent
"""
        reason = refusal(plain(), before)
    else:
        reason = refusal(plain())
    assert reason.startswith("no NVIDIA driver library was found")
    assert "install the NVIDIA driver" in reason


def test_a_driver_without_devices_is_told() -> None:
    reason = refusal(emulated(DEVMEM_EMULATOR_DEVICES="0"))
    assert reason == "the NVIDIA driver sees no device: check nvidia-smi"


@pytest.mark.parametrize("hidden", ["", "-1", "7"])
def test_every_device_hidden(hidden: str) -> None:
    reason = refusal(emulated(CUDA_VISIBLE_DEVICES=hidden))
    assert reason.startswith("the NVIDIA driver sees no device")
    assert f"CUDA_VISIBLE_DEVICES={hidden!r} hides devices" in reason


def test_hidden_devices_do_not_count() -> None:
    assert status(emulated(CUDA_VISIBLE_DEVICES="1"))["devices"] == 1


@pytest.mark.parametrize(("version", "spelled"), [("11080", "11.8"), ("11020", "11.2"), ("10010", "10.1")])
def test_too_old_a_driver(version: str, spelled: str) -> None:
    reason = refusal(emulated(DEVMEM_EMULATOR_CUDA_VERSION=version))
    assert reason == f"the NVIDIA driver supports CUDA {spelled}, devmem needs 12.0: update the driver"


@pytest.mark.parametrize(("version", "spelled"), [("12000", "12.0"), ("12060", "12.6"), ("12090", "12.9")])
def test_too_old_a_driver_for_the_binding(version: str, spelled: str) -> None:
    """The binding of CUDA 13 calls functions by names that a driver of CUDA 12 has not got; that of CUDA 12 does not."""
    if SERIES < 13:
        assert status(emulated(DEVMEM_EMULATOR_CUDA_VERSION=version))["usable"] is True
        return
    reason = refusal(emulated(DEVMEM_EMULATOR_CUDA_VERSION=version))
    assert reason == (
        f"the NVIDIA driver supports CUDA {spelled}, this cuda.bindings needs 13.0: "
        f"update the driver, or pip install 'devmem-arrays[cuda12]'"
    )


def test_the_oldest_driver_that_will_do() -> None:
    assert status(emulated(DEVMEM_EMULATOR_CUDA_VERSION=f"{SERIES}000"))["usable"] is True


@pytest.mark.parametrize(
    ("code", "name"),
    [
        (4242, "a status that this cuda.bindings is too old for"),
        (803, "CUDA_ERROR_SYSTEM_DRIVER_MISMATCH"),
        (802, "CUDA_ERROR_SYSTEM_NOT_READY"),
        (999, "CUDA_ERROR_UNKNOWN"),
    ],
)
def test_a_driver_that_does_not_start(code: int, name: str) -> None:
    reason = refusal(emulated(), FAILING.format(function="cuInit", code=code))
    assert reason.startswith(f"cuInit failed with {name}")
    assert "nvidia-smi" in reason or "update cuda-bindings" in reason


def test_a_driver_that_does_not_say_its_version() -> None:
    reason = refusal(emulated(), FAILING.format(function="cuDriverGetVersion", code=999))
    assert reason.startswith("cuDriverGetVersion failed with CUDA_ERROR_UNKNOWN")


def test_a_driver_that_starts_without_devices() -> None:
    none = """
from cuda.bindings import driver
driver.cuDeviceGetCount = lambda: (driver.CUresult.CUDA_SUCCESS, 0)
"""
    assert refusal(emulated(), none) == "the NVIDIA driver sees no device: check nvidia-smi"
    choose = """
import warnings, devmem
with warnings.catch_warnings(record=True) as told:
    warnings.simplefilter("always")
    assert devmem.current_device().backend == "host"
assert "sees no device" in str(told[0].message)
try:
    devmem.use_backend("cuda")
except devmem.BackendUnavailable as error:
    assert "sees no device" in str(error)
else:
    raise AssertionError("CUDA was chosen")
"""
    run(none + choose, emulated())


def test_a_driver_that_does_not_count_its_devices() -> None:
    reason = refusal(emulated(), FAILING.format(function="cuDeviceGetCount", code=999))
    assert reason.startswith("cuDeviceGetCount failed with CUDA_ERROR_UNKNOWN")


def test_bindings_that_are_not_nvidias(tmp_path: Path) -> None:
    package = tmp_path / "cuda" / "bindings"
    package.mkdir(parents=True)
    for folder in (package.parent, package):
        (folder / "__init__.py").touch()
    (package / "driver.py").write_text("HIP_PYTHON = True\n")
    reason = refusal(emulated(PYTHONPATH=os.pathsep.join([str(tmp_path), str(ROOT)])))
    assert reason.startswith("the installed cuda.bindings is AMD's imitation (hip-python-interop), not NVIDIA's")
    assert "pip uninstall hip-python-interop" in reason


def test_no_two_reasons_are_the_same() -> None:
    found = [
        refusal(emulated(DEVMEM_EMULATOR_DEVICES="0")),
        refusal(emulated(DEVMEM_EMULATOR_CUDA_VERSION="11000")),
        refusal(emulated(), FAILING.format(function="cuInit", code=999)),
        *([] if has_driver() else [refusal(plain())]),
    ]
    assert len(set(found)) == len(found)


def test_asking_for_it_by_name_tells_the_reason() -> None:
    script = """
import devmem
try:
    devmem.use_backend("cuda")
except devmem.BackendUnavailable as error:
    assert isinstance(error, ImportError)
    print(error)
"""
    said = run(script, emulated(DEVMEM_EMULATOR_DEVICES="0")).strip()
    assert said == "the backend 'cuda' cannot be used: the NVIDIA driver sees no device: check nvidia-smi"


def test_in_the_child_of_a_fork() -> None:
    """The driver was started by another library before the fork; devmem is asked for the first time in the child."""
    script = """
import os, sys
from cuda.bindings import driver
assert not driver.cuInit(0)[0]
child = os.fork()
if not child:
    import devmem
    (found,) = [each for each in devmem.backends() if each.name == "cuda"]
    assert "forked" in found.reason and "spawn" in found.reason, found
    sys.stdout.flush()
    os._exit(0)
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
"""
    run(script, emulated())


def test_import_touches_nothing_of_cuda() -> None:
    script = """
import sys
before = set(sys.modules)  # a .pth file may have brought in something
import devmem, devmem.memory, devmem.errors, devmem.plugins, devmem.spi.driver, devmem.backends.cuda, devmem.testing
import devmem.backends.cuda.hooks
devmem.settings()
loaded = sorted(name for name in set(sys.modules) - before if name == "cuda" or name.startswith("cuda."))
assert not loaded, loaded
with open("/proc/self/maps") as maps:
    assert "libcuda" not in maps.read()
"""
    assert run(script, emulated()) == ""


def test_import_calls_no_driver() -> None:
    """The driver is in the process already, brought in by another library: nothing of it is called."""
    script = """
from devmem.testing import emulator
emulator.load("cuda")
import importlib, pkgutil, sys, warnings
import devmem
warnings.filterwarnings("ignore", "cudadrv.drvapi is deprecated", DeprecationWarning)
for module in pkgutil.walk_packages(devmem.__path__, "devmem."):
    # These need packages of their own.
    if not module.name.startswith(("devmem.cli", "devmem.kernels.compilers.", "devmem.backends.opencl.")):
        importlib.import_module(module.name)
assert "devmem.backends.cuda.driver" in sys.modules
assert emulator.control("cuda").calls() == {}
devmem.backends()
calls = emulator.control("cuda").calls()
assert calls.pop("cuInit") >= 1
assert set(calls) <= {"cuGetProcAddress", "cuDriverGetVersion", "cuDeviceGetCount"}, calls
"""
    assert run(script, emulated()) == ""


def test_asking_opens_no_device() -> None:
    script = """
import devmem
devmem.backends(); devmem.devices()
from cuda.bindings import driver
assert driver.cuDevicePrimaryCtxGetState(0)[2] == 0
assert int(driver.cuCtxGetCurrent()[1]) == 0
"""
    assert run(script, emulated()) == ""
