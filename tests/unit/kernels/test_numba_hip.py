"""numba-hip as a compiler, as far as that goes without ROCm: when it can be used, and what devmem's names are to it."""

from __future__ import annotations

import importlib.machinery
import importlib.util
import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
from waits import patience

import devmem as dm
from devmem.kernels.compilers import numba_hip
from devmem.kernels.compilers.numba_hip import NumbaHip
from devmem.kernels.compilers.numba_hip.architecture import architecture

ROOT = Path(__file__).resolve().parents[3]
PROGRAM = ROOT / "tests" / "helpers" / "numba_hip_names.py"


def hip_folder():
    numba = importlib.util.find_spec("numba")
    folders = [Path(each) / "hip" for each in numba.submodule_search_locations] if numba else []
    return next((each for each in folders if each.is_dir()), None)


@pytest.mark.skipif(hip_folder() is None, reason="numba-hip is not installed")
def test_the_names_against_the_registries_of_numba_hip():
    """All well-known kernels are typed, and what devmem builds itself is built, and runs on the host."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        [sys.executable, str(PROGRAM)],
        env=environment,
        capture_output=True,
        text=True,
        timeout=patience(110),
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.split()[-1] == "built"
    assert len(done.stdout.split()) == 14


@pytest.fixture
def installed(monkeypatch, tmp_path):
    """Make numba look installed, with numba-hip or without."""

    def say(numba, hip=False):
        spec = importlib.machinery.ModuleSpec("numba", None, is_package=True)
        spec.submodule_search_locations = [str(tmp_path)]
        if hip:
            (tmp_path / "hip").mkdir()
        monkeypatch.setattr(numba_hip, "find_spec", lambda name: spec if numba else None)

    return say


def test_why_it_cannot_be_used(installed, monkeypatch, tmp_path):
    installed(False)
    assert NumbaHip().unavailable() == "numba-hip is not installed: pip install 'devmem-arrays[rocm-kernels]'"
    installed(True)
    assert "numba-hip is not installed" in NumbaHip().unavailable()
    installed(True, hip=True)
    monkeypatch.delenv("ROCM_HOME", raising=False)
    monkeypatch.setenv("ROCM_PATH", str(tmp_path / "nowhere"))
    assert "there are none at" in NumbaHip().unavailable()
    monkeypatch.setenv("ROCM_PATH", str(tmp_path))
    assert NumbaHip().unavailable() is None


def test_what_cannot_be_imported_is_told(monkeypatch):
    monkeypatch.setitem(sys.modules, "devmem.kernels.compilers.numba_hip.compiler", None)
    with pytest.raises(dm.UnsupportedError, match=r"numba-hip could not be imported .*set ROCM_PATH"):
        NumbaHip().type_of(1)


@pytest.mark.parametrize(
    ("arch", "features", "told"),
    [("gfx90a", "sramecc+:xnack-", "gfx90a:sramecc+:xnack-"), ("gfx1100", "", "gfx1100")],
)
def test_the_architecture_with_its_features(arch, features, told):
    info = SimpleNamespace(arch=arch, facts={"features": features}, name="a GPU")
    assert architecture(SimpleNamespace(info=info)) == told


def test_an_unknown_architecture_is_refused():
    info = SimpleNamespace(arch="", facts={}, name="an old GPU")
    with pytest.raises(dm.UnsupportedError, match="'' of an old GPU is not an AMD architecture"):
        architecture(SimpleNamespace(info=info))
