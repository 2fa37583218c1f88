"""Machines as they are met: with no HIP runtime, a versioned one only, an old one, two, one without a device.

The runtimes are a few lines of C that answer a number, made here; each world is a fresh interpreter. Where a binding of AMD's
is installed they are called through that, else through ctypes.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from waits import patience

from devmem.backends.roc.functions import REQUIRED

ROOT = Path(__file__).resolve().parents[3]
compiler = shutil.which("cc") or shutil.which("gcc") or shutil.which("clang")
pytestmark = [
    pytest.mark.skipif(not sys.platform.startswith("linux"), reason="looks into /proc"),
    pytest.mark.skipif(compiler is None, reason="no C compiler to make a runtime with"),
    pytest.mark.skipif(Path("/opt/rocm/lib").exists(), reason="a real ROCm is here, and would be found"),
]

STATUS = """
import json
from devmem.backends.roc.hooks import RocBackend
backend = RocBackend()
backend.configure({options!r})
reason = backend.unavailable()
assert reason == backend.unavailable(), "asked twice, answered differently"
found = {{"reason": reason}}
if reason is None or "lacks" not in reason and "found" not in reason and "is no file" not in reason and "loaded:" not in reason:
    from devmem.backends.roc.runtime import mapped, runtime
    at = runtime({options!r}.get("provider", "auto"), {options!r}.get("library", ""))
    found |= dict(path=at.library.path, how=at.library.how, provider=at.provider, mapped=list(mapped()))
