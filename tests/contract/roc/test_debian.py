"""A real ROCm runtime on a machine without an AMD GPU: Debian's, unpacked into a cache. What it says is not ours to invent.

`scripts/debian_rocm.py` fetches it (the sessions of nox for ROCm do); without it these tests are skipped with the reason. Each
case is a world of its own, so each runs in a fresh interpreter, which must end well and print nothing on the error stream.
"""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest
from waits import patience

ROOT = Path(__file__).resolve().parents[3]
PROVIDERS = ["rocm", "hip", "ctypes"]
WAYS = ["as shipped", "bare name", "prefix", "setting"]

STATUS = """
import json, pathlib
import devmem
(found,) = [each for each in devmem.backends() if each.name == "roc"]
(again,) = [each for each in devmem.backends() if each.name == "roc"]
assert again == found, "asked twice, answered differently"
lines = pathlib.Path("/proc/self/maps").read_text().splitlines()
mapped = sorted({line.split()[-1] for line in lines if "libamdhip64" in line})
print(json.dumps({"usable": found.usable, "devices": found.devices, "reason": found.reason, "mapped": mapped}))
"""


def script() -> ModuleType:
    spec = importlib.util.spec_from_file_location("debian_rocm", ROOT / "scripts" / "debian_rocm.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses look their module up
    spec.loader.exec_module(module)
    return module


debian_rocm = script()
try:
    FOUND, reason = debian_rocm.at_hand(), ""
except debian_rocm.NotAtHandError as error:
    FOUND, reason = None, str(error)
pytestmark = pytest.mark.skipif(FOUND is None, reason=reason)


def has(provider: str) -> bool:
    """Whether a binding of that series is installed, asked without loading anything."""
    names = {"rocm": "rocm.bindings.hip", "hip": "hip._version"}
    try:
        return provider == "ctypes" or importlib.util.find_spec(names[provider]) is not None
    except ImportError:
        return False


@pytest.fixture(params=PROVIDERS)
def provider(request: pytest.FixtureRequest) -> str:
    if not has(request.param):
        pytest.skip(f"hip-python of the series {request.param!r} is not installed")
    name: str = request.param
    return name


def world(way: str = "as shipped", **more: str) -> dict[str, str]:
    """An environment in which the runtime is found in one of the ways that there are."""
    kept = {
        name: value
        for name, value in os.environ.items()
        if name not in ("LD_LIBRARY_PATH", "ROCM_PATH", "ROCM_HOME", "PYTHONPATH")
        and not name.startswith("DEVMEM_")
        and not name.endswith("_VISIBLE_DEVICES")
    }
    if way != "none":
        folder = FOUND.prefix / "lib" if way == "bare name" else FOUND.as_shipped
        kept["LD_LIBRARY_PATH"] = str(folder)  # in every way: the runtime's own dependencies lie there too
    if way == "prefix":
        kept["ROCM_PATH"] = str(FOUND.prefix)
    if way == "setting":
        kept["DEVMEM_ROC_LIBRARY"] = str(FOUND.library)
    return {**kept, "PYTHONPATH": str(ROOT), **more}


def run(environment: dict[str, str], *arguments: str, code: int = 0) -> str:
    done = subprocess.run(
        [sys.executable, *arguments],
        env=environment,
        capture_output=True,
        text=True,
        timeout=patience(140),
        check=False,
    )
    assert done.returncode == code, (done.returncode, done.stdout, done.stderr)
    assert done.stderr == "", "something was printed"
    return done.stdout


def python(environment: dict[str, str], source: str) -> str:
    return run(environment, "-W", "error", "-c", source)


# -- what the library says ---------------------------------------------------------------------------------------------


def test_the_runtime_itself_says_that_there_is_no_device() -> None:
    """The statuses on which the sentences are built, said by the vendor's code."""
    raw = """
import ctypes
hip = ctypes.CDLL("libamdhip64.so.5")
count, version, address = ctypes.c_int(-1), ctypes.c_int(), ctypes.c_void_p()
print(hip.hipGetDeviceCount(ctypes.byref(count)), count.value)
print(hip.hipMalloc(ctypes.byref(address), ctypes.c_size_t(64)))
print(hip.hipRuntimeGetVersion(ctypes.byref(version)), version.value // 10_000_000)
"""
    counted, refused, version = python(world(), raw).splitlines()
    assert counted in ("100 0", "101 0")
    assert refused in ("100", "101")
    assert version.startswith("0 ")


@pytest.mark.parametrize("way", WAYS)
def test_no_device_is_told_cleanly(way: str, provider: str) -> None:
    """Whichever provider asks, and however the library was found: one sentence, one copy of the library."""
    found = json.loads(python(world(way, DEVMEM_ROC_PROVIDER=provider), STATUS))
    assert found["usable"] is False
    assert found["devices"] == 0
    [mapped] = found["mapped"]
    assert Path(mapped).samefile(FOUND.library)
    assert found["reason"].startswith("the HIP runtime ")
    assert " is there, but it sees no AMD GPU" in found["reason"]
    assert "rocminfo" in found["reason"]
    assert "\n" not in found["reason"]


def test_left_to_itself_it_finds_a_provider() -> None:
    found = json.loads(python(world(), STATUS))
    assert " is there, but it sees no AMD GPU" in found["reason"]


def test_the_provider_that_was_asked_for_is_the_one_that_asks(provider: str) -> None:
    """Debian ships no unversioned name, under which the bindings look: they are shown the file."""
    source = f"""
from devmem.backends.roc.runtime import runtime
found = runtime({provider!r})
print(found.provider)
"""
    assert python(world(), source) == f"{provider}\n"


def test_hidden_devices_are_mentioned(provider: str) -> None:
    """A variable that is set for another vendor hides AMD's devices too."""
    environment = world(DEVMEM_ROC_PROVIDER=provider, CUDA_VISIBLE_DEVICES="-1")
    found = json.loads(python(environment, STATUS))
    assert "CUDA_VISIBLE_DEVICES='-1'" in found["reason"]


def test_without_the_library_the_sentence_is_another() -> None:
    found = json.loads(python(world("none"), STATUS))
    if found["mapped"]:
        pytest.skip("this machine has a HIP runtime of its own")
    assert found["reason"].startswith("no HIP runtime ")


# -- what devmem does with it ------------------------------------------------------------------------------------------


def test_asking_for_it_by_name_tells_the_reason(provider: str) -> None:
    source = """
import devmem
try:
    devmem.to_device([1.0])
except devmem.BackendUnavailable as error:
    assert isinstance(error, ImportError)
    print(error)
"""
    said = python(world(DEVMEM_ROC_PROVIDER=provider, DEVMEM_BACKEND="roc"), source)
    assert said.startswith("the backend 'roc' cannot be used: the HIP runtime ")


def test_without_a_choice_the_host_takes_over_and_one_warning_says_why(provider: str) -> None:
    source = """
import warnings, devmem
with warnings.catch_warnings(record=True) as said:
    warnings.simplefilter("always")
    device = devmem.current_device()
    devmem.to_device([1.0])
(message,) = [str(each.message) for each in said]
assert device.backend != "roc"
print(message)
"""
    said = python(world(DEVMEM_ROC_PROVIDER=provider), source)
    assert "it sees no AMD GPU" in said


def test_opening_a_device_that_is_not_there_is_a_typed_error(provider: str) -> None:
    source = f"""
from devmem.backends.roc.hooks import RocBackend
from devmem.spi.errors import BackendError
backend = RocBackend()
backend.configure({{"provider": {provider!r}}})
try:
    backend.open(0)
except BackendError as error:
    print(error.backend, error.code)
"""
    backend, code = python(world(), source).split()
    assert backend == "roc"
    assert int(code) in (3, 100, 101)


@pytest.mark.parametrize("command", ["info", "doctor"])
@pytest.mark.parametrize("form", [(), ("--json",)], ids=["text", "json"])
def test_the_commands_tell_it(command: str, form: tuple[str, ...], provider: str) -> None:
    pytest.importorskip("click", reason="the commands need the extra cli")
    environment = world(DEVMEM_ROC_PROVIDER=provider, DEVMEM_BACKEND="host", COLUMNS="400")
    said = run(environment, "-m", "devmem.cli", command, *form)
    assert "it sees no AMD GPU" in " ".join(said.split())


def test_in_the_child_of_a_fork_the_answer_is_still_an_answer(provider: str) -> None:
    """AMD calls the runtime's state after a fork undefined: it may say no, in any words, but not end the process."""
    source = """
import os, devmem
def asked():
    (found,) = [each for each in devmem.backends() if each.name == "roc"]
    return found
assert not asked().usable
child = os.fork()
if not child:
    found = asked()
    os._exit(0 if not found.usable and found.reason else 1)
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
"""
    assert python(world(DEVMEM_ROC_PROVIDER=provider), source) == ""
