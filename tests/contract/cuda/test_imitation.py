"""AMD's ``hip-python-interop`` installs a ``cuda.bindings`` that drives AMD GPUs: the CUDA backend must not take it for NVIDIA's.

With a stand-in everywhere; with the real package where it is installed, which is an environment of its own (``nox -s interop``):
it overwrites NVIDIA's files, or is overwritten by them, and pip sees nothing wrong.
"""

from __future__ import annotations

import importlib.metadata
import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from waits import patience

from devmem.testing import emulator

ROOT = Path(__file__).resolve().parents[3]

STATUS = """
import json, devmem
print(json.dumps({each.name: [each.usable, each.reason] for each in devmem.backends()}))
"""
#: As the imitation answers when there is a ROCm library: a CUDA function that succeeds with AMD's status.
STAND_IN = """
HIP_PYTHON = True
def cuInit(flags):
    raise SystemExit("an imitation was called")
cuDriverGetVersion = cuDeviceGetCount = cuInit
"""


def installed(distribution: str) -> bool:
    try:
        importlib.metadata.version(distribution)
    except importlib.metadata.PackageNotFoundError:
        return False
    return True


really = pytest.mark.skipif(
    not installed("hip-python-interop"), reason="hip-python-interop is not installed: nox -s interop"
)


def run(script: str, *, path: Path | None = None, **variables: str) -> str:
    """What a script prints in a fresh interpreter, which must print nothing on the error stream."""
    hidden = ("LD_LIBRARY_PATH", "CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES")
    kept = {name: value for name, value in os.environ.items() if name not in hidden and not name.startswith("DEVMEM_")}
    paths = [*([str(path)] if path else []), str(ROOT)]
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", script],
        env={**kept, "PYTHONPATH": os.pathsep.join(paths), **variables},
        capture_output=True,
        text=True,
        timeout=patience(140),
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stderr == "", "something was printed"
    return done.stdout


def refusal(**where: object) -> str:
    usable, reason = json.loads(run(STATUS, **where))["cuda"]  # type: ignore[arg-type]
    assert usable is False
    assert isinstance(reason, str)
    return reason


def advises(reason: str) -> bool:
    """What the user of either vendor's GPU is to do, on one line."""
    assert "\n" not in reason
    assert reason.startswith("the installed cuda.bindings is AMD's imitation (hip-python-interop), not NVIDIA's")
    assert "on AMD GPUs use the backend roc" in reason
    return "pip uninstall hip-python-interop" in reason and "--force-reinstall 'cuda-bindings" in reason


def test_a_stand_in_is_refused_and_none_of_its_functions_called(tmp_path: Path) -> None:
    package = tmp_path / "cuda" / "bindings"
    package.mkdir(parents=True)
    for folder in (package.parent, package):
        (folder / "__init__.py").touch()
    (package / "driver.py").write_text(STAND_IN)
    assert advises(refusal(path=tmp_path))


def test_asking_for_cuda_by_name_tells_the_same(tmp_path: Path) -> None:
    package = tmp_path / "cuda" / "bindings"
    package.mkdir(parents=True)
    for folder in (package.parent, package):
        (folder / "__init__.py").touch()
    (package / "driver.py").write_text(STAND_IN)
    script = """
import devmem
try:
    devmem.to_device([1.0])
except devmem.BackendUnavailable as error:
    print(error)
"""
    said = run(script, path=tmp_path, DEVMEM_BACKEND="cuda").strip()
    assert said.startswith("the backend 'cuda' cannot be used: ")
    assert advises(said.partition(": ")[2])


@really
def test_the_real_imitation_bears_the_mark() -> None:
    """If this fails, the package has changed, and the CUDA backend needs another way to tell."""
    assert importlib.util.find_spec("cuda.bindings.driver") is not None
    assert run("from cuda.bindings import driver; print(driver.HIP_PYTHON is True)") == "True\n"


@really
def test_the_real_imitation_is_refused() -> None:
    assert advises(refusal())


def hip() -> dict[str, str]:
    """The variables under which the bindings find an emulated HIP runtime, and nothing else of the emulator's."""
    try:
        found = emulator.environment("roc")
    except emulator.BuildError as error:
        pytest.skip(f"no emulator: {error}")
    return {name: value for name, value in found.items() if not name.startswith("DEVMEM_")}


@really
def test_the_real_imitation_is_refused_also_where_it_works() -> None:
    """With a HIP runtime its cuInit succeeds: taken at its word, AMD memory would be handed out as CUDA's."""
    variables = hip()
    works = "from cuda.bindings import driver; (status,) = driver.cuInit(0); print(int(status), type(status).__name__)"
    assert run(works, **variables) == "0 hipError_t\n"
    assert advises(refusal(**variables))


@really
def test_beside_the_imitation_amds_gpus_are_used_by_their_own_backend() -> None:
    script = """
import devmem, numpy
device = devmem.current_device()
back = devmem.to_device(numpy.arange(5.0)).copy_to_host()
print(device.backend, back.tolist())
"""
    assert run(script, **hip()) == "roc [0.0, 1.0, 2.0, 3.0, 4.0]\n"