print(json.dumps(found))
"""


def source(count: int, status: int, leave_out: str) -> str:
    lines = [f"int {name}(void) {{ return 0; }}" for name in REQUIRED if name not in (leave_out, "hipGetDeviceCount")]
    lines.append(f"int hipGetDeviceCount(int *count) {{ *count = {count}; return {status}; }}")
    lines += [
        f'const char *{name}(int code) {{ return "hipErrorOfOurs"; }}'
        for name in ("hipGetErrorName", "hipGetErrorString")
    ]
    return "\n".join(lines)


@pytest.fixture
def make(tmp_path: Path) -> Callable[..., Path]:
    """Compile a runtime under a name, and say where it is."""

    def build(
        folder: str = "rocm/lib",
        name: str = "libamdhip64.so",
        count: int = 1,
        status: int = 0,
        leave_out: str = "",
        soname: str = "",
    ) -> Path:
        target = tmp_path / folder / name
        target.parent.mkdir(parents=True, exist_ok=True)
        code = target.with_suffix(".c")
        code.write_text(source(count, status, leave_out))
        linked = [f"-Wl,-soname,{soname}"] if soname else []
        done = subprocess.run(
            [str(compiler), "-shared", "-fPIC", "-w", *linked, str(code), "-o", str(target)],
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        return target

    return build


def look(before: str = "", options: dict[str, object] | None = None, **environment: str) -> dict[str, object]:
    """What a fresh interpreter says, with only these of the variables that matter; nothing may be printed besides."""
    left_out = ("LD_LIBRARY_PATH", "ROCM_PATH", "ROCM_HOME", "HIP_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES")
    kept = {
        name: value
        for name, value in os.environ.items()
        if name not in (*left_out, "CUDA_VISIBLE_DEVICES") and not name.startswith("DEVMEM_")
    }
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", before + STATUS.format(options=options or {})],
        env={**kept, "PYTHONPATH": str(ROOT), **environment},
        capture_output=True,
        text=True,
        timeout=patience(140),
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stderr == "", "something was printed"
    (line,) = done.stdout.splitlines()
    found = json.loads(line)
    assert isinstance(found, dict)
    return found


def refusal(**world: str) -> str:
    reason = look(**world)["reason"]  # type: ignore[arg-type]
    assert isinstance(reason, str)
    assert "\n" not in reason
    return reason


# -- which library -----------------------------------------------------------------------------------------------------


def test_without_a_library_the_reason_names_the_places_searched() -> None:
    reason = refusal(ROCM_PATH="/nowhere")
    assert "no HIP runtime was found" in reason
    assert "/nowhere/lib" in reason and "/opt/rocm/lib" in reason, "where it was looked for"
    assert "hip-runtime-amd" in reason and "DEVMEM_ROC_LIBRARY" in reason, "what would help"


@pytest.mark.parametrize("name", ["libamdhip64.so", "libamdhip64.so.7", "libamdhip64.so.6", "libamdhip64.so.5"])
@pytest.mark.parametrize("variable", ["ROCM_PATH", "ROCM_HOME", "LD_LIBRARY_PATH"])
def test_versioned_names_will_do(make: Callable[..., Path], name: str, variable: str) -> None:
    path = make(name=name)
    value = path.parent if variable == "LD_LIBRARY_PATH" else path.parents[1]
    found = look(**{variable: str(value)})
    assert found["reason"] is None
    assert found["path"] == str(path) and found["mapped"] == [str(path)]
    assert found["how"] == ("the loader's search path" if variable == "LD_LIBRARY_PATH" else variable)


@pytest.mark.parametrize(("name", "told"), [("libamdhip64.so", False), ("libamdhip64.so.6", True)])
def test_a_versioned_name_only_is_told(make: Callable[..., Path], name: str, told: bool) -> None:
    reason = refusal(ROCM_PATH=str(make(name=name, count=0, status=100).parents[1]))
    assert "sees no AMD GPU" in reason
    assert ("under its versioned name only (libamdhip64.so.6)" in reason) is told


def test_order_of_the_places(make: Callable[..., Path]) -> None:
    by_path, by_loader, by_setting = (make(folder=f"{name}/lib") for name in ("one", "two", "three"))
    world = {"ROCM_PATH": str(by_path.parents[1]), "LD_LIBRARY_PATH": str(by_loader.parent)}
    assert look(**world)["path"] == str(by_path)
    found = look(options={"library": str(by_setting)}, **world)
    assert (found["path"], found["how"]) == (str(by_setting), "DEVMEM_ROC_LIBRARY")
    assert found["mapped"] == [str(by_setting)], "a second copy was loaded"


def test_rocm_that_pip_installed(make: Callable[..., Path], tmp_path: Path) -> None:
    path = make(folder="wheel", name="libamdhip64.so.7")
    package = tmp_path / "site" / "rocm_sdk"
    package.mkdir(parents=True)
    package.joinpath("__init__.py").write_text(f"def find_libraries(*names):\n    return [{str(path)!r}]\n")
    found = look(PYTHONPATH=os.pathsep.join([str(ROOT), str(package.parent)]))
    assert (found["path"], found["how"], found["reason"]) == (str(path), "rocm_sdk", None)
    package.joinpath("__init__.py").write_text(
        "def find_libraries(*names):\n    raise FileNotFoundError('no core package')\n"
    )
    reason = look(PYTHONPATH=os.pathsep.join([str(ROOT), str(package.parent)]))["reason"]
    assert "no HIP runtime was found" in str(reason)


def test_the_library_that_is_already_loaded_is_used(make: Callable[..., Path]) -> None:
    """As PyTorch does: its own copy, under a path that is not searched. A second one would not know its memory."""
    theirs, ours = make(folder="torch/lib"), make()
    before = f"import ctypes; ctypes.CDLL({str(theirs)!r})\n"
    for options in ({}, {"library": str(ours)}, {"provider": "ctypes"}):
        found = look(before, options, ROCM_PATH=str(ours.parents[1]), LD_LIBRARY_PATH=str(ours.parent))
        assert found["reason"] is None
        assert found["path"] == str(theirs)
        assert found["mapped"] == [str(theirs)], "a second copy was loaded"


def test_one_file_of_two_names_is_one_copy(make: Callable[..., Path]) -> None:
    path = make(name="libamdhip64.so.7")
    path.with_name("libamdhip64.so").symlink_to(path.name)
    before = f"import ctypes; ctypes.CDLL({str(path)!r})\n"
    assert look(before, ROCM_PATH=str(path.parents[1]))["mapped"] == [str(path)]


def test_two_copies_are_told_of_when_a_device_is_opened(make: Callable[..., Path]) -> None:
    paths = [str(make(folder=f"{name}/lib", soname=name)) for name in ("one", "two")]
    script = f"""
import ctypes, warnings
for path in {paths!r}:
    ctypes.CDLL(path)
from devmem.backends.roc.runtime import runtime, warn_of_copies
with warnings.catch_warnings(record=True) as said:
    warnings.simplefilter("always")
    warn_of_copies(runtime("ctypes").library)
