"""Building the compiled core: optional, whole or not at all, and for every CPython from the first one that it serves."""

from __future__ import annotations

import importlib.util
import platform
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from devmem import _native

ROOT = Path(__file__).parents[3]
HOOK = ROOT / "hatch_build.py"
SOURCES = ROOT / "devmem/_native/src"

pytestmark = pytest.mark.skipif(
    not HOOK.is_file() or importlib.util.find_spec("hatchling") is None, reason="these are not the sources"
)


@pytest.fixture(scope="module")
def hook():
    spec = importlib.util.spec_from_file_location("hatch_build", HOOK)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_what_is_wrong_is_told_and_leaves_nothing(hook, tmp_path):
    (tmp_path / "sources").mkdir()
    (tmp_path / "sources" / "module.c").write_text("#error no\n")
    target = tmp_path / "core.abi3.so"
    if hook.reason_against():
        pytest.skip(hook.reason_against())
    assert "no" in hook.compile_core(tmp_path / "sources", target)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["sources"]


def test_without_a_compiler_it_is_left_out(hook, monkeypatch):
    monkeypatch.delenv("CC", raising=False)
    monkeypatch.setattr(shutil, "which", lambda name: None)
    if "headers" not in (against := hook.reason_against()) and sys.implementation.name == "cpython":
        assert "compiler" in against or "free-threaded" in against or "never built" in against


def test_a_compiler_that_fails_is_told(hook, monkeypatch, tmp_path):
    monkeypatch.setenv("CC", "/bin/false")
    assert "ended with 1" in hook.compile_core(SOURCES, tmp_path / "core.abi3.so")
    assert not list(tmp_path.iterdir())


def test_the_sources_compile_without_a_warning(hook, tmp_path):
    if hook.reason_against():
        pytest.skip(hook.reason_against())
    assert hook.compile_core(SOURCES, tmp_path / "core.abi3.so", ("-Werror",)) == ""


@pytest.mark.skipif(
    platform.machine() != "x86_64" or not shutil.which("readelf"), reason="nothing here reads relocations"
)
def test_the_interpreters_functions_are_called_without_a_table_of_jumps():
    if _native.core is None:
        pytest.skip(_native.why)
    found = subprocess.run(["readelf", "-rW", _native.core.__file__], capture_output=True, text=True, check=True).stdout
    assert "PyErr_Occurred" in found
    assert "JUMP_SLO" not in found


def test_it_is_small_enough_to_read():
    texts = {path.name: re.sub(r"/\*.*?\*/", "", path.read_text(), flags=re.DOTALL) for path in SOURCES.iterdir()}
    lines = {name: sum(bool(line.strip()) for line in text.splitlines()) for name, text in texts.items()}
    assert lines.pop("numbers.c") <= 250  # the simulator's
    assert sum(lines.values()) <= 2500  # of code
