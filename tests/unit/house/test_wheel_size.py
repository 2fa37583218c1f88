"""The wheel is small and holds devmem only."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    if not (ROOT / "pyproject.toml").is_file():
        pytest.skip("these are not the sources: there is no pyproject.toml to build from")
    if importlib.util.find_spec("hatchling") is None:
        pytest.skip("hatchling, which builds the wheel, is not installed: pip install hatchling")
    folder = tmp_path_factory.mktemp("wheel")
    build = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(folder)]
    run = subprocess.run(build, cwd=ROOT, capture_output=True, text=True)
    assert run.returncode == 0, run.stderr
    [found] = folder.glob("*.whl")
    return found


@pytest.fixture(scope="module")
def names(wheel):
    with zipfile.ZipFile(wheel) as archive:
        return archive.namelist()


def test_it_is_small_and_holds_sources_and_the_compiled_core_only(wheel):
    check = [sys.executable, str(ROOT / "scripts" / "check_wheel.py"), str(wheel)]
    run = subprocess.run(check, capture_output=True, text=True)
    assert run.returncode == 0, run.stderr


def test_it_holds_all_of_devmem(names):
    package = ROOT / "devmem"
    sources = {path.relative_to(ROOT).as_posix() for path in package.rglob("*.py")} | {"devmem/py.typed"}
    assert sources <= set(names)