(one,) = said
assert all(path in str(one.message) for path in {paths!r}), one.message
assert "2 HIP runtimes" in str(one.message) and one.category.__name__ == "DevmemWarning"
"""
    assert look(script, {"provider": "ctypes"})["reason"] is None, "asking is silent"


def test_setting_that_names_no_file() -> None:
    reason = look(options={"library": "/nowhere/libamdhip64.so"})["reason"]
    assert "DEVMEM_ROC_LIBRARY='/nowhere/libamdhip64.so' is no file" in str(reason)


def test_library_that_cannot_be_loaded(tmp_path: Path) -> None:
    path = tmp_path / "lib" / "libamdhip64.so"
    path.parent.mkdir()
    path.write_bytes(b"\x7fELF but not really")
    reason = refusal(ROCM_PATH=str(tmp_path))
    assert str(path) in reason and "cannot be loaded:" in reason


def test_library_with_missing_symbols(make: Callable[..., Path]) -> None:
    path = make(leave_out="hipHostRegister")
    reason = refusal(ROCM_PATH=str(path.parents[1]))
    assert "lacks hipHostRegister:" in reason and str(path) in reason and "ROCM_PATH" in reason


def test_something_else_of_that_name(tmp_path: Path) -> None:
    target = tmp_path / "lib" / "libamdhip64.so"
    target.parent.mkdir()
    subprocess.run([str(compiler), "-shared", "-x", "c", "/dev/null", "-o", str(target)], check=True)
    assert f"and {len(REQUIRED) - 3} more" in refusal(ROCM_PATH=str(tmp_path))


# -- no device ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("count", "status", "words"),
    [
        (0, 0, "no device to show"),
        (0, 100, "sees no AMD GPU"),
        (0, 101, "could not set up any AMD GPU"),
        (0, 3, "could not be initialised"),
        (0, 35, "driver is too old"),
        (0, 2, "hipGetDeviceCount failed with hipError"),
        (0, 4242, "4242"),
    ],
)
def test_each_status_has_its_sentence(make: Callable[..., Path], count: int, status: int, words: str) -> None:
    path = make(count=count, status=status)
    reason = refusal(ROCM_PATH=str(path.parents[1]))
    assert words in reason and str(path) in reason
    assert "VISIBLE_DEVICES" not in reason, "nothing hides anything"


@pytest.mark.parametrize(
    ("variables", "told", "untold"),
    [
        ({"HIP_VISIBLE_DEVICES": "7"}, ["HIP_VISIBLE_DEVICES='7'"], ["CUDA", "ROCR"]),
        ({"CUDA_VISIBLE_DEVICES": "-1"}, ["CUDA_VISIBLE_DEVICES='-1'", "HIP obeys too"], ["ROCR"]),
        ({"CUDA_VISIBLE_DEVICES": ""}, [], ["VISIBLE_DEVICES"]),
        ({"HIP_VISIBLE_DEVICES": "0", "CUDA_VISIBLE_DEVICES": "-1"}, ["HIP_VISIBLE_DEVICES='0'"], ["CUDA"]),
        ({"HIP_VISIBLE_DEVICES": "", "CUDA_VISIBLE_DEVICES": "-1"}, ["CUDA_VISIBLE_DEVICES='-1'"], ["ROCR"]),
        (
            {"ROCR_VISIBLE_DEVICES": "GPU-1", "CUDA_VISIBLE_DEVICES": "3"},
            ["ROCR_VISIBLE_DEVICES='GPU-1' and CUDA_VISIBLE_DEVICES='3'"],
            [],
        ),
    ],
)
def test_variables_that_hide_devices(
    make: Callable[..., Path], variables: dict[str, str], told: list[str], untold: list[str]
) -> None:
    reason = refusal(ROCM_PATH=str(make(count=0, status=100).parents[1]), **variables)
    assert all(word in reason for word in told)
    assert not any(word in reason for word in untold)


# -- providers ---------------------------------------------------------------------------------------------------------


def test_ctypes_needs_no_package(make: Callable[..., Path]) -> None:
    blocker = """
import sys
class Blocker:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in ("hip", "rocm"):
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
sys.meta_path.insert(0, Blocker())
"""
    world = {"ROCM_PATH": str(make().parents[1])}
    assert look(blocker, **world) | {"mapped": 0, "path": 0, "how": 0} == {
        "reason": None,
        "provider": "ctypes",
        "mapped": 0,
        "path": 0,
        "how": 0,
    }
    for wanted, package in (("rocm", "devmem-arrays[rocm]"), ("hip", "hip-python>=7")):
        script = (
            blocker
            + f"""
from devmem.backends.roc.hooks import RocBackend
asked = RocBackend()
asked.configure({{"provider": {wanted!r}}})
said = asked.unavailable()
assert said.startswith("DEVMEM_ROC_PROVIDER={wanted}:") and "{package}" in said, said
"""
        )
        assert look(script, **world)["reason"] is None
